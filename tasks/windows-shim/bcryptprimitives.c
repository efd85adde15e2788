/* The one function of Windows' bcryptprimitives.dll that Rust's standard library calls. Wine 8 has no such file and is
 * given this one; Windows has its own. Built by tasks/windows, and never part of what is released. */
#include <windows.h>

/* advapi32's RtlGenRandom by the name that it is exported under. */
BOOLEAN NTAPI SystemFunction036(PVOID bytes, ULONG count);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T count)
{
    while (count > 0) {
        ULONG some = count > 1u << 20 ? 1u << 20 : (ULONG)count;
        if (!SystemFunction036(bytes, some))
            return FALSE;
        bytes += some;
        count -= some;
    }
    return TRUE;
}
