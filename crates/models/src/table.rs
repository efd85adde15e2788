//! The list of weights that an architecture uses, checked against the file's tensor table.

use crate::ModelError;
use verbatim_backend::WeightKind;
use verbatim_gguf::GgufFile;
use verbatim_graph::F32Bits;
use verbatim_quant::{DType, dequantize};

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

/// A matrix with an optional bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) weight: WeightId,
    pub(crate) bias: Option<WeightId>,
    /// Factor on the matrix; 1 unless the file has one, as for NVFP4.
    pub(crate) scale: F32Bits,
}

/// The weights of a target that a draft model may share, by their indices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedWeights {
    /// The token embeddings.
    pub embedding: u32,
    /// The LM head; none if it has a bias.
    pub head: Option<u32>,
    /// Factor on the LM head.
    pub head_scale: F32Bits,
}

impl Linear {
    /// What a draft model may share of a model with this LM head.
    pub(crate) fn shared_with(&self, embedding: WeightId) -> SharedWeights {
        let head = self.bias.is_none().then_some(self.weight.0);
        SharedWeights { embedding: embedding.0, head, head_scale: self.scale }
    }
}

/// Collects the weights of an architecture.
pub(crate) struct Table<'a> {
    file: &'a GgufFile,
    weights: Vec<WeightSpec>,
    /// Tensors whose values are hyperparameters rather than weights.
    read: Vec<String>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(file: &'a GgufFile) -> Self {
        Table { file, weights: Vec::new(), read: Vec::new() }
    }

    /// A matrix of `rows` output and `cols` input features.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, ModelError> {
        self.take(name, WeightKind::Matrix, &[cols, rows], [rows, cols])
    }

    /// The linear layer `name`: the matrix `name.weight`, `name.bias` if the file has it, and `name.scale` if the file has
    /// it.
    pub(crate) fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Result<Linear, ModelError> {
        let linear = self.unbiased_linear(name, rows, cols)?;
        Ok(Linear { bias: self.optional_vector(&format!("{name}.bias"), rows)?, ..linear })
    }

    /// As [`Table::linear`], in an architecture whose layer has no bias.
    pub(crate) fn unbiased_linear(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Linear, ModelError> {
        let weight = self.matrix(&format!("{name}.weight"), rows, cols)?;
        Ok(Linear { weight, bias: None, scale: self.scale(name, 1)? })
    }

    /// As [`Table::linear`], with a matrix and a bias for each expert.
    pub(crate) fn expert_linear(
        &mut self,
        name: &str,
        experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Linear, ModelError> {
        let weight = self.experts(&format!("{name}.weight"), experts, rows, cols)?;
        let bias = self.optional_expert_vectors(&format!("{name}.bias"), experts, rows)?;
        Ok(Linear { weight, bias, scale: self.scale(name, experts)? })
    }

    /// The factor on `name.weight` in `name.scale`, with one element per expert. Formats whose blocks have small scale
    /// factors, NVFP4 above all, have one in f32 for the tensor. `name.input_scale`, a factor for quantising the
    /// layer's input to NVFP4, is not needed where inputs are quantised otherwise; it is ignored, as in llama.cpp.
    fn scale(&mut self, name: &str, experts: usize) -> Result<F32Bits, ModelError> {
        let input_scale = format!("{name}.input_scale");
        if self.has(&input_scale) {
            self.check(&input_scale, &[experts])?;
            self.read.push(input_scale);
        }
        let name = format!("{name}.scale");
        if !self.has(&name) {
            return Ok(F32Bits(1.0));
        }
        let dtype = self.check(&name, &[experts])?;
        let mut factors = vec![0.0; experts];
        let tensor = self.file.require_tensor(&name)?;
        if dequantize(dtype, &tensor.data()?, &mut factors).is_err() {
            return Err(ModelError::Type { name, found: dtype.to_string() });
        }
        let factor = factors.first().copied().unwrap_or(1.0);
        if let Some(found) = factors.iter().copied().find(|found| !found.is_finite()) {
            return Err(ModelError::Factor { name, found });
        }
        if factors.iter().any(|other| *other != factor) {
            return Err(ModelError::ExpertFactors { name });
        }
        self.read.push(name);
        Ok(F32Bits(factor))
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

    /// The target's ids of the tokens of a draft vocabulary (`d2t`), if the file has them: different ones, below `vocabulary`.
    pub(crate) fn draft_vocabulary(&mut self, vocabulary: usize) -> Result<Option<Vec<i32>>, ModelError> {
        let name = "d2t";
        let Some(tensor) = self.file.tensor(name) else { return Ok(None) };
        let info = tensor.info();
        let wrong = |found: String| ModelError::DraftVocabulary { found, vocabulary };
        if info.dtype() != DType::I64 || info.dims().len() > 1 {
            return Err(wrong(format!("a tensor of type {} and shape {:?}", info.dtype(), info.dims())));
        }
        let data = tensor.data()?;
        let ids = data.as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id));
        let mut seen = vec![false; vocabulary];
        let valid = ids.map(|id| {
            let index = usize::try_from(id).ok().filter(|&index| index < vocabulary);
            match index.map(|index| std::mem::replace(&mut seen[index], true)) {
                None => Err(wrong(format!("token id {id}"))),
                Some(true) => Err(wrong(format!("token id {id} twice"))),
                Some(false) => Ok(id as i32),
            }
        });
        let ids = valid.collect::<Result<Vec<i32>, _>>()?;
        self.read.push(name.into());
        Ok(Some(ids))
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
        let dtype = self.check(name, expected)?;
        self.weights.push(WeightSpec { name: name.into(), kind, dtype, rows, cols });
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    /// The type of a tensor that must be of this shape and can hold weights.
    fn check(&self, name: &str, expected: &[usize]) -> Result<DType, ModelError> {
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
        Ok(info.dtype())
    }

    /// The weights, after checking that every tensor of the file is used: unused ones would be silently ignored.
    /// `unread` names tensors that are ignored on purpose, such as those of multi-token prediction.
    pub(crate) fn finish(
        self,
        architecture: &str,
        unread: impl Fn(&str) -> bool,
    ) -> Result<Vec<WeightSpec>, ModelError> {
        let used: std::collections::HashSet<&str> =
            self.weights.iter().map(|spec| &spec.name).chain(&self.read).map(String::as_str).collect();
        match self.file.tensors().iter().find(|info| !used.contains(info.name()) && !unread(info.name())) {
            Some(info) => {
                Err(ModelError::Unused { name: info.name().into(), architecture: architecture.into() })
            }
            None => Ok(self.weights),
        }
    }
}
