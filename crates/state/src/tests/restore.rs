//! Why a saved sequence is rejected, at the limits of what is accepted.

use super::edges::{extend, recurrent_state};
use super::*;

#[test]
fn a_different_kv_format_is_described() {
    let rejected = |from: &mut State<PlainStore>, to: &mut State<PlainStore>| {
        let id = from.begin().unwrap();
        extend(from, id, 3, 5);
        to.restore(&from.save(id).unwrap(), Vec::new()).unwrap_err().to_string()
    };
    let said = |[found, wanted]: [&str; 2]| {
        let hint = "use the same KV cache types and the same choice of the Hadamard transform";
        format!(
            "the sequence was saved with the KV cache format {found}, but this model has {wanted}; {hint}"
        )
    };
    let (mut from, mut to) = (state_of(&[Some(16)], 1, 200, 8), state_of(&[Some(17)], 1, 200, 8));
    let forms = [&from, &to].map(|state| state.kv_format(ModelId::TARGET));
    assert_eq!(rejected(&mut from, &mut to), said([&forms[0], &forms[1]]));
    let hadamard =
        ModelSpec { layers: vec![LayerSpec { hadamard: true, ..layer(Some(16)) }], recurrent: Vec::new() };
    let mut from = state_of(&[Some(16)], 1, 200, 8);
    let mut to = State::new(PlainStore::default(), spec(1, 200, 8), hadamard).unwrap();
    assert_eq!(to.kv_format(ModelId::TARGET), "1 * 1x4 f32 rotated/f32 window 16", "as files have it");
    assert_eq!(rejected(&mut from, &mut to), said([&forms[0], "1 * 1x4 f32 hadamard/f32 window 16"]));
    let larger = ModelSpec {
        layers: vec![layer(None)],
        recurrent: vec![RecurrentSpec { channels: 60, ..super::recurrent() }],
    };
    let mut to = State::new(PlainStore::default(), spec(1, 200, 8), larger).unwrap();
    let mut from = recurrent_state(0);
    let forms = [&from, &to].map(|state| {
        let bytes = state.store().slot_bytes(0..1);
        format!("{} and {bytes} bytes of recurrent state", state.kv_format(ModelId::TARGET))
    });
    assert_eq!(rejected(&mut from, &mut to), said([&forms[0], &forms[1]]));
}

#[test]
fn impossible_counts_of_removed_positions_are_malformed() {
    let mut state = state_of(&[None], 2, 200, 8);
    let id = state.begin().unwrap();
    let saved = state.save(id).unwrap();
    // Numerics, digest, form, bytes of recurrent state, no tokens, exact prefix.
    let at = 4 + 32 + 8 + state.kv_format(ModelId::TARGET).len() + 8 + 8 + 8;
    for (removed, is_taken) in
        [(0, true), (usize::MAX / 4, true), (usize::MAX / 4 + 1, false), (usize::MAX, false)]
    {
        let mut changed = saved.clone();
        changed[at..at + 8].copy_from_slice(&(removed as u64).to_le_bytes());
        match state.restore(&changed, Vec::new()) {
            Ok(restored) => {
                assert_eq!(state.removed_count(restored.sequence), Ok(removed));
                state.end(restored.sequence).unwrap();
                assert!(is_taken, "{removed}");
            }
            Err(error) => {
                let what = "the number of removed positions is too large";
                assert_eq!((error, is_taken), (RestoreError::Malformed(what), false), "{removed}");
            }
        }
    }
}

#[test]
fn an_empty_sequence_has_no_recurrent_state() {
    let mut state = recurrent_state(0);
    let id = state.begin().unwrap();
    let saved = state.save(id).unwrap();
    let restored = state.restore(&saved, Vec::new()).unwrap();
    assert_eq!(restored.positions, 0);
    extend(&mut state, restored.sequence, 3, 5);
    state.integrity().unwrap();
}

/// A sum with a different name.
struct Other(Sum);

impl SequenceExtension for Other {
    fn name(&self) -> &'static str {
        "other"
    }
    fn commit(&mut self, tokens: &[u32]) {
        self.0.0 += tokens.len() as u64;
    }
    fn reset(&mut self, tokens: &[u32]) {
        self.0.0 = tokens.len() as u64;
    }
    fn fork(&self) -> Box<dyn SequenceExtension> {
        Box::new(Other(self.0.clone()))
    }
    fn save(&self, out: &mut Vec<u8>) {
        self.0.save(out);
    }
    fn load(&mut self, from: &[u8]) -> Result<(), String> {
        self.0.load(from)
    }
}

#[test]
fn each_extension_loads_its_saved_state() {
    let mut state = state_of(&[None], 2, 200, 8);
    let id = state.begin().unwrap();
    state.attach(id, Box::new(Sum::default())).unwrap();
    state.attach(id, Box::new(Other(Sum::default()))).unwrap();
    extend(&mut state, id, 3, 5);
    let saved = state.save(id).unwrap();
    let id = state.restore(&saved, vec![Box::new(Other(Sum::default())), Box::new(Sum::default())]).unwrap();
    let mut loaded = Vec::new();
    state.extensions(id.sequence).unwrap().iter().for_each(|extension| extension.save(&mut loaded));
    assert_eq!(loaded, [3u64.to_le_bytes(), 15u64.to_le_bytes()].concat());
}
