//! The matrix product: `output[token][row] = Σ weights[row][column] · input[token][column]`.

use std::marker::PhantomData;
use std::ops::Range;

use super::activation_row_bytes;
use super::formats::BlockFormat;
use super::kernel::{DenseWeights, Tile};
use super::layout::GROUP_ROWS;
use super::packed::{PackedMatrix, for_kind};
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512, AvxVnni};
use super::simd::{Scalar, Simd};
use crate::isa::{Isa, Level};
use crate::team::{TaskCounter, Team};

/// Computes the whole product with a team of threads.
///
/// `output` has a row of `weights.rows()` numbers per token of `input`, `output_stride` apart.
///
/// # Panics
/// If an operand's size does not fit the product.
pub fn matmul(
    team: &mut Team,
    isa: Isa,
    weights: &PackedMatrix,
    input: Input<'_>,
    output: &mut [f32],
    output_stride: usize,
    epilogue: Epilogue<'_>,
) {
    let output = OutputRows::new(output, output_stride);
    let groups = weights.row_groups();
    let chunk = chunk_groups(groups, team.threads());
    let counter = TaskCounter::new();
    team.run(|_| {
        while let Some(taken) = counter.take(chunk, groups) {
            // SAFETY: the counter gives every group to one thread only, and `output` is borrowed by this
            // function alone.
            unsafe { matmul_groups(isa, weights, input, &output, taken, epilogue) };
        }
    });
}

/// Row groups for one helping of work: small enough that uneven cores end together, large enough that taking
/// one costs nothing.
pub fn chunk_groups(groups: usize, threads: usize) -> usize {
    groups.div_ceil(threads * 8).max(1)
}

/// The activations of a product, a row per token.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// For weights that take f32: `cols` numbers per token.
    Floats {
        /// All rows.
        values: &'a [f32],
        /// Numbers from one row to the next.
        stride: usize,
        /// Rows.
        tokens: usize,
    },
    /// For weights that take quantised activations: rows made by [`quantize_row`](super::quantize_row).
    Quantized {
        /// All rows.
        bytes: &'a [u8],
        /// Bytes from one row to the next.
        stride_bytes: usize,
        /// Rows.
        tokens: usize,
    },
}

impl Input<'_> {
    /// Rows.
    pub fn tokens(&self) -> usize {
        match *self {
            Input::Floats { tokens, .. } | Input::Quantized { tokens, .. } => tokens,
        }
    }

    fn start(&self) -> *const u8 {
        match self {
            Input::Floats { values, .. } => values.as_ptr().cast(),
            Input::Quantized { bytes, .. } => bytes.as_ptr(),
        }
    }

    fn stride_bytes(&self) -> usize {
        match *self {
            Input::Floats { stride, .. } => stride * size_of::<f32>(),
            Input::Quantized { stride_bytes, .. } => stride_bytes,
        }
    }

    fn check(&self, weights: &PackedMatrix) {
        let cols = weights.cols();
        let fits = match *self {
            Input::Floats { values, stride, tokens } => {
                !weights.takes_quantized() && holds_rows(values.len(), stride, tokens, cols)
            }
            Input::Quantized { bytes, stride_bytes, tokens } => {
                weights.takes_quantized()
                    && holds_rows(bytes.len(), stride_bytes, tokens, activation_row_bytes(cols))
            }
        };
        assert!(fits, "the input of the product with {weights:?} is too small or of the wrong kind");
    }
}

/// Whether `len` elements are enough for `rows` rows of `row_len`, `stride` apart.
fn holds_rows(len: usize, stride: usize, rows: usize, row_len: usize) -> bool {
    rows == 0
        || (stride >= row_len || rows == 1)
            && (rows - 1)
                .checked_mul(stride)
                .and_then(|last| last.checked_add(row_len))
                .is_some_and(|end| end <= len)
}

/// Where products go: rows of f32, `stride` apart. Shareable, so that threads can each write some columns of
/// every row.
#[derive(Clone, Copy)]
pub struct OutputRows<'a> {
    start: *mut f32,
    len: usize,
    stride: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: writing through it is what `matmul_groups` asks its caller to coordinate.
unsafe impl Send for OutputRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for OutputRows<'_> {}

impl<'a> OutputRows<'a> {
    /// Rows in a slice.
    pub fn new(values: &'a mut [f32], stride: usize) -> OutputRows<'a> {
        OutputRows { start: values.as_mut_ptr(), len: values.len(), stride, _borrow: PhantomData }
    }

    /// Rows anywhere.
    ///
    /// # Safety
    /// `start` points to `len` numbers that stay valid for writes as long as the value is used, and that
    /// nothing else accesses but as [`matmul_groups`] allows.
    pub unsafe fn from_raw(start: *mut f32, len: usize, stride: usize) -> OutputRows<'a> {
        OutputRows { start, len, stride, _borrow: PhantomData }
    }
}

/// What is done to a finished sum before it is stored: first the bias is added, then the residual.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// One number per output row.
    pub bias: Option<&'a [f32]>,
    /// What the product is added to.
    pub residual: Residual<'a>,
}

/// What a product is added to.
#[derive(Clone, Copy, Default)]
pub enum Residual<'a> {
    /// Nothing.
    #[default]
    None,
    /// What the output holds.
    InPlace,
    /// Rows like those of the output, `stride` apart.
    Rows {
        /// All rows.
        values: &'a [f32],
        /// Numbers from one row to the next.
        stride: usize,
    },
}

/// Computes the output rows `16 * groups.start .. 16 * groups.end` for every token: one thread's share of a
/// product.
///
/// # Safety
/// While it runs, nothing else reads or writes those columns of the output: shares given to different threads
/// must be of different groups.
///
/// # Panics
/// If an operand's size does not fit the product.
pub unsafe fn matmul_groups(
    isa: Isa,
    weights: &PackedMatrix,
    input: Input<'_>,
    output: &OutputRows<'_>,
    groups: Range<usize>,
    epilogue: Epilogue<'_>,
) {
    let product = Product { weights, input, output, groups, epilogue };
    product.check();
    if product.input.tokens() == 0 {
        return;
    }
    // SAFETY: the operands have been checked; an `Isa` is the proof that the machine has the instruction set;
    // the output is the caller's promise.
    unsafe {
        match isa.level() {
            Level::Scalar => product.run::<Scalar>(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => product.run::<Avx2>(),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => product.run::<AvxVnni>(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => product.run::<Avx512>(),
        }
    }
}

struct Product<'a> {
    weights: &'a PackedMatrix,
    input: Input<'a>,
    output: &'a OutputRows<'a>,
    groups: Range<usize>,
    epilogue: Epilogue<'a>,
}

impl Product<'_> {
    fn check(&self) {
        let (rows, tokens) = (self.weights.rows(), self.input.tokens());
        self.input.check(self.weights);
        assert!(
            holds_rows(self.output.len, self.output.stride, tokens, rows),
            "{} numbers with stride {} do not hold {tokens} output rows of {rows}",
            self.output.len,
            self.output.stride,
        );
        assert!(
            self.groups.end <= self.weights.row_groups(),
            "row groups {:?} of {:?}",
            self.groups,
            self.weights
        );
        if let Some(bias) = self.epilogue.bias {
            assert!(bias.len() == rows, "{} biases for {rows} rows", bias.len());
        }
        if let Residual::Rows { values, stride } = self.epilogue.residual {
            assert!(
                holds_rows(values.len(), stride, tokens, rows),
                "{} numbers with stride {stride} do not hold {tokens} residual rows of {rows}",
                values.len(),
            );
        }
    }

    /// Row groups outside and tokens inside, so that a group's weights stay in the nearest cache while the
    /// tokens pass by; and around both, spans of tokens whose activations stay in the second.
    unsafe fn run<S: Simd>(&self) {
        let tokens = self.input.tokens();
        let span = span_tokens(self.input.stride_bytes(), S::MAX_TOKENS);
        for start in (0..tokens).step_by(span) {
            let end = tokens.min(start + span);
            for group in self.groups.clone() {
                let mut token = start;
                while token < end {
                    let count = tile_tokens(end - token, S::MAX_TOKENS);
                    // SAFETY: the caller vouches for the instruction set and the output.
                    unsafe { run_tile::<S>(self.weights, &self.tile(group, token, count)) };
                    token += count;
                }
            }
        }
    }

    fn tile(&self, group: usize, token: usize, tokens: usize) -> Tile {
        let first_row = group * GROUP_ROWS;
        let (weights, scales) = self.weights.group_pointers(group);
        let output = self.output.start.wrapping_add(token * self.output.stride + first_row);
        let (residual, residual_stride) = match self.epilogue.residual {
            Residual::None => (std::ptr::null(), 0),
            Residual::InPlace => (output.cast_const(), self.output.stride),
            Residual::Rows { values, stride } => {
                (values.as_ptr().wrapping_add(token * stride + first_row), stride)
            }
        };
        Tile {
            weights,
            scales,
            cols: self.weights.cols(),
            tokens,
            input: self.input.start().wrapping_add(token * self.input.stride_bytes()),
            input_stride_bytes: self.input.stride_bytes(),
            output,
            output_stride: self.output.stride,
            rows: GROUP_ROWS.min(self.weights.rows() - first_row),
            bias: self.epilogue.bias.map_or(std::ptr::null(), |bias| bias.as_ptr().wrapping_add(first_row)),
            residual,
            residual_stride,
        }
    }
}

/// Bytes of activations that should be near while the weights go by: a good half of a common second-level
/// cache.
const SPAN_BYTES: usize = 640 << 10;

/// How many tokens a span takes: whole tiles, and enough of them to be worth reading the weights again for.
fn span_tokens(row_bytes: usize, tile_tokens: usize) -> usize {
    const LEAST: usize = 32;
    let tokens = (SPAN_BYTES / row_bytes.max(1)).max(LEAST);
    tokens - tokens % tile_tokens
}

/// How many of the remaining tokens the next tile takes: they are spread evenly over as few tiles as can be.
fn tile_tokens(remaining: usize, most: usize) -> usize {
    remaining.div_ceil(remaining.div_ceil(most))
}

unsafe fn run_tile<S: Simd>(weights: &PackedMatrix, tile: &Tile) {
    // SAFETY: the caller vouches for the tile and the instruction set.
    unsafe {
        for_kind!(weights.kind(), F => run_block_tile::<S, F>(tile), W => run_dense_tile::<S, W>(tile));
    }
}

/// Picks the width; one that is not there is rounded up, and what is computed in excess is not stored.
unsafe fn run_block_tile<S: Simd, F: BlockFormat>(tile: &Tile) {
    // SAFETY: as for `run_tile`.
    unsafe {
        match tile.tokens {
            1 => S::run_block_tile::<F, 1>(tile),
            2 if S::MAX_TOKENS > 1 => S::run_block_tile::<F, 2>(tile),
            3 if S::MAX_TOKENS > 1 => S::run_block_tile::<F, 3>(tile),
            4 if S::MAX_TOKENS > 1 => S::run_block_tile::<F, 4>(tile),
            5 | 6 if S::MAX_TOKENS > 4 => S::run_block_tile::<F, 6>(tile),
            7 | 8 if S::MAX_TOKENS > 4 => S::run_block_tile::<F, 8>(tile),
            tokens => unreachable!("a tile of {tokens} tokens"),
        }
    }
}

/// The same for plain weights.
unsafe fn run_dense_tile<S: Simd, W: DenseWeights>(tile: &Tile) {
    // SAFETY: as for `run_tile`.
    unsafe {
        match tile.tokens {
            1 => S::run_dense_tile::<W, 1>(tile),
            2 if S::MAX_TOKENS > 1 => S::run_dense_tile::<W, 2>(tile),
            3 | 4 if S::MAX_TOKENS > 1 => S::run_dense_tile::<W, 4>(tile),
            5..=8 if S::MAX_TOKENS > 4 => S::run_dense_tile::<W, 8>(tile),
            tokens => unreachable!("a tile of {tokens} tokens"),
        }
    }
}
