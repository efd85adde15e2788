//! Plans made so far, found again only for an equal graph.

use crate::{Plan, PlanError};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use verbatim_graph::{Graph, Lifetime, Placement, Value};

/// A cache never holds more plans than this; the one unused for longest goes first.
const MOST_PLANS: usize = 256;

/// Why a plan had to be built: how the graph differs from the most similar one already planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RebuildReason {
    /// Equal but for the bounds on its rows.
    Rows,
    /// Equal but for where values lie.
    Placement,
    /// Equal but for which values are temporaries, inputs or outputs.
    Lifetime,
    /// Other ops, parameters, edges, views, types or shapes.
    Topology,
    /// Nothing was planned before.
    First,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Plans built.
    pub built: u64,
    /// Requests answered by a plan that was there.
    pub hits: u64,
    /// Plans built, by reason.
    pub rebuilds: Rebuilds,
}

/// Plans built, by [`RebuildReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rebuilds {
    pub first: u64,
    pub rows: u64,
    pub topology: u64,
    pub lifetime: u64,
    pub placement: u64,
}

impl Rebuilds {
    fn count(&mut self, reason: RebuildReason) {
        *match reason {
            RebuildReason::First => &mut self.first,
            RebuildReason::Rows => &mut self.rows,
            RebuildReason::Topology => &mut self.topology,
            RebuildReason::Lifetime => &mut self.lifetime,
            RebuildReason::Placement => &mut self.placement,
        } += 1;
    }
}

/// Plans by the full identity of their graphs.
#[derive(Debug, Default)]
pub struct PlanCache {
    plans: HashMap<u64, Vec<Entry>>,
    clock: u64,
    statistics: Statistics,
}

#[derive(Debug)]
struct Entry {
    plan: Arc<Plan>,
    last_used: u64,
}

impl PlanCache {
    /// The plan of a graph equal to this one: a hash finds candidates, equality decides.
    pub fn plan(&mut self, graph: Graph) -> Result<Arc<Plan>, PlanError> {
        self.clock += 1;
        let digest = digest(&graph);
        let candidates = self.plans.get_mut(&digest).map_or(&mut [][..], |entries| &mut entries[..]);
        if let Some(entry) = candidates.iter_mut().find(|entry| *entry.plan.graph() == graph) {
            entry.last_used = self.clock;
            self.statistics.hits += 1;
            return Ok(entry.plan.clone());
        }
        let reason = self.reason(&graph);
        let plan = Arc::new(Plan::new(Arc::new(graph))?);
        self.statistics.built += 1;
        self.statistics.rebuilds.count(reason);
        self.make_room();
        let entry = Entry { plan: plan.clone(), last_used: self.clock };
        self.plans.entry(digest).or_default().push(entry);
        Ok(plan)
    }

    /// Counts a reuse by a caller that keeps a plan at hand for a step it has made before.
    pub fn count_hit(&mut self) {
        self.statistics.hits += 1;
    }

    /// What was built and reused so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn reason(&self, graph: &Graph) -> RebuildReason {
        let planned = self.plans.values().flatten();
        planned.map(|entry| difference(entry.plan.graph(), graph)).min().unwrap_or(RebuildReason::First)
    }

    fn make_room(&mut self) {
        if self.plans.values().map(Vec::len).sum::<usize>() < MOST_PLANS {
            return;
        }
        let oldest = self.plans.values().flatten().map(|entry| entry.last_used).min();
        for entries in self.plans.values_mut() {
            entries.retain(|entry| Some(entry.last_used) != oldest);
        }
        self.plans.retain(|_, entries| !entries.is_empty());
    }
}

fn digest(graph: &Graph) -> u64 {
    let mut hasher = DefaultHasher::new();
    graph.hash(&mut hasher);
    hasher.finish()
}

/// The gravest way in which two unequal graphs differ.
fn difference(a: &Graph, b: &Graph) -> RebuildReason {
    let form = |value: &Value| (value.dtype, value.shape, value.def);
    let same_form = a.nodes() == b.nodes()
        && a.values().len() == b.values().len()
        && a.values().iter().zip(b.values()).all(|(a, b)| form(a) == form(b));
    let lifetimes = |graph: &Graph| -> Vec<Lifetime> { graph.values().iter().map(|v| v.lifetime).collect() };
    let placements =
        |graph: &Graph| -> Vec<Placement> { graph.values().iter().map(|v| v.placement).collect() };
    if !same_form {
        RebuildReason::Topology
    } else if lifetimes(a) != lifetimes(b) || a.outputs() != b.outputs() {
        RebuildReason::Lifetime
    } else if placements(a) != placements(b) {
        RebuildReason::Placement
    } else {
        RebuildReason::Rows
    }
}
