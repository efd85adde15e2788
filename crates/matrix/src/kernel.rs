//! The matmul tile: sixteen weight rows by up to eight tokens, over all columns. All sums over columns are here, so batch
//! invariance depends on this file alone.
//!
//! Written once over [`Simd`] and compiled per instruction set, weight format and number of tokens. Each SIMD lane
//! accumulates one output element, so its order of operations depends neither on the number of lanes nor on the other tokens.

use std::marker::PhantomData;

use crate::formats::{BlockFormat, Coefficients};
use crate::layout::{BLOCK_COLS, GROUP_ROWS};
use verbatim_simd::{Kernel, Q8Block, Simd};

/// One tile's operands.
///
/// Pointers, because the threads of a matmul write to interleaved parts of one output, which is not expressible as slices.
/// The creator of a `Tile` guarantees that they are valid as described while it runs, and that no other thread accesses the
/// outputs.
pub(super) struct Tile {
    /// The row group's weights: the quants of a block format, or float weights.
    pub weights: *const u8,
    /// The group's scales, of a block format.
    pub scales: *const u8,
    pub cols: usize,
    /// Tokens to compute, from 1 to the tile's `M`.
    pub tokens: usize,
    /// Each token's row: `cols` f32, or `cols / 32` activation blocks. The rows need not be contiguous, because the tokens of
    /// one expert are scattered over the batch.
    pub inputs: [*const u8; MAX_TILE_TOKENS],
    /// For each token, the output of the tile's first weight row.
    pub outputs: [*mut f32; MAX_TILE_TOKENS],
    /// Rows of the group that exist, from 1 to 16.
    pub rows: usize,
    /// `rows` elements, or null.
    pub bias: *const f32,
    /// For each token, the residual of the tile's first weight row, or null. May be `outputs`.
    pub residuals: [*const f32; MAX_TILE_TOKENS],
}

/// Maximum number of tokens of a tile on any instruction set.
pub(super) const MAX_TILE_TOKENS: usize = 8;

/// Float weights (F32, F16, BF16), column by column, sixteen rows to a column.
pub(super) trait FloatWeights: 'static {
    /// Bytes of an element.
    const BYTES: usize;
    /// # Safety
    /// `weights` points to `S::LANES` elements.
    unsafe fn load<S: Simd>(simd: S, weights: *const u8) -> S::Floats;
}

/// [`block_tile`], of weights of format `F`, with registers for `M` tokens.
pub(super) struct BlockTile<'a, F, const M: usize>(&'a Tile, PhantomData<F>);

impl<F: BlockFormat, const M: usize> BlockTile<'_, F, M> {
    /// # Safety
    /// See [`Tile`], of weights of the format.
    pub(super) unsafe fn new(tile: &Tile) -> BlockTile<'_, F, M> {
        BlockTile(tile, PhantomData)
    }
}

impl<F: BlockFormat, const M: usize> Kernel for BlockTile<'_, F, M> {
    type Output = ();
    const USES_INT8_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // SAFETY: as `new` requires.
        unsafe { block_tile::<S, F, M>(simd, self.0) }
    }
}

/// [`float_tile`], of weights of format `W`, with registers for `M` tokens.
pub(super) struct FloatTile<'a, W, const M: usize>(&'a Tile, PhantomData<W>);

impl<W: FloatWeights, const M: usize> FloatTile<'_, W, M> {
    /// # Safety
    /// See [`Tile`], of weights of the format.
    pub(super) unsafe fn new(tile: &Tile) -> FloatTile<'_, W, M> {
        FloatTile(tile, PhantomData)
    }
}

impl<W: FloatWeights, const M: usize> Kernel for FloatTile<'_, W, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // SAFETY: as `new` requires.
        unsafe { float_tile::<S, W, M>(simd, self.0) }
    }
}

/// A tile of a block format, with quantised activations.
///
/// The order, for every output element: blocks of 32 columns ascend; in each, the int8 dot product of quants and activations is
/// an exact integer, [`block_sum`] scales it, and one fused multiply-add adds it to the total.
///
/// # Safety
/// See [`Tile`].
#[inline(always)]
unsafe fn block_tile<S: Simd, F: BlockFormat, const M: usize>(simd: S, tile: &Tile) {
    let file_blocks = tile.cols / (BLOCK_COLS * F::BLOCKS);
    let inputs = token_inputs::<M>(tile);
    prefetch_outputs::<S, M>(simd, tile);
    let (mut quants, mut scales, mut at_block) = (tile.weights, tile.scales, 0);
    // SAFETY: the strides stay within the operands, which the caller guarantees to be valid.
    unsafe {
        let mut totals = S::x16(|_| [simd.splat(0.0); M]);
        for _ in 0..file_blocks {
            prefetch(simd, scales, F::SCALE_BYTES);
            for sub in 0..F::BLOCKS {
                prefetch(simd, quants, F::QUANT_BYTES);
                // All lanes of a block before the next, so that weights are read sequentially.
                for (totals, lane) in totals.as_mut().iter_mut().zip((0..tile.rows).step_by(S::LANES)) {
                    let weights = F::quants(simd, quants, lane);
                    let coefficients = F::coefficients(simd, scales, lane, sub);
                    for (total, input) in totals.iter_mut().zip(inputs) {
                        let input = input.add(at_block);
                        let sum = block_sum::<S, F>(simd, weights, &coefficients, input);
                        let scale = simd.splat(read_f32(input, SCALE_OFFSET));
                        *total = simd.mul_add(sum, scale, *total);
                    }
                }
                quants = quants.add(F::QUANT_BYTES);
                at_block += size_of::<Q8Block>();
            }
            scales = scales.add(F::SCALE_BYTES);
        }
        finish::<S, M>(simd, tile, totals);
    }
}

/// The prefetch distance, in bytes of weights.
const PREFETCH_BYTES: usize = 4096;

/// Prefetches the weights of a later block. The hardware prefetcher stops at page boundaries.
#[inline(always)]
fn prefetch<S: Simd>(simd: S, weights: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        simd.prefetch(weights.wrapping_add(PREFETCH_BYTES + line));
    }
}

/// Prefetches the output cache lines. Stores retire in order, so a store that waits for its line would delay the stores of
/// the next tile: a tenth of the time with short rows.
#[inline(always)]
fn prefetch_outputs<S: Simd, const M: usize>(simd: S, tile: &Tile) {
    for output in &tile.outputs[..M] {
        simd.prefetch(output.cast());
    }
}

const SCALE_OFFSET: usize = std::mem::offset_of!(Q8Block, scale);
const SUM_OFFSET: usize = std::mem::offset_of!(Q8Block, sum);
const HALF_SUMS_OFFSET: usize = std::mem::offset_of!(Q8Block, half_sums);

/// The dot product of 32 weights and 32 activations, without the activations' scale.
///
/// # Safety
/// `input` points to an [`Q8Block`].
#[inline(always)]
unsafe fn block_sum<S: Simd, F: BlockFormat>(
    simd: S,
    weights: [S::Bytes; 8],
    coefficients: &Coefficients<S>,
    input: *const u8,
) -> S::Floats {
    let [d, m] = [&coefficients.d, &coefficients.m];
    // SAFETY: the offsets stay within the block.
    unsafe {
        if !F::SCALE_PER_16 {
            let sum = read_f32(input, SUM_OFFSET);
            let dot = simd.mul(d[0], simd.dot(weights, F::QUANT_MAX, F::OFFSET, input, sum));
            return if F::MINS { simd.neg_mul_add(m[0], simd.splat(sum), dot) } else { dot };
        }
        let sums = [read_f32(input, HALF_SUMS_OFFSET), read_f32(input, HALF_SUMS_OFFSET + 4)];
        let [w0, w1, w2, w3, w4, w5, w6, w7] = weights;
        let first = simd.dot([w0, w1, w2, w3], F::QUANT_MAX, F::OFFSET, input, sums[0]);
        let second = simd.dot([w4, w5, w6, w7], F::QUANT_MAX, F::OFFSET, input.add(16), sums[1]);
        let dot = simd.mul_add(d[1], second, simd.mul(d[0], first));
        if !F::MINS {
            return dot;
        }
        let dot = simd.neg_mul_add(m[0], simd.splat(sums[0]), dot);
        simd.neg_mul_add(m[1], simd.splat(sums[1]), dot)
    }
}

#[inline(always)]
unsafe fn read_f32(block: *const u8, at: usize) -> f32 {
    // SAFETY: the caller guarantees four readable bytes at `at`.
    unsafe { block.add(at).cast::<f32>().read_unaligned() }
}

/// A tile of float weights, with f32 activations.
///
/// The order, for every output element: columns ascend in runs of 32 (the last may be shorter); in each run the even columns
/// and the odd columns are two chains of fused multiply-adds that start at zero, and their sum is added to the total. Short
/// chains keep the rounding error of long rows small.
///
/// # Safety
/// See [`Tile`].
#[inline(always)]
unsafe fn float_tile<S: Simd, W: FloatWeights, const M: usize>(simd: S, tile: &Tile) {
    let inputs = token_inputs::<M>(tile);
    prefetch_outputs::<S, M>(simd, tile);
    let weights_stride = GROUP_ROWS * W::BYTES;
    // SAFETY: the strides stay within the operands, which the caller guarantees to be valid.
    unsafe {
        let zeros = S::x16(|_| [simd.splat(0.0); M]);
        let mut totals = zeros;
        for start in (0..tile.cols).step_by(BLOCK_COLS) {
            let end = tile.cols.min(start + BLOCK_COLS);
            prefetch(simd, tile.weights.add(start * weights_stride), BLOCK_COLS * weights_stride);
            let [mut even, mut odd] = [zeros; 2];
            let multiply = |column: usize, chains: &mut S::X16<[S::Floats; M]>| {
                let weights = tile.weights.add(column * weights_stride);
                multiply_column::<S, W, M>(simd, weights, &inputs, column, chains);
            };
            // Interleaved if both fit in registers: with few accumulators a single chain is bound by FMA latency.
            if 2 * M <= S::MATMUL_ACCUMULATORS / even.as_ref().len() {
                for column in (start..end).step_by(2) {
                    multiply(column, &mut even);
                    if column + 1 < end {
                        multiply(column + 1, &mut odd);
                    }
                }
            } else {
                (start..end).step_by(2).for_each(|column| multiply(column, &mut even));
                (start + 1..end).step_by(2).for_each(|column| multiply(column, &mut odd));
            }
            for (totals, (even, odd)) in
                totals.as_mut().iter_mut().zip(even.as_ref().iter().zip(odd.as_ref()))
            {
                for m in 0..M {
                    totals[m] = simd.add(totals[m], simd.add(even[m], odd[m]));
                }
            }
        }
        finish::<S, M>(simd, tile, totals);
    }
}

/// Adds one column of a row group to the chains of all its lanes, so that an input is read once for all lanes.
#[inline(always)]
unsafe fn multiply_column<S: Simd, W: FloatWeights, const M: usize>(
    simd: S,
    weights: *const u8,
    inputs: &[*const u8; M],
    column: usize,
    chains: &mut S::X16<[S::Floats; M]>,
) {
    // SAFETY: the caller guarantees the column of weights and of each input.
    unsafe {
        let mut of_lanes = S::x16(|_| simd.splat(0.0));
        for (lane, loaded) in of_lanes.as_mut().iter_mut().enumerate() {
            *loaded = W::load(simd, weights.add(lane * S::LANES * W::BYTES));
        }
        for m in 0..M {
            let input = simd.splat(inputs[m].add(column * 4).cast::<f32>().read_unaligned());
            for (chains, &weights) in chains.as_mut().iter_mut().zip(of_lanes.as_ref()) {
                chains[m] = simd.mul_add(weights, input, chains[m]);
            }
        }
    }
}

/// Each token's input; entries beyond the last token repeat it and are not stored.
#[inline(always)]
fn token_inputs<const M: usize>(tile: &Tile) -> [*const u8; M] {
    std::array::from_fn(|m| tile.inputs[m.min(tile.tokens - 1)])
}

/// Adds bias and residual, in this order, and stores. Takes the totals by value: they are indexed dynamically here, and without
/// the copy the loops before would have to keep them in memory.
///
/// # Safety
/// See [`Tile`].
#[inline(always)]
unsafe fn finish<S: Simd, const M: usize>(simd: S, tile: &Tile, totals: S::X16<[S::Floats; M]>) {
    for (totals, lane) in totals.as_ref().iter().zip((0..tile.rows).step_by(S::LANES)) {
        for (token, &total) in totals.iter().enumerate().take(tile.tokens) {
            // SAFETY: `lane` is below `rows` and `token` below `tokens`, so the pointers stay within the
            // operands.
            unsafe {
                let output = tile.outputs[token].add(lane);
                let residual = tile.residuals[token].wrapping_add(lane);
                let bias = tile.bias.wrapping_add(lane);
                if tile.rows - lane >= S::LANES {
                    let mut value = total;
                    if !tile.bias.is_null() {
                        value = simd.add(value, simd.load_f32(bias.cast()));
                    }
                    if !tile.residuals[token].is_null() {
                        value = simd.add(value, simd.load_f32(residual.cast()));
                    }
                    simd.store(output, value);
                } else {
                    let mut values = [0.0; GROUP_ROWS];
                    simd.store(values.as_mut_ptr(), total);
                    for (row, mut value) in values.into_iter().enumerate().take(tile.rows - lane) {
                        if !tile.bias.is_null() {
                            value += bias.add(row).read();
                        }
                        if !tile.residuals[token].is_null() {
                            value += residual.add(row).read();
                        }
                        output.add(row).write(value);
                    }
                }
            }
        }
    }
}

/// F32 weights.
pub(super) struct F32;
impl FloatWeights for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, weights: *const u8) -> S::Floats {
        // SAFETY: as the trait requires.
        unsafe { simd.load_f32(weights) }
    }
}

/// F16 weights.
pub(super) struct F16;
impl FloatWeights for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, weights: *const u8) -> S::Floats {
        // SAFETY: as the trait requires.
        unsafe { simd.load_f16(weights) }
    }
}

/// BF16 weights.
pub(super) struct BF16;
impl FloatWeights for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, weights: *const u8) -> S::Floats {
        // SAFETY: as the trait requires.
        unsafe { simd.load_bf16(weights) }
    }
}
