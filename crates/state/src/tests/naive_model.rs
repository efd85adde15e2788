//! The cache metadata against a naive model of what every cell and slot must contain, for every model.

use super::*;
use verbatim_graph::random::Random;
use verbatim_graph::{F32Bits, RopeScaling};

/// What a cell must contain: a number for the text up to its position.
type Content = u64;

/// The content of cells that were not computed.
const POISON: Content = 0xdead_dead_dead_dead;

/// The layers of one model: windows, and whether there is a recurrent layer.
pub(super) type Kind = (&'static [Option<usize>], bool);

pub(super) fn model((windows, is_recurrent): Kind) -> ModelSpec {
    // Layers that differ in how their keys move.
    let table = RopeTable {
        rotary_dim: 4,
        base: F32Bits(1e4),
        scaling: RopeScaling::Linear { factor: F32Bits(1.0) },
    };
    let layers = windows.iter().enumerate().map(|(index, &window)| {
        let rope = RopeKind::Rope { table, layout: RopeLayout::NeoX, freq_factors: None };
        let rope = if index % 2 == 0 { rope } else { RopeKind::None };
        LayerSpec { rope, ..layer(window) }
    });
    ModelSpec { layers: layers.collect(), recurrent: is_recurrent.then(recurrent).into_iter().collect() }
}

/// The expected state of a position in flight.
#[derive(Clone)]
struct Flying {
    parent: Option<usize>,
    token: u32,
    content: Content,
    /// The token was reported to the target.
    is_reported: bool,
    /// By model.
    computed: Vec<bool>,
}

/// The expected state of a sequence.
#[derive(Clone, Default)]
struct Naive {
    tokens: Vec<u32>,
    contents: Vec<Content>,
    /// By model, the target's included.
    computed_ranges: Vec<Range<usize>>,
    in_flight: Vec<Flying>,
}

fn after(contents: impl Iterator<Item = Content>, token: u32) -> Content {
    contents
        .chain([u64::from(token)])
        .fold(0x9e37_79b9_7f4a_7c15, |hash, x| (hash ^ x).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29))
}

/// What a model computes of a text.
fn stamp(model: ModelId, content: Content) -> Content {
    content.wrapping_add(model.index() as u64 * 0x1234_5678_9abc)
}

impl Naive {
    /// Indices of the path of a position in flight, its own last.
    fn path(&self, index: usize) -> Vec<usize> {
        let mut path = vec![index];
        while let Some(parent) = self.in_flight[path[path.len() - 1]].parent {
            path.push(parent);
        }
        path.reverse();
        path
    }

    /// Contents up to a position in flight, its own last.
    fn contents(&self, index: usize) -> Vec<Content> {
        let path = self.path(index).into_iter().map(|index| self.in_flight[index].content);
        self.contents.iter().copied().chain(path).collect()
    }

    fn follows(&self, index: usize, ancestor: usize) -> bool {
        self.path(index).contains(&ancestor)
    }

    /// What a model has computed of a KV index, and of those that follow it, is lost.
    fn lose(&mut self, index: usize, model: usize) {
        for later in index..self.in_flight.len() {
            if self.follows(later, index) {
                self.in_flight[later].computed[model] = false;
            }
        }
    }

    /// A KV index is of another token now.
    fn change(&mut self, index: usize, token: u32, fresh: Content) {
        self.in_flight[index].token = token;
        for later in index..self.in_flight.len() {
            if self.follows(later, index) {
                let contents = self.contents(later);
                let before = contents[..contents.len() - 1].iter().copied();
                let token = self.in_flight[later].token;
                self.in_flight[later].content =
                    if token == NOT_A_TOKEN { fresh } else { after(before, token) };
            }
        }
    }

    /// Where a model has computed without gap up to a KV index that it computes.
    fn start(&self, index: usize, model: usize) -> usize {
        let path = self.path(index);
        let gap = path[..path.len() - 1].iter().rposition(|&index| !self.in_flight[index].computed[model]);
        let (committed, computed_range) = (self.contents.len(), &self.computed_ranges[model]);
        match gap {
            Some(gap) => committed + gap + 1,
            None if computed_range.end == committed && !computed_range.is_empty() => computed_range.start,
            None => committed,
        }
    }

    fn commit(&mut self, path: &[usize]) {
        for &index in path {
            let (at, row) = (self.contents.len(), &self.in_flight[index]);
            for (computed_range, computed) in self.computed_ranges.iter_mut().zip(&row.computed) {
                if *computed {
                    let continues = computed_range.end == at && computed_range.start < at;
                    *computed_range = if continues { computed_range.start } else { at }..at + 1;
                }
            }
            self.tokens.push(row.token);
            self.contents.push(row.content);
        }
        self.in_flight.clear();
    }
}

/// A state with its naive model.
struct World {
    state: State<PlainStore>,
    live: Vec<(SequenceId, Naive)>,
    random: Random,
    /// Draft models that compute at present.
    on: Vec<bool>,
    /// Models of which it is known exactly what they have computed.
    exact: Vec<bool>,
    batch: Batch,
    /// How often it happened.
    counts: Counts,
}

#[derive(Default, Debug)]
struct Counts {
    cached: usize,
    reused: usize,
    reused_by_drafts: usize,
    restored_by_drafts: usize,
    moved_by_drafts: usize,
    begun_late: usize,
    failed: usize,
    changed: usize,
    states_of_drafts: usize,
    not_filled: usize,
}

impl World {
    fn new(kinds: &[Kind], cache_pages: usize, seed: u64) -> World {
        let (mut spec, target) = (spec(4, 400, 14), model(kinds[0]));
        spec.cache_bytes = cache_pages * kinds[0].0.len() * PAGE_CELLS * HEAD_DIM * 8;
        if kinds[0].1 {
            spec.cache_bytes *= 2;
        }
        let mut state = State::new(PlainStore::default(), spec, target).unwrap();
        let targets_windows = state.windows();
        let mut exact = vec![true];
        for &(windows, is_recurrent) in &kinds[1..] {
            state.append_model(model((windows, is_recurrent))).unwrap();
            exact.push(!is_recurrent && windows.iter().all(|window| targets_windows.contains(window)));
        }
        let (on, batch) = (vec![true; kinds.len()], Batch::default());
        World { state, live: Vec::new(), random: Random(seed), on, exact, batch, counts: Counts::default() }
    }

    /// The layers of a model: group, layer, window, and whether a cell knows its position.
    fn layers(&self, model: ModelId) -> Vec<(usize, usize, Option<usize>, bool)> {
        let windows = self.state.windows();
        let layers = self.state.layers(model).map(|layer| {
            let spec = &self.state.layers[layer];
            let group = windows.iter().position(|&window| window == spec.window).unwrap();
            (group, layer, spec.window, spec.rope != RopeKind::None)
        });
        layers.collect()
    }

    fn put(&mut self, layer: usize, cell: usize, content: Content, position: usize) {
        let [content, position] = [content, position as u64].map(u64::to_le_bytes);
        let bytes = [content, position, content, content].concat();
        self.state.store_mut().write_cells(layer, &mut [cell].into_iter(), &bytes);
    }

    fn get(&self, layer: usize, cell: usize) -> [u64; 2] {
        let bytes = self.state.store().cell_bytes(layer, cell);
        [0, 8].map(|at| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap()))
    }

    fn put_state(&mut self, model: ModelId, slot: i32, content: Content) {
        let layers = self.state.recurrent_layers(model);
        let bytes = content.to_le_bytes().repeat(self.state.store().slot_bytes(layers.clone()) / 8);
        self.state.store_mut().write_slot(layers, slot as usize, &bytes);
    }

    /// What a model's part of a slot holds; `None` if it has none or the slot is not there.
    fn get_state(&self, model: ModelId, slot: i32) -> Option<Content> {
        let mut bytes = Vec::new();
        let slot = usize::try_from(slot).ok()?;
        self.state.store().read_slot(self.state.recurrent_layers(model), slot, &mut bytes);
        bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Nobody has computed anything at a KV index in flight.
    fn poison(&mut self, id: SequenceId, kv_index: usize, models: &[ModelId]) {
        for &model in models {
            for (group, layer, ..) in self.layers(model) {
                let cell = self.state.cell(id, group, kv_index).expect("in flight");
                self.put(layer, cell, POISON, 0);
            }
            if let Some([_, slot]) = self.state.slots(id, kv_index) {
                self.put_state(model, slot, POISON);
            }
        }
    }

    fn append(&mut self, at: usize) {
        let (id, naive) = &self.live[at];
        let (id, base) = (*id, naive.in_flight.len());
        let sizes = [1, 3, 16, 70, 100];
        let count = 1 + self.random.below(sizes[self.random.0 as usize % sizes.len()]);
        let tree = self.random.below(3) == 0 && count <= 16;
        let parents: Vec<Option<usize>> = (0..count)
            .map(|i| match tree {
                true => self.random.below(base + i + 1).checked_sub(1),
                false => (base + i).checked_sub(1),
            })
            .collect();
        let appended = match tree {
            true => self.state.append_tree(id, &parents),
            false => self.state.append(id, count),
        };
        let Ok(kv_indices) = appended else { return };
        let models: Vec<ModelId> = self.state.models().collect();
        for (kv_index, parent) in kv_indices.zip(parents) {
            self.poison(id, kv_index, &models);
            // Few tokens, so that sequences meet.
            let token = match self.random.below(2000) {
                0 => NOT_A_TOKEN,
                1..20 => 1,
                _ => 0,
            };
            let computed = vec![false; models.len()];
            let fresh = self.random.bits();
            let naive = &mut self.live[at].1;
            naive.in_flight.push(Flying { parent, token, content: 0, is_reported: false, computed });
            naive.change(naive.in_flight.len() - 1, token, fresh);
        }
        let order = if self.random.below(2) == 0 { 0..models.len() } else { 1..models.len() + 1 };
        for model in order.map(|model| ModelId(model % models.len())) {
            self.compute_some(at, model, base, count);
        }
    }

    /// A model computes the last KV indices in flight, in one or several steps; a draft model perhaps not all of them.
    fn compute_some(&mut self, at: usize, model: ModelId, base: usize, count: usize) {
        if !self.on[model.index()] {
            return;
        }
        let mut indices: Vec<usize> = (base..base + count).collect();
        if model != ModelId::TARGET {
            match self.random.below(16) {
                0 => indices.truncate(self.random.below(count + 1)),
                1 => drop(indices.drain(..self.random.below(count + 1))),
                2 => indices.retain(|_| self.random.below(4) > 0),
                _ => {}
            }
        }
        while !indices.is_empty() {
            let step = 1 + self.random.below(indices.len());
            let rest = indices.split_off(step);
            let fails = self.random.below(60) == 0;
            if !self.compute(at, model, &indices, None, fails) {
                return;
            }
            indices = rest;
        }
    }

    /// A model computes KV indices in flight in one step, perhaps the first of another token than before. Whether it could.
    fn compute(
        &mut self,
        at: usize,
        model: ModelId,
        indices: &[usize],
        token: Option<u32>,
        fails: bool,
    ) -> bool {
        let id = self.live[at].0;
        let committed = self.live[at].1.contents.len();
        let rows: Vec<_> = indices.iter().map(|index| (id, committed + index)).collect();
        let mut batch = std::mem::take(&mut self.batch);
        self.state.batch(model, &rows, &mut batch);
        let is_possible = self.check_rejection(at, model, indices, &batch);
        if is_possible {
            self.state.begin_compute(model, rows.iter().copied()).unwrap();
            let naive = &mut self.live[at].1;
            indices.iter().for_each(|&index| naive.lose(index, model.index()));
            if fails {
                self.counts.failed += 1;
                rows.iter().for_each(|&(_, kv_index)| self.poison(id, kv_index, &[model]));
            } else {
                if let Some(token) = token {
                    self.change(at, indices[0], token);
                }
                let kept = indices.iter().enumerate();
                kept.for_each(|(row, &index)| self.compute_row(at, model, index, row, &batch));
                let naive = &self.live[at].1;
                let token =
                    |index: usize| Some(naive.in_flight[index].token).filter(|&token| token != NOT_A_TOKEN);
                let computed =
                    rows.iter().zip(indices).map(|(&(id, kv_index), &index)| (id, kv_index, token(index)));
                self.state.computed(model, computed).unwrap();
            }
        }
        self.batch = batch;
        is_possible && !fails
    }

    /// The target computes a KV index of another token: what draft models have computed there and after it is of no use.
    fn change(&mut self, at: usize, index: usize, token: u32) {
        let (fresh, models) = (self.random.bits(), self.on.len());
        let naive = &mut self.live[at].1;
        let is_other = naive.in_flight[index].token != token || token == NOT_A_TOKEN;
        if is_other {
            assert!(naive.in_flight[index].is_reported);
            self.counts.changed += 1;
            (1..models).for_each(|draft| naive.lose(index, draft));
            naive.change(index, token, fresh);
        }
    }

    /// Whether a step is rejected only where it has to be; whether it is not.
    fn check_rejection(&mut self, at: usize, model: ModelId, indices: &[usize], batch: &Batch) -> bool {
        let naive = &self.live[at].1;
        if batch.rejected.is_empty() {
            assert!(batch.accepted_rows.iter().copied().eq(0..indices.len()));
            return true;
        }
        let is_recurrent = !self.state.recurrent_layers(model).is_empty();
        let (row, error) = batch.rejected[0];
        let index = indices[row];
        let parent = naive.in_flight[index].parent;
        let is_lost = match parent {
            Some(parent) => {
                !naive.in_flight[parent].computed[model.index()] && !indices[..row].contains(&parent)
            }
            None => {
                naive.computed_ranges[model.index()].end != naive.contents.len()
                    || naive.computed_ranges[model.index()].is_empty()
            }
        };
        match error {
            BatchError::NoDraftState { .. } => {
                self.counts.not_filled += 1;
                assert!(is_recurrent && model != ModelId::TARGET && is_lost);
            }
            // A chain in which states share memory, or a step that begins after one that has failed.
            BatchError::Order { .. } => {
                let shares = is_recurrent && naive.in_flight.len() > MAX_STATE_CHECKPOINTS;
                assert!(
                    shares || model == ModelId::TARGET && parent.is_some() && is_lost,
                    "{naive_len}",
                    naive_len = naive.in_flight.len()
                );
            }
            _ => panic!("{error}"),
        }
        false
    }

    /// What a row of a step sees is what it ought to be; it writes what it computes.
    fn compute_row(&mut self, at: usize, model: ModelId, index: usize, row: usize, batch: &Batch) {
        let (id, naive) = &self.live[at];
        let (id, contents) = (*id, naive.contents(index));
        let position = contents.len() - 1;
        assert_eq!(batch.positions[row] as usize, position);
        let start = batch.computed_from[row] as usize;
        if model == ModelId::TARGET {
            assert_eq!(start, 0);
        } else {
            assert_eq!(start, naive.start(index, model.index()), "{model:?} at {index}");
            self.counts.begun_late += usize::from(start > 0 && start < position);
        }
        let path = self.live[at].1.path(index);
        let committed = position + 1 - path.len();
        // All that it sees, or at least what is in flight and a little more.
        let near = if self.random.below(8) == 0 { 0 } else { committed.saturating_sub(3) };
        for (group, layer, window, knows_position) in self.layers(model) {
            let first = window.map_or(0, |window| (position + 1).saturating_sub(window)).max(start).max(near);
            for seen in first..position {
                let kv_index = if seen < committed { seen } else { committed + path[seen - committed] };
                let cell = self.state.cell(id, group, kv_index).expect("seen");
                let [found, at] = self.get(layer, cell);
                assert_eq!(
                    found,
                    stamp(model, contents[seen]),
                    "{model:?}, layer {layer}, {seen} of {position}"
                );
                assert!(!knows_position || at == seen as u64, "{at} not {seen}");
            }
            let content = stamp(model, contents[position]);
            self.put(layer, batch.cells[group][row] as usize, content, position);
        }
        if !self.state.recurrent_layers(model).is_empty() {
            let found = self.get_state(model, batch.read_slots[row]);
            let before = position.checked_sub(1).map(|before| stamp(model, contents[before]));
            assert_eq!(found, before, "the state of {model:?} before {position}");
            self.put_state(model, batch.write_slots[row], stamp(model, contents[position]));
            self.counts.states_of_drafts += usize::from(model != ModelId::TARGET);
        }
        let row = &mut self.live[at].1.in_flight[index];
        row.computed[model.index()] = true;
        row.is_reported |= model == ModelId::TARGET;
    }

    fn commit(&mut self, at: usize) {
        let mut path = Vec::new();
        let (id, naive) = &mut self.live[at];
        if !naive.in_flight.is_empty() && self.random.below(8) > 0 {
            let last = naive.in_flight.len() - 1;
            path = naive.path([last, self.random.below(last + 1)][self.random.below(2)]);
        }
        match self.state.commit_path(*id, &path) {
            Ok(()) => {
                assert!(path.iter().all(|&index| naive.in_flight[index].computed[0]));
                naive.commit(&path);
            }
            Err(error) => {
                let is_missing = path.iter().any(|&index| !naive.in_flight[index].computed[0]);
                assert_eq!(is_missing, matches!(error, StateError::NotComputed { .. }), "{error}");
                assert!(is_missing || matches!(error, StateError::NoCheckpoint { .. }), "{error}");
                self.state.rollback(*id).unwrap();
                naive.in_flight.clear();
            }
        }
    }

    fn begin(&mut self) {
        let Ok(id) = self.state.begin() else { return };
        self.state.attach(id, Box::new(Sum::default())).unwrap();
        let mut naive = Naive { computed_ranges: vec![0..0; self.on.len()], ..Naive::default() };
        if self.random.below(4) > 0 {
            let len = self.random.below(300);
            let mut tokens: Vec<u32> = (0..len).map(|_| u32::from(self.random.below(200) == 0)).collect();
            if self.random.below(20) == 0 && len > 0 {
                tokens[self.random.below(len)] = NOT_A_TOKEN;
            }
            let reused = self.state.resume_prefix(id, &tokens).unwrap();
            for &token in &tokens[..reused] {
                assert_ne!(token, NOT_A_TOKEN);
                let content = after(naive.contents.iter().copied(), token);
                naive.tokens.push(token);
                naive.contents.push(content);
            }
            self.counts.reused += reused;
            for draft in self.state.drafts() {
                let computed_range = self.state.computed_range(id, draft).unwrap();
                assert!(computed_range.is_empty() || computed_range.end == reused);
                self.counts.reused_by_drafts += computed_range.len();
                naive.computed_ranges[draft.index()] = computed_range;
            }
            naive.computed_ranges[0] = 0..reused;
        }
        self.live.push((id, naive));
    }

    fn truncate(&mut self, at: usize) {
        let (id, naive) = &mut self.live[at];
        let committed = naive.tokens.len();
        let len = [0, committed, self.random.below(committed + 1)][self.random.below(3)];
        match self.state.truncate(*id, len) {
            Ok(()) => {
                naive.tokens.truncate(len);
                naive.contents.truncate(len);
                naive.in_flight.clear();
                for computed_range in &mut naive.computed_ranges {
                    let end = computed_range.end.min(len);
                    *computed_range =
                        if computed_range.start < end { computed_range.start..end } else { 0..0 };
                }
            }
            Err(error) => assert!(matches!(error, StateError::CannotTruncate { .. }), "{error}"),
        }
    }

    fn remove(&mut self, at: usize) {
        let (id, naive) = &mut self.live[at];
        let committed = naive.tokens.len();
        let start = self.random.below(committed + 1);
        let end = start + self.random.below(committed + 1 - start);
        match self.state.remove_and_shift(*id, start..end) {
            Ok(left) => {
                naive.tokens.drain(start..end);
                naive.contents.drain(start..end);
                assert_eq!(left, naive.tokens.len());
                for (model, computed_range) in naive.computed_ranges.iter_mut().enumerate() {
                    // Position by position.
                    let is_computed = (0..committed).map(|at| computed_range.contains(&at));
                    let kept: Vec<bool> = is_computed
                        .enumerate()
                        .filter(|(at, _)| !(start..end).contains(at))
                        .map(|(_, is)| is)
                        .collect();
                    let first = kept.iter().position(|&is| is).unwrap_or(0);
                    let count = kept.iter().filter(|&&is| is).count();
                    assert!(kept[first..first + count].iter().all(|&is| is), "one range stays one");
                    *computed_range = if count == 0 { 0..0 } else { first..first + count };
                    self.counts.moved_by_drafts +=
                        usize::from(model > 0 && start < end && computed_range.end > start);
                }
            }
            Err(error) => assert!(
                matches!(
                    error,
                    StateError::InFlight(_)
                        | StateError::CannotShift(_)
                        | StateError::NoPages { .. }
                        | StateError::CannotTruncate { .. }
                ),
                "{error}"
            ),
        }
    }

    fn act(&mut self) {
        if self.random.below(40) == 0 && self.on.len() > 1 {
            let draft = 1 + self.random.below(self.on.len() - 1);
            self.on[draft] = !self.on[draft];
        }
        if self.live.is_empty() || self.random.below(12) == 0 {
            return self.begin();
        }
        let at = self.random.below(self.live.len());
        let (id, in_flight) = (self.live[at].0, self.live[at].1.in_flight.len());
        match self.random.below(30) {
            0..11 => self.append(at),
            11..21 => self.commit(at),
            21..24 => {
                self.state.end(id).unwrap();
                self.live.swap_remove(at);
            }
            24 => self.truncate(at),
            25 => match self.state.fork(id) {
                Ok(fork) => self.live.push((fork, self.live[at].1.clone())),
                Err(StateError::InFlight(count)) => assert_eq!(count, in_flight),
                Err(error) => assert!(matches!(error, StateError::NoSequence(_)), "{error}"),
            },
            26 => self.remove(at),
            27..29 if in_flight > 0 => {
                let index = self.random.below(in_flight);
                let row = &self.live[at].1.in_flight[index];
                let token = [row.token, 1, 0, NOT_A_TOKEN][self.random.below(4)];
                let token = if row.is_reported { token } else { row.token };
                let fails = self.random.below(8) == 0;
                self.compute(at, ModelId::TARGET, &[index], Some(token), fails);
            }
            _ => {
                let saved = self.state.save(id).unwrap();
                match self.state.restore(&saved, vec![Box::new(Sum::default())]) {
                    Ok(restored) => {
                        let naive = Naive { in_flight: Vec::new(), ..self.live[at].1.clone() };
                        assert_eq!(restored.positions, naive.tokens.len());
                        self.counts.restored_by_drafts += naive.computed_ranges[1..]
                            .iter()
                            .map(|computed_range| computed_range.len())
                            .sum::<usize>();
                        self.live.push((restored.sequence, naive));
                    }
                    Err(RestoreError::State(StateError::NoSequence(_) | StateError::NoPages { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn check(&mut self) {
        self.state.integrity().unwrap();
        // Cells are many: not every time.
        let looks = self.random.below(3) == 0;
        for at in 0..self.live.len() {
            for model in self.state.models() {
                self.check_computed(at, model, looks);
            }
            let (id, naive) = &self.live[at];
            assert_eq!(self.state.tokens(*id), Ok(&naive.tokens[..]));
            let mut sum = Vec::new();
            self.state.extensions(*id).unwrap()[0].save(&mut sum);
            let wanted: u64 = naive.tokens.iter().map(|&token| u64::from(token)).sum();
            assert_eq!(sum, wanted.to_le_bytes());
        }
    }

    /// A model has computed the range that it reports, and reports all that it has computed if this test can know that.
    fn check_computed(&mut self, at: usize, model: ModelId, looks: bool) {
        let (id, naive) = &mut self.live[at];
        let (id, len) = (*id, naive.tokens.len());
        let computed_range = self.state.computed_range(id, model).unwrap();
        let wanted = &mut naive.computed_ranges[model.index()];
        if self.exact[model.index()] {
            assert_eq!(computed_range, *wanted, "{model:?} of {len}");
        }
        let is_within = wanted.start <= computed_range.start && computed_range.end == wanted.end;
        assert!(
            computed_range == (0..0) || is_within,
            "{model:?} has computed {wanted:?}, not {computed_range:?}, of {len}"
        );
        *wanted = computed_range.clone();
        if !looks {
            return;
        }
        let contents = naive.contents.clone();
        for (group, layer, window, knows_position) in self.layers(model) {
            let first = window.map_or(0, |window| (len + 1).saturating_sub(window)).max(computed_range.start);
            for (position, &content) in contents.iter().enumerate().take(computed_range.end).skip(first) {
                let cell = self.state.cell(id, group, position).expect("computed and visible");
                let [found, at] = self.get(layer, cell);
                assert_eq!(found, stamp(model, content), "{model:?}, {position} of {len}");
                assert!(!knows_position || at == position as u64, "{at} not {position}");
            }
        }
        if !self.state.recurrent_layers(model).is_empty()
            && !computed_range.is_empty()
            && computed_range.end == len
        {
            let slot = self.state.sequence(id).unwrap().slot.expect("a state");
            assert_eq!(self.get_state(model, slot), Some(stamp(model, contents[len - 1])));
        }
    }
}

#[test]
fn random_transactions_agree_with_a_naive_model() {
    const FULL: Option<usize> = None;
    let kinds: [&[Kind]; 8] = [
        &[(&[FULL], false)],
        &[(&[Some(16), FULL], false), (&[FULL], false), (&[Some(16)], false)],
        &[(&[FULL, FULL], false), (&[FULL, FULL], false)],
        &[(&[Some(100)], false), (&[FULL, Some(40)], false)],
        &[(&[FULL], true), (&[FULL], false)],
        &[(&[FULL], true), (&[FULL, Some(16)], true), (&[FULL], false)],
        &[(&[FULL], false), (&[Some(70)], true)],
        &[(&[FULL], true)],
    ];
    let mut counts = Vec::new();
    for (seed, kinds) in kinds.iter().enumerate() {
        for (round, cache_pages) in [0, 3, 40].into_iter().enumerate() {
            let mut world = World::new(kinds, cache_pages, 100 + seed as u64 * 10 + round as u64);
            for _ in 0..2000 {
                world.act();
                world.check();
                world.counts.cached += usize::from(world.state.cached_bytes() > 0);
            }
            counts.push(world.counts);
        }
    }
    let sum = |count: fn(&Counts) -> usize| counts.iter().map(count).sum::<usize>();
    let reached = [
        (sum(|counts| counts.cached), 20_000),
        (sum(|counts| counts.reused), 50_000),
        (sum(|counts| counts.reused_by_drafts), 5_000),
        (sum(|counts| counts.restored_by_drafts), 10_000),
        (sum(|counts| counts.moved_by_drafts), 50),
        (sum(|counts| counts.begun_late), 20_000),
        (sum(|counts| counts.failed), 500),
        (sum(|counts| counts.changed), 300),
        (sum(|counts| counts.states_of_drafts), 5_000),
        (sum(|counts| counts.not_filled), 500),
    ];
    assert!(reached.iter().all(|(count, least)| count >= least), "too little has happened: {reached:?}");
}
