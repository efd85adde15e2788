//! `dflash`: DFlash (arXiv 2602.06036). A block of the last token and mask tokens attends to itself, in both directions, and to the
//! context: K and V that each layer makes of the fused features of the positions before. One step drafts the whole block.

use super::parts::{self, Head, Matrix, Opened};
use crate::ffn::{Ffn, FfnShape};
use crate::graph_context::{AttentionParams, GraphContext, LogitScaling};
use crate::metadata::MetadataReader;
use crate::table::{Linear, Table, WeightId};
use crate::{Drafting, KeyRope, KvShape, Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::{Activation, F32Bits, GraphError, RopeLayout, RopeTable, ValueId};

pub(super) const ARCHITECTURE: &str = "dflash";

/// Of files that do not say.
const DEFAULT_BLOCK: usize = 16;

pub(super) struct DFlash {
    heads: AttentionParams,
    eps: F32Bits,
    rope: RopeTable,
    freq_factors: Option<WeightId>,
    mask_token: u32,
    block: usize,
    /// Rows of a block do not attend to those after them.
    is_causal: bool,
    embedding: Matrix,
    embedding_scale: f32,
    activation: Activation,
    fuse: Linear,
    feature_norm: WeightId,
    layers: Vec<Layer>,
    norm: WeightId,
    head: Head,
    logits: LogitScaling,
}

struct Layer {
    attention_norm: WeightId,
    qkv: [Linear; 3],
    q_norm: WeightId,
    k_norm: WeightId,
    attention_output: Linear,
    ffn_norm: WeightId,
    ffn: Ffn,
}

pub(super) fn open(
    file: &GgufFile,
    keys: &MetadataReader<'_>,
    target: &dyn Model,
) -> Result<Opened<DFlash>, ModelError> {
    let hyperparameters = parts::hyperparameters(keys, ARCHITECTURE, target)?;
    let hidden = hyperparameters.hidden;
    parts::check_hidden_size(keys, "embedding_length", hidden, target)?;
    let features = parts::features(keys, target)?;
    keys.reject_nonzero("attention.sliding_window", "0: windows are not supported in draft models")?;
    if let Some(scale) = keys.optional_positive("attention.value_scale")? {
        return Err(keys.wrong("attention.value_scale", scale, "0: it is not supported"));
    }
    let (heads, kv_heads, head_dim) = keys.heads(hidden)?;
    let mut heads = AttentionParams::new(heads, kv_heads, head_dim, RopeLayout::NeoX);
    if let Some(scale) = keys.optional_positive("attention.scale")? {
        heads.scale = F32Bits(scale);
    }
    let rope = keys.rope(head_dim)?;
    let block = keys.optional_count("block_size")?.unwrap_or(DEFAULT_BLOCK);
    if block < 2 {
        return Err(keys.wrong("block_size", block, "at least 2"));
    }

    let mut table = Table::new(file);
    let vocabulary = table.draft_vocabulary(hyperparameters.vocabulary)?;
    let layers = (0..hyperparameters.layers).map(|layer| Layer::open(&mut table, keys, layer, hidden, heads));
    let layers = layers.collect::<Result<_, _>>()?;
    let method = DFlash {
        heads,
        eps: keys.rms_epsilon()?,
        rope,
        freq_factors: table.optional_vector("rope_freqs.weight", rope.rotary_dim / 2)?,
        mask_token: mask_token(file, hyperparameters.vocabulary)?,
        block,
        is_causal: keys.optional_bool("attention.causal")?.unwrap_or(false),
        embedding: parts::embedding(&mut table, keys, &hyperparameters, target)?,
        embedding_scale: keys.optional_positive("embedding_scale")?.unwrap_or(1.0),
        activation: activation(keys)?,
        fuse: table.unbiased_linear("fc", hidden, features.len().saturating_mul(hidden))?,
        feature_norm: table.vector("enc.output_norm.weight", hidden)?,
        layers,
        norm: table.vector("output_norm.weight", hidden)?,
        head: parts::head(&mut table, keys, &hyperparameters, vocabulary.as_ref().map(Vec::len), target)?,
        logits: LogitScaling {
            scale: keys.optional_positive("logit_scale")?.unwrap_or(1.0),
            softcap: keys.optional_positive("final_logit_softcapping")?.map(F32Bits),
        },
    };
    let specs = table.finish(ARCHITECTURE, |_| false)?;
    Ok(Opened { hyperparameters, specs, features, vocabulary, method })
}

fn mask_token(file: &GgufFile, vocabulary: usize) -> Result<u32, ModelError> {
    let key = "tokenizer.ggml.mask_token_id";
    let token = file.metadata().require_u32(key)?;
    match (token as usize) < vocabulary {
        true => Ok(token),
        false => Err(ModelError::Key {
            key: key.into(),
            found: token.to_string(),
            expected: format!("below {vocabulary}, the size of the vocabulary"),
        }),
    }
}

fn activation(keys: &MetadataReader<'_>) -> Result<Activation, ModelError> {
    match keys.optional_str("hidden_activation")? {
        None | Some("silu") => Ok(Activation::Silu),
        Some("gelu" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some(other) => Err(keys.wrong("hidden_activation", format!("{other:?}"), "silu or gelu")),
    }
}

impl Layer {
    fn open(
        table: &mut Table<'_>,
        keys: &MetadataReader<'_>,
        layer: usize,
        hidden: usize,
        heads: AttentionParams,
    ) -> Result<Layer, ModelError> {
        let AttentionParams { heads, kv_heads, head_dim, .. } = heads;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let mut linear = |part: &str, rows, cols| table.unbiased_linear(&name(part), rows, cols);
        let qkv = [
            linear("attn_q", q_width, hidden)?,
            linear("attn_k", kv_width, hidden)?,
            linear("attn_v", kv_width, hidden)?,
        ];
        let attention_output = linear("attn_output", hidden, q_width)?;
        let mut vector = |part: &str, len| table.vector(&name(part), len);
        Ok(Layer {
            qkv,
            attention_output,
            attention_norm: vector("attn_norm.weight", hidden)?,
            q_norm: vector("attn_q_norm.weight", head_dim)?,
            k_norm: vector("attn_k_norm.weight", head_dim)?,
            ffn_norm: vector("ffn_norm.weight", hidden)?,
            ffn: Ffn::open(table, layer, hidden, FfnShape::gated(keys)?)?,
        })
    }
}

impl DFlash {
    pub(super) fn drafting(&self) -> Drafting {
        Drafting::Block { mask_token: self.mask_token, size: self.block }
    }

    pub(super) fn kv_shapes(&self) -> Vec<KvShape> {
        let AttentionParams { kv_heads, head_dim, layout, .. } = self.heads;
        let freq_factors = self.freq_factors.map(|weight| weight.0);
        let rope = Some(KeyRope { table: self.rope, layout, freq_factors });
        vec![KvShape { kv_heads, head_dim, window: None, rope, is_row_memory: false }; self.layers.len()]
    }

    pub(super) fn follow(
        &self,
        ctx: &mut GraphContext<'_>,
        features: ValueId,
    ) -> Result<ValueId, GraphError> {
        let fused = ctx.linear(features, self.fuse)?;
        let fused = ctx.rms_norm(fused, self.feature_norm, self.eps, 1)?;
        let rope = ctx.rope_table(self.rope, self.freq_factors)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let [_, k, v] = layer.qkv;
            let [k, v] = ctx.linear_all(fused, [k, v])?;
            let k = ctx.rms_norm(k, layer.k_norm, self.eps, self.heads.kv_heads)?;
            ctx.store_kv(index, self.heads, [k, v], rope)?;
        }
        Ok(fused)
    }

    pub(super) fn build(
        &self,
        ctx: &mut GraphContext<'_>,
        vocabulary: (Option<usize>, usize),
    ) -> Result<(), GraphError> {
        let AttentionParams { heads, kv_heads, .. } = self.heads;
        let table = self.embedding.value(ctx)?;
        let mut x = ctx.token_embeddings(table, self.embedding_scale)?;
        let rope = ctx.rope_table(self.rope, self.freq_factors)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normalized = ctx.rms_norm(x, layer.attention_norm, self.eps, 1)?;
            let [q, k, v] = ctx.linear_all(normalized, layer.qkv)?;
            let q = ctx.rms_norm(q, layer.q_norm, self.eps, heads)?;
            let k = ctx.rms_norm(k, layer.k_norm, self.eps, kv_heads)?;
            let attended = ctx.draft_attention(index, self.heads, [q, k, v], rope, !self.is_causal)?;
            let attended = ctx.linear(attended, layer.attention_output)?;
            x = ctx.add(attended, x)?;
            let normalized = ctx.rms_norm(x, layer.ffn_norm, self.eps, 1)?;
            let ffn = layer.ffn.build(ctx, normalized, self.activation)?;
            x = ctx.add(ffn, x)?;
        }
        let head = self.head.matrix.value(ctx)?;
        ctx.draft_head(x, (self.norm, self.eps), (head, self.head.scale), self.logits, vocabulary)
    }
}
