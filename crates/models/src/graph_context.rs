//! Building the graph of a step: the inputs that every architecture has, weights by id, and the blocks they share.

use crate::table::{Linear, WeightId, WeightSpec};
use crate::{HadamardKv, HiddenOutput, ModelOffsets, NextOutputs, StepShape};
use std::collections::HashMap;
use verbatim_backend::WeightKind;
use verbatim_graph::{
    Activation, Attention, Builder, DeltaHeads, F32Bits, Graph, GraphError, Op, RopeLayout, RopeTable, Shape,
    Tag, ValueId,
};
use verbatim_quant::DType;

/// The inputs of a step's graph. Which of them are live depends on the [`StepShape`](crate::StepShape).
pub mod inputs {
    use verbatim_graph::Tag;

    /// The token of each row, i32; -1 for an embedding row.
    pub const TOKENS: Tag = Tag::new("tokens");
    /// The embedding rows, f32 \[r, hidden\]; the values at token rows are not read.
    pub const EMBEDDINGS: Tag = Tag::new("embeddings");
    /// The position of each row in its sequence, i32.
    pub const POSITIONS: Tag = Tag::new("positions");
    /// The index in the page table of each row's sequence, i32.
    pub const SEQUENCES: Tag = Tag::new("sequences");
    /// The cell in which each row stores its K and V, i32, by KV cache group.
    pub const CELLS: &str = "cells";
    /// The cell of the position before each row's, i32, by KV cache group; -1 if there is none.
    pub const PARENT_CELLS: &str = "parent_cells";
    /// The position before each row's in its sequence, i32; 0 for position 0.
    pub const PARENT_POSITIONS: Tag = Tag::new("parent_positions");
    /// The last position of each row's sequence in the step, i32: the rows of a draft block attend to all
    /// positions up to it.
    pub const LAST_POSITIONS: Tag = Tag::new("last_positions");
    /// The first position whose K and V each row's model has computed, i32.
    pub const VALID_FROM: Tag = Tag::new("valid_from");
    /// The target's id of each token of a draft vocabulary, i32 \[1, draft vocabulary\].
    pub const DRAFT_VOCABULARY: Tag = Tag::new("draft_vocabulary");
    /// The page table, i32, by KV cache group.
    pub const PAGES: &str = "pages";
    /// The cells of the positions in flight on each row's tree path, i32, by KV cache group.
    pub const PATHS: &str = "paths";
    /// Position at which the row's tree path starts, i32; a value above the row's position means no path.
    pub const TREE_STARTS: Tag = Tag::new("tree_starts");
    /// The slot from which each row reads its sequence's recurrent state, i32; -1 for a sequence's first row.
    pub const READ_SLOTS: Tag = Tag::new("read_slots");
    /// The slot to which each row writes its sequence's recurrent state, i32.
    pub const WRITE_SLOTS: Tag = Tag::new("write_slots");
    /// The rows that want logits or a token, i32.
    pub const OUTPUT_ROWS: Tag = Tag::new("output_rows");
    /// The sampler of each output row, i32 \[output rows, [`verbatim_sample::ROW_WORDS`]\].
    pub const SAMPLERS: Tag = Tag::new("samplers");
    /// The tokens that each output row may sample, i32 \[output rows, ⌈vocabulary / 32⌉\]: one bit each.
    pub const MASKS: Tag = Tag::new("masks");
}

/// The outputs of a step's graph.
pub mod outputs {
    use crate::HiddenOutput;
    use verbatim_graph::Tag;

    /// Logits of the output rows.
    pub const LOGITS: Tag = Tag::new("logits");

    /// The sampled token of each output row, i32; -1 if there is none.
    pub const TOKENS: Tag = Tag::new("sampled");

    /// A hidden state, for every row.
    pub const fn hidden(output: HiddenOutput) -> Tag {
        match output {
            HiddenOutput::Embedding => Tag::new("embed"),
            HiddenOutput::Layer(layer) => Tag::indexed("layer", layer),
            HiddenOutput::FinalNorm => Tag::new("final_norm"),
            HiddenOutput::Fused(draft) => Tag::indexed("fused", draft),
        }
    }
}

/// The attention parameters of one layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionParams {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: F32Bits,
    pub(crate) layout: RopeLayout,
    /// Q and K get RoPE.
    pub(crate) uses_rope: bool,
    /// The sliding window; `None` for full attention.
    pub(crate) window: Option<usize>,
    pub(crate) softcap: Option<F32Bits>,
    /// Attention sinks, one per head.
    pub(crate) sinks: Option<WeightId>,
}

impl AttentionParams {
    /// Full attention, with scores scaled by 1/√head_dim.
    pub(crate) fn new(heads: usize, kv_heads: usize, head_dim: usize, layout: RopeLayout) -> AttentionParams {
        let scale = F32Bits(1.0 / (head_dim as f32).sqrt());
        AttentionParams {
            heads,
            kv_heads,
            head_dim,
            scale,
            layout,
            uses_rope: true,
            window: None,
            softcap: None,
            sinks: None,
        }
    }
}

/// Scale and softcap of the logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogitScaling {
    /// Factor on the logits.
    pub(crate) scale: f32,
    /// Then x becomes cap * tanh(x / cap).
    pub(crate) softcap: Option<F32Bits>,
}

impl Default for LogitScaling {
    fn default() -> Self {
        LogitScaling { scale: 1.0, softcap: None }
    }
}

/// The inputs of one KV cache group.
struct KvGroup {
    window: Option<usize>,
    cells: ValueId,
    parent_cells: ValueId,
    pages: ValueId,
    /// Tree starts and path cells, if rows form trees.
    paths: Option<[ValueId; 2]>,
}

/// A row memory keeps the rows of this many positions: the one before the row's, and the row's own.
pub(crate) const ROW_MEMORY_WINDOW: usize = 2;

/// A graph under construction.
pub struct GraphContext<'a> {
    builder: Builder,
    offsets: ModelOffsets,
    embeddings: bool,
    specs: &'a [WeightSpec],
    /// By index in the table of all models' weights.
    weights: HashMap<u32, ValueId>,
    hidden_outputs: &'a [HiddenOutput],
    /// The hidden states so far: draft models read some.
    hidden: Vec<(HiddenOutput, ValueId)>,
    next: NextOutputs,
    tokens: ValueId,
    positions: ValueId,
    parent_positions: ValueId,
    last_positions: ValueId,
    valid_from: ValueId,
    sequences: ValueId,
    kv_groups: Vec<KvGroup>,
    hadamard: HadamardKv,
    read_slots: ValueId,
    write_slots: ValueId,
    output_rows: ValueId,
}

impl<'a> GraphContext<'a> {
    pub(crate) fn new(specs: &'a [WeightSpec], shape: &'a StepShape) -> Result<Self, GraphError> {
        let mut builder = Builder::new(shape.bounds);
        let mut input = |tag: Tag, shape: Shape| builder.input(tag, DType::I32, shape);
        let [sequences, pages] = shape.page_table;
        let tree_starts = input(inputs::TREE_STARTS, Shape::per_row(1))?;
        let mut kv_groups = Vec::new();
        for (group, &window) in (0..).zip(&shape.windows) {
            let mut tagged = |name, shape| input(Tag::indexed(name, group), shape);
            let cells = tagged(inputs::CELLS, Shape::per_row(1))?;
            let parent_cells = tagged(inputs::PARENT_CELLS, Shape::per_row(1))?;
            let pages = tagged(inputs::PAGES, Shape::fixed(sequences, pages))?;
            let paths = match shape.path_len {
                0 => None,
                path_len => Some([tree_starts, tagged(inputs::PATHS, Shape::per_row(path_len))?]),
            };
            kv_groups.push(KvGroup { window, cells, parent_cells, pages, paths });
        }
        Ok(GraphContext {
            tokens: input(inputs::TOKENS, Shape::per_row(1))?,
            positions: input(inputs::POSITIONS, Shape::per_row(1))?,
            parent_positions: input(inputs::PARENT_POSITIONS, Shape::per_row(1))?,
            last_positions: input(inputs::LAST_POSITIONS, Shape::per_row(1))?,
            valid_from: input(inputs::VALID_FROM, Shape::per_row(1))?,
            sequences: input(inputs::SEQUENCES, Shape::per_row(1))?,
            read_slots: input(inputs::READ_SLOTS, Shape::per_row(1))?,
            write_slots: input(inputs::WRITE_SLOTS, Shape::per_row(1))?,
            output_rows: input(inputs::OUTPUT_ROWS, Shape::per_output_row(1))?,
            kv_groups,
            hadamard: shape.hadamard,
            builder,
            offsets: shape.offsets,
            embeddings: shape.embeddings,
            specs,
            weights: HashMap::new(),
            hidden_outputs: &shape.hidden_outputs,
            hidden: Vec::new(),
            next: shape.next,
        })
    }

    pub(crate) fn apply(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, GraphError> {
        self.builder.apply(op, operands)
    }

    pub(crate) fn weight(&mut self, id: WeightId) -> Result<ValueId, GraphError> {
        self.weight_of(self.offsets.weights + id.0, &self.specs[id.0 as usize])
    }

    /// A weight by its index in the table of all models' weights.
    pub(crate) fn weight_of(&mut self, index: u32, spec: &WeightSpec) -> Result<ValueId, GraphError> {
        if let Some(value) = self.weights.get(&index) {
            return Ok(*value);
        }
        let dtype = match spec.kind {
            WeightKind::Matrix | WeightKind::Experts(_) => spec.dtype,
            WeightKind::Vector => DType::F32,
        };
        let value =
            self.builder.weight(Tag::indexed("weight", index), dtype, Shape::fixed(spec.rows, spec.cols))?;
        self.weights.insert(index, value);
        Ok(value)
    }

    /// The residual stream entering the first layer.
    pub(crate) fn embed(&mut self, table: WeightId, scale: f32) -> Result<ValueId, GraphError> {
        let table = self.weight(table)?;
        let mut operands = vec![table, self.tokens];
        if self.embeddings {
            let hidden = self.builder.shape(table).cols;
            operands.push(self.builder.input(inputs::EMBEDDINGS, DType::F32, Shape::per_row(hidden))?);
        }
        let x =
            self.apply(Op::Embed { scale: F32Bits(scale), has_embeddings: self.embeddings }, &operands)?;
        self.hidden_output(HiddenOutput::Embedding, x)?;
        Ok(x)
    }

    /// The cosines and sines of every row, shared by all layers with the same RoPE.
    pub(crate) fn rope_table(
        &mut self,
        table: RopeTable,
        freq_factors: Option<WeightId>,
    ) -> Result<ValueId, GraphError> {
        self.rope_table_at(self.positions, table, freq_factors)
    }

    /// The same at the position before each row's.
    pub(crate) fn rope_table_before(
        &mut self,
        table: RopeTable,
        freq_factors: Option<WeightId>,
    ) -> Result<ValueId, GraphError> {
        self.rope_table_at(self.parent_positions, table, freq_factors)
    }

    fn rope_table_at(
        &mut self,
        positions: ValueId,
        table: RopeTable,
        freq_factors: Option<WeightId>,
    ) -> Result<ValueId, GraphError> {
        let mut operands = vec![positions];
        if let Some(freq_factors) = freq_factors {
            operands.push(self.weight(freq_factors)?);
        }
        self.apply(Op::RopeTable(table), &operands)
    }

    pub(crate) fn rms_norm(
        &mut self,
        x: ValueId,
        weight: WeightId,
        eps: F32Bits,
        groups: usize,
    ) -> Result<ValueId, GraphError> {
        let weight = self.weight(weight)?;
        self.apply(Op::RmsNorm { eps, groups }, &[x, weight])
    }

    /// x times the weight transposed, times its scale, plus the bias.
    pub(crate) fn linear(&mut self, x: ValueId, linear: Linear) -> Result<ValueId, GraphError> {
        // The scale is applied to x, so that the bias, and a residual that the backend fuses, can stay in the matmul.
        let x = self.scale(x, linear.scale.0)?;
        let mut operands = vec![x, self.weight(linear.weight)?];
        if let Some(bias) = linear.bias {
            operands.push(self.weight(bias)?);
        }
        self.apply(Op::Linear { bias: linear.bias.is_some(), residual: false }, &operands)
    }

    /// Several linear layers on one value.
    pub(crate) fn linear_all<const N: usize>(
        &mut self,
        x: ValueId,
        linears: [Linear; N],
    ) -> Result<[ValueId; N], GraphError> {
        let mut results = [x; N];
        for (result, linear) in results.iter_mut().zip(linears) {
            *result = self.linear(x, linear)?;
        }
        Ok(results)
    }

    /// RoPE, KV write and attention. `layer` counts the attention layers.
    pub(crate) fn attention(
        &mut self,
        layer: usize,
        params: AttentionParams,
        [q, k, v]: [ValueId; 3],
        rope: ValueId,
    ) -> Result<ValueId, GraphError> {
        let q = self.query(params, q, rope)?;
        let state = self.store_kv(layer, params, [k, v], rope)?;
        self.attend(params, q, state, self.positions, None)
    }

    /// As [`GraphContext::attention`], over what a draft model has computed; with `whole_block`, over all rows of the sequence in
    /// the step, rather than those up to its own.
    pub(crate) fn draft_attention(
        &mut self,
        layer: usize,
        params: AttentionParams,
        [q, k, v]: [ValueId; 3],
        rope: ValueId,
        whole_block: bool,
    ) -> Result<ValueId, GraphError> {
        let q = self.query(params, q, rope)?;
        let state = self.store_kv(layer, params, [k, v], rope)?;
        let last = if whole_block { self.last_positions } else { self.positions };
        self.attend(params, q, state, last, Some(self.valid_from))
    }

    fn query(&mut self, params: AttentionParams, q: ValueId, rope: ValueId) -> Result<ValueId, GraphError> {
        let AttentionParams { heads, head_dim, layout, uses_rope, .. } = params;
        let q = if uses_rope { self.apply(Op::Rope { heads, head_dim, layout }, &[q, rope])? } else { q };
        self.transform(self.hadamard.keys, heads, head_dim, q)
    }

    fn transform(
        &mut self,
        is_wanted: bool,
        heads: usize,
        head_dim: usize,
        x: ValueId,
    ) -> Result<ValueId, GraphError> {
        if is_wanted { self.apply(Op::Hadamard { heads, head_dim }, &[x]) } else { Ok(x) }
    }

    /// Stores K and V of each row in its cell of a layer; returns the layer's next version.
    pub(crate) fn store_kv(
        &mut self,
        layer: usize,
        params: AttentionParams,
        [k, v]: [ValueId; 2],
        rope: ValueId,
    ) -> Result<ValueId, GraphError> {
        let AttentionParams { kv_heads, head_dim, layout, uses_rope, window, .. } = params;
        let rotate = Op::Rope { heads: kv_heads, head_dim, layout };
        let k = if uses_rope { self.apply(rotate, &[k, rope])? } else { k };
        let HadamardKv { keys, values } = self.hadamard;
        let k = self.transform(keys, kv_heads, head_dim, k)?;
        let v = self.transform(values, kv_heads, head_dim, v)?;
        let cells = self.kv_group(window)?.cells;
        let state = self.kv_state(layer)?;
        self.apply(Op::KvWrite { kv_heads, head_dim }, &[state, k, v, cells])
    }

    fn attend(
        &mut self,
        params: AttentionParams,
        q: ValueId,
        state: ValueId,
        last: ValueId,
        valid_from: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let AttentionParams { heads, kv_heads, head_dim, scale, window, softcap, sinks, .. } = params;
        let &KvGroup { pages, paths, .. } = self.kv_group(window)?;
        let mut operands = vec![q, state, last, self.sequences, pages];
        operands.extend(paths.into_iter().flatten());
        operands.extend(valid_from);
        if let Some(sinks) = sinks {
            operands.push(self.weight(sinks)?);
        }
        let (paths, valid_from, sinks) = (paths.is_some(), valid_from.is_some(), sinks.is_some());
        let attention =
            Attention { heads, kv_heads, head_dim, scale, window, softcap, paths, valid_from, sinks };
        let output = self.apply(Op::Attention(attention), &operands)?;
        // The transform is its own inverse.
        self.transform(self.hadamard.values, heads, head_dim, output)
    }

    fn kv_group(&self, window: Option<usize>) -> Result<&KvGroup, GraphError> {
        self.kv_groups.iter().find(|group| group.window == window).ok_or_else(|| GraphError::Operands {
            op: "Attention",
            problem: format!("the step has no page table for layers with a window of {window:?}"),
        })
    }

    fn kv_state(&mut self, layer: usize) -> Result<ValueId, GraphError> {
        self.builder.state(Tag::indexed("kv", self.offsets.kv + layer as u32))
    }

    /// The row memory in an attention layer's place: one row of a value per position, half of it stored as K and half as V.
    pub(crate) fn row_memory(&mut self, layer: usize) -> Result<ValueId, GraphError> {
        self.kv_state(layer)
    }

    /// Stores each row in its cell of a row memory; returns the memory's next version.
    pub(crate) fn write_rows(&mut self, memory: ValueId, x: ValueId) -> Result<ValueId, GraphError> {
        let head_dim = self.builder.shape(x).cols / 2;
        let [first, second] = self.split(x, [head_dim; 2])?;
        let cells = self.kv_group(Some(ROW_MEMORY_WINDOW))?.cells;
        self.apply(Op::KvWrite { kv_heads: 1, head_dim }, &[memory, first, second, cells])
    }

    /// What a row memory holds of `cols` columns for the position before each row's.
    pub(crate) fn read_parent_rows(&mut self, memory: ValueId, cols: usize) -> Result<ValueId, GraphError> {
        let cells = self.kv_group(Some(ROW_MEMORY_WINDOW))?.parent_cells;
        self.apply(Op::KvRead { kv_heads: 1, head_dim: cols / 2 }, &[memory, cells])
    }

    /// Columns of a value.
    pub(crate) fn cols(&self, x: ValueId) -> usize {
        self.builder.shape(x).cols
    }

    pub(crate) fn concat(&mut self, values: &[ValueId]) -> Result<ValueId, GraphError> {
        match values {
            [value] => Ok(*value),
            values => self.apply(Op::Concat { parts: values.len() }, values),
        }
    }

    /// Embeddings of the rows' tokens, from a table that may be another model's.
    pub(crate) fn token_embeddings(&mut self, table: ValueId, scale: f32) -> Result<ValueId, GraphError> {
        self.apply(Op::Embed { scale: F32Bits(scale), has_embeddings: false }, &[table, self.tokens])
    }

    /// down(activation(gate x) * (up x)).
    pub(crate) fn gated_ffn(
        &mut self,
        x: ValueId,
        activation: Activation,
        [gate, up, down]: [Linear; 3],
    ) -> Result<ValueId, GraphError> {
        let [gate, up] = self.linear_all(x, [gate, up])?;
        let inner = self.apply(Op::Glu { activation }, &[gate, up])?;
        self.linear(inner, down)
    }

    /// As [`GraphContext::gated_ffn`], with the gate's and then the up projection's rows in one weight.
    pub(crate) fn fused_ffn(
        &mut self,
        x: ValueId,
        activation: Activation,
        gate_up: Linear,
        down: Linear,
    ) -> Result<ValueId, GraphError> {
        let both = self.linear(x, gate_up)?;
        let half = self.builder.shape(both).cols / 2;
        let [gate, up] = self.split(both, [half, half])?;
        let inner = self.apply(Op::Glu { activation }, &[gate, up])?;
        self.linear(inner, down)
    }

    /// Views of a value's columns with these widths.
    pub(crate) fn split<const N: usize>(
        &mut self,
        x: ValueId,
        widths: [usize; N],
    ) -> Result<[ValueId; N], GraphError> {
        let (mut parts, mut start) = ([x; N], 0);
        for (part, width) in parts.iter_mut().zip(widths) {
            *part = self.builder.columns(x, start, width)?;
            start += width;
        }
        Ok(parts)
    }

    pub(crate) fn scale(&mut self, x: ValueId, factor: f32) -> Result<ValueId, GraphError> {
        if factor == 1.0 { Ok(x) } else { self.apply(Op::Scale { factor: F32Bits(factor) }, &[x]) }
    }

    /// silu of a convolution over each channel's last inputs, carried from row to row in the `index`-th recurrent state.
    pub(crate) fn short_conv(
        &mut self,
        index: usize,
        kernel: usize,
        x: ValueId,
        weight: WeightId,
    ) -> Result<ValueId, GraphError> {
        let weight = self.weight(weight)?;
        let state = self.builder.state(Tag::indexed("conv", self.offsets.recurrent + index as u32))?;
        self.apply(Op::ShortConv { kernel }, &[x, weight, state, self.read_slots, self.write_slots])
    }

    /// The gated delta rule over `qkv`, carried from row to row in the `index`-th recurrent state.
    pub(crate) fn gated_delta(
        &mut self,
        index: usize,
        heads: DeltaHeads,
        [qkv, alpha, beta]: [ValueId; 3],
        [bias, rate]: [WeightId; 2],
    ) -> Result<ValueId, GraphError> {
        let (bias, rate) = (self.weight(bias)?, self.weight(rate)?);
        let state = self.builder.state(Tag::indexed("delta", self.offsets.recurrent + index as u32))?;
        let operands = [qkv, alpha, beta, bias, rate, state, self.read_slots, self.write_slots];
        self.apply(Op::GatedDelta(heads), &operands)
    }

    pub(crate) fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.apply(Op::Add, &[a, b])
    }

    /// Outputs a hidden state if the step requests it.
    pub(crate) fn hidden_output(&mut self, output: HiddenOutput, value: ValueId) -> Result<(), GraphError> {
        self.hidden.push((output, value));
        if self.hidden_outputs.contains(&output) {
            self.builder.output(outputs::hidden(output), value)
        } else {
            Ok(())
        }
    }

    /// The final norm and the LM head for the output rows.
    pub(crate) fn lm_head(
        &mut self,
        x: ValueId,
        norm: WeightId,
        eps: F32Bits,
        lm_head: Linear,
        scaling: LogitScaling,
    ) -> Result<(), GraphError> {
        let output_rows = if self.hidden_outputs.contains(&HiddenOutput::FinalNorm) {
            let normalized = self.rms_norm(x, norm, eps, 1)?;
            self.hidden_output(HiddenOutput::FinalNorm, normalized)?;
            self.apply(Op::GatherRows, &[normalized, self.output_rows])?
        } else {
            // The norm is row-wise, so gathering first gives the same result with less work.
            let output_rows = self.apply(Op::GatherRows, &[x, self.output_rows])?;
            self.rms_norm(output_rows, norm, eps, 1)?
        };
        if self.next.logits || self.next.tokens {
            let logits = match lm_head.bias {
                None => {
                    let weight = self.weight(lm_head.weight)?;
                    let logits = self.apply(Op::LmHead, &[output_rows, weight])?;
                    self.scale(logits, lm_head.scale.0)?
                }
                Some(_) => self.linear(output_rows, lm_head)?,
            };
            self.output_logits(logits, scaling)?;
        }
        Ok(())
    }

    /// The final norm and the LM head of a draft model for the output rows. Its logits may be those of a
    /// reduced vocabulary, given by its size, and are then scattered to `vocabulary` columns.
    pub(crate) fn draft_head(
        &mut self,
        x: ValueId,
        norm: (WeightId, F32Bits),
        (head, scale): (ValueId, F32Bits),
        scaling: LogitScaling,
        (reduced, vocabulary): (Option<usize>, usize),
    ) -> Result<(), GraphError> {
        let output_rows = self.apply(Op::GatherRows, &[x, self.output_rows])?;
        let normalized = self.rms_norm(output_rows, norm.0, norm.1, 1)?;
        if self.next.logits || self.next.tokens {
            // Not `Op::LmHead`: a draft need not be that accurate.
            let x = self.scale(normalized, scale.0)?;
            let mut logits = self.apply(Op::Linear { bias: false, residual: false }, &[x, head])?;
            if let Some(tokens) = reduced {
                let shape = Shape::fixed(1, tokens);
                let ids = self.builder.input(inputs::DRAFT_VOCABULARY, DType::I32, shape)?;
                logits = self.apply(Op::ScatterLogits { vocabulary }, &[logits, ids])?;
            }
            self.output_logits(logits, scaling)?;
        }
        Ok(())
    }

    fn output_logits(&mut self, logits: ValueId, scaling: LogitScaling) -> Result<(), GraphError> {
        let mut logits = self.scale(logits, scaling.scale)?;
        if let Some(cap) = scaling.softcap {
            logits = self.apply(Op::Softcap { cap }, &[logits])?;
        }
        if self.next.logits {
            self.builder.output(outputs::LOGITS, logits)?;
        }
        if self.next.tokens {
            self.sample(logits)?;
        }
        Ok(())
    }

    /// A hidden state that was computed before.
    pub(crate) fn hidden_state(&self, wanted: HiddenOutput) -> Result<ValueId, GraphError> {
        let found = self.hidden.iter().find(|(output, _)| *output == wanted);
        found.map(|(_, value)| *value).ok_or_else(|| GraphError::Operands {
            op: "Concat",
            problem: format!("the target has no hidden state {wanted:?}"),
        })
    }

    /// Continues with the weights and layers of another model.
    pub(crate) fn set_model(&mut self, specs: &'a [WeightSpec], offsets: ModelOffsets, hadamard: HadamardKv) {
        (self.specs, self.offsets, self.hadamard) = (specs, offsets, hadamard);
    }

    pub(crate) fn finish(self) -> Graph {
        self.builder.finish()
    }

    fn sample(&mut self, logits: ValueId) -> Result<(), GraphError> {
        let mask_words = self.builder.shape(logits).cols.div_ceil(32);
        let mut input = |tag, cols| self.builder.input(tag, DType::I32, Shape::per_output_row(cols));
        let samplers = input(inputs::SAMPLERS, verbatim_sample::ROW_WORDS)?;
        let masks = input(inputs::MASKS, mask_words)?;
        let parts = self.apply(Op::SampleParts, &[logits, samplers, masks])?;
        let token = self.apply(Op::SampleMerge, &[samplers, parts])?;
        self.builder.output(outputs::TOKENS, token)
    }
}
