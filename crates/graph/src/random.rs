//! Random graphs for property tests: every op, view, lifetime and state edge, from a seed.

use crate::{Activation, Attention, Builder, DeltaHeads, Extent, F32Bits, Gating, Graph, Op, RowCounts};
use crate::{RopeLayout, RopeScaling, RopeTable, Router, Shape, Tag, ValueId};
use verbatim_quant::DType;

/// Tags of the leaves of a random graph. Inputs tagged `X` hold arbitrary floats; the others hold indices.
pub mod tags {
    #![allow(missing_docs)]
    pub const X: &str = "x";
    pub const WEIGHT: &str = "weight";
    pub const STATE: &str = "state";
    pub const TOKENS: &str = "tokens";
    pub const POSITIONS: &str = "positions";
    pub const CELLS: &str = "cells";
    pub const SEQUENCES: &str = "sequences";
    pub const PAGES: &str = "pages";
    pub const OUTPUT_ROWS: &str = "output_rows";
    pub const TREE_STARTS: &str = "tree_starts";
    pub const PATHS: &str = "paths";
    pub const VALID_FROM: &str = "valid_from";
    pub const READ_CELLS: &str = "read_cells";
    pub const IDS: &str = "ids";
    pub const CONV: &str = "conv";
    pub const DELTA: &str = "delta";
    pub const READ_SLOTS: &str = "read_slots";
    pub const WRITE_SLOTS: &str = "write_slots";
}

/// KV heads, elements of a head and query heads in random graphs.
pub const KV_HEADS: usize = 2;
#[allow(missing_docs)]
pub const HEAD_DIM: usize = 16;
#[allow(missing_docs)]
pub const HEADS: usize = 4;
/// Rows of the embedding tables of random graphs.
pub const VOCABULARY: usize = 24;
/// Sequences, and pages of each, of the page table of random graphs.
pub const PAGE_TABLE: Shape = Shape::fixed(2, 2);

/// All rows of random graphs are at positions below this; also the number of cells of each path.
pub const POSITIONS: usize = 120;

/// Channels and inputs of the short convolutions of random graphs.
pub const CONV: [usize; 2] = [96, 3];
/// The delta nets of random graphs.
pub const DELTA: DeltaHeads = DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 8, value_dim: 16 };
/// Slots of the recurrent states of random graphs.
pub const SLOTS: usize = 5;

/// SplitMix64 (small, seeded).
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An integer below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// A float in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// The graph of a seed. Equal seeds give equal graphs.
pub fn graph(seed: u64) -> Graph {
    let mut random = Random(seed);
    let rows = 1 + random.below(8);
    let output_rows = 1 + random.below(rows);
    let mut generator = Generator {
        builder: Builder::new(RowCounts { rows, output_rows }),
        random,
        per_row: Vec::new(),
        per_output_row: Vec::new(),
        states: Vec::new(),
        recurrences: 0,
        weights: 0,
        inputs: 0,
    };
    let nodes = 3 + generator.random.below(20);
    while generator.per_row.len() + generator.per_output_row.len() < nodes {
        generator.step();
    }
    let outputs = 1 + generator.random.below(3);
    for index in 0..outputs as u32 {
        let from_output_rows = !generator.per_output_row.is_empty() && generator.random.below(2) == 0;
        let pool = if from_output_rows { &generator.per_output_row } else { &generator.per_row };
        let value = pool[generator.random.below(pool.len())];
        // Inputs cannot be outputs, and one value may be read under several names.
        let _ = generator.builder.output(Tag::indexed("out", index), value);
    }
    let last = generator.scaled_x();
    generator.builder.output(Tag::new("last"), last).expect("a computed value");
    generator.builder.finish()
}

struct Generator {
    builder: Builder,
    random: Random,
    per_row: Vec<ValueId>,
    per_output_row: Vec<ValueId>,
    states: Vec<ValueId>,
    recurrences: u32,
    weights: u32,
    inputs: u32,
}

impl Generator {
    fn step(&mut self) {
        match self.random.below(20) {
            0 => {
                let x = self.x_input();
                self.per_row.push(x);
            }
            1 => self.embed(),
            2 => self.gather_rows(),
            3 => self.rope(),
            4 => self.attention(),
            5 => self.store_only(),
            6..=8 => self.linear(),
            9 => self.norm(),
            10 => self.view(),
            11 => self.experts(),
            12 => self.recurrence(),
            13 => self.gates(),
            14 => self.kv_read(),
            15 => self.concat_or_scatter(),
            _ => self.elementwise(),
        }
    }

    fn apply(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        let value = self.builder.apply(op, operands).expect("the generator respects the shape rules");
        let pool = match self.builder.shape(value).rows {
            Extent::OutputRows => &mut self.per_output_row,
            _ => &mut self.per_row,
        };
        pool.push(value);
        value
    }

    fn input(&mut self, name: &'static str, dtype: DType, shape: Shape) -> ValueId {
        self.inputs += 1;
        self.builder.input(Tag::indexed(name, self.inputs), dtype, shape).expect("a fresh tag")
    }

    fn weight(&mut self, dtype: DType, rows: usize, cols: usize) -> ValueId {
        self.weights += 1;
        let tag = Tag::indexed(tags::WEIGHT, self.weights);
        self.builder.weight(tag, dtype, Shape::fixed(rows, cols)).expect("a fresh tag")
    }

    fn cols(&mut self) -> usize {
        [16, 32, 64, 96][self.random.below(4)]
    }

    fn x_input(&mut self) -> ValueId {
        let cols = self.cols();
        self.input(tags::X, DType::F32, Shape::per_row(cols))
    }

    fn scaled_x(&mut self) -> ValueId {
        let x = self.any();
        self.apply(Op::Scale { factor: F32Bits(0.5) }, &[x])
    }

    /// Any value so far, of rows or output rows.
    fn any(&mut self) -> ValueId {
        let both = self.per_row.len() + self.per_output_row.len();
        if both == 0 {
            let x = self.x_input();
            self.per_row.push(x);
            return x;
        }
        // Mostly recent ones, so that lifetimes differ.
        let index = both - 1 - self.random.below(both).min(self.random.below(both));
        if index < self.per_row.len() {
            self.per_row[index]
        } else {
            self.per_output_row[index - self.per_row.len()]
        }
    }

    fn any_per_row(&mut self) -> ValueId {
        match self.per_row.len() {
            0 => self.any(),
            n => self.per_row[self.random.below(n)],
        }
    }

    /// A value of the same rows as `x` with this many columns.
    fn matched(&mut self, x: ValueId, cols: usize) -> ValueId {
        if self.builder.shape(x).cols == cols {
            return x;
        }
        let k = self.builder.shape(x).cols;
        let weight = self.weight(DType::F32, cols, k);
        self.apply(Op::Linear { bias: false, residual: false }, &[x, weight])
    }

    fn embed(&mut self) {
        let cols = self.cols();
        let table = self.weight(DType::F32, VOCABULARY, cols);
        let ids = self.input(tags::TOKENS, DType::I32, Shape::per_row(1));
        self.apply(Op::Embed { scale: F32Bits(1.5), has_embeddings: false }, &[table, ids]);
    }

    fn gather_rows(&mut self) {
        let x = self.any_per_row();
        let indices = self.input(tags::OUTPUT_ROWS, DType::I32, Shape::per_output_row(1));
        self.apply(Op::GatherRows, &[x, indices]);
    }

    fn rope(&mut self) {
        let rotary_dim = [4, 8, 16][self.random.below(3)];
        let scaling = match self.random.below(3) {
            0 => RopeScaling::Linear { factor: F32Bits(2.0) },
            1 => RopeScaling::Long { attention_factor: F32Bits(1.2) },
            _ => RopeScaling::Yarn {
                factor: F32Bits(4.0),
                original_context: 128,
                attention_factor: F32Bits(1.1),
                beta_fast: F32Bits(32.0),
                beta_slow: F32Bits(1.0),
                truncate: self.random.below(2) == 0,
            },
        };
        let positions = self.input(tags::POSITIONS, DType::I32, Shape::per_row(1));
        let table = Op::RopeTable(RopeTable { rotary_dim, base: F32Bits(1e4), scaling });
        let mut operands = vec![positions];
        if self.random.below(2) == 0 {
            operands.push(self.weight(DType::F32, 1, rotary_dim / 2));
        }
        let table = self.apply(table, &operands);
        let x = self.any_per_row();
        let x = self.matched(x, HEADS * HEAD_DIM);
        let layout = [RopeLayout::Interleaved, RopeLayout::NeoX][self.random.below(2)];
        self.apply(Op::Rope { heads: HEADS, head_dim: HEAD_DIM, layout }, &[x, table]);
    }

    fn state(&mut self) -> usize {
        if self.states.is_empty() || self.random.below(3) == 0 {
            let tag = Tag::indexed(tags::STATE, self.states.len() as u32);
            self.states.push(self.builder.state(tag).expect("a fresh tag"));
        }
        self.random.below(self.states.len())
    }

    fn write(&mut self) -> usize {
        let index = self.state();
        let x = self.any_per_row();
        let (k, v) = (self.matched(x, KV_HEADS * HEAD_DIM), self.any_per_row());
        let v = self.matched(v, KV_HEADS * HEAD_DIM);
        let cells = self.input(tags::CELLS, DType::I32, Shape::per_row(1));
        let op = Op::KvWrite { kv_heads: KV_HEADS, head_dim: HEAD_DIM };
        self.states[index] = self.builder.apply(op, &[self.states[index], k, v, cells]).expect("fits");
        index
    }

    fn store_only(&mut self) {
        self.write();
    }

    fn attention(&mut self) {
        let q = self.any_per_row();
        let q = self.matched(q, HEADS * HEAD_DIM);
        let index = if self.random.below(2) == 0 { self.state() } else { self.write() };
        let state = self.states[index];
        let positions = self.input(tags::POSITIONS, DType::I32, Shape::per_row(1));
        let sequences = self.input(tags::SEQUENCES, DType::I32, Shape::per_row(1));
        let pages = self.input(tags::PAGES, DType::I32, PAGE_TABLE);
        let mut operands = vec![q, state, positions, sequences, pages];
        let window = [None, Some(1), Some(40), Some(100)][self.random.below(4)];
        let softcap = [None, Some(F32Bits(5.0))][self.random.below(2)];
        let paths = self.random.below(3) == 0;
        if paths {
            operands.push(self.input(tags::TREE_STARTS, DType::I32, Shape::per_row(1)));
            operands.push(self.input(tags::PATHS, DType::I32, Shape::per_row(POSITIONS)));
        }
        let valid_from = self.random.below(3) == 0;
        if valid_from {
            operands.push(self.input(tags::VALID_FROM, DType::I32, Shape::per_row(1)));
        }
        let sinks = self.random.below(3) == 0;
        if sinks {
            operands.push(self.weight(DType::F32, 1, HEADS));
        }
        let attention = Attention {
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            scale: F32Bits(0.25),
            window,
            softcap,
            sinks,
            paths,
            valid_from,
        };
        self.apply(Op::Attention(attention), &operands);
    }

    fn kv_read(&mut self) {
        let index = if self.random.below(2) == 0 { self.state() } else { self.write() };
        let cells = self.input(tags::READ_CELLS, DType::I32, Shape::per_row(1));
        let op = Op::KvRead { kv_heads: KV_HEADS, head_dim: HEAD_DIM };
        self.apply(op, &[self.states[index], cells]);
    }

    fn concat_or_scatter(&mut self) {
        if self.random.below(2) == 0 {
            let parts = 1 + self.random.below(3);
            let values: Vec<ValueId> = (0..parts).map(|_| self.any_per_row()).collect();
            self.apply(Op::Concat { parts }, &values);
            return;
        }
        let logits = self.any();
        let cols = self.builder.shape(logits).cols;
        let ids = self.input(tags::IDS, DType::I32, Shape::fixed(1, cols));
        let vocabulary = cols + 16 * self.random.below(2);
        let scattered = self.builder.apply(Op::ScatterLogits { vocabulary }, &[logits, ids]).expect("fits");
        // Later ops would make NaN of infinite logits.
        self.apply(Op::Softcap { cap: F32Bits(3.0) }, &[scattered]);
    }

    fn linear(&mut self) {
        let x = self.any();
        let n = self.cols();
        let k = self.builder.shape(x).cols;
        let quantised = k.is_multiple_of(32) && self.random.below(2) == 0;
        let weight = self.weight(if quantised { DType::Q8_0 } else { DType::F32 }, n, k);
        let mut operands = vec![x, weight];
        let bias = self.random.below(2) == 0;
        if bias {
            operands.push(self.weight(DType::F32, 1, n));
        }
        let residual = self.random.below(2) == 0;
        if residual {
            operands.push(self.matched(x, n));
        }
        self.apply(Op::Linear { bias, residual }, &operands);
    }

    /// MoE: two expert matmuls and a weighted sum.
    fn experts(&mut self) {
        let x = self.any();
        let (k, n) = (self.builder.shape(x).cols, self.cols());
        let experts = 2 + self.random.below(6);
        let used = 1 + self.random.below(experts.min(3));
        let router = self.weight(DType::F32, experts, k);
        let logits = self.apply(Op::Linear { bias: false, residual: false }, &[x, router]);
        let gating = [Gating::Softmax, Gating::Sigmoid][self.random.below(2)];
        let bias = self.random.below(2) == 0;
        let mut operands = vec![logits];
        if bias {
            operands.push(self.weight(DType::F32, 1, experts));
        }
        let chosen = Op::MoeTopK { used, gating, bias };
        let chosen = self.builder.apply(chosen, &operands).expect("fits");
        let router = Router { gating, normalize: self.random.below(2) == 0, scale: F32Bits(1.5) };
        let weights = self.builder.apply(Op::MoeWeights(router), &[logits, chosen]).expect("fits");
        let inner = self.expert_linear(x, chosen, experts, (k, n));
        let cols = self.cols();
        let outer = self.expert_linear(inner, chosen, experts, (n, cols));
        self.apply(Op::MoeCombine, &[outer, weights]);
    }

    fn expert_linear(
        &mut self,
        x: ValueId,
        chosen: ValueId,
        experts: usize,
        (k, n): (usize, usize),
    ) -> ValueId {
        let quantised = k.is_multiple_of(32) && self.random.below(2) == 0;
        let dtype = if quantised { DType::Q8_0 } else { DType::F32 };
        let mut operands = vec![x, self.weight(dtype, experts * n, k), chosen];
        let bias = self.random.below(2) == 0;
        if bias {
            operands.push(self.weight(DType::F32, 1, experts * n));
        }
        self.builder.apply(Op::MoeLinear { experts, bias }, &operands).expect("fits")
    }

    /// A short convolution, or a delta net.
    fn recurrence(&mut self) {
        let index = self.recurrences;
        self.recurrences += 1;
        let read = self.input(tags::READ_SLOTS, DType::I32, Shape::per_row(1));
        let write = self.input(tags::WRITE_SLOTS, DType::I32, Shape::per_row(1));
        let x = self.any_per_row();
        if self.random.below(2) == 0 {
            let [channels, kernel] = CONV;
            let x = self.matched(x, channels);
            let weight = self.weight(DType::F32, 1, channels * kernel);
            let state = self.builder.state(Tag::indexed(tags::CONV, index)).expect("a fresh tag");
            self.apply(Op::ShortConv { kernel }, &[x, weight, state, read, write]);
        } else {
            let x = self.matched(x, DELTA.columns().expect("small"));
            let gates = [self.any_per_row(), self.any_per_row()];
            let [alpha, beta] = gates.map(|x| self.matched(x, DELTA.value_heads));
            let [bias, rate] = [0, 1].map(|_| self.weight(DType::F32, 1, DELTA.value_heads));
            let state = self.builder.state(Tag::indexed(tags::DELTA, index)).expect("a fresh tag");
            self.apply(Op::GatedDelta(DELTA), &[x, alpha, beta, bias, rate, state, read, write]);
        }
    }

    fn gates(&mut self) {
        let x = self.any();
        let gate = self.matched(x, 1);
        let x = self.apply(Op::RowGate, &[gate, x]);
        let cols = self.builder.shape(x).cols;
        if cols.is_multiple_of(4) {
            let width = cols / 4;
            let start = self.random.below(width);
            self.apply(Op::HeadColumns { heads: 4, start, cols: width - start }, &[x]);
        }
    }

    fn norm(&mut self) {
        let x = self.any();
        let groups = [1, 2, 4][self.random.below(3)];
        let groups = if self.builder.shape(x).cols.is_multiple_of(groups) { groups } else { 1 };
        let weight = self.weight(DType::F32, 1, self.builder.shape(x).cols / groups);
        self.apply(Op::RmsNorm { eps: F32Bits(1e-5), groups }, &[x, weight]);
    }

    fn view(&mut self) {
        let x = self.any_per_row();
        let cols = self.builder.shape(x).cols;
        if cols >= 32 {
            let start = 16 * self.random.below(cols / 16 - 1);
            let view = self.builder.columns(x, start, 16).expect("inside");
            self.per_row.push(view);
        }
    }

    fn elementwise(&mut self) {
        let a = self.any();
        let pool = if matches!(self.builder.shape(a).rows, Extent::OutputRows) {
            &self.per_output_row
        } else {
            &self.per_row
        };
        let b = pool[self.random.below(pool.len())];
        let b = self.matched(b, self.builder.shape(a).cols);
        let clamped = Activation::ClampedSwiglu { alpha: F32Bits(1.702), limit: F32Bits(7.0) };
        let cols = self.builder.shape(a).cols;
        let heads = [1, 2, 4][self.random.below(3)];
        let heads = if cols.is_multiple_of(heads) { heads } else { 1 };
        match self.random.below(8) {
            0 => self.apply(Op::Add, &[a, b]),
            1 => self.apply(Op::Mul, &[a, b]),
            2 => self.apply(Op::Glu { activation: Activation::Silu }, &[a, b]),
            3 => self.apply(Op::Glu { activation: Activation::Sigmoid }, &[a, b]),
            4 => self.apply(Op::Glu { activation: clamped }, &[a, b]),
            5 => self.apply(Op::Softcap { cap: F32Bits(3.0) }, &[a]),
            6 => self.apply(Op::Hadamard { heads, head_dim: cols / heads }, &[a]),
            _ => self.apply(Op::Glu { activation: Activation::GeluTanh }, &[a, b]),
        };
    }
}
