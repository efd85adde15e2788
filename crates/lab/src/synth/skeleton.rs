//! A model without its weights.

use verbatim_gguf::{GgufError, GgufWriter};

/// A model without its weights: metadata and tensor list.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSkeleton {
    name: String,
    architecture: &'static str,
    vocabulary: usize,
    entries: Vec<(String, Entry)>,
    tensors: Vec<Tensor>,
    /// What the choice of formats depends on.
    quant_context: QuantContext,
}

/// What the choice of formats depends on, besides names and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QuantContext {
    pub(super) layers: usize,
    /// Query heads of each KV head (GQA).
    pub(super) n_gqa: usize,
    /// Experts of a layer; 0 without MoE.
    pub(super) experts: usize,
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Count(u32),
    Real(f32),
    Text(String),
    Counts(Vec<i32>),
}

/// A tensor to generate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// In the file's order, the elements of a row first.
    pub(super) dims: Vec<usize>,
    pub(super) fill: Fill,
}

/// Contents of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fill {
    /// Normally distributed values around 0.
    Random,
    /// One value everywhere.
    Constant(f32),
    /// These values.
    Values(Vec<f32>),
}

impl ModelSkeleton {
    /// A model that has neither entries nor tensors yet.
    pub(super) fn new(
        name: &str,
        architecture: &'static str,
        vocabulary: usize,
        layers: usize,
    ) -> ModelSkeleton {
        ModelSkeleton {
            name: name.into(),
            architecture,
            vocabulary,
            entries: Vec::new(),
            tensors: Vec::new(),
            quant_context: QuantContext { layers, n_gqa: 1, experts: 0 },
        }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The architecture's name in GGUF files.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Weights of the model, embeddings included.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.elements() as u64).sum()
    }

    pub(super) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Tokens of the vocabulary.
    pub(super) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    pub(super) fn quant_context(&self) -> QuantContext {
        self.quant_context
    }

    /// Puts the architecture's entries into the metadata of a file.
    pub(super) fn put_entries(&self, writer: &mut GgufWriter) -> Result<(), GgufError> {
        for (key, entry) in &self.entries {
            match entry {
                Entry::Count(count) => writer.put(key, *count)?,
                Entry::Real(number) => writer.put(key, *number)?,
                Entry::Text(text) => writer.put(key, text)?,
                Entry::Counts(counts) => writer.put_array(key, counts)?,
            }
        }
        Ok(())
    }

    pub(super) fn set_n_gqa(&mut self, n_gqa: usize) {
        self.quant_context.n_gqa = n_gqa;
    }

    pub(super) fn set_experts(&mut self, experts: usize) {
        self.quant_context.experts = experts;
    }

    /// An entry `ARCHITECTURE.name` that counts something.
    pub(super) fn count(&mut self, name: &str, count: usize) {
        // Counts are bounded when they are read.
        self.entry(name, Entry::Count(u32::try_from(count).unwrap_or(u32::MAX)));
    }

    pub(super) fn real(&mut self, name: &str, number: f32) {
        self.entry(name, Entry::Real(number));
    }

    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.entry(name, Entry::Text(text.into()));
    }

    pub(super) fn counts(&mut self, name: &str, counts: Vec<i32>) {
        self.entry(name, Entry::Counts(counts));
    }

    fn entry(&mut self, name: &str, entry: Entry) {
        self.entries.push((format!("{}.{name}", self.architecture), entry));
    }

    /// A matrix of random weights, or a stack of them: `dims` are in the file's order.
    pub(super) fn random(&mut self, name: impl Into<String>, dims: &[usize]) {
        self.tensors.push(Tensor { name: name.into(), dims: dims.to_vec(), fill: Fill::Random });
    }

    pub(super) fn values(&mut self, name: impl Into<String>, values: Vec<f32>) {
        let dims = vec![values.len()];
        self.tensors.push(Tensor { name: name.into(), dims, fill: Fill::Values(values) });
    }

    pub(super) fn constant(&mut self, name: impl Into<String>, len: usize, number: f32) {
        self.tensors.push(Tensor { name: name.into(), dims: vec![len], fill: Fill::Constant(number) });
    }

    /// The weights of a norm: they change nothing.
    pub(super) fn norm(&mut self, name: impl Into<String>, len: usize) {
        self.constant(name, len, 1.0);
    }
}

impl Tensor {
    pub(super) fn elements(&self) -> usize {
        self.dims.iter().fold(1, |product, &dim| product.saturating_mul(dim))
    }
}
