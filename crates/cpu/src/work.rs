//! How threads divide the work of an op, and which parts of its operands a part needs: all scheduling properties of an op, in
//! one table. A new op is one arm here and one in [`executor`](crate::executor).

use crate::op::CpuOp;
use verbatim_graph::{Attention, Op};
use verbatim_matrix::BLOCK_COLS;
use verbatim_plan::PhaseRules;

/// The scheduling properties of an op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// How it is divided.
    pub(crate) division: Division,
    /// Operands that are row-local: row i of the result reads only row i of them. Any row of the other operands may be read.
    pub(crate) row_local: Operands,
    /// Operands that are unit-local: unit u of the result reads only unit u of them.
    pub(crate) unit_local: Operands,
}

/// What the threads divide among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// Rows, each of which can be split into independent units (see [`partition`](crate::partition)).
    Rows(Units),
    /// Chunks of the columns or heads of all rows, which the op assigns to threads itself.
    Chunks,
}

/// Maximum number of units of a row. Any divisor of it is valid, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    /// One: a thread computes whole rows.
    One,
    /// This many: heads or groups.
    Of(usize),
    /// The number of cache lines in a row of the result; if that is not whole, more and smaller units.
    CacheLines,
    /// The number of quant blocks of the first operand.
    Blocks,
}

/// Some operands of an op.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operands {
    All,
    Only(&'static [usize]),
    AllBut(&'static [usize]),
}

impl Operands {
    const NONE: Operands = Operands::Only(&[]);

    pub(crate) fn contain(self, operand: usize) -> bool {
        match self {
            Operands::All => true,
            Operands::Only(operands) => operands.contains(&operand),
            Operands::AllBut(operands) => !operands.contains(&operand),
        }
    }
}

/// f32 columns of a cache line: if rows are whole lines, no two threads write to the same line.
const LINE_COLS: usize = 16;

impl Units {
    /// The number of units, for a result of `cols` columns and a first operand of `first_cols` columns.
    pub(crate) fn count(self, cols: usize, first_cols: usize) -> usize {
        let count = match self {
            Units::One => 1,
            Units::Of(units) => units,
            Units::CacheLines => cols / gcd(cols, LINE_COLS),
            Units::Blocks => first_cols / BLOCK_COLS,
        };
        count.max(1)
    }
}

pub(crate) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Work {
    /// An op whose rows are independent; no unit-level guarantee.
    const fn rows(units: Units) -> Work {
        Work { division: Division::Rows(units), row_local: Operands::All, unit_local: Operands::NONE }
    }

    const fn chunks() -> Work {
        Work { division: Division::Chunks, row_local: Operands::All, unit_local: Operands::NONE }
    }

    const fn row_local(self, row_local: Operands) -> Work {
        Work { row_local, ..self }
    }

    const fn unit_local(self, unit_local: Operands) -> Work {
        Work { unit_local, ..self }
    }

    pub(crate) fn for_op(op: &CpuOp) -> Work {
        match *op {
            CpuOp::Model(op) => Work::for_model_op(op),
            CpuOp::Quantize { .. } => Work::rows(Units::Blocks).unit_local(Operands::All),
            CpuOp::QuantizedLinear { .. } | CpuOp::QuantizedMoeLinear { .. } => Work::chunks(),
            CpuOp::AttentionPartials { attention, .. } => Work::attention(attention),
            CpuOp::AttentionMerge(Attention { heads, .. }) => Work::rows(Units::Of(heads)),
        }
    }

    fn for_model_op(op: Op) -> Work {
        match op {
            Op::Glu { .. } | Op::Add | Op::Mul | Op::Scale { .. } | Op::Softcap { .. } => {
                Work::rows(Units::CacheLines).unit_local(Operands::All)
            }
            // The root mean square is over all columns, or over a whole group.
            Op::RmsNorm { groups: 1, .. } => Work::rows(Units::CacheLines),
            Op::RmsNorm { groups, .. } => Work::rows(Units::Of(groups)).unit_local(Operands::Only(&[0])),
            Op::Rope { heads, .. } => Work::rows(Units::Of(heads)).unit_local(Operands::Only(&[0])),
            Op::Hadamard { heads, .. } | Op::HeadColumns { heads, .. } => {
                Work::rows(Units::Of(heads)).unit_local(Operands::All)
            }
            Op::KvWrite { kv_heads, .. } => {
                Work::rows(Units::Of(kv_heads)).unit_local(Operands::Only(&[1, 2]))
            }
            Op::MoeCombine => Work::rows(Units::CacheLines),
            Op::RowGate => Work::rows(Units::CacheLines).unit_local(Operands::Only(&[1])),
            Op::KvRead { .. } => Work::rows(Units::One).row_local(Operands::AllBut(&[0])),
            Op::ScatterLogits { .. } => Work::rows(Units::One).row_local(Operands::Only(&[0])),
            Op::Embed { .. }
            | Op::Concat { .. }
            | Op::RopeTable(_)
            | Op::MoeTopK { .. }
            | Op::MoeWeights(_)
            | Op::SampleMerge => Work::rows(Units::One),
            Op::GatherRows => Work::rows(Units::One).row_local(Operands::AllBut(&[0])),
            Op::Attention(attention) => Work::attention(attention),
            Op::Linear { .. }
            | Op::LmHead
            | Op::MoeLinear { .. }
            | Op::ShortConv { .. }
            | Op::GatedDelta(_)
            | Op::SampleParts => Work::chunks(),
        }
    }

    /// Any row of K, V and the page table may be read; of q, positions, paths and valid_from only the row itself.
    fn attention(attention: Attention) -> Work {
        let own: &[usize] = match (attention.paths, attention.valid_from) {
            (false, false) => &[0, 2, 3],
            (false, true) => &[0, 2, 3, 5],
            (true, false) => &[0, 2, 3, 5, 6],
            (true, true) => &[0, 2, 3, 5, 6, 7],
        };
        Work::chunks().row_local(Operands::Only(own))
    }
}

impl PhaseRules for CpuOp {
    fn splits_rows(&self) -> bool {
        matches!(Work::for_op(self).division, Division::Rows(_))
    }

    fn is_row_local(&self, operand: usize) -> bool {
        Work::for_op(self).row_local.contain(operand)
    }
}

#[cfg(test)]
mod tests {
    use crate::op::CpuOp;
    use std::sync::Arc;
    use verbatim_graph::{Attention, Builder, F32Bits, Op, RowCounts, Shape, Tag};
    use verbatim_plan::Plan;
    use verbatim_quant::DType;

    #[test]
    fn keys_are_stored_in_the_phase_that_computes_them_and_read_in_the_next() {
        let mut b = Builder::new(RowCounts { rows: 2, output_rows: 1 });
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
            scale: F32Bits(1.0),
            window: None,
            softcap: None,
            sinks: false,
            paths: false,
            valid_from: false,
        };
        let out = b.apply(Op::Attention(attention), &[q, state, positions, sequences, pages]).unwrap();
        b.output(Tag::new("out"), out).unwrap();
        let graph = b.finish().map_ops(CpuOp::Model);
        let plan = Plan::new(Arc::new(graph)).expect("a plan");
        assert_eq!(plan.phases(), [0..3, 3..4]);
    }
}
