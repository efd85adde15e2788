//! FFNs: gated, or MoE.

use crate::ModelError;
use crate::graph_context::GraphContext;
use crate::metadata::MetadataReader;
use crate::table::{Linear, Table};
use verbatim_graph::{Activation, F32Bits, Gating, GraphError, MAX_EXPERTS_USED, Op, Router, ValueId};

/// The FFN hyperparameters of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FfnShape {
    /// A gated FFN.
    Gated {
        /// Its inner width.
        width: usize,
    },
    /// The same with gate and up in one tensor, gate rows before up rows.
    Fused {
        /// Its inner width.
        width: usize,
    },
    /// Mixture of experts (MoE).
    Moe(MoeShape),
}

/// The shape of MoE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeShape {
    experts: usize,
    used: usize,
    /// The inner width of an expert.
    width: usize,
    /// The inner width of the shared expert, if there is one.
    shared_width: Option<usize>,
    router: Router,
}

/// The feed-forward network of one layer.
pub(crate) enum Ffn {
    Gated([Linear; 3]),
    Fused { gate_up: Linear, down: Linear },
    Moe(MoeFfn),
}

/// An MoE FFN with its weights.
pub(crate) struct MoeFfn {
    shape: MoeShape,
    router: Linear,
    gate_up: GateUp,
    down: Linear,
    shared: Option<SharedExpert>,
}

/// The experts' first two matrices: some files have them in one tensor, an expert's gate rows before its up rows.
enum GateUp {
    Separate([Linear; 2]),
    Fused(Linear),
}

/// The shared expert and its gate.
struct SharedExpert {
    gate: Linear,
    ffn: [Linear; 3],
}

impl FfnShape {
    /// A gated FFN of the width in the metadata.
    pub(crate) fn gated(keys: &MetadataReader<'_>) -> Result<FfnShape, ModelError> {
        Ok(FfnShape::Gated { width: keys.require_count("feed_forward_length")? })
    }

    /// As [`FfnShape::gated`], with gate and up in one tensor.
    pub(crate) fn fused(keys: &MetadataReader<'_>) -> Result<FfnShape, ModelError> {
        Ok(FfnShape::Fused { width: keys.require_count("feed_forward_length")? })
    }

    /// MoE with a softmax router and weights that sum to 1.
    pub(crate) fn moe(keys: &MetadataReader<'_>, has_shared: bool) -> Result<FfnShape, ModelError> {
        let experts = keys.require_count("expert_count")?;
        let used = keys.require_count("expert_used_count")?;
        if used > experts.min(MAX_EXPERTS_USED) {
            let max = experts.min(MAX_EXPERTS_USED);
            return Err(keys.wrong("expert_used_count", used, format!("at most {max} of {experts} experts")));
        }
        match keys.optional_usize("expert_gating_func")? {
            None | Some(1) => {}
            Some(other) => return Err(keys.wrong("expert_gating_func", other, "1, the softmax")),
        }
        if keys.optional_bool("expert_weights_norm")? == Some(false) {
            return Err(keys.wrong("expert_weights_norm", false, "true"));
        }
        for layers in ["leading_dense_block_count", "interleave_moe_layer_step"] {
            keys.reject_nonzero(layers, "0: every layer has experts in this architecture")?;
        }
        if let Some(groups) = keys.optional_count("expert_group_count")?
            && groups != 1
        {
            return Err(keys.wrong("expert_group_count", groups, "1: groups of experts are not supported"));
        }
        // Files of models without a scale contain 0.
        let scale = match keys.optional_f32("expert_weights_scale")? {
            None | Some(0.0) => 1.0,
            Some(scale) => scale,
        };
        let width = match keys.optional_count("expert_feed_forward_length")? {
            Some(width) => width,
            None => keys.require_count("feed_forward_length")?,
        };
        let shared_width = match keys.optional_count("expert_shared_feed_forward_length")? {
            _ if !has_shared => None,
            Some(width) => Some(width),
            None => Some(keys.require_count("feed_forward_length")?),
        };
        let router = Router { gating: Gating::Softmax, normalize: true, scale: F32Bits(scale) };
        Ok(FfnShape::Moe(MoeShape { experts, used, width, shared_width, router }))
    }
}

impl Ffn {
    /// The network of one layer.
    pub(crate) fn open(
        table: &mut Table<'_>,
        layer: usize,
        hidden: usize,
        shape: FfnShape,
    ) -> Result<Ffn, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        match shape {
            FfnShape::Gated { width } => {
                gated(table, ["ffn_gate", "ffn_up", "ffn_down"].map(name), hidden, width).map(Ffn::Gated)
            }
            FfnShape::Fused { width } => Ok(Ffn::Fused {
                gate_up: table.linear(&name("ffn_up"), width.saturating_mul(2), hidden)?,
                down: table.linear(&name("ffn_down"), hidden, width)?,
            }),
            FfnShape::Moe(shape) => MoeFfn::open(table, name, hidden, shape).map(Ffn::Moe),
        }
    }

    /// The network's result for every row.
    pub(crate) fn build(
        &self,
        ctx: &mut GraphContext<'_>,
        x: ValueId,
        activation: Activation,
    ) -> Result<ValueId, GraphError> {
        match self {
            Ffn::Gated(linears) => ctx.gated_ffn(x, activation, *linears),
            Ffn::Fused { gate_up, down } => ctx.fused_ffn(x, activation, *gate_up, *down),
            Ffn::Moe(moe) => moe.build(ctx, x, activation),
        }
    }
}

/// A gated network of tensors with these names, less their `.weight` and `.bias`.
fn gated(
    table: &mut Table<'_>,
    [gate, up, down]: [String; 3],
    hidden: usize,
    width: usize,
) -> Result<[Linear; 3], ModelError> {
    Ok([
        table.linear(&gate, width, hidden)?,
        table.linear(&up, width, hidden)?,
        table.linear(&down, hidden, width)?,
    ])
}

impl MoeFfn {
    fn open(
        table: &mut Table<'_>,
        name: impl Fn(&str) -> String,
        hidden: usize,
        shape: MoeShape,
    ) -> Result<MoeFfn, ModelError> {
        let MoeShape { experts, width, shared_width, .. } = shape;
        let is_fused = table.has(&format!("{}.weight", name("ffn_gate_up_exps")));
        let mut stacked = |part: &str, rows, cols| table.expert_linear(&name(part), experts, rows, cols);
        let gate_up = if is_fused {
            GateUp::Fused(stacked("ffn_gate_up_exps", width.saturating_mul(2), hidden)?)
        } else {
            GateUp::Separate([
                stacked("ffn_gate_exps", width, hidden)?,
                stacked("ffn_up_exps", width, hidden)?,
            ])
        };
        let down = stacked("ffn_down_exps", hidden, width)?;
        let router = table.linear(&name("ffn_gate_inp"), experts, hidden)?;
        let shared = match shared_width {
            None => None,
            Some(width) => {
                let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(&name);
                let gate = table.unbiased_linear(&name("ffn_gate_inp_shexp"), 1, hidden)?;
                Some(SharedExpert { gate, ffn: gated(table, names, hidden, width)? })
            }
        };
        Ok(MoeFfn { shape, router, gate_up, down, shared })
    }

    fn build(
        &self,
        ctx: &mut GraphContext<'_>,
        x: ValueId,
        activation: Activation,
    ) -> Result<ValueId, GraphError> {
        let MoeShape { experts, used, width, router, .. } = self.shape;
        let logits = ctx.linear(x, self.router)?;
        let expert_ids = ctx.apply(Op::MoeTopK { used, gating: router.gating, bias: false }, &[logits])?;
        let weights = ctx.apply(Op::MoeWeights(router), &[logits, expert_ids])?;
        let matmul = |ctx: &mut GraphContext<'_>, x: ValueId, linear: Linear| {
            let x = ctx.scale(x, linear.scale.0)?;
            let mut operands = vec![x, ctx.weight(linear.weight)?, expert_ids];
            if let Some(bias) = linear.bias {
                operands.push(ctx.weight(bias)?);
            }
            ctx.apply(Op::MoeLinear { experts, bias: linear.bias.is_some() }, &operands)
        };
        let [gate, up] = match self.gate_up {
            GateUp::Separate([gate, up]) => [matmul(ctx, x, gate)?, matmul(ctx, x, up)?],
            GateUp::Fused(gate_up) => {
                let gate_and_up = matmul(ctx, x, gate_up)?;
                let columns = |start| Op::HeadColumns { heads: used, start, cols: width };
                [ctx.apply(columns(0), &[gate_and_up])?, ctx.apply(columns(width), &[gate_and_up])?]
            }
        };
        let inner = ctx.apply(Op::Glu { activation }, &[gate, up])?;
        let results = matmul(ctx, inner, self.down)?;
        let routed = ctx.apply(Op::MoeCombine, &[results, weights])?;
        match &self.shared {
            None => Ok(routed),
            Some(shared) => {
                let gate = ctx.linear(x, shared.gate)?;
                let output = ctx.gated_ffn(x, activation, shared.ffn)?;
                let gated = ctx.apply(Op::RowGate, &[gate, output])?;
                ctx.add(routed, gated)
            }
        }
    }
}
