//! What `qwen35` and `qwen35moe` share: recurrent layers, attention layers, and an FFN in each.
//!
//! A recurrent layer is a gated delta net (arXiv 2412.06464): a short convolution over queries, keys and values, the
//! delta rule, and a norm of each head's result that is gated by another projection of the layer's input. An attention
//! layer gates its result likewise; RoPE is partial. In the file a head's gate follows its
//! query, and the value heads are ordered so that head h uses key head h modulo the key heads.
//!
//! Multi-token-prediction layers, at the end of the stack, are ignored.

use crate::ffn::{Ffn, FfnShape};
use crate::follow;
use crate::graph_context::{AttentionParams, GraphContext, LogitScaling};
use crate::metadata::MetadataReader;
use crate::table::{Linear, Table, WeightId};
use crate::{
    Follower, HiddenOutput, Hyperparameters, KeyRope, KvShape, Model, ModelError, RecurrentShape,
    SharedWeights, StepShape, WeightSpec,
};
use verbatim_gguf::GgufFile;
use verbatim_graph::{
    Activation, DeltaHeads, F32Bits, Graph, GraphError, Op, RopeLayout, RopeTable, ValueId,
};

/// One layer in this many is an attention layer, unless the file specifies otherwise.
const ATTENTION_INTERVAL: usize = 4;

pub(super) struct Hybrid {
    hyperparameters: Hyperparameters,
    specs: Vec<WeightSpec>,
    params: AttentionParams,
    delta: RecurrentShape,
    eps: F32Bits,
    rope: RopeTable,
    embedding: WeightId,
    layers: Vec<Layer>,
    norm: WeightId,
    lm_head: Linear,
}

struct Layer {
    norm: WeightId,
    mixer: Mixer,
    ffn_norm: WeightId,
    ffn: Ffn,
}

/// Token mixer of a layer.
enum Mixer {
    Attention(Attention),
    Delta(DeltaNet),
}

struct Attention {
    /// Of each head the query, then the gate.
    query_and_gate: Linear,
    key: Linear,
    value: Linear,
    head_norms: [WeightId; 2],
    output: Linear,
}

struct DeltaNet {
    qkv: Linear,
    gate: Linear,
    alpha: Linear,
    beta: Linear,
    convolution: WeightId,
    /// The bias of alpha, and the (negative) rate of decay.
    decay: [WeightId; 2],
    norm: WeightId,
    output: Linear,
}

impl Hybrid {
    pub(super) fn open(
        file: &GgufFile,
        keys: &MetadataReader<'_>,
        ffn: FfnShape,
    ) -> Result<Box<dyn Model>, ModelError> {
        let mut hyperparameters = keys.hyperparameters(file)?;
        let all_layers = hyperparameters.layers;
        let mtp_layers = keys.optional_usize("nextn_predict_layers")?.unwrap_or(0);
        if mtp_layers >= all_layers {
            let expected = format!("fewer than the {all_layers} of block_count");
            return Err(keys.wrong("nextn_predict_layers", mtp_layers, expected));
        }
        hyperparameters.layers = all_layers - mtp_layers;
        let Hyperparameters { layers, hidden, vocabulary, ref architecture, .. } = hyperparameters;
        let (heads, kv_heads, head_dim) = keys.heads(hidden)?;
        let params = AttentionParams::new(heads, kv_heads, head_dim, RopeLayout::NeoX);
        let delta = delta_shape(keys)?;
        let kinds = LayerKinds::new(keys, all_layers)?;

        let mut table = Table::new(file);
        let embedding = table.matrix("token_embd.weight", vocabulary, hidden)?;
        let norm = table.vector("output_norm.weight", hidden)?;
        // Without a separate LM head, the embeddings are tied.
        let tied = !table.has("output.weight");
        let lm_head = match tied {
            true => Linear { weight: embedding, bias: None, scale: F32Bits(1.0) },
            false => table.unbiased_linear("output", vocabulary, hidden)?,
        };
        let mut opened = Vec::new();
        for layer in 0..layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            opened.push(Layer {
                norm: table.vector(&name("attn_norm.weight"), hidden)?,
                mixer: if kinds.is_recurrent(layer) {
                    Mixer::Delta(DeltaNet::open(&mut table, name, hidden, delta)?)
                } else {
                    Mixer::Attention(Attention::open(&mut table, name, hidden, params)?)
                },
                ffn_norm: table.vector(&name("post_attention_norm.weight"), hidden)?,
                ffn: Ffn::open(&mut table, layer, hidden, ffn)?,
            });
        }
        let specs = table.finish(architecture, |name| layer_of(name).is_some_and(|layer| layer >= layers))?;
        let (eps, rope) = (keys.rms_epsilon()?, keys.rope(head_dim)?);
        Ok(Box::new(Hybrid {
            hyperparameters,
            specs,
            params,
            delta,
            eps,
            rope,
            embedding,
            layers: opened,
            norm,
            lm_head,
        }))
    }
}

/// The layer that a tensor belongs to.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

fn delta_shape(keys: &MetadataReader<'_>) -> Result<RecurrentShape, ModelError> {
    let (key_heads, value_heads) =
        (keys.require_count("ssm.group_count")?, keys.require_count("ssm.time_step_rank")?);
    let (key_dim, width) = (keys.require_count("ssm.state_size")?, keys.require_count("ssm.inner_size")?);
    if !value_heads.is_multiple_of(key_heads) {
        let expected = format!("a multiple of the {key_heads} of ssm.group_count");
        return Err(keys.wrong("ssm.time_step_rank", value_heads, expected));
    }
    if !width.is_multiple_of(value_heads) {
        let expected = format!("a multiple of the {value_heads} of ssm.time_step_rank");
        return Err(keys.wrong("ssm.inner_size", width, expected));
    }
    let heads = DeltaHeads { key_heads, value_heads, key_dim, value_dim: width / value_heads };
    if heads.columns().is_none_or(|columns| columns > 1 << 24) {
        return Err(keys.wrong("ssm.state_size", key_dim, format!("smaller, with {key_heads} heads")));
    }
    Ok(RecurrentShape { kernel: keys.require_count("ssm.conv_kernel")?, heads })
}

/// Which layers are recurrent: a list from the file, or all but every n-th.
enum LayerKinds {
    Listed(Vec<bool>),
    Interval(usize),
}

impl LayerKinds {
    fn new(keys: &MetadataReader<'_>, all_layers: usize) -> Result<LayerKinds, ModelError> {
        let name = "attention.recurrent_layers";
        match keys.optional_bools(name)? {
            Some(listed) if listed.len() == all_layers => Ok(LayerKinds::Listed(listed)),
            Some(listed) => {
                let (found, expected) = (listed.len(), format!("{all_layers}, as block_count"));
                Err(keys.wrong(name, format!("a list of {found}"), expected))
            }
            None => {
                let interval = keys.optional_count("full_attention_interval")?;
                Ok(LayerKinds::Interval(interval.unwrap_or(ATTENTION_INTERVAL)))
            }
        }
    }

    fn is_recurrent(&self, layer: usize) -> bool {
        match self {
            LayerKinds::Listed(listed) => listed[layer],
            LayerKinds::Interval(interval) => !(layer + 1).is_multiple_of(*interval),
        }
    }
}

impl Attention {
    fn open(
        table: &mut Table<'_>,
        name: impl Fn(&str) -> String,
        hidden: usize,
        params: AttentionParams,
    ) -> Result<Attention, ModelError> {
        let AttentionParams { heads, kv_heads, head_dim, .. } = params;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let mut linear = |part: &str, rows, cols| table.unbiased_linear(&name(part), rows, cols);
        Ok(Attention {
            query_and_gate: linear("attn_q", 2 * q_width, hidden)?,
            key: linear("attn_k", kv_width, hidden)?,
            value: linear("attn_v", kv_width, hidden)?,
            output: linear("attn_output", hidden, q_width)?,
            head_norms: [
                table.vector(&name("attn_q_norm.weight"), head_dim)?,
                table.vector(&name("attn_k_norm.weight"), head_dim)?,
            ],
        })
    }

    /// `index` counts the attention layers.
    fn build(
        &self,
        ctx: &mut GraphContext<'_>,
        index: usize,
        model: &Hybrid,
        x: ValueId,
        rope: ValueId,
    ) -> Result<ValueId, GraphError> {
        let AttentionParams { heads, kv_heads, head_dim, .. } = model.params;
        let [q_and_gate, k, v] = ctx.linear_all(x, [self.query_and_gate, self.key, self.value])?;
        let half = |start| Op::HeadColumns { heads, start, cols: head_dim };
        let (q, gate) = (ctx.apply(half(0), &[q_and_gate])?, ctx.apply(half(head_dim), &[q_and_gate])?);
        let [q_norm, k_norm] = self.head_norms;
        let q = ctx.rms_norm(q, q_norm, model.eps, heads)?;
        let k = ctx.rms_norm(k, k_norm, model.eps, kv_heads)?;
        let attended = ctx.attention(index, model.params, [q, k, v], rope)?;
        let gated = ctx.apply(Op::Glu { activation: Activation::Sigmoid }, &[gate, attended])?;
        ctx.linear(gated, self.output)
    }
}

impl DeltaNet {
    fn open(
        table: &mut Table<'_>,
        name: impl Fn(&str) -> String,
        hidden: usize,
        shape: RecurrentShape,
    ) -> Result<DeltaNet, ModelError> {
        let DeltaHeads { value_heads, value_dim, .. } = shape.heads;
        let (channels, width) = (shape.channels(), value_heads * value_dim);
        let mut linear = |part: &str, rows, cols| table.unbiased_linear(&name(part), rows, cols);
        Ok(DeltaNet {
            qkv: linear("attn_qkv", channels, hidden)?,
            gate: linear("attn_gate", width, hidden)?,
            alpha: linear("ssm_alpha", value_heads, hidden)?,
            beta: linear("ssm_beta", value_heads, hidden)?,
            output: linear("ssm_out", hidden, width)?,
            convolution: table.convolution(&name("ssm_conv1d.weight"), shape.kernel, channels)?,
            decay: [
                table.vector(&name("ssm_dt.bias"), value_heads)?,
                table.vector(&name("ssm_a"), value_heads)?,
            ],
            norm: table.vector(&name("ssm_norm.weight"), value_dim)?,
        })
    }

    /// `index` counts the recurrent layers.
    fn build(
        &self,
        ctx: &mut GraphContext<'_>,
        index: usize,
        model: &Hybrid,
        x: ValueId,
    ) -> Result<ValueId, GraphError> {
        let RecurrentShape { kernel, heads } = model.delta;
        let [qkv, gate, alpha, beta] = ctx.linear_all(x, [self.qkv, self.gate, self.alpha, self.beta])?;
        let qkv = ctx.short_conv(index, kernel, qkv, self.convolution)?;
        let output = ctx.gated_delta(index, heads, [qkv, alpha, beta], self.decay)?;
        let normalized = ctx.rms_norm(output, self.norm, model.eps, heads.value_heads)?;
        let gated = ctx.apply(Op::Glu { activation: Activation::Silu }, &[gate, normalized])?;
        ctx.linear(gated, self.output)
    }
}

impl Model for Hybrid {
    fn hyperparameters(&self) -> &Hyperparameters {
        &self.hyperparameters
    }

    fn weights(&self) -> &[WeightSpec] {
        &self.specs
    }

    fn kv_shapes(&self, _context: usize) -> Vec<KvShape> {
        let AttentionParams { kv_heads, head_dim, layout, .. } = self.params;
        let rope = Some(KeyRope { table: self.rope, layout, freq_factors: None });
        let shape = KvShape { kv_heads, head_dim, window: None, rope, is_row_memory: false };
        let attending = self.layers.iter().filter(|layer| matches!(layer.mixer, Mixer::Attention(_)));
        attending.map(|_| shape).collect()
    }

    fn recurrent_shapes(&self) -> Vec<RecurrentShape> {
        let recurring = self.layers.iter().filter(|layer| matches!(layer.mixer, Mixer::Delta(_)));
        recurring.map(|_| self.delta).collect()
    }

    fn shared_weights(&self) -> SharedWeights {
        self.lm_head.shared_with(self.embedding)
    }

    fn build(&self, shape: &StepShape, followers: &[Follower<'_>]) -> Result<Graph, GraphError> {
        let mut ctx = GraphContext::new(&self.specs, shape)?;
        let mut x = ctx.embed(self.embedding, 1.0)?;
        let rope = ctx.rope_table(self.rope, None)?;
        let (mut attending, mut recurring) = (0, 0);
        for (index, layer) in self.layers.iter().enumerate() {
            let normalized = ctx.rms_norm(x, layer.norm, self.eps, 1)?;
            let mixed = match &layer.mixer {
                Mixer::Attention(attention) => {
                    attending += 1;
                    attention.build(&mut ctx, attending - 1, self, normalized, rope)?
                }
                Mixer::Delta(delta) => {
                    recurring += 1;
                    delta.build(&mut ctx, recurring - 1, self, normalized)?
                }
            };
            x = ctx.add(x, mixed)?;

            let normalized = ctx.rms_norm(x, layer.ffn_norm, self.eps, 1)?;
            let ffn = layer.ffn.build(&mut ctx, normalized, Activation::Silu)?;
            x = ctx.add(x, ffn)?;
            ctx.hidden_output(HiddenOutput::Layer(index as u32), x)?;
        }
        ctx.lm_head(x, self.norm, self.eps, self.lm_head, LogitScaling::default())?;
        follow::finish(ctx, followers)
    }
}
