//! Each op against its definition in f64, or against values that can be checked by hand.

mod common;

use common::{Case, assert_near, exact, random_values, rounded};
use verbatim_backend::{KvSpec, KvType, StateLayers};
use verbatim_graph::random::Random;
use verbatim_graph::{Activation, F32Bits, Op, Shape};
use verbatim_quant::DType;

#[test]
fn embed_takes_scaled_rows_of_a_table() {
    let table: Vec<f32> = (0..3 * 32).map(|i| i as f32 / 7.0).collect();
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        let mut case = Case::new(2);
        let (weight, ids) = (case.matrix(dtype, 3, &table), case.integers(&[2, 0]));
        let out = case.run(Op::Embed { scale: F32Bits(0.5), has_embeddings: false }, &[weight, ids]);
        let table: Vec<f32> = rounded(dtype, &table).iter().map(|x| 0.5 * x).collect();
        assert_eq!(out, [&table[64..], &table[..32]]);
    }
}

#[test]
fn rms_norm_divides_parts_by_their_root_mean_square() {
    let x = [3.0, 4.0, 0.0, 0.0, -1.0, 1.0, 1.0, 1.0];
    let weight = [1.0, 2.0, 1.0, 1.0, 1.0, 1.0, -1.0, 0.5];
    for groups in [1, 2, 4] {
        let n = 8 / groups;
        let mut case = Case::new(1);
        let operands = [case.floats(&x), case.vector(&weight[..n])];
        let out = case.run(Op::RmsNorm { eps: F32Bits(1e-5), groups }, &operands);
        let part = |part: &[f32]| {
            let mean = part.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
            let rms = (mean + f64::from(1e-5f32)).sqrt();
            part.iter().zip(&weight).map(|(&x, &w)| f64::from(x) / rms * f64::from(w)).collect::<Vec<_>>()
        };
        assert_near(&out[0], &x.chunks(n).flat_map(part).collect::<Vec<_>>(), 1e-6);
    }
}

fn product(x: &[f32], weight: &[f32], row: usize) -> f64 {
    let weight = &weight[row * x.len()..][..x.len()];
    x.iter().zip(weight).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
}

#[test]
fn matmuls_with_bias_and_residual() {
    let mut random = Random(1);
    let (k, n) = (256, 5);
    let (x, weight) = (random_values(&mut random, 3 * k), random_values(&mut random, n * k));
    let (bias, residual) = (random_values(&mut random, n), random_values(&mut random, 3 * n));
    for dtype in [DType::F32, DType::BF16, DType::Q4_0, DType::Q6_K] {
        let decoded = rounded(dtype, &weight);
        for (with_bias, with_residual) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut case = Case::new(3);
            let mut operands = vec![case.floats(&x), case.matrix(dtype, n, &weight)];
            operands.extend(with_bias.then(|| case.vector(&bias)));
            operands.extend(with_residual.then(|| case.floats(&residual)));
            let out = case.run(Op::Linear { bias: with_bias, residual: with_residual }, &operands);
            for (row, x) in x.chunks(k).enumerate() {
                let element = |i: usize| {
                    let bias = if with_bias { f64::from(bias[i]) } else { 0.0 };
                    let residual = if with_residual { f64::from(residual[row * n + i]) } else { 0.0 };
                    product(x, &decoded, i) + bias + residual
                };
                assert_near(&out[row], &(0..n).map(element).collect::<Vec<_>>(), 1e-5);
            }
        }
        let mut case = Case::new(3);
        let operands = [case.floats(&x), case.matrix(dtype, n, &weight)];
        let head = case.run(Op::LmHead, &operands);
        for (row, x) in x.chunks(k).enumerate() {
            assert_near(&head[row], &(0..n).map(|i| product(x, &decoded, i)).collect::<Vec<_>>(), 1e-5);
        }
    }
}

#[test]
fn hadamard_is_sylvesters_matrix_and_its_own_inverse() {
    let mut case = Case::new(1);
    // Heads of six: runs of two.
    let x = case.floats(&[1.0, 2.0, 3.0, 5.0, -1.0, 1.0]);
    let out = case.run(Op::Hadamard { heads: 1, head_dim: 6 }, &[x]);
    let wanted = [3.0, -1.0, 8.0, -2.0, 0.0, -2.0].map(|x: f64| x / 2f64.sqrt());
    assert_near(&out[0], &wanted, 1e-6);

    let mut case = Case::new(1);
    let x = case.floats(&[1.0, 2.0, 4.0, 8.0, 0.0, 0.0, 1.0, 0.0]);
    let out = case.run(Op::Hadamard { heads: 2, head_dim: 4 }, &[x]);
    assert_eq!(out[0], [7.5, -2.5, -4.5, 1.5, 0.5, 0.5, -0.5, -0.5]);

    let elements = random_values(&mut Random(3), 3 * 96);
    let mut case = Case::new(1);
    let x = case.floats(&elements);
    let once = case.apply(Op::Hadamard { heads: 3, head_dim: 96 }, &[x]);
    let twice = case.run(Op::Hadamard { heads: 3, head_dim: 96 }, &[once]);
    assert_near(&twice[0], &exact(&elements), 1e-6);
}

#[test]
fn gated_units_match_the_formulas_of_their_papers() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let gelu =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    let clamped = Activation::ClampedSwiglu { alpha: F32Bits(1.75), limit: F32Bits(3.0) };
    type Unit<'a> = &'a dyn Fn(f64, f64) -> f64;
    let units: [(Activation, Unit<'_>); 4] = [
        (Activation::Silu, &|gate, up| gate * sigmoid(gate) * up),
        (Activation::GeluTanh, &|gate, up| gelu(gate) * up),
        (Activation::Sigmoid, &|gate, up| sigmoid(gate) * up),
        (clamped, &|gate, up| {
            let (gate, up) = (gate.min(3.0), up.clamp(-3.0, 3.0));
            gate * sigmoid(1.75 * gate) * (up + 1.0)
        }),
    ];
    let gate: Vec<f32> = (-40..=40).map(|i| i as f32 / 4.0).collect();
    let up: Vec<f32> = (-40..=40).map(|i| (i * 29 % 81) as f32 / 9.0).collect();
    for (activation, unit) in units {
        let mut case = Case::new(1);
        let operands = [case.floats(&gate), case.floats(&up)];
        let out = case.run(Op::Glu { activation }, &operands);
        let wanted: Vec<f64> =
            gate.iter().zip(&up).map(|(&gate, &up)| unit(f64::from(gate), f64::from(up))).collect();
        assert_near(&out[0], &wanted, 2e-6);
    }
}

#[test]
fn clamp_keeps_a_nan() {
    let clamped = Activation::ClampedSwiglu { alpha: F32Bits(1.75), limit: F32Bits(3.0) };
    let mut case = Case::new(1);
    let operands = [case.floats(&[f32::NAN, 1.0]), case.floats(&[1.0, f32::NAN])];
    assert!(case.run(Op::Glu { activation: clamped }, &operands)[0].iter().all(|x| x.is_nan()));
}

#[test]
fn elementwise_arithmetic() {
    let (a, b) = ([1.5, -2.0, 0.25], [4.0, 3.0, -8.0]);
    let run = |op, count| {
        let mut case = Case::new(1);
        let operands = [case.floats(&a), case.floats(&b)];
        case.run(op, &operands[..count]).remove(0)
    };
    assert_eq!(run(Op::Add, 2), [5.5, 1.0, -7.75]);
    assert_eq!(run(Op::Mul, 2), [6.0, -6.0, -2.0]);
    assert_eq!(run(Op::Scale { factor: F32Bits(4.0) }, 1), [6.0, -8.0, 1.0]);
    let capped = a.map(|x: f32| 2.0 * (f64::from(x) / 2.0).tanh());
    assert_near(&run(Op::Softcap { cap: F32Bits(2.0) }, 1), &capped, 1e-6);
}

#[test]
fn rows_are_gated_gathered_and_sliced() {
    let mut case = Case::new(2);
    let operands = [case.floats(&[0.0, 2.0]), case.floats(&[1.0, 2.0, 3.0, 4.0])];
    let out = case.run(Op::RowGate, &operands);
    let gate = 1.0 / (1.0 + (-2f64).exp());
    assert_eq!(out[0], [0.5, 1.0]);
    assert_near(&out[1], &[3.0 * gate, 4.0 * gate], 1e-6);

    let mut case = Case::with_output_rows(3, 2);
    let x = case.floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let indices = case.integers_of(Shape::per_output_row(1), &[2, 1]);
    assert_eq!(case.run(Op::GatherRows, &[x, indices]), [[5.0, 6.0], [3.0, 4.0]]);

    let mut case = Case::new(1);
    let x = case.floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let out = case.run(Op::HeadColumns { heads: 2, start: 1, cols: 2 }, &[x]);
    assert_eq!(out, [[2.0, 3.0, 5.0, 6.0]]);
}

#[test]
fn views_are_columns_of_their_value_and_may_be_outputs() {
    let mut case = Case::new(2);
    let x = case.floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let tail = case.builder.columns(x, 1, 3).expect("inside");
    let middle = case.builder.columns(tail, 1, 2).expect("inside");
    let doubled = case.apply(Op::Add, &[middle, middle]);
    let last = case.builder.columns(doubled, 1, 1).expect("inside");
    case.builder.output(common::OUT, last).expect("computed");
    assert_eq!(case.run_graph(), [[8.0], [16.0]]);
}

#[test]
fn concat_puts_columns_side_by_side() {
    let mut case = Case::new(2);
    let operands = [case.floats(&[1.0, 2.0, 3.0, 4.0]), case.floats(&[5.0, 6.0]), case.floats(&[7.0, 8.0])];
    let out = case.run(Op::Concat { parts: 3 }, &operands);
    assert_eq!(out, [[1.0, 2.0, 5.0, 7.0], [3.0, 4.0, 6.0, 8.0]]);
}

#[test]
fn scattered_logits_are_those_of_their_tokens_and_no_others() {
    let mut case = Case::new(2);
    let operands = [case.floats(&[1.0, 2.0, f32::NAN, 4.0]), case.integers_of(Shape::fixed(1, 2), &[3, 0])];
    let out = case.run(Op::ScatterLogits { vocabulary: 4 }, &operands);
    let none = f32::NEG_INFINITY;
    assert_eq!(out[0], [2.0, none, none, 1.0]);
    assert!(out[1][0] == 4.0 && out[1][1..3] == [none, none] && out[1][3].is_nan(), "{:?}", out[1]);
}

#[test]
fn a_cell_is_read_as_it_was_written() {
    let x: Vec<f32> = (0..3 * 64).map(|i| (i as f32 - 70.0) / 9.0).collect();
    for (k, v) in [(KvType::F32, KvType::F32), (KvType::F16, KvType::Q8_0), (KvType::Q5_1, KvType::Bf16)] {
        let mut case = Case::new(3);
        let spec = KvSpec { kv_heads: 2, head_dim: 32, k, v };
        let state = case.layer(&StateLayers { kv: vec![(spec, 2)], ..StateLayers::default() });
        let operands = [state, case.floats(&x), case.floats(&x), case.integers(&[70, 3, 127])];
        let state = case.apply(Op::KvWrite { kv_heads: 2, head_dim: 32 }, &operands);
        let operands = [state, case.integers(&[127, -1, 70])];
        let out = case.run(Op::KvRead { kv_heads: 2, head_dim: 32 }, &operands);
        let cell = |row: usize| {
            let x = &x[row * 64..][..64];
            [rounded(k.dtype(), x), rounded(v.dtype(), x)].concat()
        };
        assert_eq!(out, [cell(2), vec![0.0; 128], cell(0)], "{k:?} {v:?}");
    }
}
