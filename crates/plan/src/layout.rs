//! The planner: from lifetimes to offsets.
//!
//! Greedy best fit in order of decreasing size over the intervals in which values live (Pisarchyk and Lee,
//! arXiv 2001.03288), and, when that leaves more than [`GOOD_ENOUGH_PERCENT`] above the lower bound, a bounded and
//! seeded search over other orders.

use crate::allocation::in_arena;
use crate::{ALIGNMENT, Allocation, ArenaSize, PhaseRules, PlanError};
use std::ops::Range;
use verbatim_graph::{Def, Graph, Lifetime, Placement, ValueId};

/// The search stops as soon as the arena is at most this much of the lower bound.
const GOOD_ENOUGH_PERCENT: usize = 102;
/// Budget of the search, in comparisons of two values.
const SEARCH_BUDGET: usize = 20_000_000;

/// A value and the phases in which it is alive, both ends included.
pub(crate) struct Life {
    pub(crate) value: ValueId,
    pub(crate) first: usize,
    pub(crate) last: usize,
    bytes: usize,
    placement: Placement,
}

/// When every value of the arenas is alive. Outputs live one phase past the end, until the caller is done.
pub(crate) fn lives<O: PhaseRules>(graph: &Graph<O>, phases: &[Range<usize>]) -> Vec<Life> {
    let mut index_of = vec![usize::MAX; graph.values().len()];
    let mut lives: Vec<Life> = Vec::new();
    for (index, value) in graph.values().iter().enumerate() {
        if in_arena(value.lifetime) && !matches!(value.def, Def::Columns { .. }) {
            index_of[index] = lives.len();
            let value_id = ValueId::new(index);
            let bytes = graph.bytes(value_id);
            lives.push(Life { value: value_id, first: 0, last: 0, bytes, placement: value.placement });
        }
    }
    for (phase, nodes) in phases.iter().enumerate() {
        for node in &graph.nodes()[nodes.clone()] {
            if let Some(life) = lives.get_mut(index_of[node.output.index()]) {
                life.first = phase;
                life.last = phase;
            }
            for &operand in &node.operands {
                let (root, _) = graph.root(operand);
                if let Some(read) = lives.get_mut(index_of[root.index()]) {
                    read.last = phase;
                }
            }
        }
    }
    for life in lives.iter_mut().filter(|life| graph.value(life.value).lifetime == Lifetime::Output) {
        life.last = phases.len();
    }
    lives
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
    lay_out(graph, phases, |lives, _| {
        let mut end = 0;
        let offsets = lives.iter().map(|life| take(&mut end, life.bytes)).collect::<Option<Vec<_>>>()?;
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
    offsets_of: impl Fn(&[&Life], usize) -> Option<(Vec<usize>, usize)>,
) -> Result<Layout, PlanError> {
    let lives = lives(graph, phases);
    let mut placements: Vec<Placement> = lives.iter().map(|life| life.placement).collect();
    placements.sort();
    placements.dedup();

    let mut allocations = vec![None; graph.values().len()];
    let mut arenas = Vec::new();
    for placement in placements {
        let lives: Vec<&Life> = lives.iter().filter(|life| life.placement == placement).collect();
        let lower_bound_bytes = lower_bound(&lives, phases.len()).ok_or(PlanError::TooLarge)?;
        let (offsets, bytes) = offsets_of(&lives, lower_bound_bytes)
            .filter(|&(_, bytes)| bytes <= isize::MAX as usize)
            .ok_or(PlanError::TooLarge)?;
        for (life, offset) in lives.iter().zip(offsets) {
            allocations[life.value.index()] = Some(Allocation { offset, bytes: life.bytes });
        }
        arenas.push(ArenaSize { placement, bytes, lower_bound_bytes });
    }
    Ok((allocations, arenas))
}

/// The largest sum of bytes alive in any phase.
fn lower_bound(lives: &[&Life], phases: usize) -> Option<usize> {
    let mut starts = vec![0usize; phases + 2];
    let mut ends = vec![0usize; phases + 2];
    for life in lives {
        starts[life.first] = starts[life.first].checked_add(life.bytes)?;
        ends[life.last + 1] = ends[life.last + 1].checked_add(life.bytes)?;
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
fn best_offsets(lives: &[&Life], lower_bound: usize) -> Option<(Vec<usize>, usize)> {
    let good_enough = lower_bound.saturating_add(lower_bound / 100 * (GOOD_ENOUGH_PERCENT - 100));
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].first, i));
    let mut best = best_fit(lives, &order)?;
    let mut by_length = order.clone();
    by_length.sort_by_key(|&i| std::cmp::Reverse(lives[i].last - lives[i].first));
    for order in [by_length, (0..lives.len()).collect()] {
        if best.1 > good_enough
            && let Some(other) = best_fit(lives, &order).filter(|other| other.1 < best.1)
        {
            best = other;
        }
    }
    // Bounded hill climbing: swap two values in the order, keep the result if it is not worse.
    let rounds = SEARCH_BUDGET / (lives.len() * lives.len()).max(1);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..rounds.min(2000) {
        if best.1 <= good_enough || lives.len() < 2 {
            break;
        }
        let (a, b) = (below(&mut random, lives.len()), below(&mut random, lives.len()));
        order.swap(a, b);
        match best_fit(lives, &order) {
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
fn best_fit(lives: &[&Life], order: &[usize]) -> Option<(Vec<usize>, usize)> {
    let mut offsets = vec![0usize; lives.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(lives.len()); // by offset
    let mut arena_end = 0usize;
    for &index in order {
        let life = lives[index];
        let bytes = aligned(life.bytes)?;
        let mut gap_start = 0usize;
        let mut best: Option<(usize, usize)> = None; // (gap bytes, offset)
        for &other in &placed {
            let neighbour = lives[other];
            if neighbour.last < life.first || life.last < neighbour.first {
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
