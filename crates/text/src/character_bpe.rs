//! BPE over characters (`tokenizer.ggml.model = gemma4`): a ranked list of pairs as in byte-level BPE, but merged from
//! characters, with `▁` for a space and byte tokens for characters that the vocabulary lacks, as in SentencePiece.
//! Used by Gemma 4, whose `tokenizer.json` this is.

use crate::bpe::{Merges, merges};
use crate::error::TokenizerError;
use crate::merge::{Merger, NO_TOKEN};
use crate::sentencepiece::{SPACE, byte_ids};
use crate::vocab::{TokenKind, Vocab};
use foldhash::HashMap;

/// The encoder. Only line breaks divide a text: a run of them that is a token is that token, and no merge crosses one.
pub(crate) struct CharacterPairEncoder {
    characters: HashMap<char, u32>,
    /// The tokens of runs of line breaks, by their length.
    line_breaks: HashMap<usize, u32>,
    /// The token of each byte, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    merges: Merges,
    unk: Option<u32>,
}

impl CharacterPairEncoder {
    pub fn new(vocab: &Vocab) -> Result<Self, TokenizerError> {
        // Ordinary text never becomes a control, unknown or byte token, whatever the characters spell.
        let is_text = |id: u32| {
            let kind = vocab.kinds_in_file[id as usize];
            !kind.is_control_or_unknown() && kind != TokenKind::Byte
        };
        let texts = vocab.ids.iter().filter(|&(_, &id)| is_text(id));
        let texts = texts.filter_map(|(text, &id)| Some((std::str::from_utf8(text).ok()?, id)));
        let texts: Vec<(&str, u32)> = texts.collect();
        let character = |text: &str| {
            let mut characters = text.chars();
            characters.next().filter(|_| characters.next().is_none())
        };
        let is_break = |text: &str| text.bytes().all(|byte| byte == b'\n');
        Ok(Self {
            characters: texts.iter().filter_map(|&(text, id)| Some((character(text)?, id))).collect(),
            line_breaks: texts
                .iter()
                .filter(|(text, _)| is_break(text))
                .map(|&(text, id)| (text.len(), id))
                .collect(),
            byte_ids: byte_ids(vocab, vocab.special.unk)?,
            merges: merges(vocab)?,
            unk: vocab.special.unk,
        })
    }

    /// Appends the tokens of `text`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let text = text.replace(' ', SPACE);
        let mut merger = Merger::default();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let breaks = rest.len() - rest.trim_start_matches('\n').len();
            let len = if breaks > 0 { breaks } else { rest.find('\n').unwrap_or(rest.len()) };
            let (run, after) = rest.split_at(len);
            match self.line_breaks.get(&breaks) {
                Some(&id) if breaks > 0 => ids.push(id),
                _ => self.encode_run(run, &mut merger, ids),
            }
            rest = after;
        }
    }

    fn encode_run(&self, run: &str, merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        for character in run.chars() {
            let id = self.characters.get(&character).copied().unwrap_or(NO_TOKEN);
            merger.push(character.len_utf8(), id);
        }
        merger.run(|left, right| self.merges.get(&(left.id, right.id)).copied());
        for symbol in merger.symbols() {
            if symbol.id != NO_TOKEN {
                ids.push(symbol.id);
                continue;
            }
            // A character that is not in the vocabulary: its byte tokens, or one unknown token if it has none.
            let bytes = run.as_bytes()[symbol.start..symbol.start + symbol.len].iter();
            let byte_ids = bytes.map(|&byte| self.byte_ids[byte as usize]);
            if byte_ids.clone().all(|id| id != NO_TOKEN) {
                ids.extend(byte_ids);
            } else {
                ids.extend(self.unk);
            }
        }
    }
}
