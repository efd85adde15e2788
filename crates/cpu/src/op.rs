//! The ops that this backend runs: those of models, and those that its lowering makes of them.

use crate::work::{Division, Work};
use verbatim_graph::{Attention, Op, OpRules, Operands, Shape, Value};
use verbatim_plan::PhaseRules;
use verbatim_quant::DType;

/// An op of a lowered graph. The doc comment of each variant gives its operands in order, then its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuOp {
    /// As models write it.
    Model(Op),
    /// (x f32 \[r, k\]) → i8 \[r, row_bytes\]: rows quantised in the layout of `matrix::activations`.
    Quantize {
        /// Bytes of one quantised row, all planes together.
        row_bytes: usize,
        /// Times that a row is quantised: the second plane holds what the first has left over.
        planes: usize,
    },
    /// [`Op::Linear`] whose x is the result of [`CpuOp::Quantize`] over `k` elements.
    QuantizedLinear {
        /// Elements of a row of x before it was quantised.
        k: usize,
        /// Planes of x.
        planes: usize,
        /// A bias operand is given.
        bias: bool,
        /// A residual operand is given.
        residual: bool,
    },
    /// [`Op::MoeLinear`] whose x is the result of [`CpuOp::Quantize`] over `k` elements.
    QuantizedMoeLinear {
        /// Elements of a row of x before it was quantised.
        k: usize,
        /// Experts whose matrices are stacked in the weight.
        experts: usize,
        /// A bias operand is given.
        bias: bool,
    },
    /// The first half of [`Op::Attention`], with its operands but for the sinks → f32 \[r, cols\]: what parts of the
    /// positions that a row sees give by themselves.
    AttentionPartials {
        /// The attention, without sinks.
        attention: Attention,
        /// Elements of a row of the result.
        cols: usize,
    },
    /// The second half of [`Op::Attention`]. (parts f32 \[r, cols\], positions i32 \[r, 1\], then sinks f32 \[1, heads\] if
    /// `sinks`) → f32 \[r, heads * head_dim\]: the parts put together.
    AttentionMerge(Attention),
}

impl From<Op> for CpuOp {
    fn from(op: Op) -> CpuOp {
        CpuOp::Model(op)
    }
}

impl OpRules for CpuOp {
    fn name(&self) -> &'static str {
        match self {
            CpuOp::Model(op) => op.name(),
            CpuOp::Quantize { .. } => "Quantize",
            CpuOp::QuantizedLinear { .. } => "QuantizedLinear",
            CpuOp::QuantizedMoeLinear { .. } => "QuantizedMoeLinear",
            CpuOp::AttentionPartials { .. } => "AttentionPartials",
            CpuOp::AttentionMerge(_) => "AttentionMerge",
        }
    }

    fn infer(&self, operands: &[&Value]) -> Result<(DType, Shape), String> {
        let rule = Operands::new(operands);
        match *self {
            CpuOp::Model(op) => op.infer(operands),
            CpuOp::Quantize { row_bytes, .. } => {
                rule.count(1)?;
                Ok((DType::I8, Shape { rows: rule.f32(0)?.rows, cols: row_bytes }))
            }
            CpuOp::QuantizedLinear { k, bias, residual, .. } => {
                rule.at_least(2)?;
                rule.dtype(0, DType::I8)?;
                rule.linear(rule.shape(0).rows, k, bias, residual)
            }
            CpuOp::QuantizedMoeLinear { k, experts, bias } => {
                rule.at_least(1)?;
                rule.dtype(0, DType::I8)?;
                rule.expert_linear(rule.shape(0).rows, k, experts, bias)
            }
            CpuOp::AttentionPartials { attention, cols } => {
                let rows = rule.attention(attention)?.rows;
                Ok((DType::F32, Shape { rows, cols }))
            }
            CpuOp::AttentionMerge(Attention { heads, head_dim, sinks, .. }) => {
                rule.count(2 + usize::from(sinks))?;
                let rows = rule.f32(0)?.rows;
                rule.same_rows(rule.ids(1)?, rows)?;
                if sinks {
                    rule.is_f32(2, Shape::fixed(1, heads))?;
                }
                match heads.checked_mul(head_dim) {
                    Some(cols) => Ok((DType::F32, Shape { rows, cols })),
                    None => Err(format!("{heads} heads of {head_dim} elements are too many")),
                }
            }
        }
    }

    fn writes_state(&self) -> Option<usize> {
        match self {
            CpuOp::Model(op) => op.writes_state(),
            CpuOp::Quantize { .. }
            | CpuOp::QuantizedLinear { .. }
            | CpuOp::QuantizedMoeLinear { .. }
            | CpuOp::AttentionPartials { .. }
            | CpuOp::AttentionMerge(_) => None,
        }
    }

    fn returns_state(&self) -> bool {
        matches!(self, CpuOp::Model(op) if op.returns_state())
    }
}

impl PhaseRules for CpuOp {
    fn splits_rows(&self) -> bool {
        matches!(Work::of(self).division, Division::Rows(_))
    }

    fn reads_own_row_only(&self, operand: usize) -> bool {
        Work::of(self).own_row.contain(operand)
    }
}

#[cfg(test)]
mod tests {
    use super::CpuOp;
    use std::sync::Arc;
    use verbatim_graph::{Attention, Bounds, Builder, Op, Real, Shape, Tag};
    use verbatim_plan::Plan;
    use verbatim_quant::DType;

    #[test]
    fn keys_are_stored_in_the_phase_that_makes_them_and_attended_to_in_the_next() {
        let mut b = Builder::new(Bounds { rows: 2, output_rows: 1 });
        let state = b.state(Tag::new("kv")).unwrap();
        let mut input = |name, dtype, shape| b.input(Tag::new(name), dtype, shape).unwrap();
        let [q, k, v] = ["q", "k", "v"].map(|name| input(name, DType::F32, Shape::per_row(8)));
        let [cells, positions, sequences] =
            ["cells", "positions", "sequences"].map(|name| input(name, DType::I32, Shape::per_row(1)));
        let pages = input("pages", DType::I32, Shape::fixed(1, 1));
        let k = b.apply(Op::Hadamard { heads: 1, head_dim: 8 }, &[k]).unwrap();
        let state = b.apply(Op::KvWrite { kv_heads: 1, head_dim: 8 }, &[state, k, v, cells]).unwrap();
        let q = b.apply(Op::Hadamard { heads: 1, head_dim: 8 }, &[q]).unwrap();
        let attention = Attention {
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            scale: Real(1.0),
            window: None,
            softcap: None,
            sinks: false,
            paths: false,
        };
        let out = b.apply(Op::Attention(attention), &[q, state, positions, sequences, pages]).unwrap();
        b.output(Tag::new("out"), out).unwrap();
        let graph = b.finish().map_ops(CpuOp::Model);
        let plan = Plan::new(Arc::new(graph)).expect("a plan");
        assert_eq!(plan.phases(), [0..3, 3..4]);
    }
}
