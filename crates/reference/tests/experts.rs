//! MoE: top-k, weights, matmuls, combine.

mod common;

use common::{Case, assert_near, random_values, rounded};
use verbatim_graph::random::Random;
use verbatim_graph::{F32Bits, Gating, Op, Router, ValueId};
use verbatim_quant::DType;

/// The experts selected by one row. Their ids become visible through matmuls with matrices that contain them.
fn chosen(gating: Gating, logits: &[f32], bias: Option<&[f32]>, used: usize) -> Vec<f32> {
    let experts = logits.len();
    let mut case = Case::new(1);
    let mut operands = vec![case.floats(logits)];
    operands.extend(bias.map(|bias| case.vector(bias)));
    let chosen = case.apply(Op::MoeTopK { used, gating, bias: bias.is_some() }, &operands);
    let elements: Vec<f32> = (0..experts).map(|expert| expert as f32).collect();
    let operands = [case.floats(&[1.0]), case.experts(DType::F32, experts, 1, &elements), chosen];
    case.run(Op::MoeLinear { experts, bias: false }, &operands).remove(0)
}

#[test]
fn top_k_selects_the_largest_and_breaks_ties_by_lower_index() {
    for gating in [Gating::Softmax, Gating::Sigmoid] {
        let of = |logits: &[f32], used| chosen(gating, logits, None, used);
        assert_eq!(of(&[1.0, 3.0, 3.0, -2.0, 3.0, 1.0], 4), [1.0, 2.0, 4.0, 0.0]);
        assert_eq!(of(&[0.0, -0.0, 0.0], 3), [0.0, 1.0, 2.0]);
        for logits in [[f32::NAN; 4], [f32::NEG_INFINITY; 4], [f32::INFINITY, f32::NAN, f32::NAN, f32::NAN]] {
            assert_eq!(of(&logits, 3), [0.0, 1.0, 2.0]);
            assert_eq!(chosen(gating, &logits, Some(&[0.0; 4]), 3), [0.0, 1.0, 2.0]);
        }
    }
}

#[test]
fn a_bias_is_added_to_the_score() {
    // The scores of equal logits are 1/2 by the sigmoid, 1/4 by the softmax.
    let bias = [0.0, 0.0, 0.5, -1.0];
    assert_eq!(chosen(Gating::Sigmoid, &[0.0; 4], Some(&bias), 2), [2.0, 0.0]);
    // A logit of 2 has the score 0.88 by the sigmoid and 0.67 by the softmax, where the others have 0.5 and 0.09.
    let (logits, bias) = ([2.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.4, 0.0]);
    assert_eq!(chosen(Gating::Sigmoid, &logits, Some(&bias), 2), [1.0, 2.0]);
    assert_eq!(chosen(Gating::Softmax, &logits, Some(&bias), 2), [0.0, 1.0]);
}

#[test]
fn weights_are_scores_normalised_and_scaled() {
    let logits = [0.5f32, 2.0, -1.0, 1.0];
    let weights = |logits: &[f32; 4], gating, normalize, scale| {
        let mut case = Case::new(1);
        let operands = [case.floats(logits), case.integers(&[1, 3])];
        let router = Router { gating, normalize, scale: F32Bits(scale) };
        case.run(Op::MoeWeights(router), &operands).remove(0)
    };
    let all: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let (a, b) = (2f64.exp(), 1f64.exp());
    assert_near(&weights(&logits, Gating::Softmax, false, 1.0), &[a / all, b / all], 1e-6);
    assert_near(&weights(&logits, Gating::Softmax, true, 2.5), &[2.5 * a / (a + b), 2.5 * b / (a + b)], 1e-6);
    let (a, b) = (a / (1.0 + a), b / (1.0 + b));
    assert_near(&weights(&logits, Gating::Sigmoid, false, 3.0), &[3.0 * a, 3.0 * b], 1e-6);
    assert_near(&weights(&logits, Gating::Sigmoid, true, 1.0), &[a / (a + b), b / (a + b)], 1e-6);
    // What underflows does not become NaN.
    assert_eq!(weights(&[0.0, -1e4, 0.0, -1e4], Gating::Sigmoid, true, 1.0), [0.0, 0.0]);
    assert_eq!(weights(&[0.0, -1e4, 0.0, -1e4], Gating::Softmax, true, 1.0), [0.5, 0.5]);
}

#[test]
fn matmuls_of_selected_experts() {
    let (experts, n, k, rows, used) = (3, 4, 32, 2, 2);
    let mut random = Random(9);
    let weight = random_values(&mut random, experts * n * k);
    let bias = random_values(&mut random, experts * n);
    let chosen = [2i32, 0, 0, 1];
    for dtype in [DType::F32, DType::Q8_0] {
        let decoded = rounded(dtype, &weight);
        // One x for all experts, and a part for each.
        for parts in [1, used] {
            let x = random_values(&mut random, rows * parts * k);
            let mut case = Case::new(rows);
            let operands: Vec<ValueId> = vec![
                case.floats(&x),
                case.experts(dtype, experts, n, &weight),
                case.integers(&chosen),
                case.vector(&bias),
            ];
            let out = case.run(Op::MoeLinear { experts, bias: true }, &operands);
            for row in 0..rows {
                let element = |i: usize| {
                    let (rank, column) = (i / n, i % n);
                    let x = &x[(row * parts + rank % parts) * k..][..k];
                    let stacked = chosen[row * used + rank] as usize * n + column;
                    let weight = &decoded[stacked * k..][..k];
                    let sum: f64 = x.iter().zip(weight).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                    sum + f64::from(bias[stacked])
                };
                assert_near(&out[row], &(0..used * n).map(element).collect::<Vec<_>>(), 1e-6);
            }
        }
    }
}

#[test]
fn expert_outputs_are_summed_by_weight() {
    let mut case = Case::new(2);
    let x = [1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0];
    let operands = [case.floats(&x), case.floats(&[2.0, 0.5, 1.0, -1.0])];
    assert_eq!(case.run(Op::MoeCombine, &operands), [[7.0, 14.0], [-27.0, -36.0]]);
}
