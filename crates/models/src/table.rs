//! The list of weights that an architecture uses, checked against the file's tensor table.

use crate::ModelError;
use verbatim_backend::WeightKind;
use verbatim_gguf::GgufFile;
use verbatim_quant::DType;

/// One weight that has to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// The tensor's name in the file.
    pub name: String,
    /// How it is used.
    pub kind: WeightKind,
    /// Its type in the file.
    pub dtype: DType,
    /// Output features; 1 for a vector.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

/// Index of a weight in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightId(pub(crate) u32);

/// Collects the weights of an architecture.
pub(crate) struct Table<'a> {
    file: &'a GgufFile,
    weights: Vec<WeightSpec>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(file: &'a GgufFile) -> Self {
        Table { file, weights: Vec::new() }
    }

    /// A matrix of `rows` output and `cols` input features.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, ModelError> {
        self.take(name, WeightKind::Matrix, &[cols, rows], [rows, cols])
    }

    /// A matrix of `rows` output and `cols` input features for each expert.
    pub(crate) fn experts(
        &mut self,
        name: &str,
        experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, ModelError> {
        // If the product saturates, it matches no tensor's shape.
        let stacked = experts.saturating_mul(rows);
        self.take(name, WeightKind::Experts(experts), &[cols, rows, experts], [stacked, cols])
    }

    /// A vector.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<WeightId, ModelError> {
        self.take(name, WeightKind::Vector, &[len], [1, len])
    }

    /// The weights of a short convolution: `kernel` for each of `channels`, as one vector.
    pub(crate) fn convolution(
        &mut self,
        name: &str,
        kernel: usize,
        channels: usize,
    ) -> Result<WeightId, ModelError> {
        let len = kernel.saturating_mul(channels);
        self.take(name, WeightKind::Vector, &[kernel, channels], [1, len])
    }

    /// A vector that not all files have.
    pub(crate) fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<WeightId>, ModelError> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// A vector for each expert, that not all files have.
    pub(crate) fn optional_expert_vectors(
        &mut self,
        name: &str,
        experts: usize,
        len: usize,
    ) -> Result<Option<WeightId>, ModelError> {
        let stacked = experts.saturating_mul(len);
        if !self.has(name) {
            return Ok(None);
        }
        self.take(name, WeightKind::Vector, &[len, experts], [1, stacked]).map(Some)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    fn take(
        &mut self,
        name: &str,
        kind: WeightKind,
        expected: &[usize],
        [rows, cols]: [usize; 2],
    ) -> Result<WeightId, ModelError> {
        let tensor = self.file.require_tensor(name)?;
        let info = tensor.info();
        // Files are free to leave out or to add outermost dimensions of 1.
        let dim = |dims: &[usize], i: usize| dims.get(i).copied().unwrap_or(1);
        let most = expected.len().max(info.dims().len());
        if (0..most).any(|i| dim(expected, i) != dim(info.dims(), i)) {
            return Err(ModelError::Shape {
                name: name.into(),
                found: format!("{:?}", info.dims()),
                expected: format!("{expected:?}"),
            });
        }
        if matches!(
            info.dtype(),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::F64 | DType::Q8_1 | DType::Q8_K
        ) {
            return Err(ModelError::Type { name: name.into(), found: info.dtype().to_string() });
        }
        self.weights.push(WeightSpec { name: name.into(), kind, dtype: info.dtype(), rows, cols });
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    /// The weights, after checking that every tensor of the file is used: unused ones would be silently ignored.
    /// `unread` names tensors that are ignored on purpose, such as those of multi-token prediction.
    pub(crate) fn finish(
        self,
        architecture: &str,
        unread: impl Fn(&str) -> bool,
    ) -> Result<Vec<WeightSpec>, ModelError> {
        let used: std::collections::HashSet<&str> =
            self.weights.iter().map(|spec| spec.name.as_str()).collect();
        match self.file.tensors().iter().find(|info| !used.contains(info.name()) && !unread(info.name())) {
            Some(info) => {
                Err(ModelError::Unused { name: info.name().into(), architecture: architecture.into() })
            }
            None => Ok(self.weights),
        }
    }
}
