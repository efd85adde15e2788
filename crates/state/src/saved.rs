//! Sequences in files: saved in one process, restored in another, rejected if anything does not match.
//!
//! A file is a magic number, a version, named sections and the SHA-256 of everything before it.
//! All integers are little-endian; lengths and counts are 64 bits. A state's section contains
//! - the numerics version of the backend (u32): bits that different kernels have computed cannot be used;
//! - the target's identity: the digest of the model, its layers and KV cache types as text, and the bytes of its recurrent state;
//! - tokens (count, u32 each), the length of the cacheable prefix, the number of removed positions;
//! - the target's cells: by KV cache group and layer, those inside the window, as stored;
//! - the target's recurrent state; the extensions of other crates (count; name and bytes of each);
//! - the draft models that have computed anything (count; length of each): identity, start and end of the computed range, its cells
//!   inside the window, and the recurrent state if the range ends at the last position. A reader without that draft model skips it.

use crate::prefix::digest_after;
use crate::sequence::{Sequence, Span};
use crate::{Digest, ModelId, NOT_A_TOKEN, SequenceExtension, SequenceId, State, StateError, pages_for};
use sha2::{Digest as _, Sha256};
use std::io::{self, Write};
use std::ops::Range;
use verbatim_backend::{PAGE_CELLS, StateStore};

const MAGIC: [u8; 8] = *b"VERBATIM";
const VERSION: u32 = 3;
const CHECKSUM_BYTES: usize = 32;
/// More than any sequence can reach, and far from overflow.
const REMOVED_MAX: usize = usize::MAX / 4;

/// Why a file of saved sequences cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SavedFileError {
    /// Not a file of saved sequences.
    #[error("not a file of saved sequences")]
    BadMagic,
    /// A file of a different version.
    #[error("the file has version {0}, but this program reads version {VERSION}; recompute the sequence")]
    Version(u32),
    /// Bytes are missing or were changed.
    #[error("the file is damaged or truncated: the checksum does not match")]
    Damaged,
    /// The checksum matches, but the content is invalid.
    #[error("the file is malformed: {0}")]
    Malformed(&'static str),
}

/// Why a sequence could not be restored. Nothing was modified.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RestoreError {
    /// The section is truncated or otherwise invalid.
    #[error("the saved sequence is malformed: {0}")]
    Malformed(&'static str),
    /// Saved with a different model.
    #[error("the sequence was saved with a different model")]
    ModelMismatch,
    /// Saved by a build with different kernels.
    #[error(
        "the sequence was saved by a different backend or version of it, whose results may differ in the last bit ({found:#x}, \
         not {wanted:#x}); use the backend that it was saved with, or recompute it"
    )]
    NumericsMismatch {
        /// The numerics version of the file.
        found: u32,
        /// The numerics version of this build.
        wanted: u32,
    },
    /// Saved with different KV cache shapes or types.
    #[error(
        "the sequence was saved with the KV cache format {found}, but this model has {wanted}; use the same KV cache types \
         and the same choice of the Hadamard transform"
    )]
    KvFormatMismatch {
        /// The format in the file.
        found: String,
        /// The format of the state.
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
    /// There is no room for it.
    #[error(transparent)]
    State(#[from] StateError),
}

/// What was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its positions.
    pub positions: usize,
    /// [`State::truncate`] accepts any length from this one to `positions`, and 0.
    pub min_len: usize,
}

/// Named sections of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedFile {
    sections: Vec<(String, Vec<u8>)>,
}

impl SavedFile {
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
    /// If the file is truncated, damaged or of a different version.
    pub fn read(bytes: &[u8]) -> Result<SavedFile, SavedFileError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(SavedFileError::BadMagic);
        }
        let content = bytes.len().checked_sub(CHECKSUM_BYTES).ok_or(SavedFileError::Damaged)?;
        let (content, checksum) = bytes.split_at(content);
        let mut reader = Reader(content.get(MAGIC.len()..).ok_or(SavedFileError::Damaged)?);
        let version = reader.u32().map_err(|_| SavedFileError::Damaged)?;
        if version != VERSION {
            return Err(SavedFileError::Version(version));
        }
        if Sha256::digest(content).as_slice() != checksum {
            return Err(SavedFileError::Damaged);
        }
        let mut saved = SavedFile::default();
        let mut sections = || -> Result<(), &'static str> {
            for _ in 0..reader.count()? {
                let name = str::from_utf8(reader.bytes()?).map_err(|_| "a section's name is not UTF-8")?;
                saved.add(name, reader.bytes()?.to_vec());
            }
            reader.end()
        };
        sections().map_err(SavedFileError::Malformed)?;
        Ok(saved)
    }
}

impl<S: StateStore> State<S> {
    /// A sequence's state, for [`SavedFile::add`]. Positions in flight are not included.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub fn save(&self, id: SequenceId) -> Result<Vec<u8>, StateError> {
        let sequence = self.sequence(id)?;
        let (target, committed) = (ModelId::TARGET, sequence.committed());
        let mut out = Vec::new();
        out.extend(self.store.numerics_version().to_le_bytes());
        self.save_identity(target, &mut out);
        put(&mut out, committed);
        sequence.tokens.iter().for_each(|token| out.extend(token.to_le_bytes()));
        put(&mut out, sequence.cacheable_len.min(committed));
        put(&mut out, sequence.removed);
        self.save_layers(id, target, 0..committed, &mut out);
        if let Some(slot) = sequence.slot {
            self.store.read_slot(self.recurrent_layers(target), slot as usize, &mut out);
        }
        put(&mut out, sequence.extensions.len());
        for extension in &sequence.extensions {
            let mut bytes = Vec::new();
            extension.save(&mut bytes);
            put_bytes(&mut out, extension.name().as_bytes());
            put_bytes(&mut out, &bytes);
        }
        let has_computed = |draft: &ModelId| !sequence.computed_range(*draft).is_empty();
        put(&mut out, self.drafts().filter(has_computed).count());
        for draft in self.drafts().filter(has_computed) {
            put_bytes(&mut out, &self.save_draft(id, sequence, draft));
        }
        Ok(out)
    }

    fn save_draft(&self, id: SequenceId, sequence: &Sequence, draft: ModelId) -> Vec<u8> {
        let (mut out, computed) = (Vec::new(), sequence.computed_range(draft));
        self.save_identity(draft, &mut out);
        put(&mut out, computed.start);
        put(&mut out, computed.end);
        self.save_layers(id, draft, computed, &mut out);
        if let (Some(slot), Some(_)) = (sequence.slot, sequence.computed_start(draft)) {
            self.store.read_slot(self.recurrent_layers(draft), slot as usize, &mut out);
        }
        out
    }

    /// Writes what must match for a model's layers to be restored.
    fn save_identity(&self, model: ModelId, out: &mut Vec<u8>) {
        out.extend(self.models[model.0].digest);
        put_bytes(out, self.kv_format(model).as_bytes());
        put(out, self.store.slot_bytes(self.recurrent_layers(model)));
    }

    fn save_layers(&self, id: SequenceId, model: ModelId, positions: Range<usize>, out: &mut Vec<u8>) {
        let len = self.len(id).expect("the caller has it");
        for (group, layer) in self.layers_by_group(model) {
            let mut cells = self.visible_positions(group, positions.clone(), len).map(|position| {
                self.cell(id, group, position).expect("computed positions inside the window have cells")
            });
            self.store.read_cells(layer, &mut cells, out);
        }
    }

    /// A model's layers, each with its group.
    fn layers_by_group(&self, model: ModelId) -> impl Iterator<Item = (usize, usize)> + '_ {
        let own = self.layers(model);
        let layers = self.groups.iter().enumerate();
        let layers = layers.flat_map(|(index, group)| group.layers.iter().map(move |&layer| (index, layer)));
        layers.filter(move |(_, layer)| own.contains(layer))
    }

    /// Those of `positions` that are inside a group's window after `len` positions.
    fn visible_positions(&self, group: usize, positions: Range<usize>, len: usize) -> Range<usize> {
        let first = self.groups[group].first_visible(len).max(positions.start);
        first.min(positions.end)..positions.end
    }

    /// A new sequence from the bytes of [`State::save`], in this or another process. Each of the given extensions loads the state
    /// that was saved under its name and is attached. The computed ranges of draft models are restored for those that are loaded
    /// here; the rest are skipped.
    ///
    /// # Errors
    /// If it was saved with a different model, build or KV cache format, if it is malformed, or if there is no room.
    pub fn restore(
        &mut self,
        saved: &[u8],
        extensions: Vec<Box<dyn SequenceExtension>>,
    ) -> Result<Restored, RestoreError> {
        let mut reader = Reader(saved);
        let read = self.read(&mut reader)?;
        let extensions = load(&read.extensions, extensions)?;
        let sequence = self.begin()?;
        if let Err(error) = self.restore_into(sequence, &read) {
            self.end(sequence)?;
            return Err(error.into());
        }
        self.sequence_mut(sequence)?.extensions = extensions;
        let (positions, spans) = (self.len(sequence)?, &self.sequence(sequence)?.spans);
        // Cells that have slid out of a window were not saved, so the sequence can only be truncated to 0.
        let has_all = |(group, span): (&crate::Group, &Span)| {
            !group.models.contains(ModelId::TARGET) || span.valid_from == 0
        };
        let can_truncate = !self.is_recurrent() && self.groups.iter().zip(spans).all(has_all);
        let min_len = if can_truncate { 0 } else { positions };
        Ok(Restored { sequence, positions, min_len })
    }

    /// The KV cache format of a model as text: shapes, types and windows of its layers. Part of the file format.
    pub(crate) fn kv_format(&self, model: ModelId) -> String {
        // Equal consecutive layers are counted.
        let mut formats: Vec<(usize, String)> = Vec::new();
        for layer in &self.layers[self.layers(model)] {
            let kv = layer.kv;
            let hadamard = if layer.hadamard { " rotated" } else { "" };
            let window = layer.window.map_or(String::new(), |window| format!(" window {window}"));
            let (k, v) = (kv.k.name(), kv.v.name());
            let format = format!("{}x{} {k}{hadamard}/{v}{window}", kv.kv_heads, kv.head_dim);
            match formats.last_mut().filter(|(_, last)| *last == format) {
                Some((count, _)) => *count += 1,
                None => formats.push((1, format)),
            }
        }
        let formats: Vec<String> =
            formats.iter().map(|(count, format)| format!("{count} * {format}")).collect();
        formats.join("; ")
    }

    fn read<'a>(&self, reader: &mut Reader<'a>) -> Result<Read<'a>, RestoreError> {
        let (found, wanted) = (reader.u32()?, self.store.numerics_version());
        if found != wanted {
            return Err(RestoreError::NumericsMismatch { found, wanted });
        }
        let identity = Identity::read(reader)?;
        let wanted = self.identity(ModelId::TARGET);
        if identity.digest != wanted.digest {
            return Err(RestoreError::ModelMismatch);
        }
        if identity != wanted {
            let [found, wanted] = [identity, wanted].map(|identity| identity.describe());
            return Err(RestoreError::KvFormatMismatch { found, wanted });
        }
        let len = reader.count()?;
        if len > self.context {
            return Err(StateError::ContextFull { wanted: len, context: self.context }.into());
        }
        let tokens = reader.take(len.checked_mul(4).ok_or("too many tokens")?)?;
        let tokens: Vec<u32> = tokens.as_chunks::<4>().0.iter().copied().map(u32::from_le_bytes).collect();
        let (cacheable_len, removed) = (reader.count()?, reader.count()?);
        if removed > REMOVED_MAX {
            return Err("the number of removed positions is too large".into());
        }
        if cacheable_len > len {
            return Err("the cacheable prefix is longer than the tokens".into());
        }
        if tokens[..cacheable_len].contains(&NOT_A_TOKEN) {
            return Err("the cacheable prefix contains an embedding".into());
        }
        let target = self.read_layers(reader, ModelId::TARGET, 0..len, len)?;
        let mut extensions = Vec::new();
        for _ in 0..reader.count()? {
            extensions.push((reader.bytes()?, reader.bytes()?));
        }
        let mut models = vec![(ModelId::TARGET, target)];
        for _ in 0..reader.count()? {
            let mut section = Reader(reader.bytes()?);
            let identity = Identity::read(&mut section)?;
            let is_new = |draft: &ModelId| models.iter().all(|(read, _)| read != draft);
            let draft = self.drafts().filter(is_new).find(|&draft| self.identity(draft) == identity);
            // Not loaded here, or with a different KV cache format.
            let Some(draft) = draft else { continue };
            let computed = section.count()?..section.count()?;
            if computed.start >= computed.end || computed.end > len {
                return Err("a draft model's computed range is out of bounds".into());
            }
            let layers = self.read_layers(&mut section, draft, computed, len)?;
            section.end()?;
            models.push((draft, layers));
        }
        reader.end()?;
        Ok(Read { tokens, cacheable_len, removed, models, extensions })
    }

    fn identity(&self, model: ModelId) -> Identity {
        let slot_bytes = self.store.slot_bytes(self.recurrent_layers(model));
        Identity { digest: self.models[model.0].digest, kv_format: self.kv_format(model), slot_bytes }
    }

    /// The cells of a model's layers, and its recurrent state if these positions are the last.
    fn read_layers<'a>(
        &self,
        reader: &mut Reader<'a>,
        model: ModelId,
        computed: Range<usize>,
        len: usize,
    ) -> Result<ReadLayers<'a>, RestoreError> {
        let mut layers = Vec::new();
        for (group, layer) in self.layers_by_group(model) {
            let cells = self.visible_positions(group, computed.clone(), len).len();
            let bytes = self.layers[layer].kv.cell_bytes().expect("checked when the memory was allocated");
            layers.push(reader.take(cells.checked_mul(bytes).ok_or("too many cells")?)?);
        }
        let has_state = self.models[model.0].is_recurrent() && len > 0 && computed.end == len;
        let slot_bytes = self.store.slot_bytes(self.recurrent_layers(model));
        let state = if has_state { Some(reader.take(slot_bytes)?) } else { None };
        Ok(ReadLayers { computed, layers, state })
    }

    fn restore_into(&mut self, id: SequenceId, read: &Read<'_>) -> Result<(), StateError> {
        let len = read.tokens.len();
        let table_start = id.index * self.pages_per_sequence();
        let end = pages_for(len);
        for group in 0..self.groups.len() {
            let first_visible = self.groups[group].first_visible(len);
            let first = (first_visible / PAGE_CELLS).min(end);
            self.make_room(group, |_| end - first)?;
            for page_index in first..end {
                self.groups[group].table[table_start + page_index] =
                    self.pools[group].take().expect("`make_room` has freed it");
            }
            self.sequence_mut(id)?.spans[group] = Span { first, end, valid_from: first_visible };
        }
        let slot = read.models.iter().any(|(_, layers)| layers.state.is_some()).then(|| self.take_slot());
        self.sequence_mut(id)?.slot = slot;
        for (model, ReadLayers { computed, layers, state }) in &read.models {
            let by_group: Vec<_> = self.layers_by_group(*model).collect();
            for ((group, layer), bytes) in by_group.into_iter().zip(layers) {
                let table = &self.groups[group].table[table_start..];
                let cell = |at: usize| table[at / PAGE_CELLS] as usize * PAGE_CELLS + at % PAGE_CELLS;
                let mut cells = self.visible_positions(group, computed.clone(), len).map(cell);
                self.store.write_cells(layer, &mut cells, bytes);
            }
            if let (Some(slot), Some(state)) = (slot, state) {
                self.store.write_slot(self.recurrent_layers(*model), slot as usize, state);
            }
            if let Some(draft) = model.0.checked_sub(1) {
                self.sequence_mut(id)?.computed_ranges[draft] = computed.clone();
            }
        }
        let root = *self.tree.model_digest();
        let sequence = self.sequence_mut(id)?;
        for page_tokens in read.tokens[..read.cacheable_len].chunks_exact(PAGE_CELLS) {
            sequence
                .page_digests
                .push(digest_after(sequence.page_digests.last().unwrap_or(&root), page_tokens));
        }
        sequence.tokens.extend(&read.tokens);
        sequence.cacheable_len = if read.cacheable_len == len { usize::MAX } else { read.cacheable_len };
        sequence.removed = read.removed;
        Ok(())
    }
}

/// What must match for a model's layers to be restored.
#[derive(PartialEq, Eq)]
struct Identity {
    digest: Digest,
    kv_format: String,
    slot_bytes: usize,
}

impl Identity {
    fn read(reader: &mut Reader<'_>) -> Result<Identity, RestoreError> {
        let digest = reader.take(size_of::<Digest>())?.try_into().expect("32 bytes");
        let kv_format = String::from_utf8_lossy(reader.bytes()?).into_owned();
        Ok(Identity { digest, kv_format, slot_bytes: reader.count()? })
    }

    fn describe(self) -> String {
        // "rotated" is the file's word for the Hadamard transform. A reader would take it for RoPE.
        let kv_format = self.kv_format.replace(" rotated", " hadamard");
        match self.slot_bytes {
            0 => kv_format,
            bytes => format!("{kv_format} and {bytes} bytes of recurrent state"),
        }
    }
}

/// A parsed section of a state.
struct Read<'a> {
    tokens: Vec<u32>,
    cacheable_len: usize,
    removed: usize,
    /// The target, and the draft models that are loaded here.
    models: Vec<(ModelId, ReadLayers<'a>)>,
    extensions: Vec<(&'a [u8], &'a [u8])>,
}

/// The saved state of one model's layers.
struct ReadLayers<'a> {
    /// The positions that it has computed.
    computed: Range<usize>,
    /// The cells of each layer, by group.
    layers: Vec<&'a [u8]>,
    /// The recurrent state after the last committed position.
    state: Option<&'a [u8]>,
}

fn load(
    saved: &[(&[u8], &[u8])],
    mut extensions: Vec<Box<dyn SequenceExtension>>,
) -> Result<Vec<Box<dyn SequenceExtension>>, RestoreError> {
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

/// Reads from the front of a byte slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("it is truncated")?;
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
        if self.0.is_empty() { Ok(()) } else { Err("it has trailing bytes") }
    }
}
