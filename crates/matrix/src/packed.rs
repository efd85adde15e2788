//! A weight matrix in the layout that the kernels read.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

use verbatim_backend::{PackError, WeightBytes};
use verbatim_quant::DType;

use crate::formats::{BlockFormat, FileBlocks};
use crate::kernel::FloatWeights;
use crate::layout::{BLOCK_COLS, GROUP_ROWS};
use crate::packed_format::{PackedFormat, for_format};
use verbatim_simd::Scalar;
use verbatim_team::{AlignedBytes, TaskCounter, Team};

/// A matrix of `rows` rows (the columns of the output) and `cols` columns (those of the input), rows interleaved in groups of sixteen (*row groups*).
///
/// Memory use is within 6 % of the file's for common formats, within 12 % for all others (rows are padded to a multiple of 16,
/// and a row group to 64 bytes).
pub struct PackedMatrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    layout: GroupLayout,
    storage: AlignedBytes,
}

/// How a row group of one matrix is laid out: first all quants (or float weights), then all scales.
#[derive(Clone, Copy)]
struct GroupLayout {
    format: PackedFormat,
    scales_offset: usize,
    group_bytes: usize,
}

impl GroupLayout {
    /// `None` if the sizes overflow.
    fn new(format: PackedFormat, cols: usize) -> Option<GroupLayout> {
        let (weights_bytes, scales_bytes) = for_format!(format,
            F => {
                let file_blocks = cols / (BLOCK_COLS * F::BLOCKS);
                let quants = file_blocks.checked_mul(F::BLOCKS * F::QUANT_BYTES)?;
                (quants, file_blocks.checked_mul(F::SCALE_BYTES)?)
            },
            W => (cols.checked_mul(GROUP_ROWS * W::BYTES)?, 0)
        );
        let scales_offset = weights_bytes.checked_next_multiple_of(64)?;
        let group_bytes = scales_offset.checked_add(scales_bytes)?.checked_next_multiple_of(64)?;
        Some(GroupLayout { format, scales_offset, group_bytes })
    }
}

impl PackedMatrix {
    /// Packs `bytes`, the row-major data of a GGUF tensor with `rows` rows of `cols` weights.
    ///
    /// # Errors
    /// If the shape is empty, the number of bytes does not match the shape, or the allocation fails.
    pub fn pack(dtype: DType, rows: usize, cols: usize, bytes: &[u8]) -> Result<PackedMatrix, PackError> {
        PackedMatrix::pack_with(&mut Team::single_threaded(), dtype, rows, cols, &bytes)
    }

    /// [`pack`](Self::pack) with a team of threads. Each reads and packs a part at a time; every byte is read once.
    ///
    /// # Errors
    /// As for `pack`, and if bytes cannot be read.
    pub fn pack_with(
        team: &mut Team,
        dtype: DType,
        rows: usize,
        cols: usize,
        bytes: &dyn WeightBytes,
    ) -> Result<PackedMatrix, PackError> {
        PackedMatrix::pack_part(team, dtype, rows, cols, bytes, 0..bytes.byte_len())
    }

    /// [`pack_with`](Self::pack_with) for a range of the bytes.
    pub(crate) fn pack_part(
        team: &mut Team,
        dtype: DType,
        rows: usize,
        cols: usize,
        bytes: &dyn WeightBytes,
        range: Range<usize>,
    ) -> Result<PackedMatrix, PackError> {
        let format = PackedFormat::from_dtype(dtype).ok_or(PackError::NotWeights(dtype))?;
        Source::new(dtype, rows, cols, bytes, range)?.pack(team, format)
    }

    /// Weight rows: the columns of the output.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Groups of sixteen rows, the unit of work of [`matmul_groups`](super::matmul_groups); the last may be
    /// partly filled.
    pub fn row_groups(&self) -> usize {
        self.rows.div_ceil(GROUP_ROWS)
    }

    /// The weights' format in the file.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Memory used by the packed weights, in bytes.
    pub fn packed_bytes(&self) -> usize {
        self.storage.len()
    }

    /// Whether matmuls take activations quantised by [`quantize_row`](super::quantize_row); if not, they take f32.
    pub fn takes_quantized(&self) -> bool {
        for_format!(self.layout.format, _F => true, _W => false)
    }

    /// Decodes a row, to the same values that `verbatim_quant::dequantize` returns for the row's bytes in the file.
    ///
    /// # Panics
    /// If there is no such row, or `out.len()` is not `cols`.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.rows && out.len() == self.cols,
            "dequantize_row: row {row} into {} elements; the matrix has {} rows of {} columns",
            out.len(),
            self.rows,
            self.cols,
        );
        let (weights, scales) = self.group_pointers(row / GROUP_ROWS);
        let lane = row % GROUP_ROWS;
        // SAFETY: the group is laid out for this format, and `out` has the columns of a row.
        unsafe {
            for_format!(self.layout.format,
                F => decode_blocks::<F>(weights, scales, lane, out),
                W => decode_floats::<W>(weights, lane, out)
            );
        }
    }

    pub(super) fn format(&self) -> PackedFormat {
        self.layout.format
    }

    /// Where the weights and the scales of a row group start.
    pub(super) fn group_pointers(&self, group: usize) -> (*const u8, *const u8) {
        assert!(group < self.row_groups(), "row group {group} of {}", self.row_groups());
        // SAFETY: the storage has `row_groups` groups, and `scales_offset` is within or at the end of one.
        unsafe {
            let start = self.storage.as_ptr().add(group * self.layout.group_bytes);
            (start, start.add(self.layout.scales_offset))
        }
    }
}

impl fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedMatrix({} {}×{} as {:?})", self.dtype, self.rows, self.cols, self.layout.format)
    }
}

/// Bytes of the file that a thread reads and packs at a time: few enough to stay in its cache.
const CHUNK_BYTES: usize = 512 << 10;

/// A matrix as stored in the file, with its size checked.
struct Source<'a> {
    dtype: DType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a dyn WeightBytes,
    range: Range<usize>,
}

impl<'a> Source<'a> {
    fn new(
        dtype: DType,
        rows: usize,
        cols: usize,
        bytes: &'a dyn WeightBytes,
        range: Range<usize>,
    ) -> Result<Source<'a>, PackError> {
        if rows == 0 || cols == 0 {
            return Err(PackError::Empty { rows, cols });
        }
        if !cols.is_multiple_of(dtype.block_len()) {
            return Err(PackError::PartialBlock { dtype, cols, block: dtype.block_len() });
        }
        let row_bytes = dtype.row_bytes(cols).unwrap_or(usize::MAX);
        let expected = rows.saturating_mul(row_bytes);
        if range.len() != expected {
            return Err(PackError::Size { dtype, rows, cols, actual: range.len(), expected });
        }
        Ok(Source { dtype, rows, cols, row_bytes, bytes, range })
    }

    fn pack(&self, team: &mut Team, format: PackedFormat) -> Result<PackedMatrix, PackError> {
        let groups = self.rows.div_ceil(GROUP_ROWS);
        let layout = GroupLayout::new(format, self.cols);
        let total_bytes = layout.and_then(|layout| groups.checked_mul(layout.group_bytes));
        let (Some(layout), Some(total_bytes)) = (layout, total_bytes) else {
            return Err(PackError::OutOfMemory { bytes: usize::MAX });
        };
        let Some(mut storage) = AlignedBytes::zeroed_on_huge_pages(total_bytes) else {
            return Err(PackError::OutOfMemory { bytes: total_bytes });
        };

        let parts = GroupParts::new(storage.bytes_mut(), layout.group_bytes);
        let group_bytes = self.row_bytes * GROUP_ROWS;
        let chunk = (CHUNK_BYTES / group_bytes).min(groups / (2 * team.threads())).max(1);
        let counter = TaskCounter::new();
        let failed = OnceLock::new();
        team.run(|_| {
            let mut read = Vec::new();
            while failed.get().is_none()
                && let Some(taken) = counter.take(chunk, groups)
            {
                let bytes = taken.start * group_bytes..self.range.len().min(taken.end * group_bytes);
                if let Err(error) = self.read(bytes, &mut read) {
                    // The first error is reported.
                    let _ = failed.set(error);
                    return;
                }
                for (group, bytes) in taken.zip(read.chunks(group_bytes)) {
                    // SAFETY: the counter assigns every group to only one thread.
                    let part = unsafe { parts.get(group) };
                    self.pack_group(layout, bytes, part);
                }
            }
        });
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(PackedMatrix { dtype: self.dtype, rows: self.rows, cols: self.cols, layout, storage }),
        }
    }

    /// Reads bytes of the matrix into a buffer that is used again and again.
    fn read(&self, bytes: Range<usize>, into: &mut Vec<u8>) -> Result<(), PackError> {
        let more = bytes.len().saturating_sub(into.len());
        into.try_reserve_exact(more).map_err(|_| PackError::OutOfMemory { bytes: bytes.len() })?;
        into.resize(bytes.len(), 0);
        Ok(self.bytes.read(self.range.start + bytes.start, into)?)
    }

    /// Packs one group, of which `bytes` are the rows in the file's format.
    fn pack_group(&self, layout: GroupLayout, bytes: &[u8], part: &mut [u8]) {
        let (weights, scales) = part.split_at_mut(layout.scales_offset);
        let mut rows = [&bytes[..0]; GROUP_ROWS];
        let mut count = 0;
        for (row, bytes) in rows.iter_mut().zip(bytes.chunks_exact(self.row_bytes)) {
            *row = bytes;
            count += 1;
        }
        let rows = &rows[..count];
        for_format!(layout.format,
            F => pack_blocks::<F>(rows, weights, scales),
            W => match W::BYTES {
                2 => pack_floats::<2>(rows, weights),
                _ => pack_floats::<4>(rows, weights),
            }
        );
    }
}

/// The row groups of a matrix that is being packed, written by different threads.
struct GroupParts<'a> {
    start: *mut u8,
    len: usize,
    group_bytes: usize,
    _storage: std::marker::PhantomData<&'a mut [u8]>,
}

// SAFETY: `get` returns disjoint parts, which its contract guarantees.
unsafe impl Sync for GroupParts<'_> {}

impl<'a> GroupParts<'a> {
    fn new(storage: &'a mut [u8], group_bytes: usize) -> GroupParts<'a> {
        let (start, len) = (storage.as_mut_ptr(), storage.len());
        GroupParts { start, len, group_bytes, _storage: std::marker::PhantomData }
    }

    /// # Safety
    /// Each group is requested at most once.
    #[allow(clippy::mut_from_ref)] // The contract is what makes it exclusive.
    unsafe fn get(&self, group: usize) -> &'a mut [u8] {
        let at = group * self.group_bytes;
        assert!(at + self.group_bytes <= self.len, "a row group beyond the storage");
        // SAFETY: within the storage, and exclusive by contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), self.group_bytes) }
    }
}

/// Packs up to sixteen rows, a file block of all of them at a time.
fn pack_blocks<F: BlockFormat>(rows: &[&[u8]], weights: &mut [u8], scales: &mut [u8]) {
    let file_blocks = rows[0].len() / F::FILE_BYTES;
    let weights = weights.chunks_exact_mut(F::BLOCKS * F::QUANT_BYTES);
    let scales = scales.chunks_exact_mut(F::SCALE_BYTES);
    for ((index, weights), scales) in (0..file_blocks).zip(weights).zip(scales) {
        let blocks = FileBlocks { rows, at: index * F::FILE_BYTES };
        F::write_scales(blocks, scales);
        for (sub, quants) in weights.chunks_exact_mut(F::QUANT_BYTES).enumerate() {
            F::write_quants(blocks, sub, quants);
        }
    }
}

/// Columns of float weights that are transposed together: few enough that the output stays in L1.
const TRANSPOSE_COLS: usize = 16;

/// Packs up to sixteen rows of float weights of `BYTES` bytes.
fn pack_floats<const BYTES: usize>(rows: &[&[u8]], weights: &mut [u8]) {
    let columns = weights.as_chunks_mut::<BYTES>().0.as_chunks_mut::<GROUP_ROWS>().0;
    for (part, columns) in columns.chunks_mut(TRANSPOSE_COLS).enumerate() {
        for (lane, row) in rows.iter().enumerate() {
            let elements = &row.as_chunks::<BYTES>().0[part * TRANSPOSE_COLS..];
            for (column, element) in columns.iter_mut().zip(elements) {
                column[lane] = *element;
            }
        }
    }
}

/// # Safety
/// The pointers are to a row group of format `F` with `out.len()` columns.
unsafe fn decode_blocks<F: BlockFormat>(weights: *const u8, scales: *const u8, lane: usize, out: &mut [f32]) {
    for (index, out) in out.as_chunks_mut::<BLOCK_COLS>().0.iter_mut().enumerate() {
        let (file_block, sub) = (index / F::BLOCKS, index % F::BLOCKS);
        // SAFETY: the block is one of the row group; `Scalar` runs everywhere.
        let (quants, coefficients) = unsafe {
            (
                F::quants(Scalar, weights.add(index * F::QUANT_BYTES), lane),
                F::coefficients(Scalar, scales.add(file_block * F::SCALE_BYTES), lane, sub),
            )
        };
        for (column, (&quant, out)) in quants.as_flattened().iter().zip(out).enumerate() {
            let half = column / (BLOCK_COLS / 2);
            let (d, m) = (coefficients.d[half], coefficients.m[half]);
            let centred = f32::from(i16::from(quant) - i16::from(F::OFFSET));
            *out = if F::MINS { d * centred - m } else { d * centred };
        }
    }
}

/// # Safety
/// `weights` points to a row group of `W` with `out.len()` columns.
unsafe fn decode_floats<W: FloatWeights>(weights: *const u8, lane: usize, out: &mut [f32]) {
    for (column, out) in out.iter_mut().enumerate() {
        // SAFETY: column and lane are of the row group; `Scalar` runs everywhere.
        *out = unsafe { W::load(Scalar, weights.add((column * GROUP_ROWS + lane) * W::BYTES)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::F16_ROW_BYTES;
    use crate::layout::quant_bytes;
    use verbatim_graph::random::Random;
    use verbatim_quant::ALL;

    /// The position of a bit of a column's quant, byte and bit, as documented in `layout`.
    fn bit_position(bits: usize, row: usize, column: usize, bit: usize) -> (usize, usize) {
        let low = match bits {
            3 => 2,
            5 | 6 => 4,
            bits => bits,
        };
        let (width, from, part) = if bit < low { (low, 0, 0) } else { (bits - low, low, quant_bytes(low)) };
        let quad = column / 4;
        let (stored, above) = match width {
            4 => (quad % 4, quad / 4),
            2 => (quad / 4, quad % 4),
            1 => (0, quad),
            _ => (quad, 0),
        };
        (part + 64 * stored + 4 * row + column % 4, above * width + bit - from)
    }

    /// Writes the scales of one row's file block to their positions, one by one.
    fn place_scales<F: BlockFormat>(block: &[u8], lane: usize, scales: &mut [u8]) {
        let (f16_scales, int8_scales) = scales.split_at_mut(F::F16_SCALES * F16_ROW_BYTES);
        let given = F::row_scales(block);
        for (i, scale) in given.f16_scales[..F::F16_SCALES].iter().enumerate() {
            f16_scales[i * F16_ROW_BYTES + 2 * lane..][..2].copy_from_slice(scale);
        }
        for (i, &byte) in given.int8_scales[..F::INT8_SCALES].iter().enumerate() {
            int8_scales[i * GROUP_ROWS + lane] = byte;
        }
    }

    /// Packs one row of a group bit by bit.
    fn place_blocks<F: BlockFormat>(row: &[u8], lane: usize, weights: &mut [u8], scales: &mut [u8]) {
        for (index, block) in row.chunks_exact(F::FILE_BYTES).enumerate() {
            place_scales::<F>(block, lane, &mut scales[index * F::SCALE_BYTES..]);
            for sub in 0..F::BLOCKS {
                let quants = &mut weights[(index * F::BLOCKS + sub) * F::QUANT_BYTES..][..F::QUANT_BYTES];
                for (column, quant) in F::row_quants(block, sub).into_iter().enumerate() {
                    for bit in 0..F::BITS {
                        let (byte, at) = bit_position(F::BITS, lane, column, bit);
                        quants[byte] |= (quant >> bit & 1) << at;
                    }
                }
            }
        }
    }

    /// The same for float weights, element by element.
    fn place_floats(element_bytes: usize, row: &[u8], lane: usize, weights: &mut [u8]) {
        for (column, element) in row.chunks_exact(element_bytes).enumerate() {
            weights[(column * GROUP_ROWS + lane) * element_bytes..][..element_bytes].copy_from_slice(element);
        }
    }

    #[test]
    fn packed_bytes_follow_the_documented_layout() {
        let mut random = Random(5);
        let mut formats = 0;
        for (dtype, format) in
            ALL.into_iter().filter_map(|dtype| Some((dtype, PackedFormat::from_dtype(dtype)?)))
        {
            if !for_format!(format, F => F::QUANT_BYTES == quant_bytes(F::BITS), _W => true) {
                continue;
            }
            formats += 1;
            let cols = if dtype.block_len() == 1 { 37 } else { 3 * dtype.block_len() };
            let row_bytes = dtype.row_bytes(cols).unwrap();
            for rows in [1, 15, 16, 17, 37] {
                let bytes: Vec<u8> = (0..rows * row_bytes).map(|_| random.bits() as u8).collect();
                let mut matrix = PackedMatrix::pack(dtype, rows, cols, &bytes).unwrap();
                let layout = matrix.layout;
                let mut expected = vec![0; matrix.storage.len()];
                for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
                    let group = &mut expected[row / GROUP_ROWS * layout.group_bytes..][..layout.group_bytes];
                    let (weights, scales) = group.split_at_mut(layout.scales_offset);
                    for_format!(format,
                        F => place_blocks::<F>(bytes, row % GROUP_ROWS, weights, scales),
                        W => place_floats(W::BYTES, bytes, row % GROUP_ROWS, weights)
                    );
                }
                assert!(matrix.storage.bytes_mut() == expected, "{rows} rows of {dtype}");
            }
        }
        assert_eq!(formats, 20);
    }

    /// The quants of grids and trits, which have their own layouts, as the kernels read them.
    fn check_quants_and_scales<F: BlockFormat>(matrix: &mut PackedMatrix, bytes: &[u8]) {
        let layout = matrix.layout;
        let row_bytes = bytes.len() / matrix.rows;
        for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
            let (lane, group) = (row % GROUP_ROWS, row / GROUP_ROWS * layout.group_bytes);
            let (weights, scales) =
                matrix.storage.bytes_mut()[group..][..layout.group_bytes].split_at_mut(layout.scales_offset);
            for (index, block) in bytes.chunks_exact(F::FILE_BYTES).enumerate() {
                let scales = &mut scales[index * F::SCALE_BYTES..][..F::SCALE_BYTES];
                let given = scales.to_vec();
                place_scales::<F>(block, lane, scales);
                assert_eq!(given, scales, "scales of row {row}, block {index}");
                for sub in 0..F::BLOCKS {
                    let quants = &weights[(index * F::BLOCKS + sub) * F::QUANT_BYTES..][..F::QUANT_BYTES];
                    // SAFETY: the quants of one block; `Scalar` runs everywhere.
                    let given = unsafe { F::quants(Scalar, quants.as_ptr(), lane) };
                    assert_eq!(given.as_flattened(), F::row_quants(block, sub), "row {row}, {index}, {sub}");
                }
            }
        }
    }

    #[test]
    fn packed_grids_and_trits_decode_to_the_quants_of_the_file() {
        let mut random = Random(6);
        let mut formats = 0;
        for (dtype, format) in
            ALL.into_iter().filter_map(|dtype| Some((dtype, PackedFormat::from_dtype(dtype)?)))
        {
            if for_format!(format, F => F::QUANT_BYTES == quant_bytes(F::BITS), _W => true) {
                continue;
            }
            formats += 1;
            let cols = 3 * dtype.block_len();
            for rows in [1, 15, 16, 17, 37] {
                let bytes = rows * dtype.row_bytes(cols).unwrap();
                let bytes: Vec<u8> = (0..bytes).map(|_| random.bits() as u8).collect();
                let mut matrix = PackedMatrix::pack(dtype, rows, cols, &bytes).unwrap();
                for_format!(format, F => check_quants_and_scales::<F>(&mut matrix, &bytes), _W => unreachable!());
            }
        }
        assert_eq!(formats, 8);
    }

    #[test]
    fn every_byte_is_read_once() {
        let (rows, cols) = (5000, 256);
        let bytes = Recorded {
            len: DType::Q8_0.row_bytes(cols).unwrap() * rows,
            fails_at: usize::MAX,
            ..Recorded::default()
        };
        let mut team = Team::new(2).unwrap();
        PackedMatrix::pack_with(&mut team, DType::Q8_0, rows, cols, &bytes).unwrap();
        let mut reads = bytes.reads.into_inner().unwrap();
        reads.sort_unstable();
        assert!(reads.len() > 2 && reads[0].0 == 0 && reads[reads.len() - 1].1 == bytes.len);
        assert!(reads.windows(2).all(|pair| pair[0].1 == pair[1].0), "{reads:?}");
    }

    #[test]
    fn a_failed_read_is_an_error() {
        let (rows, cols) = (5000, 256);
        let len = DType::Q8_0.row_bytes(cols).unwrap() * rows;
        for (threads, fails_at) in [(1, 0), (2, len / 2), (2, len - 1)] {
            let bytes = Recorded { len, fails_at, ..Recorded::default() };
            let mut team = Team::new(threads).unwrap();
            let error = PackedMatrix::pack_with(&mut team, DType::Q8_0, rows, cols, &bytes).unwrap_err();
            assert_eq!(error.to_string(), "the disk is gone");
        }
    }

    /// Zeros; the ranges that were read, and the position from which on reading fails.
    #[derive(Default)]
    struct Recorded {
        len: usize,
        fails_at: usize,
        reads: std::sync::Mutex<Vec<(usize, usize)>>,
    }

    impl WeightBytes for Recorded {
        fn byte_len(&self) -> usize {
            self.len
        }

        fn read(&self, start: usize, into: &mut [u8]) -> Result<(), verbatim_backend::ReadError> {
            let end = start + into.len();
            if end > self.fails_at {
                return Err("the disk is gone".into());
            }
            into.fill(0);
            self.reads.lock().unwrap().push((start, end));
            Ok(())
        }
    }
}
