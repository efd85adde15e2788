//! The matrix product: `output[token][row] = Σ weights[row][column] · input[token][column]`.

use std::marker::PhantomData;
use std::ops::Range;

use crate::activations::activation_row_bytes;
use crate::formats::BlockFormat;
use crate::kernel::{BlockTile, FloatTile, FloatWeights, MAX_TILE_TOKENS, Tile};
use crate::kinds::for_kind;
use crate::layout::GROUP_ROWS;
use crate::packed::PackedMatrix;
use verbatim_simd::{Isa, Kernel, Simd, dispatch};
use verbatim_team::{TaskCounter, Team};

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
    let output = SharedOutput::new(output, output_stride);
    let groups = weights.row_groups();
    let (threads, most) = (team.threads(), chunk_groups(groups, team.threads()));
    let counter = TaskCounter::new();
    team.run(|_| {
        while let Some(taken) = counter.take_guided(threads, most, groups) {
            // SAFETY: the counter gives every group to one thread only, and `output` is borrowed by this
            // function alone.
            unsafe { matmul_groups(isa, weights, input, &output, taken, epilogue) };
        }
    });
}

/// The most row groups for one chunk of work: so many that taking one costs nothing, and so few that their weights stay
/// in the second-level cache while spans of tokens go by.
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
        /// Terms of each row, as [`quantize_terms`](super::quantize_terms) makes them.
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

    /// Whether every row holds what the product needs, `parts` times.
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
pub struct SharedOutput<'a> {
    start: *mut f32,
    len: usize,
    stride: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: writing through it is what `matmul_groups` asks its caller to coordinate.
unsafe impl Send for SharedOutput<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedOutput<'_> {}

impl<'a> SharedOutput<'a> {
    /// Rows in a slice.
    pub fn new(values: &'a mut [f32], stride: usize) -> SharedOutput<'a> {
        SharedOutput { start: values.as_mut_ptr(), len: values.len(), stride, _borrow: PhantomData }
    }

    /// Rows anywhere.
    ///
    /// # Safety
    /// `start` points to `len` numbers that stay valid for writes as long as the value is used, and that
    /// nothing else accesses but as [`matmul_groups`] allows.
    pub unsafe fn from_raw(start: *mut f32, len: usize, stride: usize) -> SharedOutput<'a> {
        SharedOutput { start, len, stride, _borrow: PhantomData }
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

/// Computes the output rows `16 * groups.start .. 16 * groups.end` for every token: one thread's part of a
/// product.
///
/// # Safety
/// While it runs, nothing else reads or writes those columns of the output: parts given to different threads
/// must be of different groups.
///
/// # Panics
/// If an operand's size does not fit the product.
pub unsafe fn matmul_groups(
    isa: Isa,
    weights: &PackedMatrix,
    input: Input<'_>,
    output: &SharedOutput<'_>,
    groups: Range<usize>,
    epilogue: Epilogue<'_>,
) {
    let product = Product { weights, input, output, groups, epilogue, choices: None };
    product.check();
    // SAFETY: the operands have been checked; the output is the caller's promise.
    unsafe { product.run_on(isa) };
}

/// The tokens that one expert is to compute, where every token has chosen `used` experts.
#[derive(Clone, Copy)]
pub struct ExpertPairs<'a> {
    /// `token * used + rank`, each once: this expert is the token's choice of that rank.
    pub list: &'a [u32],
    /// Experts that each token has chosen. An output row is this many times the product's rows, one part for each.
    pub used: usize,
    /// An input row, too, has one part for each choice; otherwise all choices share it.
    pub own_input: bool,
}

/// [`matmul_groups`] for the tokens that have chosen one expert. What a token gets does not depend on the others.
///
/// # Safety
/// While it runs, nothing else reads or writes those columns of the outputs of these choices.
///
/// # Panics
/// If an operand's size does not fit the product.
pub unsafe fn matmul_expert_groups(
    isa: Isa,
    weights: &PackedMatrix,
    input: Input<'_>,
    output: &SharedOutput<'_>,
    choices: ExpertPairs<'_>,
    groups: Range<usize>,
    bias: Option<&[f32]>,
) {
    let epilogue = Epilogue { bias, residual: Residual::None };
    let product = Product { weights, input, output, groups, epilogue, choices: Some(choices) };
    product.check();
    // SAFETY: the operands have been checked; the output is the caller's promise.
    unsafe { product.run_on(isa) };
}

struct Product<'a> {
    weights: &'a PackedMatrix,
    input: Input<'a>,
    output: &'a SharedOutput<'a>,
    groups: Range<usize>,
    epilogue: Epilogue<'a>,
    /// `None` for all tokens of the input.
    choices: Option<ExpertPairs<'a>>,
}

impl Product<'_> {
    fn check(&self) {
        let (rows, tokens) = (self.weights.rows(), self.input.tokens());
        let used = self.choices.map_or(1, |choices| choices.used);
        let terms = self.input.terms();
        assert!(
            terms == 1 || self.choices.is_none() && self.epilogue.bias.is_none(),
            "terms go with neither choices nor a bias"
        );
        let parts = if self.choices.is_some_and(|c| c.own_input) { used } else { terms };
        self.input.check(self.weights, parts);
        assert!(
            holds_rows(self.output.len, self.output.stride, tokens, rows * used),
            "{} numbers with stride {} do not hold {tokens} output rows of {used} * {rows}",
            self.output.len,
            self.output.stride,
        );
        if let Some(ExpertPairs { list, used, .. }) = self.choices {
            let most = list.iter().max().map_or(0, |&choice| choice as usize / used);
            assert!(list.is_empty() || most < tokens, "token {most} of {tokens}");
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
                "{} numbers with stride {stride} do not hold {tokens} residual rows of {rows}",
                values.len(),
            );
        }
    }

    /// # Safety
    /// The operands have been checked, and nothing else accesses this product's part of the output.
    unsafe fn run_on(&self, isa: Isa) {
        dispatch(isa, Walk(self));
    }

    fn tokens(&self) -> usize {
        self.choices.map_or(self.input.tokens() * self.input.terms(), |choices| choices.list.len())
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
                // A term after a token's first is added to what the first has left in the output.
                _ if self.choices.is_none() && input_part > 0 => output.cast_const(),
                Residual::None => std::ptr::null(),
                Residual::InPlace => output.cast_const(),
                Residual::Rows { values, stride } => values.as_ptr().wrapping_add(token * stride + first_row),
            };
        }
        tile
    }

    /// Which product of which token comes at an index.
    fn operand(&self, index: usize) -> Operand {
        // Divisions would take a good part of the time of a short row, and mostly there is one part.
        let split = |index: usize, parts: usize| match parts {
            1 => (index, 0),
            _ => (index / parts, index % parts),
        };
        match self.choices {
            None => {
                let (token, term) = split(index, self.input.terms());
                Operand { token, input_part: term, output_part: 0 }
            }
            Some(ExpertPairs { list, used, own_input }) => {
                let (token, rank) = split(list[index] as usize, used);
                Operand { token, input_part: if own_input { rank } else { 0 }, output_part: rank }
            }
        }
    }

    /// Bytes of the input of one product.
    fn input_row_bytes(&self) -> usize {
        match self.input {
            Input::Floats { .. } => self.weights.cols() * size_of::<f32>(),
            Input::Quantized { .. } => activation_row_bytes(self.weights.cols()),
        }
    }
}

/// Row groups outside and tokens inside, so that a group's weights stay in the nearest cache while the tokens pass by; and
/// around both, spans of tokens whose activations stay in the second. Made by [`Product::run_on`] alone.
struct Walk<'a>(&'a Product<'a>);

impl Kernel for Walk<'_> {
    type Output = ();
    const USES_INT8_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let product = self.0;
        let tokens = product.tokens();
        let most = if product.weights.takes_quantized() { S::TILE_TOKENS } else { float_tile_tokens::<S>() };
        let span = span_tokens(product.input_row_bytes(), most);
        for start in (0..tokens).step_by(span) {
            let end = tokens.min(start + span);
            for group in product.groups.clone() {
                let mut token = start;
                while token < end {
                    let count = tile_tokens(end - token, most);
                    // SAFETY: the tile is of operands that have been checked; the output is the caller's promise.
                    unsafe { run_tile(simd, product.weights, &product.tile(group, token, count)) };
                    token += count;
                }
            }
        }
    }
}

/// A product of a token: with one term of its input, or for one of its choices.
struct Operand {
    token: usize,
    /// Which part of the input row is its input.
    input_part: usize,
    /// Which part of the output row is its output.
    output_part: usize,
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

/// The most tokens of a tile of floating-point weights: so many that the sums of all sixteen rows stay in registers.
const fn float_tile_tokens<S: Simd>() -> usize {
    let tokens = S::MATMUL_ACCUMULATORS * S::LANES / GROUP_ROWS;
    match tokens {
        0 => 1,
        1..MAX_TILE_TOKENS => tokens,
        _ => MAX_TILE_TOKENS,
    }
}

/// # Safety
/// As [`Tile`] says.
unsafe fn run_tile<S: Simd>(simd: S, weights: &PackedMatrix, tile: &Tile) {
    // SAFETY: the caller vouches for the tile, and the weights are of their kind.
    unsafe {
        for_kind!(weights.kind(), F => run_block_tile::<S, F>(simd, tile), W => run_float_tile::<S, W>(simd, tile));
    }
}

/// Picks the width; one that is not there is rounded up, and what is computed in excess is not stored.
///
/// # Safety
/// As [`Tile`] says, of weights of the format.
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

/// The same for floating-point weights.
///
/// # Safety
/// As [`Tile`] says, of weights of the format.
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
