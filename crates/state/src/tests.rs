//! Operations on sequences and the errors that they return; random tests are in the modules below.

mod batches;
mod damage;
mod draft_models;
mod edges;
mod naive_model;
mod restore;
mod shift;
mod store;

use super::*;
use std::ops::Range;
use store::PlainStore;
use verbatim_backend::{KvSpec, KvType};
use verbatim_graph::{DeltaHeads, RopeLayout, RopeTable};

const HEAD_DIM: usize = 4;

fn layer(window: Option<usize>) -> LayerSpec {
    let kv = KvSpec { kv_heads: 1, head_dim: HEAD_DIM, k: KvType::F32, v: KvType::F32 };
    LayerSpec { kv, window, rope: RopeKind::None, hadamard: false }
}

fn target(windows: &[Option<usize>]) -> ModelSpec {
    ModelSpec { layers: windows.iter().map(|&window| layer(window)).collect(), recurrent: Vec::new() }
}

fn spec(sequences: usize, context: usize, pages: usize) -> StateSpec {
    StateSpec { sequences, context, in_flight: 128, pages, cache_bytes: 0 }
}

fn state_of(windows: &[Option<usize>], sequences: usize, context: usize, pages: usize) -> State<PlainStore> {
    State::new(PlainStore::default(), spec(sequences, context, pages), target(windows)).unwrap()
}

fn recurrent() -> RecurrentSpec {
    let heads = DeltaHeads { key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 4 };
    RecurrentSpec { kernel: 2, channels: 6, heads }
}

/// Lookups of single rows, to compare batches with.
impl State<PlainStore> {
    fn row(&self, id: SequenceId, kv_index: usize) -> Option<&sequence::InFlight> {
        let sequence = self.sequence(id).ok()?;
        sequence.in_flight.get(kv_index.checked_sub(sequence.committed())?)
    }

    fn parent(&self, id: SequenceId, kv_index: usize) -> Option<usize> {
        self.row(id, kv_index)?.parent.map(|parent| self.len(id).unwrap() + parent)
    }

    /// The KV indices in flight that one in flight follows, its own last.
    fn kv_indices(&self, id: SequenceId, kv_index: usize) -> Vec<usize> {
        let mut kv_indices = vec![kv_index];
        while let Some(parent) = self.parent(id, kv_indices[kv_indices.len() - 1]) {
            kv_indices.push(parent);
        }
        kv_indices.reverse();
        kv_indices
    }

    fn is_chain(&self, id: SequenceId) -> bool {
        let sequence = self.sequence(id).unwrap();
        (0..sequence.in_flight.len()).all(|index| sequence.in_flight[index].parent == index.checked_sub(1))
    }

    fn position(&self, id: SequenceId, kv_index: usize) -> Option<usize> {
        self.row(id, kv_index).map(|_| self.len(id).unwrap() + self.kv_indices(id, kv_index).len() - 1)
    }

    fn path(&self, id: SequenceId, kv_index: usize) -> Option<Vec<usize>> {
        (!self.is_chain(id)).then(|| self.kv_indices(id, kv_index))
    }

    fn slots(&self, id: SequenceId, kv_index: usize) -> Option<[i32; 2]> {
        let before = match self.parent(id, kv_index) {
            None => self.sequence(id).ok()?.slot,
            Some(parent) => self.row(id, parent)?.slot,
        };
        Some([before.unwrap_or(-1), self.row(id, kv_index)?.slot?])
    }

    fn can_compute(&self, id: SequenceId, kv_index: usize) -> bool {
        let mut batch = Batch::default();
        self.batch(ModelId::TARGET, &[(id, kv_index)], &mut batch);
        batch.rejected.is_empty()
    }
}

/// Marks KV indices as computed, with any token.
fn compute(state: &mut State<PlainStore>, id: SequenceId, kv_indices: Range<usize>) {
    state.computed(ModelId::TARGET, kv_indices.map(|kv_index| (id, kv_index, Some(1)))).unwrap();
}

#[test]
fn positions_are_appended_committed_and_rolled_back() {
    let mut state = state_of(&[None], 2, 200, 4);
    let id = state.begin().unwrap();
    assert_eq!(state.append(id, 70), Ok(0..70));
    assert_eq!(state.append(id, 2), Ok(70..72));
    assert!(state.cell(id, 0, 71).is_some() && state.cell(id, 0, 72).is_none());
    assert_eq!(state.commit(id, 60), Err(StateError::NotComputed { index: 0 }));
    compute(&mut state, id, 0..60);
    assert_eq!(state.commit(id, 61), Err(StateError::NotComputed { index: 60 }));
    state.commit(id, 60).unwrap();
    assert_eq!(state.len(id), Ok(60));
    assert!(state.cell(id, 0, 60).is_none());
    assert_eq!(state.commit(id, 1), Err(StateError::NotInFlight { wanted: 1, in_flight: 0 }));
    assert_eq!(state.append(id, 5), Ok(60..65));
    state.rollback(id).unwrap();
    assert_eq!(state.len(id), Ok(60));
    state.integrity().unwrap();
}

#[test]
fn only_pages_that_were_never_used_take_memory() {
    let mut state = state_of(&[None, Some(64)], 2, 128, 4);
    let cell_bytes = |group: usize| {
        let layers = state.groups[group].layers.iter();
        layers.map(|&layer| state.layers[layer].kv.cell_bytes().unwrap()).sum::<usize>() as u64
    };
    let [full, window] = [0, 1].map(|group| cell_bytes(group) * PAGE_CELLS as u64);
    let (a, b) = (state.begin().unwrap(), state.begin().unwrap());
    let wanted = [0, 1, 64, 65, 128, 129].map(|count| state.bytes_to_grow(a, count));
    let both = full + window;
    assert_eq!(wanted, [0, both, both, 2 * both, 2 * both, 0]);
    state.append(a, 65).unwrap();
    assert_eq!([0, 63, 64].map(|count| state.bytes_to_grow(a, count)), [0, 0, 0]);
    assert_eq!(state.bytes_to_grow(b, 1), both);
    state.append(a, 63).unwrap();
    assert_eq!(state.bytes_to_grow(a, 1), 0, "the context is full");
    state.end(a).unwrap();
    assert_eq!(state.bytes_to_grow(b, 128), 0, "pages are used again");
    assert_eq!(state.bytes_to_grow(a, 1), 0, "there is no such sequence");
}

#[test]
fn requests_beyond_the_capacity_are_rejected_and_change_nothing() {
    let mut state = state_of(&[None], 2, 128, 3);
    let (a, b) = (state.begin().unwrap(), state.begin().unwrap());
    assert_eq!(state.begin(), Err(StateError::NoSequence(2)));
    assert_eq!(state.append(a, 129), Err(StateError::ContextFull { wanted: 129, context: 128 }));
    let wanted = usize::MAX;
    assert_eq!(state.append(a, wanted), Err(StateError::ContextFull { wanted, context: 128 }));
    state.append(a, 128).unwrap();
    assert_eq!(state.append(b, 65), Err(StateError::NoPages { wanted: 2, free: 1 }));
    assert_eq!(state.append(b, 64), Ok(0..64));
    assert_eq!(state.append_tree(b, &[Some(64)]), Err(StateError::Parent { index: 64, parent: 64 }));
    assert_eq!(state.fork(a), Err(StateError::InFlight(128)));
    assert_eq!(state.resume_prefix(a, &[1]), Err(StateError::NotEmpty(128)));
    state.end(a).unwrap();
    assert_eq!(state.end(a), Err(StateError::NoSuchSequence(0)));
    let again = state.begin().unwrap();
    assert_eq!(again.index(), 0);
    assert_eq!(state.len(a), Err(StateError::NoSuchSequence(0)), "its index belongs to a new sequence");
    assert_eq!(state.append(b, 1), Ok(64..65));
    assert_eq!(state.append(again, 65), Err(StateError::NoPages { wanted: 2, free: 1 }));
    assert_eq!(state.append(again, 64), Ok(0..64), "the rest continues");
    state.integrity().unwrap();
}

#[test]
fn windows_release_pages_that_no_future_position_attends_to() {
    let mut state = state_of(&[Some(16), None], 1, 1000, 16);
    let id = state.begin().unwrap();
    for count in [100, 100, 27, 1] {
        let kv_indices = state.append(id, count).unwrap();
        compute(&mut state, id, kv_indices);
        state.commit(id, count).unwrap();
        state.integrity().unwrap();
    }
    // Position 228 attends to those from 213 on, and a rejected draft token changes nothing about that.
    assert!(state.cell(id, 0, 191).is_none() && state.cell(id, 0, 192).is_some());
    assert!(state.cell(id, 1, 0).is_some());
    let why = "the positions before it have slid out of the window";
    let rejected = StateError::CannotTruncate { wanted: 206, committed: 228, why };
    assert_eq!(state.truncate(id, 206), Err(rejected));
    state.truncate(id, 207).unwrap();
    state.truncate(id, 0).unwrap();
    state.integrity().unwrap();
}

#[test]
fn recurrent_models_reject_commits_and_truncations_without_a_state() {
    let model = ModelSpec { layers: Vec::new(), recurrent: vec![recurrent()] };
    let mut state = State::new(PlainStore::default(), spec(1, 1000, 0), model).unwrap();
    let id = state.begin().unwrap();
    state.append(id, 10).unwrap();
    assert_eq!(state.append(id, 7), Err(StateError::TooManyInFlight { wanted: 17, max: 16 }));
    assert_eq!(state.append(id, 6), Ok(10..16));
    compute(&mut state, id, 0..5);
    assert!(state.can_compute(id, 5) && state.can_compute(id, 2) && !state.can_compute(id, 6));
    state.commit(id, 5).unwrap();
    assert!(!state.can_compute(id, 4), "committed");
    let why = "a recurrent model keeps no state of earlier positions";
    let rejected = StateError::CannotTruncate { wanted: 4, committed: 5, why };
    assert_eq!(state.truncate(id, 4), Err(rejected));
    assert!(matches!(state.remove_and_shift(id, 1..2), Err(StateError::CannotShift(_))));
    state.truncate(id, 5).unwrap();
    let kv_indices = state.append(id, 40).unwrap();
    compute(&mut state, id, kv_indices);
    assert_eq!(state.commit(id, 24), Err(StateError::NoCheckpoint { wanted: 24, in_flight: 40 }));
    state.commit(id, 25).unwrap();
    state.truncate(id, 0).unwrap();
    state.append(id, 1).unwrap();
    assert_eq!(state.slots(id, 0).unwrap()[0], -1);
    state.integrity().unwrap();
}

/// Counts tokens, as an extension of another crate might.
#[derive(Clone, Default)]
struct Sum(u64);

impl SequenceExtension for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }
    fn commit(&mut self, tokens: &[u32]) {
        assert!(!tokens.is_empty(), "it hears of what is committed");
        self.0 += tokens.iter().map(|&token| u64::from(token)).sum::<u64>();
    }
    fn reset(&mut self, tokens: &[u32]) {
        self.0 = tokens.iter().map(|&token| u64::from(token)).sum();
    }
    fn fork(&self) -> Box<dyn SequenceExtension> {
        Box::new(self.clone())
    }
    fn save(&self, out: &mut Vec<u8>) {
        out.extend(self.0.to_le_bytes());
    }
    fn load(&mut self, from: &[u8]) -> Result<(), String> {
        self.0 = u64::from_le_bytes(from.try_into().map_err(|_| "it has not 8 bytes")?);
        Ok(())
    }
}

#[test]
fn damaged_and_unrelated_files_are_rejected() {
    let mut state = state_of(&[Some(16), None], 2, 200, 8);
    let id = state.begin().unwrap();
    let kv_indices = state.append(id, 90).unwrap();
    compute(&mut state, id, kv_indices);
    state.commit(id, 90).unwrap();
    let mut saved = SavedFile::default();
    saved.add("target", state.save(id).unwrap());
    saved.add("draft", vec![1, 2, 3]);
    let mut file = Vec::new();
    saved.write(&mut file).unwrap();
    assert_eq!(SavedFile::read(&file), Ok(saved.clone()));
    for len in 0..file.len() {
        let error = SavedFile::read(&file[..len]).unwrap_err();
        assert!(matches!(error, SavedFileError::BadMagic | SavedFileError::Damaged), "{len}: {error}");
    }
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(SavedFile::read(&damaged).is_err(), "byte {at}");
    }
    assert_eq!(SavedFile::read(b"GGUF"), Err(SavedFileError::BadMagic));

    let section = saved.section("target").unwrap();
    for len in 0..section.len() {
        let error = state.restore(&section[..len], Vec::new()).unwrap_err();
        assert!(!matches!(error, RestoreError::State(_)), "{len}: {error}");
    }
    let longer = [section, &[0]].concat();
    assert!(matches!(state.restore(&longer, Vec::new()), Err(RestoreError::Malformed(_))));
    let lost = state.restore(section, vec![Box::new(Sum(0))]).unwrap_err();
    assert_eq!(lost.to_string(), "the saved sum cannot be used: nothing was saved");
    let mut other = state_of(&[Some(16), None], 2, 200, 8);
    other.set_model_digest(ModelId::TARGET, [8; 32]);
    assert_eq!(other.restore(section, Vec::new()), Err(RestoreError::ModelMismatch));
    let mut other = state_of(&[Some(17), None], 2, 200, 8);
    assert!(matches!(other.restore(section, Vec::new()), Err(RestoreError::KvFormatMismatch { .. })));
    let mut small = state_of(&[Some(16), None], 2, 89, 8);
    let full = StateError::ContextFull { wanted: 90, context: 89 };
    assert_eq!(small.restore(section, Vec::new()), Err(full.into()));
    let mut small = state_of(&[Some(16), None], 2, 200, 1);
    let full = StateError::NoPages { wanted: 2, free: 1 };
    assert_eq!(small.restore(section, Vec::new()), Err(full.into()));
    small.integrity().unwrap();
    assert!(small.begin().is_ok() && small.begin().is_ok(), "nothing is left behind");
    assert_eq!(
        state.restore(section, Vec::new()).unwrap().min_len,
        90,
        "what the window saw is all there is"
    );
}
