//! Sequences in files: saved in one process, restored in another, refused if anything about them does not fit.
//!
//! A file is a magic number, a version, named sections (a target's sequence, its draft's, …) and the SHA-256 of all that.
//! All numbers are little-endian; lengths and counts are 64 bits. A state's section is
//! - the numerics of the backend (u32) and the digest of the model: bits that other kernels or weights made are of no use;
//! - the form of its layers, in words, and the bytes of its recurrent state;
//! - tokens (count, u32 each), how many of them are the exact prefix, how many were removed;
//! - for each kind of layer the first position that is kept; then for each layer its cells from there on, as they are stored;
//! - the recurrent state; the extensions of other crates (count; name and bytes of each).

use crate::prefix::digest_after;
use crate::sequence::Span;
use crate::{Extension, NOT_A_TOKEN, SequenceId, State, StateError, pages_for};
use sha2::{Digest as _, Sha256};
use std::io::{self, Write};
use verbatim_backend::{PAGE_CELLS, StateStore};

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
        "the sequence was saved by a build whose kernels round otherwise ({found}, not {wanted}); compute it anew"
    )]
    OtherNumerics {
        /// The numerics of that build.
        found: u32,
        /// The numerics of this one.
        wanted: u32,
    },
    /// Saved with another form of K and V.
    #[error(
        "the sequence was saved with {found} and this one has {wanted}; use the same cache types and rotation"
    )]
    OtherForm {
        /// What the file says.
        found: String,
        /// What the state has.
        wanted: String,
    },
    /// An extension of another crate is missing or wrong.
    #[error("the saved {name} cannot be used: {problem}")]
    Extension {
        /// The extension.
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

impl<S: StateStore> State<S> {
    /// A sequence's state, for [`Saved::add`]. Positions in flight are no part of it.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub fn save(&self, id: SequenceId) -> Result<Vec<u8>, StateError> {
        let sequence = self.sequence(id)?;
        let mut out = Vec::new();
        out.extend(self.store.numerics().to_le_bytes());
        out.extend(self.tree.root());
        put_bytes(&mut out, self.form().as_bytes());
        put(&mut out, self.store.slot_bytes(0..self.recurrent.len()));
        put(&mut out, sequence.committed());
        sequence.tokens.iter().for_each(|token| out.extend(token.to_le_bytes()));
        put(&mut out, sequence.exact_prefix_len.min(sequence.committed()));
        put(&mut out, sequence.removed);
        for (index, group) in self.groups.iter().enumerate() {
            let first = group.first_seen(sequence.committed());
            put(&mut out, first);
            for &layer in &group.layers {
                let seen = first..sequence.committed();
                let mut cells =
                    seen.map(|at| self.cell(id, index, at).expect("positions that are seen have cells"));
                self.store.read_cells(layer, &mut cells, &mut out);
            }
        }
        if let Some(slot) = sequence.slot {
            self.store.read_slot(0..self.recurrent.len(), slot as usize, &mut out);
        }
        put(&mut out, sequence.extensions.len());
        for extension in &sequence.extensions {
            let mut bytes = Vec::new();
            extension.save(&mut bytes);
            put_bytes(&mut out, extension.name().as_bytes());
            put_bytes(&mut out, &bytes);
        }
        Ok(out)
    }

    /// A new sequence from what [`State::save`] gave, here or in another process, with the given extensions attached, each of which
    /// loads what one of its name has saved.
    ///
    /// # Errors
    /// If it was saved with another model, build or form of K and V, if it is malformed, or if there is no room.
    pub fn restore(
        &mut self,
        saved: &[u8],
        extensions: Vec<Box<dyn Extension>>,
    ) -> Result<Restored, RestoreError> {
        let mut reader = Reader(saved);
        let read = self.read(&mut reader)?;
        let extensions = load(&read.extensions, extensions)?;
        let sequence = self.begin()?;
        if let Err(error) = self.fill(sequence, &read) {
            self.end(sequence)?;
            return Err(error.into());
        }
        self.sequence_mut(sequence)?.extensions = extensions;
        let least = |(group, span): (&crate::Group, &Span)| match (group.window, span.whole_from) {
            (None, _) | (_, 0) => 0,
            (Some(window), whole_from) => whole_from + window - 1,
        };
        let (positions, spans) = (self.len(sequence)?, &self.sequence(sequence)?.spans);
        let least = self.groups.iter().zip(spans).map(least).max().unwrap_or(0);
        let least = if self.recurs() { positions } else { least.min(positions) };
        Ok(Restored { sequence, positions, least })
    }

    /// The form of the memory, in words.
    fn form(&self) -> String {
        let mut form = String::new();
        for layer in &self.layers {
            let kv = layer.kv;
            let turned = if layer.hadamard { " rotated" } else { "" };
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
        let (found, wanted) = (reader.u32()?, self.store.numerics());
        if found != wanted {
            return Err(RestoreError::OtherNumerics { found, wanted });
        }
        if reader.take(self.tree.root().len())? != self.tree.root() {
            return Err(RestoreError::OtherModel);
        }
        let (found, wanted) = (String::from_utf8_lossy(reader.bytes()?).into_owned(), self.form());
        if found != wanted {
            return Err(RestoreError::OtherForm { found, wanted });
        }
        let slot_bytes = reader.count()?;
        if slot_bytes != self.store.slot_bytes(0..self.recurrent.len()) {
            let say = |bytes| format!("{bytes} bytes of recurrent state");
            let (found, wanted) = (say(slot_bytes), say(self.store.slot_bytes(0..self.recurrent.len())));
            return Err(RestoreError::OtherForm { found, wanted });
        }
        let len = reader.count()?;
        if len > self.context {
            return Err(StateError::ContextFull { wanted: len, context: self.context }.into());
        }
        let tokens = reader.take(len.checked_mul(4).ok_or("too many tokens")?)?;
        let tokens: Vec<u32> = tokens.as_chunks::<4>().0.iter().copied().map(u32::from_le_bytes).collect();
        let (exact_prefix_len, removed) = (reader.count()?, reader.count()?);
        if exact_prefix_len > len {
            return Err("a longer exact prefix than there are tokens".into());
        }
        if tokens[..exact_prefix_len].contains(&NOT_A_TOKEN) {
            return Err("an embedding in the exact prefix".into());
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
        let mut extensions = Vec::new();
        for _ in 0..reader.count()? {
            extensions.push((reader.bytes()?, reader.bytes()?));
        }
        reader.end()?;
        Ok(Read { tokens, exact_prefix_len, removed, groups, slot, extensions })
    }

    fn fill(&mut self, id: SequenceId, read: &Read<'_>) -> Result<(), StateError> {
        let len = read.tokens.len();
        let row = id.index * self.blocks();
        let end = pages_for(len);
        for (group, layers) in read.groups.iter().enumerate() {
            let seen = self.groups[group].first_seen(len);
            let first = (seen / PAGE_CELLS).min(end);
            self.make_room(group, |_| end - first)?;
            for block in first..end {
                self.groups[group].table[row + block] = self.pools[group].take().expect("room was made");
            }
            self.sequence_mut(id)?.spans[group] = Span { first, end, whole_from: seen };
            let table = &self.groups[group].table[row..];
            let cell = |at: usize| table[at / PAGE_CELLS] as usize * PAGE_CELLS + at % PAGE_CELLS;
            for (&layer, bytes) in self.groups[group].layers.iter().zip(layers) {
                self.store.write_cells(layer, &mut (seen..len).map(cell), bytes);
            }
        }
        if self.recurs() && len > 0 {
            let slot = self.take_slot();
            self.store.write_slot(0..self.recurrent.len(), slot as usize, read.slot);
            self.sequence_mut(id)?.slot = Some(slot);
        }
        let mut chain = Vec::new();
        for block in read.tokens[..read.exact_prefix_len].chunks_exact(PAGE_CELLS) {
            chain.push(digest_after(chain.last().unwrap_or(self.tree.root()), block));
        }
        let sequence = self.sequence_mut(id)?;
        sequence.tokens.clone_from(&read.tokens);
        sequence.chain = chain;
        sequence.exact_prefix_len =
            if read.exact_prefix_len == len { usize::MAX } else { read.exact_prefix_len };
        sequence.removed = read.removed;
        Ok(())
    }
}

/// A state's section, taken apart.
struct Read<'a> {
    tokens: Vec<u32>,
    exact_prefix_len: usize,
    removed: usize,
    /// The cells of each layer of each kind.
    groups: Vec<Vec<&'a [u8]>>,
    slot: &'a [u8],
    extensions: Vec<(&'a [u8], &'a [u8])>,
}

fn load(
    saved: &[(&[u8], &[u8])],
    mut extensions: Vec<Box<dyn Extension>>,
) -> Result<Vec<Box<dyn Extension>>, RestoreError> {
    for extension in &mut extensions {
        let name = extension.name();
        let found = saved.iter().find(|(other, _)| *other == name.as_bytes());
        let loaded =
            found.ok_or_else(|| "nothing was saved".to_owned()).and_then(|(_, bytes)| extension.load(bytes));
        loaded.map_err(|problem| RestoreError::Extension { name, problem })?;
    }
    Ok(extensions)
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
