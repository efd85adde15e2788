//! One SIMD layer for all kernels: operations of a vector of f32 or of bytes, on every instruction set.
//!
//! A kernel is a [`Kernel`], written once over [`Simd`]; [`dispatch`] runs it on the instruction set that an [`Isa`] stands
//! for. A value of a type that implements `Simd` is a *token*: it exists only where the machine has been found to have the
//! instructions, so operations on registers are safe functions. What takes a pointer is `unsafe` because of the pointer.
//!
//! A lane is one output. Kernels never add across lanes, except by the fixed trees of [`Lanes::sum`] and [`Lanes::largest`],
//! so one lane of [`Scalar`], eight of AVX2 or NEON and sixteen of AVX-512 run the same operations in the same order on the
//! same numbers, and give the same bits. (Of a NaN only that it is one is promised: sign and payload are the machine's.)
#![allow(unsafe_code)] // Vector instructions, and operands by pointer.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod fused;
mod isa;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod q8;
mod scalar;
mod simd;
mod transpose;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use isa::{ISA_VARIABLE, Isa, IsaError};
pub use lanes::{F32x16, LANES, Lanes, larger};
pub use q8::{Q8_COLS, Q8Block};
pub use scalar::Scalar;
pub use simd::{Kernel, Simd};
pub use transpose::{TRANSPOSED_ROWS, Word, transpose};

#[cfg(target_arch = "x86_64")]
use self::{avx2::Avx2, avx2::AvxVnni, avx512::Avx512};
#[cfg(target_arch = "aarch64")]
use self::{neon::DotProd, neon::I8mm, neon::Neon};
use isa::Level;

/// Runs a kernel on an instruction set.
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: an `Isa` of a level exists only where the machine has been found to support it.
    unsafe {
        match isa.level() {
            Level::Scalar => Scalar.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Avx2::assumed().vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => AvxVnni::assumed().vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Avx512::assumed().vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => Neon::assumed().vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Level::DotProd => DotProd::assumed().vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => I8mm::assumed().vectorize(kernel),
        }
    }
}
