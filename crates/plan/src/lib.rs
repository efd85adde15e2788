//! Memory plans: an offset in an arena for every value that a graph computes or is given.
//!
//! A [`Plan`] is made for exactly one [`Graph`] and carries it. It is laid out by one module ([`layout`]) and accepted
//! or refused by another ([`mod@check`]) that shares no code with it: two values that are alive together never share a
//! byte, an output is never overwritten before its caller has read it, and every live input has an allocation. What may run
//! without a barrier between is the backend's to say ([`PhaseRules`]). A [`ProgramCache`] reuses what was made for an equal key
//! and no other; there is no weaker test.
//!
//! This crate does no IO and no float arithmetic, and owns no memory.

mod allocation;
mod cache;
pub mod check;
mod error;
mod layout;
mod phases;

pub use allocation::{ALIGNMENT, Allocation, ArenaSize};
pub use cache::{ProgramCache, RebuildReason, Rebuilds, Statistics};
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
    /// Plans a graph, letting values that are never alive together share memory.
    pub fn new(graph: Arc<Graph<O>>) -> Result<Plan<O>, PlanError> {
        let phases = phases::phases(&graph);
        let (allocations, arenas) = layout::shared(&graph, &phases)?;
        Plan::checked(graph, phases, allocations, arenas)
    }

    /// Plans a graph with every value in memory of its own: the reference that shared plans are tested against.
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

    /// Ranges of nodes that run without a barrier between them. A barrier stands between one phase and the next.
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

    /// The values whose last reader is in this phase, so that their bytes are free after it: what a debugging
    /// executor overwrites with poison.
    pub fn freed_after(&self, phase: usize) -> impl Iterator<Item = (ValueId, Allocation)> + '_ {
        let lives = layout::lives(&self.graph, &self.phases);
        lives.into_iter().filter(move |life| life.last == phase).filter_map(|life| {
            let allocation = self.allocations[life.value.index()]?;
            Some((life.value, allocation))
        })
    }
}
