//! For each op: valid operands, the shape of the result, and the operands that it rejects.

use verbatim_graph::{
    Activation, Attention, Def, DeltaHeads, Extent, F32Bits, Gating, Lifetime, Op, OpRules, Operands,
    Placement, RopeLayout, RopeScaling, RopeTable, Router, Shape, Tag, Value, WeightKind,
};
use verbatim_quant::DType;

type Operand = (DType, Shape);

const KV_STATE: Operand = (DType::I8, Shape::fixed(0, 0));
const SLOTS: Operand = ids(1);

const fn f32(cols: usize) -> Operand {
    (DType::F32, Shape::per_row(cols))
}

const fn ids(cols: usize) -> Operand {
    (DType::I32, Shape::per_row(cols))
}

const fn row(cols: usize) -> Operand {
    (DType::F32, Shape::fixed(1, cols))
}

const fn weight(rows: usize, cols: usize) -> Operand {
    (DType::Q4_0, Shape::fixed(rows, cols))
}

fn infer(op: Op, operands: &[Operand]) -> Result<Operand, String> {
    let (lifetime, placement, def) = (Lifetime::Input, Placement::Host, Def::Leaf(Tag::new("operand")));
    let values: Vec<Value> =
        operands.iter().map(|&(dtype, shape)| Value { dtype, shape, lifetime, placement, def }).collect();
    op.infer(&values.iter().collect::<Vec<_>>())
}

/// Operands that fit an op, and its result.
struct Fit {
    op: Op,
    /// Each with the properties that may also be different: `t` its type, `k` the kind of its rows, `n` their number where it is
    /// fixed, `c` its columns.
    operands: Vec<(Operand, &'static str)>,
    result: Operand,
}

fn fit(op: Op, operands: &[(Operand, &'static str)], result: Operand) -> Fit {
    Fit { op, operands: operands.to_vec(), result }
}

/// An operand with one property changed, and the letter of the property.
fn changed((dtype, shape): Operand) -> Vec<(char, Operand)> {
    let mut all = Vec::new();
    for other in [DType::F32, DType::I32, DType::I8, DType::Q4_0].into_iter().filter(|&other| other != dtype)
    {
        all.push(('t', (other, shape)));
    }
    let kinds = [Extent::Rows, Extent::OutputRows, Extent::Fixed(1)];
    let is_same = |rows: &Extent| std::mem::discriminant(rows) == std::mem::discriminant(&shape.rows);
    for rows in kinds.into_iter().filter(|rows| !is_same(rows)) {
        all.push(('k', (dtype, Shape { rows, ..shape })));
    }
    if let Extent::Fixed(rows) = shape.rows {
        all.push(('n', (dtype, Shape::fixed(rows + 1, shape.cols))));
    }
    for cols in [shape.cols.checked_sub(1), Some(shape.cols + 1)].into_iter().flatten() {
        all.push(('c', (dtype, Shape { cols, ..shape })));
    }
    all
}

const ATTENTION: Attention = Attention {
    heads: 4,
    kv_heads: 2,
    head_dim: 8,
    scale: F32Bits(1.0),
    window: None,
    softcap: None,
    sinks: false,
    paths: false,
    valid_from: false,
};
const DELTA: DeltaHeads = DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 5 };
const ROPE_TABLE: RopeTable =
    RopeTable { rotary_dim: 8, base: F32Bits(1e4), scaling: RopeScaling::Linear { factor: F32Bits(1.0) } };
const ROPE: Op = Op::Rope { heads: 4, head_dim: 8, layout: RopeLayout::NeoX };
const ROUTER: Router = Router { gating: Gating::Softmax, normalize: true, scale: F32Bits(1.0) };

fn linear(bias: bool, residual: bool) -> Op {
    Op::Linear { bias, residual }
}

fn top_k(used: usize, bias: bool) -> Op {
    Op::MoeTopK { used, gating: Gating::Softmax, bias }
}

fn moe_linear(experts: usize, bias: bool) -> Op {
    Op::MoeLinear { experts, bias }
}

fn norm(groups: usize) -> Op {
    Op::RmsNorm { eps: F32Bits(1e-5), groups }
}

fn dense() -> Vec<Fit> {
    let embed = |has_embeddings| Op::Embed { scale: F32Bits(1.0), has_embeddings };
    let (x, w) = ((f32(32), "k"), (weight(16, 32), "t"));
    let (bias, residual) = ((row(16), ""), (f32(16), ""));
    let pair = [(f32(32), ""), (f32(32), "")];
    vec![
        fit(embed(false), &[(weight(100, 32), "tnc"), (ids(1), "k")], f32(32)),
        fit(embed(true), &[(weight(100, 32), "tn"), (ids(1), ""), (f32(32), "")], f32(32)),
        fit(norm(4), &[x, (row(8), "")], f32(32)),
        fit(norm(1), &[x, (row(32), "")], f32(32)),
        fit(linear(false, false), &[x, (weight(16, 32), "tn")], f32(16)),
        fit(linear(true, false), &[x, w, bias], f32(16)),
        fit(linear(false, true), &[(f32(32), ""), w, residual], f32(16)),
        fit(linear(true, true), &[(f32(32), ""), w, bias, residual], f32(16)),
        fit(Op::LmHead, &[x, (weight(16, 32), "tn")], f32(16)),
        fit(Op::Glu { activation: Activation::Silu }, &pair, f32(32)),
        fit(Op::Add, &pair, f32(32)),
        fit(Op::Mul, &pair, f32(32)),
        fit(Op::Scale { factor: F32Bits(2.0) }, &[(f32(32), "kc")], f32(32)),
        fit(Op::Softcap { cap: F32Bits(2.0) }, &[(f32(32), "kc")], f32(32)),
        fit(Op::RowGate, &[(f32(1), ""), (f32(32), "c")], f32(32)),
        fit(Op::HeadColumns { heads: 4, start: 2, cols: 3 }, &[x], f32(12)),
        fit(Op::HeadColumns { heads: 4, start: 5, cols: 3 }, &[x], f32(12)),
        fit(
            Op::GatherRows,
            &[(f32(32), "c"), ((DType::I32, Shape::per_output_row(1)), "")],
            (DType::F32, Shape::per_output_row(32)),
        ),
        fit(Op::Concat { parts: 1 }, &[(f32(32), "kc")], f32(32)),
        fit(Op::Concat { parts: 3 }, &[(f32(32), "c"), (f32(8), "c"), (f32(1), "c")], f32(41)),
        fit(
            Op::ScatterLogits { vocabulary: 40 },
            &[(f32(32), "k"), ((DType::I32, Shape::fixed(1, 32)), "")],
            f32(40),
        ),
    ]
}

fn attention() -> Vec<Fit> {
    let with = |paths, sinks| Op::Attention(Attention { paths, sinks, ..ATTENTION });
    let one = (ids(1), "");
    let state = (KV_STATE, "tknc");
    let q = [(f32(32), ""), state, one, one, ((DType::I32, Shape::fixed(3, 5)), "nc")];
    let (paths, sinks) = ([one, (ids(7), "c")], [(row(4), "")]);
    let from = |paths, sinks| Op::Attention(Attention { paths, sinks, valid_from: true, ..ATTENTION });
    let (kv, hadamard) =
        (Op::KvWrite { kv_heads: 2, head_dim: 8 }, |heads, head_dim| Op::Hadamard { heads, head_dim });
    vec![
        fit(Op::RopeTable(ROPE_TABLE), &[(ids(1), "k")], f32(8)),
        fit(Op::RopeTable(ROPE_TABLE), &[(ids(1), "k"), (row(4), "")], f32(8)),
        fit(ROPE, &[(f32(32), ""), (f32(6), "c")], f32(32)),
        fit(ROPE, &[(f32(32), ""), (f32(7), "c")], f32(32)),
        fit(hadamard(4, 8), &[(f32(32), "k")], f32(32)),
        fit(hadamard(0, 8), &[(f32(0), "k")], f32(0)),
        fit(kv, &[state, (f32(16), ""), (f32(16), ""), one], KV_STATE),
        fit(with(false, false), &q, f32(32)),
        fit(with(false, true), &[&q[..], &sinks].concat(), f32(32)),
        fit(with(true, false), &[&q[..], &paths].concat(), f32(32)),
        fit(with(true, true), &[&q[..], &paths, &sinks].concat(), f32(32)),
        fit(from(false, false), &[&q[..], &[one]].concat(), f32(32)),
        fit(from(false, true), &[&q[..], &[one], &sinks].concat(), f32(32)),
        fit(from(true, true), &[&q[..], &paths, &[one], &sinks].concat(), f32(32)),
        fit(Op::KvRead { kv_heads: 2, head_dim: 8 }, &[state, (ids(1), "k")], f32(32)),
    ]
}

fn experts_and_recurrences() -> Vec<Fit> {
    let (chosen, logits) = ((ids(2), ""), (f32(8), ""));
    let (gate, slots, state) = ((f32(4), ""), (SLOTS, ""), (KV_STATE, "tknc"));
    let head = (row(4), "");
    vec![
        fit(top_k(2, false), &[(f32(8), "kc")], ids(2)),
        fit(top_k(2, true), &[(f32(8), "k"), (row(8), "")], ids(2)),
        fit(top_k(8, true), &[(f32(8), "k"), (row(8), "")], ids(8)),
        fit(top_k(64, true), &[(f32(100), "k"), (row(100), "")], ids(64)),
        fit(Op::MoeWeights(ROUTER), &[(f32(8), "c"), (ids(2), "c")], f32(2)),
        fit(moe_linear(4, false), &[(f32(32), ""), (weight(64, 32), "t"), (ids(2), "c")], f32(32)),
        fit(moe_linear(4, false), &[(f32(64), ""), (weight(64, 32), "t"), chosen], f32(32)),
        fit(moe_linear(4, true), &[(f32(64), ""), (weight(64, 32), "t"), chosen, (row(64), "")], f32(32)),
        fit(Op::MoeCombine, &[(f32(32), ""), (f32(4), "")], f32(8)),
        fit(Op::ShortConv { kernel: 4 }, &[logits, (row(32), ""), state, slots, slots], f32(8)),
        fit(Op::GatedDelta(DELTA), &[(f32(32), ""), gate, gate, head, head, state, slots, slots], f32(20)),
    ]
}

/// Whether the result is as wanted, except for rows or columns that follow from the changed property.
fn is_like(result: Operand, wanted: Operand, free: char) -> bool {
    let (rows, cols) = (result.1.rows == wanted.1.rows, result.1.cols == wanted.1.cols);
    result.0 == wanted.0 && (rows || matches!(free, 'k')) && (cols || matches!(free, 'c' | 'n'))
}

#[test]
fn each_op_accepts_valid_operands_and_rejects_all_others() {
    for Fit { op, operands, result } in
        dense().into_iter().chain(attention()).chain(experts_and_recurrences())
    {
        let given: Vec<Operand> = operands.iter().map(|&(operand, _)| operand).collect();
        assert_eq!(infer(op, &given), Ok(result), "{op:?}");
        for len in 0..given.len() {
            let may_lack = matches!(op, Op::RopeTable(_)) && len == 1;
            assert_eq!(infer(op, &given[..len]).is_ok(), may_lack, "{len} operands of {op:?}");
        }
        let more = [&given[..], &[row(4), row(4)]].concat();
        assert!(infer(op, &more).is_err(), "two operands more of {op:?}");
        for (at, &(operand, free)) in operands.iter().enumerate() {
            for (what, other) in changed(operand) {
                let mut given = given.clone();
                given[at] = other;
                let taken = infer(op, &given);
                let case = format!("{op:?} with {other:?} as operand {at}: {taken:?}");
                assert_eq!(taken.is_ok(), free.contains(what), "{case}");
                let is_state = matches!(op, Op::KvWrite { .. }) && at == 0;
                assert!(taken.map_or(true, |taken| is_state || is_like(taken, result, what)), "{case}");
            }
        }
    }
}

#[test]
fn invalid_parameters_are_rejected_with_a_message() {
    let attention = |change: fn(&mut Attention)| {
        let mut attention = ATTENTION;
        change(&mut attention);
        let operands = vec![f32(32), KV_STATE, ids(1), ids(1), (DType::I32, Shape::fixed(3, 5))];
        (Op::Attention(attention), operands)
    };
    let delta = |heads: [usize; 4], cols| {
        let [key_heads, value_heads, key_dim, value_dim] = heads;
        let (gate, one) = (f32(value_heads), row(value_heads));
        let operands = vec![f32(cols), gate, gate, one, one, KV_STATE, SLOTS, SLOTS];
        (Op::GatedDelta(DeltaHeads { key_heads, value_heads, key_dim, value_dim }), operands)
    };
    let rope = |rotary_dim| (Op::RopeTable(RopeTable { rotary_dim, ..ROPE_TABLE }), vec![ids(1)]);
    let columns = |heads, start, cols| (Op::HeadColumns { heads, start, cols }, vec![f32(32)]);
    let cap = |cap| (Op::Softcap { cap: F32Bits(cap) }, vec![f32(32)]);
    let conv = |kernel, weight| (Op::ShortConv { kernel }, vec![f32(8), row(weight), KV_STATE, SLOTS, SLOTS]);
    let experts =
        |experts, used, x: usize| (moe_linear(experts, false), vec![f32(x), weight(64, 32), ids(used)]);
    let not_above_0 = "is not above 0";
    let cases = [
        ((norm(0), vec![f32(32), row(0)]), "32 columns do not divide into 0 groups"),
        ((norm(5), vec![f32(32), row(6)]), "32 columns do not divide into 5 groups"),
        (rope(0), "0 rotated elements are not pairs"),
        (rope(7), "7 rotated elements are not pairs"),
        ((ROPE, vec![f32(32), f32(9)]), "table [rows, 9] does not fit x [rows, 32] with heads of 8"),
        ((Op::Hadamard { heads: 4, head_dim: 0 }, vec![f32(0)]), "heads of no elements"),
        (attention(|a| a.kv_heads = 0), "4 heads are not a multiple of 0 KV heads"),
        (attention(|a| a.kv_heads = 3), "4 heads are not a multiple of 3 KV heads"),
        (attention(|a| a.window = Some(0)), "a window of 0 positions"),
        (attention(|a| a.softcap = Some(F32Bits(0.0))), not_above_0),
        (cap(0.0), not_above_0),
        (cap(-1.0), not_above_0),
        (cap(f32::INFINITY), not_above_0),
        (cap(f32::NAN), not_above_0),
        ((top_k(0, false), vec![f32(8)]), "0 of 8 experts are used, not 1 to 8"),
        ((top_k(9, false), vec![f32(8)]), "9 of 8 experts are used, not 1 to 8"),
        ((top_k(65, false), vec![f32(100)]), "65 of 100 experts are used, not 1 to 64"),
        ((Op::MoeWeights(ROUTER), vec![f32(8), ids(0)]), "operand 1 has no columns"),
        (experts(0, 2, 32), "the weight is [64, 32], not 0 experts"),
        (experts(5, 2, 32), "the weight is [64, 32], not 5 experts"),
        (experts(4, 2, 33), "the weight is [64, 32] but x has 33 columns for 2 experts"),
        (experts(4, usize::MAX, 32), "results of 16 columns are too many"),
        ((Op::MoeCombine, vec![f32(32), f32(0)]), "32 columns do not divide into 0 parts"),
        (columns(4, 6, 3), "columns 6 to 6+3 are not within each of 4 heads of [rows, 32]"),
        (columns(4, usize::MAX, 3), "are not within each of 4 heads of [rows, 32]"),
        (columns(0, 0, 0), "are not within each of 0 heads of [rows, 32]"),
        (columns(3, 0, 2), "are not within each of 3 heads of [rows, 32]"),
        (
            (Op::HeadColumns { heads: 0, start: 0, cols: 0 }, vec![f32(0)]),
            "are not within each of 0 heads of [rows, 0]",
        ),
        (conv(0, 0), "weight [1, 0] does not have 0 elements for each column of [rows, 8]"),
        (conv(usize::MAX, 0), "for each column of [rows, 8]"),
        (delta([0, 0, 3, 5], 0), "[rows, 0] does not have the columns of"),
        (delta([2, 4, 3, 5], 33), "[rows, 33] does not have the columns of"),
        (delta([0, 4, 3, 8], 32), "4 value heads are not a multiple of 0"),
        (delta([3, 4, 2, 5], 32), "4 value heads are not a multiple of 3"),
    ];
    for ((op, operands), wanted) in cases {
        let problem = infer(op, &operands).expect_err(wanted);
        assert!(problem.contains(wanted), "{problem:?} where {wanted:?} was to be");
    }
}

#[test]
fn ops_declare_their_states_and_weights() {
    let kv = Op::KvWrite { kv_heads: 1, head_dim: 8 };
    for (op, written, returned) in [
        (kv, Some(0), true),
        (Op::ShortConv { kernel: 4 }, Some(2), false),
        (Op::GatedDelta(DELTA), Some(5), false),
        (Op::Attention(ATTENTION), None, false),
        (Op::Add, None, false),
    ] {
        assert_eq!((op.writes_state(), op.returns_state()), (written, returned), "{op:?}");
    }
    let embed = Op::Embed { scale: F32Bits(1.0), has_embeddings: false };
    for (op, operand, kind) in [
        (embed, 0, WeightKind::Matrix),
        (embed, 1, WeightKind::Vector),
        (linear(true, false), 1, WeightKind::Matrix),
        (linear(true, false), 2, WeightKind::Vector),
        (Op::LmHead, 1, WeightKind::Matrix),
        (moe_linear(4, false), 1, WeightKind::Experts(4)),
        (norm(1), 1, WeightKind::Vector),
    ] {
        assert_eq!(op.weight_kind(operand), kind, "operand {operand} of {op:?}");
    }
    assert_eq!(DELTA.columns(), Some(32));
    for huge in [
        DeltaHeads { key_dim: usize::MAX, ..DELTA },
        DeltaHeads { value_dim: usize::MAX, ..DELTA },
        DeltaHeads { key_heads: 1, key_dim: usize::MAX / 2, value_heads: 1, value_dim: 2 },
    ] {
        assert_eq!(huge.columns(), None, "{huge:?}");
    }
}

#[test]
fn a_missing_operand_is_an_error() {
    let (lifetime, placement, def) = (Lifetime::Input, Placement::Host, Def::Leaf(Tag::new("operand")));
    let (dtype, shape) = ids(1);
    let value = Value { dtype, shape, lifetime, placement, def };
    for count in 0..3 {
        let values = vec![&value; count];
        let rule = Operands::new(&values);
        let wanted = Err(format!("takes at least {} operands, not {count}", count + 1));
        assert_eq!(rule.f32(count).map(|_| ()), wanted);
        assert_eq!(rule.ids(count).map(|_| ()), wanted);
        assert_eq!(rule.ids_per_row(count, Extent::Rows).map(|_| ()), wanted);
    }
}
