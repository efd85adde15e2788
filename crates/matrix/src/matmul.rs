//! The matmul: `output[token][row] = Σ weights[row][column] · input[token][column]`.

use std::marker::PhantomData;
use std::ops::Range;

use crate::activations::activation_row_bytes;
use crate::formats::BlockFormat;
use crate::kernel::{BlockTile, FloatTile, FloatWeights, MAX_TILE_TOKENS, Tile};
use crate::layout::GROUP_ROWS;
use crate::packed::PackedMatrix;
use crate::packed_format::for_format;
use verbatim_simd::{Isa, Kernel, Simd, dispatch};
use verbatim_team::{TaskCounter, Team};

/// Computes the whole matmul with a team of threads.
///
/// `output` has a row of `weights.rows()` elements per token of `input`, with a row stride of `output_stride` elements.
///
/// # Panics
/// If the size of an operand does not match.
pub fn matmul(
    team: &mut Team,
    isa: Isa,
    weights: &PackedMatrix,
    input: Input<'_>,
    output: &mut [f32],
    output_stride: usize,
    epilogue: Epilogue<'_>,
) {
    let output = SharedOutput::new(output, output_stride);
    let groups = weights.row_groups();
    let (threads, max) = (team.threads(), chunk_groups(groups, team.threads()));
    let counter = TaskCounter::new();
    team.run(|_| {
        while let Some(taken) = counter.take_guided(threads, max, groups) {
            // SAFETY: the counter assigns every group to only one thread, and `output` is borrowed mutably.
            unsafe { matmul_groups(isa, weights, input, &output, taken, epilogue) };
        }
    });
}

/// Maximum number of row groups per chunk of work: an eighth of a thread's share, large enough to amortise scheduling, and
/// small enough that the threads finish together.
pub fn chunk_groups(groups: usize, threads: usize) -> usize {
    groups.div_ceil(threads * 8).max(1)
}

/// The activations of a matmul, a row per token.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// For weights that take f32: `cols` elements per token.
    Floats {
        /// All rows.
        values: &'a [f32],
        /// Row stride in elements.
        stride: usize,
        /// Rows.
        tokens: usize,
    },
    /// For weights that take quantised activations: rows written by [`quantize_row`](super::quantize_row).
    Quantized {
        /// All rows.
        bytes: &'a [u8],
        /// Row stride in bytes.
        stride_bytes: usize,
        /// Rows.
        tokens: usize,
        /// Int8 terms of each row; see [`quantize_terms`](super::quantize_terms).
        terms: usize,
    },
}

impl Input<'_> {
    /// Rows.
    pub fn tokens(&self) -> usize {
        match *self {
            Input::Floats { tokens, .. } | Input::Quantized { tokens, .. } => tokens,
        }
    }

    fn terms(&self) -> usize {
        match *self {
            Input::Floats { .. } => 1,
            Input::Quantized { terms, .. } => terms,
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

    /// Panics unless every row has `parts` times the columns of the weights.
    fn check(&self, weights: &PackedMatrix, parts: usize) {
        let cols = weights.cols() * parts;
        let fits = match *self {
            Input::Floats { values, stride, tokens } => {
                !weights.takes_quantized() && holds_rows(values.len(), stride, tokens, cols)
            }
            Input::Quantized { bytes, stride_bytes, tokens, .. } => {
                weights.takes_quantized()
                    && holds_rows(bytes.len(), stride_bytes, tokens, activation_row_bytes(cols))
            }
        };
        assert!(fits, "the input of the matmul with {weights:?} is too small or of the wrong type");
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

/// The output of a matmul: rows of f32 with a stride. It is `Sync`, so that each thread can write some columns of every
/// row.
#[derive(Clone, Copy)]
pub struct SharedOutput<'a> {
    start: *mut f32,
    len: usize,
    stride: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the contract of `matmul_groups` excludes concurrent access to the same elements.
unsafe impl Send for SharedOutput<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedOutput<'_> {}

impl<'a> SharedOutput<'a> {
    /// Rows in a slice.
    pub fn new(values: &'a mut [f32], stride: usize) -> SharedOutput<'a> {
        SharedOutput { start: values.as_mut_ptr(), len: values.len(), stride, _borrow: PhantomData }
    }

    /// Rows behind a pointer.
    ///
    /// # Safety
    /// `start` points to `len` elements that stay valid for writes as long as the value is used, and that other threads access
    /// only as [`matmul_groups`] permits.
    pub unsafe fn from_raw(start: *mut f32, len: usize, stride: usize) -> SharedOutput<'a> {
        SharedOutput { start, len, stride, _borrow: PhantomData }
    }
}

/// Applied to a finished sum before it is stored: first the bias is added, then the residual.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// One element per weight row.
    pub bias: Option<&'a [f32]>,
    /// The residual.
    pub residual: Residual<'a>,
}

/// The residual that is added to the result.
#[derive(Clone, Copy, Default)]
pub enum Residual<'a> {
    /// Nothing.
    #[default]
    None,
    /// The present contents of the output.
    InPlace,
    /// Rows of the output's shape.
    Rows {
        /// All rows.
        values: &'a [f32],
        /// Row stride in elements.
        stride: usize,
    },
}

/// Computes the output columns `16 * groups.start .. 16 * groups.end` for every token: one thread's part of a matmul.
///
/// # Safety
/// During the call, no other thread reads or writes those columns of the output: different threads must compute different
/// groups.
///
/// # Panics
/// If the size of an operand does not match.
pub unsafe fn matmul_groups(
    isa: Isa,
    weights: &PackedMatrix,
    input: Input<'_>,
    output: &SharedOutput<'_>,
    groups: Range<usize>,
    epilogue: Epilogue<'_>,
) {
    let matmul = Matmul { weights, input, output, groups, epilogue, pairs: None };
    matmul.check();
    // SAFETY: the operands have been checked; the caller guarantees exclusive access to the output.
    unsafe { matmul.run_on(isa) };
}

/// The (token, expert) pairs of one expert, where the router has selected `experts_used` experts for every token.
#[derive(Clone, Copy)]
pub struct ExpertPairs<'a> {
    /// `token * experts_used + k`, each once: this expert is the token's choice number `k` (its top-k index).
    pub list: &'a [u32],
    /// Experts per token. An output row has this many parts of `weights.rows()` elements, one for each top-k index.
    pub experts_used: usize,
    /// Whether an input row, too, has one part for each top-k index; otherwise all experts of a token share its input.
    pub input_per_pair: bool,
}

/// [`matmul_groups`] for the tokens that use one expert. The result of a token does not depend on the other tokens.
///
/// # Safety
/// During the call, no other thread reads or writes those columns of the outputs of these pairs.
///
/// # Panics
/// If the size of an operand does not match.
pub unsafe fn matmul_expert_groups(
    isa: Isa,
    weights: &PackedMatrix,
    input: Input<'_>,
    output: &SharedOutput<'_>,
    pairs: ExpertPairs<'_>,
    groups: Range<usize>,
    bias: Option<&[f32]>,
) {
    let epilogue = Epilogue { bias, residual: Residual::None };
    let matmul = Matmul { weights, input, output, groups, epilogue, pairs: Some(pairs) };
    matmul.check();
    // SAFETY: the operands have been checked; the caller guarantees exclusive access to the output.
    unsafe { matmul.run_on(isa) };
}

struct Matmul<'a> {
    weights: &'a PackedMatrix,
    input: Input<'a>,
    output: &'a SharedOutput<'a>,
    groups: Range<usize>,
    epilogue: Epilogue<'a>,
    /// `None` for all tokens of the input.
    pairs: Option<ExpertPairs<'a>>,
}

impl Matmul<'_> {
    fn check(&self) {
        let (rows, tokens) = (self.weights.rows(), self.input.tokens());
        let used = self.pairs.map_or(1, |pairs| pairs.experts_used);
        let terms = self.input.terms();
        assert!(
            terms == 1 || self.pairs.is_none() && self.epilogue.bias.is_none(),
            "several int8 terms cannot be combined with experts or a bias"
        );
        let parts = if self.pairs.is_some_and(|pairs| pairs.input_per_pair) { used } else { terms };
        self.input.check(self.weights, parts);
        assert!(
            holds_rows(self.output.len, self.output.stride, tokens, rows * used),
            "{} elements with stride {} are too few for {tokens} output rows of {used} * {rows}",
            self.output.len,
            self.output.stride,
        );
        if let Some(ExpertPairs { list, .. }) = self.pairs {
            let last = list.iter().max().map_or(0, |&pair| pair as usize / used);
            assert!(list.is_empty() || last < tokens, "token {last} of {tokens}");
        }
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
                "{} elements with stride {stride} are too few for {tokens} residual rows of {rows}",
                values.len(),
            );
        }
    }

    /// # Safety
    /// The operands have been checked, and no other thread accesses this part of the output.
    unsafe fn run_on(&self, isa: Isa) {
        dispatch(isa, LoopNest(self));
    }

    fn tokens(&self) -> usize {
        self.pairs.map_or(self.input.tokens() * self.input.terms(), |pairs| pairs.list.len())
    }

    fn tile(&self, group: usize, token: usize, tokens: usize) -> Tile {
        let first_row = group * GROUP_ROWS;
        let (weights, scales) = self.weights.group_pointers(group);
        let mut tile = Tile {
            weights,
            scales,
            cols: self.weights.cols(),
            tokens,
            inputs: [std::ptr::null(); MAX_TILE_TOKENS],
            outputs: [std::ptr::null_mut(); MAX_TILE_TOKENS],
            rows: GROUP_ROWS.min(self.weights.rows() - first_row),
            bias: self.epilogue.bias.map_or(std::ptr::null(), |bias| bias.as_ptr().wrapping_add(first_row)),
            residuals: [std::ptr::null(); MAX_TILE_TOKENS],
        };
        for column in 0..tokens {
            let Operand { token, input_part, output_part } = self.operand(token + column);
            let input_bytes = token * self.input.stride_bytes() + input_part * self.input_row_bytes();
            let output = token * self.output.stride + output_part * self.weights.rows() + first_row;
            let output = self.output.start.wrapping_add(output);
            tile.inputs[column] = self.input.start().wrapping_add(input_bytes);
            tile.outputs[column] = output;
            tile.residuals[column] = match self.epilogue.residual {
                // The terms after a token's first are added to the output of the first.
                _ if self.pairs.is_none() && input_part > 0 => output.cast_const(),
                Residual::None => std::ptr::null(),
                Residual::InPlace => output.cast_const(),
                Residual::Rows { values, stride } => values.as_ptr().wrapping_add(token * stride + first_row),
            };
        }
        tile
    }

    /// The operand at an index: a token, with an int8 term or a top-k index.
    fn operand(&self, index: usize) -> Operand {
        // Divisions would take much of the time of a short row, and usually there is one part.
        let split = |index: usize, parts: usize| match parts {
            1 => (index, 0),
            _ => (index / parts, index % parts),
        };
        match self.pairs {
            None => {
                let (token, term) = split(index, self.input.terms());
                Operand { token, input_part: term, output_part: 0 }
            }
            Some(ExpertPairs { list, experts_used, input_per_pair }) => {
                let (token, k) = split(list[index] as usize, experts_used);
                Operand { token, input_part: if input_per_pair { k } else { 0 }, output_part: k }
            }
        }
    }

    /// Bytes of one part of an input row.
    fn input_row_bytes(&self) -> usize {
        match self.input {
            Input::Floats { .. } => self.weights.cols() * size_of::<f32>(),
            Input::Quantized { .. } => activation_row_bytes(self.weights.cols()),
        }
    }
}

/// The loop nest: token blocks, then row groups, then tokens. A group's weights stay in L1 for all tokens of a block, and a
/// block's activations stay in L2 for all groups. Constructed only by [`Matmul::run_on`].
struct LoopNest<'a>(&'a Matmul<'a>);

impl Kernel for LoopNest<'_> {
    type Output = ();
    const USES_INT8_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let matmul = self.0;
        let tokens = matmul.tokens();
        let max = if matmul.weights.takes_quantized() { S::TILE_TOKENS } else { float_tile_tokens::<S>() };
        let block = block_tokens(matmul.input_row_bytes(), max);
        for start in (0..tokens).step_by(block) {
            let end = tokens.min(start + block);
            for group in matmul.groups.clone() {
                let mut token = start;
                while token < end {
                    let count = tile_tokens(end - token, max);
                    // SAFETY: the operands of the tile have been checked; the caller guarantees exclusive access to the output.
                    unsafe { run_tile(simd, matmul.weights, &matmul.tile(group, token, count)) };
                    token += count;
                }
            }
        }
    }
}

/// A token, with one int8 term of its input or the top-k index of one of its experts.
struct Operand {
    token: usize,
    /// The part of the input row.
    input_part: usize,
    /// The part of the output row.
    output_part: usize,
}

/// Bytes of activations of a token block: somewhat more than half of a common L2.
const TOKEN_BLOCK_BYTES: usize = 640 << 10;

/// Tokens of a token block: a multiple of the tile, and not much fewer than `MIN_TOKENS`, because the weights are read once per block.
fn block_tokens(row_bytes: usize, tile_tokens: usize) -> usize {
    const MIN_TOKENS: usize = 32;
    let tokens = (TOKEN_BLOCK_BYTES / row_bytes.max(1)).max(MIN_TOKENS);
    tokens - tokens % tile_tokens
}

/// Tokens of the next tile: the remaining tokens are spread evenly over as few tiles as possible.
fn tile_tokens(remaining: usize, max: usize) -> usize {
    remaining.div_ceil(remaining.div_ceil(max))
}

/// Maximum number of tokens of a tile of float weights: the accumulators of all sixteen rows stay in registers.
const fn float_tile_tokens<S: Simd>() -> usize {
    let tokens = S::MATMUL_ACCUMULATORS * S::LANES / GROUP_ROWS;
    match tokens {
        0 => 1,
        1..MAX_TILE_TOKENS => tokens,
        _ => MAX_TILE_TOKENS,
    }
}

/// # Safety
/// See [`Tile`].
unsafe fn run_tile<S: Simd>(simd: S, weights: &PackedMatrix, tile: &Tile) {
    // SAFETY: the caller guarantees that the tile is valid, and the type is that of the weights' format.
    unsafe {
        for_format!(weights.format(), F => run_block_tile::<S, F>(simd, tile), W => run_float_tile::<S, W>(simd, tile));
    }
}

/// Selects the number of tokens, rounded up to the next compiled one; the results of the excess tokens are not stored.
///
/// # Safety
/// See [`Tile`], of weights of the format.
unsafe fn run_block_tile<S: Simd, F: BlockFormat>(simd: S, tile: &Tile) {
    // SAFETY: as for this function.
    unsafe {
        match tile.tokens {
            1 => simd.vectorize(BlockTile::<F, 1>::new(tile)),
            2 if S::TILE_TOKENS > 1 => simd.vectorize(BlockTile::<F, 2>::new(tile)),
            3 if S::TILE_TOKENS > 1 => simd.vectorize(BlockTile::<F, 3>::new(tile)),
            4 if S::TILE_TOKENS > 1 => simd.vectorize(BlockTile::<F, 4>::new(tile)),
            5 | 6 if S::TILE_TOKENS > 4 => simd.vectorize(BlockTile::<F, 6>::new(tile)),
            7 | 8 if S::TILE_TOKENS > 4 => simd.vectorize(BlockTile::<F, 8>::new(tile)),
            tokens => unreachable!("a tile of {tokens} tokens"),
        }
    }
}

/// The same for float weights.
///
/// # Safety
/// See [`Tile`], of weights of the format.
unsafe fn run_float_tile<S: Simd, W: FloatWeights>(simd: S, tile: &Tile) {
    // SAFETY: as for this function.
    unsafe {
        match tile.tokens {
            1 => simd.vectorize(FloatTile::<W, 1>::new(tile)),
            2 if float_tile_tokens::<S>() > 1 => simd.vectorize(FloatTile::<W, 2>::new(tile)),
            3 | 4 if float_tile_tokens::<S>() > 1 => simd.vectorize(FloatTile::<W, 4>::new(tile)),
            5 | 6 if float_tile_tokens::<S>() > 4 => simd.vectorize(FloatTile::<W, 6>::new(tile)),
            7 | 8 if float_tile_tokens::<S>() > 6 => simd.vectorize(FloatTile::<W, 8>::new(tile)),
            tokens => unreachable!("a tile of {tokens} tokens"),
        }
    }
}
