//! Recurrences, token by token: the short convolution and the gated delta rule.
//!
//! Every function here advances one tile of a state ([`TILE_COLS`] channels, or value columns of one head) by one row. Lanes
//! are independent channels or value columns, and sums run over the inputs of a convolution or the elements of a key in
//! ascending order, so a row's result depends on the rows before it in its sequence and on nothing else.

use crate::recurrent::TILE_COLS;
use verbatim_simd::{Isa, Kernel, LANES, Lanes, Simd, dispatch};

/// Maximum kernel size of a short convolution.
pub(crate) const MAX_KERNEL: usize = 16;
/// Maximum key size.
pub(crate) const MAX_KEY_DIM: usize = 512;
/// Added to the sum of squares when queries and keys are L2-normalised, as in the published models.
const L2_NORM_EPS: f32 = 1e-6;

/// A tile's state before a row.
pub(crate) enum Before<'a> {
    /// There is no row before: all zeros.
    Zeros,
    /// In a different slot.
    At(&'a [f32]),
    /// Where the row writes.
    InPlace,
}

/// The weights of a tile's channels: for each of the `kernel` inputs, oldest first, one element per channel.
pub(crate) struct ConvWeights {
    coefficients: [[f32; TILE_COLS]; MAX_KERNEL],
    kernel: usize,
}

impl ConvWeights {
    /// Transposes the weights of some channels, `kernel` elements each.
    pub(crate) fn new(kernel: usize, weights: &[f32]) -> ConvWeights {
        let mut coefficients = [[0.0; TILE_COLS]; MAX_KERNEL];
        for (channel, weights) in weights.chunks_exact(kernel).enumerate() {
            for (coefficients, weight) in coefficients.iter_mut().zip(weights) {
                coefficients[channel] = *weight;
            }
        }
        ConvWeights { coefficients, kernel }
    }
}

/// `out = silu(Σ weight · input)` for a tile of channels, the row's own inputs `x` last. The history is shifted by one input.
pub(crate) fn short_conv(
    isa: Isa,
    weights: &ConvWeights,
    before: Before<'_>,
    history: &mut [f32],
    x: &[f32],
    out: &mut [f32],
) {
    match before {
        Before::Zeros => history.fill(0.0),
        Before::At(other) => history.copy_from_slice(other),
        Before::InPlace => {}
    }
    dispatch(isa, ShortConv { weights, history, x, out });
}

struct ShortConv<'a> {
    weights: &'a ConvWeights,
    history: &'a mut [f32],
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for ShortConv<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let rows = self.weights.kernel - 1;
        let cols = self.x.len().next_multiple_of(LANES);
        let (history, _) = self.history.as_chunks_mut::<LANES>();
        let vectors = cols / LANES;
        for (n, (x, out)) in self.x.chunks(LANES).zip(self.out.chunks_mut(LANES)).enumerate() {
            let x = l.load_part(x);
            let mut sum = l.splat(0.0);
            for k in 0..rows {
                let weight = l.load(&self.weights.coefficients[k].as_chunks::<LANES>().0[n]);
                sum = l.mul_add(weight, l.load(&history[k * vectors + n]), sum);
            }
            let weight = l.load(&self.weights.coefficients[rows].as_chunks::<LANES>().0[n]);
            sum = l.mul_add(weight, x, sum);
            let e = l.exp(l.sub(l.splat(0.0), sum));
            l.store_part(l.div(sum, l.add(l.splat(1.0), e)), out);
            for k in 1..rows {
                history[(k - 1) * vectors + n] = history[k * vectors + n];
            }
            if rows > 0 {
                l.store(x, &mut history[(rows - 1) * vectors + n]);
            }
        }
    }
}

/// The decay factor of a head's state at a row: `exp(rate · softplus(alpha + bias))`.
pub(crate) fn decay(alpha: f32, bias: f32, rate: f32) -> f32 {
    let x = f64::from(alpha + bias);
    let softplus = if x > 30.0 { x } else { libm::log1p(libm::exp(x)) };
    libm::exp(f64::from(rate) * softplus) as f32
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + libm::exp(-f64::from(x)))) as f32
}

/// `out = x / √(Σ x² + 1e-6) · factor`.
pub(crate) fn l2_normalize(isa: Isa, x: &[f32], factor: f32, out: &mut [f32]) {
    dispatch(isa, L2Normalize { x, factor, out });
}

struct L2Normalize<'a> {
    x: &'a [f32],
    factor: f32,
    out: &'a mut [f32],
}

impl Kernel for L2Normalize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let mut squares = l.splat(0.0);
        for x in self.x.chunks(LANES) {
            let x = l.load_part(x);
            squares = l.mul_add(x, x, squares);
        }
        let scale = l.splat(1.0 / (l.reduce_sum(squares) + L2_NORM_EPS).sqrt());
        for (x, out) in self.x.chunks(LANES).zip(self.out.chunks_mut(LANES)) {
            l.store_part(l.mul(l.mul(l.load_part(x), scale), l.splat(self.factor)), out);
        }
    }
}

/// One row of one head, for a tile of value columns.
pub(crate) struct DeltaRow<'a> {
    /// The query, L2-normalised and divided by √key_dim.
    pub(crate) q: &'a [f32],
    /// The key, L2-normalised.
    pub(crate) k: &'a [f32],
    /// The tile's part of the value; at most [`TILE_COLS`].
    pub(crate) v: &'a [f32],
    /// Factor on the state.
    pub(crate) decay: f32,
    /// The factor of the update, v minus the state's value for k.
    pub(crate) beta: f32,
}

/// `S ← decay · S; S ← S + k (beta (v - kᵀS)); out = qᵀS`, for a tile of the columns of S.
pub(crate) fn gated_delta(
    isa: Isa,
    row: &DeltaRow<'_>,
    before: Before<'_>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let from = match before {
        Before::Zeros => {
            state.fill(0.0);
            None
        }
        Before::At(other) => Some(other),
        Before::InPlace => None,
    };
    match row.v.len().div_ceil(LANES) {
        1 => dispatch(isa, GatedDelta::<1> { row, from, state, out }),
        2 => dispatch(isa, GatedDelta::<2> { row, from, state, out }),
        3 => dispatch(isa, GatedDelta::<3> { row, from, state, out }),
        _ => dispatch(isa, GatedDelta::<4> { row, from, state, out }),
    }
}

struct GatedDelta<'a, const N: usize> {
    row: &'a DeltaRow<'a>,
    from: Option<&'a [f32]>,
    state: &'a mut [f32],
    out: &'a mut [f32],
}

impl<const N: usize> Kernel for GatedDelta<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let DeltaRow { q, k, v, decay, beta } = *self.row;
        let (decay, beta) = (l.splat(decay), l.splat(beta));
        let (state, _) = self.state.as_chunks_mut::<LANES>();
        // kᵀS, with the decayed S.
        let mut held = [l.splat(0.0); N];
        match self.from {
            None => {
                for (k, rows) in k.iter().zip(state.chunks_exact_mut(N)) {
                    let k = l.splat(*k);
                    for (held, row) in held.iter_mut().zip(rows) {
                        let decayed = l.mul(l.load(row), decay);
                        l.store(decayed, row);
                        *held = l.mul_add(k, decayed, *held);
                    }
                }
            }
            Some(from) => {
                let from = from.as_chunks::<LANES>().0.chunks_exact(N);
                for ((k, rows), from) in k.iter().zip(state.chunks_exact_mut(N)).zip(from) {
                    let k = l.splat(*k);
                    for ((held, row), from) in held.iter_mut().zip(rows).zip(from) {
                        let decayed = l.mul(l.load(from), decay);
                        l.store(decayed, row);
                        *held = l.mul_add(k, decayed, *held);
                    }
                }
            }
        }
        let mut change = held;
        for (change, v) in change.iter_mut().zip(v.chunks(LANES)) {
            *change = l.mul(l.sub(l.load_part(v), *change), beta);
        }
        let mut sums = [l.splat(0.0); N];
        for ((k, q), rows) in k.iter().zip(q).zip(state.chunks_exact_mut(N)) {
            let (k, q) = (l.splat(*k), l.splat(*q));
            for n in 0..N {
                let updated = l.mul_add(k, change[n], l.load(&rows[n]));
                l.store(updated, &mut rows[n]);
                sums[n] = l.mul_add(q, updated, sums[n]);
            }
        }
        for (sum, out) in sums.into_iter().zip(self.out.chunks_mut(LANES)) {
            l.store_part(sum, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_graph::random::Random;

    fn random_values(random: &mut Random, count: usize) -> Vec<f32> {
        (0..count).map(|_| random.unit()).collect()
    }

    /// The definition in f64: S is key_dim by value_dim.
    fn exact(state: &mut [f64], row: &DeltaRow<'_>) -> Vec<f64> {
        let cols = row.v.len();
        let wide = f64::from;
        state.iter_mut().for_each(|s| *s *= wide(row.decay));
        let (q, k) = (|i: usize| wide(row.q[i]), |i: usize| wide(row.k[i]));
        for c in 0..cols {
            let held: f64 = (0..row.k.len()).map(|i| k(i) * state[i * cols + c]).sum();
            let change = wide(row.beta) * (wide(row.v[c]) - held);
            (0..row.k.len()).for_each(|i| state[i * cols + c] += k(i) * change);
        }
        (0..cols).map(|c| (0..row.k.len()).map(|i| q(i) * state[i * cols + c]).sum()).collect()
    }

    #[test]
    fn the_delta_rule_agrees_with_f64_and_on_every_instruction_set() {
        let mut random = Random(17);
        for (key_dim, cols) in [(16usize, 16usize), (8, 5), (33, 40), (128, 64), (24, 17)] {
            let len = key_dim * cols.next_multiple_of(LANES);
            let mut reference = vec![0.0; key_dim * cols];
            let mut states: Vec<(Isa, Vec<f32>)> =
                Isa::supported().map(|isa| (isa, vec![9.0; len])).collect();
            for step in 0..20 {
                let (mut q, mut k) = (vec![0.0; key_dim], vec![0.0; key_dim]);
                l2_normalize(Isa::best(), &random_values(&mut random, key_dim), 0.25, &mut q);
                l2_normalize(Isa::best(), &random_values(&mut random, key_dim), 1.0, &mut k);
                let v = random_values(&mut random, cols);
                let (decay, beta) = (decay(random.unit(), 0.1, -0.7), sigmoid(random.unit()));
                let row = DeltaRow { q: &q, k: &k, v: &v, decay, beta };
                let wanted = exact(&mut reference, &row);
                let mut first: Option<Vec<f32>> = None;
                for (isa, state) in &mut states {
                    let mut out = vec![0.0; cols];
                    // Written in place and elsewhere in turn.
                    let copy = state.clone();
                    let before = match step {
                        0 => Before::Zeros,
                        _ if step % 2 == 0 => Before::InPlace,
                        _ => {
                            state.fill(f32::NAN);
                            Before::At(&copy)
                        }
                    };
                    gated_delta(*isa, &row, before, state, &mut out);
                    assert!(out.iter().zip(&wanted).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5));
                    assert_eq!(*first.get_or_insert_with(|| out.clone()), out, "{}", isa.name());
                }
            }
        }
    }

    #[test]
    fn the_convolution_uses_its_last_inputs() {
        let mut random = Random(3);
        for (kernel, channels) in [(4, 64), (4, 40), (2, 7), (1, 16)] {
            let weights = random_values(&mut random, kernel * channels);
            let coefficients = ConvWeights::new(kernel, &weights);
            let inputs: Vec<Vec<f32>> = (0..9).map(|_| random_values(&mut random, channels)).collect();
            for isa in Isa::supported() {
                let mut history = vec![7.0; (kernel - 1) * channels.next_multiple_of(LANES)];
                for (t, x) in inputs.iter().enumerate() {
                    let mut out = vec![0.0; channels];
                    let copy = history.clone();
                    let before = match t {
                        0 => Before::Zeros,
                        _ if t % 2 == 0 => Before::InPlace,
                        _ => Before::At(&copy),
                    };
                    short_conv(isa, &coefficients, before, &mut history, x, &mut out);
                    for (channel, out) in out.iter().enumerate() {
                        let sum: f64 = (0..kernel)
                            .filter(|k| t + k + 1 >= kernel)
                            .map(|k| {
                                f64::from(weights[channel * kernel + k])
                                    * f64::from(inputs[t + k + 1 - kernel][channel])
                            })
                            .sum();
                        let wanted = sum / (1.0 + (-sum).exp());
                        assert!((f64::from(*out) - wanted).abs() < 1e-6, "{} {t} {channel}", isa.name());
                    }
                }
            }
        }
    }

    #[test]
    fn gates_at_their_extremes() {
        assert_eq!((sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY), sigmoid(0.0)), (1.0, 0.0, 0.5));
        assert!(sigmoid(f32::NAN).is_nan() && decay(f32::NAN, 0.0, -1.0).is_nan());
        assert_eq!(decay(f32::NEG_INFINITY, 0.0, -1.0), 1.0);
        assert_eq!(decay(1e30, 0.0, -1.0), 0.0);
        assert!((decay(0.0, 0.0, -1.0) - 0.5).abs() < 1e-7);
    }
}
