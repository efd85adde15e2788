//! The stacked matrices of an MoE layer: one packed matrix per expert, all of one shape and format.

use verbatim_quant::DType;

use crate::packed::PackedMatrix;
use verbatim_backend::{PackError, WeightBytes};
use verbatim_team::Team;

/// Matrices of equal shape, one per expert.
#[derive(Debug)]
pub struct PackedExperts {
    matrices: Vec<PackedMatrix>,
}

impl PackedExperts {
    /// Packs `bytes`, the data of a GGUF tensor with `experts` matrices of `rows` rows of `cols` weights, which it
    /// reads as [`PackedMatrix::pack_with`] does.
    ///
    /// # Errors
    /// If there are no experts, the number of bytes does not match the shape, bytes cannot be read, or the allocation fails.
    pub fn pack_with(
        team: &mut Team,
        dtype: DType,
        experts: usize,
        rows: usize,
        cols: usize,
        bytes: &dyn WeightBytes,
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
        let actual = bytes.byte_len();
        if actual != expected {
            let rows = rows.saturating_mul(experts);
            return Err(PackError::Size { dtype, rows, cols, actual, expected });
        }
        let pack = |expert| {
            let start = expert * expert_bytes;
            PackedMatrix::pack_part(team, dtype, rows, cols, bytes, start..start + expert_bytes)
        };
        let matrices = (0..experts).map(pack).collect::<Result<_, _>>()?;
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
