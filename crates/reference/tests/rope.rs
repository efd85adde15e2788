//! Angles and rotations against f64.

mod common;

use common::{Case, assert_near, random_values};
use verbatim_graph::random::Random;
use verbatim_graph::{F32Bits, Op, RopeLayout, RopeScaling, RopeTable};

const PLAIN: RopeScaling = RopeScaling::Linear { factor: F32Bits(1.0) };

fn table(rotary_dim: usize, base: f32, scaling: RopeScaling) -> RopeTable {
    RopeTable { rotary_dim, base: F32Bits(base), scaling }
}

/// Cosines, then sines.
fn angles(table: RopeTable, freq_factors: Option<&[f32]>, positions: &[i32]) -> Vec<Vec<f32>> {
    let mut case = Case::new(positions.len());
    let mut operands = vec![case.integers(positions)];
    operands.extend(freq_factors.map(|freq_factors| case.vector(freq_factors)));
    case.run(Op::RopeTable(table), &operands)
}

/// The angle at position 1, which is the frequency where it is below a right angle.
fn frequencies(table: RopeTable, freq_factors: Option<&[f32]>) -> Vec<f64> {
    let row = angles(table, freq_factors, &[1]).remove(0);
    let (cosines, sines) = row.split_at(row.len() / 2);
    sines.iter().zip(cosines).map(|(&s, &c)| f64::from(s).atan2(f64::from(c))).collect()
}

fn assert_close(given: &[f64], wanted: &[f64]) {
    assert_eq!(given.len(), wanted.len());
    assert!(given.iter().zip(wanted).all(|(a, b)| (a - b).abs() <= 1e-6 * b), "{given:?}, not {wanted:?}");
}

#[test]
fn frequencies_fall_geometrically_and_are_divided_by_the_factors() {
    let plain: Vec<f64> = (0..4).map(|i| 10f64.powi(-i)).collect();
    assert_close(&frequencies(table(8, 1e4, PLAIN), None), &plain);
    let halved: Vec<f64> = plain.iter().map(|f| f / 2.0).collect();
    assert_close(&frequencies(table(8, 1e4, RopeScaling::Linear { factor: F32Bits(2.0) }), None), &halved);
    let freq_factors = [1.0, 2.0, 4.0, 8.0];
    let divided: Vec<f64> = plain.iter().zip(freq_factors).map(|(f, d)| f / f64::from(d)).collect();
    assert_close(&frequencies(table(8, 1e4, PLAIN), Some(&freq_factors)), &divided);
    let long = RopeScaling::Long { attention_factor: F32Bits(1.5) };
    assert_close(&frequencies(table(8, 1e4, long), Some(&freq_factors)), &divided);
}

#[test]
fn angles_are_positions_times_frequencies() {
    let positions = [0, 1, 77, 1000, -12];
    let rows = angles(table(4, 1e4, PLAIN), None, &positions);
    for (row, position) in rows.iter().zip(positions.map(f64::from)) {
        // The second frequency, 0.01, is rounded to f32.
        let slow = position * f64::from(0.01f32);
        assert_near(row, &[position.cos(), slow.cos(), position.sin(), slow.sin()], 1e-6);
    }
    let amplified =
        angles(table(4, 1e4, RopeScaling::Long { attention_factor: F32Bits(1.5) }), None, &positions);
    for (amplified, row) in amplified.iter().zip(&rows) {
        assert!(amplified.iter().zip(row).all(|(a, b)| *a == 1.5 * b));
    }
}

#[test]
fn yarn_ramps_between_unchanged_and_interpolated_pairs() {
    for truncate in [false, true] {
        let scaling = RopeScaling::Yarn {
            factor: F32Bits(4.0),
            original_context: 4096,
            attention_factor: F32Bits(1.0),
            beta_fast: F32Bits(32.0),
            beta_slow: F32Bits(1.0),
            truncate,
        };
        let (d, base) = (128.0, 1e4f64);
        // Equation 23 and section 3.2 of arXiv 2309.00071, solved for the pair.
        let pair =
            |rotations: f64| d * (4096.0 / (rotations * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
        let (mut low, mut high) = (pair(32.0), pair(1.0));
        assert!((20.0..21.0).contains(&low) && (45.0..46.0).contains(&high));
        if truncate {
            (low, high) = (20.0, 46.0);
        }
        let wanted: Vec<f64> = (0..64)
            .map(|i| {
                let plain = base.powf(-2.0 * f64::from(i) / d);
                let ramp = ((f64::from(i) - low) / (high - low)).clamp(0.0, 1.0);
                plain * (1.0 - ramp) + plain / 4.0 * ramp
            })
            .collect();
        assert_close(&frequencies(table(128, 1e4, scaling), None), &wanted);
    }
}

#[test]
fn rotated_pairs_change_and_the_rest_does_not() {
    // Heads of five: two pairs, and an element that stays.
    let x = random_values(&mut Random(5), 10);
    let (fast, slow) = (7f64, 7.0 * f64::from(0.01f32));
    for (layout, pairs) in [(RopeLayout::Interleaved, [(0, 1), (2, 3)]), (RopeLayout::NeoX, [(0, 2), (1, 3)])]
    {
        let mut case = Case::new(1);
        let positions = case.integers(&[7]);
        let table = case.apply(Op::RopeTable(table(4, 1e4, PLAIN)), &[positions]);
        let operands = [case.floats(&x), table];
        let out = case.run(Op::Rope { heads: 2, head_dim: 5, layout }, &operands);
        let mut wanted = common::exact(&x);
        for head in [0, 5] {
            for ((a, b), angle) in pairs.into_iter().zip([fast, slow]) {
                let (x, y) = (f64::from(x[head + a]), f64::from(x[head + b]));
                wanted[head + a] = x * angle.cos() - y * angle.sin();
                wanted[head + b] = x * angle.sin() + y * angle.cos();
            }
        }
        assert_near(&out[0], &wanted, 1e-6);
    }
}
