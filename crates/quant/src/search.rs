//! The search for scales: which scales and codes give a block the least squared error.
//!
//! A format leaves two discrete choices that depend on each other, the codes and the (themselves quantised) scales.
//! All searches here go the same way. Each sub-block first gets its own best real-valued scale: for a few trial scales
//! around the one that just spans its range, round to codes, and for these codes solve for the scale by least squares.
//! Then the shared half-precision unit is set by the largest of these scales, each sub-block tries the whole numbers
//! next to its scale in that unit, and the unit is solved for again with everything else fixed, as long as that helps.

use crate::bytes::round_to_half;
use crate::legacy::inverse_or_zero;

/// Elements of a super-block.
pub(crate) const LEN: usize = 256;

/// How often the shared units are solved for again. The gain of a third time is below 0.1 %.
const REFITS: usize = 2;

/// A super-block of the types with minima: element `i` is `d * scales[s] * codes[i] - dmin * minima[s]`, where `s` is
/// its sub-block.
pub(crate) struct Affine<const SUBS: usize> {
    pub(crate) d: f32,
    pub(crate) dmin: f32,
    pub(crate) scales: [u8; SUBS],
    pub(crate) minima: [u8; SUBS],
    pub(crate) codes: [u8; LEN],
}

/// A super-block of the types without: element `i` is `d * scales[s] * levels[i]`.
pub(crate) struct Symmetric<const SUBS: usize> {
    pub(crate) d: f32,
    pub(crate) scales: [i8; SUBS],
    pub(crate) levels: [f32; LEN],
}

/// What the codes of a symmetric type stand for.
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

/// Searches the codes `0..=CODE_MAX` and the scales and minima `0..=unit_max` for `SUBS` sub-blocks of `SUB` elements.
pub(crate) fn affine<const SUBS: usize, const SUB: usize, const CODE_MAX: u8>(
    input: &[f32; LEN],
    unit_max: f32,
) -> Affine<SUBS> {
    // A minimum is what is *subtracted*, so that a block above zero could not use it. Its mirror image can, and
    // negative units turn the image back.
    if input.iter().all(|x| *x > 0.0) {
        let mirrored = affine::<SUBS, SUB, CODE_MAX>(&input.map(|x| -x), unit_max);
        return Affine { d: -mirrored.d, dmin: -mirrored.dmin, ..mirrored };
    }
    let subs = sub_blocks::<SUBS, SUB>(input);
    let lines = subs.map(fit_line::<SUB, CODE_MAX>);
    let largest = |of: fn(&Line) -> f32| lines.iter().map(of).fold(0.0, f32::max);
    let mut d = round_to_half(largest(|line| line.scale) / unit_max);
    let mut dmin = round_to_half(largest(|line| line.minimum) / unit_max);
    let in_units = |real: f32, unit: f32| round(real * inverse_or_zero(unit)).clamp(0.0, unit_max);
    let mut units = lines.map(|line| Line { scale: in_units(line.scale, d), minimum: in_units(line.minimum, dmin) });
    let mut error = settle_lines::<SUBS, SUB, CODE_MAX>(&subs, d, dmin, unit_max, &mut units);
    for _ in 0..REFITS {
        let (d_next, dmin_next) = refit_units::<SUBS, SUB, CODE_MAX>(&subs, d, dmin, &units);
        let mut units_next = units;
        let error_next = settle_lines::<SUBS, SUB, CODE_MAX>(&subs, d_next, dmin_next, unit_max, &mut units_next);
        if error_next >= error {
            break;
        }
        (d, dmin, units, error) = (d_next, dmin_next, units_next, error_next);
    }
    let mut codes = [0; LEN];
    for (i, code) in codes.iter_mut().enumerate() {
        let line = units[i / SUB].times(d, dmin);
        *code = line.code(input[i], inverse_or_zero(line.scale), f32::from(CODE_MAX)) as u8;
    }
    Affine { d, dmin, scales: units.map(|u| u.scale as u8), minima: units.map(|u| u.minimum as u8), codes }
}

/// Searches the scales `-unit_max - 1 ..= unit_max` for `SUBS` sub-blocks of `SUB` elements of the levels `L`.
pub(crate) fn symmetric<L: Levels, const SUBS: usize, const SUB: usize>(
    input: &[f32; LEN],
    unit_max: f32,
) -> Symmetric<SUBS> {
    let subs = sub_blocks::<SUBS, SUB>(input);
    let scales = subs.map(fit_scale::<L, SUB>);
    let largest = scales.iter().fold(0.0f32, |most, s| if s.abs() > most.abs() { *s } else { most });
    let mut d = round_to_half(largest / (-unit_max - 1.0));
    let mut units = scales.map(|scale| round(scale * inverse_or_zero(d)).clamp(-unit_max - 1.0, unit_max));
    let mut error = settle_scales::<L, SUBS, SUB>(&subs, d, unit_max, &mut units);
    for _ in 0..REFITS {
        let d_next = refit_unit::<L, SUBS, SUB>(&subs, d, &units);
        let mut units_next = units;
        let error_next = settle_scales::<L, SUBS, SUB>(&subs, d_next, unit_max, &mut units_next);
        if error_next >= error {
            break;
        }
        (d, units, error) = (d_next, units_next, error_next);
    }
    let mut levels = [0.0; LEN];
    for (i, level) in levels.iter_mut().enumerate() {
        *level = L::nearest(input[i] * inverse_or_zero(d * units[i / SUB]));
    }
    Symmetric { d, scales: units.map(|u| u as i8), levels }
}

/// The real-valued scale with the least squared error for one (sub-)block of the levels `L`.
pub(crate) fn fit_scale<L: Levels, const SUB: usize>(input: &[f32; SUB]) -> f32 {
    let extreme = input.iter().fold(0.0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
    let (mut best_gain, mut best_scale) = (0.0, extreme / L::LOWEST);
    for side in [L::LOWEST, L::HIGHEST] {
        for trial in 0..SCALE_TRIALS {
            let inverse = side * scale_trial(trial) * inverse_or_zero(extreme);
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

const SCALE_TRIALS: usize = 12;

/// The trial scales span the range by factors from 0.9 to 1.2: a little tighter to a little wider than it.
fn scale_trial(trial: usize) -> f32 {
    0.85 + 0.03 * trial as f32
}

/// A sub-block of the affine types is `scale * code - minimum`; neither is negative.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    minimum: f32,
}

impl Line {
    fn times(self, d: f32, dmin: f32) -> Line {
        Line { scale: d * self.scale, minimum: dmin * self.minimum }
    }

    fn code(self, x: f32, inverse_scale: f32, code_max: f32) -> f32 {
        round((x + self.minimum) * inverse_scale).clamp(0.0, code_max)
    }
}

const LINE_TRIALS: usize = 16;

/// The real-valued line with the least squared error for one sub-block.
fn fit_line<const SUB: usize, const CODE_MAX: u8>(input: &[f32; SUB]) -> Line {
    let code_max = f32::from(CODE_MAX);
    let least = input.iter().copied().fold(0.0, f32::min);
    let most = input.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut best = Line { scale: (most - least) / code_max, minimum: -least };
    let inverse_range = inverse_or_zero(most - least);
    let n = SUB as f32;
    let [sum_x] = sums(input, |x| [x]);
    let mut best_gain = f32::NEG_INFINITY;
    for trial in 0..LINE_TRIALS {
        let inverse = (code_max - 0.9 + 0.12 * trial as f32) * inverse_range;
        let start = Line { scale: 0.0, minimum: -least };
        let [sum_q, sum_qq, sum_xq] = sums(input, |x| {
            let q = start.code(x, inverse, code_max);
            [q, q * q, x * q]
        });
        let determinant = n * sum_qq - sum_q * sum_q;
        let mut scale = (n * sum_xq - sum_q * sum_x) / determinant;
        let mut minimum = (sum_q * sum_xq - sum_qq * sum_x) / determinant;
        if minimum < 0.0 {
            (scale, minimum) = (sum_xq / sum_qq, 0.0);
        }
        // The squared error is sum(x^2) less this.
        let gain = scale * sum_xq - minimum * sum_x;
        if gain > best_gain && scale > 0.0 {
            (best_gain, best) = (gain, Line { scale, minimum });
        }
    }
    best
}

/// Moves each line to the best of its neighbours in whole units; gives the squared error of the super-block.
fn settle_lines<const SUBS: usize, const SUB: usize, const CODE_MAX: u8>(
    subs: &[&[f32; SUB]; SUBS],
    d: f32,
    dmin: f32,
    unit_max: f32,
    units: &mut [Line; SUBS],
) -> f32 {
    let mut total = 0.0;
    for (sub, unit) in subs.iter().zip(units) {
        let middle = *unit;
        let mut best = f32::INFINITY;
        for scale_step in [0.0, -1.0, 1.0] {
            for minimum_step in [0.0, -1.0, 1.0] {
                let trial = Line {
                    scale: (middle.scale + scale_step).clamp(0.0, unit_max),
                    minimum: (middle.minimum + minimum_step).clamp(0.0, unit_max),
                };
                let error = line_error::<SUB, CODE_MAX>(sub, trial.times(d, dmin));
                if error < best {
                    (best, *unit) = (error, trial);
                }
            }
        }
        total += best;
    }
    total
}

fn line_error<const SUB: usize, const CODE_MAX: u8>(input: &[f32; SUB], line: Line) -> f32 {
    let inverse = inverse_or_zero(line.scale);
    let [error] = sums(input, |x| {
        let difference = line.scale * line.code(x, inverse, f32::from(CODE_MAX)) - line.minimum - x;
        [difference * difference]
    });
    error
}

/// The units `d` and `dmin` with the least squared error for these whole-number lines and the codes that go with them.
fn refit_units<const SUBS: usize, const SUB: usize, const CODE_MAX: u8>(
    subs: &[&[f32; SUB]; SUBS],
    d: f32,
    dmin: f32,
    units: &[Line; SUBS],
) -> (f32, f32) {
    // Normal equations for x = d * a - dmin * b, with a = scale * code and b = minimum in units.
    let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (sub, unit) in subs.iter().zip(units) {
        let line = unit.times(d, dmin);
        let inverse = inverse_or_zero(line.scale);
        let [sum_x, sum_q, sum_qq, sum_xq] = sums(sub, |x| {
            let q = line.code(x, inverse, f32::from(CODE_MAX));
            [x, q, q * q, x * q]
        });
        aa += unit.scale * unit.scale * sum_qq;
        ab += unit.scale * unit.minimum * sum_q;
        bb += unit.minimum * unit.minimum * SUB as f32;
        xa += unit.scale * sum_xq;
        xb += unit.minimum * sum_x;
    }
    let determinant = aa * bb - ab * ab;
    if determinant > 0.0 {
        (round_to_half((xa * bb - xb * ab) / determinant), round_to_half((xa * ab - xb * aa) / determinant))
    } else if aa > 0.0 {
        (round_to_half(xa / aa), dmin)
    } else {
        (d, dmin)
    }
}

/// Moves each scale to the best of its neighbours in whole units; gives the squared error of the super-block.
fn settle_scales<L: Levels, const SUBS: usize, const SUB: usize>(
    subs: &[&[f32; SUB]; SUBS],
    d: f32,
    unit_max: f32,
    units: &mut [f32; SUBS],
) -> f32 {
    let mut total = 0.0;
    for (sub, unit) in subs.iter().zip(units) {
        let middle = *unit;
        let mut best = f32::INFINITY;
        for step in [0.0, -1.0, 1.0] {
            let trial = (middle + step).clamp(-unit_max - 1.0, unit_max);
            let scale = d * trial;
            let inverse = inverse_or_zero(scale);
            let [error] = sums(sub, |x| {
                let difference = scale * L::nearest(x * inverse) - x;
                [difference * difference]
            });
            if error < best {
                (best, *unit) = (error, trial);
            }
        }
        total += best;
    }
    total
}

/// The unit `d` with the least squared error for these whole-number scales and the levels that go with them.
fn refit_unit<L: Levels, const SUBS: usize, const SUB: usize>(
    subs: &[&[f32; SUB]; SUBS],
    d: f32,
    units: &[f32; SUBS],
) -> f32 {
    let (mut xa, mut aa) = (0.0, 0.0);
    for (sub, unit) in subs.iter().zip(units) {
        let inverse = inverse_or_zero(d * unit);
        let [xl, ll] = sums(sub, |x| {
            let level = L::nearest(x * inverse);
            [x * level, level * level]
        });
        xa += unit * xl;
        aa += unit * unit * ll;
    }
    if aa > 0.0 { round_to_half(xa / aa) } else { d }
}

fn sub_blocks<const SUBS: usize, const SUB: usize>(input: &[f32; LEN]) -> [&[f32; SUB]; SUBS] {
    const { assert!(SUBS * SUB == LEN && SUB.is_multiple_of(8)) };
    let (subs, _) = input.as_chunks::<SUB>();
    std::array::from_fn(|s| &subs[s])
}

/// Sums of several terms over a block. Eight running sums for each, so that the compiler can use vector registers.
fn sums<const SUB: usize, const TERMS: usize>(
    input: &[f32; SUB],
    terms: impl Fn(f32) -> [f32; TERMS],
) -> [f32; TERMS] {
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

/// Rounds to nearest even, for magnitudes below 2^22. Unlike `f32::round_ties_even` it needs no instruction beyond the
/// baseline ones, and so becomes vector code everywhere.
pub(crate) fn round(value: f32) -> f32 {
    const TO_WHOLE: f32 = 12_582_912.0; // 1.5 * 2^23: the last bit of the sum is worth 1
    value + TO_WHOLE - TO_WHOLE
}
