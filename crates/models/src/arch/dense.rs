//! What `llama`, `qwen2` and `qwen3` share: a stack of equal layers, each attention and then a gated feed-forward
//! network, both reading the residual stream through a norm and adding to it.

use crate::keys::Keys;
use crate::net::{Heads, Linear, Net};
use crate::table::{Table, WeightId};
use crate::{Hyperparameters, KvShape, Model, ModelError, StepShape, Tap, WeightSpec};
use verbatim_gguf::GgufFile;
use verbatim_graph::{Activation, Graph, GraphError, Real, RopeLayout, RopeTable};

/// In what the architectures differ.
pub(super) struct Variant {
    pub(super) rope_layout: RopeLayout,
    /// Each head of Q and K has an RMS norm.
    pub(super) head_norms: bool,
}

pub(super) struct Dense {
    hyperparameters: Hyperparameters,
    specs: Vec<WeightSpec>,
    heads: Heads,
    eps: Real,
    rope: RopeTable,
    rope_divisors: Option<WeightId>,
    embedding: WeightId,
    layers: Vec<Layer>,
    norm: WeightId,
    head: Linear,
}

struct Layer {
    attention_norm: WeightId,
    qkv: [Linear; 3],
    head_norms: Option<[WeightId; 2]>,
    attention_output: Linear,
    ffn_norm: WeightId,
    ffn: [Linear; 3],
}

impl Dense {
    pub(super) fn open(
        file: &GgufFile,
        keys: &Keys<'_>,
        variant: Variant,
    ) -> Result<Box<dyn Model>, ModelError> {
        let hyperparameters = keys.hyperparameters(file)?;
        let Hyperparameters { layers, hidden, vocabulary, ref architecture, .. } = hyperparameters;
        let (heads, kv_heads, head_dim) = keys.heads(hidden)?;
        let ffn = keys.count("feed_forward_length")?;
        let heads = Heads {
            heads,
            kv_heads,
            head_dim,
            scale: Real(1.0 / (head_dim as f32).sqrt()),
            layout: variant.rope_layout,
        };
        let rope = keys.rope(head_dim)?;

        let mut table = Table::new(file);
        let embedding = table.matrix("token_embd.weight", vocabulary, hidden)?;
        let rope_divisors = table.optional_vector("rope_freqs.weight", rope.rotated / 2)?;
        let norm = table.vector("output_norm.weight", hidden)?;
        // Without a head of its own the model reads its embeddings backwards.
        let tied = !table.has("output.weight");
        let head = if tied { embedding } else { table.matrix("output.weight", vocabulary, hidden)? };
        let layers = (0..layers).map(|layer| Layer::open(&mut table, layer, hidden, ffn, heads, &variant));
        let layers = layers.collect::<Result<_, _>>()?;
        let specs = table.finish(architecture, |_| false)?;
        let eps = keys.rms_epsilon()?;
        let head = Linear { weight: head, bias: None };
        Ok(Box::new(Dense {
            hyperparameters,
            specs,
            heads,
            eps,
            rope,
            rope_divisors,
            embedding,
            layers,
            norm,
            head,
        }))
    }
}

impl Layer {
    fn open(
        table: &mut Table<'_>,
        layer: usize,
        hidden: usize,
        ffn: usize,
        heads: Heads,
        variant: &Variant,
    ) -> Result<Layer, ModelError> {
        let Heads { heads, kv_heads, head_dim, .. } = heads;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let mut linear = |part: &str, rows, cols| -> Result<Linear, ModelError> {
            Ok(Linear {
                weight: table.matrix(&name(part), rows, cols)?,
                bias: table.optional_vector(&format!("blk.{layer}.{part}.bias"), rows)?,
            })
        };
        Ok(Layer {
            qkv: [
                linear("attn_q", q_width, hidden)?,
                linear("attn_k", kv_width, hidden)?,
                linear("attn_v", kv_width, hidden)?,
            ],
            attention_output: linear("attn_output", hidden, q_width)?,
            ffn: [
                linear("ffn_gate", ffn, hidden)?,
                linear("ffn_up", ffn, hidden)?,
                linear("ffn_down", hidden, ffn)?,
            ],
            attention_norm: table.vector(&name("attn_norm"), hidden)?,
            ffn_norm: table.vector(&name("ffn_norm"), hidden)?,
            head_norms: if variant.head_norms {
                Some([
                    table.vector(&name("attn_q_norm"), head_dim)?,
                    table.vector(&name("attn_k_norm"), head_dim)?,
                ])
            } else {
                None
            },
        })
    }
}

impl Model for Dense {
    fn hyperparameters(&self) -> &Hyperparameters {
        &self.hyperparameters
    }

    fn weights(&self) -> &[WeightSpec] {
        &self.specs
    }

    fn kv_shapes(&self) -> Vec<KvShape> {
        let shape = KvShape { kv_heads: self.heads.kv_heads, head_dim: self.heads.head_dim };
        vec![shape; self.layers.len()]
    }

    fn build(&self, shape: &StepShape) -> Result<Graph, GraphError> {
        let mut net = Net::new(&self.specs, shape)?;
        let mut x = net.embed(self.embedding, 1.0)?;
        let rope = net.rope_table(self.rope, self.rope_divisors)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = net.rms_norm(x, layer.attention_norm, self.eps, 1)?;
            let [mut q, mut k, v] = net.linears(normed, layer.qkv)?;
            if let Some([q_norm, k_norm]) = layer.head_norms {
                q = net.rms_norm(q, q_norm, self.eps, self.heads.heads)?;
                k = net.rms_norm(k, k_norm, self.eps, self.heads.kv_heads)?;
            }
            let attended = net.attention(index, self.heads, [q, k, v], rope)?;
            let attended = net.linear(attended, layer.attention_output)?;
            x = net.add(x, attended)?;

            let normed = net.rms_norm(x, layer.ffn_norm, self.eps, 1)?;
            let fed = net.gated_ffn(normed, Activation::Silu, layer.ffn)?;
            x = net.add(x, fed)?;
            net.tap(Tap::Layer(index as u32), x)?;
        }
        net.head(x, self.norm, self.eps, self.head)
    }
}
