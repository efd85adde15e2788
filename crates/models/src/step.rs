//! The shape of a step, and what it returns: all that a graph depends on besides its model.

use verbatim_graph::RowCounts;

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
