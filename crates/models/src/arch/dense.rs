//! What most architectures share: a stack of layers, each attention and then an FFN, dense or MoE, both
//! reading the residual stream and adding to it. An architecture's own file defines its differences as a
//! [`Variant`].

use crate::ffn::{Ffn, FfnShape};
use crate::follow;
use crate::graph_context::{AttentionParams, GraphContext, LogitScaling};
use crate::metadata::{LayerPattern, MetadataReader};
use crate::table::{Linear, Table, WeightId};
use crate::{
    Follower, HiddenOutput, Hyperparameters, KeyRope, KvShape, Model, ModelError, SharedWeights, StepShape,
    WeightSpec,
};
use verbatim_gguf::GgufFile;
use verbatim_graph::{Activation, F32Bits, Graph, GraphError, RopeLayout, RopeScaling, RopeTable, ValueId};

/// The differences between these architectures. [`Variant::new`] is Llama's.
pub(super) struct Variant {
    pub(super) rope_layout: RopeLayout,
    /// Whether a layer has RoPE.
    pub(super) uses_rope: fn(usize) -> bool,
    pub(super) qk_norms: QkNorms,
    pub(super) norms: Norms,
    /// Name of the FFN norm tensor.
    pub(super) ffn_norm: &'static str,
    pub(super) ffn: FfnShape,
    pub(super) activation: Activation,
    /// Round YaRN's correction range outwards to integers.
    pub(super) yarn_truncate: bool,
    /// Factor on the embeddings.
    pub(super) embedding_scale: f32,
    /// Factor on the attention's scores; 1/√head_dim if `None`.
    pub(super) attention_scale: Option<f32>,
    /// Factor on what a sub-block (attention or FFN) adds to the residual stream.
    pub(super) residual_scale: f32,
    pub(super) attention_softcap: Option<F32Bits>,
    /// Attention sinks.
    pub(super) sinks: bool,
    pub(super) logits: LogitScaling,
    pub(super) sliding_window: Option<SlidingWindow>,
}

/// QK norm, before RoPE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QkNorms {
    None,
    /// Each head separately.
    Heads,
    /// All heads of a row together.
    Rows,
}

/// Pre-norm or post-norm.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    /// Pre-norm.
    Pre,
    /// Post-norm.
    Post,
    /// Both (sandwich norm).
    Sandwich,
}

/// Layers with sliding-window attention.
pub(super) struct SlidingWindow {
    /// Positions in the window, the row's own included.
    pub(super) window: usize,
    pub(super) layers: LayerPattern,
    /// Their RoPE, if it differs from that of the full-attention layers.
    pub(super) rope: Option<RopeTable>,
}

impl Variant {
    pub(super) fn new(rope_layout: RopeLayout, ffn: FfnShape) -> Variant {
        Variant {
            rope_layout,
            uses_rope: |_| true,
            qk_norms: QkNorms::None,
            norms: Norms::Pre,
            ffn_norm: "ffn_norm",
            ffn,
            activation: Activation::Silu,
            yarn_truncate: true,
            embedding_scale: 1.0,
            attention_scale: None,
            residual_scale: 1.0,
            attention_softcap: None,
            sinks: false,
            logits: LogitScaling::default(),
            sliding_window: None,
        }
    }
}

pub(super) struct Dense {
    hyperparameters: Hyperparameters,
    specs: Vec<WeightSpec>,
    variant: Variant,
    params: AttentionParams,
    eps: F32Bits,
    rope: RopeTable,
    freq_factors: FreqFactors,
    embedding: WeightId,
    layers: Vec<Layer>,
    norm: WeightId,
    lm_head: Linear,
}

/// RoPE frequency factors.
enum FreqFactors {
    None,
    Fixed(WeightId),
    /// LongRoPE: short or long factors, by the context size.
    ByContext {
        short: WeightId,
        long: WeightId,
        original_context: usize,
    },
}

struct Layer {
    attention_norms: LayerNorms,
    qkv: Qkv,
    qk_norms: Option<[WeightId; 2]>,
    sinks: Option<WeightId>,
    attention_output: Linear,
    ffn_norms: LayerNorms,
    ffn: Ffn,
}

/// The norms of one sub-block (attention or FFN).
struct LayerNorms {
    before: Option<WeightId>,
    after: Option<WeightId>,
}

enum Qkv {
    Separate([Linear; 3]),
    Fused(Linear),
}

impl Dense {
    pub(super) fn open(
        file: &GgufFile,
        keys: &MetadataReader<'_>,
        variant: Variant,
    ) -> Result<Box<dyn Model>, ModelError> {
        let hyperparameters = keys.hyperparameters(file)?;
        let Hyperparameters { layers, hidden, vocabulary, ref architecture, .. } = hyperparameters;
        let (heads, kv_heads, head_dim) = keys.heads(hidden)?;
        let params = AttentionParams {
            scale: F32Bits(variant.attention_scale.unwrap_or(1.0 / (head_dim as f32).sqrt())),
            softcap: variant.attention_softcap,
            ..AttentionParams::new(heads, kv_heads, head_dim, variant.rope_layout)
        };
        let mut rope = keys.rope(head_dim)?;
        if let RopeScaling::Yarn { truncate, .. } = &mut rope.scaling {
            *truncate = variant.yarn_truncate;
        }

        let mut table = Table::new(file);
        let embedding = table.matrix("token_embd.weight", vocabulary, hidden)?;
        let freq_factors = FreqFactors::open(&mut table, keys, &mut rope)?;
        let norm = table.vector("output_norm.weight", hidden)?;
        // Without a separate LM head, the embeddings are tied.
        let tied = !table.has("output.weight");
        let lm_head = match tied {
            true => Linear { weight: embedding, bias: None, scale: F32Bits(1.0) },
            false => table.unbiased_linear("output", vocabulary, hidden)?,
        };
        let layers = (0..layers).map(|layer| Layer::open(&mut table, layer, hidden, params, &variant));
        let layers = layers.collect::<Result<_, _>>()?;
        let specs = table.finish(architecture, |_| false)?;
        let eps = keys.rms_epsilon()?;
        Ok(Box::new(Dense {
            hyperparameters,
            specs,
            variant,
            params,
            eps,
            rope,
            freq_factors,
            embedding,
            layers,
            norm,
            lm_head,
        }))
    }
}

impl FreqFactors {
    /// Many LongRoPE files are marked only by the presence of these tensors, others by `rope.scaling.type`: both are recognised.
    fn open(
        table: &mut Table<'_>,
        keys: &MetadataReader<'_>,
        rope: &mut RopeTable,
    ) -> Result<FreqFactors, ModelError> {
        let pairs = rope.rotary_dim / 2;
        let long = "rope_factors_long.weight";
        if !table.has(long) && !matches!(rope.scaling, RopeScaling::Long { .. }) {
            let fixed = table.optional_vector("rope_freqs.weight", pairs)?;
            return Ok(fixed.map_or(FreqFactors::None, FreqFactors::Fixed));
        }
        let original_context = keys.require_count("rope.scaling.original_context_length")?;
        rope.scaling = keys.long_rope()?;
        Ok(FreqFactors::ByContext {
            short: table.vector("rope_factors_short.weight", pairs)?,
            long: table.vector(long, pairs)?,
            original_context,
        })
    }

    fn at(&self, context: usize) -> Option<WeightId> {
        match *self {
            FreqFactors::None => None,
            FreqFactors::Fixed(weight) => Some(weight),
            FreqFactors::ByContext { short, long, original_context } => {
                Some(if context > original_context { long } else { short })
            }
        }
    }
}

impl Layer {
    fn open(
        table: &mut Table<'_>,
        layer: usize,
        hidden: usize,
        params: AttentionParams,
        variant: &Variant,
    ) -> Result<Layer, ModelError> {
        let AttentionParams { heads, kv_heads, head_dim, .. } = params;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let fused_qkv = table.has(&name("attn_qkv"));
        let mut linear = |part: &str, rows, cols| -> Result<Linear, ModelError> {
            table.linear(&format!("blk.{layer}.{part}"), rows, cols)
        };
        let qkv = if fused_qkv {
            Qkv::Fused(linear("attn_qkv", q_width + 2 * kv_width, hidden)?)
        } else {
            Qkv::Separate([
                linear("attn_q", q_width, hidden)?,
                linear("attn_k", kv_width, hidden)?,
                linear("attn_v", kv_width, hidden)?,
            ])
        };
        let attention_output = linear("attn_output", hidden, q_width)?;
        let ffn = Ffn::open(table, layer, hidden, variant.ffn)?;
        let sinks = if variant.sinks { Some(table.vector(&name("attn_sinks"), heads)?) } else { None };
        let mut norms = |before: &str, after: &str| -> Result<LayerNorms, ModelError> {
            let mut norm = |part: &str, at: Norms| match variant.norms {
                norms if norms == at || norms == Norms::Sandwich => {
                    table.vector(&name(part), hidden).map(Some)
                }
                _ => Ok(None),
            };
            Ok(LayerNorms { before: norm(before, Norms::Pre)?, after: norm(after, Norms::Post)? })
        };
        let attention_norms = norms("attn_norm", "post_attention_norm")?;
        let ffn_norms = norms(variant.ffn_norm, "post_ffw_norm")?;
        let mut qk_norms = |q_len, k_len| -> Result<Option<[WeightId; 2]>, ModelError> {
            Ok(Some([table.vector(&name("attn_q_norm"), q_len)?, table.vector(&name("attn_k_norm"), k_len)?]))
        };
        let qk_norms = match variant.qk_norms {
            QkNorms::None => None,
            QkNorms::Heads => qk_norms(head_dim, head_dim)?,
            QkNorms::Rows => qk_norms(q_width, kv_width)?,
        };
        Ok(Layer { attention_norms, qkv, qk_norms, sinks, attention_output, ffn_norms, ffn })
    }
}

impl Model for Dense {
    fn hyperparameters(&self) -> &Hyperparameters {
        &self.hyperparameters
    }

    fn weights(&self) -> &[WeightSpec] {
        &self.specs
    }

    fn kv_shapes(&self, context: usize) -> Vec<KvShape> {
        let AttentionParams { kv_heads, head_dim, layout, .. } = self.params;
        let shape = |layer: usize| {
            let window = self.window(layer);
            let sliding = self.variant.sliding_window.as_ref().filter(|_| window.is_some());
            let (table, freq_factors) = match sliding.and_then(|sliding| sliding.rope) {
                Some(table) => (table, None),
                None => (self.rope, self.freq_factors.at(context).map(|weight| weight.0)),
            };
            let rope = (self.variant.uses_rope)(layer).then_some(KeyRope { table, layout, freq_factors });
            KvShape { kv_heads, head_dim, window, rope, is_row_memory: false }
        };
        (0..self.layers.len()).map(shape).collect()
    }

    fn shared_weights(&self) -> SharedWeights {
        self.lm_head.shared_with(self.embedding)
    }

    fn build(&self, shape: &StepShape, followers: &[Follower<'_>]) -> Result<Graph, GraphError> {
        let mut ctx = GraphContext::new(&self.specs, shape)?;
        let mut x = ctx.embed(self.embedding, self.variant.embedding_scale)?;
        let full_rope = ctx.rope_table(self.rope, self.freq_factors.at(shape.context))?;
        let sliding_rope = match self.variant.sliding_window.as_ref().and_then(|sliding| sliding.rope) {
            Some(table) => ctx.rope_table(table, None)?,
            None => full_rope,
        };
        for (index, layer) in self.layers.iter().enumerate() {
            let window = self.window(index);
            let rope = if window.is_some() { sliding_rope } else { full_rope };
            let uses_rope = (self.variant.uses_rope)(index);
            let params = AttentionParams { uses_rope, window, sinks: layer.sinks, ..self.params };
            x = self.residual_block(&mut ctx, &layer.attention_norms, x, |ctx, x| {
                let [q, k, v] = self.qkv(ctx, layer, x)?;
                let attended = ctx.attention(index, params, [q, k, v], rope)?;
                ctx.linear(attended, layer.attention_output)
            })?;
            x = self.residual_block(&mut ctx, &layer.ffn_norms, x, |ctx, x| {
                layer.ffn.build(ctx, x, self.variant.activation)
            })?;
            ctx.hidden_output(HiddenOutput::Layer(index as u32), x)?;
        }
        ctx.lm_head(x, self.norm, self.eps, self.lm_head, self.variant.logits)?;
        follow::finish(ctx, followers)
    }
}

impl Dense {
    /// The layer's sliding window; `None` for full attention.
    fn window(&self, layer: usize) -> Option<usize> {
        let sliding = self.variant.sliding_window.as_ref()?;
        sliding.layers.is_windowed(layer).then_some(sliding.window)
    }

    /// A sub-block (attention or FFN) with its pre- and post-norm, added to the residual stream.
    fn residual_block(
        &self,
        ctx: &mut GraphContext<'_>,
        norms: &LayerNorms,
        x: ValueId,
        sub_block: impl FnOnce(&mut GraphContext<'_>, ValueId) -> Result<ValueId, GraphError>,
    ) -> Result<ValueId, GraphError> {
        let read = match norms.before {
            Some(norm) => ctx.rms_norm(x, norm, self.eps, 1)?,
            None => x,
        };
        let mut output = sub_block(ctx, read)?;
        if let Some(norm) = norms.after {
            output = ctx.rms_norm(output, norm, self.eps, 1)?;
        }
        let output = ctx.scale(output, self.variant.residual_scale)?;
        ctx.add(x, output)
    }

    fn qkv(&self, ctx: &mut GraphContext<'_>, layer: &Layer, x: ValueId) -> Result<[ValueId; 3], GraphError> {
        let AttentionParams { heads, kv_heads, head_dim, .. } = self.params;
        let [mut q, mut k, v] = match layer.qkv {
            Qkv::Separate(linears) => ctx.linear_all(x, linears)?,
            Qkv::Fused(linear) => {
                let all = ctx.linear(x, linear)?;
                ctx.split(all, [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])?
            }
        };
        if let Some([q_norm, k_norm]) = layer.qk_norms {
            let by_head = self.variant.qk_norms == QkNorms::Heads;
            let groups = |heads| if by_head { heads } else { 1 };
            q = ctx.rms_norm(q, q_norm, self.eps, groups(heads))?;
            k = ctx.rms_norm(k, k_norm, self.eps, groups(kv_heads))?;
        }
        Ok([q, k, v])
    }
}
