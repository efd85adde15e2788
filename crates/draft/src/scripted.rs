//! A drafter for tests: it knows the answers, and corrupts its drafts in every way.

use crate::Drafter;
use fastrand::Rng;
use std::sync::{Arc, Mutex, PoisonError};

/// What [`ScriptedDrafter`]s draft from. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Script {
    known: Arc<Mutex<Vec<Vec<u32>>>>,
}

impl Script {
    /// Adds the prompt and the answer of a request.
    pub fn add(&self, prompt_and_answer: Vec<u32>) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).push(prompt_and_answer);
    }

    /// What comes after `history` in the first request that begins with it.
    fn after(&self, history: &[u32]) -> Vec<u32> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = known.iter().find(|whole| whole.starts_with(history));
        whole.map(|whole| whole[history.len()..].to_vec()).unwrap_or_default()
    }
}

/// Drafts what the script says up to some position, and then, by a random choice that depends on the history alone: nothing,
/// wrong tokens, an end token, token ids that do not exist, a gap, or far too many.
#[derive(Clone, Debug)]
pub struct ScriptedDrafter {
    script: Script,
    /// A token that ends answers.
    eog: u32,
}

impl ScriptedDrafter {
    /// A drafter from a script; `eog` is a token that ends answers.
    pub fn new(script: Script, eog: u32) -> ScriptedDrafter {
        ScriptedDrafter { script, eog }
    }
}

impl Drafter for ScriptedDrafter {
    fn method(&self) -> &'static str {
        "scripted"
    }

    fn propose(&mut self, history: &[u32], max: usize, draft: &mut Vec<u32>) {
        let right = self.script.after(history);
        let mut random =
            Rng::with_seed(history.len() as u64 * 31 + u64::from(history.first().copied().unwrap_or(0)));
        let all = right.len().min(max);
        let kind = random.u8(..8);
        let count = if kind == 0 { all } else { random.usize(0..=all) };
        draft.extend_from_slice(&right[..count]);
        match kind {
            0 | 1 => {}
            2 => draft.extend((0..max).map(|_| random.u32(..250))),
            3 => draft.extend([self.eog, 5, 6]),
            4 => draft.extend([u32::MAX, 5, 1 << 20]),
            5 => draft.clear(),
            6 => draft.extend(right.iter().skip(count + 1)),
            _ => draft.extend(std::iter::repeat_n(7, 100)),
        }
    }
}
