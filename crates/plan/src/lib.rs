//! Memory plans: an offset in an arena for every value that a graph computes or is given.
//!
//! A [`Plan`] is made for exactly one [`Graph`] and carries it. It is laid out by one module ([`layout`]) and accepted
//! or refused by another ([`mod@check`]) that shares no code with it: two values that are alive together never share a
//! byte, an output is never overwritten before its caller has read it, and every live input has an allocation. What may run
//! without a barrier between is the backend's to say ([`PhaseRules`]). A [`ProgramCache`] reuses what was made for an equal key
//! and no other; there is no weaker test.
//!
//! This crate does no IO, no float arithmetic and owns no memory.

mod cache;
pub mod check;
mod layout;
mod phases;

pub use cache::{ProgramCache, RebuildReason, Rebuilds, Statistics};
pub use check::{CheckError, check};

use std::ops::Range;
use std::sync::Arc;
use verbatim_graph::{Graph, Lifetime, Op, OpRules, Placement, ValueId};

/// Every allocation starts at a multiple of this many bytes: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// Which nodes may share a phase, which runs without a barrier. By default none that depend on each other: right for a backend
/// that runs op after op.
pub trait PhaseRules: OpRules {
    /// Whether the work is split over rows, so that one thread computes a row, or columns of it that are read by nobody else
    /// in their phase.
    fn splits_rows(&self) -> bool {
        false
    }

    /// Whether row i of the result needs no row of this operand but row i. Only such an operand may be made in the
    /// same phase, by the same thread, without a barrier between.
    fn reads_own_row_only(&self, operand: usize) -> bool {
        let _ = operand;
        false
    }
}

impl PhaseRules for Op {}

/// Why a plan could not be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// The values that are alive together need more than the machine can address.
    #[error("the step needs an arena beyond this machine's addresses; use fewer rows or a smaller context")]
    TooLarge,
    /// The layout is wrong. This is a fault of the planner, caught before it can do harm.
    #[error("the memory plan is wrong and was refused: {0}")]
    Refused(#[from] CheckError),
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Byte offset in the arena of the value's placement; a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// Bytes at the graph's bounds.
    pub bytes: usize,
}

/// The arena of one placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSize {
    /// Which memory.
    pub placement: Placement,
    /// Bytes needed.
    pub bytes: usize,
    /// The largest sum of the bytes alive in any phase: no plan can need less.
    pub lower_bound_bytes: usize,
}

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

/// Whether values of this lifetime live in an arena.
fn in_arena(lifetime: Lifetime) -> bool {
    matches!(lifetime, Lifetime::Input | Lifetime::Temp | Lifetime::Output)
}
