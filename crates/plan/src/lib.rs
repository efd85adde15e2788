//! Memory plans: an arena offset for every computed value and input of a graph.
//!
//! A [`Plan`] belongs to exactly one [`Graph`], which it contains. One module computes the layout ([`layout`]) and another
//! ([`mod@check`]), which shares no code with it, accepts or rejects it: live values never share a byte, an output is never
//! overwritten before its caller has read it, and every live input has an allocation. The backend defines what may run
//! without a barrier ([`PhaseRules`]). A [`ProgramCache`] only reuses a program for an equal key.
//!
//! This crate does no IO and no float arithmetic, and allocates no tensor memory.

mod allocation;
mod cache;
pub mod check;
mod error;
mod layout;
mod phases;

pub use allocation::{ALIGNMENT, Allocation, ArenaSize};
pub use cache::{CacheStatistics, ProgramCache, RebuildCounts, RebuildReason};
pub use check::{CheckError, check};
pub use error::PlanError;
pub use phases::PhaseRules;

use std::ops::Range;
use std::sync::Arc;
use verbatim_graph::{Graph, Op, Placement, ValueId};

/// A checked memory plan for one graph.
#[derive(Debug)]
pub struct Plan<O = Op> {
    graph: Arc<Graph<O>>,
    phases: Vec<Range<usize>>,
    allocations: Vec<Option<Allocation>>,
    arenas: Vec<ArenaSize>,
}

impl<O: PhaseRules> Plan<O> {
    /// Plans a graph; values with disjoint lifetimes share memory.
    pub fn new(graph: Arc<Graph<O>>) -> Result<Plan<O>, PlanError> {
        let phases = phases::phases(&graph);
        let (allocations, arenas) = layout::shared(&graph, &phases)?;
        Plan::checked(graph, phases, allocations, arenas)
    }

    /// Plans a graph with separate memory for every value: the reference that shared plans are tested against.
    pub fn disjoint(graph: Arc<Graph<O>>) -> Result<Plan<O>, PlanError> {
        let phases = phases::phases(&graph);
        let (allocations, arenas) = layout::disjoint(&graph, &phases)?;
        Plan::checked(graph, phases, allocations, arenas)
    }

    fn checked(
        graph: Arc<Graph<O>>,
        phases: Vec<Range<usize>>,
        allocations: Vec<Option<Allocation>>,
        arenas: Vec<ArenaSize>,
    ) -> Result<Plan<O>, PlanError> {
        check(&graph, &phases, &allocations, &arenas)?;
        Ok(Plan { graph, phases, allocations, arenas })
    }

    /// The graph that this plan is for.
    pub fn graph(&self) -> &Graph<O> {
        &self.graph
    }

    /// Ranges of nodes that run without a barrier between them. There is a barrier between consecutive phases.
    pub fn phases(&self) -> &[Range<usize>] {
        &self.phases
    }

    /// The allocation of a value, by [`ValueId::index`]: `Some` for the roots of inputs, temporaries and outputs, `None`
    /// for views, weights and states.
    pub fn allocations(&self) -> &[Option<Allocation>] {
        &self.allocations
    }

    /// The arenas needed, one per placement in use.
    pub fn arenas(&self) -> &[ArenaSize] {
        &self.arenas
    }

    /// Bytes needed in one memory.
    pub fn arena_bytes(&self, placement: Placement) -> usize {
        self.arenas.iter().find(|arena| arena.placement == placement).map_or(0, |arena| arena.bytes)
    }

    /// The values whose last use is in this phase, so that their bytes are free after it: a debugging executor overwrites
    /// them with poison.
    pub fn freed_after(&self, phase: usize) -> impl Iterator<Item = (ValueId, Allocation)> + '_ {
        let live_ranges = layout::live_ranges(&self.graph, &self.phases);
        live_ranges.into_iter().filter(move |range| range.last == phase).filter_map(|range| {
            let allocation = self.allocations[range.value.index()]?;
            Some((range.value, allocation))
        })
    }
}
