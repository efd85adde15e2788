//! From a model's graph to the graph that this backend runs: residual adds fused into matmuls, activations quantised once.

use crate::op::CpuOp;
use crate::ops::attention::{PARTIAL_EXTRA, max_splits};
use crate::weights::{Weight, Weights};
use verbatim_backend::PAGE_CELLS;
use verbatim_graph::{Attention, Builder, Def, Graph, GraphError, Lifetime, Op, ValueId};
use verbatim_matrix::activation_row_bytes;

/// Rewrites a graph for the CPU:
/// - `Add` of a matmul and an earlier value becomes the matmul's residual;
/// - the operand of a matmul with block-quantised weights is quantised, once for all its consumers;
/// - attention of few rows uses split-KV partials, so that there is work for all threads.
pub(crate) fn lower(graph: &Graph, weights: &Weights) -> Result<Graph<CpuOp>, GraphError> {
    let mut lowering = Lowering {
        graph,
        weights,
        builder: Builder::new(graph.bounds()),
        mapped: vec![None; graph.values().len()],
        quantized: Vec::new(),
        residuals: residuals(graph),
    };
    for (index, value) in graph.values().iter().enumerate() {
        lowering.builder.place(value.placement);
        let id = ValueId::new(index);
        let mapped = match value.def {
            Def::Leaf(tag) => lowering.leaf(value.lifetime, tag, value)?,
            Def::Columns { base, start } => {
                let base = lowering.mapped(base);
                lowering.builder.columns(base, start, value.shape.cols)?
            }
            Def::Node(node) => lowering.node(node.index(), id)?,
        };
        lowering.mapped[index] = Some(mapped);
    }
    for &(tag, id) in graph.outputs() {
        let id = lowering.mapped(id);
        lowering.builder.output(tag, id)?;
    }
    Ok(lowering.builder.finish())
}

/// Maximum number of rows with split-KV attention. More rows are enough work for all threads.
const MAX_SPLIT_KV_ROWS: usize = 16;

/// Number of int8 terms per LM-head activation: the second encodes the rounding error of the first. The maximum over all ops.
pub(crate) const LM_HEAD_TERMS: usize = 2;

struct Lowering<'a> {
    graph: &'a Graph,
    weights: &'a Weights,
    builder: Builder<CpuOp>,
    mapped: Vec<Option<ValueId>>,
    /// (value, terms, quantised value), both values of the new graph.
    quantized: Vec<(ValueId, usize, ValueId)>,
    residuals: Vec<Residual>,
}

/// A matmul whose only consumer adds an earlier value to it.
#[derive(Clone, Copy)]
struct Residual {
    matmul: ValueId,
    sum: ValueId,
    addend: ValueId,
}

fn residuals(graph: &Graph) -> Vec<Residual> {
    let mut readers = vec![0usize; graph.values().len()];
    let views = graph.values().iter().filter_map(|value| match value.def {
        Def::Columns { base, .. } => Some(base),
        _ => None,
    });
    for id in graph.nodes().iter().flat_map(|node| node.operands.iter().copied()).chain(views) {
        readers[id.index()] += 1;
    }
    let fits = |matmul: ValueId, sum: ValueId, addend: ValueId| {
        let value = graph.value(matmul);
        let Def::Node(node) = value.def else { return None };
        let linear = matches!(graph.nodes()[node.index()].op, Op::Linear { residual: false, .. });
        let private = value.lifetime == Lifetime::Temp && readers[matmul.index()] == 1;
        // The residual has to be computed before the matmul; values are computed in order.
        (linear && private && addend.index() < matmul.index()).then_some(Residual { matmul, sum, addend })
    };
    let adds = graph.nodes().iter().filter(|node| matches!(node.op, Op::Add));
    adds.filter_map(|node| {
        let (a, b) = (node.operands[0], node.operands[1]);
        fits(a, node.output, b).or_else(|| fits(b, node.output, a))
    })
    .collect()
}

impl Lowering<'_> {
    fn mapped(&self, id: ValueId) -> ValueId {
        self.mapped[id.index()].expect("values are computed before they are read")
    }

    fn leaf(
        &mut self,
        lifetime: Lifetime,
        tag: verbatim_graph::Tag,
        value: &verbatim_graph::Value,
    ) -> Result<ValueId, GraphError> {
        match lifetime {
            Lifetime::Weight => self.builder.weight(tag, value.dtype, value.shape),
            Lifetime::State => self.builder.state(tag),
            Lifetime::Input | Lifetime::Temp | Lifetime::Output => {
                self.builder.input(tag, value.dtype, value.shape)
            }
        }
    }

    fn node(&mut self, node: usize, id: ValueId) -> Result<ValueId, GraphError> {
        // A sum that was fused into its matmul is that matmul.
        if let Some(folded) = self.residuals.iter().find(|residual| residual.sum == id) {
            return Ok(self.mapped(folded.matmul));
        }
        let node = &self.graph.nodes()[node];
        let mut operands: Vec<ValueId> = node.operands.iter().map(|&operand| self.mapped(operand)).collect();
        if let Op::Attention(attention) = node.op
            && let Some(cols) = self.partial_cols(&attention, &operands)
        {
            return self.split_kv_attention(attention, &operands, cols);
        }
        let quantized = matches!(node.op, Op::Linear { .. } | Op::LmHead | Op::MoeLinear { .. })
            && self.takes_quantized(node.operands[1]);
        let k = self.builder.shape(operands[0]).cols;
        if quantized {
            let terms = if node.op == Op::LmHead { LM_HEAD_TERMS } else { 1 };
            operands[0] = self.quantize(operands[0], k, terms)?;
        }
        let op = match node.op {
            Op::Linear { bias, mut residual } => {
                if let Some(found) = self.residuals.iter().find(|residual| residual.matmul == id) {
                    operands.push(self.mapped(found.addend));
                    residual = true;
                }
                if quantized {
                    CpuOp::QuantizedLinear { k, terms: 1, bias, residual }
                } else {
                    Op::Linear { bias, residual }.into()
                }
            }
            Op::LmHead if quantized => {
                CpuOp::QuantizedLinear { k, terms: LM_HEAD_TERMS, bias: false, residual: false }
            }
            Op::LmHead => Op::Linear { bias: false, residual: false }.into(),
            Op::MoeLinear { experts, bias } if quantized => CpuOp::QuantizedMoeLinear { k, experts, bias },
            op => op.into(),
        };
        self.builder.apply(op, &operands)
    }

    /// Columns of the partials, if this attention is to be split.
    fn partial_cols(&self, attention: &Attention, operands: &[ValueId]) -> Option<usize> {
        let rows = self.builder.shape(operands[0]).rows.at(self.graph.bounds());
        let pages = self.builder.shape(operands[4]).cols;
        let path = if attention.paths { self.builder.shape(operands[6]).cols } else { 0 };
        let positions = pages.checked_mul(PAGE_CELLS)?.checked_add(path)?;
        let part_len = attention.head_dim.checked_add(PARTIAL_EXTRA)?;
        let cols =
            max_splits(positions, attention.window).checked_mul(attention.heads)?.checked_mul(part_len)?;
        (rows <= MAX_SPLIT_KV_ROWS).then_some(cols)
    }

    fn split_kv_attention(
        &mut self,
        attention: Attention,
        operands: &[ValueId],
        cols: usize,
    ) -> Result<ValueId, GraphError> {
        let (operands, sinks) = operands.split_at(operands.len() - usize::from(attention.sinks));
        let partials = CpuOp::AttentionPartials { attention: Attention { sinks: false, ..attention }, cols };
        let mut merged = vec![self.builder.apply(partials, operands)?, operands[2]];
        if attention.valid_from {
            merged.push(operands[attention.valid_from_operand()]);
        }
        merged.extend(sinks);
        self.builder.apply(CpuOp::AttentionMerge(attention), &merged)
    }

    /// Whether matmuls with this packed weight take quantised activations.
    fn takes_quantized(&self, weight: ValueId) -> bool {
        let Def::Leaf(tag) = self.graph.value(weight).def else { return false };
        match self.weights.items().get(tag.index as usize) {
            Some(Weight::Matrix(matrix)) => matrix.takes_quantized(),
            Some(Weight::Experts(experts)) => experts.takes_quantized(),
            // Wrong weights are reported when the program is compiled.
            Some(Weight::Vector(_)) | None => false,
        }
    }

    fn quantize(&mut self, x: ValueId, k: usize, terms: usize) -> Result<ValueId, GraphError> {
        if let Some(&(.., quantized)) = self.quantized.iter().find(|&&(of, p, _)| (of, p) == (x, terms)) {
            return Ok(quantized);
        }
        let row_bytes = terms * activation_row_bytes(k);
        let quantized = self.builder.apply(CpuOp::Quantize { row_bytes, terms }, &[x])?;
        self.quantized.push((x, terms, quantized));
        Ok(quantized)
    }
}
