//! Sequences in files: saved in one process, restored in another, refused if anything about them does not fit.
//!
//! A file is a magic number, a version, named sections (a target's sequence, its draft's, …) and the SHA-256 of all that.
//! All numbers are little-endian; lengths and counts are 64 bits. A state's section is
//! - the numerics of the backend (u32) and the digest of the model: bits that other kernels or weights made are of no use;
//! - the form of its layers, in words, and the bytes of its recurrent state;
//! - tokens (count, u32 each), how many of them are plain, how many were removed;
//! - for each kind of layer the first position that is kept; then for each layer its cells from there on, as they are stored;
//! - the recurrent state; the parts of other crates (count; name and bytes of each).

use crate::prefix::digest_after;
use crate::sequence::Span;
use crate::{Part, SequenceId, State, StateError};
use sha2::{Digest as _, Sha256};
use std::io::{self, Write};
use verbatim_cpu::{NUMERICS, PAGE_CELLS};

const MAGIC: [u8; 8] = *b"VERBATIM";
const VERSION: u32 = 1;
const CHECKSUM_BYTES: usize = 32;

/// Why a file holds no saved sequences.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SavedError {
    /// Another kind of file.
    #[error("this is no file of saved sequences")]
    Foreign,
    /// A file of another version.
    #[error("the file has version {0} and this program reads version {VERSION}; save it anew")]
    Version(u32),
    /// Bytes are missing or were changed.
    #[error("the file is damaged or not whole: its checksum does not agree")]
    Damaged,
    /// The checksum is right and the content is not.
    #[error("the file is malformed: {0}")]
    Malformed(&'static str),
}

/// Why a sequence could not be restored. Nothing has changed then.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RestoreError {
    /// The section ends early, or goes on after its end.
    #[error("the saved sequence is malformed: {0}")]
    Malformed(&'static str),
    /// Saved with another model.
    #[error("the sequence was saved with another model")]
    OtherModel,
    /// Saved by a build with other kernels.
    #[error(
        "the sequence was saved by a build whose kernels round otherwise ({found}, not {NUMERICS}); compute it anew"
    )]
    OtherNumerics {
        /// The numerics of that build.
        found: u32,
    },
    /// Saved with another form of K and V.
    #[error(
        "the sequence was saved with {found} and this one has {wanted}; use the same --ctk, --ctv and rotation"
    )]
    OtherForm {
        /// What the file says.
        found: String,
        /// What the state has.
        wanted: String,
    },
    /// A part of another crate is missing or wrong.
    #[error("the saved {name} cannot be used: {problem}")]
    Part {
        /// The part.
        name: &'static str,
        /// Why not.
        problem: String,
    },
    /// No room for it.
    #[error(transparent)]
    State(#[from] StateError),
}

/// What was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its positions, all of which need not be computed again.
    pub positions: usize,
    /// The fewest that can be kept, but for none, if a text parts from it: [`State::truncate`] takes any length from here on.
    pub least: usize,
}

/// Named sections of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    sections: Vec<(String, Vec<u8>)>,
}

impl Saved {
    /// Adds a section.
    pub fn add(&mut self, name: &str, bytes: Vec<u8>) {
        self.sections.push((name.to_owned(), bytes));
    }

    /// The section of this name.
    pub fn section(&self, name: &str) -> Option<&[u8]> {
        self.sections.iter().find(|(other, _)| other == name).map(|(_, bytes)| &bytes[..])
    }

    /// Writes a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        let mut hash = Sha256::new();
        let mut write = |bytes: &[u8]| {
            hash.update(bytes);
            to.write_all(bytes)
        };
        write(&MAGIC)?;
        write(&VERSION.to_le_bytes())?;
        write(&(self.sections.len() as u64).to_le_bytes())?;
        for (name, bytes) in &self.sections {
            for part in [name.as_bytes(), bytes] {
                write(&(part.len() as u64).to_le_bytes())?;
                write(part)?;
            }
        }
        to.write_all(&hash.finalize())
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// If they are not those of a whole, undamaged file of this version.
    pub fn read(bytes: &[u8]) -> Result<Saved, SavedError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(SavedError::Foreign);
        }
        let content = bytes.len().checked_sub(CHECKSUM_BYTES).ok_or(SavedError::Damaged)?;
        let (content, checksum) = bytes.split_at(content);
        let mut reader = Reader(content.get(MAGIC.len()..).ok_or(SavedError::Damaged)?);
        let version = reader.u32().map_err(|_| SavedError::Damaged)?;
        if version != VERSION {
            return Err(SavedError::Version(version));
        }
        if Sha256::digest(content).as_slice() != checksum {
            return Err(SavedError::Damaged);
        }
        let mut saved = Saved::default();
        let mut sections = || -> Result<(), &'static str> {
            for _ in 0..reader.count()? {
                let name = str::from_utf8(reader.bytes()?).map_err(|_| "a section's name is not UTF-8")?;
                saved.add(name, reader.bytes()?.to_vec());
            }
            reader.end()
        };
        sections().map_err(SavedError::Malformed)?;
        Ok(saved)
    }
}

impl State {
    /// A sequence's state, for [`Saved::add`]. Positions in flight are no part of it.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub fn save(&self, id: SequenceId) -> Result<Vec<u8>, StateError> {
        let sequence = self.sequence(id)?;
        let mut out = Vec::new();
        out.extend(NUMERICS.to_le_bytes());
        out.extend(self.tree.root());
        put_bytes(&mut out, self.form().as_bytes());
        put(&mut out, self.memory.recurrent.slot_bytes());
        put(&mut out, sequence.committed());
        sequence.tokens.iter().for_each(|token| out.extend(token.to_le_bytes()));
        put(&mut out, sequence.plain.min(sequence.committed()));
        put(&mut out, sequence.removed);
        for (index, group) in self.groups.iter().enumerate() {
            let first = group.first_seen(sequence.committed());
            put(&mut out, first);
            for &layer in &group.layers {
                for position in first..sequence.committed() {
                    let cell = self.cell(id, index, position).expect("positions that are seen have cells");
                    self.memory.kv.layers()[layer].read_cell(cell, &mut out);
                }
            }
        }
        if let Some(slot) = sequence.slot {
            self.memory.recurrent.read_slot(slot as usize, &mut out);
        }
        put(&mut out, sequence.parts.len());
        for part in &sequence.parts {
            let mut bytes = Vec::new();
            part.save(&mut bytes);
            put_bytes(&mut out, part.name().as_bytes());
            put_bytes(&mut out, &bytes);
        }
        Ok(out)
    }

    /// A new sequence from what [`State::save`] gave, here or in another process, with the given parts attached, each of which
    /// loads what one of its name has saved.
    ///
    /// # Errors
    /// If it was saved with another model, build or form of K and V, if it is malformed, or if there is no room.
    pub fn restore(&mut self, saved: &[u8], parts: Vec<Box<dyn Part>>) -> Result<Restored, RestoreError> {
        let mut reader = Reader(saved);
        let read = self.read(&mut reader)?;
        let parts = load(&read.parts, parts)?;
        let sequence = self.begin()?;
        if let Err(error) = self.fill(sequence, &read) {
            self.end(sequence)?;
            return Err(error.into());
        }
        let books = self.sequence_mut(sequence)?;
        books.parts = parts;
        let least = |(group, span): (&crate::Group, &Span)| match (group.window, span.whole_from) {
            (None, _) | (_, 0) => 0,
            (Some(window), whole_from) => whole_from + window - 1,
        };
        let books = self.sequence(sequence)?;
        let positions = books.committed();
        let least = self.groups.iter().zip(&books.spans).map(least).max().unwrap_or(0);
        let least = if self.recurs { positions } else { least.min(positions) };
        Ok(Restored { sequence, positions, least })
    }

    /// The form of the memory, in words.
    fn form(&self) -> String {
        let mut form = String::new();
        for layer in &self.layers {
            let kv = layer.kv;
            let turned = if layer.transformed { " rotated" } else { "" };
            let window = layer.window.map_or(String::new(), |window| format!(" window {window}"));
            let (k, v) = (kv.k.name(), kv.v.name());
            let text = format!("{}x{} {k}{turned}/{v}{window}", kv.kv_heads, kv.head_dim);
            // Layers of one form are many: they are counted.
            match form.rsplit_once("; ").map_or(form.as_str(), |(_, last)| last).split_once(" * ") {
                Some((count, last)) if last == text => {
                    let count = count.parse::<usize>().unwrap_or(0) + 1;
                    let start = form.rfind("; ").map_or(0, |at| at + 2);
                    form.truncate(start);
                    form += &format!("{count} * {text}");
                }
                _ => form += &format!("{}1 * {text}", if form.is_empty() { "" } else { "; " }),
            }
        }
        form
    }

    fn read<'a>(&self, reader: &mut Reader<'a>) -> Result<Read<'a>, RestoreError> {
        let found = reader.u32()?;
        if found != NUMERICS {
            return Err(RestoreError::OtherNumerics { found });
        }
        if reader.take(self.tree.root().len())? != self.tree.root() {
            return Err(RestoreError::OtherModel);
        }
        let (found, wanted) = (String::from_utf8_lossy(reader.bytes()?).into_owned(), self.form());
        if found != wanted {
            return Err(RestoreError::OtherForm { found, wanted });
        }
        let slot_bytes = reader.count()?;
        if slot_bytes != self.memory.recurrent.slot_bytes() {
            let say = |bytes| format!("{bytes} bytes of recurrent state");
            let (found, wanted) = (say(slot_bytes), say(self.memory.recurrent.slot_bytes()));
            return Err(RestoreError::OtherForm { found, wanted });
        }
        let len = reader.count()?;
        if len > self.context {
            return Err(StateError::ContextFull { wanted: len, context: self.context }.into());
        }
        let tokens = reader.take(len.checked_mul(4).ok_or("too many tokens")?)?;
        let tokens: Vec<u32> = tokens.as_chunks::<4>().0.iter().copied().map(u32::from_le_bytes).collect();
        let (plain, removed) = (reader.count()?, reader.count()?);
        if plain > len {
            return Err("more plain positions than tokens".into());
        }
        let mut groups = Vec::new();
        for group in &self.groups {
            if reader.count()? != group.first_seen(len) {
                return Err("other positions are kept than are seen".into());
            }
            let cells = len - group.first_seen(len);
            let mut layers = Vec::new();
            for &layer in &group.layers {
                let bytes = self.layers[layer].kv.cell_bytes().expect("checked when the memory was made");
                layers.push(reader.take(cells.checked_mul(bytes).ok_or("too many cells")?)?);
            }
            groups.push(layers);
        }
        let slot = if len > 0 { reader.take(slot_bytes)? } else { &[] };
        let mut parts = Vec::new();
        for _ in 0..reader.count()? {
            parts.push((reader.bytes()?, reader.bytes()?));
        }
        reader.end()?;
        Ok(Read { tokens, plain, removed, groups, slot, parts })
    }

    fn fill(&mut self, id: SequenceId, read: &Read<'_>) -> Result<(), StateError> {
        let len = read.tokens.len();
        let row = id.index * self.blocks();
        let end = Self::pages_for(len);
        for (group, layers) in read.groups.iter().enumerate() {
            let seen = self.groups[group].first_seen(len);
            let first = (seen / PAGE_CELLS).min(end);
            self.make_room(group, |_| end - first)?;
            for block in first..end {
                self.groups[group].table[row + block] = self.pools[group].take().expect("room was made");
            }
            self.sequence_mut(id)?.spans[group] = Span { first, end, whole_from: seen };
            let memory = self.memory.kv.layers_mut();
            for (&layer, bytes) in self.groups[group].layers.iter().zip(layers) {
                let cell_bytes = bytes.len() / (len - seen).max(1);
                for (position, bytes) in (seen..len).zip(bytes.chunks_exact(cell_bytes.max(1))) {
                    let page = self.groups[group].table[row + position / PAGE_CELLS];
                    memory[layer].write_cell(page as usize * PAGE_CELLS + position % PAGE_CELLS, bytes);
                }
            }
        }
        if self.recurs && len > 0 {
            let slot = self.take_slot();
            self.memory.recurrent.write_slot(slot as usize, read.slot);
            self.sequence_mut(id)?.slot = Some(slot);
        }
        let mut chain = Vec::new();
        for block in read.tokens[..read.plain].chunks_exact(PAGE_CELLS) {
            chain.push(digest_after(chain.last().unwrap_or(self.tree.root()), block));
        }
        let sequence = self.sequence_mut(id)?;
        sequence.tokens.clone_from(&read.tokens);
        sequence.chain = chain;
        sequence.plain = if read.plain == len { usize::MAX } else { read.plain };
        sequence.removed = read.removed;
        Ok(())
    }
}

/// A state's section, taken apart.
struct Read<'a> {
    tokens: Vec<u32>,
    plain: usize,
    removed: usize,
    /// The cells of each layer of each kind.
    groups: Vec<Vec<&'a [u8]>>,
    slot: &'a [u8],
    parts: Vec<(&'a [u8], &'a [u8])>,
}

fn load(saved: &[(&[u8], &[u8])], mut parts: Vec<Box<dyn Part>>) -> Result<Vec<Box<dyn Part>>, RestoreError> {
    for part in &mut parts {
        let name = part.name();
        let found = saved.iter().find(|(other, _)| *other == name.as_bytes());
        let loaded =
            found.ok_or_else(|| "nothing was saved".to_owned()).and_then(|(_, bytes)| part.load(bytes));
        loaded.map_err(|problem| RestoreError::Part { name, problem })?;
    }
    Ok(parts)
}

impl From<&'static str> for RestoreError {
    fn from(problem: &'static str) -> Self {
        RestoreError::Malformed(problem)
    }
}

fn put(out: &mut Vec<u8>, count: usize) {
    out.extend((count as u64).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len());
    out.extend(bytes);
}

/// Goes through bytes from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("it ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }

    fn count(&mut self) -> Result<usize, &'static str> {
        let count = self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))?;
        usize::try_from(count).map_err(|_| "a count is too large")
    }

    fn bytes(&mut self) -> Result<&'a [u8], &'static str> {
        let len = self.count()?;
        self.take(len)
    }

    fn end(&self) -> Result<(), &'static str> {
        if self.0.is_empty() { Ok(()) } else { Err("it goes on after its end") }
    }
}
