//! Implements [`Backend`] by forwarding each call to the selected backend.

use std::ops::Range;
use verbatim_backend::{
    Backend, BindError, FilledInput, InputBinding, KShift, MatmulKind, Outputs, PackError, PrepareError,
    Profile, RunError, StateLayers, StateMemoryError, StateStore, WeightSource,
};
use verbatim_cpu::Cpu;
use verbatim_graph::{Graph, RowCounts, Tag};
use verbatim_reference::Reference;

/// One of the backends.
pub enum Device {
    /// See [`verbatim_cpu`].
    Cpu(Cpu),
    /// See [`verbatim_reference`].
    Reference(Reference),
}

/// Weights of one of the backends.
#[allow(missing_docs)]
pub enum DeviceWeights {
    Cpu(<Cpu as Backend>::Weights),
    Reference(<Reference as Backend>::Weights),
}

/// A program of one of the backends.
#[allow(missing_docs)]
pub enum DeviceProgram {
    Cpu(<Cpu as Backend>::Program),
    Reference(<Reference as Backend>::Program),
}

/// Memory for the values of runs on any of the backends: the arenas of unused backends stay empty.
#[derive(Default)]
pub struct DeviceArena {
    cpu: <Cpu as Backend>::Arena,
    reference: <Reference as Backend>::Arena,
}

/// The sequence state of one of the backends.
#[allow(missing_docs)]
pub enum DeviceState {
    Cpu(<Cpu as Backend>::State),
    Reference(<Reference as Backend>::State),
}

/// The outputs of a run of one of the backends.
#[allow(missing_docs)]
pub enum DeviceOutputs<'a> {
    Cpu(<Cpu as Backend>::Outputs<'a>),
    Reference(<Reference as Backend>::Outputs<'a>),
}

/// Matches on the backend and evaluates the same expression in each arm.
macro_rules! dispatch {
    ($kind:ident, $value:expr, $inner:ident => $result:expr) => {
        match $value {
            $kind::Cpu($inner) => $result,
            $kind::Reference($inner) => $result,
        }
    };
}

/// Mixing objects of two backends is a caller bug.
const OF_DIFFERENT_BACKEND: &str = "this object belongs to a different backend";

impl Backend for Device {
    type Weights = DeviceWeights;
    type Program = DeviceProgram;
    type Arena = DeviceArena;
    type State = DeviceState;
    type Outputs<'a> = DeviceOutputs<'a>;

    fn describe(&self) -> String {
        dispatch!(Device, self, backend => backend.describe())
    }

    fn new_weights(&self) -> DeviceWeights {
        match self {
            Device::Cpu(backend) => DeviceWeights::Cpu(backend.new_weights()),
            Device::Reference(backend) => DeviceWeights::Reference(backend.new_weights()),
        }
    }

    fn append_weight(
        &mut self,
        weights: &mut DeviceWeights,
        weight: WeightSource<'_>,
    ) -> Result<(), PackError> {
        match (self, weights) {
            (Device::Cpu(backend), DeviceWeights::Cpu(weights)) => backend.append_weight(weights, weight),
            (Device::Reference(backend), DeviceWeights::Reference(weights)) => {
                backend.append_weight(weights, weight)
            }
            (Device::Cpu(_) | Device::Reference(_), _) => panic!("{OF_DIFFERENT_BACKEND}"),
        }
    }

    fn weight_bytes(&self, weights: &DeviceWeights) -> usize {
        match (self, weights) {
            (Device::Cpu(backend), DeviceWeights::Cpu(weights)) => backend.weight_bytes(weights),
            (Device::Reference(backend), DeviceWeights::Reference(weights)) => backend.weight_bytes(weights),
            (Device::Cpu(_) | Device::Reference(_), _) => panic!("{OF_DIFFERENT_BACKEND}"),
        }
    }

    fn new_state(&self) -> DeviceState {
        match self {
            Device::Cpu(backend) => DeviceState::Cpu(backend.new_state()),
            Device::Reference(backend) => DeviceState::Reference(backend.new_state()),
        }
    }

    fn prepare(&mut self, graph: &Graph, weights: &DeviceWeights) -> Result<DeviceProgram, PrepareError> {
        match (self, weights) {
            (Device::Cpu(backend), DeviceWeights::Cpu(weights)) => {
                Backend::prepare(backend, graph, weights).map(DeviceProgram::Cpu)
            }
            (Device::Reference(backend), DeviceWeights::Reference(weights)) => {
                Backend::prepare(backend, graph, weights).map(DeviceProgram::Reference)
            }
            (Device::Cpu(_) | Device::Reference(_), _) => panic!("{OF_DIFFERENT_BACKEND}"),
        }
    }

    fn run<'a>(
        &mut self,
        program: &'a DeviceProgram,
        arena: &'a mut DeviceArena,
        rows: RowCounts,
        weights: &DeviceWeights,
        state: &mut DeviceState,
        fill: impl FnMut(InputBinding<'_>) -> Result<FilledInput, BindError>,
    ) -> Result<DeviceOutputs<'a>, RunError> {
        match (self, program, weights, state) {
            (
                Device::Cpu(backend),
                DeviceProgram::Cpu(program),
                DeviceWeights::Cpu(weights),
                DeviceState::Cpu(state),
            ) => {
                let outputs = backend.run(program, &mut arena.cpu, rows, weights, state, fill);
                outputs.map(DeviceOutputs::Cpu)
            }
            (
                Device::Reference(backend),
                DeviceProgram::Reference(program),
                DeviceWeights::Reference(weights),
                DeviceState::Reference(state),
            ) => {
                let outputs = backend.run(program, &mut arena.reference, rows, weights, state, fill);
                outputs.map(DeviceOutputs::Reference)
            }
            (Device::Cpu(_) | Device::Reference(_), ..) => panic!("{OF_DIFFERENT_BACKEND}"),
        }
    }

    fn set_profiling(&mut self, on: bool) {
        dispatch!(Device, self, backend => Backend::set_profiling(backend, on));
    }

    fn profile(&self) -> Option<&Profile> {
        dispatch!(Device, self, backend => Backend::profile(backend))
    }

    fn run_peak_throughput_kernel(&mut self, kind: MatmulKind, rounds: usize) -> Option<u64> {
        dispatch!(Device, self, backend => Backend::run_peak_throughput_kernel(backend, kind, rounds))
    }
}

impl Outputs for DeviceOutputs<'_> {
    fn rows(&self, tag: Tag) -> Option<usize> {
        dispatch!(DeviceOutputs, self, outputs => outputs.rows(tag))
    }

    fn row(&self, tag: Tag, row: usize) -> Option<&[f32]> {
        dispatch!(DeviceOutputs, self, outputs => outputs.row(tag, row))
    }

    fn row_i32(&self, tag: Tag, row: usize) -> Option<&[i32]> {
        dispatch!(DeviceOutputs, self, outputs => outputs.row_i32(tag, row))
    }
}

impl StateStore for DeviceState {
    fn numerics_version(&self) -> u32 {
        dispatch!(DeviceState, self, state => state.numerics_version())
    }

    fn append(&mut self, layers: &StateLayers) -> Result<(), StateMemoryError> {
        dispatch!(DeviceState, self, state => state.append(layers))
    }

    fn copy_page(&mut self, layers: &[usize], from: usize, to: usize) {
        dispatch!(DeviceState, self, state => state.copy_page(layers, from, to));
    }

    fn move_cells(&mut self, layers: &[usize], moves: &[(usize, usize)], shift: Option<&KShift>) {
        dispatch!(DeviceState, self, state => state.move_cells(layers, moves, shift));
    }

    fn read_cells(&self, layer: usize, cells: &mut dyn Iterator<Item = usize>, out: &mut Vec<u8>) {
        dispatch!(DeviceState, self, state => state.read_cells(layer, cells, out));
    }

    fn write_cells(&mut self, layer: usize, cells: &mut dyn Iterator<Item = usize>, from: &[u8]) {
        dispatch!(DeviceState, self, state => state.write_cells(layer, cells, from));
    }

    fn slot_bytes(&self, layers: Range<usize>) -> usize {
        dispatch!(DeviceState, self, state => state.slot_bytes(layers))
    }

    fn read_slot(&self, layers: Range<usize>, slot: usize, out: &mut Vec<u8>) {
        dispatch!(DeviceState, self, state => state.read_slot(layers, slot, out));
    }

    fn write_slot(&mut self, layers: Range<usize>, slot: usize, from: &[u8]) {
        dispatch!(DeviceState, self, state => state.write_slot(layers, slot, from));
    }
}
