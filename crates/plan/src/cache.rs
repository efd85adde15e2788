//! Programs made so far, and why each had to be.

use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::hash::Hash;
use verbatim_graph::{Graph, Lifetime, Placement, Value};

/// A cache never holds more programs than this; the one unused for longest goes first.
const MOST_PROGRAMS: usize = 128;

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
    /// Requests answered by one that was there.
    pub hits: u64,
    /// Plans given up, since there were too many.
    pub evicted: u64,
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

/// Programs by key. A key is the graph itself, or something that a graph is made of
/// and that alone: then nothing is built to find out that nothing has to be.
#[derive(Debug)]
pub struct ProgramCache<K, P> {
    /// Where in `entries` the program of a key is.
    index: HashMap<K, usize, FixedState>,
    entries: Vec<Entry<K, P>>,
    clock: u64,
    statistics: Statistics,
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
        ProgramCache { index, entries, clock: 0, statistics: Statistics::default() }
    }
}

impl<K: Clone + Eq + Hash, P> ProgramCache<K, P> {
    /// What was made for an equal key; else what `make` makes now, of the graph that it gives beside it.
    ///
    /// # Errors
    /// Whatever `make` returns.
    pub fn get_or_make<E>(&mut self, key: &K, make: impl FnOnce() -> Result<(Graph, P), E>) -> Result<&P, E> {
        self.clock += 1;
        let index = match self.index.get(key) {
            Some(&index) => {
                self.statistics.hits += 1;
                index
            }
            None => {
                let (graph, program) = make()?;
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

    /// What was made and is still there.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &P)> {
        self.entries.iter().map(|entry| (&entry.key, &entry.program))
    }

    /// What was made and reused so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn reason(&self, graph: &Graph) -> RebuildReason {
        let made = self.entries.iter();
        made.map(|entry| difference(&entry.graph, graph)).min().unwrap_or(RebuildReason::First)
    }

    fn make_room(&mut self) {
        if self.entries.len() < MOST_PROGRAMS {
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
