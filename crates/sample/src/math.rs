//! exp and ln in f32, defined by their operations: additions, multiplications, comparisons and bit patterns only, each rounded
//! on its own. Every CPU, compiler and shader that computes these as IEEE 754 says returns the same bits; a fused multiply-add
//! or a platform's own function would not. The polynomials are those of the Cephes library (Moshier).

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts, the first of few bits, so that its product with an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// Adding it rounds a number below 2^22 to an integer, in the low bits.
const ROUNDING: f32 = 12_582_912.0;

/// exp(x) within 2 units in the last place for x from -87 to 88; 0 below, the value at 88 above. The result for a NaN is unspecified.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let clamped = if x < 88.0 { x } else { 88.0 };
    let clamped = if clamped > -87.0 { clamped } else { -87.0 };
    let rounded = clamped * LOG2_E + ROUNDING;
    let n = rounded - ROUNDING;
    let r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        p = p * r + coefficient;
    }
    let exponent = rounded.to_bits().wrapping_sub(ROUNDING.to_bits());
    let power = f32::from_bits(exponent.wrapping_add(127) << 23);
    let result = (p * (r * r) + r + 1.0) * power;
    if x < -87.0 { 0.0 } else { result }
}

/// ln(x) within 2 units in the last place, or 1e-7 near 1, for normal positive x.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let (exponent, fraction) = split(x);
    ln_of_parts(exponent, fraction)
}

/// x as (e, f) with x = 2^e * (1 + f), 1 + f from √½ to √2.
#[inline(always)]
pub(crate) fn split(x: f32) -> (f32, f32) {
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    // The exponent of x relative to √½, so that the rest is in the range.
    let offset = x.to_bits().wrapping_sub(SQRT_HALF_BITS).cast_signed() >> 23;
    let mantissa = f32::from_bits(x.to_bits().wrapping_sub((offset << 23).cast_unsigned()));
    (offset as f32, mantissa - 1.0)
}

/// ln(2^e * (1 + f)).
#[inline(always)]
pub(crate) fn ln_of_parts(e: f32, f: f32) -> f32 {
    let mut p = 7.037_683_6e-2;
    for coefficient in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = p * f + coefficient;
    }
    let square = f * f;
    let tail = p * f * square + e * LN_2_LOW - 0.5 * square;
    f + tail + e * LN_2_HIGH
}

/// log2(x), for normal positive x.
pub(crate) fn log2(x: f32) -> f32 {
    ln(x) * LOG2_E
}

/// x^y for x >= 0.
pub(crate) fn pow(x: f32, y: f32) -> f32 {
    if x < f32::MIN_POSITIVE { if y == 0.0 { 1.0 } else { 0.0 } } else { exp(y * ln(x)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distance of `found` from `wanted` in units in the last place of `wanted`.
    fn ulps(found: f32, wanted: f64) -> f64 {
        let unit = f64::from((wanted as f32).next_up()) - f64::from(wanted as f32);
        (f64::from(found) - wanted).abs() / unit.abs()
    }

    #[test]
    fn exp_is_within_its_error() {
        let mut worst: f64 = 0.0;
        for i in 0..2_000_000 {
            let x = -86.9 + i as f32 * (174.0 / 2_000_000.0);
            worst = worst.max(ulps(exp(x), libm::exp(f64::from(x))));
        }
        assert!(worst <= 2.0, "{worst}");
        assert!(ulps(exp(-87.0), libm::exp(-87.0)) <= 2.0);
        assert_eq!((exp(0.0), exp(-0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 1.0, 0.0, 0.0));
        assert_eq!(exp(1000.0), exp(88.0));
    }

    #[test]
    fn ln_is_within_its_error() {
        let mut worst: f64 = 0.0;
        for bits in (f32::MIN_POSITIVE.to_bits()..f32::MAX.to_bits()).step_by(1009) {
            let x = f32::from_bits(bits);
            let wanted = libm::log(f64::from(x));
            let error = (f64::from(ln(x)) - wanted).abs();
            worst = worst.max(if error < 1e-7 { 0.0 } else { ulps(ln(x), wanted) });
        }
        assert!(worst <= 2.0, "{worst}");
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn powers_are_close() {
        for (x, y) in [(2.0f32, 10.0f32), (0.3, 1.3), (1.75, 7.0), (0.001, 0.5)] {
            let wanted = libm::pow(f64::from(x), f64::from(y));
            assert!((f64::from(pow(x, y)) / wanted - 1.0).abs() < 2e-6, "{x}^{y}");
        }
        assert_eq!((pow(0.0, 0.0), pow(0.0, 0.5), pow(0.0, 2.0)), (1.0, 0.0, 0.0));
        // The smallest normal number is not 0 yet.
        assert!((pow(f32::MIN_POSITIVE, 0.5) / f32::MIN_POSITIVE.sqrt() - 1.0).abs() < 2e-5);
        assert!((log2(8.0) - 3.0).abs() < 1e-6);
    }
}
