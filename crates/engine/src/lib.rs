//! A loaded model that runs steps over rows.
//!
//! A [`Row`] is a token at a position of a sequence, and says whether it wants logits. [`Engine::step`] runs any mix of
//! rows: a prompt's chunk, one token of each of many sequences, a chain of drafts. [`Engine::advance`] is the plain loop
//! over it: feed tokens to one sequence, draw the next.
//!
//! What a row gets back depends on its sequence's tokens alone, bit for bit: not on the rows beside it, on how the tokens
//! were cut into steps, on threads or on the cells that the sequence lives in.

mod chat;
mod engine;
mod generate;
mod load;
mod reading;
mod request;
mod sequences;
mod session;

/// Requests in, events out: the door through which the command line and servers use a model.
pub mod door {
    pub use crate::chat::{ChatError, ChatFormat, Message, Role};
    pub use crate::engine::{Answer, Canceller, Engine, EngineError, EngineOptions, ModelText};
    pub use crate::request::{Event, FinishReason, GenerationStats, Prompt, Request, RequestError, Sampling};
    pub use crate::session::{OpenedSession, RestoredSession, SessionError, SessionId, SessionOptions};
}

/// What requests call the type that computes.
pub(crate) use self::Engine as Stepper;

pub use load::{LoadError, LoadOptions, check};
pub use sequences::SaveError;
pub use verbatim_cpu::matrix::{Products, multiply_adds};
pub use verbatim_cpu::{Isa, KindTime, KvType, PAGE_CELLS, ProductWork, Profile};
pub use verbatim_models::{Hyperparameters, ModelError, Tap};
pub use verbatim_plan::Statistics;
pub use verbatim_sample::Sampler;
pub use verbatim_state::{
    CHECKPOINTS, Part, RestoreError, Restored, Saved, SavedError, SequenceId, StateError,
};

use std::collections::HashMap;
use verbatim_cpu::{
    Arena, BindError, Executor, ExecutorError, Filled, Outputs, PrepareError, Program, Slot, Weights,
};
use verbatim_graph::{Bounds, GraphError};
use verbatim_models::{Model, StepShape, Transformed, inputs, outputs};
use verbatim_state::State;

/// The most rows of one step.
pub const MAX_ROWS: usize = 512;

/// One token to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The sequence that it belongs to.
    pub sequence: SequenceId,
    /// Its place there, in flight: [`Engine::append`] or [`Engine::append_tree`] has reserved it. Where all that is in flight
    /// is one chain, places are positions.
    pub place: usize,
    /// The token.
    pub token: u32,
    /// Whether the logits of the token after it are wanted.
    pub wants_logits: bool,
}

/// Why a step was refused or has failed. The sequences are as they were before.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// No rows, or more than a step can have.
    #[error("a step has 1 to {MAX_ROWS} rows, not {0}")]
    RowCount(usize),
    /// A token id that the model does not have.
    #[error("token {token} is not one of the model's {vocabulary}")]
    Token {
        /// The id.
        token: u32,
        /// Tokens of the model.
        vocabulary: usize,
    },
    /// A row's place is not in flight.
    #[error("place {place} of sequence {sequence} is not in flight")]
    Place {
        /// The sequence's index.
        sequence: usize,
        /// The place.
        place: usize,
    },
    /// A row comes before the one that it follows, or again.
    #[error(
        "place {place} of sequence {sequence} is out of order: the rows of a sequence come in ascending order, each after \
         the one that it follows, or once that is computed"
    )]
    Order {
        /// The sequence's index.
        sequence: usize,
        /// The place.
        place: usize,
    },
    /// The sequence cannot take the rows.
    #[error(transparent)]
    State(#[from] StateError),
    /// The step's graph could not be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The step's graph could not be planned or does not fit the weights.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The step's inputs could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A row's logits are no numbers.
    #[error("the model computes no numbers here: every logit is a NaN; the file is damaged")]
    NotNumbers,
    /// The run has failed.
    #[error(transparent)]
    Run(#[from] ExecutorError),
}

/// What programs are made for: all that varies in the shapes of one engine's steps.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ProgramKey {
    bounds: Bounds,
    path: usize,
    taps: Vec<Tap>,
}

/// A model with its weights, its sequences and the memory to run steps in.
pub struct Engine {
    model: Box<dyn Model>,
    weights: Weights,
    executor: Executor,
    arena: Arena,
    state: State,
    transformed: Transformed,
    programs: HashMap<ProgramKey, (StepShape, Program)>,
}

/// What a step has computed. The engine stays borrowed until it has been read.
pub struct StepOutputs<'a>(Outputs<'a>);

impl StepOutputs<'_> {
    /// The logits after the `index`-th of the rows that wanted them.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        self.0.row(outputs::LOGITS, index)
    }

    /// The values of a tap point at a row of the step.
    pub fn tap(&self, tap: Tap, row: usize) -> Option<&[f32]> {
        self.0.row(outputs::tap(tap), row)
    }
}

impl Engine {
    /// The model's numbers.
    pub fn hyperparameters(&self) -> &Hyperparameters {
        self.model.hyperparameters()
    }

    /// The most positions of a sequence.
    pub fn context(&self) -> usize {
        self.state.context()
    }

    /// Bytes of the weights in memory.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.executor.isa()
    }

    /// Memory plans built and reused.
    pub fn statistics(&self) -> Statistics {
        self.executor.statistics()
    }

    /// Begins a new profile of the steps that follow, or ends recording and keeps what was recorded.
    pub fn set_profiling(&mut self, on: bool) {
        self.executor.set_profiling(on);
    }

    /// What the steps have taken since profiling was last turned on.
    pub fn profile(&self) -> &Profile {
        self.executor.profile()
    }

    /// The programs made so far, one per bucket of rows in use: for their plans.
    pub fn programs(&self) -> impl Iterator<Item = (&StepShape, &Program)> {
        self.programs.values().map(|(shape, program)| (shape, program))
    }

    /// Computes rows: stores the K and V of each in its cell and returns what was asked for.
    ///
    /// A row sees the positions on its path up to its own; those must be committed, or in flight and computed in this step or
    /// one before. The rows of a sequence come in ascending order of their places.
    ///
    /// # Errors
    /// If the rows are not so, or the run fails. What was computed before of the places given, and of those that follow
    /// them, is lost then; what is committed is not.
    pub fn step(&mut self, rows: &[Row], taps: Vec<Tap>) -> Result<StepOutputs<'_>, StepError> {
        let path = self.check(rows)?;
        let picked = rows.iter().filter(|row| row.wants_logits).count();
        let bounds = Bounds { rows: bucket(rows.len()), picked: bucket(picked) };
        let key = ProgramKey { bounds, path: bucket(path), taps };
        if self.programs.contains_key(&key) {
            self.executor.count_reuse();
        } else {
            let shape = StepShape {
                bounds,
                page_table: self.state.page_table_shape(),
                windows: self.state.windows(),
                transformed: self.transformed,
                path: key.path,
                context: self.state.context(),
                taps: key.taps.clone(),
            };
            let program = self.executor.prepare(&self.model.build(&shape)?, &self.weights)?;
            self.programs.insert(key.clone(), (shape, program));
        }
        // Until the run has ended well, what was computed of these rows and of those that follow them is lost.
        for (index, row) in rows.iter().enumerate() {
            if !rows[..index].iter().rev().take(1).any(|before| before.sequence == row.sequence) {
                self.state.forget_computed(row.sequence, row.place)?;
            }
        }
        let (_, program) = &self.programs[&key];
        let state = &self.state;
        let bound = program.bind(&mut self.arena, Bounds { rows: rows.len(), picked }, |slot| {
            fill(slot, rows, state, key.path)
        })?;
        let outputs = self.executor.run(bound, &self.weights, self.state.memory_mut())?;
        for row in rows {
            self.state.set_computed(row.sequence, row.place, row.token)?;
        }
        Ok(StepOutputs(outputs))
    }

    /// Whether the rows can be computed together; returns the longest path in flight, 0 if there are only chains.
    fn check(&self, rows: &[Row]) -> Result<usize, StepError> {
        if rows.is_empty() || rows.len() > MAX_ROWS {
            return Err(StepError::RowCount(rows.len()));
        }
        let vocabulary = self.hyperparameters().vocabulary;
        let mut path = 0;
        for (index, &Row { sequence, place, token, .. }) in rows.iter().enumerate() {
            if token as usize >= vocabulary {
                return Err(StepError::Token { token, vocabulary });
            }
            if self.state.position(sequence, place).is_none() {
                return Err(StepError::Place { sequence: sequence.index(), place });
            }
            if !self.follows(&rows[..index], sequence, place) {
                return Err(StepError::Order { sequence: sequence.index(), place });
            }
            path = path.max(self.state.path_len(sequence, place).unwrap_or(0));
        }
        Ok(path)
    }

    /// Whether a place can be computed after the rows before it in a step.
    fn follows(&self, before: &[Row], sequence: SequenceId, place: usize) -> bool {
        let mut own =
            before.iter().rev().filter(|row| row.sequence == sequence).map(|row| row.place).peekable();
        if own.peek().is_some_and(|&last| last >= place) {
            return false;
        }
        let state = &self.state;
        let Some(parent) = state.parent(sequence, place) else { return true };
        // A row that shares the memory of the parent's state may not come between.
        match own.find(|&row| row == parent || state.shares_slot(sequence, row, parent)) {
            Some(row) => row == parent,
            None => {
                // Nor may one that the parent follows: the parent would have to be computed again, too.
                let mut at = Some(parent);
                let is_in_step =
                    |place| before.iter().any(|row| row.sequence == sequence && row.place == place);
                while let Some(place) = at {
                    if is_in_step(place) {
                        return false;
                    }
                    at = state.parent(sequence, place);
                }
                state.can_compute(sequence, place)
            }
        }
    }

    /// Feeds tokens to a sequence, in steps of at most [`MAX_ROWS`], and draws the token that follows them. `None` if
    /// `go_on` said no between steps; what was fed until then stays.
    ///
    /// # Errors
    /// As for [`Engine::step`]. The steps before the failing one stay committed.
    pub fn advance(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        sampler: &Sampler,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<u32>, StepError> {
        let mut chunks = tokens.chunks(MAX_ROWS).peekable();
        let mut rows = [Row { sequence, place: 0, token: 0, wants_logits: false }; MAX_ROWS];
        while let Some(chunk) = chunks.next() {
            if !go_on() {
                return Ok(None);
            }
            let start = self.state.append(sequence, chunk.len())?.start;
            let is_last = chunks.peek().is_none();
            for (i, &token) in chunk.iter().enumerate() {
                let wants_logits = is_last && i + 1 == chunk.len();
                rows[i] = Row { sequence, place: start + i, token, wants_logits };
            }
            // Noise is keyed by how many tokens there were, also those that are no longer there: it must not repeat.
            let position = (self.state.removed(sequence)? + start + chunk.len()) as u64;
            let drawn = self.step(&rows[..chunk.len()], Vec::new()).and_then(|outputs| {
                let draw = |logits| sampler.pick(logits, position).ok_or(StepError::NotNumbers);
                outputs.logits(0).map(draw).transpose()
            });
            if drawn.is_err() {
                self.state.rollback(sequence)?;
            }
            let drawn = drawn?;
            self.state.commit(sequence, chunk.len())?;
            if is_last {
                return Ok(drawn);
            }
        }
        Err(StepError::RowCount(0))
    }
}

/// The bound on a number of rows: the next power of two.
fn bucket(rows: usize) -> usize {
    if rows == 0 { 0 } else { rows.next_power_of_two() }
}

/// Fills the input of a slot. `path` is the most cells of a row's path.
fn fill(slot: Slot<'_>, rows: &[Row], state: &State, path: usize) -> Result<Filled, BindError> {
    const CHECKED: &str = "checked before the step was bound";
    let row_inputs = |value: fn(&Row) -> usize| rows.iter().map(move |row| value(row) as i32);
    let positions = || rows.iter().map(|row| state.position(row.sequence, row.place).expect(CHECKED));
    let slots = |row: &Row| state.slots(row.sequence, row.place).expect(CHECKED);
    let tag = slot.tag();
    let kind = tag.index as usize;
    let cell = |row: &Row, place| state.cell(row.sequence, kind, place).expect(CHECKED) as i32;
    match tag {
        inputs::TOKENS => slot.i32_from(row_inputs(|row| row.token as usize)),
        inputs::POSITIONS => slot.i32_from(positions().map(|position| position as i32)),
        inputs::SEQUENCES => slot.i32_from(row_inputs(|row| row.sequence.index())),
        inputs::READ_SLOTS => slot.i32_from(rows.iter().map(|row| slots(row)[0])),
        inputs::WRITE_SLOTS => slot.i32_from(rows.iter().map(|row| slots(row)[1])),
        inputs::PICKED => {
            let picked = rows.iter().enumerate().filter(|(_, row)| row.wants_logits);
            slot.i32_from(picked.map(|(index, _)| index as i32))
        }
        inputs::BASES => slot.i32_from(rows.iter().zip(positions()).map(|(row, position)| {
            let len = state.path_len(row.sequence, row.place);
            // A row without a path reads all its positions from pages.
            (position + 1 - len.unwrap_or(0)) as i32
        })),
        _ if tag.name == inputs::CELLS => slot.i32_from(rows.iter().map(|row| cell(row, row.place))),
        _ if tag.name == inputs::PAGES => slot.i32(state.page_table(kind)),
        _ if tag.name == inputs::PATHS => slot.i32_from(rows.iter().flat_map(|row| {
            let places = state.path(row.sequence, row.place).unwrap_or_default();
            let cells: Vec<i32> = places.into_iter().map(|place| cell(row, place)).collect();
            cells.into_iter().chain(std::iter::repeat(0)).take(path)
        })),
        _ => slot.unknown(),
    }
}
