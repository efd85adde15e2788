//! The CPU as a [`Backend`].

use crate::executor::Cpu;
use crate::program::{CpuArena, CpuOutputs, CpuProgram};
use crate::state::CpuState;
use crate::weights::{Weight, Weights};
use std::sync::atomic::{AtomicU64, Ordering};
use verbatim_backend::{
    Backend, BindError, FilledInput, InputBinding, MatmulKind, PackError, PrepareError, Profile, RunError,
    WeightKind, WeightSource,
};
use verbatim_graph::{Graph, RowCounts};
use verbatim_matrix::{PackedExperts, PackedMatrix, run_peak_throughput_kernel};
use verbatim_quant::dequantize;

impl Backend for Cpu {
    type Weights = Weights;
    type Program = CpuProgram;
    type Arena = CpuArena;
    type State = CpuState;
    type Outputs<'a> = CpuOutputs<'a>;

    fn describe(&self) -> String {
        self.isa().name().into()
    }

    fn new_weights(&self) -> Weights {
        Weights::default()
    }

    fn append_weight(&mut self, weights: &mut Weights, weight: WeightSource<'_>) -> Result<(), PackError> {
        let WeightSource { kind, dtype, rows, cols, bytes } = weight;
        let team = self.team();
        let weight = match kind {
            WeightKind::Matrix => Weight::Matrix(PackedMatrix::pack_with(team, dtype, rows, cols, bytes)?),
            WeightKind::Experts(experts) => {
                let rows = rows.checked_div(experts).unwrap_or(0);
                Weight::Experts(PackedExperts::pack_with(team, dtype, experts, rows, cols, bytes)?)
            }
            WeightKind::Vector => {
                let mut vector = Vec::new();
                let no_memory = |_| PackError::OutOfMemory { bytes: cols.saturating_mul(size_of::<f32>()) };
                vector.try_reserve_exact(cols).map_err(no_memory)?;
                vector.resize(cols, 0.0);
                dequantize(dtype, &weight.read_all()?, &mut vector)?;
                Weight::Vector(vector)
            }
        };
        weights.push(weight);
        Ok(())
    }

    fn weight_bytes(&self, weights: &Weights) -> usize {
        weights.bytes()
    }

    fn new_state(&self) -> CpuState {
        CpuState::default()
    }

    fn prepare(&mut self, graph: &Graph, weights: &Weights) -> Result<CpuProgram, PrepareError> {
        Cpu::prepare(self, graph, weights)
    }

    fn run<'a>(
        &mut self,
        program: &'a CpuProgram,
        arena: &'a mut CpuArena,
        rows: RowCounts,
        weights: &Weights,
        state: &mut CpuState,
        fill: impl FnMut(InputBinding<'_>) -> Result<FilledInput, BindError>,
    ) -> Result<CpuOutputs<'a>, RunError> {
        self.run_bound(program.bind(arena, rows, fill)?, weights, state)
    }

    fn set_profiling(&mut self, on: bool) {
        Cpu::set_profiling(self, on);
    }

    fn profile(&self) -> Option<&Profile> {
        Some(Cpu::profile(self))
    }

    fn run_peak_throughput_kernel(&mut self, kind: MatmulKind, rounds: usize) -> Option<u64> {
        let (isa, all) = (self.isa(), AtomicU64::new(0));
        self.team().run(|_| {
            all.fetch_add(run_peak_throughput_kernel(isa, kind, rounds), Ordering::Relaxed);
        });
        Some(all.into_inner())
    }
}
