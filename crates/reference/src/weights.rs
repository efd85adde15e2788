//! Weights in the file's format: matrices in their blocks, vectors decoded.

use crate::memory::zeros;
use std::sync::atomic::{AtomicU64, Ordering};
use verbatim_backend::{PackError, WeightKind, WeightSource};
use verbatim_quant::{DType, dequantize};

/// A growing table of weights. A graph's weight leaf with index i refers to the i-th.
pub struct Weights {
    id: u64,
    items: Vec<Weight>,
}

/// One weight.
pub(crate) enum Weight {
    /// The right-hand side of a matmul, or an embedding table.
    Matrix(Matrix),
    /// One matrix per expert, stacked by rows.
    Experts(usize, Matrix),
    /// Norm weights, biases, frequency factors.
    Vector(Vec<f32>),
}

/// A matrix in the file's format.
pub(crate) struct Matrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Weights {
    pub(crate) fn new() -> Weights {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Weights { id: NEXT.fetch_add(1, Ordering::Relaxed), items: Vec::new() }
    }

    /// A process-wide unique id of the table.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Weight> {
        self.items.get(index)
    }

    pub(crate) fn append(&mut self, source: WeightSource<'_>) -> Result<(), PackError> {
        let weight = match source.kind {
            WeightKind::Matrix => Weight::Matrix(Matrix::copy(&source, source.rows)?),
            // If the rows are not a multiple of the experts, the size check fails.
            WeightKind::Experts(experts) => {
                let rows = source.rows.checked_div(experts).unwrap_or(0) * experts;
                Weight::Experts(experts, Matrix::copy(&source, rows)?)
            }
            WeightKind::Vector => Weight::Vector(vector(&source)?),
        };
        self.items.push(weight);
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        let bytes = |weight: &Weight| match weight {
            Weight::Matrix(matrix) | Weight::Experts(_, matrix) => matrix.bytes.len(),
            Weight::Vector(vector) => size_of_val(&vector[..]),
        };
        self.items.iter().map(bytes).sum()
    }

    pub(crate) fn matrix(&self, index: usize) -> &Matrix {
        match &self.items[index] {
            Weight::Matrix(matrix) | Weight::Experts(_, matrix) => matrix,
            Weight::Vector(_) => unreachable!("checked when the program was compiled"),
        }
    }

    pub(crate) fn vector(&self, index: usize) -> &[f32] {
        match &self.items[index] {
            Weight::Vector(vector) => vector,
            Weight::Matrix(_) | Weight::Experts(..) => unreachable!("checked when the program was compiled"),
        }
    }
}

impl Weight {
    pub(crate) fn kind(&self) -> WeightKind {
        match self {
            Weight::Matrix(_) => WeightKind::Matrix,
            Weight::Experts(experts, _) => WeightKind::Experts(*experts),
            Weight::Vector(_) => WeightKind::Vector,
        }
    }

    /// The type of the weight in a graph: vectors are decoded to F32.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Weight::Matrix(matrix) | Weight::Experts(_, matrix) => matrix.dtype,
            Weight::Vector(_) => DType::F32,
        }
    }

    /// Rows and columns; a vector is one row, and experts are stacked.
    pub(crate) fn shape(&self) -> (usize, usize) {
        match self {
            Weight::Matrix(matrix) | Weight::Experts(_, matrix) => (matrix.rows, matrix.cols),
            Weight::Vector(vector) => (1, vector.len()),
        }
    }
}

impl Matrix {
    fn copy(source: &WeightSource<'_>, rows: usize) -> Result<Matrix, PackError> {
        let &WeightSource { dtype, cols, bytes, .. } = source;
        check(dtype, rows, cols, bytes.byte_len())?;
        Ok(Matrix { dtype, rows, cols, bytes: source.read_all()? })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Decodes a row into `out`, of `cols` elements.
    pub(crate) fn decode_row(&self, row: usize, out: &mut [f32]) {
        let row_bytes = self.bytes.len() / self.rows;
        let bytes = &self.bytes[row * row_bytes..][..row_bytes];
        dequantize(self.dtype, bytes, out).expect("the bytes of a row, as checked when it was copied");
    }
}

fn check(dtype: DType, rows: usize, cols: usize, actual: usize) -> Result<(), PackError> {
    let holds_weights = dequantize(dtype, &[], &mut []).is_ok();
    if !holds_weights {
        return Err(PackError::NotWeights(dtype));
    }
    if rows == 0 || cols == 0 {
        return Err(PackError::Empty { rows, cols });
    }
    if !cols.is_multiple_of(dtype.block_len()) {
        return Err(PackError::PartialBlock { dtype, cols, block: dtype.block_len() });
    }
    let expected = dtype.row_bytes(cols).and_then(|bytes| bytes.checked_mul(rows)).unwrap_or(usize::MAX);
    if actual != expected {
        return Err(PackError::Size { dtype, rows, cols, actual, expected });
    }
    Ok(())
}

fn vector(source: &WeightSource<'_>) -> Result<Vec<f32>, PackError> {
    let &WeightSource { dtype, rows, cols, .. } = source;
    if rows == 0 || cols == 0 {
        return Err(PackError::Empty { rows, cols });
    }
    let no_memory = PackError::OutOfMemory { bytes: cols.saturating_mul(size_of::<f32>()) };
    let mut vector = zeros(cols).ok_or(no_memory)?;
    dequantize(dtype, &source.read_all()?, &mut vector)?;
    Ok(vector)
}
