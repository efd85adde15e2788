//! The search for scales: the scales and quants of a block with the least squared error.
//!
//! A format has two discrete unknowns that depend on each other: the quants, and the scales, which are themselves stored as
//! small integers times an f16 super-block scale `d` (and `dmin`). The searches have three steps.
//!
//! 1. *Fit*: each sub-block gets its own best real-valued scale. For some trial scales around the min-max (absmax) scale that
//!    spans its range, round to quants, and solve for the least-squares scale of these quants.
//! 2. *Coordinate step*: `d` follows from the largest of these scales, and each sub-block takes the integer scale next to its
//!    real-valued one that has the least actual error.
//! 3. *Refit*: solve for `d` with everything else fixed, and repeat step 2.
//!
//! The candidate with the least error is kept. Errors are unweighted squares, because there is no importance matrix.
//! All sums have a fixed order, so that the bytes are the same on every machine.

use crate::bytes::round_to_f16;
use crate::legacy::inverse_or_zero;

/// Elements of a super-block.
pub(crate) const LEN: usize = 256;

/// Trial scales of an affine sub-block (with a min): range / n for n = q_max, then for n from q_max - 0.9 to q_max + 0.78,
/// where `range` is that of the elements and `q_max` the largest quant.
const AFFINE_TRIALS: usize = 16;

/// Trial scales of a symmetric block (without a min), for each of its two extreme levels: the scale that maps the element of
/// largest magnitude to that level, and then that one divided by 0.77, 0.80 … 1.13.
const SYMMETRIC_TRIALS: usize = 14;

/// Initial values of `d`: the largest sub-block scale is mapped to this fraction of the largest storable integer. With a lower
/// fraction the largest integer scale is not at its limit, so that the steps that follow can increase it.
const STARTS: [f32; 3] = [1.0, 0.97, 0.94];

/// How often `d` is refitted. Three more refits would reduce the error by at most 0.2 %.
const REFITS: usize = 2;

/// A super-block of the types with mins: element `i` is `d * scales[s] * quants[i] - dmin * mins[s]`, where `s` is
/// its sub-block.
pub(crate) struct Affine<const SUBS: usize> {
    pub(crate) d: f32,
    pub(crate) dmin: f32,
    pub(crate) scales: [u8; SUBS],
    pub(crate) mins: [u8; SUBS],
    pub(crate) quants: [u8; LEN],
}

/// A super-block of the types without mins: element `i` is `d * scales[s] * levels[i]`.
pub(crate) struct Symmetric<const SUBS: usize> {
    pub(crate) d: f32,
    pub(crate) scales: [i8; SUBS],
    pub(crate) levels: [f32; LEN],
}

/// The levels (codebook) of a symmetric type.
pub(crate) trait Levels {
    /// The lowest level, which is also the level of largest magnitude.
    const LOWEST: f32;
    /// The highest level.
    const HIGHEST: f32;
    /// The level nearest to `value`.
    fn nearest(value: f32) -> f32;
}

/// The integers `LOW..=HIGH`.
pub(crate) struct IntLevels<const LOW: i8, const HIGH: i8>;

impl<const LOW: i8, const HIGH: i8> Levels for IntLevels<LOW, HIGH> {
    const LOWEST: f32 = LOW as f32;
    const HIGHEST: f32 = HIGH as f32;

    fn nearest(value: f32) -> f32 {
        round(value).clamp(Self::LOWEST, Self::HIGHEST)
    }
}

/// Searches quants `0..=Q_MAX` and scales and mins `0..=scale_max` for `SUBS` sub-blocks of `SUB` elements.
pub(crate) fn affine<const SUBS: usize, const SUB: usize, const Q_MAX: u8>(
    input: &[f32; LEN],
    scale_max: f32,
) -> Affine<SUBS> {
    // A min is subtracted and not negative, so a block of positive elements cannot use it. Its negation can, and negative `d` and
    // `dmin` restore the sign.
    if input.iter().all(|x| *x > 0.0) {
        let mirrored = affine::<SUBS, SUB, Q_MAX>(&input.map(|x| -x), scale_max);
        return Affine { d: -mirrored.d, dmin: -mirrored.dmin, ..mirrored };
    }
    let subs = sub_blocks::<SUBS, SUB>(input);
    let fitted = subs.map(fit_scale_min::<SUB, Q_MAX>);
    let mut best =
        AffineScales { d: 0.0, dmin: 0.0, scale_mins: [ScaleMin::ZERO; SUBS], error: f32::INFINITY };
    for start in STARTS {
        let mut trial = AffineScales::new(&fitted, start * scale_max, scale_max);
        for _ in 0..=REFITS {
            trial.coordinate_step::<SUB, Q_MAX>(&subs, scale_max);
            if trial.error < best.error {
                best = trial;
            }
            trial.refit::<SUB, Q_MAX>(&subs);
        }
    }
    let mut quants = [0; LEN];
    for i in 0..LEN {
        quants[i] = best.scale_mins[i / SUB].times(best.d, best.dmin).quantizer::<Q_MAX>()(input[i]) as u8;
    }
    let scales = best.scale_mins.map(|scale_min| scale_min.scale as u8);
    let mins = best.scale_mins.map(|scale_min| scale_min.min as u8);
    Affine { d: best.d, dmin: best.dmin, scales, mins, quants }
}

/// Searches scales `-scale_max - 1 ..= scale_max` for `SUBS` sub-blocks of `SUB` elements of the levels `L`.
pub(crate) fn symmetric<L: Levels, const SUBS: usize, const SUB: usize>(
    input: &[f32; LEN],
    scale_max: f32,
) -> Symmetric<SUBS> {
    let subs = sub_blocks::<SUBS, SUB>(input);
    let fitted = subs.map(fit_scale::<L, SUB>);
    let mut best = SymmetricScales { d: 0.0, scales: [0.0; SUBS], error: f32::INFINITY };
    let mut trial = SymmetricScales::new(&fitted, scale_max);
    for _ in 0..=REFITS {
        trial.coordinate_step::<L, SUB>(&subs, scale_max);
        if trial.error < best.error {
            best = trial;
        }
        trial.refit::<L, SUB>(&subs);
    }
    let mut levels = [0.0; LEN];
    for i in 0..LEN {
        levels[i] = L::nearest(input[i] * inverse_or_zero(best.d * best.scales[i / SUB]));
    }
    Symmetric { d: best.d, scales: best.scales.map(|scale| scale as i8), levels }
}

/// The real-valued scale with the least squared error for one block or sub-block of the levels `L`.
pub(crate) fn fit_scale<L: Levels, const SUB: usize>(input: &[f32; SUB]) -> f32 {
    let extreme = largest_by_magnitude(input);
    let (mut best_gain, mut best_scale) = (0.0, extreme / L::LOWEST);
    for side in [L::LOWEST, L::HIGHEST] {
        for trial in 0..SYMMETRIC_TRIALS {
            let factor = if trial == 0 { 1.0 } else { 0.74 + 0.03 * trial as f32 };
            let inverse = side * factor * inverse_or_zero(extreme);
            let [xl, ll] = sums(input, |x| {
                let level = L::nearest(x * inverse);
                [x * level, level * level]
            });
            // The squared error is sum(x^2) minus this.
            let gain = xl * xl / ll;
            if gain > best_gain {
                (best_gain, best_scale) = (gain, xl / ll);
            }
        }
    }
    best_scale
}

/// The scale and min of an affine sub-block, `scale * quant - min`: real-valued, or integers in units of `d` and `dmin`.
#[derive(Clone, Copy)]
struct ScaleMin {
    scale: f32,
    min: f32,
}

impl ScaleMin {
    const ZERO: ScaleMin = ScaleMin { scale: 0.0, min: 0.0 };

    fn times(self, d: f32, dmin: f32) -> ScaleMin {
        ScaleMin { scale: d * self.scale, min: dmin * self.min }
    }

    /// The function from an element to its quant, an integer.
    fn quantizer<const Q_MAX: u8>(self) -> impl Fn(f32) -> f32 {
        quantizer::<Q_MAX>(self.min, inverse_or_zero(self.scale))
    }

    fn error<const SUB: usize, const Q_MAX: u8>(self, input: &[f32; SUB]) -> f32 {
        let quantize = self.quantizer::<Q_MAX>();
        let [error] = sums(input, |x| {
            let difference = self.scale * quantize(x) - self.min - x;
            [difference * difference]
        });
        error
    }
}

fn quantizer<const Q_MAX: u8>(min: f32, inverse_scale: f32) -> impl Fn(f32) -> f32 {
    move |x| round((x + min) * inverse_scale).clamp(0.0, f32::from(Q_MAX))
}

/// The real-valued scale and min with the least squared error for one sub-block; neither is negative.
fn fit_scale_min<const SUB: usize, const Q_MAX: u8>(input: &[f32; SUB]) -> ScaleMin {
    let q_max = f32::from(Q_MAX);
    let least = input.iter().copied().fold(0.0, f32::min);
    let most = input.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let n = SUB as f32;
    let [sum_x] = sums(input, |x| [x]);
    let mut best = ScaleMin { scale: (most - least) / q_max, min: -least };
    let mut best_gain = f32::NEG_INFINITY;
    for trial in 0..AFFINE_TRIALS {
        let steps = if trial == 0 { q_max } else { q_max - 1.02 + 0.12 * trial as f32 };
        let quantize = quantizer::<Q_MAX>(-least, steps * inverse_or_zero(most - least));
        let [sum_q, sum_qq, sum_xq] = sums(input, |x| {
            let q = quantize(x);
            [q, q * q, x * q]
        });
        // The sums of quants are small integers, so this is exact: it is zero if all quants are equal.
        let determinant = n * sum_qq - sum_q * sum_q;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (n * sum_xq - sum_q * sum_x) / determinant;
        let mut min = (sum_q * sum_xq - sum_qq * sum_x) / determinant;
        if min < 0.0 {
            (scale, min) = (sum_xq / sum_qq, 0.0);
        }
        // The squared error is sum(x^2) minus this.
        let gain = scale * sum_xq - min * sum_x;
        if gain > best_gain && scale > 0.0 {
            (best_gain, best) = (gain, ScaleMin { scale, min });
        }
    }
    best
}

/// The integer scales and mins of a super-block with `d` and `dmin`, and their squared error.
#[derive(Clone, Copy)]
struct AffineScales<const SUBS: usize> {
    d: f32,
    dmin: f32,
    scale_mins: [ScaleMin; SUBS],
    error: f32,
}

impl<const SUBS: usize> AffineScales<SUBS> {
    /// `d` and `dmin` such that the largest scale and the largest min are `start`, and `fitted` rounded to integers.
    fn new(fitted: &[ScaleMin; SUBS], start: f32, scale_max: f32) -> Self {
        let largest = |of: fn(&ScaleMin) -> f32| fitted.iter().map(of).fold(0.0, f32::max);
        let d = round_to_f16(largest(|scale_min| scale_min.scale) / start);
        let dmin = round_to_f16(largest(|scale_min| scale_min.min) / start);
        let integer = |real: f32, d: f32| round(real * inverse_or_zero(d)).clamp(0.0, scale_max);
        let scale_mins = fitted.map(|scale_min| ScaleMin {
            scale: integer(scale_min.scale, d),
            min: integer(scale_min.min, dmin),
        });
        AffineScales { d, dmin, scale_mins, error: f32::INFINITY }
    }

    /// Replaces each scale and min by the best of its nine neighbours.
    fn coordinate_step<const SUB: usize, const Q_MAX: u8>(
        &mut self,
        subs: &[&[f32; SUB]; SUBS],
        scale_max: f32,
    ) {
        self.error = 0.0;
        for (sub, scale_min) in subs.iter().zip(&mut self.scale_mins) {
            let middle = *scale_min;
            let mut least = f32::INFINITY;
            for scale_step in [0.0, -1.0, 1.0] {
                for min_step in [0.0, -1.0, 1.0] {
                    let neighbour = ScaleMin {
                        scale: (middle.scale + scale_step).clamp(0.0, scale_max),
                        min: (middle.min + min_step).clamp(0.0, scale_max),
                    };
                    let error = neighbour.times(self.d, self.dmin).error::<SUB, Q_MAX>(sub);
                    if error < least {
                        (least, *scale_min) = (error, neighbour);
                    }
                }
            }
            self.error += least;
        }
    }

    /// Solves for `d` and `dmin`, with the scales, mins and their quants fixed. Keeps them if there is no solution.
    fn refit<const SUB: usize, const Q_MAX: u8>(&mut self, subs: &[&[f32; SUB]; SUBS]) {
        // Normal equations for x = d * a - dmin * b, with a = scale * quant and b = min, as integers.
        let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (sub, scale_min) in subs.iter().zip(&self.scale_mins) {
            let quantize = scale_min.times(self.d, self.dmin).quantizer::<Q_MAX>();
            let [sum_x, sum_q, sum_qq, sum_xq] = sums(sub, |x| {
                let q = quantize(x);
                [x, q, q * q, x * q]
            });
            aa += scale_min.scale * scale_min.scale * sum_qq;
            ab += scale_min.scale * scale_min.min * sum_q;
            bb += scale_min.min * scale_min.min * SUB as f32;
            xa += scale_min.scale * sum_xq;
            xb += scale_min.min * sum_x;
        }
        let determinant = aa * bb - ab * ab;
        if determinant > 0.0 {
            self.d = round_to_f16((xa * bb - xb * ab) / determinant);
            self.dmin = round_to_f16((xa * ab - xb * aa) / determinant);
        } else if aa > 0.0 {
            self.d = round_to_f16(xa / aa);
        }
    }
}

/// The integer scales of a super-block with `d`, and their squared error.
#[derive(Clone, Copy)]
struct SymmetricScales<const SUBS: usize> {
    d: f32,
    scales: [f32; SUBS],
    error: f32,
}

impl<const SUBS: usize> SymmetricScales<SUBS> {
    /// `d` such that the scale of largest magnitude becomes `-scale_max - 1`, and `fitted` rounded to integers.
    fn new(fitted: &[f32; SUBS], scale_max: f32) -> Self {
        let d = round_to_f16(largest_by_magnitude(fitted) / (-scale_max - 1.0));
        let scales = fitted.map(|scale| round(scale * inverse_or_zero(d)).clamp(-scale_max - 1.0, scale_max));
        SymmetricScales { d, scales, error: f32::INFINITY }
    }

    /// Replaces each scale by the best of its three neighbours.
    fn coordinate_step<L: Levels, const SUB: usize>(&mut self, subs: &[&[f32; SUB]; SUBS], scale_max: f32) {
        self.error = 0.0;
        for (sub, best) in subs.iter().zip(&mut self.scales) {
            let middle = *best;
            let mut least = f32::INFINITY;
            for step in [0.0, -1.0, 1.0] {
                let neighbour = (middle + step).clamp(-scale_max - 1.0, scale_max);
                let scale = self.d * neighbour;
                let inverse = inverse_or_zero(scale);
                let [error] = sums(sub, |x| {
                    let difference = scale * L::nearest(x * inverse) - x;
                    [difference * difference]
                });
                if error < least {
                    (least, *best) = (error, neighbour);
                }
            }
            self.error += least;
        }
    }

    /// Solves for `d`, with the scales and their levels fixed. Keeps it if all are zero.
    fn refit<L: Levels, const SUB: usize>(&mut self, subs: &[&[f32; SUB]; SUBS]) {
        let (mut xa, mut aa) = (0.0, 0.0);
        for (sub, scale) in subs.iter().zip(self.scales) {
            let inverse = inverse_or_zero(self.d * scale);
            let [xl, ll] = sums(sub, |x| {
                let level = L::nearest(x * inverse);
                [x * level, level * level]
            });
            xa += scale * xl;
            aa += scale * scale * ll;
        }
        if aa > 0.0 {
            self.d = round_to_f16(xa / aa);
        }
    }
}

fn sub_blocks<const SUBS: usize, const SUB: usize>(input: &[f32; LEN]) -> [&[f32; SUB]; SUBS] {
    const { assert!(SUBS * SUB == LEN) };
    let (subs, _) = input.as_chunks::<SUB>();
    std::array::from_fn(|s| &subs[s])
}

fn largest_by_magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most })
}

/// Sums of several terms over a block. Eight running sums for each, so that the compiler can use vector registers.
fn sums<const SUB: usize, const TERMS: usize>(
    input: &[f32; SUB],
    terms: impl Fn(f32) -> [f32; TERMS],
) -> [f32; TERMS] {
    const { assert!(SUB.is_multiple_of(8)) };
    let mut lanes = [[0.0f32; 8]; TERMS];
    for eight in input.as_chunks::<8>().0 {
        for lane in 0..8 {
            let terms = terms(eight[lane]);
            for term in 0..TERMS {
                lanes[term][lane] += terms[term];
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

/// Rounds to nearest even; from magnitude 2^22 only to a nearby float, which is good enough before a clamp.
/// Unlike `f32::round_ties_even` it needs only baseline instructions, so that it is vectorised on every target.
fn round(value: f32) -> f32 {
    const TO_INTEGER: f32 = 12_582_912.0; // 1.5 * 2^23, whose last bit has the value 1
    value + TO_INTEGER - TO_INTEGER
}
