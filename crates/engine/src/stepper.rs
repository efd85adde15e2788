//! The stepper: loaded models, the KV cache and recurrent states of all sequences, and the step. A step is one forward pass over a
//! batch of rows, as in vLLM's model runner; a row is one token, or embedding, at one position of a sequence.

use crate::memory::MemoryGuard;
use crate::row::{
    NextOutput, Row, RowError, RowInput, RowOutcome, RowOutcomes, RowOutputs, StepError, StepOutputs,
};
use crate::sampler_rows::SamplerRows;
use crate::sequence_spec::rope_context;
use crate::{Draw, Hyperparameters, LoadOptions, MAX_ROWS, Sample, SequenceId, StateError};
use verbatim_backend::{Backend, BindError, FilledInput, InputBinding, Outputs, Profile, StateStore};
use verbatim_graph::RowCounts;
use verbatim_models::{
    Drafting, FeatureDraft, Follower, HadamardKv, HiddenOutput, Model, ModelOffsets, NextOutputs, StepShape,
    inputs,
};
use verbatim_plan::{CacheStatistics, ProgramCache};
use verbatim_state::{Batch, Digest, ModelId, ModelSpec, PageTables, State};

/// Loaded models, the sequences whose KV cache they share, and the memory to run steps in. The first model is the target; the
/// others are draft models, whose layers are extra KV layers of the same sequences.
pub struct Stepper<B: Backend> {
    pub(crate) backend: B,
    pub(crate) weights: B::Weights,
    /// By [`ModelId`].
    pub(crate) models: Vec<Loaded>,
    pub(crate) memory: SequenceMemory<B>,
    pub(crate) options: LoadOptions,
    /// The draft models whose follow passes are part of the target's steps.
    following: Vec<ModelId>,
    pub(crate) guard: MemoryGuard,
    programs: ProgramCache<ProgramKey, B::Program>,
    arena: B::Arena,
    scratch: Scratch,
}

/// The KV cache, recurrent states and metadata of all sequences, without the models. [`Stepper::swap_memory`] exchanges it.
pub struct SequenceMemory<B: Backend> {
    pub(crate) state: State<B::State>,
    /// By [`ModelId`].
    pub(crate) hadamard: Vec<HadamardKv>,
}

/// A model whose weights are loaded.
pub(crate) struct Loaded {
    pub(crate) model: Box<dyn Model>,
    pub(crate) offsets: ModelOffsets,
    /// Its per-sequence state.
    pub(crate) spec: ModelSpec,
    pub(crate) digest: Digest,
    /// Samples in the graph where a sampler allows it.
    pub(crate) backend_sampling: bool,
}

/// The key of a compiled program: everything that varies in the shapes of one stepper's steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct ProgramKey {
    model: usize,
    bounds: Option<RowCounts>,
    embeddings: bool,
    /// Cells of the longest tree path, rounded up to a power of two; 0 for chains.
    path_len: usize,
    hidden_outputs: Vec<HiddenOutput>,
    /// The draft models that follow.
    followers: Vec<ModelId>,
    next: NextOutputs,
    /// Properties of the current [`SequenceMemory`], which may be swapped.
    page_table: [usize; 2],
    rope_context: usize,
    hadamard: HadamardKv,
}

/// Buffers that are reused from step to step, so that a step allocates nothing.
#[derive(Default)]
struct Scratch {
    key: ProgramKey,
    batch: Batch,
    /// Sequence and KV index of the rows in `looked_up`.
    kv_indices: Vec<(SequenceId, usize)>,
    /// Rows of the step that were looked up: those not rejected before, by their index in the step.
    looked_up: Vec<usize>,
    /// The rows that are computed, by their index in the step.
    run_rows: Vec<usize>,
    /// By row of the step.
    outcomes: RowOutcomes,
    samplers: SamplerRows,
}

impl<B: Backend> Stepper<B> {
    pub(crate) fn from_parts(
        backend: B,
        weights: B::Weights,
        model: Loaded,
        memory: SequenceMemory<B>,
        options: LoadOptions,
    ) -> Stepper<B> {
        Stepper {
            backend,
            weights,
            models: vec![model],
            memory,
            options,
            following: Vec::new(),
            guard: MemoryGuard::new(options.memory),
            programs: ProgramCache::default(),
            arena: B::Arena::default(),
            scratch: Scratch::default(),
        }
    }

    /// The target's hyperparameters.
    pub fn hyperparameters(&self) -> &Hyperparameters {
        self.models[0].model.hyperparameters()
    }

    /// Maximum number of positions of a sequence.
    pub fn context(&self) -> usize {
        self.memory.state.context()
    }

    /// The context size that LongRoPE's factors are chosen by.
    pub(crate) fn rope_context(&self) -> usize {
        rope_context(&*self.models[0].model, &self.options)
    }

    /// Bytes of all weights in memory.
    pub fn weight_bytes(&self) -> usize {
        self.backend.weight_bytes(&self.weights)
    }

    /// The backend that steps run on.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The backend, to measure or to profile it.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Starts a new profile, or stops recording and keeps the profile.
    pub fn set_profiling(&mut self, on: bool) {
        self.backend.set_profiling(on);
    }

    /// The profile since profiling was last turned on, if the backend has one.
    pub fn profile(&self) -> Option<&Profile> {
        self.backend.profile()
    }

    /// How many programs were compiled (which includes memory planning) and reused.
    pub fn statistics(&self) -> CacheStatistics {
        self.programs.statistics()
    }

    /// The cached programs, each with its maximum row counts.
    pub fn programs(&self) -> impl Iterator<Item = (RowCounts, &B::Program)> {
        self.programs.iter().filter_map(|(key, program)| Some((key.bounds?, program)))
    }

    /// Replaces the memory of all sequences and returns the old one. The new one comes from [`Stepper::new_memory`].
    pub fn swap_memory(&mut self, memory: SequenceMemory<B>) -> SequenceMemory<B> {
        std::mem::replace(&mut self.memory, memory)
    }

    /// Turns the follow pass of a draft model on or off. What the target computes while it is off stays unknown to the draft model.
    pub fn set_following(&mut self, draft: ModelId, is_on: bool) {
        self.following.retain(|other| *other != draft);
        if is_on && self.feature_draft(draft).is_some() {
            self.following.push(draft);
            self.following.sort_unstable();
        }
    }

    /// The method of a draft model that reads the target's hidden states, by llama.cpp's name for it.
    pub fn draft_method(&self, model: ModelId) -> Option<&'static str> {
        self.feature_draft(model).map(|draft| draft.method())
    }

    /// A draft model that reads the target's hidden states.
    pub(crate) fn feature_draft(&self, model: ModelId) -> Option<&dyn FeatureDraft> {
        self.models.get(model.index())?.model.feature_draft()
    }

    /// Computes rows with the target: stores K and V of each row in its cell and returns the wanted outputs.
    ///
    /// A row attends to the positions on its path up to its own; those must be committed, or in flight and computed in this step or
    /// an earlier one. The rows of a sequence are in ascending order of their KV indices. If a sequence has an invalid row, only that
    /// sequence is skipped: [`StepOutputs::row`] returns the error.
    ///
    /// # Errors
    /// If there are no rows or too many, or the run fails. Then these KV indices and their descendants count as not computed;
    /// committed positions are unaffected.
    pub fn step(&mut self, rows: &[Row<'_>]) -> Result<StepOutputs<'_, B::Outputs<'_>>, StepError> {
        self.step_with(ModelId::TARGET, rows)
    }

    /// As [`Stepper::step`], with the given model: the target, or an appended draft model.
    ///
    /// # Errors
    /// As for [`Stepper::step`].
    pub fn step_with(
        &mut self,
        model: ModelId,
        rows: &[Row<'_>],
    ) -> Result<StepOutputs<'_, B::Outputs<'_>>, StepError> {
        if rows.is_empty() || rows.len() > MAX_ROWS {
            return Err(StepError::RowCount(rows.len()));
        }
        self.validate_rows(model, rows);
        if self.scratch.run_rows.is_empty() {
            return Ok(StepOutputs { run: None, outcomes: &self.scratch.outcomes });
        }
        let count = self.set_key(model, rows)?;
        let Stepper { backend, weights, models, memory, programs, arena, scratch, .. } = self;
        let SequenceMemory { state, hadamard: memory_hadamard } = memory;
        let Scratch { key, batch, kv_indices, looked_up, run_rows, outcomes, samplers } = scratch;
        let program = programs.get_or_build(key, || {
            let loaded = &models[model.index()];
            let followers: Vec<Follower<'_>> = key
                .followers
                .iter()
                .filter_map(|draft| {
                    let Loaded { model, offsets, .. } = &models[draft.index()];
                    let hadamard = memory_hadamard[draft.index()];
                    Some(Follower { draft: model.feature_draft()?, offsets: *offsets, hadamard })
                })
                .collect();
            let graph = loaded.model.build(&key.shape(loaded.offsets, state.windows(), count), &followers)?;
            let program = backend.prepare(&graph, weights)?;
            Ok::<_, StepError>((graph, program))
        })?;
        // Until the run has succeeded, these rows and their descendants count as not computed.
        let feature_drafts = models.iter().map(|loaded| loaded.model.feature_draft());
        let draft = models[model.index()].model.feature_draft();
        let begun = || batch.accepted_rows.iter().map(|&accepted| kv_indices[accepted]);
        state.begin_compute(model, begun())?;
        if model == ModelId::TARGET {
            // What a draft model has stored for these positions while drafting is not what it stores as a follower.
            for (index, _) in feature_drafts.enumerate().filter(|(_, draft)| draft.is_some()) {
                state.begin_compute(ModelId::from_index(index), begun())?;
            }
        }
        let (store, tables) = state.store_and_page_tables();
        let run_outputs = backend.run(program, arena, count, weights, store, |input| {
            StepInputs { rows, run_rows, batch, tables: &tables, samplers, draft }.fill(input)
        })?;
        for computed_by in [model].iter().chain(&key.followers) {
            let computed = batch.accepted_rows.iter().map(|&accepted| {
                let ((sequence, kv_index), row) = (kv_indices[accepted], looked_up[accepted]);
                (sequence, kv_index, rows[row].token())
            });
            state.computed(*computed_by, computed)?;
        }
        sample_rows(rows, run_rows, samplers, &run_outputs, outcomes);
        Ok(StepOutputs { run: Some(run_outputs), outcomes })
    }

    /// Finds which rows can be computed, and looks up where each reads and writes.
    fn validate_rows(&mut self, model: ModelId, rows: &[Row<'_>]) {
        let hyperparameters = self.models[model.index()].model.hyperparameters();
        let Hyperparameters { vocabulary, hidden, .. } = *hyperparameters;
        let Scratch { batch, kv_indices, looked_up, run_rows, outcomes, .. } = &mut self.scratch;
        outcomes.begin(rows.len());
        for (index, row) in rows.iter().enumerate() {
            match row.input {
                RowInput::Token(token) if token as usize >= vocabulary => {
                    outcomes.reject(rows, index, RowError::Token { token, vocabulary });
                }
                RowInput::Embedding(x) if x.len() != hidden => {
                    outcomes.reject(rows, index, RowError::Embedding { given: x.len(), hidden });
                }
                RowInput::Token(_) | RowInput::Embedding(_) => {}
            }
        }
        let state = &self.memory.state;
        look_up_rows(state, model, rows, outcomes, kv_indices, looked_up, batch);
        // Cells that a draft model has not computed hold garbage. Only models that read the target's hidden states mask them.
        let draft = self.models[model.index()].model.feature_draft();
        if model != ModelId::TARGET && (draft.is_some() || batch.computed_from.iter().any(|&start| start > 0))
        {
            let layers = &self.models[model.index()].spec.layers;
            for (index, &accepted) in batch.accepted_rows.iter().enumerate() {
                let (start, position) =
                    (batch.computed_from[index] as usize, batch.positions[index] as usize);
                let lacks = match draft {
                    Some(draft) => draft.valid_from(start) > position,
                    None => layers.iter().any(|layer| layer.first_visible(position) < start),
                };
                if lacks {
                    outcomes.reject(
                        rows,
                        looked_up[accepted],
                        RowError::DraftNotComputed { kv_index: kv_indices[accepted].1, start },
                    );
                }
            }
            look_up_rows(state, model, rows, outcomes, kv_indices, looked_up, batch);
        }
        run_rows.clear();
        run_rows.extend(batch.accepted_rows.iter().map(|&accepted| looked_up[accepted]));
    }

    /// Sets the key of the step's program, and lowers the samplers of its rows; returns the row counts of the run.
    fn set_key(&mut self, model: ModelId, rows: &[Row<'_>]) -> Result<RowCounts, StateError> {
        let rope_context = self.rope_context();
        let Hyperparameters { vocabulary, .. } = *self.models[model.index()].model.hyperparameters();
        let state = &self.memory.state;
        let Scratch { key, batch, run_rows, samplers, .. } = &mut self.scratch;
        let mut count = RowCounts { rows: run_rows.len(), output_rows: 0 };
        samplers.begin();
        let drafting = self.models[model.index()].model.feature_draft().map(|draft| draft.drafting());
        // A row of a block becomes the token in its place; other rows sample the one after it.
        let ahead = u64::from(!matches!(drafting, Some(Drafting::Block { .. })));
        key.embeddings = false;
        key.hidden_outputs.clear();
        for (index, row) in run_rows.iter().map(|&row| &rows[row]).enumerate() {
            if row.want.is_output_row() {
                count.output_rows += 1;
                // Noise is keyed by the absolute position, including tokens removed by a context shift, so that it never repeats.
                let position =
                    state.removed_count(row.sequence)? as u64 + batch.positions[index] as u64 + ahead;
                samplers.push(row, position, vocabulary, self.models[model.index()].backend_sampling);
            }
            key.embeddings |= matches!(row.input, RowInput::Embedding(_));
            for output in row.want.hidden {
                if !key.hidden_outputs.contains(output) {
                    key.hidden_outputs.push(*output);
                }
            }
        }
        key.hidden_outputs.sort_unstable();
        key.followers.clear();
        // Draft models know tokens only.
        if model == ModelId::TARGET && !key.embeddings {
            key.followers.extend_from_slice(&self.following);
        }
        key.next = samplers.next_outputs();
        key.model = model.index();
        key.bounds = Some(RowCounts { rows: bucket(count.rows), output_rows: bucket(count.output_rows) });
        key.path_len = batch.path_len;
        key.page_table = state.page_table_shape();
        key.rope_context = rope_context;
        key.hadamard = self.memory.hadamard[model.index()];
        Ok(count)
    }

    /// Computes tokens of a sequence, in steps of at most [`MAX_ROWS`], and samples the next token. `None` if `should_continue`
    /// returned false between steps; completed steps stay committed.
    ///
    /// # Errors
    /// As for [`Stepper::step`], and if the rows are rejected. The steps before the failing one stay committed.
    pub fn advance<'a>(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        draw: impl Into<Draw<'a>>,
        mut should_continue: impl FnMut() -> bool,
    ) -> Result<Option<Sample>, StepError> {
        let draw = draw.into();
        let mut chunks = tokens.chunks(MAX_ROWS).peekable();
        while let Some(chunk) = chunks.next() {
            if !should_continue() {
                return Ok(None);
            }
            let is_last = chunks.peek().is_none();
            let sample = self.advance_chunk(sequence, chunk, is_last.then_some(draw));
            if sample.is_err() {
                self.memory.state.rollback(sequence)?;
            }
            let sample = sample?;
            self.memory.state.commit(sequence, chunk.len())?;
            if is_last {
                return Ok(sample);
            }
        }
        Err(StepError::RowCount(0))
    }

    /// Computes tokens in one step; samples the next one if there is a draw.
    fn advance_chunk(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        draw: Option<Draw<'_>>,
    ) -> Result<Option<Sample>, StepError> {
        let start = self.append(sequence, tokens.len())?;
        let blank = Row { sequence, kv_index: 0, input: RowInput::Token(0), want: RowOutputs::NONE };
        let mut rows = [blank; MAX_ROWS];
        for (i, (row, &token)) in rows.iter_mut().zip(tokens).enumerate() {
            *row = Row { kv_index: start + i, input: RowInput::Token(token), ..blank };
        }
        let last = tokens.len() - 1;
        rows[last].want = draw.map_or(RowOutputs::NONE, RowOutputs::token);
        let outputs = self.step(&rows[..tokens.len()])?;
        Ok(outputs.sample(last)?.cloned())
    }
}

impl ProgramKey {
    fn shape(&self, offsets: ModelOffsets, windows: Vec<Option<usize>>, count: RowCounts) -> StepShape {
        StepShape {
            offsets,
            bounds: self.bounds.unwrap_or(count),
            embeddings: self.embeddings,
            page_table: self.page_table,
            windows,
            hadamard: self.hadamard,
            path_len: self.path_len,
            context: self.rope_context,
            hidden_outputs: self.hidden_outputs.clone(),
            next: self.next,
        }
    }
}

impl Row<'_> {
    fn token(&self) -> Option<u32> {
        match self.input {
            RowInput::Token(token) => Some(token),
            RowInput::Embedding(_) => None,
        }
    }
}

/// Looks up where the rows that are not rejected yet read and write; rejects those for which the lookup fails.
fn look_up_rows<S: StateStore>(
    state: &State<S>,
    model: ModelId,
    rows: &[Row<'_>],
    outcomes: &mut RowOutcomes,
    kv_indices: &mut Vec<(SequenceId, usize)>,
    looked_up: &mut Vec<usize>,
    batch: &mut Batch,
) {
    kv_indices.clear();
    looked_up.clear();
    for (index, row) in rows.iter().enumerate().filter(|&(index, _)| !outcomes.is_rejected(index)) {
        kv_indices.push((row.sequence, row.kv_index));
        looked_up.push(index);
    }
    state.batch(model, kv_indices, batch);
    for (index, error) in batch.rejected.drain(..) {
        outcomes.reject(rows, looked_up[index], error.into());
    }
}

/// Records the outcome of the rows of a run, with the samples of those that want one.
fn sample_rows(
    rows: &[Row<'_>],
    run_rows: &[usize],
    samplers: &mut SamplerRows,
    run_outputs: &impl Outputs,
    outcomes: &mut RowOutcomes,
) {
    let mut output_rows = 0..;
    for (index, &row) in run_rows.iter().enumerate() {
        let want = rows[row].want;
        let output_row = want.is_output_row().then(|| output_rows.next()).flatten();
        let mut sample = None;
        if let (NextOutput::Token(draw), Some(output_row)) = (want.next, output_row) {
            match samplers.sample(draw, output_row as usize, run_outputs) {
                Ok(sampled) => {
                    sample = Some(outcomes.samples.len() as u32);
                    outcomes.samples.push(sampled);
                }
                Err(error) => {
                    outcomes.reject_row(row, error);
                    continue;
                }
            }
        }
        outcomes.rows[row] = RowOutcome::Computed { row: index as u32, output_row, sample };
    }
}

/// Rounds a row count up to a power of two.
fn bucket(rows: usize) -> usize {
    if rows == 0 { 0 } else { rows.next_power_of_two() }
}

/// What the inputs of a run are filled from.
struct StepInputs<'a> {
    rows: &'a [Row<'a>],
    /// The rows of the run, by their index in the step.
    run_rows: &'a [usize],
    batch: &'a Batch,
    tables: &'a PageTables<'a>,
    samplers: &'a SamplerRows,
    /// The model of the step, if it reads hidden states of its target.
    draft: Option<&'a dyn FeatureDraft>,
}

impl StepInputs<'_> {
    fn fill(&self, input: InputBinding<'_>) -> Result<FilledInput, BindError> {
        let StepInputs { batch, samplers, .. } = self;
        let tag = input.tag();
        let group = tag.index as usize;
        let step_rows = || self.run_rows.iter().map(|&row| &self.rows[row]);
        match tag {
            inputs::TOKENS => {
                input.i32_from(step_rows().map(|row| row.token().map_or(-1, |token| token as i32)))
            }
            inputs::POSITIONS => input.i32(&batch.positions),
            inputs::PARENT_POSITIONS => input.i32_from(batch.positions.iter().map(|at| (at - 1).max(0))),
            inputs::LAST_POSITIONS => input.i32_from(last_positions(batch)),
            inputs::SEQUENCES => input.i32(&batch.sequences),
            inputs::READ_SLOTS => input.i32(&batch.read_slots),
            inputs::WRITE_SLOTS => input.i32(&batch.write_slots),
            inputs::TREE_STARTS => input.i32(&batch.tree_starts),
            inputs::SAMPLERS => input.i32_from(samplers.words()),
            inputs::MASKS => input.i32_from(samplers.masks()),
            inputs::OUTPUT_ROWS => {
                let wanting = step_rows().enumerate().filter(|(_, row)| row.want.is_output_row());
                input.i32_from(wanting.map(|(index, _)| index as i32))
            }
            _ if tag.name == inputs::CELLS => input.i32(&batch.cells[group]),
            _ if tag.name == inputs::PARENT_CELLS => input.i32(&batch.parent_cells[group]),
            _ if tag.name == inputs::PAGES => input.i32(self.tables.for_group(group)),
            _ if tag.name == inputs::PATHS => input.i32(&batch.paths[group]),
            inputs::EMBEDDINGS => {
                let hidden = input.count() / self.run_rows.len().max(1);
                input.f32_from(step_rows().flat_map(|row| match row.input {
                    RowInput::Embedding(x) => Either::Given(x.iter().copied()),
                    RowInput::Token(_) => Either::Blank(std::iter::repeat_n(0.0, hidden)),
                }))
            }
            _ => self.fill_draft(input),
        }
    }

    /// The inputs that only draft models have.
    fn fill_draft(&self, input: InputBinding<'_>) -> Result<FilledInput, BindError> {
        match (input.tag(), self.draft) {
            (inputs::VALID_FROM, Some(draft)) => {
                let computed_from = self.batch.computed_from.iter();
                input.i32_from(computed_from.map(|&from| draft.valid_from(from as usize) as i32))
            }
            (inputs::DRAFT_VOCABULARY, Some(draft)) => input.i32(draft.vocabulary().unwrap_or_default()),
            _ => input.no_data(),
        }
    }
}

/// The last position of each row's sequence in the step.
fn last_positions(batch: &Batch) -> impl Iterator<Item = i32> {
    let rows = || batch.sequences.iter().zip(&batch.positions);
    rows().map(move |(sequence, own)| {
        let of_sequence = rows().filter(|(other, _)| *other == sequence);
        of_sequence.map(|(_, position)| *position).max().unwrap_or(*own)
    })
}

/// The elements of an embedding, or padding that is not read.
enum Either<A, B> {
    Given(A),
    Blank(B),
}

impl<A: Iterator<Item = f32>, B: Iterator<Item = f32>> Iterator for Either<A, B> {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        match self {
            Either::Given(values) => values.next(),
            Either::Blank(values) => values.next(),
        }
    }
}
