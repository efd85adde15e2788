//! Accessors, and boundary cases of every limit.

use super::*;
use crate::spec::SLOTS_PER_SEQUENCE;

/// Appends positions, of this token, and commits them.
pub(super) fn extend(state: &mut State<PlainStore>, id: SequenceId, count: usize, token: u32) {
    let kv_indices = state.append(id, count).unwrap();
    state.computed(ModelId::TARGET, kv_indices.map(|kv_index| (id, kv_index, Some(token)))).unwrap();
    state.commit(id, count).unwrap();
}

#[test]
fn a_layer_attends_to_its_window() {
    for (window, position, first) in
        [(None, 99, 0), (Some(16), 0, 0), (Some(16), 15, 0), (Some(16), 16, 1), (Some(1), 7, 7)]
    {
        assert_eq!(layer(window).first_visible(position), first, "{window:?}");
    }
}

#[test]
fn accessors_describe_the_state() {
    let mut state = state_of(&[None, Some(16)], 3, 200, 20);
    assert_eq!((state.context(), state.page_table_shape()), (200, [3, 4]));
    let (first, id) = (state.begin().unwrap(), state.begin().unwrap());
    assert_eq!((state.is_empty(id), state.len(id), state.removed_count(id)), (Ok(true), Ok(0), Ok(0)));
    extend(&mut state, id, 100, 5);
    extend(&mut state, first, 1, 6);
    assert_eq!((state.is_empty(id), state.len(id)), (Ok(false), Ok(100)));
    for group in 0..2 {
        let table = state.page_table(group);
        assert_eq!(table.len(), 3 * 4);
        for (position, page_index) in [(99, 1), (0, 0)] {
            let cell = state.cell(id, group, position);
            let page = usize::try_from(table[4 + page_index]).ok();
            assert_eq!(cell, page.map(|page| page * PAGE_CELLS + position % PAGE_CELLS));
        }
    }
    assert_eq!(state.page_table(1)[4], -1, "it has slid out of the window");
    let tables = [0, 1].map(|group| state.page_table(group).to_vec());
    let (_, of_run) = state.store_and_page_tables();
    assert_eq!([0, 1].map(|group| of_run.for_group(group).to_vec()), tables);
    state.remove_and_shift(id, 10..13).unwrap();
    state.remove_and_shift(id, 0..2).unwrap();
    assert_eq!((state.removed_count(id), state.len(id)), (Ok(5), Ok(95)));
    state.truncate(id, 0).unwrap();
    assert_eq!((state.removed_count(id), state.is_empty(id)), (Ok(0), Ok(true)));
}

#[test]
fn the_prefix_tree_is_keyed_by_the_targets_digest() {
    let mut state = state_of(&[None], 1, 200, 20);
    let draft = state.append_model(target(&[None])).unwrap();
    state.set_model_digest(ModelId::TARGET, [1; 32]);
    state.set_model_digest(draft, [2; 32]);
    assert_eq!(*state.tree.model_digest(), [1; 32]);
    assert_eq!([0, 1].map(|model| state.models[model].digest[0]), [1, 2]);
}

#[test]
fn cached_bytes_count_pages_and_states_that_no_sequence_uses() {
    let spec = StateSpec { cache_bytes: 1 << 20, ..spec(2, 400, 40) };
    let model = ModelSpec { layers: vec![layer(None), layer(None)], recurrent: vec![recurrent()] };
    let mut state = State::new(PlainStore::default(), spec, model).unwrap();
    let id = state.begin().unwrap();
    extend(&mut state, id, 70, 5);
    assert_eq!(state.cached_bytes(), state.store().slot_bytes(0..1), "the state at the end of the page");
    state.end(id).unwrap();
    // K and V of two layers, four f32 each, for two pages; and two states.
    let pages = 2 * 2 * PAGE_CELLS * 2 * HEAD_DIM * 4;
    assert_eq!(state.cached_bytes(), pages + 2 * state.store().slot_bytes(0..1));
    let id = state.begin().unwrap();
    assert_eq!(state.resume_prefix(id, &[5; 70]), Ok(70));
    assert_eq!(state.cached_bytes(), state.store().slot_bytes(0..1), "the sequence holds the others");
    state.end(id).unwrap();
    state.clear_cache();
    assert_eq!(state.cached_bytes(), 0);
}

#[test]
fn extensions_are_notified() {
    let mut state = state_of(&[None], 2, 200, 20);
    let id = state.begin().unwrap();
    extend(&mut state, id, 3, 5);
    state.attach(id, Box::new(Sum::default())).unwrap();
    let sum = |state: &State<PlainStore>, id| {
        let mut out = Vec::new();
        state.extensions(id).unwrap().iter().for_each(|extension| extension.save(&mut out));
        out
    };
    assert_eq!(sum(&state, id), 15u64.to_le_bytes());
    extend(&mut state, id, 2, 1);
    assert_eq!(sum(&state, id), 17u64.to_le_bytes());
    state.append(id, 2).unwrap();
    state.commit(id, 0).unwrap();
    assert_eq!(sum(&state, id), 17u64.to_le_bytes());
    state.truncate(id, 4).unwrap();
    assert_eq!(sum(&state, id), 16u64.to_le_bytes());
}

/// State of a recurrent model, with room to keep so many pages and states.
pub(super) fn recurrent_state(cache_pages: usize) -> State<PlainStore> {
    let model = ModelSpec { layers: vec![layer(None)], recurrent: vec![recurrent()] };
    let page = PAGE_CELLS * 2 * HEAD_DIM * 4;
    // Half of the memory is for pages, half for states, and a state is smaller than a page.
    let spec = StateSpec { cache_bytes: 2 * cache_pages * page, ..spec(3, 600, 40) };
    State::new(PlainStore::default(), spec, model).unwrap()
}

#[test]
fn the_prefix_cache_uses_its_memory_limit_and_no_more() {
    let page = PAGE_CELLS * 2 * HEAD_DIM * 4;
    for (cache_pages, text_pages) in [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (3, 3), (3, 7)] {
        let spec = StateSpec { cache_bytes: cache_pages * page, ..spec(1, 600, 40) };
        let mut state = State::new(PlainStore::default(), spec, target(&[None])).unwrap();
        let id = state.begin().unwrap();
        extend(&mut state, id, PAGE_CELLS, 5);
        for _ in 1..text_pages {
            extend(&mut state, id, PAGE_CELLS, 6);
        }
        let text = state.tokens(id).unwrap().to_vec();
        state.end(id).unwrap();
        let kept = cache_pages.min(text_pages);
        assert_eq!(state.cached_bytes(), kept * page);
        let id = state.begin().unwrap();
        let resumed = state.resume_prefix(id, &text);
        assert_eq!(
            resumed,
            Ok(kept * PAGE_CELLS),
            "the last pages go first: without them the others are of use"
        );
    }
    // Of states as many as there is memory for: more than anybody wants here.
    let mut state = recurrent_state(2);
    let room = state.cache_slots;
    assert_eq!(state.slots.len(), room + 3 * SLOTS_PER_SEQUENCE);
    assert_eq!(SLOTS_PER_SEQUENCE, MAX_STATE_CHECKPOINTS + 2);
    assert_eq!(room, 2 * page / state.store().slot_bytes(0..1));
    for token in 0..room as u32 + 3 {
        let id = state.begin().unwrap();
        extend(&mut state, id, 1, token);
        state.cache_slots = room.min(5);
        state.end(id).unwrap();
        assert_eq!(state.slots.cached(), (token as usize + 1).min(2), "each has a page, and there are two");
    }
    state.groups[0].cache_pages = 30;
    for token in 0..9 {
        let id = state.begin().unwrap();
        extend(&mut state, id, 1, 100 + token);
        state.end(id).unwrap();
        assert_eq!(state.slots.cached(), (token as usize + 3).min(5));
    }
}

#[test]
fn errors_name_the_offending_index() {
    let mut state = state_of(&[None], 1, 200, 4);
    let id = state.begin().unwrap();
    state.append(id, 3).unwrap();
    let rejected = state.append_tree(id, &[None, Some(3), Some(5)]);
    assert_eq!(rejected, Err(StateError::Parent { index: 5, parent: 5 }));
    assert_eq!(state.append_tree(id, &[None, Some(3), Some(4)]), Ok(3..6));
    compute(&mut state, id, 0..6);
    assert_eq!(state.commit_path(id, &[0, 8]), Err(StateError::NotInFlight { wanted: 9, in_flight: 6 }));
    assert_eq!(state.commit_path(id, &[0, 2]), Err(StateError::NotAPath { index: 2 }));
    assert_eq!(state.commit_path(id, &[1]), Err(StateError::NotAPath { index: 1 }));
    state.commit_path(id, &[3, 4]).unwrap();
    assert_eq!(state.len(id), Ok(2));
}

#[test]
fn only_a_fresh_chain_may_be_longer_than_the_checkpoints() {
    let chain = |from: usize, count: usize| -> Vec<Option<usize>> {
        (from..from + count).map(|index| index.checked_sub(1)).collect()
    };
    let too_many = |wanted| Err(StateError::TooManyInFlight { wanted, max: MAX_STATE_CHECKPOINTS });
    let mut state = recurrent_state(0);
    let id = state.begin().unwrap();
    let mut tree = chain(0, MAX_STATE_CHECKPOINTS + 1);
    tree[MAX_STATE_CHECKPOINTS] = Some(0);
    assert_eq!(state.append_tree(id, &tree), too_many(17));
    assert_eq!(state.append_tree(id, &tree[..MAX_STATE_CHECKPOINTS]), Ok(0..16));
    assert_eq!(state.append_tree(id, &chain(16, 1)), too_many(17));
    state.rollback(id).unwrap();
    assert_eq!(state.append_tree(id, &chain(0, 40)), Ok(0..40));
    assert_eq!(state.append(id, 0), Ok(40..40), "nothing more is always possible");
    assert_eq!(state.append(id, 1), too_many(41));
    state.rollback(id).unwrap();
    assert_eq!(state.append(id, 128), Ok(0..128));
    let taken = state.slots.len() - state.slots.free();
    assert_eq!(taken, MAX_STATE_CHECKPOINTS, "where nothing is kept, none is for the end of a page");
    state.rollback(id).unwrap();
    assert_eq!(state.append(id, 129), Err(StateError::TooManyInFlight { wanted: 129, max: 128 }));
}

#[test]
fn the_partial_last_page_of_a_long_text_is_cached() {
    let spec = StateSpec { cache_bytes: 1 << 20, ..spec(1, 400, 20) };
    let mut state = State::new(PlainStore::default(), spec, target(&[None, Some(16)])).unwrap();
    let id = state.begin().unwrap();
    for (count, token) in [(64, 5), (64, 6), (64, 7), (9, 8)] {
        extend(&mut state, id, count, token);
    }
    let text = state.tokens(id).unwrap().to_vec();
    state.end(id).unwrap();
    let id = state.begin().unwrap();
    assert_eq!(state.resume_prefix(id, &text), Ok(201));
}

#[test]
fn an_overwritten_state_is_not_cached() {
    // Of the two pages that end within one long chain the first one's last position shares its slot with those after it.
    let mut state = recurrent_state(30);
    let id = state.begin().unwrap();
    extend(&mut state, id, 30, 5);
    extend(&mut state, id, 128, 5);
    for (len, reused) in [(64, 0), (127, 0), (128, 128), (157, 128)] {
        let id = state.begin().unwrap();
        assert_eq!(state.resume_prefix(id, &[5; 157][..len]), Ok(reused), "of {len}");
        state.truncate(id, 0).unwrap();
        state.end(id).unwrap();
    }
    // Nor is one that nobody has computed.
    let spec = StateSpec { cache_bytes: 1 << 20, ..spec(1, 400, 20) };
    let mut state = State::new(PlainStore::default(), spec, target(&[None])).unwrap();
    let recurrent = ModelSpec { layers: Vec::new(), recurrent: vec![recurrent()] };
    state.append_model(recurrent).unwrap();
    let id = state.begin().unwrap();
    extend(&mut state, id, 70, 5);
    state.end(id).unwrap();
    assert_eq!((state.slots.cached(), state.pools[0].cached()), (0, 2));
}

#[test]
fn pages_of_a_draft_model_alone_are_cached_if_it_has_computed_them() {
    for filled in [0..0, 0..70] {
        let spec = StateSpec { cache_bytes: 1 << 20, ..spec(1, 400, 20) };
        let mut state = State::new(PlainStore::default(), spec, target(&[None])).unwrap();
        let draft = state.append_model(target(&[Some(16)])).unwrap();
        let id = state.begin().unwrap();
        let places = state.append(id, 70).unwrap();
        compute(&mut state, id, places);
        state.computed(draft, filled.clone().map(|kv_index| (id, kv_index, None))).unwrap();
        state.commit(id, 70).unwrap();
        state.end(id).unwrap();
        assert_eq!(state.pools[1].cached(), if filled.is_empty() { 0 } else { 2 });
        let id = state.begin().unwrap();
        assert_eq!(state.resume_prefix(id, &[1; 70]), Ok(70));
        assert_eq!(state.computed_range(id, draft), Ok(filled));
    }
}

#[test]
fn an_unshared_page_is_written_without_a_copy() {
    let mut state = state_of(&[None], 1, PAGE_CELLS, 1);
    let id = state.begin().unwrap();
    extend(&mut state, id, 10, 5);
    let cell = state.cell(id, 0, 9).unwrap();
    assert_eq!(state.append(id, 10), Ok(10..20), "there is no page for a copy");
    assert_eq!(state.cell(id, 0, 10), Some(cell + 1));
}

#[test]
fn a_restored_sequence_can_be_truncated_to_its_min_len() {
    for (windows, len, least) in
        [(&[None][..], 90, 0), (&[None, Some(16)], 90, 90), (&[None, Some(16)], 15, 0), (&[Some(16)], 16, 16)]
    {
        let mut state = state_of(windows, 2, 200, 20);
        let id = state.begin().unwrap();
        extend(&mut state, id, len, 5);
        let restored = state.restore(&state.save(id).unwrap(), Vec::new()).unwrap();
        assert_eq!((restored.positions, restored.min_len), (len, least), "{windows:?}");
        if let Some(before) = least.checked_sub(1) {
            assert!(state.truncate(restored.sequence, before).is_err());
        }
        state.truncate(restored.sequence, least.max(1)).unwrap();
    }
    // One that fills the context fits.
    let mut state = state_of(&[None], 2, 90, 4);
    let id = state.begin().unwrap();
    extend(&mut state, id, 90, 5);
    assert_eq!(state.restore(&state.save(id).unwrap(), Vec::new()).unwrap().positions, 90);
    let mut state = recurrent_state(0);
    let id = state.begin().unwrap();
    extend(&mut state, id, 9, 5);
    assert_eq!(state.restore(&state.save(id).unwrap(), Vec::new()).unwrap().min_len, 9);
}

#[test]
fn model_sets_are_sets() {
    let set = |models: &[usize]| models.iter().map(|&model| ModelId(model)).collect::<ModelSet>();
    let (a, b) = (set(&[0, 1, 31]), set(&[1, 2]));
    assert_eq!(
        (a.union(b), a.intersection(b), a.without(b)),
        (set(&[0, 1, 2, 31]), set(&[1]), set(&[0, 31]))
    );
    assert!(a.contains_all(set(&[0, 31])) && !a.contains_all(b) && a.contains_all(set(&[])));
    assert!(set(&[]).is_empty() && !b.is_empty());
    assert_eq!((0..32).filter(|&model| a.contains(ModelId(model))).collect::<Vec<_>>(), [0, 1, 31]);
    assert_eq!((1..32).filter(|&model| ModelSet::DRAFTS.contains(ModelId(model))).count(), 31);
    assert!(!ModelSet::DRAFTS.contains(ModelId::TARGET));
    let mut changed = ModelSet::from_model(ModelId(2));
    changed.insert(ModelId(1));
    changed.insert(ModelId(1));
    assert_eq!(changed, b);
    changed.remove(ModelId(2));
    changed.remove(ModelId(2));
    assert_eq!(changed, set(&[1]));
}

#[test]
fn the_kv_format_counts_equal_layers() {
    let state = state_of(&[None, None, Some(16), None], 1, 200, 20);
    let one = format!("1x4 {0}/{0}", KvType::F32.name());
    assert_eq!(state.kv_format(ModelId::TARGET), format!("2 * {one}; 1 * {one} window 16; 1 * {one}"));
}

#[test]
fn a_recurrent_draft_model_shares_the_targets_slots() {
    let mut state = recurrent_state(2);
    let slots = state.slots.len();
    let larger = RecurrentSpec { channels: 60, ..recurrent() };
    state.append_model(ModelSpec { layers: Vec::new(), recurrent: vec![larger] }).unwrap();
    assert_eq!(state.slots.len(), slots);
}

#[test]
fn the_least_recently_used_page_is_evicted_first() {
    let page = PAGE_CELLS * 2 * HEAD_DIM * 4;
    let spec = StateSpec { cache_bytes: 2 * page, ..spec(1, 600, 40) };
    let mut state = State::new(PlainStore::default(), spec, target(&[None])).unwrap();
    let read = |state: &mut State<PlainStore>, token: u32| {
        let id = state.begin().unwrap();
        let resumed = state.resume_prefix(id, &[token; PAGE_CELLS]).unwrap();
        extend(state, id, PAGE_CELLS - resumed, token);
        state.end(id).unwrap();
        resumed
    };
    // The first is used again at once, and then two others come.
    let resumed = [1, 1, 2, 3, 3, 2].map(|token| read(&mut state, token));
    assert_eq!(resumed, [0, PAGE_CELLS, 0, 0, PAGE_CELLS, PAGE_CELLS]);
    assert_eq!(read(&mut state, 1), 0);
    assert_eq!(
        [2, 1].map(|token| read(&mut state, token)),
        [PAGE_CELLS; 2],
        "the third was used before the second"
    );
}

#[test]
fn a_failed_run_leaves_earlier_states_valid() {
    // Position 63 ends a page and has a slot of its own, within a chain of which the others share one.
    let mut state = recurrent_state(30);
    let id = state.begin().unwrap();
    state.append(id, 100).unwrap();
    compute(&mut state, id, 0..63);
    state.begin_compute(ModelId::TARGET, [(id, 63)]).unwrap();
    assert!(state.can_compute(id, 63));
}

/// State of a target that sees all positions and one that sees 16, with room to keep both.
fn windowed_state() -> State<PlainStore> {
    let spec = StateSpec { cache_bytes: 1 << 20, ..spec(2, 400, 40) };
    State::new(PlainStore::default(), spec, target(&[None, Some(16)])).unwrap()
}

#[test]
fn a_sequence_resumes_after_pages_that_slid_out_of_the_window() {
    let mut state = windowed_state();
    let room = std::mem::take(&mut state.groups[1].cache_pages);
    let id = state.begin().unwrap();
    // The window leaves the first page while it is the last one that is full: its node stays, for the next to follow.
    for (count, token) in [(64, 1), (20, 2), (44, 2), (60, 3)] {
        extend(&mut state, id, count, token);
    }
    assert_eq!(state.pools[1].cached(), 0);
    state.groups[1].cache_pages = room;
    let text = state.tokens(id).unwrap().to_vec();
    state.end(id).unwrap();
    let id = state.begin().unwrap();
    assert_eq!(state.resume_prefix(id, &text), Ok(188));
}

#[test]
fn a_page_without_its_window_is_evicted() {
    let mut state = windowed_state();
    let id = state.begin().unwrap();
    extend(&mut state, id, PAGE_CELLS, 1);
    state.end(id).unwrap();
    assert_eq!([0, 1].map(|group| state.pools[group].cached()), [1, 1]);
    state.groups[1].cache_pages = 0;
    state.shrink_cache();
    assert!(state.tree.is_empty());
    assert_eq!(state.cached_bytes(), 0);
}
