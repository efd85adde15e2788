//! The bookkeeping against a naive account of what every cell and slot has to hold.

mod store;

use super::*;
use std::ops::Range;
use store::PlainStore;
use verbatim_backend::KvType;
use verbatim_graph::DeltaHeads;
use verbatim_graph::random::Random;

const HEAD_DIM: usize = 4;

fn layer(window: Option<usize>) -> LayerSpec {
    let kv = KvSpec { kv_heads: 1, head_dim: HEAD_DIM, k: KvType::F32, v: KvType::F32 };
    LayerSpec { kv, window, rope: RopeKind::None, hadamard: false }
}

fn target(windows: &[Option<usize>]) -> OwnerSpec {
    OwnerSpec { layers: windows.iter().map(|&window| layer(window)).collect(), recurrent: Vec::new() }
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

/// What a step needs of one row, looked up by itself.
impl State<PlainStore> {
    fn row(&self, id: SequenceId, place: usize) -> Option<&sequence::InFlight> {
        let sequence = self.sequence(id).ok()?;
        sequence.flight.get(place.checked_sub(sequence.committed())?)
    }

    fn parent(&self, id: SequenceId, place: usize) -> Option<usize> {
        self.row(id, place)?.parent.map(|parent| self.len(id).unwrap() + parent)
    }

    /// The places in flight that one in flight follows, its own last.
    fn places(&self, id: SequenceId, place: usize) -> Vec<usize> {
        let mut places = vec![place];
        while let Some(parent) = self.parent(id, places[places.len() - 1]) {
            places.push(parent);
        }
        places.reverse();
        places
    }

    fn is_chain(&self, id: SequenceId) -> bool {
        let sequence = self.sequence(id).unwrap();
        (0..sequence.flight.len()).all(|index| sequence.flight[index].parent == index.checked_sub(1))
    }

    fn position(&self, id: SequenceId, place: usize) -> Option<usize> {
        self.row(id, place).map(|_| self.len(id).unwrap() + self.places(id, place).len() - 1)
    }

    fn path(&self, id: SequenceId, place: usize) -> Option<Vec<usize>> {
        (!self.is_chain(id)).then(|| self.places(id, place))
    }

    fn slots(&self, id: SequenceId, place: usize) -> Option<[i32; 2]> {
        let before = match self.parent(id, place) {
            None => self.sequence(id).ok()?.slot,
            Some(parent) => self.row(id, parent)?.slot,
        };
        Some([before.unwrap_or(-1), self.row(id, place)?.slot?])
    }

    fn can_compute(&self, id: SequenceId, place: usize) -> bool {
        let mut batch = Batch::default();
        self.batch(OwnerId::TARGET, &[(id, place)], &mut batch);
        batch.refused.is_empty()
    }
}

/// Says that places were computed, of any token.
fn compute(state: &mut State<PlainStore>, id: SequenceId, places: Range<usize>) {
    state.computed(OwnerId::TARGET, places.map(|place| (id, place, Some(1)))).unwrap();
}

#[test]
fn positions_are_appended_committed_and_rolled_back() {
    let mut state = state_of(&[None], 2, 200, 4);
    let id = state.begin().unwrap();
    assert_eq!(state.append(id, 70), Ok(0..70));
    assert_eq!(state.append(id, 2), Ok(70..72));
    assert!(state.cell(id, 0, 71).is_some() && state.cell(id, 0, 72).is_none());
    assert_eq!(state.commit(id, 60), Err(StateError::NotComputed { place: 0 }));
    compute(&mut state, id, 0..60);
    assert_eq!(state.commit(id, 61), Err(StateError::NotComputed { place: 60 }));
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
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut state = state_of(&[None], 2, 128, 3);
    let (a, b) = (state.begin().unwrap(), state.begin().unwrap());
    assert_eq!(state.begin(), Err(StateError::NoSequence(2)));
    assert_eq!(state.append(a, 129), Err(StateError::ContextFull { wanted: 129, context: 128 }));
    let wanted = usize::MAX;
    assert_eq!(state.append(a, wanted), Err(StateError::ContextFull { wanted, context: 128 }));
    state.append(a, 128).unwrap();
    assert_eq!(state.append(b, 65), Err(StateError::NoPages { wanted: 2, free: 1 }));
    assert_eq!(state.append(b, 64), Ok(0..64));
    assert_eq!(state.append_tree(b, &[Some(64)]), Err(StateError::Parent { place: 64, parent: 64 }));
    assert_eq!(state.fork(a), Err(StateError::InFlight(128)));
    assert_eq!(state.reuse(a, &[1]), Err(StateError::NotEmpty(128)));
    state.end(a).unwrap();
    assert_eq!(state.end(a), Err(StateError::NoSuchSequence(0)));
    let again = state.begin().unwrap();
    assert_eq!(again.index(), 0);
    assert_eq!(state.len(a), Err(StateError::NoSuchSequence(0)), "another sequence has its place");
    assert_eq!(state.append(b, 1), Ok(64..65));
    assert_eq!(state.append(again, 65), Err(StateError::NoPages { wanted: 2, free: 1 }));
    assert_eq!(state.append(again, 64), Ok(0..64), "the others go on");
    state.integrity().unwrap();
}

#[test]
fn windows_give_back_what_no_position_to_come_sees() {
    let mut state = state_of(&[Some(16), None], 1, 1000, 16);
    let id = state.begin().unwrap();
    for count in [100, 100, 27, 1] {
        let places = state.append(id, count).unwrap();
        compute(&mut state, id, places);
        state.commit(id, count).unwrap();
        state.integrity().unwrap();
    }
    // The position 228 sees those from 213 on, and a rejected draft token changes nothing about that.
    assert!(state.cell(id, 0, 191).is_none() && state.cell(id, 0, 192).is_some());
    assert!(state.cell(id, 1, 0).is_some());
    let why = "window has left the positions before it";
    let refused = StateError::CannotGoBack { wanted: 206, committed: 228, why };
    assert_eq!(state.truncate(id, 206), Err(refused));
    state.truncate(id, 207).unwrap();
    state.truncate(id, 0).unwrap();
    state.integrity().unwrap();
}

#[test]
fn recurrent_models_refuse_what_their_states_cannot_give() {
    let owner = OwnerSpec { layers: Vec::new(), recurrent: vec![recurrent()] };
    let mut state = State::new(PlainStore::default(), spec(1, 1000, 0), owner).unwrap();
    let id = state.begin().unwrap();
    state.append(id, 10).unwrap();
    assert_eq!(state.append(id, 7), Err(StateError::TooManyInFlight { wanted: 17, most: 16 }));
    assert_eq!(state.append(id, 6), Ok(10..16));
    compute(&mut state, id, 0..5);
    assert!(state.can_compute(id, 5) && state.can_compute(id, 2) && !state.can_compute(id, 6));
    state.commit(id, 5).unwrap();
    assert!(!state.can_compute(id, 4), "committed");
    let why = "recurrent model keeps no state of earlier positions";
    let refused = StateError::CannotGoBack { wanted: 4, committed: 5, why };
    assert_eq!(state.truncate(id, 4), Err(refused));
    assert!(matches!(state.remove(id, 1..2), Err(StateError::CannotMove(_))));
    state.truncate(id, 5).unwrap();
    let places = state.append(id, 40).unwrap();
    compute(&mut state, id, places);
    assert_eq!(state.commit(id, 24), Err(StateError::NoCheckpoint { wanted: 24, in_flight: 40 }));
    state.commit(id, 25).unwrap();
    state.truncate(id, 0).unwrap();
    state.append(id, 1).unwrap();
    assert_eq!(state.slots(id, 0).unwrap()[0], -1);
    state.integrity().unwrap();
}

/// Counts tokens: what an extension of another crate may be.
#[derive(Clone, Default)]
struct Sum(u64);

impl Extension for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }
    fn commit(&mut self, tokens: &[u32]) {
        self.0 += tokens.iter().map(|&token| u64::from(token)).sum::<u64>();
    }
    fn reset(&mut self, tokens: &[u32]) {
        self.0 = 0;
        self.commit(tokens);
    }
    fn fork(&self) -> Box<dyn Extension> {
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

/// What a cell has to hold: a number for the text up to its position.
type Content = u64;

/// A sequence as it ought to be.
#[derive(Clone, Default)]
struct Naive {
    tokens: Vec<u32>,
    contents: Vec<Content>,
    /// In flight: parent, token, content.
    flight: Vec<(Option<usize>, u32, Content)>,
    removed: bool,
}

fn after(contents: impl Iterator<Item = Content>, token: u32) -> Content {
    contents
        .chain([u64::from(token)])
        .fold(0x9e37_79b9_7f4a_7c15, |hash, x| (hash ^ x).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29))
}

impl Naive {
    /// Contents on the path of a position in flight, its own last.
    fn path(&self, index: usize) -> Vec<Content> {
        let mut path = vec![self.flight[index].2];
        let mut at = self.flight[index].0;
        while let Some(parent) = at {
            path.push(self.flight[parent].2);
            at = self.flight[parent].0;
        }
        path.extend(self.contents.iter().rev());
        path.reverse();
        path
    }
}

/// A state with its account.
struct World {
    state: State<PlainStore>,
    live: Vec<(SequenceId, Naive)>,
    random: Random,
    windows: Vec<Option<usize>>,
    most: usize,
}

impl World {
    fn put(&mut self, id: SequenceId, place: usize, content: Content) {
        for (group, _) in self.windows.iter().enumerate() {
            let cell = self.state.cell(id, group, place).expect("in flight");
            let bytes = content.to_le_bytes().repeat(2 * HEAD_DIM * 4 / 8);
            self.state.store_mut().write_cells(group, &mut [cell].into_iter(), &bytes);
        }
    }

    fn get(&self, group: usize, cell: usize) -> Content {
        let mut bytes = Vec::new();
        self.state.store().read_cells(group, &mut [cell].into_iter(), &mut bytes);
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    }

    /// What the position `index` in flight sees is what it ought to be.
    fn check_seen(&self, at: usize, index: usize) {
        let (id, naive) = &self.live[at];
        let place = naive.contents.len() + index;
        let path = naive.path(index);
        let position = self.state.position(*id, place).unwrap();
        assert_eq!(position + 1, path.len());
        let places = self.state.path(*id, place);
        for (group, window) in self.windows.iter().enumerate() {
            let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
            for seen in first..position {
                let place = match &places {
                    Some(places) if seen >= naive.contents.len() => places[seen - naive.contents.len()],
                    _ => seen,
                };
                let cell = self.state.cell(*id, group, place).expect("seen");
                assert_eq!(self.get(group, cell), path[seen], "group {group}, {seen} of {position}");
            }
        }
    }

    fn append(&mut self, at: usize) {
        let (id, naive) = &self.live[at];
        let (id, base) = (*id, naive.flight.len());
        let sizes = [1, 3, 8, 16, 70];
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
        let Ok(places) = appended else { return };
        for (place, parent) in places.zip(parents) {
            // Few tokens, so that sequences meet.
            let token = u32::from(self.random.below(12) == 0);
            let naive = &mut self.live[at].1;
            naive.flight.push((parent, token, 0));
            let index = naive.flight.len() - 1;
            let path = naive.path(index);
            let content = after(path[..path.len() - 1].iter().copied(), token);
            naive.flight[index].2 = content;
            let before = path.len().checked_sub(2).map(|before| path[before]);
            assert!(self.state.can_compute(id, place), "{place}");
            self.state.begin_compute(OwnerId::TARGET, [(id, place)]).unwrap();
            if self.state.recurs() {
                let [read, write] = self.state.slots(id, place).unwrap();
                let mut bytes = Vec::new();
                if read >= 0 {
                    self.state.store().read_slot(0..1, read as usize, &mut bytes);
                }
                let found = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                assert_eq!(found, before, "the state before {place}");
                let bytes = content.to_le_bytes().repeat(self.state.store().slot_bytes(0..1) / 8);
                self.state.store_mut().write_slot(0..1, write as usize, &bytes);
            }
            self.put(id, place, content);
            self.check_seen(at, index);
            self.state.computed(OwnerId::TARGET, [(id, place, Some(token))]).unwrap();
        }
    }

    fn commit(&mut self, at: usize) {
        let (id, naive) = &mut self.live[at];
        let mut path = Vec::new();
        if !naive.flight.is_empty() && self.random.below(8) > 0 {
            let mut next = Some(self.random.below(naive.flight.len()));
            while let Some(index) = next {
                path.push(index);
                next = naive.flight[index].0;
            }
        }
        path.reverse();
        match self.state.commit_path(*id, &path) {
            Ok(()) => {
                for index in path {
                    naive.tokens.push(naive.flight[index].1);
                    naive.contents.push(naive.flight[index].2);
                }
            }
            Err(error) => {
                assert!(matches!(error, StateError::NoCheckpoint { .. }), "{error}");
                self.state.rollback(*id).unwrap();
            }
        }
        naive.flight.clear();
    }

    fn begin(&mut self) {
        let Ok(id) = self.state.begin() else { return };
        self.state.attach(id, Box::new(Sum::default())).unwrap();
        let mut naive = Naive::default();
        if self.random.below(4) > 0 {
            let len = self.random.below(self.most);
            let tokens: Vec<u32> = (0..len).map(|_| u32::from(self.random.below(30) == 0)).collect();
            let reused = self.state.reuse(id, &tokens).unwrap();
            for &token in &tokens[..reused] {
                let content = after(naive.contents.iter().copied(), token);
                naive.tokens.push(token);
                naive.contents.push(content);
            }
        }
        self.live.push((id, naive));
    }

    fn act(&mut self) {
        if self.live.is_empty() || self.random.below(12) == 0 {
            return self.begin();
        }
        let at = self.random.below(self.live.len());
        let (id, in_flight) = (self.live[at].0, self.live[at].1.flight.len());
        let committed = self.live[at].1.tokens.len();
        match self.random.below(14) {
            0..5 => self.append(at),
            5..9 => self.commit(at),
            9 => {
                self.state.end(id).unwrap();
                self.live.swap_remove(at);
            }
            10 => {
                let len = [0, committed, self.random.below(committed + 1)][self.random.below(3)];
                match self.state.truncate(id, len) {
                    Ok(()) => {
                        let naive = &mut self.live[at].1;
                        naive.tokens.truncate(len);
                        naive.contents.truncate(len);
                        naive.flight.clear();
                        naive.removed &= len > 0;
                    }
                    Err(error) => assert!(matches!(error, StateError::CannotGoBack { .. }), "{error}"),
                }
            }
            11 => match self.state.fork(id) {
                Ok(fork) => self.live.push((fork, self.live[at].1.clone())),
                Err(StateError::InFlight(count)) => assert_eq!(count, in_flight),
                Err(error) => assert!(matches!(error, StateError::NoSequence(_)), "{error}"),
            },
            12 => {
                let start = self.random.below(committed + 1);
                let end = start + self.random.below(committed + 1 - start);
                match self.state.remove(id, start..end) {
                    Ok(left) => {
                        let naive = &mut self.live[at].1;
                        naive.tokens.drain(start..end);
                        naive.contents.drain(start..end);
                        assert_eq!(left, naive.tokens.len());
                    }
                    Err(error) => assert!(
                        matches!(
                            error,
                            StateError::InFlight(_)
                                | StateError::CannotMove(_)
                                | StateError::NoPages { .. }
                                | StateError::CannotGoBack { .. }
                        ),
                        "{error}"
                    ),
                }
            }
            _ => {
                let saved = self.state.save(id).unwrap();
                match self.state.restore(&saved, vec![Box::new(Sum::default())]) {
                    Ok(restored) => {
                        let naive = Naive { flight: Vec::new(), ..self.live[at].1.clone() };
                        assert_eq!(restored.positions, naive.tokens.len());
                        self.live.push((restored.sequence, naive));
                    }
                    Err(RestoreError::State(StateError::NoSequence(_) | StateError::NoPages { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn check(&self) {
        self.state.integrity().unwrap();
        for (id, naive) in &self.live {
            assert_eq!(self.state.tokens(*id), Ok(&naive.tokens[..]));
            let len = naive.tokens.len();
            for (group, window) in self.windows.iter().enumerate() {
                let first = window.map_or(0, |window| (len + 1).saturating_sub(window));
                for position in first..len {
                    let cell = self.state.cell(*id, group, position).expect("seen");
                    assert_eq!(self.get(group, cell), naive.contents[position], "{position} of {len}");
                }
            }
            let mut sum = Vec::new();
            self.state.extensions(*id).unwrap()[0].save(&mut sum);
            let wanted: u64 = naive.tokens.iter().map(|&token| u64::from(token)).sum();
            assert_eq!(sum, wanted.to_le_bytes());
        }
    }
}

#[test]
fn random_transactions_agree_with_a_naive_account() {
    let kinds: [(&[Option<usize>], bool); 4] =
        [(&[None], false), (&[Some(16), None], false), (&[Some(100)], false), (&[None], true)];
    let mut reached = 0;
    for (seed, &(windows, recurs)) in kinds.iter().enumerate() {
        for (round, cache_pages) in [0, 3, 40].into_iter().enumerate() {
            let (mut spec, mut owner) = (spec(4, 400, 14), target(windows));
            let page_bytes = windows.len() * PAGE_CELLS * HEAD_DIM * 8;
            spec.cache_bytes = cache_pages * page_bytes;
            if recurs {
                owner.recurrent = vec![recurrent()];
                spec.cache_bytes *= 2;
            }
            let mut world = World {
                state: State::new(PlainStore::default(), spec, owner).unwrap(),
                live: Vec::new(),
                random: Random(100 + seed as u64 * 10 + round as u64),
                windows: windows.to_vec(),
                most: 300,
            };
            for _ in 0..4000 {
                world.act();
                world.check();
                reached += usize::from(world.state.cached_bytes() > 0);
            }
        }
    }
    assert!(reached > 4000, "the tree was of use in {reached} of 48000 operations only");
}

#[test]
fn damaged_and_foreign_files_are_refused() {
    let mut state = state_of(&[Some(16), None], 2, 200, 8);
    let id = state.begin().unwrap();
    let places = state.append(id, 90).unwrap();
    compute(&mut state, id, places);
    state.commit(id, 90).unwrap();
    let mut saved = Saved::default();
    saved.add("target", state.save(id).unwrap());
    saved.add("draft", vec![1, 2, 3]);
    let mut file = Vec::new();
    saved.write(&mut file).unwrap();
    assert_eq!(Saved::read(&file), Ok(saved.clone()));
    for len in 0..file.len() {
        let error = Saved::read(&file[..len]).unwrap_err();
        assert!(matches!(error, SavedError::Foreign | SavedError::Damaged), "{len}: {error}");
    }
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(Saved::read(&damaged).is_err(), "byte {at}");
    }
    assert_eq!(Saved::read(b"GGUF"), Err(SavedError::Foreign));

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
    other.identify(OwnerId::TARGET, [8; 32]);
    assert_eq!(other.restore(section, Vec::new()), Err(RestoreError::OtherModel));
    let mut other = state_of(&[Some(17), None], 2, 200, 8);
    assert!(matches!(other.restore(section, Vec::new()), Err(RestoreError::OtherForm { .. })));
    let mut small = state_of(&[Some(16), None], 2, 89, 8);
    let full = StateError::ContextFull { wanted: 90, context: 89 };
    assert_eq!(small.restore(section, Vec::new()), Err(full.into()));
    let mut small = state_of(&[Some(16), None], 2, 200, 1);
    let full = StateError::NoPages { wanted: 2, free: 1 };
    assert_eq!(small.restore(section, Vec::new()), Err(full.into()));
    small.integrity().unwrap();
    assert!(small.begin().is_ok() && small.begin().is_ok(), "nothing is left behind");
    assert_eq!(state.restore(section, Vec::new()).unwrap().least, 90, "what the window saw is all there is");
}
