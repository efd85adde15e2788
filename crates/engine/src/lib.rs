//! A loaded model that runs steps over rows.
//!
//! A [`Row`] is a token at a position of a sequence, and says whether it wants logits. [`Engine::step`] runs any mix of
//! rows: a prompt's chunk, one token of each of many sequences, a chain of drafts. [`Engine::advance`] is the plain loop
//! over it: feed tokens to one sequence, draw the next.
//!
//! What a row gets back depends on its sequence's tokens alone, bit for bit: not on the rows beside it, on how the tokens
//! were cut into steps, on threads or on the cells that the sequence lives in.

mod load;

pub use load::{LoadError, LoadOptions, check};
pub use verbatim_cpu::matrix::{Products, multiply_adds};
pub use verbatim_cpu::{Isa, KindTime, KvType, PAGE_CELLS, ProductWork, Profile};
pub use verbatim_models::{Hyperparameters, ModelError, Tap};
pub use verbatim_plan::Statistics;
pub use verbatim_sample::Sampler;
pub use verbatim_state::{CHECKPOINTS, SequenceId, StateError};

use std::collections::HashMap;
use verbatim_cpu::{
    Arena, BindError, Executor, ExecutorError, Outputs, PrepareError, Program, Slot, Weights,
};
use verbatim_graph::{Bounds, GraphError};
use verbatim_models::{Model, StepShape, inputs, outputs};
use verbatim_state::State;

/// The most rows of one step.
pub const MAX_ROWS: usize = 512;

/// One token to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The sequence that it belongs to.
    pub sequence: SequenceId,
    /// Its position there, reserved by [`Engine::append`] or a committed one.
    pub position: usize,
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
    /// A row's position was not reserved.
    #[error("position {position} of sequence {sequence} is neither committed nor in flight")]
    Position {
        /// The sequence's index.
        sequence: usize,
        /// The position.
        position: usize,
    },
    /// A row of a recurrent model does not follow the one before it in its sequence.
    #[error(
        "position {position} of sequence {sequence} is out of order: a recurrent model computes those in flight one by one"
    )]
    Order {
        /// The sequence's index.
        sequence: usize,
        /// The position.
        position: usize,
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

/// A model with its weights, its sequences and the memory to run steps in.
pub struct Engine {
    model: Box<dyn Model>,
    weights: Weights,
    executor: Executor,
    arena: Arena,
    state: State,
    programs: HashMap<StepShape, Program>,
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
        self.programs.iter()
    }

    /// A new, empty sequence.
    pub fn begin(&mut self) -> Result<SequenceId, StateError> {
        self.state.begin()
    }

    /// Ends a sequence.
    pub fn end(&mut self, sequence: SequenceId) -> Result<(), StateError> {
        self.state.end(sequence)
    }

    /// Positions that a sequence has committed.
    pub fn len(&self, sequence: SequenceId) -> Result<usize, StateError> {
        self.state.len(sequence)
    }

    /// Whether a sequence has committed nothing.
    pub fn is_empty(&self, sequence: SequenceId) -> Result<bool, StateError> {
        self.state.is_empty(sequence)
    }

    /// Reserves `count` positions in flight; returns the first.
    pub fn append(&mut self, sequence: SequenceId, count: usize) -> Result<usize, StateError> {
        self.state.append(sequence, count).map(|positions| positions.start)
    }

    /// Keeps the first `count` positions in flight.
    pub fn commit(&mut self, sequence: SequenceId, count: usize) -> Result<(), StateError> {
        self.state.commit(sequence, count)
    }

    /// Drops the positions in flight.
    pub fn rollback(&mut self, sequence: SequenceId) -> Result<(), StateError> {
        self.state.rollback(sequence)
    }

    /// Whether layers carry a state from position to position. Such a sequence cannot be truncated but to 0, and of more
    /// than [`CHECKPOINTS`] positions in flight only the last so many can be told apart when it is committed.
    pub fn recurs(&self) -> bool {
        self.state.recurs()
    }

    /// Forgets all positions of a sequence from `len` on.
    pub fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), StateError> {
        self.state.truncate(sequence, len)
    }

    /// Computes rows: stores the K and V of each in its cell and returns what was asked for.
    ///
    /// A row sees the positions up to its own; those must be committed, or in flight and computed in this step or one
    /// before. Models with recurrent layers compute positions in flight only, those of a sequence in ascending order.
    pub fn step(&mut self, rows: &[Row], taps: Vec<Tap>) -> Result<StepOutputs<'_>, StepError> {
        self.check(rows)?;
        let picked = rows.iter().filter(|row| row.wants_logits).count();
        let bounds = Bounds { rows: bucket(rows.len()), picked: bucket(picked) };
        let (page_table, context) = (self.state.page_table_shape(), self.state.context());
        let shape = StepShape { bounds, page_table, context, taps };
        if self.programs.contains_key(&shape) {
            self.executor.count_reuse();
        } else {
            let program = self.executor.prepare(&self.model.build(&shape)?, &self.weights)?;
            self.programs.insert(shape.clone(), program);
        }
        if self.state.recurs() {
            // Until the run has ended well, the states from the first row of each sequence on are lost.
            for row in rows.iter().rev() {
                self.state.set_computed(row.sequence, row.position)?;
            }
        }
        let program = &self.programs[&shape];
        let state = &self.state;
        let bound = program
            .bind(&mut self.arena, Bounds { rows: rows.len(), picked }, |slot| fill(slot, rows, state))?;
        let outputs = self.executor.run(bound, &self.weights, self.state.memory_mut())?;
        if self.state.recurs() {
            for row in rows {
                self.state.set_computed(row.sequence, row.position + 1)?;
            }
        }
        Ok(StepOutputs(outputs))
    }

    fn check(&self, rows: &[Row]) -> Result<(), StepError> {
        if rows.is_empty() || rows.len() > MAX_ROWS {
            return Err(StepError::RowCount(rows.len()));
        }
        let vocabulary = self.hyperparameters().vocabulary;
        for (index, &Row { sequence, position, token, .. }) in rows.iter().enumerate() {
            if token as usize >= vocabulary {
                return Err(StepError::Token { token, vocabulary });
            }
            if self.state.cell(sequence, position).is_none() {
                return Err(StepError::Position { sequence: sequence.index(), position });
            }
            if self.state.recurs() {
                let before = rows[..index].iter().rev().find(|row| row.sequence == sequence);
                let follows = match before {
                    Some(before) => before.position + 1 == position,
                    None => self.state.can_compute(sequence, position),
                };
                if !follows || self.state.slots(sequence, position).is_none() {
                    return Err(StepError::Order { sequence: sequence.index(), position });
                }
            }
        }
        Ok(())
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
        let mut rows = [Row { sequence, position: 0, token: 0, wants_logits: false }; MAX_ROWS];
        while let Some(chunk) = chunks.next() {
            if !go_on() {
                return Ok(None);
            }
            let start = self.state.append(sequence, chunk.len())?.start;
            let is_last = chunks.peek().is_none();
            for (i, &token) in chunk.iter().enumerate() {
                let wants_logits = is_last && i + 1 == chunk.len();
                rows[i] = Row { sequence, position: start + i, token, wants_logits };
            }
            let position = (start + chunk.len()) as u64;
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

fn fill(slot: Slot<'_>, rows: &[Row], state: &State) -> Result<verbatim_cpu::Filled, BindError> {
    let row_inputs = |value: fn(&Row) -> usize| rows.iter().map(move |row| value(row) as i32);
    let slots =
        |row: &Row| state.slots(row.sequence, row.position).expect("checked before the step was bound");
    match slot.tag() {
        inputs::TOKENS => slot.i32_from(row_inputs(|row| row.token as usize)),
        inputs::POSITIONS => slot.i32_from(row_inputs(|row| row.position)),
        inputs::SEQUENCES => slot.i32_from(row_inputs(|row| row.sequence.index())),
        inputs::CELLS => slot.i32_from(rows.iter().map(|row| {
            state.cell(row.sequence, row.position).expect("checked before the step was bound") as i32
        })),
        inputs::READ_SLOTS => slot.i32_from(rows.iter().map(|row| slots(row)[0])),
        inputs::WRITE_SLOTS => slot.i32_from(rows.iter().map(|row| slots(row)[1])),
        inputs::PAGES => slot.i32(state.page_table()),
        inputs::PICKED => {
            let picked = rows.iter().enumerate().filter(|(_, row)| row.wants_logits);
            slot.i32_from(picked.map(|(index, _)| index as i32))
        }
        _ => slot.unknown(),
    }
}
