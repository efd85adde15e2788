//! Formats without a packed layout of their own (the grid formats IQ1, IQ2, IQ3) as signed bytes with a
//! scale.
//!
//! Their decoded weights are small whole multiples of one number per 16 columns, so the number can be found
//! again from the decoded values alone. What is found is checked: every weight must come back exactly.

use super::layout::BLOCK_COLS;

/// Columns that share a scale.
const FIT_COLS: usize = 16;

/// Bytes of the file block of [`super::formats::Fitted`]: two f32 scales, 32 codes.
pub(super) const FITTED_BLOCK_BYTES: usize = 2 * 4 + BLOCK_COLS;

/// Writes `values` as a block of `Fitted`; `false` if they are not whole multiples of a number.
pub(super) fn fit_block(values: &[f32; BLOCK_COLS], block: &mut [u8; FITTED_BLOCK_BYTES]) -> bool {
    let (scales, codes) = block.split_at_mut(8);
    let halves = values.as_chunks::<FIT_COLS>().0.iter();
    for ((values, scale), codes) in halves.zip(scales.as_chunks_mut::<4>().0).zip(codes.as_chunks_mut().0) {
        let Some(unit) = common_unit(values) else { return false };
        *scale = unit.to_le_bytes();
        *codes = values.map(|value| (steps(value, unit) as i8).cast_unsigned() ^ 0x80);
    }
    true
}

/// The largest number of which every value is an exact multiple, up to 127-fold; 0 if they are all zero.
fn common_unit(values: &[f32; FIT_COLS]) -> Option<f32> {
    let peak = values.iter().fold(0.0f32, |peak, value| peak.max(value.abs()));
    if values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    if peak == 0.0 {
        return Some(0.0);
    }
    (1..=127u8)
        .map(|steps| peak / f32::from(steps))
        .find(|&unit| values.iter().all(|&value| steps(value, unit) * unit == value))
}

fn steps(value: f32, unit: f32) -> f32 {
    if unit == 0.0 { 0.0 } else { (value / unit).round_ties_even() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_are_found_and_others_refused() {
        let mut values = [0.0; FIT_COLS];
        assert_eq!(common_unit(&values), Some(0.0));
        values[3] = 43.0 * 0.011;
        values[4] = -8.0 * 0.011;
        let unit = common_unit(&values).unwrap();
        assert_eq!([steps(values[3], unit), steps(values[4], unit)], [43.0, -8.0]);
        values[5] = 0.1234567;
        assert_eq!(common_unit(&values), None);
        values[5] = f32::NAN;
        assert_eq!(common_unit(&values), None);
    }

    #[test]
    fn magnitudes_that_underflow_end_the_search() {
        let mut values = [0.0; FIT_COLS];
        values[0] = f32::from_bits(1);
        assert_eq!(common_unit(&values), Some(f32::from_bits(1)));
    }
}
