//! Writing a file: everything but the tensor data is declared first, then the data streams through.

use std::collections::HashSet;
use std::io::Write;

use verbatim_quant::DType;

use crate::cursor::check_name;
use crate::error::{GgufError, quoted};
use crate::format::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT_BYTES, MAGIC, MAX_ENTRIES, MAX_TENSORS, VERSION, check_alignment,
};
use crate::tensor::{Shape, tensor_place};
use crate::value::{Element, Value, ValueType, encode_array, encode_string};

/// Collects the metadata and the tensor table of a file, then turns into a [`TensorWriter`] for the data.
///
/// [`GgufFile`](crate::GgufFile) can open everything it writes: input that it would reject is an error here.
///
/// ```
/// use verbatim_gguf::{GgufFile, GgufWriter};
/// use verbatim_quant::DType;
///
/// let mut writer = GgufWriter::new();
/// writer.put("general.architecture", "llama")?;
/// writer.put_array("tokenizer.ggml.tokens", &["<s>", "</s>"])?;
/// writer.declare("output_norm.weight", DType::F32, &[2])?;
/// let mut data = writer.begin(Vec::new())?;
/// data.append("output_norm.weight", &[0; 8])?;
/// let file = GgufFile::from_bytes(data.finish()?)?;
/// assert_eq!(file.metadata().require_str("general.architecture")?, "llama");
/// assert_eq!(*file.require_tensor("output_norm.weight")?.data()?, [0; 8]);
/// # Ok::<(), verbatim_gguf::GgufError>(())
/// ```
#[derive(Clone, Debug)]
pub struct GgufWriter {
    /// The entries as the file holds them.
    entries: Vec<u8>,
    keys: HashSet<String>,
    tensors: Vec<Declared>,
    names: HashSet<String>,
    /// The data of all tensors, without padding.
    data_bytes: usize,
    alignment_bytes: usize,
}

/// A tensor whose data is still to come.
#[derive(Clone, Debug)]
struct Declared {
    name: String,
    shape: Shape,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> GgufWriter {
        GgufWriter {
            entries: Vec::new(),
            keys: HashSet::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
            data_bytes: 0,
            alignment_bytes: DEFAULT_ALIGNMENT_BYTES,
        }
    }

    /// Appends a metadata entry; a value read from another file will do, arrays included. `general.alignment`
    /// sets the alignment of this file.
    ///
    /// A key that is given twice, empty or too long is an error, and so is an alignment that the format does
    /// not allow.
    pub fn put<'a>(&mut self, key: &str, value: impl Into<Value<'a>>) -> Result<(), GgufError> {
        let value = value.into();
        let alignment_bytes = match key {
            ALIGNMENT_KEY => check_alignment(Some(value)),
            _ => Ok(self.alignment_bytes),
        };
        let alignment_bytes =
            alignment_bytes.map_err(|problem| GgufError::malformed(key_place(key), problem))?;
        self.put_key(key, value.value_type())?;
        self.alignment_bytes = alignment_bytes;
        value.encode(&mut self.entries);
        Ok(())
    }

    /// Appends a metadata entry that is an array of numbers, bools or strings. Errors as those of
    /// [`GgufWriter::put`].
    pub fn put_array<T: Element>(&mut self, key: &str, elements: &[T]) -> Result<(), GgufError> {
        if key == ALIGNMENT_KEY {
            return Err(GgufError::malformed(key_place(key), "the alignment cannot be an array"));
        }
        self.put_key(key, ValueType::Array)?;
        encode_array(elements, &mut self.entries);
        Ok(())
    }

    /// Declares the next tensor; `dims` are in the file's order, innermost first, as [`TensorInfo::dims`] returns them.
    ///
    /// A name that is given twice, empty or too long is an error, and so are dimensions that the format does not allow.
    ///
    /// [`TensorInfo::dims`]: crate::TensorInfo::dims
    pub fn declare(&mut self, name: &str, dtype: DType, dims: &[usize]) -> Result<(), GgufError> {
        check_name(name.as_bytes()).map_err(|problem| GgufError::malformed(tensor_place(name), problem))?;
        if self.tensors.len() as u64 >= MAX_TENSORS {
            let problem = format!("a file can have at most {MAX_TENSORS} tensors; split the model");
            return Err(GgufError::malformed(tensor_place(name), problem));
        }
        let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        let shape =
            Shape::new(dtype, &dims).map_err(|problem| GgufError::malformed(tensor_place(name), problem))?;
        let data_bytes = self.data_bytes.checked_add(shape.byte_len);
        let Some(data_bytes) = data_bytes.filter(|&bytes| isize::try_from(bytes).is_ok()) else {
            return Err(GgufError::malformed(
                tensor_place(name),
                "all tensors together are longer than any file",
            ));
        };
        if !self.names.insert(name.to_string()) {
            return Err(GgufError::Duplicate { what: "tensor", name: quoted(name) });
        }
        self.data_bytes = data_bytes;
        self.tensors.push(Declared { name: name.to_string(), shape });
        Ok(())
    }

    /// The length that the whole file will have, in bytes.
    pub fn file_bytes(&self) -> u64 {
        let head_bytes = self.head().len() as u64;
        let data_bytes = self.tensors.iter().map(|tensor| self.padded(tensor.shape.byte_len)).sum::<u64>();
        head_bytes + data_bytes
    }

    /// Writes header, metadata and tensor table; the tensor data follows through the result.
    pub fn begin<W: Write>(self, mut out: W) -> Result<TensorWriter<W>, GgufError> {
        out.write_all(&self.head()).map_err(write_error)?;
        let GgufWriter { tensors, alignment_bytes, .. } = self;
        Ok(TensorWriter { out, tensors, alignment_bytes, complete: 0, written_bytes: 0 })
    }

    /// Appends the key and the type of an entry.
    fn put_key(&mut self, key: &str, value_type: ValueType) -> Result<(), GgufError> {
        check_name(key.as_bytes()).map_err(|problem| GgufError::malformed(key_place(key), problem))?;
        if self.keys.len() as u64 >= MAX_ENTRIES {
            let problem = format!("a file can have at most {MAX_ENTRIES} metadata entries");
            return Err(GgufError::malformed(key_place(key), problem));
        }
        if !self.keys.insert(key.to_string()) {
            return Err(GgufError::Duplicate { what: "metadata key", name: quoted(key) });
        }
        encode_string(key.as_bytes(), &mut self.entries);
        self.entries.extend(value_type.id().to_le_bytes());
        Ok(())
    }

    /// Everything before the tensor data, padded if data follows.
    fn head(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.entries.len() + 128 * (self.tensors.len() + 1));
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.keys.len() as u64).to_le_bytes());
        head.extend(&self.entries);
        let mut offset = 0u64;
        for Declared { name, shape } in &self.tensors {
            encode_string(name.as_bytes(), &mut head);
            head.extend((shape.dim_count as u32).to_le_bytes());
            shape.dims[..shape.dim_count].iter().for_each(|&dim| head.extend((dim as u64).to_le_bytes()));
            head.extend(shape.dtype.id().to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset += self.padded(shape.byte_len);
        }
        if !self.tensors.is_empty() {
            head.resize(head.len().next_multiple_of(self.alignment_bytes), 0);
        }
        head
    }

    /// Bytes that a tensor takes in the file. All of them together stay far below 2^64: `declare` bounds the
    /// data by half of the address space, and the padding is at most 2^20 bytes for each of 2^20 tensors.
    fn padded(&self, byte_len: usize) -> u64 {
        (byte_len as u64).next_multiple_of(self.alignment_bytes as u64)
    }
}

impl Default for GgufWriter {
    fn default() -> GgufWriter {
        GgufWriter::new()
    }
}

/// Streams the data of the declared tensors, in their order, to any [`Write`]. Many small writes reach `out`:
/// buffer it.
///
/// After an error the output is not a model; write it again from the start.
#[derive(Debug)]
pub struct TensorWriter<W> {
    out: W,
    tensors: Vec<Declared>,
    alignment_bytes: usize,
    /// Tensors whose data is all written.
    complete: usize,
    /// Bytes of the next one that are written.
    written_bytes: usize,
}

impl<W: Write> TensorWriter<W> {
    /// Appends data of the tensor whose turn it is, all of it or the next piece.
    ///
    /// Data of a different tensor, and more data than declared, are errors that write nothing.
    pub fn append(&mut self, name: &str, data: &[u8]) -> Result<(), GgufError> {
        let byte_len = self.check_turn(name)?;
        let left = byte_len - self.written_bytes;
        if data.len() > left {
            return Err(wrong_data(format!(
                "tensor `{}` was declared with {byte_len} bytes, of which {left} are left to write, but {} \
                 were given",
                quoted(name),
                data.len()
            )));
        }
        self.out.write_all(data).map_err(write_error)?;
        self.written_bytes += data.len();
        if self.written_bytes == byte_len {
            let padding = byte_len.next_multiple_of(self.alignment_bytes) - byte_len;
            self.out.write_all(&vec![0; padding]).map_err(write_error)?;
            self.complete += 1;
            self.written_bytes = 0;
        }
        Ok(())
    }

    /// Flushes and returns the output. A tensor without its data is an error.
    pub fn finish(mut self) -> Result<W, GgufError> {
        if let Some(next) = self.tensors.get(self.complete) {
            let Declared { name, shape } = next;
            let (written, wanted) = (self.written_bytes, shape.byte_len);
            let problem = format!("{written} of the {wanted} bytes of tensor `{}` were given", quoted(name));
            return Err(wrong_data(problem));
        }
        self.out.flush().map_err(write_error)?;
        Ok(self.out)
    }

    /// Checks that it is the turn of a tensor; returns its declared bytes.
    fn check_turn(&self, name: &str) -> Result<usize, GgufError> {
        let Some(next) = self.tensors.get(self.complete) else {
            let problem =
                format!("all declared tensors are complete, but data of `{}` was given", quoted(name));
            return Err(wrong_data(problem));
        };
        if next.name != name {
            let (next, given) = (quoted(&next.name), quoted(name));
            return Err(wrong_data(format!(
                "it is the turn of tensor `{next}`, but data of `{given}` was given"
            )));
        }
        Ok(next.shape.byte_len)
    }
}

fn key_place(key: &str) -> String {
    format!("metadata key `{}`", quoted(key))
}

fn wrong_data(problem: String) -> GgufError {
    GgufError::WrongData { problem }
}

fn write_error(source: std::io::Error) -> GgufError {
    GgufError::Io { action: "write the file", source }
}
