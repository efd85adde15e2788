//! The computed ranges of draft models, case by case.

use super::naive_model::model;
use super::*;

const FULL: Option<usize> = None;
const TARGET: ModelId = ModelId::TARGET;

/// A state with draft models of these kinds, which has room to keep texts.
fn with_drafts(kinds: &[super::naive_model::Kind]) -> (State<PlainStore>, Vec<ModelId>) {
    let spec = StateSpec { cache_bytes: 1 << 20, in_flight: 256, ..spec(4, 400, 40) };
    let mut state = State::new(PlainStore::default(), spec, model(kinds[0])).unwrap();
    let drafts = kinds[1..].iter().map(|&kind| state.append_model(model(kind)).unwrap()).collect();
    (state, drafts)
}

/// Appends positions that the target computes, of token 5; then each draft model those KV indices given.
fn append(
    state: &mut State<PlainStore>,
    id: SequenceId,
    count: usize,
    drafts: &[(ModelId, Range<usize>)],
) -> Range<usize> {
    let kv_indices = state.append(id, count).unwrap();
    state.computed(TARGET, kv_indices.clone().map(|kv_index| (id, kv_index, Some(5)))).unwrap();
    for (draft, own) in drafts {
        state.computed(*draft, own.clone().map(|kv_index| (id, kv_index, None))).unwrap();
    }
    kv_indices
}

fn extend(state: &mut State<PlainStore>, id: SequenceId, count: usize, drafts: &[(ModelId, Range<usize>)]) {
    append(state, id, count, drafts);
    state.commit(id, count).unwrap();
    state.integrity().unwrap();
}

fn put(state: &mut State<PlainStore>, layer: usize, id: SequenceId, positions: Range<usize>, value: u8) {
    for position in positions {
        let cell = state.cell(id, 0, position).unwrap();
        state.store_mut().write_cells(layer, &mut [cell].into_iter(), &[value; 2 * HEAD_DIM * 4]);
    }
}

fn get(state: &State<PlainStore>, layer: usize, id: SequenceId, position: usize) -> u8 {
    state.store().cell_bytes(layer, state.cell(id, 0, position).unwrap())[0]
}

#[test]
fn a_commit_extends_or_restarts_the_computed_range() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[FULL], false)]);
    let draft = drafts[0];
    let id = state.begin().unwrap();
    assert_eq!(state.computed_range(id, draft), Ok(0..0));
    extend(&mut state, id, 4, &[(draft, 0..4)]);
    assert_eq!(state.computed_range(id, draft), Ok(0..4));
    assert_eq!(state.computed_range(id, TARGET), Ok(0..4));
    // Then no more for a while.
    extend(&mut state, id, 4, &[(draft, 4..6)]);
    assert_eq!(state.computed_range(id, draft), Ok(0..6), "it ends where the draft has stopped");
    extend(&mut state, id, 4, &[]);
    assert_eq!(state.computed_range(id, draft), Ok(0..6));
    extend(&mut state, id, 4, &[(draft, 13..16)]);
    assert_eq!(state.computed_range(id, draft), Ok(13..16), "only the last range counts");
    extend(&mut state, id, 4, &[(draft, 16..17), (draft, 19..20)]);
    assert_eq!(state.computed_range(id, draft), Ok(19..20));
    // What is dropped is not computed, whoever has computed it.
    append(&mut state, id, 4, &[(draft, 20..24)]);
    state.commit(id, 1).unwrap();
    assert_eq!(state.computed_range(id, draft), Ok(19..21));
    append(&mut state, id, 4, &[(draft, 21..25)]);
    state.rollback(id).unwrap();
    extend(&mut state, id, 4, &[]);
    assert_eq!(state.computed_range(id, draft), Ok(19..21), "marks go with what was in flight");
    // The branch that is kept counts.
    let kv_indices = state.append_tree(id, &[None, None, Some(1)]).unwrap();
    state.computed(TARGET, kv_indices.clone().map(|kv_index| (id, kv_index, Some(5)))).unwrap();
    state.computed(draft, [1, 2].map(|index| (id, kv_indices.start + index, None))).unwrap();
    let fork = state.fork(id);
    assert_eq!(fork, Err(StateError::InFlight(3)));
    state.commit_path(id, &[1, 2]).unwrap();
    assert_eq!(state.computed_range(id, draft), Ok(25..27));
    let fork = state.fork(id).unwrap();
    state.truncate(id, 26).unwrap();
    assert_eq!(state.computed_range(id, draft), Ok(25..26));
    assert_eq!(state.computed_range(fork, draft), Ok(25..27));
    state.truncate(id, 25).unwrap();
    assert_eq!(state.computed_range(id, draft), Ok(0..0));
}

#[test]
fn a_failed_run_and_a_changed_token_invalidate_results() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[FULL], false)]);
    let draft = drafts[0];
    let id = state.begin().unwrap();
    append(&mut state, id, 6, &[(draft, 0..6)]);
    state.begin_compute(draft, [(id, 4)]).unwrap();
    state.commit(id, 6).unwrap();
    assert_eq!(state.computed_range(id, draft), Ok(0..4), "a run has failed");
    append(&mut state, id, 4, &[(draft, 6..10)]);
    state.begin_compute(TARGET, [(id, 8)]).unwrap();
    assert_eq!(state.commit(id, 4), Err(StateError::NotComputed { index: 2 }));
    // The same token: the draft model has nothing to do with the target's failure.
    state.computed(TARGET, [8, 9].map(|kv_index| (id, kv_index, Some(5)))).unwrap();
    state.commit(id, 4).unwrap();
    assert_eq!(state.computed_range(id, draft), Ok(6..10));
    append(&mut state, id, 4, &[(draft, 10..14)]);
    state.begin_compute(TARGET, [(id, 12)]).unwrap();
    state.computed(TARGET, [(id, 12, Some(6)), (id, 13, Some(5))]).unwrap();
    state.commit(id, 4).unwrap();
    assert_eq!(state.computed_range(id, draft), Ok(6..12), "the token there has changed");
    assert_eq!(
        state.begin_compute(draft, [(id, 14)]),
        Err(StateError::NotInFlight { wanted: 14, in_flight: 0 })
    );
}

#[test]
fn states_that_share_memory_with_a_failed_run_are_lost() {
    let (mut state, drafts) = with_drafts(&[(&[], true), (&[], true)]);
    let id = state.begin().unwrap();
    let kv_indices = state.append(id, 40).unwrap();
    state.computed(TARGET, kv_indices.clone().take(10).map(|kv_index| (id, kv_index, Some(5)))).unwrap();
    assert!(state.can_compute(id, 10));
    state.begin_compute(TARGET, [(id, 10)]).unwrap();
    assert!(!state.can_compute(id, 10), "the slot of kv_index 9 is that of kv_index 10");
    assert!(state.can_compute(id, 0));
    state.computed(TARGET, kv_indices.clone().map(|kv_index| (id, kv_index, Some(5)))).unwrap();
    // The draft model goes on where the target does not: the state that is kept is gone, for the draft model.
    state.computed(drafts[0], kv_indices.clone().map(|kv_index| (id, kv_index, None))).unwrap();
    state.begin_compute(TARGET, [(id, 0)]).unwrap();
    state.computed(TARGET, (0..10).map(|kv_index| (id, kv_index, Some(5)))).unwrap();
    state.commit(id, 10).unwrap();
    assert_eq!(state.computed_range(id, drafts[0]), Ok(0..0));
    assert_eq!(state.computed_range(id, TARGET), Ok(0..10));
}

#[test]
fn the_page_computed_by_more_models_stays_in_the_tree() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[FULL], false), (&[FULL], false)]);
    let (a, b) = (drafts[0], drafts[1]);
    let tokens = [5; 2 * PAGE_CELLS];
    let (len, text) = (tokens.len(), 0..tokens.len());
    let [plain, with_a, with_b] = [0, 1, 2].map(|_| state.begin().unwrap());
    append(&mut state, plain, len, &[]);
    append(&mut state, with_a, len, &[(a, text.clone())]);
    put(&mut state, 1, with_a, text.clone(), 10);
    append(&mut state, with_b, len, &[(b, text.clone())]);
    put(&mut state, 2, with_b, text.clone(), 20);
    state.commit(plain, len).unwrap();
    let cell = state.cell(with_a, 0, 0);
    state.commit(with_a, len).unwrap();
    assert_eq!(state.cell(with_a, 0, 0), cell, "the tree has taken over the page");
    assert_ne!(state.cell(plain, 0, 0), cell);
    let cell = state.cell(with_b, 0, 0);
    state.commit(with_b, len).unwrap();
    assert_eq!(state.cell(with_b, 0, 0), cell, "neither page is fuller: each keeps its own");
    assert_eq!(state.computed_range(with_b, b), Ok(text.clone()));
    assert_eq!((get(&state, 1, with_a, 70), get(&state, 2, with_b, 70)), (10, 20));
    state.integrity().unwrap();
    state.end(plain).unwrap();
    let next = state.begin().unwrap();
    assert_eq!(state.resume_prefix(next, &tokens), Ok(len));
    assert_eq!((state.computed_range(next, a), state.computed_range(next, b)), (Ok(text.clone()), Ok(0..0)));
    assert_eq!(get(&state, 1, next, 70), 10);
    // One that no draft model has computed goes on with the page of the tree.
    state.truncate(next, 0).unwrap();
    append(&mut state, next, len, &[]);
    state.commit(next, len).unwrap();
    assert_eq!(state.cell(next, 0, 0), state.cell(with_a, 0, 0));
    state.integrity().unwrap();
    for id in [with_a, with_b, next] {
        state.end(id).unwrap();
    }
}

#[test]
fn a_page_that_a_draft_model_has_partly_computed_is_not_replaced() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[FULL], false)]);
    let draft = drafts[0];
    let [plain, other] = [0, 1].map(|_| state.begin().unwrap());
    extend(&mut state, plain, 2 * PAGE_CELLS, &[]);
    append(&mut state, other, 2 * PAGE_CELLS, &[(draft, 30..2 * PAGE_CELLS)]);
    put(&mut state, 1, other, 30..2 * PAGE_CELLS, 9);
    state.commit(other, 2 * PAGE_CELLS).unwrap();
    assert_eq!(state.computed_range(other, draft), Ok(30..2 * PAGE_CELLS));
    assert!((30..2 * PAGE_CELLS).all(|position| get(&state, 1, other, position) == 9));
    assert_ne!(state.cell(other, 0, 0), state.cell(plain, 0, 0));
    let next = state.begin().unwrap();
    assert_eq!(state.resume_prefix(next, &[5; 100]), Ok(100));
    assert_eq!(
        state.computed_range(next, draft),
        Ok(PAGE_CELLS..100),
        "the blocks that it has computed to their ends"
    );
    assert_eq!(get(&state, 1, next, 99), 9);
    state.integrity().unwrap();
}

#[test]
fn a_page_before_the_computed_range_is_shared() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[FULL], false)]);
    let [plain, other] = [0, 1].map(|_| state.begin().unwrap());
    extend(&mut state, plain, 2 * PAGE_CELLS, &[]);
    extend(&mut state, other, 2 * PAGE_CELLS, &[(drafts[0], PAGE_CELLS..2 * PAGE_CELLS)]);
    assert_eq!(state.cell(other, 0, 0), state.cell(plain, 0, 0));
    assert_ne!(state.cell(other, 0, PAGE_CELLS), state.cell(plain, 0, PAGE_CELLS));
}

#[test]
fn a_draft_model_that_starts_in_flight_attends_to_what_it_has_computed() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[FULL], false)]);
    let id = state.begin().unwrap();
    extend(&mut state, id, 10, &[]);
    append(&mut state, id, 4, &[(drafts[0], 12..13)]);
    let mut batch = Batch::default();
    state.batch(drafts[0], &[(id, 13)], &mut batch);
    assert_eq!(batch.computed_from, [12]);
}

#[test]
fn a_computed_range_stays_while_its_window_is_complete() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[Some(16)], false)]);
    let id = state.begin().unwrap();
    extend(&mut state, id, 85, &[(drafts[0], 0..85)]);
    // Of the first page nothing is there. The position 79 sees those from 64 on, and the one before it sees one more.
    for (len, computed) in [(79, 0..79), (78, 64..78)] {
        state.truncate(id, len).unwrap();
        assert_eq!(state.computed_range(id, drafts[0]), Ok(computed));
        state.integrity().unwrap();
    }
}

#[test]
fn the_last_page_of_a_text_records_who_has_computed_it() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[FULL], false)]);
    for (own, wanted) in [(0..0, 0..0), (10..70, PAGE_CELLS..70), (0..70, 0..70)] {
        let id = state.begin().unwrap();
        extend(&mut state, id, 70, &[(drafts[0], own)]);
        state.end(id).unwrap();
        let next = state.begin().unwrap();
        assert_eq!(state.resume_prefix(next, &[5; 80]), Ok(70));
        assert_eq!(state.computed_range(next, drafts[0]), Ok(wanted));
        state.truncate(next, 0).unwrap();
        state.end(next).unwrap();
    }
}

#[test]
fn a_draft_model_does_not_block_the_target() {
    // A window and a state that only the draft model has.
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[Some(16)], false), (&[FULL], true)]);
    let (windowed, recurrent) = (drafts[0], drafts[1]);
    let id = state.begin().unwrap();
    extend(&mut state, id, 200, &[(windowed, 0..200), (recurrent, 0..200)]);
    state.truncate(id, 199).unwrap();
    state.integrity().unwrap();
    assert_eq!(state.computed_range(id, recurrent), Ok(0..0), "its state is that after position 200");
    assert_eq!(state.computed_range(id, windowed), Ok(0..199), "what it sees is there");
    state.truncate(id, 100).unwrap();
    state.integrity().unwrap();
    assert_eq!(state.computed_range(id, windowed), Ok(0..0), "the window has left the positions before it");
    let kv_index = state.append(id, 2).unwrap().start;
    let mut batch = Batch::default();
    state.batch(recurrent, &[(id, kv_index)], &mut batch);
    assert_eq!(batch.rejected, [(0, BatchError::NoDraftState { kv_index })]);
    state.batch(windowed, &[(id, kv_index), (id, kv_index + 1)], &mut batch);
    assert_eq!((&batch.computed_from[..], batch.rejected.len()), (&[100, 100][..], 0));
    state.batch(TARGET, &[(id, kv_index), (id, kv_index + 1)], &mut batch);
    assert_eq!((&batch.computed_from[..], &batch.read_slots[..]), (&[0, 0][..], &[-1, -1][..]));
    state.rollback(id).unwrap();
    extend(&mut state, id, 3, &[(windowed, 100..103)]);
    state.remove_and_shift(id, 10..20).unwrap();
    state.integrity().unwrap();
    assert_eq!(state.computed_range(id, windowed), Ok(90..93));
    state.truncate(id, 0).unwrap();
    state.append(id, 1).unwrap();
    state.batch(recurrent, &[(id, 0)], &mut batch);
    assert!(batch.rejected.is_empty(), "before the first position there is nothing to know");
}

#[test]
fn a_draft_models_state_is_gone_where_the_text_differs() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[], true)]);
    let draft = drafts[0];
    let id = state.begin().unwrap();
    extend(&mut state, id, 70, &[(draft, 0..70)]);
    let fork = state.fork(id).unwrap();
    state.remove_and_shift(fork, 10..20).unwrap();
    assert_eq!(state.computed_range(fork, draft), Ok(0..0), "it has read what was removed");
    state.end(fork).unwrap();
    state.end(id).unwrap();
    for (len, computed) in [(66, 0..0), (70, 0..70)] {
        let id = state.begin().unwrap();
        assert_eq!(state.resume_prefix(id, &[5; 80][..len]), Ok(len));
        assert_eq!(state.computed_range(id, draft), Ok(computed), "the state is that after 70 positions");
        state.truncate(id, 0).unwrap();
        state.end(id).unwrap();
    }
}

#[test]
fn a_cached_state_records_its_models() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], true), (&[], true)]);
    for own in [0..0, 0..70] {
        let id = state.begin().unwrap();
        extend(&mut state, id, 70, &[(drafts[0], own.clone())]);
        state.end(id).unwrap();
        let next = state.begin().unwrap();
        assert_eq!(state.resume_prefix(next, &[5; 80]), Ok(70));
        assert_eq!(state.computed_range(next, drafts[0]), Ok(own));
        state.truncate(next, 0).unwrap();
        state.end(next).unwrap();
    }
}

#[test]
fn each_layer_has_its_own_k_shift() {
    let (mut state, drafts) = with_drafts(&[(&[FULL, FULL], false)]);
    assert!(drafts.is_empty());
    let mut draft = model((&[FULL, FULL, FULL], false));
    let RopeKind::Rope { layout, .. } = &mut draft.layers[2].rope else { panic!("it has one") };
    *layout = RopeLayout::Interleaved;
    draft.layers[0].hadamard = true;
    let draft = state.append_model(draft).unwrap();
    let id = state.begin().unwrap();
    extend(&mut state, id, 10, &[(draft, 2..10)]);
    assert_eq!(state.remove_and_shift(id, 4..7), Ok(7));
    assert_eq!(state.computed_range(id, draft), Ok(2..7));
    let summary = |(layers, shift): &(Vec<usize>, Option<verbatim_backend::KShift>)| {
        let shift = shift.as_ref().map(|shift| (shift.positions, shift.layout, shift.hadamard));
        (layers.clone(), shift)
    };
    let shifts: Vec<_> = state.store().shifts.iter().map(summary).collect();
    let rope = |layout, hadamard| Some((-3, layout, hadamard));
    assert_eq!(
        shifts,
        [
            (vec![0], rope(RopeLayout::NeoX, false)),
            (vec![1, 3], None),
            (vec![2], rope(RopeLayout::NeoX, true)),
            (vec![4], rope(RopeLayout::Interleaved, false)),
        ]
    );
    state.remove_and_shift(id, 1..3).unwrap();
    assert_eq!(
        state.computed_range(id, draft),
        Ok(1..5),
        "a draft's first positions are among those removed"
    );
}

#[test]
fn draft_models_are_added_before_sequences_begin() {
    let (mut state, _) = with_drafts(&[(&[FULL], false)]);
    let huge = ModelSpec { layers: vec![layer(FULL); 1 << 14], recurrent: Vec::new() };
    let error = state.append_model(huge).unwrap_err();
    assert!(matches!(error, AppendError::Memory(StateMemoryError::Kv { layers: 16384, .. })), "{error}");
    let draft = state.append_model(model((&[Some(8), FULL], true))).unwrap();
    assert_eq!((draft.index(), state.layers(draft), state.recurrent_layers(draft)), (1, 1..3, 0..1));
    assert_eq!(state.windows(), [FULL, Some(8)]);
    for _ in 2..32 {
        state.append_model(ModelSpec::default()).unwrap();
    }
    assert_eq!(state.append_model(ModelSpec::default()), Err(AppendError::TooMany(32)));
    let (mut state, _) = with_drafts(&[(&[FULL], false)]);
    let id = state.begin().unwrap();
    assert_eq!(state.append_model(ModelSpec::default()), Err(AppendError::InUse));
    extend(&mut state, id, 70, &[]);
    state.end(id).unwrap();
    assert_eq!(state.append_model(ModelSpec::default()), Err(AppendError::InUse), "a text is kept");
    state.clear_cache();
    assert!(state.append_model(ModelSpec::default()).is_ok());
}

#[test]
fn embeddings_are_not_matched_as_tokens() {
    let (mut state, drafts) = with_drafts(&[(&[FULL], false), (&[FULL], false)]);
    let id = state.begin().unwrap();
    let kv_indices = state.append(id, 200).unwrap();
    let token = |kv_index| if kv_index == 100 { None } else { Some(5) };
    state.computed(TARGET, kv_indices.clone().map(|kv_index| (id, kv_index, token(kv_index)))).unwrap();
    state.computed(drafts[0], kv_indices.map(|kv_index| (id, kv_index, None))).unwrap();
    state.commit(id, 200).unwrap();
    state.integrity().unwrap();
    assert_eq!(state.tokens(id).unwrap()[99..102], [5, NOT_A_TOKEN, 5]);
    let saved = state.save(id).unwrap();
    let restored = state.restore(&saved, Vec::new()).unwrap().sequence;
    let fork = state.fork(restored).unwrap();
    assert_eq!(state.computed_range(fork, drafts[0]), Ok(0..200), "a draft has its own input");
    let text = state.tokens(id).unwrap().to_vec();
    for id in [id, restored] {
        state.end(id).unwrap();
    }
    let reused = |state: &mut State<PlainStore>| {
        let id = state.begin().unwrap();
        let reused = state.resume_prefix(id, &text).unwrap();
        state.truncate(id, 0).unwrap();
        state.end(id).unwrap();
        reused
    };
    assert_eq!(reused(&mut state), PAGE_CELLS, "the page with the embedding is not kept");
    state.truncate(fork, 90).unwrap();
    state.end(fork).unwrap();
    assert_eq!(reused(&mut state), 90, "what is before it is");
}

/// The target and draft models of these kinds, all with digests of their own.
fn identified(kinds: &[super::naive_model::Kind]) -> (State<PlainStore>, Vec<ModelId>) {
    let (mut state, drafts) = with_drafts(kinds);
    for model in state.models() {
        state.set_model_digest(model, [model.index() as u8 + 1; 32]);
    }
    (state, drafts)
}

#[test]
fn a_saved_sequence_can_be_restored_with_any_draft_models() {
    let kinds: &[super::naive_model::Kind] =
        &[(&[FULL, Some(16)], false), (&[FULL], false), (&[Some(16)], true)];
    let (mut state, drafts) = identified(kinds);
    let id = state.begin().unwrap();
    extend(&mut state, id, 90, &[(drafts[0], 40..85), (drafts[1], 0..90)]);
    put(&mut state, 2, id, 40..85, 7);
    let slot = state.sequence(id).unwrap().slot.unwrap();
    let state_bytes = vec![3; state.store().slot_bytes(0..1)];
    state.store_mut().write_slot(0..1, slot as usize, &state_bytes);
    let saved = state.save(id).unwrap();

    let again = state.restore(&saved, Vec::new()).unwrap().sequence;
    assert_eq!(
        (state.computed_range(again, drafts[0]), state.computed_range(again, drafts[1])),
        (Ok(40..85), Ok(0..90))
    );
    assert!((40..85).all(|position| get(&state, 2, again, position) == 7));
    let mut found = Vec::new();
    state.store().read_slot(0..1, state.sequence(again).unwrap().slot.unwrap() as usize, &mut found);
    assert_eq!(found, state_bytes);
    assert_eq!(state.save(again).unwrap(), saved);

    // None, others, in another order, in another format.
    let (mut alone, _) = identified(&kinds[..1]);
    let id = alone.restore(&saved, Vec::new()).unwrap().sequence;
    assert_eq!(alone.len(id), Ok(90));
    let (mut other, drafts) = with_drafts(&[kinds[0], kinds[2], kinds[1], kinds[1]]);
    for (model, digest) in [(TARGET, 1), (drafts[0], 3), (drafts[1], 2), (drafts[2], 9)] {
        other.set_model_digest(model, [digest; 32]);
    }
    let id = other.restore(&saved, Vec::new()).unwrap().sequence;
    let computed: Vec<_> = drafts.iter().map(|&draft| other.computed_range(id, draft).unwrap()).collect();
    assert_eq!(computed, [0..90, 40..85, 0..0]);
    other.integrity().unwrap();
    // Two of one kind have a section each.
    let (mut twice, drafts) = with_drafts(&[kinds[0], kinds[1], kinds[1]]);
    let id = twice.begin().unwrap();
    extend(&mut twice, id, 20, &[(drafts[0], 3..20), (drafts[1], 8..20)]);
    let both = twice.save(id).unwrap();
    let id = twice.restore(&both, Vec::new()).unwrap().sequence;
    assert_eq!(
        (twice.computed_range(id, drafts[0]), twice.computed_range(id, drafts[1])),
        (Ok(3..20), Ok(8..20))
    );
    let (mut other, drafts) = identified(&[kinds[0], (&[FULL, FULL], false), (&[Some(17)], true)]);
    let id = other.restore(&saved, Vec::new()).unwrap().sequence;
    assert!(drafts.iter().all(|&draft| other.computed_range(id, draft) == Ok(0..0)));
    other.integrity().unwrap();
    assert!(other.sequence(id).unwrap().slot.is_none());
}

#[test]
fn malformed_sections_are_errors() {
    let (mut state, drafts) = identified(&[(&[FULL], true), (&[Some(16)], true), (&[FULL], false)]);
    let id = state.begin().unwrap();
    extend(&mut state, id, 20, &[(drafts[0], 0..20), (drafts[1], 10..20)]);
    let saved = state.save(id).unwrap();
    for len in 0..saved.len() {
        let error = state.restore(&saved[..len], Vec::new()).unwrap_err();
        assert!(!matches!(error, RestoreError::State(_)), "{len}: {error}");
    }
    // Bits that are no cells are all of consequence; that of a cell is for the file's checksum.
    for bit in 0..8 * saved.len() {
        let mut damaged = saved.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(restored) = state.restore(&damaged, Vec::new()) {
            state.integrity().unwrap();
            state.truncate(restored.sequence, 0).unwrap();
            state.end(restored.sequence).unwrap();
        }
    }
    state.integrity().unwrap();
    // The last section is that of the second draft model: digest, format, bytes of state, first and last.
    let format = state.kv_format(drafts[1]).len();
    let section = 32 + 8 + format + 8 + 16 + 10 * 2 * HEAD_DIM * 4;
    let range = saved.len() - section + 32 + 8 + format + 8;
    for (start, end) in [(10, 21), (20, 20), (21, 3), (0, u64::MAX), (u64::MAX, 0)] {
        let mut damaged = saved.clone();
        damaged[range..range + 8].copy_from_slice(&u64::to_le_bytes(start));
        damaged[range + 8..range + 16].copy_from_slice(&u64::to_le_bytes(end));
        let error = state.restore(&damaged, Vec::new()).unwrap_err();
        assert_eq!(error, RestoreError::Malformed("a draft model's computed range is out of bounds"));
    }
}

#[test]
fn files_of_an_earlier_version_are_rejected() {
    let mut file = Vec::new();
    SavedFile::default().write(&mut file).unwrap();
    file[8] = 2;
    let error = SavedFile::read(&file).unwrap_err();
    let wanted = "the file has version 2, but this program reads version 3; recompute the sequence";
    assert_eq!(error.to_string(), wanted);
}
