//! The program cache, and the reason for each rebuild.

use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::hash::Hash;
use verbatim_graph::{Graph, Lifetime, Placement, Value};

/// Capacity of a cache; the least recently used program is evicted.
const MAX_PROGRAMS: usize = 128;

/// Why a plan had to be built: how the graph differs from the most similar one already planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RebuildReason {
    /// Equal but for the bounds on its rows.
    Rows,
    /// Equal but for the placement of values.
    Placement,
    /// Equal but for which values are temporaries, inputs or outputs.
    Lifetime,
    /// Different ops, parameters, edges, views, types or shapes.
    Topology,
    /// Nothing was planned before.
    First,
}

/// Statistics of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Programs built.
    pub built: u64,
    /// Cache hits.
    pub hits: u64,
    /// Programs evicted.
    pub evicted: u64,
    /// Programs built, by reason.
    pub rebuilds: RebuildCounts,
}

/// Programs built, by [`RebuildReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RebuildCounts {
    pub first: u64,
    pub rows: u64,
    pub topology: u64,
    pub lifetime: u64,
    pub placement: u64,
}

impl RebuildCounts {
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

/// Programs by key. A key is the graph itself, or something that determines the graph, so a hit builds no graph.
#[derive(Debug)]
pub struct ProgramCache<K, P> {
    /// Index into `entries` by key.
    index: HashMap<K, usize, FixedState>,
    entries: Vec<Entry<K, P>>,
    clock: u64,
    statistics: CacheStatistics,
}

#[derive(Debug)]
struct Entry<K, P> {
    key: K,
    program: P,
    graph: Graph,
    last_used: u64,
}

impl<K, P> Default for ProgramCache<K, P> {
    fn default() -> Self {
        let (index, entries) = (HashMap::default(), Vec::new());
        ProgramCache { index, entries, clock: 0, statistics: CacheStatistics::default() }
    }
}

impl<K: Clone + Eq + Hash, P> ProgramCache<K, P> {
    /// The program for an equal key; else the one that `build` returns, along with its graph.
    ///
    /// # Errors
    /// Any error of `build`.
    pub fn get_or_build<E>(
        &mut self,
        key: &K,
        build: impl FnOnce() -> Result<(Graph, P), E>,
    ) -> Result<&P, E> {
        self.clock += 1;
        let index = match self.index.get(key) {
            Some(&index) => {
                self.statistics.hits += 1;
                index
            }
            None => {
                let (graph, program) = build()?;
                self.statistics.built += 1;
                self.statistics.rebuilds.count(self.reason(&graph));
                self.make_room();
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push(Entry { key: key.clone(), program, graph, last_used: 0 });
                self.entries.len() - 1
            }
        };
        self.entries[index].last_used = self.clock;
        Ok(&self.entries[index].program)
    }

    /// All cached programs.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &P)> {
        self.entries.iter().map(|entry| (&entry.key, &entry.program))
    }

    /// Statistics so far.
    pub fn statistics(&self) -> CacheStatistics {
        self.statistics
    }

    fn reason(&self, graph: &Graph) -> RebuildReason {
        let entries = self.entries.iter();
        entries.map(|entry| difference(&entry.graph, graph)).min().unwrap_or(RebuildReason::First)
    }

    fn make_room(&mut self) {
        if self.entries.len() < MAX_PROGRAMS {
            return;
        }
        let oldest = (0..self.entries.len()).min_by_key(|&index| self.entries[index].last_used);
        let Some(oldest) = oldest else { return };
        self.statistics.evicted += 1;
        let evicted = self.entries.swap_remove(oldest);
        self.index.remove(&evicted.key);
        if let Some(moved) = self.entries.get(oldest) {
            self.index.insert(moved.key.clone(), oldest);
        }
    }
}

/// The most significant difference between two unequal graphs.
fn difference(a: &Graph, b: &Graph) -> RebuildReason {
    let structure = |value: &Value| (value.dtype, value.shape, value.def);
    let same_structure = a.nodes() == b.nodes()
        && a.values().len() == b.values().len()
        && a.values().iter().zip(b.values()).all(|(a, b)| structure(a) == structure(b));
    let lifetimes = |graph: &Graph| -> Vec<Lifetime> { graph.values().iter().map(|v| v.lifetime).collect() };
    let placements =
        |graph: &Graph| -> Vec<Placement> { graph.values().iter().map(|v| v.placement).collect() };
    if !same_structure {
        RebuildReason::Topology
    } else if lifetimes(a) != lifetimes(b) || a.outputs() != b.outputs() {
        RebuildReason::Lifetime
    } else if placements(a) != placements(b) {
        RebuildReason::Placement
    } else {
        RebuildReason::Rows
    }
}
