//! The ops that this backend runs: model-level ops, and those that lowering produces.

use verbatim_graph::{Attention, Op, OpRules, Operands, Shape, Value, WeightKind};
use verbatim_quant::DType;

/// An op of a lowered graph. The doc comment of each variant gives its operands in order, then its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuOp {
    /// A model-level op.
    Model(Op),
    /// (x f32 \[r, k\]) → i8 \[r, row_bytes\]: rows quantised to int8 in the layout of `matrix::activations`.
    Quantize {
        /// Bytes of one quantised row, summed over its terms.
        row_bytes: usize,
        /// Int8 terms of a row (double int8, error-compensated quantisation): the second term is the quantised rounding error of
        /// the first.
        terms: usize,
    },
    /// [`Op::Linear`] whose x is the result of [`CpuOp::Quantize`] over `k` elements.
    QuantizedLinear {
        /// Elements of a row of x before it was quantised.
        k: usize,
        /// Int8 terms of x.
        terms: usize,
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
    /// The first half of [`Op::Attention`], with its operands except the sinks → f32 \[r, cols\]: the split-KV partials
    /// (o, m, s) of each row; see `ops::attention`.
    AttentionPartials {
        /// The attention, without sinks.
        attention: Attention,
        /// Elements of a row of the result.
        cols: usize,
    },
    /// The second half of [`Op::Attention`]. (partials f32 \[r, cols\], positions i32 \[r, 1\], then valid_from i32 \[r, 1\]
    /// if `valid_from`, then sinks f32 \[1, heads\] if
    /// `sinks`) → f32 \[r, heads * head_dim\]: the merged partials.
    AttentionMerge(Attention),
}

impl From<Op> for CpuOp {
    fn from(op: Op) -> CpuOp {
        CpuOp::Model(op)
    }
}

impl CpuOp {
    /// The kind of an operand that is a weight.
    pub(crate) fn weight_kind(&self, operand: usize) -> WeightKind {
        match (*self, operand) {
            (CpuOp::Model(op), _) => op.weight_kind(operand),
            (CpuOp::QuantizedLinear { .. }, 1) => WeightKind::Matrix,
            (CpuOp::QuantizedMoeLinear { experts, .. }, 1) => WeightKind::Experts(experts),
            (
                CpuOp::Quantize { .. }
                | CpuOp::QuantizedLinear { .. }
                | CpuOp::QuantizedMoeLinear { .. }
                | CpuOp::AttentionPartials { .. }
                | CpuOp::AttentionMerge(_),
                _,
            ) => WeightKind::Vector,
        }
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
            CpuOp::AttentionMerge(Attention { heads, head_dim, sinks, valid_from, .. }) => {
                let sinks_at = 2 + usize::from(valid_from);
                rule.count(sinks_at + usize::from(sinks))?;
                let rows = rule.f32(0)?.rows;
                rule.same_rows(rule.ids(1)?, rows)?;
                if valid_from {
                    rule.same_rows(rule.ids(2)?, rows)?;
                }
                if sinks {
                    rule.is_f32(sinks_at, Shape::fixed(1, heads))?;
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
