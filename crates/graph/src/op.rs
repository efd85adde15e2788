//! Model-level ops, each with its shape rule.

use crate::rule::{OpRules, Operands, is_cap};
use crate::value::{Extent, F32Bits, Shape, Value, WeightKind};
use verbatim_quant::DType;

/// The activation of a gated FFN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// sigmoid(x): a plain sigmoid.
    Sigmoid,
    /// The clamped SwiGLU of gpt-oss, which also uses the up projection u: g * sigmoid(alpha * g) * (u + 1), with g no larger
    /// than `limit` and u within -`limit` to `limit`.
    ClampedSwiglu {
        /// Factor within the sigmoid.
        alpha: F32Bits,
        /// Bound on both factors.
        limit: F32Bits,
    },
}

/// The router's gating function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gating {
    /// Probabilities over all experts.
    Softmax,
    /// Each expert independently.
    Sigmoid,
}

/// How a router computes the factors (*weights*) on the outputs of the selected experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Router {
    /// How a weight is computed from its logit before normalisation.
    pub gating: Gating,
    /// Divide the weights of the selected experts by their sum.
    pub normalize: bool,
    /// Factor on every weight.
    pub scale: F32Bits,
}

/// The heads of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaHeads {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`; head h uses the query and key of head h modulo `key_heads`.
    pub value_heads: usize,
    /// Elements of a query or key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

impl DeltaHeads {
    /// Columns of a row: all queries, all keys, all values. `None` if the sizes overflow.
    pub fn columns(&self) -> Option<usize> {
        let keys = self.key_heads.checked_mul(self.key_dim)?.checked_mul(2)?;
        keys.checked_add(self.value_heads.checked_mul(self.value_dim)?)
    }
}

/// The largest `n_expert_used`.
pub const MAX_EXPERTS_USED: usize = 64;

/// Which elements of a head RoPE pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeLayout {
    /// (0, 1), (2, 3), …: "NORM" in llama.cpp; the Llama family's GGUF files.
    Interleaved,
    /// (0, n/2), (1, n/2 + 1), …: most others.
    NeoX,
}

/// RoPE scaling beyond the training context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeScaling {
    /// As trained, or positions divided by `factor` (1 for none).
    Linear {
        /// The scaling factor.
        factor: F32Bits,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// How many times longer than the original context.
        factor: F32Bits,
        /// The context length of training.
        original_context: usize,
        /// Multiplies cosines and sines (`mscale`).
        attention_factor: F32Bits,
        /// Rotations over the original context above which a frequency is not interpolated.
        beta_fast: F32Bits,
        /// Rotations below which a frequency is fully interpolated.
        beta_slow: F32Bits,
        /// The correction range is rounded outwards to integers (`truncate` in transformers' YaRN), as most models do.
        truncate: bool,
    },
    /// LongRoPE (arXiv 2402.13753): each frequency is divided by its own factor, given as an operand.
    Long {
        /// Multiplies cosines and sines (`mscale`).
        attention_factor: F32Bits,
    },
}

/// RoPE parameters of one kind of layer (arXiv 2104.09864).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeTable {
    /// Elements of a head that RoPE rotates (`n_rot`); even.
    pub rotary_dim: usize,
    /// Base of the geometric series of frequencies.
    pub base: F32Bits,
    /// Context scaling.
    pub scaling: RopeScaling,
}

/// Parameters of the attention of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: F32Bits,
    /// A row at position p attends to positions p - window + 1 to p; to all up to p if `None`.
    pub window: Option<usize>,
    /// Scores s, once scaled, become cap * tanh(s / cap) (Gemma 2, arXiv 2408.00118).
    pub softcap: Option<F32Bits>,
    /// A sinks operand is given: one per query head, a logit in the softmax's denominator without a value (gpt-oss,
    /// arXiv 2508.10925).
    pub sinks: bool,
    /// The operands `tree_starts` and `paths` are given: the rows in flight are a tree, and each row has its own path.
    pub paths: bool,
    /// The operand `valid_from` is given: a row attends to no position before its `valid_from`, except that it
    /// always attends to its own. Cells that a draft model has not computed hold garbage.
    pub valid_from: bool,
}

impl Attention {
    /// The index of the operand `valid_from`, where it is given.
    pub const fn valid_from_operand(&self) -> usize {
        if self.paths { 7 } else { 5 }
    }

    /// The index of the sinks, where they are given.
    pub const fn sinks_operand(&self) -> usize {
        self.valid_from_operand() + self.valid_from as usize
    }
}

/// An op. The doc comment of each variant gives its operands in order, then its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// (table weight \[vocabulary, n\], token ids i32 \[r, 1\], then embeddings f32 \[r, n\] if `has_embeddings`) → f32 \[r, n\]:
    /// table rows times `scale`. With `has_embeddings`, rows with id < 0 use the embeddings operand, unscaled.
    Embed {
        /// Factor on every element of the table.
        scale: F32Bits,
        /// An embeddings operand is given.
        has_embeddings: bool,
    },
    /// (x f32 \[r, n\], weight f32 \[1, n / groups\]) → f32 \[r, n\]: each of the `groups` equal parts of a row is
    /// divided by its root mean square and multiplied by the weight (arXiv 1910.07467).
    RmsNorm {
        /// Added to the mean square.
        eps: F32Bits,
        /// Parts of a row that are normalized separately: 1, or the number of heads.
        groups: usize,
    },
    /// (x f32 \[r, k\], weight \[n, k\], then bias f32 \[1, n\] if `bias`, then residual f32 \[r, n\] if
    /// `residual`) → f32 \[r, n\]: x times the weight transposed, plus bias, plus residual.
    Linear {
        /// A bias operand is given.
        bias: bool,
        /// A residual operand is given.
        residual: bool,
    },
    /// (x f32 \[r, k\], weight \[n, k\]) → f32 \[r, n\]: the LM head. Like [`Op::Linear`], but where a backend
    /// quantises activations, it uses two int8 terms (the second encodes the first's rounding error), because no later layer
    /// can absorb the error.
    LmHead,
    /// (positions i32 \[r, 1\], optionally frequency factors f32 \[1, rotary_dim / 2\]) → f32 \[r, rotary_dim\]: the
    /// cosines of all angles, then the sines.
    RopeTable(RopeTable),
    /// (x f32 \[r, heads * head_dim\], table f32 \[r, rotary_dim\]) → the same shape: the first `rotary_dim` elements of
    /// each head rotated by the table's angles.
    Rope {
        /// Heads in a row.
        heads: usize,
        /// Elements of a head.
        head_dim: usize,
        /// Which elements are paired.
        layout: RopeLayout,
    },
    /// (x f32 \[r, heads * head_dim\]) → the same shape: each head is split into runs of the largest power of two n that divides
    /// `head_dim`, and each run is multiplied by the Walsh-Hadamard matrix in Sylvester's order over √n. It keeps dot products, is
    /// its own inverse, and spreads outliers over all elements, so that a quant block loses less (QuaRot, arXiv 2404.00456).
    Hadamard {
        /// Heads in a row.
        heads: usize,
        /// Elements of a head.
        head_dim: usize,
    },
    /// (state, k f32 \[r, kv_heads * head_dim\], v likewise, cells i32 \[r, 1\]) → the state's next version, with
    /// each row's K and V stored in its cell.
    KvWrite {
        /// KV heads.
        kv_heads: usize,
        /// Elements of a head.
        head_dim: usize,
    },
    /// (q f32 \[r, heads * head_dim\], state, positions i32 \[r, 1\], sequences i32 \[r, 1\], pages i32 \[sequences, pages of
    /// one\], then tree_starts i32 \[r, 1\] and paths i32 \[r, depth\] if `paths`, then valid_from i32 \[r, 1\] if `valid_from`,
    /// then sinks f32 \[1, heads\] if `sinks`) → f32 \[r, heads * head_dim\]: every row attends to the positions of its window, from
    /// its `valid_from` on (from its own position if `valid_from` is after it), up to its own, whose K and V lie in the cells of its sequence's pages. With `paths`, K and V of position `tree_start + j` (tokens in flight) are read from the j-th cell of
    /// the row's path; positions below `tree_start` are read from the pages. A row without a path has a tree start above its
    /// position. The result is bit-identical to that of the same K and V in the pages.
    Attention(Attention),
    /// (state, cells i32 \[r, 1\]) → f32 \[r, 2 * kv_heads * head_dim\]: the K, then the V, that each row's cell holds; zeros where
    /// the cell is -1.
    KvRead {
        /// KV heads.
        kv_heads: usize,
        /// Elements of a head.
        head_dim: usize,
    },
    /// (`parts` times f32, all of the same rows) → f32: their columns, one after the other (ggml: `concat`).
    Concat {
        /// The number of operands.
        parts: usize,
    },
    /// (logits f32 \[r, n\], token ids i32 \[1, n\]) → f32 \[r, vocabulary\]: the logits in the columns of their tokens, and -∞ in
    /// all others. No id occurs twice.
    ScatterLogits {
        /// Columns of the result.
        vocabulary: usize,
    },
    /// (logits f32 \[r, experts\], then bias f32 \[1, experts\] if `bias`) → i32 \[r, used\]: the experts with the
    /// largest logits, best first; ties go to the lower id. With a bias, those with the largest score
    /// plus bias.
    MoeTopK {
        /// Experts per row.
        used: usize,
        /// How scores are computed, if there is a bias.
        gating: Gating,
        /// A bias operand is given. It only affects the selection, not the weights.
        bias: bool,
    },
    /// (logits f32 \[r, experts\], expert ids i32 \[r, used\]) → f32 \[r, used\]: the weight of each selected expert.
    MoeWeights(Router),
    /// (x f32 \[r, k\] or \[r, used * k\], weight \[experts * n, k\], expert ids i32 \[r, used\], then bias f32 \[1, experts * n\]
    /// if `bias`) → f32 \[r, used * n\]: for each selected expert, x or its slice of x, times the expert's rows of the weight, plus
    /// the expert's slice of the bias (ggml: `mul_mat_id`).
    MoeLinear {
        /// Experts whose matrices are stacked in the weight.
        experts: usize,
        /// A bias operand is given.
        bias: bool,
    },
    /// (x f32 \[r, used * n\], weights f32 \[r, used\]) → f32 \[r, n\]: the weighted sum of the slices of x,
    /// in order.
    MoeCombine,
    /// (gate f32 \[r, 1\], x f32 \[r, n\]) → f32 \[r, n\]: sigmoid(gate) * x.
    RowGate,
    /// (x f32 \[r, heads * width\]) → f32 \[r, heads * cols\]: the columns `start..start + cols` of every head.
    HeadColumns {
        /// Equal parts of a row.
        heads: usize,
        /// The first column taken of each.
        start: usize,
        /// Columns taken of each.
        cols: usize,
    },
    /// (x f32 \[r, n\], weight f32 \[1, n * kernel\], state, read slots i32 \[r, 1\], write slots i32 \[r, 1\]) → f32
    /// \[r, n\]: silu of each channel's last `kernel` inputs, the row's own being the last, times the channel's `kernel`
    /// weights. The inputs before the row's own come from the row's read slot of the state (zeros where it is -1), and
    /// what the next row needs goes to its write slot. Rows are computed in order, so a row may read what an earlier row wrote.
    ShortConv {
        /// Inputs that an output is computed from.
        kernel: usize,
    },
    /// (queries, keys and values f32 \[r, columns\], alpha f32 \[r, value_heads\], beta likewise, bias f32 \[1, value_heads\]
    /// (`ssm_dt.bias`), rate f32 likewise (`ssm_a`, -exp(A_log)), state, read slots i32 \[r, 1\], write slots i32 \[r, 1\]) → f32
    /// \[r, value_heads * value_dim\]: the gated delta rule (arXiv 2412.06464). In each head, with S the key_dim by value_dim state
    /// from the row's read slot (zeros where it is -1), q and k first L2-normalised (x / √(Σ x² + 1e-6)), and q then
    /// divided by √key_dim: S ← S · exp(rate ·
    /// softplus(alpha + bias)); S ← S + k (sigmoid(beta) · (v - kᵀS)); result: qᵀS. The new S goes to the row's write slot. Rows
    /// are computed in order, so a row may read what one before it has written.
    GatedDelta(DeltaHeads),
    /// (gate f32 \[r, n\], up f32 \[r, n\]) → f32 \[r, n\]: activation(gate) * up.
    Glu {
        /// The activation.
        activation: Activation,
    },
    /// (a f32 \[r, n\], b f32 \[r, n\]) → a + b.
    Add,
    /// (a f32 \[r, n\], b f32 \[r, n\]) → a * b.
    Mul,
    /// (x f32 \[r, n\]) → x * factor.
    Scale {
        /// The factor.
        factor: F32Bits,
    },
    /// (x f32 \[r, n\]) → cap * tanh(x / cap).
    Softcap {
        /// Upper bound of the result's magnitude.
        cap: F32Bits,
    },
    /// (x f32 \[rows, n\], indices i32 \[output_rows, 1\]) → f32 \[output_rows, n\]: the rows with these indices (ggml:
    /// `get_rows`).
    GatherRows,
    /// (logits f32 \[r, n\], samplers i32 \[r, [`ROW_WORDS`](verbatim_sample::ROW_WORDS)\], masks i32 \[r, ⌈n / 32⌉\]) → i32
    /// \[r, [`parts`](verbatim_sample::parts) * [`PART_WORDS`](verbatim_sample::PART_WORDS)\]: what
    /// [`sample_part`](verbatim_sample::sample_part) finds in each part of a row. A mask has a bit for each token that may be
    /// sampled, 32 to a word.
    SampleParts,
    /// (samplers i32 \[r, [`ROW_WORDS`](verbatim_sample::ROW_WORDS)\], parts i32, the result of [`Op::SampleParts`]) → i32 \[r,
    /// 1\]: the token of each row, by [`merge_parts`](verbatim_sample::merge_parts); -1 if there is none.
    SampleMerge,
}

impl Operands<'_> {
    /// The shape of q, which the result of attention has too.
    pub fn attention(&self, attention: Attention) -> Result<Shape, String> {
        let Attention { heads, kv_heads, head_dim, window, softcap, sinks, paths, valid_from, .. } =
            attention;
        let sinks_at = attention.sinks_operand();
        self.count(sinks_at + usize::from(sinks))?;
        let q = self.f32(0)?;
        self.is_heads(0, heads, head_dim)?;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(format!("{heads} heads are not a multiple of {kv_heads} KV heads"));
        }
        if window == Some(0) {
            return Err("a window of 0 positions leaves nothing to attend to".into());
        }
        if let Some(cap) = softcap {
            is_cap(cap)?;
        }
        if sinks {
            self.is_f32(sinks_at, Shape::fixed(1, heads))?;
        }
        if paths {
            self.same_rows(self.ids(5)?, q.rows)?;
            self.ids_per_row(6, q.rows)?;
        }
        if valid_from {
            self.same_rows(self.ids(attention.valid_from_operand())?, q.rows)?;
        }
        self.same_rows(self.ids(2)?, q.rows)?;
        self.same_rows(self.ids(3)?, q.rows)?;
        self.dtype(4, DType::I32)?;
        self.fixed_rows(4)?;
        Ok(q)
    }
}

/// What an op does to a state.
#[derive(Clone, Copy)]
enum StateUse {
    /// Writes to this operand and returns its next version.
    Store(usize),
    /// Updates this operand in place like `Store`, but returns a computed value instead of the next version.
    Advance(usize),
}

impl StateUse {
    fn operand(self) -> usize {
        match self {
            StateUse::Store(operand) | StateUse::Advance(operand) => operand,
        }
    }
}

/// Op properties besides shape inference.
struct Traits {
    state: Option<StateUse>,
    /// The weight operand that is not a vector.
    weight: Option<(usize, WeightKind)>,
}

impl Op {
    fn traits(&self) -> Traits {
        let traits = |state, weight| Traits { state, weight };
        match *self {
            Op::Embed { .. } => traits(None, Some((0, WeightKind::Matrix))),
            Op::Linear { .. } | Op::LmHead => traits(None, Some((1, WeightKind::Matrix))),
            Op::MoeLinear { experts, .. } => traits(None, Some((1, WeightKind::Experts(experts)))),
            Op::KvWrite { .. } => traits(Some(StateUse::Store(0)), None),
            Op::ShortConv { .. } => traits(Some(StateUse::Advance(2)), None),
            Op::GatedDelta(_) => traits(Some(StateUse::Advance(5)), None),
            Op::RmsNorm { .. }
            | Op::RopeTable(_)
            | Op::Rope { .. }
            | Op::Hadamard { .. }
            | Op::Attention(_)
            | Op::KvRead { .. }
            | Op::Concat { .. }
            | Op::ScatterLogits { .. }
            | Op::MoeTopK { .. }
            | Op::MoeWeights(_)
            | Op::MoeCombine
            | Op::RowGate
            | Op::HeadColumns { .. }
            | Op::Glu { .. }
            | Op::Add
            | Op::Mul
            | Op::Scale { .. }
            | Op::Softcap { .. }
            | Op::GatherRows
            | Op::SampleParts
            | Op::SampleMerge => traits(None, None),
        }
    }

    /// The kind of a weight operand.
    pub fn weight_kind(&self, operand: usize) -> WeightKind {
        self.traits().weight.filter(|(of, _)| *of == operand).map_or(WeightKind::Vector, |(_, kind)| kind)
    }
}

impl OpRules for Op {
    fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "Embed",
            Op::RmsNorm { .. } => "RmsNorm",
            Op::Linear { .. } => "Linear",
            Op::LmHead => "LmHead",
            Op::RopeTable(_) => "RopeTable",
            Op::Rope { .. } => "Rope",
            Op::Hadamard { .. } => "Hadamard",
            Op::KvWrite { .. } => "KvWrite",
            Op::Attention(_) => "Attention",
            Op::KvRead { .. } => "KvRead",
            Op::Concat { .. } => "Concat",
            Op::ScatterLogits { .. } => "ScatterLogits",
            Op::MoeTopK { .. } => "MoeTopK",
            Op::MoeWeights(_) => "MoeWeights",
            Op::MoeLinear { .. } => "MoeLinear",
            Op::MoeCombine => "MoeCombine",
            Op::RowGate => "RowGate",
            Op::HeadColumns { .. } => "HeadColumns",
            Op::ShortConv { .. } => "ShortConv",
            Op::GatedDelta(_) => "GatedDelta",
            Op::Glu { .. } => "Glu",
            Op::Add => "Add",
            Op::Mul => "Mul",
            Op::Scale { .. } => "Scale",
            Op::Softcap { .. } => "Softcap",
            Op::GatherRows => "GatherRows",
            Op::SampleParts => "SampleParts",
            Op::SampleMerge => "SampleMerge",
        }
    }

    fn writes_state(&self) -> Option<usize> {
        self.traits().state.map(StateUse::operand)
    }

    fn returns_state(&self) -> bool {
        matches!(self.traits().state, Some(StateUse::Store(_)))
    }

    fn infer(&self, operands: &[&Value]) -> Result<(DType, Shape), String> {
        let rule = Operands::new(operands);
        match *self {
            Op::Embed { has_embeddings, .. } => {
                rule.count(2 + usize::from(has_embeddings))?;
                let rows = rule.ids(1)?;
                rule.fixed_rows(0)?;
                let shape = Shape { rows, cols: rule.cols(0) };
                if has_embeddings {
                    rule.is_f32(2, shape)?;
                }
                Ok((DType::F32, shape))
            }
            Op::RmsNorm { groups, .. } => {
                rule.count(2)?;
                let shape = rule.f32(0)?;
                if groups == 0 || !shape.cols.is_multiple_of(groups) {
                    return Err(format!("{} columns do not divide into {groups} groups", shape.cols));
                }
                rule.is_f32(1, Shape::fixed(1, shape.cols / groups))?;
                Ok((DType::F32, shape))
            }
            Op::Linear { bias, residual } => {
                let x = rule.f32(0)?;
                rule.linear(x.rows, x.cols, bias, residual)
            }
            Op::LmHead => {
                let x = rule.f32(0)?;
                rule.linear(x.rows, x.cols, false, false)
            }
            Op::RopeTable(table) => {
                rule.at_least(1)?;
                let rows = rule.ids(0)?;
                if !table.rotary_dim.is_multiple_of(2) || table.rotary_dim == 0 {
                    return Err(format!("{} rotated elements are not pairs", table.rotary_dim));
                }
                match operands.len() {
                    1 => {}
                    2 => rule.is_f32(1, Shape::fixed(1, table.rotary_dim / 2))?,
                    n => return Err(format!("takes 1 or 2 operands, not {n}")),
                }
                Ok((DType::F32, Shape { rows, cols: table.rotary_dim }))
            }
            Op::Rope { heads, head_dim, .. } => {
                rule.count(2)?;
                let x = rule.f32(0)?;
                let table = rule.f32(1)?;
                rule.is_heads(0, heads, head_dim)?;
                if table.rows != x.rows || table.cols > head_dim {
                    return Err(format!("table {table} does not fit x {x} with heads of {head_dim}"));
                }
                Ok((DType::F32, x))
            }
            Op::Hadamard { heads, head_dim } => {
                rule.count(1)?;
                let x = rule.f32(0)?;
                rule.is_heads(0, heads, head_dim)?;
                if head_dim == 0 {
                    return Err("heads of no elements cannot be transformed".into());
                }
                Ok((DType::F32, x))
            }
            Op::KvWrite { kv_heads, head_dim } => {
                rule.count(4)?;
                let k = rule.f32(1)?;
                rule.is_heads(1, kv_heads, head_dim)?;
                rule.is_f32(2, k)?;
                rule.same_rows(rule.ids(3)?, k.rows)?;
                Ok((operands[0].dtype, operands[0].shape))
            }
            Op::Attention(attention) => Ok((DType::F32, rule.attention(attention)?)),
            Op::KvRead { kv_heads, head_dim } => {
                rule.count(2)?;
                let rows = rule.ids(1)?;
                match kv_heads.checked_mul(head_dim).and_then(|width| width.checked_mul(2)) {
                    Some(cols) if cols > 0 => Ok((DType::F32, Shape { rows, cols })),
                    _ => Err(format!("a cell of {kv_heads} heads of {head_dim} elements cannot be read")),
                }
            }
            Op::Concat { parts } => {
                rule.count(parts)?;
                let mut shape = rule.f32(0)?;
                for operand in 1..operands.len() {
                    let more = rule.f32(operand)?;
                    rule.same_rows(more.rows, shape.rows)?;
                    let cols = shape.cols.checked_add(more.cols);
                    shape.cols = cols.ok_or_else(|| format!("operand {operand} has too many columns"))?;
                }
                Ok((DType::F32, shape))
            }
            Op::ScatterLogits { vocabulary } => {
                rule.count(2)?;
                let logits = rule.f32(0)?;
                rule.ids_of(1, Shape::fixed(1, logits.cols))?;
                match logits.cols <= vocabulary {
                    true => Ok((DType::F32, Shape { cols: vocabulary, ..logits })),
                    false => Err(format!("{} columns do not fit into {vocabulary}", logits.cols)),
                }
            }
            Op::MoeTopK { used, bias, .. } => {
                rule.count(1 + usize::from(bias))?;
                let logits = rule.f32(0)?;
                if used == 0 || used > logits.cols.min(MAX_EXPERTS_USED) {
                    let max = logits.cols.min(MAX_EXPERTS_USED);
                    return Err(format!("{used} of {} experts are used, not 1 to {max}", logits.cols));
                }
                if bias {
                    rule.is_f32(1, Shape::fixed(1, logits.cols))?;
                }
                Ok((DType::I32, Shape { rows: logits.rows, cols: used }))
            }
            Op::MoeWeights(_) => {
                rule.count(2)?;
                let logits = rule.f32(0)?;
                let used = rule.ids_per_row(1, logits.rows)?;
                Ok((DType::F32, Shape { rows: logits.rows, cols: used }))
            }
            Op::MoeLinear { experts, bias } => {
                let x = rule.f32(0)?;
                rule.expert_linear(x.rows, x.cols, experts, bias)
            }
            Op::MoeCombine => {
                rule.count(2)?;
                let (x, weights) = (rule.f32(0)?, rule.f32(1)?);
                rule.same_rows(weights.rows, x.rows)?;
                if weights.cols == 0 || !x.cols.is_multiple_of(weights.cols) {
                    return Err(format!("{} columns do not divide into {} parts", x.cols, weights.cols));
                }
                Ok((DType::F32, Shape { rows: x.rows, cols: x.cols / weights.cols }))
            }
            Op::RowGate => {
                rule.count(2)?;
                let x = rule.f32(1)?;
                rule.is_f32(0, Shape { rows: x.rows, cols: 1 })?;
                Ok((DType::F32, x))
            }
            Op::HeadColumns { heads, start, cols } => {
                rule.count(1)?;
                let x = rule.f32(0)?;
                let fits = heads > 0
                    && x.cols.is_multiple_of(heads)
                    && start.checked_add(cols).is_some_and(|end| end <= x.cols / heads);
                if !fits {
                    return Err(format!(
                        "columns {start} to {start}+{cols} are not within each of {heads} heads of {x}"
                    ));
                }
                Ok((DType::F32, Shape { rows: x.rows, cols: heads * cols }))
            }
            Op::ShortConv { kernel } => {
                rule.count(5)?;
                let x = rule.f32(0)?;
                rule.same_rows(x.rows, Extent::Rows)?;
                if kernel == 0 || x.cols.checked_mul(kernel) != Some(rule.f32(1)?.cols) {
                    return Err(format!(
                        "weight {} does not have {kernel} elements for each column of {x}",
                        rule.shape(1)
                    ));
                }
                rule.same_rows(rule.shape(1).rows, Extent::Fixed(1))?;
                rule.same_rows(rule.ids(3)?, x.rows)?;
                rule.same_rows(rule.ids(4)?, x.rows)?;
                Ok((DType::F32, x))
            }
            Op::GatedDelta(heads) => {
                rule.count(8)?;
                let x = rule.f32(0)?;
                rule.same_rows(x.rows, Extent::Rows)?;
                let DeltaHeads { key_heads, value_heads, value_dim, .. } = heads;
                if heads.columns() != Some(x.cols) || x.cols == 0 {
                    return Err(format!("{x} does not have the columns of {heads:?}"));
                }
                if key_heads == 0 || !value_heads.is_multiple_of(key_heads) {
                    return Err(format!("{value_heads} value heads are not a multiple of {key_heads}"));
                }
                for gate in [1, 2] {
                    rule.is_f32(gate, Shape { rows: x.rows, cols: value_heads })?;
                }
                for weight in [3, 4] {
                    rule.is_f32(weight, Shape::fixed(1, value_heads))?;
                }
                rule.same_rows(rule.ids(6)?, x.rows)?;
                rule.same_rows(rule.ids(7)?, x.rows)?;
                Ok((DType::F32, Shape { rows: x.rows, cols: value_heads * value_dim }))
            }
            Op::Glu { .. } | Op::Add | Op::Mul => {
                rule.count(2)?;
                let shape = rule.f32(0)?;
                rule.is_f32(1, shape)?;
                Ok((DType::F32, shape))
            }
            Op::Softcap { cap } => {
                rule.count(1)?;
                is_cap(cap)?;
                Ok((DType::F32, rule.f32(0)?))
            }
            Op::Scale { .. } => {
                rule.count(1)?;
                Ok((DType::F32, rule.f32(0)?))
            }
            Op::GatherRows => {
                rule.count(2)?;
                let x = rule.f32(0)?;
                rule.same_rows(x.rows, Extent::Rows)?;
                rule.same_rows(rule.ids(1)?, Extent::OutputRows)?;
                Ok((DType::F32, Shape::per_output_row(x.cols)))
            }
            Op::SampleParts => {
                rule.count(3)?;
                let logits = rule.f32(0)?;
                let rows = logits.rows;
                rule.ids_of(1, Shape { rows, cols: verbatim_sample::ROW_WORDS })?;
                rule.ids_of(2, Shape { rows, cols: logits.cols.div_ceil(32) })?;
                match verbatim_sample::parts(logits.cols).checked_mul(verbatim_sample::PART_WORDS) {
                    Some(cols) if cols > 0 => Ok((DType::I32, Shape { rows, cols })),
                    _ => Err(format!(
                        "logits {logits}: there must be at least one column, and not more than can be addressed"
                    )),
                }
            }
            Op::SampleMerge => {
                rule.count(2)?;
                let parts = rule.shape(1);
                rule.dtype(1, DType::I32)?;
                rule.ids_of(0, Shape { rows: parts.rows, cols: verbatim_sample::ROW_WORDS })?;
                if parts.cols == 0 || !parts.cols.is_multiple_of(verbatim_sample::PART_WORDS) {
                    return Err(format!(
                        "{parts} does not have a whole number of part results ({} words each)",
                        verbatim_sample::PART_WORDS
                    ));
                }
                Ok((DType::I32, Shape { rows: parts.rows, cols: 1 }))
            }
        }
    }
}
