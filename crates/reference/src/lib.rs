//! The reference backend: every op by its definition, in scalar f32, one small function for each.
//!
//! The kernels of other backends are compared with it, and it is the place to look up what an op computes: the modules of
//! [`ops`] are meant to be checked against the papers. Weights stay in the file's format; a matmul decodes one weight row at a
//! time and uses it for all rows of the step. That is the only optimisation.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use verbatim_backend::*; use verbatim_graph::*; use verbatim_quant::DType; use verbatim_reference::Reference;
//! let rows = RowCounts { rows: 1, output_rows: 1 };
//! let mut b = Builder::new(rows);
//! let x = b.input(Tag::new("x"), DType::F32, Shape::per_row(2))?;
//! let y = b.apply(Op::Scale { factor: F32Bits(2.0) }, &[x])?;
//! b.output(Tag::new("y"), y)?;
//!
//! let mut backend = Reference;
//! let (weights, mut state, mut arena) = (backend.new_weights(), backend.new_state(), Default::default());
//! let program = backend.prepare(&b.finish(), &weights)?;
//! let outputs =
//!     backend.run(&program, &mut arena, rows, &weights, &mut state, |input| input.f32(&[1.0, 2.0]))?;
//! assert_eq!(outputs.row(Tag::new("y"), 0), Some(&[2.0, 4.0][..]));
//! # Ok(()) }
//! ```
//!
//! Invariants: an output row is computed from its own operands in one order, so its bits depend neither on the other rows nor
//! on their count; ops are pure functions of slices, and only `state` and `weights` know formats; adding an op is a compile
//! error until it is handled or rejected here; no `unsafe`, no threads.

#![forbid(unsafe_code)]

mod arena;
mod memory;
pub mod ops;
mod program;
mod run;
mod state;
mod weights;

pub use arena::Arena;
pub use program::Program;
pub use run::Outputs;
pub use state::State;
pub use weights::Weights;

use verbatim_backend::{
    Backend, BindError, FilledInput, InputBinding, PackError, PrepareError, RunError, WeightSource,
};
use verbatim_graph::{Graph, RowCounts};

/// The reference backend. It keeps nothing between calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Backend for Reference {
    type Weights = Weights;
    type Program = Program;
    type Arena = Arena;
    type State = State;
    type Outputs<'a> = Outputs<'a>;

    fn describe(&self) -> String {
        "reference (scalar)".into()
    }

    fn new_weights(&self) -> Weights {
        Weights::new()
    }

    fn append_weight(&mut self, weights: &mut Weights, weight: WeightSource<'_>) -> Result<(), PackError> {
        weights.append(weight)
    }

    fn weight_bytes(&self, weights: &Weights) -> usize {
        weights.bytes()
    }

    fn new_state(&self) -> State {
        State::default()
    }

    fn prepare(&mut self, graph: &Graph, weights: &Weights) -> Result<Program, PrepareError> {
        Program::new(graph, weights)
    }

    fn run<'a>(
        &mut self,
        program: &'a Program,
        arena: &'a mut Arena,
        rows: RowCounts,
        weights: &Weights,
        state: &mut State,
        fill: impl FnMut(InputBinding<'_>) -> Result<FilledInput, BindError>,
    ) -> Result<Outputs<'a>, RunError> {
        run::run(program, arena, rows, weights, state, fill)
    }
}
