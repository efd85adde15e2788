//! A portable SIMD layer for all kernels: operations on vectors of f32 or of bytes, on every instruction set.
//!
//! A kernel implements [`Kernel`], once, over [`Simd`]; [`dispatch`] runs it on the instruction set of an [`Isa`]. A value of
//! a type that implements `Simd` is a *capability token*: it exists only if the CPU supports the instructions, so operations
//! on registers are safe functions. Functions that take a pointer are `unsafe` because of the pointer.
//!
//! Each SIMD lane accumulates one output element. Kernels never add across lanes, except by the fixed trees of
//! [`Lanes::reduce_sum`] and [`Lanes::reduce_max`], so one lane of [`Scalar`], eight of AVX2 or NEON and sixteen of AVX-512 run the
//! same operations in the same order on the same values, and produce the same bits. (Sign and payload of a NaN are unspecified.)
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
pub use transpose::{Bytes4, TRANSPOSED_ROWS, transpose};

#[cfg(target_arch = "x86_64")]
use self::{avx2::Avx2, avx2::AvxVnni, avx512::Avx512};
#[cfg(target_arch = "aarch64")]
use self::{neon::DotProd, neon::I8mm, neon::Neon};
use isa::Level;

/// Runs a kernel on an instruction set.
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: an `Isa` of a level exists only if the CPU supports it.
    unsafe {
        match isa.level() {
            Level::Scalar => Scalar.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Avx2::new_unchecked().vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => AvxVnni::new_unchecked().vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Avx512::new_unchecked().vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => Neon::new_unchecked().vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Level::DotProd => DotProd::new_unchecked().vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => I8mm::new_unchecked().vectorize(kernel),
        }
    }
}
