//! Runs programs: every thread iterates over the phases, computes its part of each op, and then waits at a barrier.
#![allow(unsafe_code)] // Each thread writes its own rows of the arena.

mod attention;
mod sampling;

use crate::lower::LM_HEAD_TERMS;
use crate::op::CpuOp::{self, Model};
use crate::ops::attention::Scratch;
use crate::ops::recurrence::{self, Before, ConvWeights, DeltaRow, MAX_KEY_DIM};
use crate::ops::{elementwise, experts, hadamard, norm, rope};
use crate::partition;
use crate::program::{ArenaView, BoundProgram, CpuOutputs, CpuProgram, PreparedOp, Source};
use crate::recurrent::{TILE_COLS, Tile};
use crate::state::CpuState;
use crate::weights::Weights;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use verbatim_backend::{MatmulKind, MatmulWork, PrepareError, Profile, Recorder, RunError};
use verbatim_graph::{DeltaHeads, Graph, Op, OpRules, RowCounts};
use verbatim_matrix::{
    Epilogue, ExpertPairs, Input, Residual, SharedOutput, chunk_groups, matmul_expert_groups, matmul_groups,
    quantize_terms,
};
use verbatim_plan::{PhaseRules, Plan};
use verbatim_sample::PartScratch;
use verbatim_simd::{Isa, IsaError};
use verbatim_team::{AlignedBytes, Team, TeamError, ThreadContext};

/// Debug builds overwrite freed memory with this byte: as f32, these bytes are NaN.
const POISON: u8 = 0xff;

/// Why the CPU backend could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The requested instruction set cannot be used.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The thread team could not be started.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// The per-thread scratch memory could not be allocated.
    #[error("cannot allocate scratch memory for {0} threads; use fewer threads")]
    NoMemory(usize),
}

/// The CPU as a backend: plans, prepares and runs graphs on a team of threads.
pub struct Cpu {
    isa: Isa,
    team: Team,
    /// By thread; uncontended.
    scratch: Vec<Mutex<Scratch>>,
    /// As `scratch`.
    sampling: Vec<Mutex<PartScratch>>,
    poison: bool,
    is_profiling: bool,
    profile: Profile,
}

impl Cpu {
    /// The backend with this many threads, on the best instruction set or the one in `VERBATIM_ISA`.
    pub fn new(threads: usize) -> Result<Cpu, CpuError> {
        Cpu::with_isa(threads, Isa::from_environment()?)
    }

    /// The backend with this many threads on the given instruction set.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Cpu, CpuError> {
        let team = Team::new(threads)?;
        let scratch: Option<Vec<_>> = (0..threads).map(|_| Scratch::new().map(Mutex::new)).collect();
        let scratch = scratch.ok_or(CpuError::NoMemory(threads))?;
        Ok(Cpu {
            isa,
            team,
            scratch,
            sampling: (0..threads).map(|_| Mutex::default()).collect(),
            poison: cfg!(debug_assertions),
            is_profiling: false,
            profile: Profile::default(),
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The thread team, for work outside of programs such as packing weights.
    pub fn team(&mut self) -> &mut Team {
        &mut self.team
    }

    /// Begins a new profile of the runs that follow, or ends recording and keeps what was recorded.
    pub fn set_profiling(&mut self, on: bool) {
        if on {
            self.profile.clear();
        }
        self.is_profiling = on;
    }

    /// The profile of the runs since profiling was last turned on.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Compiles a graph to a program: lowers it for this backend, plans it and resolves the weights.
    ///
    /// # Errors
    /// If the graph cannot be planned or the weights do not fit it.
    pub fn prepare(&mut self, graph: &Graph, weights: &Weights) -> Result<CpuProgram, PrepareError> {
        let plan = Plan::new(Arc::new(crate::lower::lower(graph, weights)?))?;
        CpuProgram::new(Arc::new(plan), weights, self.poison)
    }

    /// Like [`Cpu::prepare`], but with a separate buffer for every value: a reference for tests.
    pub fn prepare_disjoint(&mut self, graph: &Graph, weights: &Weights) -> Result<CpuProgram, PrepareError> {
        let plan = Plan::disjoint(Arc::new(crate::lower::lower(graph, weights)?))?;
        CpuProgram::new(Arc::new(plan), weights, self.poison)
    }

    /// Runs a program whose inputs are filled. Allocates nothing.
    ///
    /// # Errors
    /// If the program was compiled against a different weight table, or a thread has panicked.
    pub fn run_bound<'a>(
        &mut self,
        bound: BoundProgram<'a>,
        weights: &Weights,
        state: &mut CpuState,
    ) -> Result<CpuOutputs<'a>, RunError> {
        if bound.program.weights_id() != weights.id() {
            return Err(RunError::WeightsMismatch);
        }
        let BoundProgram { program, arena, rows } = bound;
        for prepared in program.ops() {
            prepared.tasks.reset();
        }
        let run = Run {
            isa: self.isa,
            arena,
            weights,
            state,
            rows,
            scratch: &self.scratch,
            sampling: &self.sampling,
        };
        let recorder = self.is_profiling.then(|| Mutex::new(Recorder::start(&mut self.profile)));
        let threads = &mut self.team;
        let work = AssertUnwindSafe(|| {
            threads.run(|thread| {
                // Only thread 0 records, so the lock is free.
                let recorder = recorder.as_ref().filter(|_| thread.index() == 0);
                let mut recorder = recorder.and_then(|recorder| recorder.try_lock().ok());
                recorder.iter_mut().for_each(|recorder| recorder.resume());
                for (phase, ops) in program.phases().iter().enumerate() {
                    let ops = &program.ops()[ops.clone()];
                    match &mut recorder {
                        None => ops.iter().for_each(|prepared| run.compute(prepared, thread)),
                        Some(recorder) => {
                            for prepared in ops {
                                run.compute(prepared, thread);
                                recorder.op(prepared.op.name(), || run.matmul_work(prepared));
                            }
                        }
                    }
                    thread.barrier();
                    if !program.poison_after(phase).is_empty() {
                        if thread.index() == 0 {
                            run.poison(program.poison_after(phase));
                        }
                        thread.barrier();
                    }
                    recorder.iter_mut().for_each(|recorder| recorder.barrier());
                }
            })
        });
        match catch_unwind(work) {
            Ok(()) => {
                if let Some(Ok(recorder)) = recorder.map(Mutex::into_inner) {
                    recorder.finish();
                }
                Ok(CpuOutputs::new(bound))
            }
            Err(panic) => Err(RunError::Panicked(message(&*panic))),
        }
    }
}

/// Everything that a thread needs for its part of a run.
struct Run<'a> {
    isa: Isa,
    arena: &'a AlignedBytes,
    weights: &'a Weights,
    state: &'a CpuState,
    rows: RowCounts,
    /// By thread; each uses its own.
    scratch: &'a [Mutex<Scratch>],
    /// As `scratch`.
    sampling: &'a [Mutex<PartScratch>],
}

impl Run<'_> {
    fn compute(&self, prepared: &PreparedOp, thread: &ThreadContext<'_>) {
        if prepared.op.splits_rows() {
            let rows = prepared.rows.at(self.rows);
            for (row, units) in
                partition::thread_units(rows, prepared.units, thread.index(), thread.threads())
            {
                self.compute_row(prepared, row, units, thread);
            }
        } else {
            self.compute_tasks(prepared, thread);
        }
    }

    /// Computes some units of a row of an op that is split by rows.
    fn compute_row(
        &self,
        prepared: &PreparedOp,
        row: usize,
        units: Range<usize>,
        thread: &ThreadContext<'_>,
    ) {
        let isa = self.isa;
        // The range of these units in `of` columns, heads or bytes.
        let part = |of: usize| -> Range<usize> {
            let unit = of / prepared.units;
            units.start * unit..units.end * unit
        };
        // Values that this phase computes are read by units, since another thread may still be writing the rest.
        let operand = |i: usize| -> &[f32] {
            let view = prepared.operands[i].view();
            view.columns(self.arena, row, part(view.shape.cols))
        };
        // Other values are read by whole rows: they are from earlier phases, or a row is one unit (see `partition`).
        let whole = |i: usize| -> &[f32] { prepared.operands[i].view().row(self.arena, row) };
        let index = |i: usize| -> usize { self.index(prepared.operands[i].view(), row) };
        let vector = |i: usize| -> &[f32] { self.weights.vector(prepared.operands[i].weight()) };
        let out_cols = || part(prepared.output.view().shape.cols);
        let out = || -> &mut [f32] {
            // SAFETY: within a phase one thread computes a unit of a row and everything that reads it, and by the plan no other
            // value uses these bytes.
            unsafe { prepared.output.view().columns_mut(self.arena, row, out_cols()) }
        };
        match prepared.op {
            Model(Op::Embed { scale, has_embeddings }) => {
                let id = prepared.operands[1].view().row::<i32>(self.arena, row)[0];
                let out = out();
                match usize::try_from(id) {
                    Err(_) if has_embeddings => out.copy_from_slice(whole(2)),
                    _ => self.embed(prepared, index(1), scale.0, out),
                }
            }
            Model(Op::RmsNorm { eps, groups: 1 }) => {
                norm::rms_norm(isa, whole(0), vector(1), eps.0, out_cols(), out());
            }
            Model(Op::RmsNorm { eps, groups }) => {
                let size = prepared.output.view().shape.cols / groups;
                for (x, out) in operand(0).chunks_exact(size).zip(out().chunks_exact_mut(size)) {
                    norm::rms_norm(isa, x, vector(1), eps.0, 0..size, out);
                }
            }
            Model(Op::RopeTable(_)) => {
                let (frequencies, mscale) = &prepared.frequencies;
                let position = prepared.operands[0].view().row::<i32>(self.arena, row)[0];
                rope::angles(position, frequencies, *mscale, out());
            }
            Model(Op::Rope { head_dim, layout, .. }) => {
                rope::rotate(layout, head_dim, operand(0), whole(1), out())
            }
            Model(Op::Hadamard { head_dim, .. }) => hadamard::transform(isa, head_dim, operand(0), out()),
            Model(Op::KvWrite { kv_heads, .. }) => {
                let layer = &self.state.kv.layers()[prepared.operands[0].state()];
                // SAFETY: each row has its own cell, and one thread writes these heads of this cell. Attention reads them in a
                // later phase.
                unsafe { layer.write(index(3), part(kv_heads).start, operand(1), operand(2)) };
            }
            Model(Op::KvRead { .. }) => {
                let cell = prepared.operands[1].view().row::<i32>(self.arena, row)[0];
                match usize::try_from(cell) {
                    Ok(cell) => self.state.kv.layers()[prepared.operands[0].state()].read(cell, out()),
                    Err(_) => out().fill(0.0),
                }
            }
            Model(Op::Concat { parts }) => {
                let mut rest = out();
                for part in (0..parts).map(whole) {
                    let (columns, others) = rest.split_at_mut(part.len());
                    columns.copy_from_slice(part);
                    rest = others;
                }
            }
            Model(Op::ScatterLogits { .. }) => {
                let ids = prepared.operands[1].view().row::<i32>(self.arena, 0);
                elementwise::scatter(whole(0), ids, out());
            }
            Model(Op::Glu { activation }) => elementwise::glu(isa, activation, operand(0), operand(1), out()),
            Model(Op::Add) => elementwise::add(isa, operand(0), operand(1), out()),
            Model(Op::Mul) => elementwise::mul(isa, operand(0), operand(1), out()),
            Model(Op::Scale { factor }) => elementwise::scale(isa, factor.0, operand(0), out()),
            Model(Op::Softcap { cap }) => elementwise::softcap(isa, cap.0, operand(0), out()),
            Model(Op::GatherRows) => {
                out().copy_from_slice(prepared.operands[0].view().row(self.arena, index(1)))
            }
            CpuOp::Quantize { terms, .. } => {
                let term_bytes = prepared.output.view().shape.cols / terms;
                let bytes = part(term_bytes);
                let mut parts: [&mut [u8]; LM_HEAD_TERMS] = Default::default();
                for (term, part) in parts[..terms].iter_mut().enumerate() {
                    let start = term * term_bytes;
                    let bytes = start + bytes.start..start + bytes.end;
                    // SAFETY: as for `out`; the terms do not overlap.
                    *part = unsafe { prepared.output.view().columns_mut(self.arena, row, bytes) };
                }
                quantize_terms(isa, operand(0), &mut parts[..terms]);
            }
            Model(Op::MoeTopK { gating, bias, .. }) => {
                // SAFETY: as for `out`.
                let chosen = unsafe { prepared.output.view().columns_mut(self.arena, row, out_cols()) };
                experts::top_k(gating, whole(0), bias.then(|| vector(1)), chosen);
            }
            Model(Op::MoeWeights(router)) => {
                let chosen = prepared.operands[1].view().row(self.arena, row);
                experts::router_weights(&router, whole(0), chosen, out());
            }
            CpuOp::AttentionMerge(attention) => {
                // SAFETY: as for `out`.
                unsafe { self.merge_attention(prepared, &attention, row, part(attention.heads)) }
            }
            Model(Op::SampleMerge) => self.sample_merge(prepared, row, thread),
            Model(Op::MoeCombine) => experts::combine(isa, whole(0), whole(1), out_cols().start, out()),
            Model(Op::RowGate) => {
                elementwise::scale(isa, recurrence::sigmoid(whole(0)[0]), operand(1), out())
            }
            Model(Op::HeadColumns { heads, start, cols }) => {
                let width = prepared.operands[0].view().shape.cols / heads;
                let (x, out) = (operand(0), out());
                for head in 0..part(heads).len() {
                    out[head * cols..][..cols].copy_from_slice(&x[head * width + start..][..cols]);
                }
            }
            Model(
                Op::Linear { .. }
                | Op::LmHead
                | Op::MoeLinear { .. }
                | Op::Attention(_)
                | Op::ShortConv { .. }
                | Op::GatedDelta(_)
                | Op::SampleParts,
            )
            | CpuOp::QuantizedLinear { .. }
            | CpuOp::QuantizedMoeLinear { .. }
            | CpuOp::AttentionPartials { .. } => {
                unreachable!("{} is not split by rows", prepared.op.name())
            }
        }
    }

    fn embed(&self, prepared: &PreparedOp, id: usize, scale: f32, out: &mut [f32]) {
        self.weights.matrix(prepared.operands[0].weight()).dequantize_row(id, out);
        if scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// This thread's part of an op that is divided in chunks.
    fn compute_tasks(&self, prepared: &PreparedOp, thread: &ThreadContext<'_>) {
        match prepared.op {
            Model(Op::Linear { bias, residual }) | CpuOp::QuantizedLinear { bias, residual, .. } => {
                self.linear(prepared, bias, residual, thread);
            }
            Model(Op::Attention(attention)) => self.attention(prepared, &attention, thread),
            CpuOp::AttentionPartials { attention, .. } => {
                self.attention_partials(prepared, &attention, thread)
            }
            Model(Op::MoeLinear { experts, bias }) | CpuOp::QuantizedMoeLinear { experts, bias, .. } => {
                self.expert_linear(prepared, experts, bias, thread);
            }
            Model(Op::ShortConv { kernel }) => {
                let tiles = prepared.output.view().shape.cols.div_ceil(TILE_COLS);
                while let Some(taken) = prepared.tasks.take(1, tiles) {
                    taken.for_each(|tile| self.short_conv(prepared, kernel, tile * TILE_COLS));
                }
            }
            Model(Op::GatedDelta(heads)) => {
                let tiles = heads.value_dim.div_ceil(TILE_COLS);
                let tasks = heads.value_heads * tiles;
                while let Some(taken) = prepared.tasks.take(1, tasks) {
                    taken.for_each(|task| {
                        self.gated_delta(prepared, heads, task / tiles, task % tiles * TILE_COLS);
                    });
                }
            }
            Model(Op::SampleParts) => self.sample_parts(prepared, thread),
            Model(Op::LmHead) => unreachable!("lowered to a matmul"),
            Model(
                Op::Embed { .. }
                | Op::RmsNorm { .. }
                | Op::RopeTable(_)
                | Op::Rope { .. }
                | Op::Hadamard { .. }
                | Op::KvWrite { .. }
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
                | Op::SampleMerge,
            )
            | CpuOp::Quantize { .. }
            | CpuOp::AttentionMerge(_) => unreachable!("{} is split by rows", prepared.op.name()),
        }
    }

    fn linear(&self, prepared: &PreparedOp, bias: bool, residual: bool, thread: &ThreadContext<'_>) {
        let weights = self.weights.matrix(prepared.operands[1].weight());
        let out = prepared.output.view();
        let tokens = out.shape.rows.at(self.rows);
        if tokens == 0 {
            return;
        }
        let input = self.matmul_input(prepared, tokens);
        let residual = prepared.operands.last().filter(|_| residual).map(Source::view);
        let epilogue = Epilogue {
            bias: bias.then(|| self.weights.vector(prepared.operands[2].weight())),
            residual: residual.map_or(Residual::None, |rows| Residual::Rows {
                values: rows.rows(self.arena, tokens),
                stride: rows.stride(),
            }),
        };
        let output = self.matmul_output(out, tokens);
        let (groups, threads) = (weights.row_groups(), thread.threads());
        while let Some(taken) = prepared.tasks.take_guided(threads, chunk_groups(groups, threads), groups) {
            // SAFETY: the counter assigns every group of columns to only one thread.
            unsafe { matmul_groups(self.isa, weights, input, &output, taken, epilogue) };
        }
    }

    /// The work of a matmul, summed over all threads; `None` for other ops.
    fn matmul_work(&self, prepared: &PreparedOp) -> Option<MatmulWork> {
        let (kind, terms, experts) = match prepared.op {
            Model(Op::Linear { .. }) => (MatmulKind::F32, 1, false),
            CpuOp::QuantizedLinear { terms, .. } => (MatmulKind::Int8, terms, false),
            Model(Op::MoeLinear { .. }) => (MatmulKind::F32, 1, true),
            CpuOp::QuantizedMoeLinear { .. } => (MatmulKind::Int8, 1, true),
            _ => return None,
        };
        let tokens = prepared.output.view().shape.rows.at(self.rows);
        let weights = prepared.operands[1].weight();
        let (matrix, rows, weight_bytes) = if experts {
            let matrices = self.weights.experts(weights).matrices();
            let chosen = prepared.operands[2].view();
            let is_read = |expert: usize| {
                (0..tokens).any(|row| chosen.row::<i32>(self.arena, row).contains(&(expert as i32)))
            };
            let read = matrices.iter().enumerate().filter(|&(expert, _)| is_read(expert));
            let bytes = read.map(|(_, matrix)| matrix.packed_bytes()).sum();
            (&matrices[0], tokens * chosen.shape.cols, bytes)
        } else {
            let matrix = self.weights.matrix(weights);
            (matrix, tokens * terms, if tokens > 0 { matrix.packed_bytes() } else { 0 })
        };
        Some(MatmulWork {
            weights: matrix.dtype(),
            kind,
            weight_bytes: weight_bytes as u64,
            operations: (2 * rows * matrix.rows() * matrix.cols()) as u64,
        })
    }

    fn matmul_input(&self, prepared: &PreparedOp, tokens: usize) -> Input<'_> {
        let x = prepared.operands[0].view();
        match prepared.op {
            CpuOp::QuantizedLinear { .. } | CpuOp::QuantizedMoeLinear { .. } => Input::Quantized {
                bytes: x.rows(self.arena, tokens),
                stride_bytes: x.stride_bytes(),
                tokens,
                terms: if let CpuOp::QuantizedLinear { terms, .. } = prepared.op { terms } else { 1 },
            },
            _ => Input::Floats { values: x.rows(self.arena, tokens), stride: x.stride(), tokens },
        }
    }

    fn matmul_output(&self, out: &ArenaView, tokens: usize) -> SharedOutput<'_> {
        // SAFETY: by the plan, the output overlaps neither the operands nor any other live value.
        unsafe {
            let start = self.arena.element_ptr(out.offset(), out.span(tokens));
            SharedOutput::from_raw(start, out.span(tokens), out.stride())
        }
    }

    /// The matmuls of the selected experts. Rows are gathered by expert, so that an expert's weights are read once.
    fn expert_linear(&self, prepared: &PreparedOp, experts: usize, bias: bool, thread: &ThreadContext<'_>) {
        let matrices = self.weights.experts(prepared.operands[1].weight()).matrices();
        let chosen = prepared.operands[2].view();
        let used = chosen.shape.cols;
        let pairs = prepared.output.view().shape.rows.at(self.rows) * used;
        let groups = matrices[0].row_groups();
        // Tasks are counted per expert or, if there are fewer pairs than experts, per (token, expert) pair; both are called *owner*
        // here. With few rows most experts are idle, so tasks are pairs; the first pair of each expert computes all pairs of that
        // expert, and its later pairs are no-ops.
        let owners = pairs.min(experts);
        let expert_of = |owner: usize| {
            if owners == experts {
                return Some(owner);
            }
            let expert_id = |pair: usize| chosen.row::<i32>(self.arena, pair / used)[pair % used];
            let expert = expert_id(owner);
            (0..owner).all(|earlier| expert_id(earlier) != expert).then_some(expert as usize)
        };
        let units = owners * groups;
        let (threads, max) = (thread.threads(), chunk_groups(units, thread.threads()).min(groups));
        while let Some(taken) = prepared.tasks.take_guided(threads, max, units) {
            let mut start = taken.start;
            while start < taken.end {
                let owner = start / groups;
                let end = taken.end.min((owner + 1) * groups);
                if let Some(expert) = expert_of(owner) {
                    self.compute_expert(prepared, expert, bias, start - owner * groups..end - owner * groups);
                }
                start = end;
            }
        }
    }

    /// Some columns of one expert's matmul, for all rows that use the expert.
    fn compute_expert(&self, prepared: &PreparedOp, expert: usize, bias: bool, groups: Range<usize>) {
        /// (token, expert) pairs per pass over the weights.
        const BATCH: usize = 256;
        let weights = &self.weights.experts(prepared.operands[1].weight()).matrices()[expert];
        let out = prepared.output.view();
        let tokens = out.shape.rows.at(self.rows);
        let (input, output) = (self.matmul_input(prepared, tokens), self.matmul_output(out, tokens));
        let bias = bias.then(|| {
            let all = self.weights.vector(prepared.operands[3].weight());
            &all[expert * weights.rows()..][..weights.rows()]
        });
        let chosen = prepared.operands[2].view();
        let used = chosen.shape.cols;
        let input_per_pair = match prepared.op {
            CpuOp::QuantizedMoeLinear { k, .. } => k != weights.cols(),
            _ => prepared.operands[0].view().shape.cols != weights.cols(),
        };
        let run = |list: &[u32]| {
            let pairs = ExpertPairs { list, experts_used: used, input_per_pair };
            // SAFETY: the counter assigns these columns of this expert to only one thread, and a pair has one expert.
            unsafe {
                matmul_expert_groups(self.isa, weights, input, &output, pairs, groups.clone(), bias);
            }
        };
        let mut batch = [0u32; BATCH];
        let mut count = 0;
        for token in 0..tokens {
            for (choice, &id) in chosen.row::<i32>(self.arena, token).iter().enumerate() {
                if id as usize == expert {
                    batch[count] = (token * used + choice) as u32;
                    count += 1;
                }
                if count == BATCH {
                    run(&batch);
                    count = 0;
                }
            }
        }
        run(&batch[..count]);
    }

    /// Some channels of a short convolution, for all rows in order.
    fn short_conv(&self, prepared: &PreparedOp, kernel: usize, channel: usize) {
        let [x, weight, state, read, write] = &prepared.operands[..] else {
            unreachable!("a short convolution has five operands")
        };
        let (x, out) = (x.view(), prepared.output.view());
        let layer = &self.state.recurrent.layers()[state.state()];
        let cols = TILE_COLS.min(x.shape.cols - channel);
        let weights = &self.weights.vector(weight.weight())[channel * kernel..][..cols * kernel];
        let weights = ConvWeights::new(kernel, weights);
        for row in 0..x.shape.rows.at(self.rows) {
            let (before, history) = self.state_tiles(read, write, row, |slot| layer.history(slot, channel));
            let x: &[f32] = x.row(self.arena, row);
            // SAFETY: one task computes these columns of all rows, and by the plan no other value uses their bytes.
            let out = unsafe { out.columns_mut(self.arena, row, channel..channel + cols) };
            recurrence::short_conv(self.isa, &weights, before, history, &x[channel..][..cols], out);
        }
    }

    /// Some value columns of one head of a delta net, for all rows in order.
    fn gated_delta(&self, prepared: &PreparedOp, heads: DeltaHeads, head: usize, column: usize) {
        let [qkv, alpha, beta, bias, rate, state, read, write] = &prepared.operands[..] else {
            unreachable!("a delta net has eight operands")
        };
        let DeltaHeads { key_heads, key_dim, value_dim, .. } = heads;
        let layer = &self.state.recurrent.layers()[state.state()];
        let gate = |gate: &Source, row: usize| gate.view().row::<f32>(self.arena, row)[head];
        let weight = |weight: &Source| self.weights.vector(weight.weight())[head];
        let (bias, rate) = (weight(bias), weight(rate));
        let cols = TILE_COLS.min(value_dim - column);
        let start = head * value_dim + column;
        let keys = key_heads * key_dim;
        let q_at = head % key_heads * key_dim;
        let query_length = 1.0 / (key_dim as f32).sqrt();
        let (mut q, mut k) = ([0.0; MAX_KEY_DIM], [0.0; MAX_KEY_DIM]);
        let (q, k) = (&mut q[..key_dim], &mut k[..key_dim]);
        for row in 0..qkv.view().shape.rows.at(self.rows) {
            let (before, tile) = self.state_tiles(read, write, row, |slot| layer.delta(slot, head, column));
            let x: &[f32] = qkv.view().row(self.arena, row);
            recurrence::l2_normalize(self.isa, &x[q_at..][..key_dim], query_length, q);
            recurrence::l2_normalize(self.isa, &x[keys + q_at..][..key_dim], 1.0, k);
            let row_of_head = DeltaRow {
                q,
                k,
                v: &x[2 * keys + start..][..cols],
                decay: recurrence::decay(gate(alpha, row), bias, rate),
                beta: recurrence::sigmoid(gate(beta, row)),
            };
            // SAFETY: one task computes these columns of all rows, and by the plan no other value uses their bytes.
            let out = unsafe { prepared.output.view().columns_mut(self.arena, row, start..start + cols) };
            recurrence::gated_delta(self.isa, &row_of_head, before, tile, out);
        }
    }

    /// The state of a tile before a row, and where the row writes it.
    fn state_tiles<'a>(
        &self,
        read: &Source,
        write: &Source,
        row: usize,
        tile: impl Fn(usize) -> Tile<'a>,
    ) -> (Before<'a>, &'a mut [f32]) {
        let read = read.view().row::<i32>(self.arena, row)[0];
        let write = self.index(write.view(), row);
        // SAFETY: one task advances this tile of every slot, row by row, and no other thread reads it in this phase. If a row
        // reads the slot that it writes, it is updated in place and not borrowed again.
        let after = unsafe { tile(write).as_mut_slice() };
        match usize::try_from(read) {
            Err(_) => (Before::Zeros, after),
            Ok(read) if read == write => (Before::InPlace, after),
            Ok(read) => (Before::At(tile(read).as_slice()), after),
        }
    }

    /// An index from an input.
    fn index(&self, view: &ArenaView, row: usize) -> usize {
        usize::try_from(view.row::<i32>(self.arena, row)[0]).expect("indices are not negative")
    }

    fn poison(&self, freed: &[(usize, usize)]) {
        for &(offset, bytes) in freed {
            // SAFETY: called between two barriers, by one thread; and no value is live in these bytes.
            unsafe { self.arena.slice_at_mut::<u8>(offset, bytes) }.fill(POISON);
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
