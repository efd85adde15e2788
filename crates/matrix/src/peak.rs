//! Peak throughput of the matmul kernels: the same instructions on operands in registers and L1.

use std::hint::black_box;
use verbatim_backend::MatmulKind;
use verbatim_simd::{Isa, Kernel, Simd, dispatch};

/// Quads (of four columns) in a block, as in the kernels.
const QUADS: usize = 8;
/// Rows of activations, as in a tile.
const TOKENS: usize = 4;
/// Independent float accumulators: more than the FMA latency times two FMAs per cycle.
const CHAINS: usize = 12;

/// Runs `rounds` rounds of independent multiply-adds on this thread; returns the number of operations, two for each.
pub fn run_peak_throughput_kernel(isa: Isa, kind: MatmulKind, rounds: usize) -> u64 {
    let lanes = dispatch(isa, Peak { kind, rounds });
    let multiply_adds = match kind {
        MatmulKind::Int8 => TOKENS * QUADS * 4,
        MatmulKind::F32 => CHAINS,
    };
    (2 * multiply_adds * lanes) as u64 * rounds as u64
}

/// The loop of [`run_peak_throughput_kernel`]. Returns the lanes of a vector.
struct Peak {
    kind: MatmulKind,
    rounds: usize,
}

impl Kernel for Peak {
    type Output = usize;
    const USES_INT8_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        let Peak { kind, rounds } = self;
        match kind {
            MatmulKind::Int8 => {
                let activations = [[1u8; 4 * QUADS]; TOKENS];
                let weights = [simd.splat_byte(black_box(3)); QUADS];
                let mut sums = [simd.splat(0.0); TOKENS];
                for _ in 0..rounds {
                    // Loaded again in every round, as in the kernels.
                    for (sum, activations) in sums.iter_mut().zip(black_box(&activations)) {
                        // SAFETY: it reads `4 * QUADS` activations, which is one row.
                        let dot = unsafe { simd.dot::<QUADS>(weights, 15, 0, activations.as_ptr(), 0.0) };
                        *sum = simd.add(*sum, dot);
                    }
                }
                black_box(&sums);
            }
            MatmulKind::F32 => {
                let (a, b) = (simd.splat(black_box(0.5)), simd.splat(black_box(0.25)));
                let mut sums = [simd.splat(0.0); CHAINS];
                for _ in 0..rounds {
                    for sum in &mut sums {
                        *sum = simd.mul_add(*sum, a, b);
                    }
                }
                black_box(&sums);
            }
        }
        S::LANES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_by_lane_and_round() {
        assert_eq!(run_peak_throughput_kernel(Isa::scalar(), MatmulKind::Int8, 3), 3 * 2 * 128);
        for isa in Isa::supported() {
            let [bytes, floats] =
                [MatmulKind::Int8, MatmulKind::F32].map(|of| run_peak_throughput_kernel(isa, of, 10));
            assert_eq!(bytes * 12, floats * 128, "{}", isa.name());
        }
    }
}
