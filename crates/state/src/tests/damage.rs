//! What [`State::integrity`] reports for cache metadata that was damaged by hand, and for its nearest valid neighbour.

use super::naive_model::model;
use super::*;
use crate::sequence::Span;

const FULL: Option<usize> = None;
/// Groups of [`state`], by number: after that of all positions a window of the target, then one of a draft model alone.
const WINDOWED: usize = 1;
const DRAFTS: usize = 2;

/// A sequence of 100 positions, which two draft models have computed, of a target that sees all of them or 16. One draft model sees
/// 40, the other is recurrent, and so is the target if asked to be. A second sequence is empty, and of a third the text is kept.
fn state(is_recurrent: bool) -> (State<PlainStore>, SequenceId) {
    let spec = StateSpec { cache_bytes: 1 << 20, ..spec(3, 400, 40) };
    let mut state =
        State::new(PlainStore::default(), spec, model((&[FULL, Some(16)], is_recurrent))).unwrap();
    let windowed = state.append_model(model((&[Some(40)], false))).unwrap();
    let recurrent = state.append_model(model((&[FULL], true))).unwrap();
    let (id, empty, ended) = (state.begin().unwrap(), state.begin().unwrap(), state.begin().unwrap());
    for (id, token) in [(id, 5), (ended, 6)] {
        let kv_indices = state.append(id, 100).unwrap();
        for model in [ModelId::TARGET, windowed, recurrent] {
            let rows = kv_indices.clone().map(|kv_index| (id, kv_index, Some(token)));
            state.computed(model, rows).unwrap();
        }
        state.commit(id, 100).unwrap();
    }
    state.end(ended).unwrap();
    assert_eq!((id.index(), empty.index()), (0, 1));
    assert_eq!(state.integrity(), Ok(()));
    (state, id)
}

fn sequence(state: &mut State<PlainStore>) -> &mut Sequence {
    state.sequences[0].as_mut().unwrap()
}

/// Gives back a page of the sequence, and says so in its table.
fn release_page(state: &mut State<PlainStore>, group: usize, page_index: usize) {
    let page = std::mem::replace(&mut state.groups[group].table[page_index], -1);
    state.pools[group].release(page);
}

fn release_slot(state: &mut State<PlainStore>) {
    let slot = sequence(state).slot.take().unwrap();
    state.slots.release(slot);
}

type Change = fn(&mut State<PlainStore>);

#[test]
fn inconsistencies_are_detected_and_described() {
    let damages: [(Change, &str); 19] = [
        (|state| state.groups[0].table[0] = 10_000, "there is no page 10000"),
        (|state| state.groups[0].table[0] = -1, "page"),
        (|state| state.groups[0].cache_pages = 1, "2 pages are cached, not 1"),
        // Pages that nobody says to have: of a sequence that is there, and of one that is not.
        (|state| state.groups[0].table.swap(0, 5), "sequence 0: Span"),
        (
            |state| {
                let (page, table_start) = (state.pools[0].take().unwrap(), 2 * state.pages_per_sequence());
                state.groups[0].table[table_start] = page;
            },
            "sequence 2: Span",
        ),
        (|state| assert!(state.slots.take().is_some()), "slot"),
        (|state| assert!(sequence(state).page_digests.pop().is_some()), "0 page digests for 1 full pages"),
        (|state| sequence(state).cacheable_len = 63, "1 page digests for 0 full pages"),
        (
            |state| sequence(state).page_digests[0] = [0; 32],
            "a page digest does not match the sequence's tokens",
        ),
        (|state| sequence(state).tokens[99] = NOT_A_TOKEN, "the cacheable prefix contains an embedding"),
        (
            |state| sequence(state).spans[WINDOWED].valid_from = 86,
            "sequence 0 has valid_from 86, which is not in 64..=85",
        ),
        (|state| sequence(state).spans[WINDOWED].valid_from = 63, "sequence 0 has valid_from 63,"),
        (|state| sequence(state).spans[DRAFTS].valid_from = 101, "sequence 0 has valid_from 101,"),
        (
            |state| {
                release_page(state, 0, 1);
                sequence(state).spans[0].end = 1;
            },
            "sequence 0 needs pages from position 0 to page 2",
        ),
        (
            |state| sequence(state).computed_ranges[0] = 7..7,
            "a draft model has computed 7..7 of 100 positions",
        ),
        (
            |state| sequence(state).computed_ranges[0] = 0..101,
            "a draft model has computed 0..101 of 100 positions",
        ),
        (
            |state| sequence(state).spans[DRAFTS].valid_from = 64,
            "a draft model has computed 0..100, but valid cells begin at 64",
        ),
        (release_slot, "a draft model has computed 0..100, but its recurrent state is missing"),
        (|state| sequence(state).computed_ranges[0] = 0..100, "nothing"),
    ];
    for (index, (damage, what)) in damages.into_iter().enumerate() {
        let (mut state, _) = state(false);
        damage(&mut state);
        match state.integrity() {
            Err(error) => assert!(error.contains(what), "damage {index}: {error}"),
            Ok(()) => assert_eq!(what, "nothing", "damage {index} is not found"),
        }
    }
    let (mut state, _) = state(true);
    release_slot(&mut state);
    assert_eq!(state.integrity(), Err("recurrent state None after 100 positions".into()));
}

#[test]
fn valid_states_that_look_inconsistent_are_accepted() {
    let changes: [Change; 7] = [
        |state| state.groups[0].cache_pages = 2,
        // A window's first page may hold what it has left, up to what it sees.
        |state| sequence(state).spans[WINDOWED].valid_from = 64,
        |state| sequence(state).spans[WINDOWED].valid_from = 85,
        // A draft model need not have what it sees, and has computed what follows.
        |state| {
            sequence(state).spans[DRAFTS].valid_from = 100;
            sequence(state).computed_ranges[0] = 0..0;
        },
        |state| {
            sequence(state).spans[DRAFTS].valid_from = 90;
            sequence(state).computed_ranges[0] = 90..100;
        },
        |state| {
            sequence(state).spans[DRAFTS].valid_from = 64;
            sequence(state).computed_ranges[0] = 0..61;
        },
        |state| {
            sequence(state).computed_ranges[1] = 0..99;
            release_slot(state);
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let (mut state, _) = state(false);
        change(&mut state);
        assert_eq!(state.integrity(), Ok(()), "change {index}");
    }
}

#[test]
fn pages_of_a_draft_model_alone_may_be_missing_while_nothing_is_in_flight() {
    // The sequence has none of the draft model's pages.
    let without_pages = |first: usize| {
        let (mut state, id) = state(false);
        for page_index in 0..2 {
            if state.groups[DRAFTS].table[page_index] >= 0 {
                release_page(&mut state, DRAFTS, page_index);
            }
        }
        sequence(&mut state).computed_ranges[0] = 0..0;
        sequence(&mut state).spans[DRAFTS] = Span { first, end: first, valid_from: 100 };
        (state, id)
    };
    let (mut state, _) = without_pages(1);
    assert_eq!(state.integrity(), Ok(()));
    // From the page of the next position on, the error names it.
    assert!(without_pages(0).0.integrity().unwrap_err().contains("needs pages"));
    let row = sequence::InFlight {
        parent: None,
        depth: 0,
        token: None,
        computed_by: ModelSet::default(),
        slot: None,
        state_valid_for: ModelSet::default(),
        is_stale: false,
    };
    sequence(&mut state).in_flight.push(row);
    assert!(state.integrity().unwrap_err().contains("needs pages"));
    // The target's pages may not be missing.
    let (mut state, _) = self::state(false);
    release_page(&mut state, WINDOWED, 1);
    sequence(&mut state).spans[WINDOWED] = Span { first: 1, end: 1, valid_from: 85 };
    assert!(state.integrity().unwrap_err().contains("needs pages"));
}
