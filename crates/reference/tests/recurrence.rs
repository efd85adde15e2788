//! Recurrences against f64, over rows of several sequences and slots.

mod common;

use common::{Case, assert_near, exact, random_values};
use verbatim_backend::{RecurrentSpec, StateLayers};
use verbatim_graph::random::Random;
use verbatim_graph::{DeltaHeads, Op};

const HEADS: DeltaHeads = DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 6, value_dim: 5 };
const CHANNELS: usize = 7;
/// Two sequences, one row of each in turn: the first moves between slots 0 and 1, the second stays in slot 2.
const READ: [i32; 6] = [-1, -1, 0, 2, 1, 2];
const WRITE: [i32; 6] = [0, 2, 1, 2, 0, 2];
const ROWS: usize = 6;

fn layers(kernel: usize) -> StateLayers {
    let spec = RecurrentSpec { kernel, channels: CHANNELS, heads: HEADS };
    StateLayers { kv: Vec::new(), recurrent: vec![spec], slots: 3 }
}

/// The rows of a sequence.
fn rows_of(sequence: usize) -> impl Iterator<Item = usize> {
    (sequence..ROWS).step_by(2)
}

#[test]
fn a_short_convolution_reads_the_last_inputs_of_its_sequence() {
    let mut random = Random(21);
    for kernel in [1, 2, 3, 4] {
        let (x, weight) =
            (random_values(&mut random, ROWS * CHANNELS), random_values(&mut random, CHANNELS * kernel));
        let mut case = Case::new(ROWS);
        let operands = [
            case.floats(&x),
            case.vector(&weight),
            case.layer(&layers(kernel)),
            case.integers(&READ),
            case.integers(&WRITE),
        ];
        let out = case.run(Op::ShortConv { kernel }, &operands);
        for sequence in 0..2 {
            let rows: Vec<usize> = rows_of(sequence).collect();
            for (t, &row) in rows.iter().enumerate() {
                let channel = |channel: usize| {
                    // Input t - j has the weight j before the last; before the first there are zeros.
                    let tap = |j: usize| {
                        let input = f64::from(x[rows[t - j] * CHANNELS + channel]);
                        input * f64::from(weight[channel * kernel + kernel - 1 - j])
                    };
                    let sum: f64 = (0..kernel.min(t + 1)).map(tap).sum();
                    sum / (1.0 + (-sum).exp())
                };
                assert_near(&out[row], &(0..CHANNELS).map(channel).collect::<Vec<_>>(), 1e-6);
            }
        }
    }
}

/// The definition: each head's S, key_dim by value_dim, advanced by one row.
fn advance(states: &mut [f64], qkv: &[f64], [alpha, beta, bias, rate]: [&[f64]; 4]) -> Vec<f64> {
    let DeltaHeads { key_heads, value_heads, key_dim, value_dim } = HEADS;
    let unit = |x: &[f64]| {
        let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        x.iter().map(|x| x / length).collect::<Vec<_>>()
    };
    let mut out = Vec::new();
    for head in 0..value_heads {
        let at = head % key_heads * key_dim;
        let (q, k) = (unit(&qkv[at..][..key_dim]), unit(&qkv[key_heads * key_dim + at..][..key_dim]));
        let v = &qkv[2 * key_heads * key_dim + head * value_dim..][..value_dim];
        let s = &mut states[head * key_dim * value_dim..][..key_dim * value_dim];
        let decay = (rate[head] * (1.0 + (alpha[head] + bias[head]).exp()).ln()).exp();
        s.iter_mut().for_each(|s| *s *= decay);
        for c in 0..value_dim {
            let held: f64 = (0..key_dim).map(|i| k[i] * s[i * value_dim + c]).sum();
            let change = (v[c] - held) / (1.0 + (-beta[head]).exp());
            (0..key_dim).for_each(|i| s[i * value_dim + c] += k[i] * change);
            let sum: f64 = (0..key_dim).map(|i| q[i] * s[i * value_dim + c]).sum();
            out.push(sum / (key_dim as f64).sqrt());
        }
    }
    out
}

#[test]
fn the_gated_delta_rule_agrees_with_the_definition() {
    let mut random = Random(22);
    let (columns, gates) = (HEADS.columns().expect("small"), HEADS.value_heads);
    let qkv = random_values(&mut random, ROWS * columns);
    let [alpha, beta] = [0, 1].map(|_| random_values(&mut random, ROWS * gates));
    let (bias, rate) = (random_values(&mut random, gates), [-0.1, -0.5, -1.0, -4.0]);
    let mut case = Case::new(ROWS);
    let operands = [
        case.floats(&qkv),
        case.floats(&alpha),
        case.floats(&beta),
        case.vector(&bias),
        case.vector(&rate),
        case.layer(&layers(4)),
        case.integers(&READ),
        case.integers(&WRITE),
    ];
    let out = case.run(Op::GatedDelta(HEADS), &operands);
    for sequence in 0..2 {
        let mut states = vec![0.0; HEADS.value_heads * HEADS.key_dim * HEADS.value_dim];
        for row in rows_of(sequence) {
            let gate = |x: &[f32]| exact(&x[row * gates..][..gates]);
            let row_gates: [&[f64]; 4] = [&gate(&alpha), &gate(&beta), &exact(&bias), &exact(&rate)];
            let wanted = advance(&mut states, &exact(&qkv[row * columns..][..columns]), row_gates);
            assert_near(&out[row], &wanted, 1e-6);
        }
    }
}

#[test]
fn extreme_gates_give_finite_values() {
    let columns = HEADS.columns().expect("small");
    let mut case = Case::new(1);
    let operands = [
        case.floats(&vec![0.0; columns]),
        case.floats(&[1e30, -1e30, 100.0, -100.0]),
        case.floats(&[1e30, -1e30, 100.0, -100.0]),
        case.vector(&[0.0; 4]),
        case.vector(&[-1.0; 4]),
        case.layer(&layers(4)),
        case.integers(&[-1]),
        case.integers(&[0]),
    ];
    assert!(case.run(Op::GatedDelta(HEADS), &operands)[0].iter().all(|&x| x == 0.0));
}
