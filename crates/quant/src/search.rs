//! The search for scales: which scales and quants give a block the least squared error.
//!
//! A format leaves two discrete choices that depend on each other: the quants, and the scales, which are themselves
//! stored as small whole numbers of a half-precision unit. The searches go in three steps.
//!
//! 1. *Fit*: each sub-block gets its own best real-valued scale. For some trial scales around the one that just spans
//!    its range, round to quants, and solve for the scale that suits these quants best.
//! 2. *Settle*: a unit is set by the largest of these scales, and each sub-block takes the best of the whole numbers next
//!    to its scale in that unit, by the true error.
//! 3. *Refit*: solve for the unit with everything else fixed, and settle again.
//!
//! The best state seen wins. Errors are plain squares: without calibration data no element is known to matter more.
//! All sums have a fixed order, so that the same input gives the same bytes on every machine.

use crate::bytes::round_to_half;
use crate::legacy::inverse_or_zero;

/// Elements of a super-block.
pub(crate) const LEN: usize = 256;

/// Trial scales of a line: the range of the elements is divided by the largest quant, and then by the numbers from 0.9 below
/// it to 0.78 above it.
const LINE_TRIALS: usize = 16;

/// Trial scales of a symmetric block: the one that just spans the range, and then that one divided by 0.77, 0.80 … 1.13.
const SCALE_TRIALS: usize = 14;

/// Whole numbers that the largest sub-block scale may start from, as parts of the largest one that can be stored.
/// From a lower start there is room above for the steps that follow.
const STARTS: [f32; 3] = [1.0, 0.97, 0.94];

/// How often the unit is solved for again. Three times more would gain 0.2 % at most.
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

/// What the quants of a symmetric type stand for.
pub(crate) trait Levels {
    /// The lowest level, which is also the one of largest magnitude.
    const LOWEST: f32;
    /// The highest level.
    const HIGHEST: f32;
    /// The level nearest to `value`.
    fn nearest(value: f32) -> f32;
}

/// The whole numbers `LOW..=HIGH`.
pub(crate) struct Whole<const LOW: i8, const HIGH: i8>;

impl<const LOW: i8, const HIGH: i8> Levels for Whole<LOW, HIGH> {
    const LOWEST: f32 = LOW as f32;
    const HIGHEST: f32 = HIGH as f32;

    fn nearest(value: f32) -> f32 {
        round(value).clamp(Self::LOWEST, Self::HIGHEST)
    }
}

/// Searches quants `0..=Q_MAX` and scales and mins `0..=unit_max` for `SUBS` sub-blocks of `SUB` elements.
pub(crate) fn affine<const SUBS: usize, const SUB: usize, const Q_MAX: u8>(
    input: &[f32; LEN],
    unit_max: f32,
) -> Affine<SUBS> {
    // A min is what is subtracted, so a block that is all above zero could not use it. Its mirror image can, and
    // negative units turn the image back.
    if input.iter().all(|x| *x > 0.0) {
        let mirrored = affine::<SUBS, SUB, Q_MAX>(&input.map(|x| -x), unit_max);
        return Affine { d: -mirrored.d, dmin: -mirrored.dmin, ..mirrored };
    }
    let subs = sub_blocks::<SUBS, SUB>(input);
    let fitted = subs.map(fit_line::<SUB, Q_MAX>);
    let mut best = LineUnits { d: 0.0, dmin: 0.0, lines: [Line::ZERO; SUBS], error: f32::INFINITY };
    for start in STARTS {
        let mut trial = LineUnits::new(&fitted, start * unit_max, unit_max);
        for _ in 0..=REFITS {
            trial.settle::<SUB, Q_MAX>(&subs, unit_max);
            if trial.error < best.error {
                best = trial;
            }
            trial.refit::<SUB, Q_MAX>(&subs);
        }
    }
    let mut quants = [0; LEN];
    for i in 0..LEN {
        quants[i] = best.lines[i / SUB].times(best.d, best.dmin).quantizer::<Q_MAX>()(input[i]) as u8;
    }
    let scales = best.lines.map(|line| line.scale as u8);
    let mins = best.lines.map(|line| line.min as u8);
    Affine { d: best.d, dmin: best.dmin, scales, mins, quants }
}

/// Searches scales `-unit_max - 1 ..= unit_max` for `SUBS` sub-blocks of `SUB` elements of the levels `L`.
pub(crate) fn symmetric<L: Levels, const SUBS: usize, const SUB: usize>(
    input: &[f32; LEN],
    unit_max: f32,
) -> Symmetric<SUBS> {
    let subs = sub_blocks::<SUBS, SUB>(input);
    let fitted = subs.map(fit_scale::<L, SUB>);
    let mut best = ScaleUnits { d: 0.0, scales: [0.0; SUBS], error: f32::INFINITY };
    let mut trial = ScaleUnits::new(&fitted, unit_max);
    for _ in 0..=REFITS {
        trial.settle::<L, SUB>(&subs, unit_max);
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
        for trial in 0..SCALE_TRIALS {
            let factor = if trial == 0 { 1.0 } else { 0.74 + 0.03 * trial as f32 };
            let inverse = side * factor * inverse_or_zero(extreme);
            let [xl, ll] = sums(input, |x| {
                let level = L::nearest(x * inverse);
                [x * level, level * level]
            });
            // The squared error is sum(x^2) less this.
            let gain = xl * xl / ll;
            if gain > best_gain {
                (best_gain, best_scale) = (gain, xl / ll);
            }
        }
    }
    best_scale
}

/// A sub-block of the affine types: `scale * quant - min`, in real numbers or in whole units.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    min: f32,
}

impl Line {
    const ZERO: Line = Line { scale: 0.0, min: 0.0 };

    fn times(self, d: f32, dmin: f32) -> Line {
        Line { scale: d * self.scale, min: dmin * self.min }
    }

    /// The function from an element to its quant, a whole number.
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

/// The real-valued line with the least squared error for one sub-block; neither of its numbers is negative.
fn fit_line<const SUB: usize, const Q_MAX: u8>(input: &[f32; SUB]) -> Line {
    let q_max = f32::from(Q_MAX);
    let least = input.iter().copied().fold(0.0, f32::min);
    let most = input.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let n = SUB as f32;
    let [sum_x] = sums(input, |x| [x]);
    let mut best = Line { scale: (most - least) / q_max, min: -least };
    let mut best_gain = f32::NEG_INFINITY;
    for trial in 0..LINE_TRIALS {
        let steps = if trial == 0 { q_max } else { q_max - 1.02 + 0.12 * trial as f32 };
        let quantize = quantizer::<Q_MAX>(-least, steps * inverse_or_zero(most - least));
        let [sum_q, sum_qq, sum_xq] = sums(input, |x| {
            let q = quantize(x);
            [q, q * q, x * q]
        });
        // The sums of quants are whole and small, so this is exact: it is zero when all quants are the same.
        let determinant = n * sum_qq - sum_q * sum_q;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (n * sum_xq - sum_q * sum_x) / determinant;
        let mut min = (sum_q * sum_xq - sum_qq * sum_x) / determinant;
        if min < 0.0 {
            (scale, min) = (sum_xq / sum_qq, 0.0);
        }
        // The squared error is sum(x^2) less this.
        let gain = scale * sum_xq - min * sum_x;
        if gain > best_gain && scale > 0.0 {
            (best_gain, best) = (gain, Line { scale, min });
        }
    }
    best
}

/// The lines of a super-block in whole numbers of two units, and the squared error that they make.
#[derive(Clone, Copy)]
struct LineUnits<const SUBS: usize> {
    d: f32,
    dmin: f32,
    lines: [Line; SUBS],
    error: f32,
}

impl<const SUBS: usize> LineUnits<SUBS> {
    /// Units in which the largest scale and the largest min are `start`, and `fitted` rounded to them.
    fn new(fitted: &[Line; SUBS], start: f32, unit_max: f32) -> Self {
        let largest = |of: fn(&Line) -> f32| fitted.iter().map(of).fold(0.0, f32::max);
        let d = round_to_half(largest(|line| line.scale) / start);
        let dmin = round_to_half(largest(|line| line.min) / start);
        let whole = |real: f32, unit: f32| round(real * inverse_or_zero(unit)).clamp(0.0, unit_max);
        let lines = fitted.map(|line| Line { scale: whole(line.scale, d), min: whole(line.min, dmin) });
        LineUnits { d, dmin, lines, error: f32::INFINITY }
    }

    /// Moves each line to the best of its nine neighbours.
    fn settle<const SUB: usize, const Q_MAX: u8>(&mut self, subs: &[&[f32; SUB]; SUBS], unit_max: f32) {
        self.error = 0.0;
        for (sub, line) in subs.iter().zip(&mut self.lines) {
            let middle = *line;
            let mut least = f32::INFINITY;
            for scale_step in [0.0, -1.0, 1.0] {
                for min_step in [0.0, -1.0, 1.0] {
                    let neighbour = Line {
                        scale: (middle.scale + scale_step).clamp(0.0, unit_max),
                        min: (middle.min + min_step).clamp(0.0, unit_max),
                    };
                    let error = neighbour.times(self.d, self.dmin).error::<SUB, Q_MAX>(sub);
                    if error < least {
                        (least, *line) = (error, neighbour);
                    }
                }
            }
            self.error += least;
        }
    }

    /// Solves for the units, with the lines and the quants that go with them fixed. Leaves them if that has no answer.
    fn refit<const SUB: usize, const Q_MAX: u8>(&mut self, subs: &[&[f32; SUB]; SUBS]) {
        // Normal equations for x = d * a - dmin * b, with a = scale * quant and b = min, in units.
        let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (sub, line) in subs.iter().zip(&self.lines) {
            let quantize = line.times(self.d, self.dmin).quantizer::<Q_MAX>();
            let [sum_x, sum_q, sum_qq, sum_xq] = sums(sub, |x| {
                let q = quantize(x);
                [x, q, q * q, x * q]
            });
            aa += line.scale * line.scale * sum_qq;
            ab += line.scale * line.min * sum_q;
            bb += line.min * line.min * SUB as f32;
            xa += line.scale * sum_xq;
            xb += line.min * sum_x;
        }
        let determinant = aa * bb - ab * ab;
        if determinant > 0.0 {
            self.d = round_to_half((xa * bb - xb * ab) / determinant);
            self.dmin = round_to_half((xa * ab - xb * aa) / determinant);
        } else if aa > 0.0 {
            self.d = round_to_half(xa / aa);
        }
    }
}

/// The scales of a super-block in whole numbers of a unit, and the squared error that they make.
#[derive(Clone, Copy)]
struct ScaleUnits<const SUBS: usize> {
    d: f32,
    scales: [f32; SUBS],
    error: f32,
}

impl<const SUBS: usize> ScaleUnits<SUBS> {
    /// A unit in which the scale of largest magnitude is the extreme whole number, and `fitted` rounded to it.
    fn new(fitted: &[f32; SUBS], unit_max: f32) -> Self {
        let d = round_to_half(largest_by_magnitude(fitted) / (-unit_max - 1.0));
        let scales = fitted.map(|scale| round(scale * inverse_or_zero(d)).clamp(-unit_max - 1.0, unit_max));
        ScaleUnits { d, scales, error: f32::INFINITY }
    }

    /// Moves each scale to the best of its three neighbours.
    fn settle<L: Levels, const SUB: usize>(&mut self, subs: &[&[f32; SUB]; SUBS], unit_max: f32) {
        self.error = 0.0;
        for (sub, whole) in subs.iter().zip(&mut self.scales) {
            let middle = *whole;
            let mut least = f32::INFINITY;
            for step in [0.0, -1.0, 1.0] {
                let neighbour = (middle + step).clamp(-unit_max - 1.0, unit_max);
                let scale = self.d * neighbour;
                let inverse = inverse_or_zero(scale);
                let [error] = sums(sub, |x| {
                    let difference = scale * L::nearest(x * inverse) - x;
                    [difference * difference]
                });
                if error < least {
                    (least, *whole) = (error, neighbour);
                }
            }
            self.error += least;
        }
    }

    /// Solves for the unit, with the scales and the levels that go with them fixed. Leaves it if all are zero.
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
            self.d = round_to_half(xa / aa);
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

/// Rounds to nearest even; from magnitude 2^22 on only to a float nearby, which is as good before a clamp.
/// Unlike `f32::round_ties_even` it needs baseline instructions only, and so becomes vector code everywhere.
fn round(value: f32) -> f32 {
    const TO_WHOLE: f32 = 12_582_912.0; // 1.5 * 2^23, whose last bit is worth 1
    value + TO_WHOLE - TO_WHOLE
}
