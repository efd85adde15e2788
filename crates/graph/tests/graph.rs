//! What a graph contains after it was built.

use std::hash::{DefaultHasher, Hash, Hasher};
use verbatim_graph::{
    Builder, Def, F32Bits, Graph, GraphError, Lifetime, Op, Placement, RowCounts, Shape, Tag, ValueId,
};
use verbatim_quant::DType;

const X: Tag = Tag::new("x");

fn builder() -> Builder {
    Builder::new(RowCounts { rows: 4, output_rows: 2 })
}

#[test]
fn a_graph_contains_what_was_built() {
    let mut b = builder();
    let x = b.input(X, DType::F32, Shape::per_row(8)).unwrap();
    b.place(Placement::Device(1));
    let view = b.columns(x, 5, 3).unwrap();
    let y = b.apply(Op::Scale { factor: F32Bits(2.0) }, &[view]).unwrap();
    let z = b.apply(Op::Add, &[y, view]).unwrap();
    let [one, two] = [0, 1].map(|index| Tag::indexed("out", index));
    b.output(one, z).unwrap();
    b.output(two, y).unwrap();
    assert_eq!(b.output(one, y), Err(GraphError::DuplicateTag(one)));
    let graph: Graph = b.finish();
    assert_eq!(graph.outputs(), [(one, z), (two, y)]);
    let properties = |id: ValueId| {
        let value = graph.value(id);
        (value.shape, value.lifetime, value.placement, graph.bytes(id))
    };
    let (wide, narrow) = (Shape::per_row(8), Shape::per_row(3));
    assert_eq!(properties(x), (wide, Lifetime::Input, Placement::Host, 4 * 8 * 4));
    assert_eq!(properties(view), (narrow, Lifetime::Input, Placement::Host, 4 * 3 * 4));
    assert_eq!(properties(y), (narrow, Lifetime::Output, Placement::Device(1), 4 * 3 * 4));
    assert_eq!(graph.values().len(), 4);
    let made_by: Vec<_> = graph.values().iter().map(|value| value.def).collect();
    assert_eq!(made_by[..2], [Def::Leaf(X), Def::Columns { base: x, start: 5 }]);
    for (value, wanted) in made_by[2..].iter().zip(0..) {
        assert!(matches!(value, Def::Node(node) if node.index() == wanted), "{value:?}");
    }
}

#[test]
fn views_and_nodes_are_renumbered_when_unused_ones_are_pruned() {
    let mut b = builder();
    b.input(Tag::new("unused"), DType::F32, Shape::per_row(8)).unwrap();
    let x = b.input(X, DType::F32, Shape::per_row(8)).unwrap();
    b.apply(Op::Scale { factor: F32Bits(3.0) }, &[x]).unwrap();
    let view = b.columns(x, 5, 3).unwrap();
    let y = b.apply(Op::Scale { factor: F32Bits(2.0) }, &[view]).unwrap();
    b.output(X, y).unwrap();
    let graph = b.finish();
    let [x, view] = [0, 1].map(ValueId::new);
    assert_eq!(graph.value(view).def, Def::Columns { base: x, start: 5 });
    assert_eq!(graph.root(view), (x, 5));
    assert!(matches!(graph.values()[2].def, Def::Node(node) if node.index() == 0));
    assert_eq!(graph.nodes()[0].operands, [view]);
}

#[test]
fn only_a_state_is_written_and_only_a_store_returns_one() {
    let mut b = builder();
    let x = b.input(X, DType::F32, Shape::per_row(8)).unwrap();
    let ids = b.input(Tag::new("ids"), DType::I32, Shape::per_row(1)).unwrap();
    let weight = b.weight(X, DType::F32, Shape::fixed(1, 16)).unwrap();
    let state = b.state(X).unwrap();
    let store = Op::KvWrite { kv_heads: 1, head_dim: 8 };
    let error = b.apply(store, &[x, x, x, ids]).unwrap_err();
    assert_eq!(error.to_string(), "KvWrite: operand 0 is not a state");
    let y = b.apply(Op::ShortConv { kernel: 2 }, &[x, weight, state, ids, ids]).unwrap();
    b.output(X, y).unwrap();
    let graph = b.finish();
    assert_eq!((graph.state(y), graph.value(y).lifetime), (None, Lifetime::Output));
}

#[test]
fn parameters_are_compared_by_their_bits() {
    let hash = |real: F32Bits| {
        let mut hasher = DefaultHasher::new();
        real.hash(&mut hasher);
        hasher.finish()
    };
    for (a, b, are_same) in
        [(0.0, -0.0, false), (1.0, 1.0, true), (f32::NAN, f32::NAN, true), (1.0, 2.0, false)]
    {
        assert_eq!(F32Bits(a) == F32Bits(b), are_same, "{a} and {b}");
        assert_eq!(hash(F32Bits(a)) == hash(F32Bits(b)), are_same, "{a} and {b}");
    }
    assert_eq!(format!("{:?}", F32Bits(1.5)), "1.5");
    assert_eq!(Tag::indexed("layer", 3).to_string(), "layer[3]");
}
