//! Files of saved sequences, damaged in every way: a file is rejected, and a section with a valid checksum is rejected or restores
//! exactly what it contains, in little time and memory.

#[path = "../../gguf/tests/common/measured.rs"]
mod measured;
#[path = "../src/tests/store.rs"]
#[allow(dead_code)] // What other tests use.
mod store;

use measured::measured;
use store::PlainStore;
use verbatim_backend::{KvSpec, KvType, PAGE_CELLS, RecurrentSpec, StateStore};
use verbatim_graph::DeltaHeads;
use verbatim_graph::random::Random;
use verbatim_state::{
    LayerSpec, ModelId, ModelSpec, RopeKind, SavedFile, SavedFileError, SequenceId, State, StateSpec,
};

/// Several times what a whole file takes.
const PEAK_BYTES_MAX: isize = 1 << 20;
const POSITIONS: usize = 70;
/// Of one position in one layer: K and V of one head of two f32.
const CELL_BYTES: usize = 2 * 2 * 4;

/// The layers of a target and of its draft model, if it has one: windows, and whether one more layer is recurrent.
type Kind = [Option<(&'static [Option<usize>], bool)>; 2];

const KINDS: [Kind; 4] = [
    [Some((&[None], false)), None],
    [Some((&[Some(16), None], false)), None],
    [Some((&[None], true)), None],
    [Some((&[None], false)), Some((&[Some(20)], true))],
];

fn model((windows, is_recurrent): (&[Option<usize>], bool)) -> ModelSpec {
    let kv = KvSpec { kv_heads: 1, head_dim: 2, k: KvType::F32, v: KvType::F32 };
    let layer = |&window| LayerSpec { kv, window, rope: RopeKind::None, hadamard: false };
    let heads = DeltaHeads { key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 4 };
    let recurrent = is_recurrent.then_some(RecurrentSpec { kernel: 2, channels: 6, heads });
    ModelSpec { layers: windows.iter().map(layer).collect(), recurrent: recurrent.into_iter().collect() }
}

fn state_of(kind: &Kind) -> State<PlainStore> {
    let spec = StateSpec { sequences: 2, context: 200, in_flight: 100, pages: 8, cache_bytes: 0 };
    let [target, draft] = kind.map(|owned| owned.map(model));
    let mut state = State::new(PlainStore::default(), spec, target.expect("a target")).unwrap();
    if let Some(draft) = draft {
        state.append_model(draft).unwrap();
    }
    state
}

/// Lets all models compute positions, of random tokens.
fn extend(state: &mut State<PlainStore>, id: SequenceId, count: usize, random: &mut Random) {
    let places = state.append(id, count).unwrap();
    let rows: Vec<_> = places.map(|place| (id, place, Some(random.below(1000) as u32))).collect();
    for model in state.models() {
        state.computed(model, rows.iter().copied()).unwrap();
    }
    state.commit(id, count).unwrap();
}

/// A sequence whose every byte is random, as a section of a file.
fn section(kind: &Kind, seed: u64) -> Vec<u8> {
    let (mut state, mut random) = (state_of(kind), Random(seed));
    let id = state.begin().unwrap();
    for count in [POSITIONS - 10, 10] {
        extend(&mut state, id, count, &mut random);
    }
    let mut bytes = |len: usize| (0..len).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
    for (model, owned) in state.models().zip(kind) {
        let (windows, _) = owned.expect("as many as there are models");
        for (layer, window) in state.layers(model).zip(windows) {
            let group = state.windows().iter().position(|other| other == window).expect("a group");
            let pages = state.page_table(group).iter().filter_map(|&page| usize::try_from(page).ok());
            let cells: Vec<usize> =
                pages.flat_map(|page| page * PAGE_CELLS..(page + 1) * PAGE_CELLS).collect();
            let values = bytes(CELL_BYTES * cells.len());
            state.store_mut().write_cells(layer, &mut cells.into_iter(), &values);
        }
        let layers = state.recurrent_layers(model);
        let len = state.store().slot_bytes(layers.clone());
        (0..10).for_each(|slot| state.store_mut().write_slot(layers.clone(), slot, &bytes(len)));
    }
    state.save(id).unwrap()
}

fn file(section: &[u8]) -> Vec<u8> {
    let mut saved = SavedFile::default();
    saved.add("target", section.to_vec());
    saved.add("notes", b"of the client".to_vec());
    let mut file = Vec::new();
    saved.write(&mut file).unwrap();
    file
}

/// Damages bytes at random: some are changed, cut, inserted, moved, or come from others.
fn damage(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len());
        let len = random.below(40).min(bytes.len() - at);
        match random.below(7) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 => drop(bytes.drain(at..at + len)),
            3 => drop(bytes.splice(at..at, other[random.below(other.len() - 40)..][..len].to_vec())),
            4 => bytes[at..at + len].copy_from_slice(&other[random.below(other.len() - 40)..][..len]),
            5 => bytes[at..].rotate_left(len),
            _ => {
                let from = random.below(other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
        if bytes.is_empty() {
            return;
        }
    }
}

#[test]
fn a_damaged_file_is_rejected() {
    for (index, kind) in KINDS.iter().enumerate() {
        let (whole, other) = (file(&section(kind, 1)), file(&section(kind, 2)));
        assert!(SavedFile::read(&whole).is_ok() && SavedFile::read(&other).is_ok());
        let rejected = |bytes: &[u8]| {
            let (read, peak_bytes) = measured(|| SavedFile::read(bytes));
            assert!(peak_bytes < PEAK_BYTES_MAX, "{peak_bytes} bytes were held");
            let error = read.expect_err("it is damaged");
            assert!(!matches!(error, SavedFileError::Malformed(_)), "the checksum comes first");
        };
        let mut damaged = whole.clone();
        for bit in 0..8 * whole.len() {
            damaged[bit / 8] ^= 1 << (bit % 8);
            rejected(&damaged);
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        (0..whole.len()).for_each(|len| rejected(&whole[..len]));
        let mut random = Random(index as u64 + 1);
        for _ in 0..5000 {
            let mut damaged = whole.clone();
            damage(&mut damaged, &other, &mut random);
            if damaged != whole && damaged != other {
                rejected(&damaged);
            }
        }
    }
}

/// How long the target's part of a section is: what comes before the extensions and draft models.
fn target_len(state: &State<PlainStore>, section: &[u8]) -> usize {
    let count = |at: usize| u64::from_le_bytes(section[at..at + 8].try_into().unwrap()) as usize;
    // Numerics, digest, form in words, bytes of recurrent state; tokens, the exact prefix, how many were removed.
    let tokens = 4 + 32 + 8 + count(36) + 8;
    let positions = count(tokens);
    let cells = state.layers(ModelId::TARGET).zip(state.windows()).map(|(_, window)| match window {
        Some(window) => positions.min(window - 1),
        None => positions,
    });
    let slot_bytes = state.store().slot_bytes(state.recurrent_layers(ModelId::TARGET));
    let slots = usize::from(positions > 0) * slot_bytes;
    tokens + 8 + 4 * positions + 16 + cells.sum::<usize>() * CELL_BYTES + slots
}

/// Restores a section whose checksum is right. What is taken is what the section says, and can be gone on from.
/// Returns whether it was taken.
fn restore(state: &mut State<PlainStore>, section: &[u8]) -> bool {
    let (restored, peak_bytes) = measured(|| {
        let saved = SavedFile::read(&file(section)).expect("whole");
        state.restore(saved.section("target").expect("saved"), Vec::new())
    });
    assert!(peak_bytes < PEAK_BYTES_MAX, "{peak_bytes} bytes were held");
    state.integrity().unwrap();
    let Ok(restored) = restored else {
        let both = [state.begin(), state.begin()];
        both.into_iter().for_each(|id| state.end(id.expect("nothing is left behind")).unwrap());
        return false;
    };
    let (id, positions) = (restored.sequence, restored.positions);
    let again = state.save(id).unwrap();
    // Extensions that nobody attaches are dropped, and draft models that are not loaded.
    if again != section {
        let len = target_len(state, &again);
        assert_eq!(again[..len], section[..len], "a different state than was saved");
    }
    // It continues like any sequence.
    let fork = state.fork(id).unwrap();
    state.end(fork).unwrap();
    if positions < 190 {
        extend(state, id, 3, &mut Random(3));
    }
    let _ = state.remove_and_shift(id, 0..1);
    state.integrity().unwrap();
    let _ = state.truncate(id, restored.min_len);
    state.end(id).unwrap();
    state.integrity().unwrap();
    true
}

#[test]
fn a_damaged_section_is_rejected_or_restores_its_content() {
    for (index, kind) in KINDS.iter().enumerate() {
        let (whole, other) = (section(kind, 1), section(kind, 2));
        let mut state = state_of(kind);
        assert!(restore(&mut state, &whole) && restore(&mut state, &other));
        let (mut taken, mut rejected) = (0, 0);
        let mut count = |is_taken: bool| if is_taken { taken += 1 } else { rejected += 1 };
        // Every number of 64 bits, wherever it is.
        let numbers = [
            0,
            1,
            69,
            71,
            200,
            1 << 31,
            1 << 40,
            u64::MAX / 8 + 1,
            u64::MAX / 4 + 71,
            u64::MAX - 70,
            u64::MAX,
        ];
        for at in 0..whole.len() - 8 {
            let number = numbers[at % numbers.len()];
            let mut damaged = whole.clone();
            damaged[at..at + 8].copy_from_slice(&number.to_le_bytes());
            count(restore(&mut state, &damaged));
        }
        let last = whole.len().saturating_sub(1600).max(300);
        for number in numbers {
            for at in (0..300).chain(last..whole.len() - 8) {
                let mut damaged = whole.clone();
                damaged[at..at + 8].copy_from_slice(&number.to_le_bytes());
                count(restore(&mut state, &damaged));
            }
        }
        let mut random = Random(index as u64 + 1);
        for _ in 0..3000 {
            let mut damaged = whole.clone();
            damage(&mut damaged, &other, &mut random);
            count(restore(&mut state, &damaged));
        }
        assert!(taken > 100 && rejected > 100, "{taken} taken, {rejected} rejected");
    }
}
