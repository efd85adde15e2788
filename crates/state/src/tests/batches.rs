//! Steps looked up in one pass against rows looked up one by one.

use super::naive_model::{Kind, model};
use super::*;
use verbatim_graph::random::Random;

const FULL: Option<usize> = None;

/// Why the rows of one sequence cannot be computed in a step: the index of the row at fault among all, and why.
fn fault(
    state: &State<PlainStore>,
    model: ModelId,
    id: SequenceId,
    rows: &[(usize, usize)],
) -> Option<(usize, BatchError)> {
    if state.len(id).is_err() {
        return Some((rows[0].0, BatchError::NoSuchSequence));
    }
    let is_recurrent = !state.recurrent_layers(model).is_empty();
    let slot = |kv_index| state.row(id, kv_index).and_then(|row| row.slot);
    for (count, &(row, kv_index)) in rows.iter().enumerate() {
        let before: Vec<usize> = rows[..count].iter().map(|&(_, kv_index)| kv_index).collect();
        if state.row(id, kv_index).is_none() {
            return Some((row, BatchError::NotInFlight { kv_index }));
        }
        let order = Some((row, BatchError::Order { kv_index }));
        let not_filled = Some((row, BatchError::NoDraftState { kv_index }));
        if before.last().is_some_and(|&last| last >= kv_index) {
            return order;
        }
        let committed = state.len(id).unwrap();
        let Some(parent) = state.parent(id, kv_index) else {
            let filled = state.computed_range(id, model).unwrap();
            if model != ModelId::TARGET
                && is_recurrent
                && committed > 0
                && (filled.is_empty() || filled.end < committed)
            {
                return not_filled;
            }
            continue;
        };
        let shares = |&other: &usize| is_recurrent && slot(other) == slot(parent);
        match before.iter().rev().find(|&other| *other == parent || shares(other)) {
            Some(&found) if found == parent => {}
            Some(_) => return order,
            None if is_computed(state, model, id, &before, parent) => {
                let has_state =
                    !is_recurrent || state.row(id, parent).unwrap().state_valid_for.contains(model);
                if !has_state {
                    return order;
                }
            }
            None if model == ModelId::TARGET => return order,
            None if is_recurrent => return not_filled,
            None => {}
        }
    }
    None
}

/// Whether a model has computed a KV index in flight that is no row of the step, and no row makes it do so again.
fn is_computed(
    state: &State<PlainStore>,
    model: ModelId,
    id: SequenceId,
    before: &[usize],
    kv_index: usize,
) -> bool {
    let is_lost = state.kv_indices(id, kv_index).iter().any(|kv_index| before.contains(kv_index));
    state.row(id, kv_index).unwrap().computed_by.contains(model) && !is_lost
}

fn start(
    state: &State<PlainStore>,
    model: ModelId,
    id: SequenceId,
    before: &[usize],
    kv_index: usize,
) -> usize {
    if model == ModelId::TARGET {
        return 0;
    }
    let kv_indices = state.kv_indices(id, kv_index);
    let (committed, filled) = (state.len(id).unwrap(), state.computed_range(id, model).unwrap());
    let has =
        |&kv_index: &usize| before.contains(&kv_index) || is_computed(state, model, id, before, kv_index);
    match kv_indices[..kv_indices.len() - 1].iter().rposition(|kv_index| !has(kv_index)) {
        Some(gap) => committed + gap + 1,
        None if filled.end == committed && !filled.is_empty() => filled.start,
        None => committed,
    }
}

struct World {
    state: State<PlainStore>,
    live: Vec<SequenceId>,
    ended: Vec<SequenceId>,
    random: Random,
}

impl World {
    fn new(kinds: &[Kind], seed: u64) -> World {
        let mut state = State::new(PlainStore::default(), spec(5, 400, 40), model(kinds[0])).unwrap();
        for &kind in &kinds[1..] {
            state.append_model(model(kind)).unwrap();
        }
        let mut world = World { state, live: Vec::new(), ended: Vec::new(), random: Random(seed) };
        let gone = world.state.begin().unwrap();
        world.state.end(gone).unwrap();
        world.ended.push(gone);
        for _ in 0..4 {
            world.begin();
        }
        world
    }

    fn begin(&mut self) {
        let id = self.state.begin().unwrap();
        let committed = self.random.below(100);
        if committed > 0 {
            let kv_indices = self.state.append(id, committed).unwrap();
            let models: Vec<ModelId> = self.state.models().collect();
            for model in models {
                if model == ModelId::TARGET || self.random.below(2) == 0 {
                    let rows = kv_indices.clone().map(|kv_index| (id, kv_index, Some(0)));
                    self.state.computed(model, rows).unwrap();
                }
            }
            self.state.commit(id, committed).unwrap();
        }
        let count = 1 + self.random.below(MAX_STATE_CHECKPOINTS);
        if self.random.below(2) == 0 {
            let parents: Vec<_> = (0..count).map(|i| self.random.below(i + 1).checked_sub(1)).collect();
            self.state.append_tree(id, &parents).unwrap();
        } else {
            let count = [count, 60][self.random.below(2)];
            self.state.append(id, count).unwrap();
        }
        self.live.push(id);
    }

    /// Rows of some sequences, in order or not, those of different sequences mixed.
    fn rows(&mut self) -> Vec<(SequenceId, usize)> {
        let mut queues = Vec::new();
        for &id in &self.live {
            let (committed, in_flight) =
                (self.state.len(id).unwrap(), self.state.sequence(id).unwrap().in_flight.len());
            let least = self.random.below(in_flight);
            let mut kv_indices: Vec<usize> = match self.random.below(4) {
                0 => Vec::new(),
                1 => (0..in_flight).collect(),
                2 => (least..in_flight).collect(),
                _ => (0..in_flight).filter(|_| self.random.below(3) > 0).collect(),
            };
            kv_indices.iter_mut().for_each(|kv_index| *kv_index += committed);
            if self.random.below(8) == 0 && kv_indices.len() > 1 {
                let other = self.random.below(kv_indices.len());
                kv_indices.swap(0, other);
            }
            if self.random.below(12) == 0 {
                kv_indices.push([committed.saturating_sub(1), committed + in_flight][self.random.below(2)]);
            }
            queues.push((id, kv_indices));
        }
        if self.random.below(3) == 0 {
            queues.push((self.ended[0], vec![0, 1]));
        }
        let mut rows = Vec::new();
        let is_mixed = self.random.below(2) == 0;
        queues.retain(|(_, kv_indices)| !kv_indices.is_empty());
        while !queues.is_empty() {
            let at = if is_mixed { self.random.below(queues.len()) } else { 0 };
            rows.push((queues[at].0, queues[at].1.remove(0)));
            queues.retain(|(_, kv_indices)| !kv_indices.is_empty());
        }
        rows
    }

    /// Compares a batch with each row looked up by itself; whether any was rejected.
    fn check(&self, model: ModelId, rows: &[(SequenceId, usize)], batch: &Batch) -> bool {
        let of = |id: SequenceId| -> Vec<(usize, usize)> {
            let own = rows.iter().enumerate().filter(|(_, row)| row.0 == id);
            own.map(|(index, row)| (index, row.1)).collect()
        };
        let faults = self.live.iter().chain(&self.ended).copied();
        let faults: Vec<_> = faults
            .filter(|&id| !of(id).is_empty())
            .filter_map(|id| fault(&self.state, model, id, &of(id)))
            .collect();
        assert_eq!(batch.rejected.len(), faults.len());
        assert!(faults.iter().all(|fault| batch.rejected.contains(fault)), "{faults:?} {:?}", batch.rejected);
        let is_rejected = |id: SequenceId| faults.iter().any(|&(row, _)| rows[row].0 == id);
        let kept: Vec<usize> = (0..rows.len()).filter(|&row| !is_rejected(rows[row].0)).collect();
        assert_eq!(batch.accepted_rows, kept);
        let paths = kept.iter().filter_map(|&row| self.state.path(rows[row].0, rows[row].1));
        let longest = paths.map(|path| path.len()).max().unwrap_or(0);
        assert_eq!(batch.path_len, if longest == 0 { 0 } else { longest.next_power_of_two() });
        for (at, &row) in kept.iter().enumerate() {
            self.check_row(model, rows, row, at, batch);
        }
        for values in [&batch.positions, &batch.sequences, &batch.read_slots, &batch.write_slots] {
            assert_eq!(values.len(), kept.len());
        }
        for values in [&batch.tree_starts, &batch.computed_from] {
            assert_eq!(values.len(), kept.len());
        }
        for (cells, paths) in batch.cells.iter().zip(&batch.paths) {
            assert_eq!((cells.len(), paths.len()), (kept.len(), kept.len() * batch.path_len));
        }
        assert!(batch.parent_cells.iter().all(|cells| cells.len() == kept.len()));
        !faults.is_empty()
    }

    fn check_row(&self, model: ModelId, rows: &[(SequenceId, usize)], row: usize, at: usize, batch: &Batch) {
        let state = &self.state;
        let (id, kv_index) = rows[row];
        let position = state.position(id, kv_index).unwrap();
        assert_eq!(batch.positions[at] as usize, position);
        assert_eq!(batch.sequences[at] as usize, id.index());
        let is_recurrent = !state.recurrent_layers(model).is_empty();
        let slots = if is_recurrent { state.slots(id, kv_index).unwrap() } else { [-1; 2] };
        assert_eq!([batch.read_slots[at], batch.write_slots[at]], slots);
        let before: Vec<usize> = rows[..row].iter().filter(|row| row.0 == id).map(|row| row.1).collect();
        assert_eq!(batch.computed_from[at] as usize, start(state, model, id, &before, kv_index), "{model:?}");
        let path = state.path(id, kv_index).unwrap_or_default();
        assert_eq!(batch.tree_starts[at] as usize, position + 1 - path.len());
        for group in 0..state.windows().len() {
            let cell = |kv_index| state.cell(id, group, kv_index).unwrap() as i32;
            assert_eq!(batch.cells[group][at], cell(kv_index));
            let parent = state.parent(id, kv_index).or(state.len(id).unwrap().checked_sub(1));
            let before = parent.and_then(|parent| state.cell(id, group, parent));
            assert_eq!(batch.parent_cells[group][at], before.map_or(-1, |cell| cell as i32));
            let mut cells: Vec<i32> = path.iter().map(|&kv_index| cell(kv_index)).collect();
            cells.resize(batch.path_len, 0);
            assert_eq!(batch.paths[group][at * batch.path_len..][..batch.path_len], cells);
        }
    }

    /// What is kept is computed, perhaps by a run that fails.
    fn compute(&mut self, model: ModelId, rows: &[(SequenceId, usize)], batch: &Batch) {
        let kept = || batch.accepted_rows.iter().map(|&row| rows[row]);
        self.state.begin_compute(model, kept()).unwrap();
        if self.random.below(5) > 0 {
            let computed = kept().map(|(id, kv_index)| (id, kv_index, Some(0)));
            self.state.computed(model, computed).unwrap();
        }
    }
}

#[test]
fn a_batch_equals_its_rows_looked_up_one_by_one() {
    let kinds: [&[Kind]; 3] = [
        &[(&[Some(16), FULL], false), (&[FULL, Some(40)], false), (&[], true)],
        &[(&[FULL], true), (&[FULL], true), (&[Some(40)], false)],
        &[(&[FULL], false)],
    ];
    let (mut rejected, mut kept) = (0, 0);
    for seed in 0..300 {
        let mut world = World::new(kinds[seed % kinds.len()], seed as u64);
        let mut batch = Batch::default();
        for _ in 0..12 {
            let models: Vec<ModelId> = world.state.models().collect();
            let model = models[world.random.below(models.len())];
            let rows = world.rows();
            world.state.batch(model, &rows, &mut batch);
            rejected += usize::from(world.check(model, &rows, &batch));
            kept += batch.accepted_rows.len();
            world.compute(model, &rows, &batch);
        }
    }
    assert!(rejected > 500 && kept > 20_000, "{rejected} rejected, {kept} rows");
}

#[test]
fn a_rejected_sequence_does_not_affect_others() {
    let mut world = World::new(&[(&[FULL], false)], 5);
    let (a, b) = (world.live[0], world.live[1]);
    let rows = |id: SequenceId| {
        let kv_indices = world.state.len(id).unwrap();
        (kv_indices..world.state.sequence(id).unwrap().kv_len()).map(move |kv_index| (id, kv_index))
    };
    let (mut alone, mut both) = (Batch::default(), Batch::default());
    let good: Vec<_> = rows(a).collect();
    // Its last row comes again.
    let mut bad: Vec<_> = rows(b).collect();
    bad.push(bad[bad.len() - 1]);
    let all: Vec<_> = bad[..1].iter().chain(&good).chain(&bad[1..]).copied().collect();
    world.state.batch(ModelId::TARGET, &good, &mut alone);
    world.state.batch(ModelId::TARGET, &all, &mut both);
    let kv_index = bad[bad.len() - 1].1;
    assert_eq!(both.rejected, [(all.len() - 1, BatchError::Order { kv_index })]);
    assert!(both.accepted_rows.iter().copied().eq(1..=good.len()));
    both.rejected.clear();
    both.accepted_rows.iter_mut().for_each(|row| *row -= 1);
    let text = |batch: &Batch| format!("{batch:?}").split("scratch").next().unwrap().to_owned();
    assert_eq!(text(&alone), text(&both));
    // One that has ended and one that has its index.
    world.state.end(b).unwrap();
    let next = world.state.begin().unwrap();
    assert_eq!(next.index(), b.index());
    let kv_index = world.state.append(next, 1).unwrap().start;
    world.state.batch(ModelId::TARGET, &[(b, kv_index), (next, kv_index), (b, kv_index)], &mut both);
    assert_eq!(
        (&both.accepted_rows[..], &both.rejected[..]),
        (&[1][..], &[(0, BatchError::NoSuchSequence)][..])
    );
}
