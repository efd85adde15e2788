//! Writing a synthetic model, tensor by tensor.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use verbatim_gguf::{GgufError, GgufWriter, TensorWriter};
use verbatim_quant::{DType, QuantError};

use super::skeleton::{Fill, Tensor};
use super::weights::Pool;
use super::{ModelSkeleton, QuantType, mix, vocabulary};

/// Elements that are generated and written at a time.
const PIECE_BYTES: usize = 16 << 20;

/// How a model is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Which format each tensor gets.
    pub quant: QuantType,
    /// A different seed gives different weights.
    pub seed: u64,
    /// Threads that generate weights. The bytes do not depend on it.
    pub threads: usize,
}

/// Progress of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tensors that are written.
    pub written: u64,
    /// Bytes of the whole file.
    pub total: u64,
}

/// Why no model was written. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// The target exists and cannot be replaced.
    #[error("{} is not a regular file; specify the path of a file to write", .0.display())]
    Target(PathBuf),
    /// The file could not be created or renamed.
    #[error("{} cannot be written: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The disk has less room than the file needs.
    #[error(
        "{} needs {needed_bytes} bytes and the disk has {free_bytes} free; free some space or choose a different disk",
        path.display()
    )]
    Space {
        /// The file.
        path: PathBuf,
        /// The length of the whole file.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
    },
    /// Writing failed, for example because the disk became full meanwhile.
    #[error("{} cannot be written: {source}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: GgufError,
    },
    /// The model cannot be a file.
    #[error("the model cannot be written as a file: {0}")]
    Model(GgufError),
    /// Random numbers that cannot be quantised.
    #[error(transparent)]
    Quantize(#[from] QuantError),
    /// The caller has stopped it.
    #[error("stopped")]
    Stopped,
}

/// Writes a model to a file and returns its length in bytes. `should_continue` receives the progress, and can stop it.
///
/// # Errors
/// If the file cannot be written; then nothing is left, and a file that was there before is as it was.
pub fn write(
    skeleton: &ModelSkeleton,
    options: &WriteOptions,
    path: &Path,
    should_continue: &mut dyn FnMut(Progress) -> bool,
) -> Result<u64, SynthError> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(SynthError::Target(path.into()));
    }
    let (writer, formats) = header(skeleton, options.quant, options.seed).map_err(SynthError::Model)?;
    let needed_bytes = writer.file_bytes();
    let partial = PartialFile::for_path(path);
    let io_error = |source| SynthError::Io { path: path.into(), source };
    let file = File::create(&partial.path).map_err(io_error)?;
    if let Some(free_bytes) = free_bytes(&file)
        && free_bytes < needed_bytes
    {
        return Err(SynthError::Space { path: path.into(), needed_bytes, free_bytes });
    }
    let data_error = |source| SynthError::Data { path: path.into(), source };
    let pools = pools(skeleton, &formats, options)?;
    let data = writer.begin(BufWriter::with_capacity(1 << 20, file)).map_err(data_error)?;
    let progress = Progress { written: 0, total: needed_bytes };
    let mut filler =
        Filler { data, pools, threads: options.threads, progress, piece: Vec::new(), should_continue };
    for (index, (tensor, &dtype)) in skeleton.tensors().iter().zip(&formats).enumerate() {
        let key = mix(mix(options.seed) ^ index as u64);
        if !filler.append(tensor, dtype, key).map_err(data_error)? {
            return Err(SynthError::Stopped);
        }
    }
    filler.data.finish().map_err(data_error)?;
    partial.keep_as(path).map_err(io_error)?;
    Ok(needed_bytes)
}

/// The file's metadata and tensor table, with the format of each tensor.
fn header(
    skeleton: &ModelSkeleton,
    quant: QuantType,
    seed: u64,
) -> Result<(GgufWriter, Vec<DType>), GgufError> {
    let mut writer = GgufWriter::new();
    writer.put("general.architecture", skeleton.architecture())?;
    writer.put("general.type", "model")?;
    writer.put("general.name", skeleton.name())?;
    let description = format!("Random weights (seed {seed}): for measurements only.");
    writer.put("general.description", description.as_str())?;
    writer.put("general.file_type", quant.file_type())?;
    writer.put("general.quantization_version", 2u32)?;
    skeleton.put_entries(&mut writer)?;
    vocabulary::put(&mut writer, skeleton.vocabulary())?;
    let formats = quant.formats(skeleton.tensors(), skeleton.quant_context());
    for (tensor, &dtype) in skeleton.tensors().iter().zip(&formats) {
        writer.declare(&tensor.name, dtype, &tensor.dims)?;
    }
    Ok((writer, formats))
}

/// Free space on a file's disk, if known.
#[cfg(unix)]
fn free_bytes(file: &File) -> Option<u64> {
    rustix::fs::fstatvfs(file).ok().and_then(|disk| disk.f_bavail.checked_mul(disk.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_file: &File) -> Option<u64> {
    None
}

/// A file that is removed on drop unless it is kept.
struct PartialFile {
    path: PathBuf,
}

impl PartialFile {
    /// The file beside `path` in which it grows.
    fn for_path(path: &Path) -> PartialFile {
        let mut name = path.as_os_str().to_owned();
        name.push(".part");
        PartialFile { path: name.into() }
    }

    fn keep_as(self, path: &Path) -> std::io::Result<()> {
        std::fs::rename(&self.path, path)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Kept or never created: then there is nothing to remove. Errors of the removal are ignored.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A pool for each format, for as many elements as its largest tensor has.
fn pools(
    skeleton: &ModelSkeleton,
    formats: &[DType],
    options: &WriteOptions,
) -> Result<HashMap<DType, Pool>, QuantError> {
    let mut elements: HashMap<DType, usize> = HashMap::new();
    for (tensor, &dtype) in skeleton.tensors().iter().zip(formats) {
        if tensor.fill == Fill::Random {
            let most = elements.entry(dtype).or_default();
            *most = tensor.elements().max(*most);
        }
    }
    let pool = |(dtype, elements)| Ok((dtype, Pool::new(dtype, elements, options.seed, options.threads)?));
    elements.into_iter().map(pool).collect()
}

/// Generates tensors piece by piece.
struct Filler<'a, W: Write> {
    data: TensorWriter<W>,
    pools: HashMap<DType, Pool>,
    threads: usize,
    progress: Progress,
    piece: Vec<u8>,
    should_continue: &'a mut dyn FnMut(Progress) -> bool,
}

impl<W: Write> Filler<'_, W> {
    /// Appends a tensor; `false` if the caller wants to stop.
    fn append(&mut self, tensor: &Tensor, dtype: DType, key: u64) -> Result<bool, GgufError> {
        match &tensor.fill {
            Fill::Random => self.append_random(tensor, dtype, key),
            Fill::Values(values) => self.append_numbers(tensor, values.iter().copied()),
            Fill::Constant(number) => {
                self.append_numbers(tensor, std::iter::repeat_n(*number, tensor.elements()))
            }
        }
    }

    /// Appends f32 values as they are: vectors are not longer than a piece.
    fn append_numbers(
        &mut self,
        tensor: &Tensor,
        numbers: impl Iterator<Item = f32>,
    ) -> Result<bool, GgufError> {
        self.piece.clear();
        self.piece.extend(numbers.flat_map(f32::to_le_bytes));
        self.append_piece(&tensor.name)
    }

    fn append_random(&mut self, tensor: &Tensor, dtype: DType, key: u64) -> Result<bool, GgufError> {
        let pool = &self.pools[&dtype];
        // The writer has counted these bytes before.
        let mut left = tensor.elements() / dtype.block_len() * dtype.block_bytes();
        let units_per_piece = PIECE_BYTES / pool.unit_bytes();
        let piece_bytes = units_per_piece * pool.unit_bytes();
        let mut first = 0;
        while left > 0 {
            self.piece.resize(left.min(piece_bytes), 0);
            self.pools[&dtype].fill(key, first, &mut self.piece, self.threads);
            first += units_per_piece;
            left -= self.piece.len();
            if !self.append_piece(&tensor.name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn append_piece(&mut self, name: &str) -> Result<bool, GgufError> {
        self.data.append(name, &self.piece)?;
        self.progress.written += self.piece.len() as u64;
        Ok((self.should_continue)(self.progress))
    }
}
