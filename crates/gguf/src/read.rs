//! Reading one file: header, metadata and tensor table, every count, length and offset checked.

use std::sync::Arc;

use verbatim_quant::DType;

use crate::cursor::{Cursor, ReadError};
use crate::error::{GgufError, quoted};
use crate::format::{
    ALIGNMENT_KEY, FIRST_READ_BYTES, MAGIC, MAX_DIMS, MAX_ENTRIES, MAX_TABLE_BYTES, MAX_TENSORS,
    MIN_ENTRY_BYTES, MIN_TENSOR_BYTES, check_alignment,
};
use crate::metadata::{Entry, Metadata, read_entry};
use crate::source::Source;
use crate::tensor::{Shape, TensorInfo, tensor_place};
use crate::value::Value;

/// What one file holds.
pub(crate) struct Part {
    pub(crate) source: Source,
    pub(crate) version: u32,
    pub(crate) alignment_bytes: usize,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

impl Part {
    /// Reads and checks everything but the tensor data itself.
    pub(crate) fn read(source: Source) -> Result<Part, GgufError> {
        let read = match &source {
            Source::Memory(bytes) => {
                Tables::parse(bytes, bytes.len()).map(|tables| (tables, Arc::clone(bytes)))
            }
            Source::File(_) => read_tables(&source),
        };
        // Whatever is wrong with a file that is being written to: this is the reason.
        source.check_unchanged()?;
        let (Tables { version, alignment_bytes, entries, tensors, .. }, bytes) = read?;
        let metadata = Metadata::new(bytes, entries)?;
        Ok(Part { source, version, alignment_bytes, metadata, tensors })
    }
}

/// Reads a file up to the end of its tensor table, which only the tables themselves tell.
fn read_tables(source: &Source) -> Result<(Tables, Arc<Vec<u8>>), GgufError> {
    let file_bytes = source.len();
    let mut bytes = Vec::new();
    let mut wanted = FIRST_READ_BYTES;
    loop {
        extend(&mut bytes, wanted.min(file_bytes), source)?;
        match Tables::parse(&bytes, file_bytes) {
            Ok(tables) => {
                bytes.truncate(tables.end);
                bytes.shrink_to_fit();
                return Ok((tables, Arc::new(bytes)));
            }
            // Bytes that the file has are missing because they were not read yet.
            Err(GgufError::Truncated { offset, wanted: more, .. })
                if offset.saturating_add(more) <= file_bytes as u64 =>
            {
                // Not more than the file, so it fits.
                wanted = bytes.len().saturating_mul(4).max((offset + more) as usize);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads more of a file, up to `end`.
fn extend(bytes: &mut Vec<u8>, end: usize, source: &Source) -> Result<(), GgufError> {
    let start = bytes.len();
    if end > MAX_TABLE_BYTES && start >= MAX_TABLE_BYTES {
        let problem = format!("metadata and tensor table take more than {MAX_TABLE_BYTES} bytes");
        return Err(GgufError::malformed("the header", problem));
    }
    let end = end.min(MAX_TABLE_BYTES);
    let no_memory =
        |_| GgufError::Io { action: "read the metadata", source: std::io::ErrorKind::OutOfMemory.into() };
    bytes.try_reserve_exact(end - start).map_err(no_memory)?;
    bytes.resize(end, 0);
    source.read(start, &mut bytes[start..])
}

/// The tables at the beginning of a file.
struct Tables {
    version: u32,
    alignment_bytes: usize,
    entries: Vec<Entry>,
    tensors: Vec<TensorInfo>,
    /// Where the tensor table ends.
    end: usize,
}

impl Tables {
    /// Reads them from the beginning of a file of `file_bytes` bytes. What lies behind it in the file is reported as truncated.
    fn parse(bytes: &[u8], file_bytes: usize) -> Result<Tables, GgufError> {
        let cursor = &mut Cursor::in_file(bytes, file_bytes);
        let version = read_version(cursor)?;
        let tensor_count = cursor.u64().map_err(|error| error.at("the header"))?;
        let entry_count = cursor.u64().map_err(|error| error.at("the header"))?;
        check_count("metadata entries", entry_count, MAX_ENTRIES, MIN_ENTRY_BYTES, cursor)?;
        check_count("tensors", tensor_count, MAX_TENSORS, MIN_TENSOR_BYTES, cursor)?;

        // The counts fit the file, so neither table takes more than a few times the file's length.
        let mut entries = Vec::with_capacity(entry_count as usize);
        for index in 0..entry_count {
            entries.push(read_entry(cursor, index)?);
        }
        let alignment = entries.iter().find(|entry| bytes[entry.key.clone()] == *ALIGNMENT_KEY.as_bytes());
        let alignment =
            alignment.and_then(|entry| Value::view(&bytes[entry.value.clone()], entry.value_type));
        let alignment_bytes = check_alignment(alignment)
            .map_err(|problem| GgufError::malformed(format!("metadata key `{ALIGNMENT_KEY}`"), problem))?;

        let mut tensors = Vec::with_capacity(tensor_count as usize);
        for index in 0..tensor_count {
            tensors.push(read_tensor(cursor, index)?);
        }
        let end = cursor.offset();
        let data_start = end.next_multiple_of(alignment_bytes);
        tensors.iter_mut().try_for_each(|tensor| place(tensor, data_start, alignment_bytes))?;
        check_complete(&tensors, file_bytes)?;
        check_overlap(&tensors)?;
        Ok(Tables { version, alignment_bytes, entries, tensors, end })
    }
}

/// Reads the magic and the version.
fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic: [u8; 4] = cursor.array().map_err(|error| error.at("the magic"))?;
    if magic != MAGIC {
        return Err(GgufError::NotGguf { found: quoted(magic) });
    }
    let found = cursor.u32().map_err(|error| error.at("the header"))?;
    let advice = match found {
        2 | 3 => return Ok(found),
        0 | 1 => "the file predates the current layout, convert the model again",
        // A version is a small integer, so zero low bytes mean a byte-swapped (big-endian) file.
        _ if found & 0xffff == 0 => "the file is big-endian, convert it to little-endian",
        _ => "the file is newer than this program, or damaged",
    };
    Err(GgufError::UnsupportedVersion { found, advice })
}

/// Rejects a count that the rest of the file cannot hold, before anything is reserved for it.
fn check_count(
    what: &str,
    count: u64,
    most: u64,
    min_bytes: u64,
    cursor: &Cursor<'_>,
) -> Result<(), GgufError> {
    let room = cursor.left() as u64 / min_bytes;
    if count > room {
        let left = cursor.left();
        let problem = format!(
            "it declares {count} {what}, but the {left} bytes after it can hold at most {room}; the file is \
             damaged or incomplete, download or convert it again"
        );
        return Err(GgufError::malformed("the header", problem));
    }
    if count > most {
        return Err(GgufError::malformed(
            "the header",
            format!("it declares {count} {what}, at most {most} are read"),
        ));
    }
    Ok(())
}

/// Reads an entry of the tensor table; the offset still counts from the start of the data. `index` names the tensor until its name
/// is known.
fn read_tensor(cursor: &mut Cursor<'_>, index: u64) -> Result<TensorInfo, GgufError> {
    let name = cursor.name().map_err(|error| error.at(format!("the name of tensor {index}")))?;
    read_shape_and_offset(cursor)
        .map(|(shape, offset)| TensorInfo { name: name.to_string(), shape, offset, split: 0 })
        .map_err(|error| error.at(tensor_place(name)))
}

fn read_shape_and_offset(cursor: &mut Cursor<'_>) -> Result<(Shape, usize), ReadError> {
    let dim_count = cursor.u32()? as usize;
    let mut dims = [0; MAX_DIMS];
    let Some(dims) = dims.get_mut(..dim_count) else {
        return Err(ReadError::Malformed(format!(
            "it has {dim_count} dimensions, at most {MAX_DIMS} are allowed"
        )));
    };
    for dim in dims.iter_mut() {
        *dim = cursor.u64()?;
    }
    let type_id = cursor.u32()?;
    let dtype = DType::from_id(type_id).ok_or_else(|| {
        ReadError::Malformed(format!("its type has the id {type_id}, which is unknown or no longer in use"))
    })?;
    let offset = cursor.u64()?;
    let offset = usize::try_from(offset)
        .map_err(|_| ReadError::Malformed(format!("its offset {offset} is too large")))?;
    Ok((Shape::new(dtype, dims).map_err(ReadError::Malformed)?, offset))
}

/// Makes the offset one from the start of the file.
fn place(tensor: &mut TensorInfo, data_start: usize, alignment_bytes: usize) -> Result<(), GgufError> {
    if !tensor.offset.is_multiple_of(alignment_bytes) {
        let problem =
            format!("its offset {} is not a multiple of the alignment {alignment_bytes}", tensor.offset);
        return Err(GgufError::malformed(tensor_place(&tensor.name), problem));
    }
    tensor.offset = data_start.saturating_add(tensor.offset);
    Ok(())
}

/// Checks that the data of all tensors lies inside the file. The error is about the first one that does not.
fn check_complete(tensors: &[TensorInfo], file_bytes: usize) -> Result<(), GgufError> {
    let end = |tensor: &TensorInfo| tensor.offset.saturating_add(tensor.byte_len());
    let Some(cut) = tensors.iter().find(|tensor| end(tensor) > file_bytes) else { return Ok(()) };
    let needed_bytes = tensors.iter().map(end).max().unwrap_or(0);
    Err(GgufError::Truncated {
        place: format!("the data of {}", tensor_place(&cut.name)),
        offset: cut.offset as u64,
        wanted: cut.byte_len() as u64,
        left: file_bytes.saturating_sub(cut.offset) as u64,
        missing: (needed_bytes - file_bytes) as u64,
    })
}

/// Rejects tensors that share bytes. Gaps between them are harmless.
fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| tensor.offset);
    match by_offset.windows(2).find(|pair| pair[0].range().end > pair[1].offset) {
        Some(pair) => Err(GgufError::Overlap { first: quoted(&pair[0].name), second: quoted(&pair[1].name) }),
        None => Ok(()),
    }
}
