//! The planner: from lifetimes to offsets.
//!
//! Greedy best fit in order of decreasing size over the live ranges of values (Pisarchyk and Lee, arXiv 2001.03288), and, when
//! the arena is then larger than [`GOOD_ENOUGH_PERCENT`] percent of the lower bound, a bounded and seeded search over other orders.

use crate::allocation::in_arena;
use crate::{ALIGNMENT, Allocation, ArenaSize, PhaseRules, PlanError};
use std::ops::Range;
use verbatim_graph::{Def, Graph, Lifetime, Placement, ValueId};

/// The search stops as soon as the arena is at most this much of the lower bound.
const GOOD_ENOUGH_PERCENT: usize = 102;
/// Budget of the search, in comparisons of two values.
const SEARCH_BUDGET: usize = 20_000_000;

/// The live range of a value: the phases in which it is live, both ends included.
pub(crate) struct LiveRange {
    pub(crate) value: ValueId,
    pub(crate) first: usize,
    pub(crate) last: usize,
    bytes: usize,
    placement: Placement,
}

/// The live range of every arena value. Outputs stay live one phase past the end.
pub(crate) fn live_ranges<O: PhaseRules>(graph: &Graph<O>, phases: &[Range<usize>]) -> Vec<LiveRange> {
    let mut index_of = vec![usize::MAX; graph.values().len()];
    let mut live_ranges: Vec<LiveRange> = Vec::new();
    for (index, value) in graph.values().iter().enumerate() {
        if in_arena(value.lifetime) && !matches!(value.def, Def::Columns { .. }) {
            index_of[index] = live_ranges.len();
            let value_id = ValueId::new(index);
            let bytes = graph.bytes(value_id);
            live_ranges.push(LiveRange {
                value: value_id,
                first: 0,
                last: 0,
                bytes,
                placement: value.placement,
            });
        }
    }
    for (phase, nodes) in phases.iter().enumerate() {
        for node in &graph.nodes()[nodes.clone()] {
            if let Some(range) = live_ranges.get_mut(index_of[node.output.index()]) {
                range.first = phase;
                range.last = phase;
            }
            for &operand in &node.operands {
                let (root, _) = graph.root(operand);
                if let Some(read) = live_ranges.get_mut(index_of[root.index()]) {
                    read.last = phase;
                }
            }
        }
    }
    for range in live_ranges.iter_mut().filter(|range| graph.value(range.value).lifetime == Lifetime::Output)
    {
        range.last = phases.len();
    }
    live_ranges
}

type Layout = (Vec<Option<Allocation>>, Vec<ArenaSize>);

/// Values with disjoint lifetimes share memory.
pub(crate) fn shared<O: PhaseRules>(graph: &Graph<O>, phases: &[Range<usize>]) -> Result<Layout, PlanError> {
    lay_out(graph, phases, best_offsets)
}

/// No two values share memory.
pub(crate) fn disjoint<O: PhaseRules>(
    graph: &Graph<O>,
    phases: &[Range<usize>],
) -> Result<Layout, PlanError> {
    lay_out(graph, phases, |live_ranges, _| {
        let mut end = 0;
        let offsets =
            live_ranges.iter().map(|range| take(&mut end, range.bytes)).collect::<Option<Vec<_>>>()?;
        Some((offsets, end))
    })
}

fn take(end: &mut usize, bytes: usize) -> Option<usize> {
    let offset = *end;
    *end = offset.checked_add(aligned(bytes)?)?;
    Some(offset)
}

fn aligned(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

fn lay_out<O: PhaseRules>(
    graph: &Graph<O>,
    phases: &[Range<usize>],
    offsets_of: impl Fn(&[&LiveRange], usize) -> Option<(Vec<usize>, usize)>,
) -> Result<Layout, PlanError> {
    let live_ranges = live_ranges(graph, phases);
    let mut placements: Vec<Placement> = live_ranges.iter().map(|range| range.placement).collect();
    placements.sort();
    placements.dedup();

    let mut allocations = vec![None; graph.values().len()];
    let mut arenas = Vec::new();
    for placement in placements {
        let live_ranges: Vec<&LiveRange> =
            live_ranges.iter().filter(|range| range.placement == placement).collect();
        let lower_bound_bytes = lower_bound(&live_ranges, phases.len()).ok_or(PlanError::TooLarge)?;
        let (offsets, bytes) = offsets_of(&live_ranges, lower_bound_bytes)
            .filter(|&(_, bytes)| bytes <= isize::MAX as usize)
            .ok_or(PlanError::TooLarge)?;
        for (range, offset) in live_ranges.iter().zip(offsets) {
            allocations[range.value.index()] = Some(Allocation { offset, bytes: range.bytes });
        }
        arenas.push(ArenaSize { placement, bytes, lower_bound_bytes });
    }
    Ok((allocations, arenas))
}

/// The largest sum of bytes alive in any phase.
fn lower_bound(live_ranges: &[&LiveRange], phases: usize) -> Option<usize> {
    let mut starts = vec![0usize; phases + 2];
    let mut ends = vec![0usize; phases + 2];
    for range in live_ranges {
        starts[range.first] = starts[range.first].checked_add(range.bytes)?;
        ends[range.last + 1] = ends[range.last + 1].checked_add(range.bytes)?;
    }
    let mut alive = 0usize;
    let mut most = 0;
    for (start, end) in starts.into_iter().zip(ends) {
        alive = (alive - end).checked_add(start)?;
        most = most.max(alive);
    }
    Some(most)
}

/// The best offsets found, and the end of the last value.
fn best_offsets(live_ranges: &[&LiveRange], lower_bound: usize) -> Option<(Vec<usize>, usize)> {
    let good_enough = lower_bound.saturating_add(lower_bound / 100 * (GOOD_ENOUGH_PERCENT - 100));
    let mut order: Vec<usize> = (0..live_ranges.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(live_ranges[i].bytes), live_ranges[i].first, i));
    let mut best = best_fit(live_ranges, &order)?;
    let mut by_length = order.clone();
    by_length.sort_by_key(|&i| std::cmp::Reverse(live_ranges[i].last - live_ranges[i].first));
    for order in [by_length, (0..live_ranges.len()).collect()] {
        if best.1 > good_enough
            && let Some(other) = best_fit(live_ranges, &order).filter(|other| other.1 < best.1)
        {
            best = other;
        }
    }
    // Bounded hill climbing: swap two values in the order, keep the result if it is not worse.
    let rounds = SEARCH_BUDGET / (live_ranges.len() * live_ranges.len()).max(1);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..rounds.min(2000) {
        if best.1 <= good_enough || live_ranges.len() < 2 {
            break;
        }
        let (a, b) = (below(&mut random, live_ranges.len()), below(&mut random, live_ranges.len()));
        order.swap(a, b);
        match best_fit(live_ranges, &order) {
            Some(other) if other.1 <= best.1 => best = other,
            _ => order.swap(a, b),
        }
    }
    Some(best)
}

/// A number below `limit` from an xorshift generator: the search needs variety, not quality.
fn below(random: &mut u64, limit: usize) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random % limit as u64) as usize
}

/// Places values in the given order, each in the smallest gap that fits between those alive with it.
fn best_fit(live_ranges: &[&LiveRange], order: &[usize]) -> Option<(Vec<usize>, usize)> {
    let mut offsets = vec![0usize; live_ranges.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(live_ranges.len()); // by offset
    let mut arena_end = 0usize;
    for &index in order {
        let range = live_ranges[index];
        let bytes = aligned(range.bytes)?;
        let mut gap_start = 0usize;
        let mut best: Option<(usize, usize)> = None; // (gap bytes, offset)
        for &other in &placed {
            let neighbour = live_ranges[other];
            if neighbour.last < range.first || range.last < neighbour.first {
                continue;
            }
            if offsets[other] >= gap_start {
                let gap = offsets[other] - gap_start;
                if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
                    best = Some((gap, gap_start));
                }
            }
            gap_start = gap_start.max(offsets[other] + aligned(neighbour.bytes)?);
        }
        let offset = best.map_or(gap_start, |(_, offset)| offset);
        offsets[index] = offset;
        arena_end = arena_end.max(offset.checked_add(bytes)?);
        let at = placed.partition_point(|&other| offsets[other] <= offset);
        placed.insert(at, index);
    }
    Some((offsets, arena_end))
}
