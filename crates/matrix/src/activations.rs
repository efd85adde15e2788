//! Rows of activations, quantised to eight bits in blocks of 32 columns.

use crate::layout::BLOCK_COLS;
use verbatim_simd::{Isa, Kernel, Q8Block, Simd, dispatch};

/// Bytes that [`quantize_row`] writes for a row of `cols` activations, a multiple of 32.
pub const fn activation_row_bytes(cols: usize) -> usize {
    cols / BLOCK_COLS * size_of::<Q8Block>()
}

/// Quantises a row of activations for matmuls with block-format weights.
///
/// `row.len()` is a multiple of 32 and `out.len()` is [`activation_row_bytes`] of it. Blocks are independent, so parts of a
/// row at multiples of 32 can be quantised separately. A block with a NaN or an infinity gets a NaN scale, so that every dot
/// product with it is NaN: invalid values stay visible. A block whose absmax (largest magnitude) is below 1e-30 becomes zeros.
///
/// # Panics
/// If the sizes differ from these.
pub fn quantize_row(isa: Isa, row: &[f32], out: &mut [u8]) {
    assert!(
        row.len().is_multiple_of(BLOCK_COLS) && out.len() == activation_row_bytes(row.len()),
        "quantize_row: {} activations into {} bytes; it takes a multiple of 32, and {} bytes for that many",
        row.len(),
        out.len(),
        activation_row_bytes(row.len()),
    );
    dispatch(isa, QuantizeRow { row, out });
}

/// Quantises a row into several int8 terms: the first term is the quantised row, and each further term is the quantised
/// rounding error of the terms before it. Each term is in the format of [`quantize_row`]; the dot product of the row is the
/// sum of the terms' dot products.
///
/// # Panics
/// As [`quantize_row`].
pub fn quantize_terms(isa: Isa, row: &[f32], terms: &mut [&mut [u8]]) {
    if let [term] = terms {
        return quantize_row(isa, row, term);
    }
    let term_bytes = activation_row_bytes(row.len());
    for term in &*terms {
        assert!(term.len() == term_bytes, "a term of {} bytes, not {term_bytes}", term.len());
    }
    for (index, values) in row.as_chunks::<BLOCK_COLS>().0.iter().enumerate() {
        let mut rest = *values;
        for term in &mut *terms {
            let block = &mut term[index * size_of::<Q8Block>()..][..size_of::<Q8Block>()];
            quantize_row(isa, &rest, block);
            let (quants, header) = block.split_at(BLOCK_COLS);
            let scale = f32::from_ne_bytes(header.as_chunks().0[0]);
            for (value, quant) in rest.iter_mut().zip(quants) {
                *value = f32::from(quant.cast_signed()).mul_add(-scale, *value);
            }
        }
    }
}

struct QuantizeRow<'a> {
    row: &'a [f32],
    out: &'a mut [u8],
}

impl Kernel for QuantizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let blocks = self.out.as_chunks_mut::<{ size_of::<Q8Block>() }>().0;
        for (values, out) in self.row.as_chunks::<BLOCK_COLS>().0.iter().zip(blocks) {
            let block = simd.quantize_q8(values);
            // SAFETY: an unaligned write of exactly `out.len()` bytes, of a type without padding.
            unsafe { out.as_mut_ptr().cast::<Q8Block>().write_unaligned(block) };
        }
    }
}
