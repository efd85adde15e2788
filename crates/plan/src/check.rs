//! The checker: accepts or rejects a layout, sharing no code with the planner.
//!
//! It replays the graph phase by phase, tracking the set of live values and the bytes they occupy. It derives everything from the
//! graph only, so a planner bug in lifetimes cannot hide here.

use crate::{ALIGNMENT, Allocation, ArenaSize, PhaseRules};
use std::collections::BTreeMap;
use std::ops::Range;
use verbatim_graph::{Def, Graph, Lifetime, Placement, ValueId};

/// What is wrong with a layout.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CheckError {
    /// The phases are not the graph's nodes, each once and in order.
    #[error("phase {phase} does not start where the previous phase ends")]
    PhasesBroken {
        /// The phase.
        phase: usize,
    },
    /// A node shares a phase with one that it must wait for.
    #[error("node {node} and node {earlier} share a phase, but the later has to wait for the earlier")]
    MissingBarrier {
        /// The later node.
        node: usize,
        /// The node whose result or state it needs.
        earlier: usize,
    },
    /// A value that needs an allocation has none.
    #[error("value {0:?} has no allocation")]
    NoAllocation(ValueId),
    /// A value has an allocation though its storage is elsewhere: a view, a weight or a state.
    #[error("value {0:?} has an allocation but is a view, a weight or a state")]
    UnneededAllocation(ValueId),
    /// An allocation is misaligned, of the wrong size or outside its arena.
    #[error("value {0:?} is placed outside its arena, misaligned or with a wrong size")]
    BadAllocation(ValueId),
    /// Two live values share bytes.
    #[error("values {first:?} and {second:?} are both alive in phase {phase} and share bytes")]
    Overlap {
        /// The one with the lower offset.
        first: ValueId,
        /// The one with the higher offset.
        second: ValueId,
        /// When; the number of phases stands for the time after the run.
        phase: usize,
    },
}

/// Checks a layout of `graph`. `allocations` is indexed by [`ValueId::index`].
pub fn check<O: PhaseRules>(
    graph: &Graph<O>,
    phases: &[Range<usize>],
    allocations: &[Option<Allocation>],
    arenas: &[ArenaSize],
) -> Result<(), CheckError> {
    check_phases(graph, phases)?;
    check_allocations(graph, allocations, arenas)?;
    check_overlaps(graph, phases, allocations)
}

fn check_phases<O: PhaseRules>(graph: &Graph<O>, phases: &[Range<usize>]) -> Result<(), CheckError> {
    let mut next = 0;
    for (phase, nodes) in phases.iter().enumerate() {
        if nodes.start != next || nodes.end <= nodes.start || nodes.end > graph.nodes().len() {
            return Err(CheckError::PhasesBroken { phase });
        }
        next = nodes.end;
        for node in nodes.clone() {
            for earlier in nodes.start..node {
                if must_wait(graph, node, earlier) {
                    return Err(CheckError::MissingBarrier { node, earlier });
                }
            }
        }
    }
    if next == graph.nodes().len() { Ok(()) } else { Err(CheckError::PhasesBroken { phase: phases.len() }) }
}

fn must_wait<O: PhaseRules>(graph: &Graph<O>, node: usize, earlier: usize) -> bool {
    let (node, earlier) = (&graph.nodes()[node], &graph.nodes()[earlier]);
    let rows_of = |id: ValueId| graph.value(id).shape.rows;
    // The value whose rows the threads divide: a state has no rows, but the value stored in it does.
    let stores = graph.value(node.output).lifetime == Lifetime::State;
    let divided = if stores { node.operands[1] } else { node.output };
    for (i, &operand) in node.operands.iter().enumerate() {
        let mut source = operand;
        while let Def::Columns { base, .. } = graph.value(source).def {
            source = base;
        }
        if source == earlier.output {
            // Without a barrier a thread may only read rows that it computed itself.
            let row_local = node.op.splits_rows() && earlier.op.splits_rows() && node.op.is_row_local(i);
            let state = graph.value(source).lifetime == Lifetime::State;
            if state || !row_local || rows_of(earlier.output) != rows_of(divided) {
                return true;
            }
        }
    }
    match node.op.writes_state().and_then(|i| graph.state(node.operands[i])) {
        Some(tag) => earlier.operands.iter().any(|&operand| graph.state(operand) == Some(tag)),
        None => false,
    }
}

fn needs_allocation<O: PhaseRules>(graph: &Graph<O>, id: ValueId) -> bool {
    let value = graph.value(id);
    match (value.lifetime, value.def) {
        (Lifetime::Weight | Lifetime::State, _) | (_, Def::Columns { .. }) => false,
        (Lifetime::Input | Lifetime::Temp | Lifetime::Output, _) => true,
    }
}

fn check_allocations<O: PhaseRules>(
    graph: &Graph<O>,
    allocations: &[Option<Allocation>],
    arenas: &[ArenaSize],
) -> Result<(), CheckError> {
    for index in 0..graph.values().len() {
        let id = ValueId::new(index);
        match (needs_allocation(graph, id), allocations.get(index).copied().flatten()) {
            (true, None) => return Err(CheckError::NoAllocation(id)),
            (false, Some(_)) => return Err(CheckError::UnneededAllocation(id)),
            (false, None) => {}
            (true, Some(allocation)) => {
                let placement = graph.value(id).placement;
                let arena = arenas.iter().find(|arena| arena.placement == placement).map_or(0, |a| a.bytes);
                let inside = allocation.offset.checked_add(allocation.bytes).is_some_and(|end| end <= arena);
                if !inside || allocation.offset % ALIGNMENT != 0 || allocation.bytes != graph.bytes(id) {
                    return Err(CheckError::BadAllocation(id));
                }
            }
        }
    }
    Ok(())
}

fn check_overlaps<O: PhaseRules>(
    graph: &Graph<O>,
    phases: &[Range<usize>],
    allocations: &[Option<Allocation>],
) -> Result<(), CheckError> {
    // Remaining uses of each value. The caller's read at the end counts as one more.
    let mut readers = vec![0usize; graph.values().len()];
    let storage = |id: ValueId| graph.root(id).0;
    for node in graph.nodes() {
        for &operand in &node.operands {
            readers[storage(operand).index()] += 1;
        }
    }
    for (index, value) in graph.values().iter().enumerate() {
        if value.lifetime == Lifetime::Output {
            readers[storage(ValueId::new(index)).index()] += 1;
        }
    }

    let mut alive = Alive { allocations, graph, occupied: BTreeMap::new() };
    for (_, id) in graph.leaves(Lifetime::Input) {
        alive.insert(id, 0)?;
    }
    for (phase, nodes) in phases.iter().enumerate() {
        let nodes = &graph.nodes()[nodes.clone()];
        for node in nodes.iter().filter(|node| needs_allocation(graph, node.output)) {
            alive.insert(node.output, phase)?;
        }
        let mut touched: Vec<ValueId> = nodes.iter().map(|node| node.output).collect();
        for &operand in nodes.iter().flat_map(|node| &node.operands) {
            readers[storage(operand).index()] -= 1;
            touched.push(storage(operand));
        }
        for id in touched.into_iter().filter(|id| readers[id.index()] == 0) {
            alive.remove(id);
        }
    }
    Ok(())
}

/// The bytes in use, per memory: offset → (end, owner). Empty values occupy nothing.
struct Alive<'a, O> {
    graph: &'a Graph<O>,
    allocations: &'a [Option<Allocation>],
    occupied: BTreeMap<(Placement, usize), (usize, ValueId)>,
}

impl<O: PhaseRules> Alive<'_, O> {
    fn insert(&mut self, id: ValueId, phase: usize) -> Result<(), CheckError> {
        let allocation = self.allocations[id.index()].ok_or(CheckError::NoAllocation(id))?;
        if allocation.bytes == 0 {
            return Ok(());
        }
        let placement = self.graph.value(id).placement;
        let (start, end) = (allocation.offset, allocation.offset + allocation.bytes);
        let below = self.occupied.range(..(placement, end)).next_back();
        if let Some((&(other_placement, other_start), &(other_end, other))) = below
            && other_placement == placement
            && other_end > start
        {
            let (first, second) = if other_start <= start { (other, id) } else { (id, other) };
            return Err(CheckError::Overlap { first, second, phase });
        }
        self.occupied.insert((placement, start), (end, id));
        Ok(())
    }

    fn remove(&mut self, id: ValueId) {
        if let Some(allocation) = self.allocations[id.index()]
            && allocation.bytes > 0
        {
            self.occupied.remove(&(self.graph.value(id).placement, allocation.offset));
        }
    }
}
