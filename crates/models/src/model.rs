//! The engine's view of a model: hyperparameters, per-sequence state, and the graphs of its steps.

use crate::{FeatureDraft, Follower, HiddenOutput, SharedWeights, StepShape, WeightSpec};
use verbatim_graph::{DeltaHeads, Graph, GraphError, RopeLayout, RopeTable};

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
    fn feature_draft(&self) -> Option<&dyn FeatureDraft> {
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
