//! Which positions can be removed from the middle of a sequence.

use super::edges::extend;
use super::*;

#[test]
fn positions_out_of_range_cannot_be_removed() {
    let mut state = state_of(&[None], 1, 200, 8);
    let id = state.begin().unwrap();
    extend(&mut state, id, 10, 5);
    let rejected = |(start, end)| Err(StateError::NoSuchPositions { start, end, committed: 10 });
    for (start, end) in [(5, 3), (3, 11), (11, 11), (11, 12)] {
        assert_eq!(state.remove_and_shift(id, Range { start, end }), rejected((start, end)));
    }
    for at in [0, 3, 10] {
        assert_eq!(state.remove_and_shift(id, at..at), Ok(10), "none at {at}");
    }
    state.append(id, 2).unwrap();
    assert_eq!(state.remove_and_shift(id, 1..2), Err(StateError::InFlight(2)));
    state.rollback(id).unwrap();
    assert_eq!(state.remove_and_shift(id, 7..10), Ok(7));
    assert_eq!(state.remove_and_shift(id, 0..2), Ok(5));
    state.integrity().unwrap();
}

#[test]
fn a_shift_cannot_restore_what_slid_out_of_the_window() {
    // After 228 positions it has those from 192 on.
    for (positions, left) in
        [(100..150, Some(178)), (100..213, Some(115)), (180..220, None), (212..214, Some(226))]
    {
        let mut state = state_of(&[Some(16), None], 1, 1000, 16);
        let id = state.begin().unwrap();
        for count in [100, 100, 28] {
            extend(&mut state, id, count, 5);
        }
        match (state.remove_and_shift(id, positions.clone()), left) {
            (Ok(len), Some(left)) => assert_eq!(len, left, "{positions:?}"),
            (Err(StateError::CannotShift(_)), None) => assert_eq!(state.len(id), Ok(228)),
            other => panic!("{positions:?}: {other:?}"),
        }
        state.integrity().unwrap();
    }
}

#[test]
fn a_text_is_cached_again_once_shifted_positions_are_gone() {
    let spec = StateSpec { cache_bytes: 1 << 20, ..spec(1, 400, 20) };
    let mut state = State::new(PlainStore::default(), spec, target(&[None])).unwrap();
    let id = state.begin().unwrap();
    for (count, token) in [(10, 1), (10, 2), (80, 3)] {
        extend(&mut state, id, count, token);
    }
    state.remove_and_shift(id, 10..20).unwrap();
    state.truncate(id, 85).unwrap();
    state.truncate(id, 10).unwrap();
    extend(&mut state, id, 4, 7);
    let text = state.tokens(id).unwrap().to_vec();
    state.end(id).unwrap();
    let id = state.begin().unwrap();
    assert_eq!(state.resume_prefix(id, &text), Ok(14));
}

#[test]
fn only_shared_pages_are_copied_if_there_are_free_pages() {
    for (pages, wanted) in [
        (2, Err(StateError::NoPages { wanted: 2, free: 0 })),
        (3, Err(StateError::NoPages { wanted: 2, free: 1 })),
        (4, Ok(90)),
    ] {
        let mut state = state_of(&[None], 2, 128, pages);
        let id = state.begin().unwrap();
        extend(&mut state, id, 100, 5);
        let fork = state.fork(id).unwrap();
        assert_eq!(state.remove_and_shift(fork, 10..20), wanted, "{pages} pages");
        state.integrity().unwrap();
        state.end(fork).unwrap();
        assert_eq!(state.remove_and_shift(id, 10..20), Ok(90), "its pages are its own");
        state.integrity().unwrap();
    }
}
