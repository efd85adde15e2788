//! The engine's view of a model: hyperparameters, per-sequence state, and the graphs of its steps.

use crate::{FeatureDraft, WeightSpec};
use verbatim_graph::{DeltaHeads, F32Bits, Graph, GraphError, RopeLayout, RopeTable, RowCounts};

/// A hidden state that a step can return for every row: aux hidden states in EAGLE-3, target features in DFlash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HiddenOutput {
    /// The residual stream entering the first layer.
    Embedding,
    /// The residual stream leaving this layer, counted from 0.
    Layer(u32),
    /// The hidden state after the final norm.
    FinalNorm,
    /// The target's hidden states that the n-th follower of the step reads (its *features*), as its follow pass has combined them.
    Fused(u32),
}

/// Offsets of a model's weights and layers among those of all models that share sequences: a draft model's come after its target's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelOffsets {
    /// Weights before its own.
    pub weights: u32,
    /// Attention layers before its own.
    pub kv: u32,
    /// Recurrent layers before its own.
    pub recurrent: u32,
}

/// A draft model whose follow pass is part of a target's step: it stores what it needs of the target's hidden states.
#[derive(Clone, Copy)]
pub struct Follower<'a> {
    /// The draft model.
    pub draft: &'a FeatureDraft,
    /// Offsets of its weights and layers.
    pub offsets: ModelOffsets,
    /// Whether its K and V are stored Hadamard-transformed.
    pub hadamard: HadamardKv,
}

/// The shape of a step, which determines its graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Offsets of the model's weights and layers.
    pub offsets: ModelOffsets,
    /// Maximum rows and output rows.
    pub bounds: RowCounts,
    /// Some rows are embeddings, not tokens.
    pub embeddings: bool,
    /// Sequences that the step may mix, and pages of positions that each may have.
    pub page_table: [usize; 2],
    /// The window of each KV cache group, which has its own pages; `None` for full attention.
    pub windows: Vec<Option<usize>>,
    /// Whether K and V are stored Hadamard-transformed.
    pub hadamard: HadamardKv,
    /// Maximum positions in flight on a row's path if rows form trees; 0 if all are chains.
    pub path_len: usize,
    /// The context size: LongRoPE depends on it.
    pub context: usize,
    /// Hidden states to return.
    pub hidden_outputs: Vec<HiddenOutput>,
    /// What to return about the next token.
    pub next: NextOutputs,
}

/// What a step returns for its output rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NextOutputs {
    /// The logits. If nobody wants them, they are a temporary value.
    pub logits: bool,
    /// The token, sampled in the graph.
    pub tokens: bool,
}

/// Which of K and V go through [`verbatim_graph::Op::Hadamard`] before they are stored: this spreads outliers, so
/// quantisation loses less (QuaRot, arXiv 2404.00456). The result of attention stays the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HadamardKv {
    /// Keys, and queries with them.
    pub keys: bool,
    /// Values, and the result of attention.
    pub values: bool,
}

/// The shape of one layer's K and V per position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// The sliding window, the row's own position included; `None` for full attention.
    pub window: Option<usize>,
    /// RoPE of the keys, if the layer has it.
    pub rope: Option<KeyRope>,
    /// It holds rows of hidden states, half as K and half as V, in f32 whatever the types of the KV cache are.
    pub is_row_memory: bool,
}

/// RoPE of a layer's cached keys, needed for a K-shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRope {
    /// RoPE parameters, from which the angles are computed.
    pub table: RopeTable,
    /// Which elements of a head RoPE pairs.
    pub layout: RopeLayout,
    /// The index of the weight with the frequency factors.
    pub freq_factors: Option<u32>,
}

/// The shape of one recurrent layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentShape {
    /// Kernel size of the short convolution.
    pub kernel: usize,
    /// The heads of the gated delta net, whose columns are the channels of the convolution.
    pub heads: DeltaHeads,
}

impl RecurrentShape {
    /// Channels of the short convolution: all queries, keys and values.
    pub fn channels(&self) -> usize {
        self.heads.columns().expect("checked when the file was opened")
    }
}

/// Hyperparameters that every architecture has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hyperparameters {
    /// The architecture's name in GGUF files.
    pub architecture: String,
    /// Layers, without multi-token-prediction layers.
    pub layers: usize,
    /// Elements of the residual stream.
    pub hidden: usize,
    /// Tokens of the vocabulary: rows of the LM head.
    pub vocabulary: usize,
    /// Positions that the model was trained for.
    pub context: usize,
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

/// A parsed and validated model file: which weights to load, and how to build the graph of a step.
pub trait Model: Send + Sync {
    /// The model's hyperparameters.
    fn hyperparameters(&self) -> &Hyperparameters;

    /// The weights, in the order of their indices in graphs.
    fn weights(&self) -> &[WeightSpec];

    /// The KV shape of each attention layer at this context size.
    fn kv_shapes(&self, context: usize) -> Vec<KvShape>;

    /// The state of each recurrent layer.
    fn recurrent_shapes(&self) -> Vec<RecurrentShape> {
        Vec::new()
    }

    /// The weights that a draft model may share.
    fn shared_weights(&self) -> SharedWeights;

    /// Itself, if it is a draft model that reads the hidden states of its target.
    fn feature_draft(&self) -> Option<&FeatureDraft> {
        None
    }

    /// The model's own hidden states that can be read, in every architecture: all of [`HiddenOutput`] but
    /// [`HiddenOutput::Fused`], which a follower adds.
    fn hidden_outputs(&self) -> Vec<HiddenOutput> {
        let layers = self.hyperparameters().layers as u32;
        let mut hidden_outputs = vec![HiddenOutput::Embedding];
        hidden_outputs.extend((0..layers).map(HiddenOutput::Layer));
        hidden_outputs.push(HiddenOutput::FinalNorm);
        hidden_outputs
    }

    /// The graph of a step, with the follow passes of draft models.
    ///
    /// # Errors
    /// Sizes that exceed the address space. Shapes fit each other, since [`open`](crate::open) has checked the tensors.
    fn build(&self, shape: &StepShape, followers: &[Follower<'_>]) -> Result<Graph, GraphError>;
}
