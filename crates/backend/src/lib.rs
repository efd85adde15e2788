//! The contract between a backend and the crates above it.
//!
//! A [`Backend`] keeps weights in its own layout, lays out the memory of sequences ([`StateStore`]), turns a graph into a
//! program and runs it. Nothing above may assume that a value is a host pointer: inputs are written through
//! [`InputBinding`]s, outputs read through [`Outputs`], and the state of sequences is moved in batches by cell and page.
//!
//! **The order of use is fixed by types.** [`Backend::run`] hands every live input of the program to the caller once, as an
//! [`InputBinding`] that only filling turns into a [`Filled`]: a run with an input missing cannot be written, and an input
//! that nothing reads is never asked for (llama.cpp #25191). [`Backend::Outputs`] borrow the arena and the program, so the
//! next run cannot start while somebody still reads (llama.cpp #29313).
//!
//! **What each backend promises by itself** is the row contract: an output row has the same bits whatever the rows beside it,
//! the step's width, and the number of threads. Between backends only tolerances hold.
//!
//! Invariants: this crate allocates no tensors and computes nothing; it names no backend.

mod binding;
mod kv_type;
mod profile;
mod state;
mod weights;

pub use binding::{BindError, Filled, InputBinding};
pub use kv_type::KvType;
pub use profile::{KindTime, ProductWork, Products, Profile, Recorder};
pub use state::{KShift, KvSpec, PAGE_CELLS, RecurrentSpec, StateForm, StateMemoryError, StateStore};
pub use verbatim_graph::WeightKind;
pub use weights::{PackError, WeightSource};

use verbatim_graph::{Graph, Placement, RowCounts, Tag};

/// A device, or a way to compute on one.
pub trait Backend {
    /// A growing table of weights, in the backend's layout. A graph's weight leaf with index i means the i-th.
    type Weights;
    /// A graph that is ready to run against one table of weights. Weights that are appended later do not disturb it.
    type Program;
    /// Memory for the values of a run. One arena serves any number of programs, one at a time.
    type Arena: Default;
    /// The KV cache and the recurrent states of sequences.
    type State: StateStore;
    /// What a run has computed. The arena and the program stay borrowed until it has been read.
    type Outputs<'a>: Outputs
    where
        Self: 'a;

    /// The backend and the instruction set or device that it runs on, in a word or two.
    fn describe(&self) -> String;

    /// An empty table of weights.
    fn new_weights(&self) -> Self::Weights;

    /// Appends a weight to the table.
    ///
    /// # Errors
    /// If the bytes are not those of the shape, the format is not one that can be computed with, or memory runs out.
    fn append_weight(
        &mut self,
        weights: &mut Self::Weights,
        weight: WeightSource<'_>,
    ) -> Result<(), PackError>;

    /// Bytes that the weights take.
    fn weight_bytes(&self, weights: &Self::Weights) -> usize;

    /// Memory for sequences, without layers yet: [`StateStore::append`] adds them.
    fn new_state(&self) -> Self::State;

    /// Compiles a graph to a program.
    ///
    /// # Errors
    /// If the graph cannot be planned or the weights do not fit it.
    fn prepare(&mut self, graph: &Graph, weights: &Self::Weights) -> Result<Self::Program, PrepareError>;

    /// Runs a program on `rows` rows. `fill` is called once for each live input, before anything is computed.
    ///
    /// # Errors
    /// If an input is not filled as it should be, the weights are not those that the program was made for, there is no
    /// memory, or a kernel fails. What the run was to write into the state is undefined then, and nothing else has changed.
    fn run<'a>(
        &mut self,
        program: &'a Self::Program,
        arena: &'a mut Self::Arena,
        rows: RowCounts,
        weights: &Self::Weights,
        state: &mut Self::State,
        fill: impl FnMut(InputBinding<'_>) -> Result<Filled, BindError>,
    ) -> Result<Self::Outputs<'a>, RunError>;

    /// Begins a new profile of the runs that follow, or ends recording and keeps what was recorded. A backend that cannot
    /// profile keeps an empty one.
    fn set_profiling(&mut self, on: bool) {
        let _ = on;
    }

    /// The profile since profiling was last turned on, if the backend has one.
    fn profile(&self) -> Option<&Profile> {
        None
    }

    /// Makes `rounds` rounds of the kernels' own multiply-adds on operands in cache, on every thread at once; returns
    /// how many operations that were, two for each, all threads together. `None` where there is no such measure.
    fn multiply_adds(&mut self, products: Products, rounds: usize) -> Option<u64> {
        let _ = (products, rounds);
        None
    }
}

/// What a run has computed.
pub trait Outputs {
    /// Rows of an output; `None` if the program has no such output.
    fn rows(&self, tag: Tag) -> Option<usize>;

    /// One row of an output; `None` if there is no such output or row. A backend with memory of its own brings it here.
    fn row(&self, tag: Tag, row: usize) -> Option<&[f32]>;
}

/// Why a graph cannot be run on a backend with these weights.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The rewritten graph does not hold together.
    #[error(transparent)]
    Graph(#[from] verbatim_graph::GraphError),
    /// No memory plan could be made.
    #[error(transparent)]
    Plan(#[from] verbatim_plan::PlanError),
    /// A weight is missing or of another form than the graph says.
    #[error("weight {tag}: the graph needs {wanted}, the model has {found}")]
    Weight {
        /// Which weight.
        tag: Tag,
        /// What the graph says.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// A value lives in memory that this backend does not have.
    #[error("a value is on {0:?}, which this backend cannot access")]
    Placement(Placement),
    /// The backend has no kernel for an op.
    #[error("this backend cannot compute {0}")]
    Op(&'static str),
    /// A head has more elements than the kernels are made for.
    #[error("heads of {head_dim} elements are more than the {most} that the kernels support")]
    HeadDim {
        /// Elements of a head.
        head_dim: usize,
        /// The most there may be.
        most: usize,
    },
    /// A short convolution has more inputs than the kernels are made for.
    #[error("convolutions over {kernel} inputs are longer than the {most} that the kernels support")]
    ConvKernel {
        /// Inputs of an output.
        kernel: usize,
        /// The most there may be.
        most: usize,
    },
}

/// Why a run has failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The inputs could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A kernel has panicked. The run's outputs are lost; the backend stays usable.
    #[error("a kernel has failed: {0}")]
    Panicked(String),
    /// A program was run with weights that it was not made for.
    #[error("the program was prepared for other weights")]
    OtherWeights,
}
