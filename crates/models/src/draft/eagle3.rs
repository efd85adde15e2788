//! `eagle3`: EAGLE-3 (arXiv 2503.01840). One layer reads, for each position, the token's embedding and the fused features of the
//! position before it, side by side; while drafting, its own result stands in for the features.
//!
//! What the cell of position i holds is made of token i and the features at i - 1, with the RoPE position i - 1, as it was trained.
//! Nothing comes before position 0, so its cell is never attended to. The fused features are kept in a row memory, where the next
//! position finds them; a draft's own result goes there too, until the target computes the position.

use super::parts::{self, Head, Matrix, Opened};
use crate::ffn::{Ffn, FfnShape};
use crate::graph_context::{AttentionParams, GraphContext, LogitScaling, ROW_MEMORY_WINDOW};
use crate::metadata::MetadataReader;
use crate::table::{Linear, Table, WeightId};
use crate::{KeyRope, KvShape, Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::{Activation, F32Bits, GraphError, RopeLayout, RopeTable, ValueId};

pub(super) const ARCHITECTURE: &str = "eagle3";

/// The attention layers: K and V, and the row memory.
const KV: usize = 0;
const MEMORY: usize = 1;

pub(super) struct Eagle3 {
    heads: AttentionParams,
    eps: F32Bits,
    rope: RopeTable,
    freq_factors: Option<WeightId>,
    embedding: Matrix,
    /// Before `fuse`, over all features together.
    feature_norm: Option<WeightId>,
    fuse: Linear,
    token_norm: WeightId,
    hidden_norm: WeightId,
    /// The normalized features, rather than the features, are what attention adds to.
    norm_before_residual: bool,
    qkv: [Linear; 3],
    attention_output: Linear,
    ffn_norm: WeightId,
    ffn: Ffn,
    norm: WeightId,
    head: Head,
}

pub(super) fn open(
    file: &GgufFile,
    keys: &MetadataReader<'_>,
    target: &dyn Model,
) -> Result<Opened<Eagle3>, ModelError> {
    let hyperparameters = parts::hyperparameters(keys, ARCHITECTURE, target)?;
    let hidden = hyperparameters.hidden;
    if hyperparameters.layers != 1 {
        return Err(keys.wrong("block_count", hyperparameters.layers, 1));
    }
    if !hidden.is_multiple_of(2) {
        return Err(keys.wrong("embedding_length", hidden, "even"));
    }
    let target_hidden = keys.require_count("target_hidden_size")?;
    parts::check_hidden_size(keys, "target_hidden_size", target_hidden, target)?;
    let features = parts::features(keys, target)?;
    let (heads, kv_heads, head_dim) = keys.heads(hidden)?;
    // The converter to GGUF reorders the rows of Q and K, as for Llama.
    let heads = AttentionParams::new(heads, kv_heads, head_dim, RopeLayout::Interleaved);
    let (q_width, kv_width) = (heads.heads * head_dim, kv_heads * head_dim);
    let rope = keys.rope(head_dim)?;

    let mut table = Table::new(file);
    let vocabulary = table.draft_vocabulary(hyperparameters.vocabulary)?;
    let width = features.len().saturating_mul(target_hidden);
    let feature_norm = match keys.optional_bool("norm_before_fc")? {
        Some(true) => Some(table.vector("enc.output_norm.weight", width)?),
        Some(false) | None => None,
    };
    let linear = |table: &mut Table<'_>, name: &str, rows, cols| {
        table.unbiased_linear(&format!("blk.0.{name}"), rows, cols)
    };
    let both = 2 * hidden;
    let method = Eagle3 {
        heads,
        eps: keys.rms_epsilon()?,
        rope,
        freq_factors: table.optional_vector("rope_freqs.weight", rope.rotary_dim / 2)?,
        embedding: parts::embedding(&mut table, keys, &hyperparameters, target)?,
        feature_norm,
        fuse: table.unbiased_linear("fc", hidden, width)?,
        token_norm: table.vector("blk.0.attn_norm.weight", hidden)?,
        hidden_norm: table.vector("blk.0.attn_norm_2.weight", hidden)?,
        norm_before_residual: keys.optional_bool("norm_before_residual")?.unwrap_or(false),
        qkv: [
            linear(&mut table, "attn_q", q_width, both)?,
            linear(&mut table, "attn_k", kv_width, both)?,
            linear(&mut table, "attn_v", kv_width, both)?,
        ],
        attention_output: linear(&mut table, "attn_output", hidden, q_width)?,
        ffn_norm: table.vector("blk.0.ffn_norm.weight", hidden)?,
        ffn: Ffn::open(&mut table, 0, hidden, FfnShape::gated(keys)?)?,
        norm: table.vector("output_norm.weight", hidden)?,
        head: parts::head(&mut table, keys, &hyperparameters, vocabulary.as_ref().map(Vec::len), target)?,
    };
    let specs = table.finish(ARCHITECTURE, |_| false)?;
    Ok(Opened { hyperparameters, specs, features, vocabulary, method })
}

/// What the layer reads of each row.
struct Entry {
    /// The normalized embedding and features, side by side.
    both: ValueId,
    normalized: ValueId,
    rope: ValueId,
}

impl Eagle3 {
    pub(super) fn kv_shapes(&self, hidden: usize) -> Vec<KvShape> {
        let AttentionParams { kv_heads, head_dim, layout, .. } = self.heads;
        let freq_factors = self.freq_factors.map(|weight| weight.0);
        let rope = Some(KeyRope { table: self.rope, layout, freq_factors });
        vec![
            KvShape { kv_heads, head_dim, window: None, rope, is_row_memory: false },
            KvShape {
                kv_heads: 1,
                head_dim: hidden / 2,
                window: Some(ROW_MEMORY_WINDOW),
                rope: None,
                is_row_memory: true,
            },
        ]
    }

    pub(super) fn follow(
        &self,
        ctx: &mut GraphContext<'_>,
        features: ValueId,
    ) -> Result<ValueId, GraphError> {
        let features = match self.feature_norm {
            Some(norm) => ctx.rms_norm(features, norm, self.eps, 1)?,
            None => features,
        };
        let fused = ctx.linear(features, self.fuse)?;
        let memory = ctx.row_memory(MEMORY)?;
        let memory = ctx.write_rows(memory, fused)?;
        let cols = ctx.cols(fused);
        let before = ctx.read_parent_rows(memory, cols)?;
        let Entry { both, rope, .. } = self.entry(ctx, before)?;
        let [_, k, v] = self.qkv;
        let kv = ctx.linear_all(both, [k, v])?;
        ctx.store_kv(KV, self.heads, kv, rope)?;
        Ok(fused)
    }

    fn entry(&self, ctx: &mut GraphContext<'_>, before: ValueId) -> Result<Entry, GraphError> {
        let table = self.embedding.value(ctx)?;
        let tokens = ctx.token_embeddings(table, 1.0)?;
        let tokens = ctx.rms_norm(tokens, self.token_norm, self.eps, 1)?;
        let normalized = ctx.rms_norm(before, self.hidden_norm, self.eps, 1)?;
        let rope = ctx.rope_table_before(self.rope, self.freq_factors)?;
        Ok(Entry { both: ctx.concat(&[tokens, normalized])?, normalized, rope })
    }

    pub(super) fn build(
        &self,
        ctx: &mut GraphContext<'_>,
        hidden: usize,
        vocabulary: (Option<usize>, usize),
    ) -> Result<(), GraphError> {
        let memory = ctx.row_memory(MEMORY)?;
        let before = ctx.read_parent_rows(memory, hidden)?;
        let Entry { both, normalized, rope } = self.entry(ctx, before)?;
        let qkv = ctx.linear_all(both, self.qkv)?;
        let attended = ctx.draft_attention(KV, self.heads, qkv, rope, false)?;
        let attended = ctx.linear(attended, self.attention_output)?;
        let residual = if self.norm_before_residual { normalized } else { before };
        let x = ctx.add(attended, residual)?;
        let ffn = ctx.rms_norm(x, self.ffn_norm, self.eps, 1)?;
        let ffn = self.ffn.build(ctx, ffn, Activation::Silu)?;
        let x = ctx.add(ffn, x)?;
        ctx.write_rows(memory, x)?;
        let head = self.head.matrix.value(ctx)?;
        let scaling = LogitScaling::default();
        ctx.draft_head(x, (self.norm, self.eps), (head, self.head.scale), scaling, vocabulary)
    }
}
