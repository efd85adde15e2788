//! Rotary position embeddings (arXiv 2104.09864): the angles of a row, and the rotation of heads.

use verbatim_graph::{RopeLayout, RopeScaling, RopeTable};

/// The angle per position of each rotated pair, and the factor of cosines and sines.
///
/// Computed once when a program is compiled: one frequency per pair, in f32 as the models were trained with.
pub(crate) fn frequencies(table: &RopeTable, freq_factors: Option<&[f32]>) -> (Vec<f32>, f32) {
    let pairs = table.rotary_dim / 2;
    let base = f64::from(table.base.0);
    let plain = |i: usize| libm::pow(base, -((2 * i) as f64) / table.rotary_dim as f64);
    let (scaled, mscale): (Vec<f64>, f32) = match table.scaling {
        RopeScaling::Linear { factor } => ((0..pairs).map(|i| plain(i) / f64::from(factor.0)).collect(), 1.0),
        RopeScaling::Long { attention_factor } => ((0..pairs).map(plain).collect(), attention_factor.0),
        RopeScaling::Yarn { factor, original_context, attention_factor, beta_fast, beta_slow, truncate } => {
            // The pair that turns `rotations` times over the original context (YaRN, arXiv 2309.00071, section 3.2).
            let pair_at = |rotations: f32| {
                let context = original_context as f64 / (f64::from(rotations) * std::f64::consts::TAU);
                table.rotary_dim as f64 * libm::log(context) / (2.0 * libm::log(base))
            };
            let (low, high) = (pair_at(beta_fast.0), pair_at(beta_slow.0));
            let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.max(0.0), high.min(table.rotary_dim as f64 - 1.0));
            let blend = |i: usize| {
                let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                plain(i) * (1.0 - ramp) + plain(i) / f64::from(factor.0) * ramp
            };
            ((0..pairs).map(blend).collect(), attention_factor.0)
        }
    };
    let divided = |(i, f): (usize, f64)| (f / freq_factors.map_or(1.0, |d| f64::from(d[i]))) as f32;
    (scaled.into_iter().enumerate().map(divided).collect(), mscale)
}

/// Cosines, then sines, of one position's angles.
pub(crate) fn angles(position: i32, frequencies: &[f32], mscale: f32, out: &mut [f32]) {
    let (cosines, sines) = out.split_at_mut(frequencies.len());
    for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(frequencies) {
        // The angle is rounded to f32, as in other implementations; sine and cosine are computed in f64.
        let (s, c) = libm::sincos(f64::from(position as f32 * frequency));
        *cosine = c as f32 * mscale;
        *sine = s as f32 * mscale;
    }
}

/// Rotates the first elements of every head of a row by the angles of `table`.
pub(crate) fn rotate(layout: RopeLayout, head_dim: usize, x: &[f32], table: &[f32], out: &mut [f32]) {
    let (cosines, sines) = table.split_at(table.len() / 2);
    for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
        match layout {
            RopeLayout::Interleaved => rotate_interleaved(x, cosines, sines, out),
            RopeLayout::NeoX => rotate_halves(x, cosines, sines, out),
        }
        out[table.len()..].copy_from_slice(&x[table.len()..]);
    }
}

fn rotate_interleaved(x: &[f32], cosines: &[f32], sines: &[f32], out: &mut [f32]) {
    let pairs = x.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0);
    for (([a, b], out), (cosine, sine)) in pairs.zip(cosines.iter().zip(sines)) {
        *out = [a * cosine - b * sine, a * sine + b * cosine];
    }
}

fn rotate_halves(x: &[f32], cosines: &[f32], sines: &[f32], out: &mut [f32]) {
    let half = cosines.len();
    let (first, second) = (&x[..half], &x[half..2 * half]);
    let (out_first, out_second) = out[..2 * half].split_at_mut(half);
    for i in 0..half {
        out_first[i] = first[i] * cosines[i] - second[i] * sines[i];
        out_second[i] = first[i] * sines[i] + second[i] * cosines[i];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_graph::F32Bits;

    fn plain(rotary_dim: usize) -> RopeTable {
        RopeTable { rotary_dim, base: F32Bits(1e4), scaling: RopeScaling::Linear { factor: F32Bits(1.0) } }
    }

    #[test]
    fn rotation_preserves_lengths_and_unrotated_elements() {
        let (frequencies, mscale) = frequencies(&plain(8), None);
        let mut table = [0.0; 8];
        angles(1000, &frequencies, mscale, &mut table);
        let x: Vec<f32> = (0..24).map(|i| i as f32 - 7.0).collect();
        for layout in [RopeLayout::Interleaved, RopeLayout::NeoX] {
            let mut out = vec![0.0; 24];
            rotate(layout, 12, &x, &table, &mut out);
            for head in 0..2 {
                let square = |v: &[f32]| v[head * 12..head * 12 + 8].iter().map(|x| x * x).sum::<f32>();
                assert!((square(&x) - square(&out)).abs() < 1e-3);
                assert_eq!(out[head * 12 + 8..][..4], x[head * 12 + 8..][..4]);
            }
            // Pair 0 turns by exactly the position, in radians.
            let partner = if layout == RopeLayout::Interleaved { 1 } else { 4 };
            let (s, c) = 1000f64.sin_cos();
            let wanted = f64::from(x[0]) * c - f64::from(x[partner]) * s;
            assert!((f64::from(out[0]) - wanted).abs() < 1e-5);
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let scaling = RopeScaling::Yarn {
            factor: F32Bits(4.0),
            original_context: 4096,
            attention_factor: F32Bits(1.14),
            beta_fast: F32Bits(32.0),
            beta_slow: F32Bits(1.0),
            truncate: true,
        };
        let (yarn, mscale) = frequencies(&RopeTable { scaling, ..plain(128) }, None);
        let (unscaled, _) = frequencies(&plain(128), None);
        assert_eq!(mscale, 1.14);
        assert_eq!(yarn[0], unscaled[0]);
        assert!((yarn[63] * 4.0 / unscaled[63] - 1.0).abs() < 1e-6);
        assert!((1..64).all(|i| yarn[i] < yarn[i - 1] && yarn[i] <= unscaled[i]));
    }

    #[test]
    fn freq_factors_divide_each_frequency() {
        let (divided, _) = frequencies(&plain(4), Some(&[1.0, 8.0]));
        let (unscaled, _) = frequencies(&plain(4), None);
        assert_eq!(divided, [unscaled[0], unscaled[1] / 8.0]);
    }
}
