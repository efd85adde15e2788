//! An opened model file, or all the files of a split model as one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{GgufError, quoted};
use crate::metadata::Metadata;
use crate::read::Part;
use crate::source::Source;
use crate::split::SplitPosition;
use crate::tensor::{Tensor, TensorInfo};

/// An open model file, with its metadata and tensor table read and checked.
pub struct GgufFile {
    /// The bytes of each split; never empty.
    parts: Vec<Source>,
    version: u32,
    alignment_bytes: usize,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Indexes into `tensors`, ordered by name.
    by_name: Vec<u32>,
}

impl GgufFile {
    /// Opens a model; given any one file of a split model, all of them (found by name beside it).
    ///
    /// The files stay open for as long as the result lives. Metadata and tensor table are read here, tensor data when it is asked
    /// for. If another program writes to a file meanwhile, data may be of either content: [`GgufFile::check_unchanged`] tells.
    /// Replacing a model by renaming a new file over the old one changes nothing here.
    ///
    /// Errors name the file, and the key, tensor or offset in it.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        let opened = open_part(path)?;
        let position = SplitPosition::from_metadata(&opened.metadata).map_err(|error| error.in_file(path))?;
        if position.count == 1 {
            return GgufFile::assemble(vec![opened]).map_err(|error| error.in_file(path));
        }
        let paths = position.paths(path).map_err(|error| error.in_file(path))?;
        let mut opened = Some(opened);
        let mut parts = Vec::new();
        for (index, sibling) in paths.enumerate() {
            let given = if index == position.index { opened.take() } else { None };
            parts.push(match given {
                Some(part) => part,
                None => open_sibling(&sibling, SplitPosition { index, ..position })?,
            });
        }
        GgufFile::assemble(parts).map_err(|error| error.in_file(path))
    }

    /// Opens the files of a model, all of them and in order, whatever their names are.
    ///
    /// # Errors
    /// As [`GgufFile::open`]; also if the files are not the parts of one model.
    pub fn open_parts(paths: &[impl AsRef<Path>]) -> Result<GgufFile, GgufError> {
        let mut parts = Vec::with_capacity(paths.len());
        for (index, path) in paths.iter().enumerate() {
            let path = path.as_ref();
            let part = open_part(path)?;
            check_position(&part, SplitPosition { index, count: paths.len() })
                .map_err(|error| error.in_file(path))?;
            parts.push(part);
        }
        GgufFile::assemble(parts)
    }

    /// Reads a whole file held in memory, as [`GgufFile::open`] does. A part of a split model is an error.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<GgufFile, GgufError> {
        let part = Part::read(Source::Memory(Arc::new(bytes)))?;
        let SplitPosition { index, count } = SplitPosition::from_metadata(&part.metadata)?;
        if count > 1 {
            let problem = format!("these bytes are part {} of {count}; open the files by path", index + 1);
            return Err(GgufError::Split { problem });
        }
        GgufFile::assemble(vec![part])
    }

    /// The metadata; that of the first file if the model is split.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor table in the file's order; that of all files in their order if the model is split.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let by_name = |&index: &u32| self.tensors[index as usize].name().cmp(name);
        let found = self.by_name.binary_search_by(by_name).ok()?;
        self.with_data(&self.tensors[self.by_name[found] as usize])
    }

    /// The tensor with this name; its absence is an error.
    pub fn require_tensor(&self, name: &str) -> Result<Tensor<'_>, GgufError> {
        self.tensor(name).ok_or_else(|| GgufError::MissingTensor { name: quoted(name) })
    }

    /// All tensors with their data, in the order of [`GgufFile::tensors`].
    pub fn iter_tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.tensors.iter().filter_map(|info| self.with_data(info))
    }

    /// The format version, 2 or 3 (their layout is the same).
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data in the (first) file, in bytes: a power of two, at least 8.
    pub fn alignment(&self) -> usize {
        self.alignment_bytes
    }

    /// The number of files that the model is split over; 1 if it is not.
    pub fn split_count(&self) -> usize {
        self.parts.len()
    }

    /// Checks that no file was written to since it was opened, as far as its length and the time of its last change show. To be
    /// called after data was read, whether or not reading it failed.
    ///
    /// # Errors
    /// If one was, or if the system cannot tell.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        self.parts.iter().try_for_each(Source::check_unchanged)
    }

    /// The length of all files together when they were opened, in bytes.
    pub fn bytes_total(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    fn with_data<'a>(&'a self, info: &'a TensorInfo) -> Option<Tensor<'a>> {
        Some(Tensor { info, source: self.parts.get(info.split)? })
    }

    /// Joins the parts of a model, given in order; each part's index has been checked.
    fn assemble(parts: Vec<Part>) -> Result<GgufFile, GgufError> {
        let mut tensors = Vec::with_capacity(parts.iter().map(|part| part.tensors.len()).sum());
        let mut files = Vec::with_capacity(parts.len());
        let mut first = None;
        for (split, part) in parts.into_iter().enumerate() {
            tensors.extend(part.tensors.into_iter().map(|info| TensorInfo { split, ..info }));
            files.push(part.source);
            first.get_or_insert((part.version, part.alignment_bytes, part.metadata));
        }
        let Some((version, alignment_bytes, metadata)) = first else {
            return Err(GgufError::Split { problem: "there is no part".to_string() });
        };
        if files.len() > 1 {
            check_tensor_count(&metadata, tensors.len())?;
        }
        let by_name = index_by_name(&tensors)?;
        Ok(GgufFile { parts: files, version, alignment_bytes, metadata, tensors, by_name })
    }
}

impl fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufFile")
            .field("version", &self.version)
            .field("splits", &self.parts.len())
            .field("metadata", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .field("bytes", &self.bytes_total())
            .finish()
    }
}

/// Opens one file and reads its tables.
fn open_part(path: &Path) -> Result<Part, GgufError> {
    Source::open(path).and_then(Part::read).map_err(|error| error.in_file(path))
}

/// Opens another part of a split model and checks its index against its name.
fn open_sibling(path: &Path, expected: SplitPosition) -> Result<Part, GgufError> {
    let SplitPosition { index, count } = expected;
    if !path.exists() {
        let problem = format!("part {} of {count} is missing; it must lie beside the others", index + 1);
        return Err(GgufError::Split { problem }.in_file(path));
    }
    let part = open_part(path)?;
    check_position(&part, expected).map_err(|error| error.in_file(path))?;
    Ok(part)
}

/// Checks a part's index and count.
fn check_position(part: &Part, expected: SplitPosition) -> Result<(), GgufError> {
    let found = SplitPosition::from_metadata(&part.metadata)?;
    if found == expected {
        return Ok(());
    }
    let SplitPosition { index, count } = expected;
    let problem = format!(
        "this should be part {} of {count}, but by its metadata it is part {} of {}; download it again",
        index + 1,
        found.index + 1,
        found.count
    );
    Err(GgufError::Split { problem })
}

/// Checks the total number of tensors against the first part's value; not all writers store it.
fn check_tensor_count(first: &Metadata, found: usize) -> Result<(), GgufError> {
    match first.get_usize("split.tensors.count")? {
        Some(expected) if expected != found => {
            let problem =
                format!("`split.tensors.count` is {expected}, but the parts together have {found} tensors");
            Err(GgufError::Split { problem })
        }
        _ => Ok(()),
    }
}

/// Orders the tensors by name. A name given twice is an error.
fn index_by_name(tensors: &[TensorInfo]) -> Result<Vec<u32>, GgufError> {
    let too_many =
        |_| GgufError::Split { problem: format!("the parts together have {} tensors", tensors.len()) };
    let count = u32::try_from(tensors.len()).map_err(too_many)?;
    let name = |&index: &u32| tensors[index as usize].name();
    let mut by_name: Vec<u32> = (0..count).collect();
    by_name.sort_unstable_by(|a, b| name(a).cmp(name(b)));
    match by_name.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
        Some(pair) => Err(GgufError::Duplicate { what: "tensor", name: quoted(name(&pair[0])) }),
        None => Ok(by_name),
    }
}
