//! What a state says of itself, and the first and the last that is allowed.

use super::*;

/// Appends positions, of this token, and commits them.
fn extend(state: &mut State<PlainStore>, id: SequenceId, count: usize, token: u32) {
    let places = state.append(id, count).unwrap();
    state.computed(OwnerId::TARGET, places.map(|place| (id, place, Some(token)))).unwrap();
    state.commit(id, count).unwrap();
}

#[test]
fn a_layer_sees_its_window() {
    for (window, position, first) in
        [(None, 99, 0), (Some(16), 0, 0), (Some(16), 15, 0), (Some(16), 16, 1), (Some(1), 7, 7)]
    {
        assert_eq!(layer(window).first_seen(position), first, "{window:?}");
    }
}

#[test]
fn a_state_says_what_it_has() {
    let mut state = state_of(&[None, Some(16)], 3, 200, 20);
    assert_eq!((state.context(), state.page_table_shape()), (200, [3, 4]));
    let (first, id) = (state.begin().unwrap(), state.begin().unwrap());
    assert_eq!((state.is_empty(id), state.len(id), state.removed(id)), (Ok(true), Ok(0), Ok(0)));
    extend(&mut state, id, 100, 5);
    extend(&mut state, first, 1, 6);
    assert_eq!((state.is_empty(id), state.len(id)), (Ok(false), Ok(100)));
    for group in 0..2 {
        let table = state.page_table(group);
        assert_eq!(table.len(), 3 * 4);
        for (position, block) in [(99, 1), (0, 0)] {
            let cell = state.cell(id, group, position);
            let page = usize::try_from(table[4 + block]).ok();
            assert_eq!(cell, page.map(|page| page * PAGE_CELLS + position % PAGE_CELLS));
        }
    }
    assert_eq!(state.page_table(1)[4], -1, "the window has left it");
    state.remove(id, 10..13).unwrap();
    state.remove(id, 0..2).unwrap();
    assert_eq!((state.removed(id), state.len(id)), (Ok(5), Ok(95)));
    state.truncate(id, 0).unwrap();
    assert_eq!((state.removed(id), state.is_empty(id)), (Ok(0), Ok(true)));
}

#[test]
fn the_target_is_who_the_tree_is_of() {
    let mut state = state_of(&[None], 1, 200, 20);
    let draft = state.append_owner(target(&[None])).unwrap();
    state.identify(OwnerId::TARGET, [1; 32]);
    state.identify(draft, [2; 32]);
    assert_eq!(*state.tree.root(), [1; 32]);
    assert_eq!([0, 1].map(|owner| state.owners[owner].digest[0]), [1, 2]);
}

#[test]
fn cached_bytes_are_those_of_pages_and_states_that_no_sequence_holds() {
    let spec = StateSpec { cache_bytes: 1 << 20, ..spec(2, 400, 40) };
    let owner = OwnerSpec { layers: vec![layer(None), layer(None)], recurrent: vec![recurrent()] };
    let mut state = State::new(PlainStore::default(), spec, owner).unwrap();
    let id = state.begin().unwrap();
    extend(&mut state, id, 70, 5);
    assert_eq!(state.cached_bytes(), state.store().slot_bytes(0..1), "the state at the end of the page");
    state.end(id).unwrap();
    // K and V of two layers, four f32 each, for two pages; and two states.
    let pages = 2 * 2 * PAGE_CELLS * 2 * HEAD_DIM * 4;
    assert_eq!(state.cached_bytes(), pages + 2 * state.store().slot_bytes(0..1));
    let id = state.begin().unwrap();
    assert_eq!(state.reuse(id, &[5; 70]), Ok(70));
    assert_eq!(state.cached_bytes(), state.store().slot_bytes(0..1), "the sequence holds the others");
    state.end(id).unwrap();
    state.clear_cache();
    assert_eq!(state.cached_bytes(), 0);
}

#[test]
fn extensions_take_part() {
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
    state.truncate(id, 4).unwrap();
    assert_eq!(sum(&state, id), 16u64.to_le_bytes());
}
