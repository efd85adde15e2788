//! The stacked matrices of an MoE layer: one packed matrix per expert, all of one shape and format.

use std::ops::Range;

use verbatim_quant::DType;

use crate::packed::PackedMatrix;
use verbatim_backend::PackError;
use verbatim_team::Team;

/// Matrices of equal shape, one per expert.
#[derive(Debug)]
pub struct PackedExperts {
    matrices: Vec<PackedMatrix>,
}

impl PackedExperts {
    /// Packs `bytes`, the data of a GGUF tensor with `experts` matrices of `rows` rows of `cols` weights, and calls `on_consumed`
    /// as [`PackedMatrix::pack_with`] does.
    ///
    /// # Errors
    /// If there are no experts, the number of bytes does not match the shape, or the allocation fails.
    pub fn pack_with(
        team: &mut Team,
        dtype: DType,
        experts: usize,
        rows: usize,
        cols: usize,
        bytes: &[u8],
        on_consumed: &(dyn Fn(Range<usize>) + Sync),
    ) -> Result<PackedExperts, PackError> {
        let block = dtype.block_len();
        if !cols.is_multiple_of(block) {
            return Err(PackError::PartialBlock { dtype, cols, block });
        }
        let expert_bytes = dtype.row_bytes(cols).and_then(|row_bytes| row_bytes.checked_mul(rows));
        let expected = expert_bytes.and_then(|bytes| bytes.checked_mul(experts)).unwrap_or(usize::MAX);
        let expert_bytes = match expert_bytes {
            Some(expert_bytes) if expert_bytes > 0 && experts > 0 => expert_bytes,
            _ => return Err(PackError::Empty { rows: rows.saturating_mul(experts), cols }),
        };
        if bytes.len() != expected {
            let rows = rows.saturating_mul(experts);
            return Err(PackError::Size { dtype, rows, cols, actual: bytes.len(), expected });
        }
        let pack = |(expert, bytes)| {
            let start = expert * expert_bytes;
            let on_consumed = |range: Range<usize>| on_consumed(start + range.start..start + range.end);
            PackedMatrix::pack_with(team, dtype, rows, cols, bytes, &on_consumed)
        };
        let matrices = bytes.chunks_exact(expert_bytes).enumerate().map(pack).collect::<Result<_, _>>()?;
        Ok(PackedExperts { matrices })
    }

    /// The experts' matrices; at least one.
    pub fn matrices(&self) -> &[PackedMatrix] {
        &self.matrices
    }

    /// Weight rows of one expert.
    pub fn rows(&self) -> usize {
        self.matrices[0].rows()
    }

    /// Input columns.
    pub fn cols(&self) -> usize {
        self.matrices[0].cols()
    }

    /// The weights' format in the file.
    pub fn dtype(&self) -> DType {
        self.matrices[0].dtype()
    }

    /// Memory used by the packed weights, in bytes.
    pub fn packed_bytes(&self) -> usize {
        self.matrices.iter().map(PackedMatrix::packed_bytes).sum()
    }

    /// Whether matmuls take quantised activations; see [`PackedMatrix::takes_quantized`].
    pub fn takes_quantized(&self) -> bool {
        self.matrices[0].takes_quantized()
    }
}
