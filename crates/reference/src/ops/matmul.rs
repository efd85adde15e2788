//! Matmuls with weights. A weight row is decoded once and used for all rows of the step.

use super::dot;
use crate::arena::Rows;
use crate::weights::Matrix;

/// One row of a table.
pub(crate) fn table_row(table: &Matrix, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; table.cols()];
    table.decode_row(row, &mut out);
    out
}

/// x times the weight transposed, plus bias, plus residual. `out` is \[r, n\].
pub(crate) fn linear(
    x: Rows<'_, f32>,
    weight: &Matrix,
    bias: Option<&[f32]>,
    residual: Option<Rows<'_, f32>>,
    out: &mut [f32],
) {
    let n = weight.rows();
    let mut weight_row = vec![0.0; weight.cols()];
    for column in 0..n {
        weight.decode_row(column, &mut weight_row);
        for row in 0..x.count() {
            let mut sum = dot(x.row(row), &weight_row);
            if let Some(bias) = bias {
                sum += bias[column];
            }
            if let Some(residual) = residual {
                sum += residual.row(row)[column];
            }
            out[row * n + column] = sum;
        }
    }
}

/// For each selected expert x, or the part of x for its top-k index, times the expert's rows of the weight, plus the expert's bias.
/// `out` is \[r, used * n\].
pub(crate) fn expert_linear(
    experts: usize,
    x: Rows<'_, f32>,
    weight: &Matrix,
    chosen: Rows<'_, i32>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let (k, n, used) = (weight.cols(), weight.rows() / experts, chosen.cols());
    let has_part_per_choice = x.cols() != k;
    let mut weight_row = vec![0.0; k];
    for expert in 0..experts {
        let choices =
            |row: usize| (0..used).filter(move |&choice| chosen.row(row)[choice] as usize == expert);
        let pairs: Vec<(usize, usize)> =
            (0..x.count()).flat_map(|row| choices(row).map(move |choice| (row, choice))).collect();
        if pairs.is_empty() {
            continue;
        }
        for column in 0..n {
            let stacked = expert * n + column;
            weight.decode_row(stacked, &mut weight_row);
            for &(row, choice) in &pairs {
                let part = if has_part_per_choice { choice * k } else { 0 };
                let sum = dot(&x.row(row)[part..][..k], &weight_row);
                out[(row * used + choice) * n + column] = sum + bias.map_or(0.0, |bias| bias[stacked]);
            }
        }
    }
}
