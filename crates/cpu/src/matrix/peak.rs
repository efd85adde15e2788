//! How fast the kernels' products can be at most: the same instructions on operands that are at hand.

use super::simd::Scalar;
use super::simd::Simd;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512, AvxVnni};
#[cfg(target_arch = "aarch64")]
use super::simd::{DotProd, I8mm, Neon};
use crate::isa::{Isa, Level};
use std::hint::black_box;
use verbatim_backend::Products;

/// Chunks of four bytes in a block, as in the kernels.
const CHUNKS: usize = 8;
/// Rows of activations, as in a tile.
const TOKENS: usize = 4;
/// Sums of floats that do not wait for each other: more than a multiply-add takes cycles, two of them started in each.
const CHAINS: usize = 12;

/// Makes `rounds` rounds of independent multiply-adds on this thread; returns how many operations, two for each.
pub(crate) fn multiply_adds(isa: Isa, products: Products, rounds: usize) -> u64 {
    // SAFETY: an `Isa` is the proof that the machine has the instruction set.
    let lanes = unsafe {
        match isa.level() {
            Level::Scalar => on::<Scalar>(products, rounds),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => on::<Avx2>(products, rounds),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => on::<AvxVnni>(products, rounds),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => on::<Avx512>(products, rounds),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => on::<Neon>(products, rounds),
            #[cfg(target_arch = "aarch64")]
            Level::DotProd => on::<DotProd>(products, rounds),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => on::<I8mm>(products, rounds),
        }
    };
    let multiply_adds = match products {
        Products::Bytes => TOKENS * CHUNKS * 4,
        Products::Floats => CHAINS,
    };
    (2 * multiply_adds * lanes) as u64 * rounds as u64
}

/// # Safety
/// The machine has the instruction set.
unsafe fn on<S: Simd>(products: Products, rounds: usize) -> usize {
    // SAFETY: as the caller says.
    unsafe { S::run_peak(products, rounds) };
    S::LANES
}

/// The loop of [`multiply_adds`], to be inlined into a function that is compiled for the instruction set.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(super) unsafe fn run<S: Simd>(products: Products, rounds: usize) {
    // SAFETY: as the caller says; `dot` reads `4 * CHUNKS` activations of a row.
    unsafe {
        match products {
            Products::Bytes => {
                let activations = [[1u8; 4 * CHUNKS]; TOKENS];
                let weights = [S::splat_byte(black_box(3)); CHUNKS];
                let mut sums = [S::splat(0.0); TOKENS];
                for _ in 0..rounds {
                    // Read anew in every round, as in the kernels.
                    for (sum, activations) in sums.iter_mut().zip(black_box(&activations)) {
                        let dot = S::dot::<CHUNKS>(weights, 15, 0, activations.as_ptr(), 0.0);
                        *sum = S::add(*sum, dot);
                    }
                }
                black_box(&sums);
            }
            Products::Floats => {
                let (a, b) = (S::splat(black_box(0.5)), S::splat(black_box(0.25)));
                let mut sums = [S::splat(0.0); CHAINS];
                for _ in 0..rounds {
                    for sum in &mut sums {
                        *sum = S::mul_add(*sum, a, b);
                    }
                }
                black_box(&sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_by_lane_and_round() {
        assert_eq!(multiply_adds(Isa::scalar(), Products::Bytes, 3), 3 * 2 * 128);
        for isa in Isa::supported() {
            let [bytes, floats] = [Products::Bytes, Products::Floats].map(|of| multiply_adds(isa, of, 10));
            assert_eq!(bytes * 12, floats * 128, "{}", isa.name());
        }
    }
}
