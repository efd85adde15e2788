//! The contract between a backend and the crates above it.
//!
//! A [`Backend`] keeps weights in its own layout, lays out the memory of sequences ([`StateStore`]), turns a graph into a
//! program and runs it. The crates above may not assume that a value is a host pointer: inputs are written through
//! [`InputBinding`]s, outputs read through [`Outputs`], and the state of sequences is moved in batches by cell and page.
//!
//! **The order of use is fixed by types.** [`Backend::run`] calls `fill` once for each live input (one that some remaining op
//! reads), passing an [`InputBinding`]. Filling it is the only way to get a [`FilledInput`], so an unfilled input is a compile
//! error, and an unused input is never requested (llama.cpp #25191). [`Backend::Outputs`] borrow the arena and the program, so
//! starting the next run while outputs are borrowed does not compile (llama.cpp #29313).
//!
//! **Every backend guarantees** batch invariance, for any number of threads: the bits of an output row do not depend on the other
//! rows of the step, on their count, or on the number of threads. Results of different backends agree only within tolerances.
//!
//! Invariants: this crate allocates no tensor memory and computes nothing; it depends on no concrete backend.

mod binding;
mod kv_type;
mod profile;
mod state;
mod weights;

pub use binding::{BindError, FilledInput, InputBinding};
pub use kv_type::KvType;
pub use profile::{MatmulKind, MatmulWork, OpTime, Profile, Recorder};
pub use state::{KShift, KvSpec, PAGE_CELLS, RecurrentSpec, StateLayers, StateMemoryError, StateStore};
pub use verbatim_graph::WeightKind;
pub use weights::{PackError, ReadError, WeightBytes, WeightSource};

use verbatim_graph::{Graph, Placement, RowCounts, Tag};

/// A device, or a way to compute on one.
pub trait Backend {
    /// A growing table of weights, in the backend's layout. A graph's weight leaf with index i refers to the i-th.
    type Weights;
    /// A graph compiled against one table of weights. Weights that are appended later do not affect it.
    type Program;
    /// Memory for the values of a run. Any number of programs can share one arena, one run at a time.
    type Arena: Default;
    /// The KV cache and the recurrent states of sequences.
    type State: StateStore;
    /// The outputs of a run. They borrow the arena and the program.
    type Outputs<'a>: Outputs
    where
        Self: 'a;

    /// A short name of the backend and of the instruction set or device that it runs on.
    fn describe(&self) -> String;

    /// An empty table of weights.
    fn new_weights(&self) -> Self::Weights;

    /// Appends a weight to the table.
    ///
    /// # Errors
    /// If the number of bytes does not match the shape, the format is not supported, the bytes cannot be read, or an allocation
    /// fails.
    fn append_weight(
        &mut self,
        weights: &mut Self::Weights,
        weight: WeightSource<'_>,
    ) -> Result<(), PackError>;

    /// Memory used by the weights, in bytes.
    fn weight_bytes(&self, weights: &Self::Weights) -> usize;

    /// Sequence state without layers: [`StateStore::append`] adds them.
    fn new_state(&self) -> Self::State;

    /// Compiles a graph to a program.
    ///
    /// # Errors
    /// If the graph cannot be planned or the weights do not fit it.
    fn prepare(&mut self, graph: &Graph, weights: &Self::Weights) -> Result<Self::Program, PrepareError>;

    /// Runs a program on `rows` rows. `fill` is called once for each live input, before anything is computed.
    ///
    /// # Errors
    /// If filling an input fails, the program was compiled against a different weight table, an allocation fails, or a kernel
    /// panics. On error, the state that the run writes is undefined, and nothing else is modified.
    fn run<'a>(
        &mut self,
        program: &'a Self::Program,
        arena: &'a mut Self::Arena,
        rows: RowCounts,
        weights: &Self::Weights,
        state: &mut Self::State,
        fill: impl FnMut(InputBinding<'_>) -> Result<FilledInput, BindError>,
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

    /// Microbenchmarks peak multiply-add throughput: runs `rounds` rounds of the kernels' own multiply-adds on operands in
    /// cache, on every thread at once. Returns the number of operations, two for each multiply-add, summed over all threads;
    /// `None` if the backend has no such benchmark.
    fn run_peak_throughput_kernel(&mut self, kind: MatmulKind, rounds: usize) -> Option<u64> {
        let _ = (kind, rounds);
        None
    }
}

/// The outputs of a run.
pub trait Outputs {
    /// Rows of an output; `None` if the program has no such output.
    fn rows(&self, tag: Tag) -> Option<usize>;

    /// One row of an output; `None` if there is no such output or row. A backend with device memory copies it to host memory.
    fn row(&self, tag: Tag, row: usize) -> Option<&[f32]>;

    /// As [`Outputs::row`], for an output of i32.
    fn row_i32(&self, tag: Tag, row: usize) -> Option<&[i32]>;
}

/// Why a graph cannot be run on a backend with these weights.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The lowered graph is invalid.
    #[error(transparent)]
    Graph(#[from] verbatim_graph::GraphError),
    /// Memory planning failed.
    #[error(transparent)]
    Plan(#[from] verbatim_plan::PlanError),
    /// A weight is missing, or its kind, type or shape differs from the graph's.
    #[error("weight {tag}: the graph needs {wanted}, the model has {found}")]
    Weight {
        /// Which weight.
        tag: Tag,
        /// What the graph needs.
        wanted: String,
        /// What the table contains.
        found: String,
    },
    /// A value lives in memory that this backend does not have.
    #[error("a value is on {0:?}, which this backend cannot access")]
    Placement(Placement),
    /// The backend has no kernel for an op.
    #[error("this backend cannot compute {0}")]
    Op(&'static str),
    /// A head has more elements than the kernels support.
    #[error("heads of {head_dim} elements are more than the {max} that the kernels support")]
    HeadDim {
        /// Elements of a head.
        head_dim: usize,
        /// The maximum.
        max: usize,
    },
    /// A short convolution is over more inputs than the kernels support.
    #[error("convolutions over {kernel} inputs are longer than the {max} that the kernels support")]
    ConvKernel {
        /// Inputs of one output element.
        kernel: usize,
        /// The maximum.
        max: usize,
    },
}

/// Why a run has failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The inputs could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A kernel has panicked. The run has no outputs; the backend stays usable.
    #[error("a kernel has panicked: {0}")]
    Panicked(String),
    /// The program was compiled against a different weight table.
    #[error("the program was compiled against a different weight table")]
    WeightsMismatch,
}
