//! A plan is reused only for an equal graph. Each test is a case in which some engine wrongly reused one.

use std::sync::Arc;
use verbatim_graph::{Builder, F32Bits, Graph, Op, Placement, RowCounts, Shape, Tag, ValueId};
use verbatim_plan::{CacheStatistics, Plan, PlanError, ProgramCache};
use verbatim_quant::DType::F32;

const X: Tag = Tag::new("x");

/// Plans by the full identity of their graphs.
#[derive(Default)]
struct Plans(ProgramCache<Graph, Arc<Plan>>);

impl Plans {
    fn plan(&mut self, graph: Graph) -> Result<Arc<Plan>, PlanError> {
        let make = || Ok((graph.clone(), Arc::new(Plan::new(Arc::new(graph.clone()))?)));
        self.0.get_or_build(&graph, make).cloned()
    }

    fn statistics(&self) -> CacheStatistics {
        self.0.statistics()
    }
}

fn scale(b: &mut Builder, x: ValueId, factor: f32) -> ValueId {
    b.apply(Op::Scale { factor: F32Bits(factor) }, &[x]).expect("fits")
}

/// x → a → b → c, where `a` may also be an output.
fn chain(a_is_output: bool) -> Graph {
    let mut b = Builder::new(RowCounts { rows: 4, output_rows: 1 });
    let x = b.input(X, F32, Shape::per_row(64)).expect("fits");
    let first = scale(&mut b, x, 2.0);
    let second = scale(&mut b, first, 3.0);
    let third = b.apply(Op::Add, &[second, second]).expect("fits");
    if a_is_output {
        b.output(Tag::new("first"), first).expect("computed");
    }
    b.output(Tag::new("last"), third).expect("computed");
    b.finish()
}

/// (x, y) → x + y, with y an input or computed.
fn sum(y_is_input: bool) -> Graph {
    let mut b = Builder::new(RowCounts { rows: 4, output_rows: 1 });
    let x = b.input(X, F32, Shape::per_row(64)).expect("fits");
    let y = if y_is_input {
        b.input(Tag::new("y"), F32, Shape::per_row(64)).expect("fits")
    } else {
        scale(&mut b, x, 2.0)
    };
    let sum = b.apply(Op::Add, &[x, y]).expect("fits");
    b.output(Tag::new("sum"), sum).expect("computed");
    b.finish()
}

// https://github.com/ggml-org/llama.cpp/issues/29313
#[test]
fn llama_cpp_29313_ordinary_output_ordinary() {
    let mut cache = Plans::default();
    for output in [false, true, false, true] {
        let graph = chain(output);
        let plan = cache.plan(graph.clone()).expect("a plan");
        assert_eq!(*plan.graph(), graph);
        assert_eq!(plan.graph().outputs().len(), 1 + usize::from(output));
    }
    let statistics = cache.statistics();
    assert_eq!((statistics.built, statistics.hits, statistics.rebuilds.lifetime), (2, 2, 1));
}

#[test]
fn ordinary_input_ordinary() {
    let mut cache = Plans::default();
    for input in [false, true, false, true] {
        let graph = sum(input);
        assert_eq!(*cache.plan(graph.clone()).expect("a plan").graph(), graph);
    }
    let statistics = cache.statistics();
    assert_eq!((statistics.built, statistics.hits, statistics.rebuilds.topology), (2, 2, 1));
}

/// Four equal nodes over values of equal size; only the edges differ.
fn diamond(crossed: bool) -> Graph {
    let mut b = Builder::new(RowCounts { rows: 2, output_rows: 1 });
    let x = b.input(X, F32, Shape::per_row(32)).expect("fits");
    let early = scale(&mut b, x, 2.0);
    let late = scale(&mut b, early, 2.0);
    let middle = b.apply(Op::Add, &[late, late]).expect("fits");
    let kept = if crossed { early } else { late };
    let end = b.apply(Op::Add, &[middle, kept]).expect("fits");
    b.output(Tag::new("end"), end).expect("computed");
    b.finish()
}

// https://github.com/ggml-org/llama.cpp/issues/28448
#[test]
fn llama_cpp_28448_same_sizes_different_edges() {
    let mut cache = Plans::default();
    let graphs = [diamond(false), diamond(true)];
    assert_eq!(graphs[0].nodes().len(), graphs[1].nodes().len());
    for round in 0..6 {
        let graph = &graphs[round % 2];
        assert_eq!(cache.plan(graph.clone()).expect("a plan").graph(), graph);
    }
    let statistics = cache.statistics();
    assert_eq!((statistics.built, statistics.hits, statistics.rebuilds.topology), (2, 4, 1));
}

fn with_rows(output_rows: usize) -> Graph {
    let mut b = Builder::new(RowCounts { rows: 8, output_rows });
    let x = b.input(X, F32, Shape::per_row(32)).expect("fits");
    let indices =
        b.input(Tag::new("output_rows"), verbatim_quant::DType::I32, Shape::per_output_row(1)).expect("fits");
    let rows = b.apply(Op::GatherRows, &[x, indices]).expect("fits");
    b.output(Tag::new("rows"), rows).expect("computed");
    b.finish()
}

#[test]
fn sampled_rows_1_4_2_8_1() {
    let mut cache = Plans::default();
    let bytes: Vec<usize> = [1, 4, 2, 8, 1]
        .into_iter()
        .map(|output_rows| {
            let plan = cache.plan(with_rows(output_rows)).expect("a plan");
            assert_eq!(plan.graph().bounds().output_rows, output_rows);
            plan.arena_bytes(Placement::Host)
        })
        .collect();
    assert_eq!(bytes[0], bytes[4]);
    assert!(bytes[0] < bytes[2] && bytes[2] < bytes[1] && bytes[1] < bytes[3]);
    let statistics = cache.statistics();
    assert_eq!((statistics.built, statistics.hits, statistics.rebuilds.rows), (4, 1, 3));
}

#[test]
fn a_different_placement_needs_a_new_plan() {
    let placed = |placement| {
        let mut b = Builder::new(RowCounts { rows: 2, output_rows: 1 });
        let x = b.input(X, F32, Shape::per_row(32)).expect("fits");
        b.place(placement);
        let y = scale(&mut b, x, 2.0);
        b.output(Tag::new("y"), y).expect("computed");
        b.finish()
    };
    let mut cache = Plans::default();
    let host = cache.plan(placed(Placement::Host)).expect("a plan");
    let device = cache.plan(placed(Placement::Device(0))).expect("a plan");
    assert_eq!(host.arenas().len(), 1);
    assert_eq!(device.arenas().len(), 2);
    assert_eq!(cache.statistics().rebuilds.placement, 1);
}

#[test]
fn a_parameter_that_differs_in_one_bit_makes_a_different_graph() {
    let with_factor = |factor| {
        let mut b = Builder::new(RowCounts { rows: 2, output_rows: 1 });
        let x = b.input(X, F32, Shape::per_row(32)).expect("fits");
        let y = scale(&mut b, x, factor);
        b.output(Tag::new("y"), y).expect("computed");
        b.finish()
    };
    let mut cache = Plans::default();
    for factor in [1.0, f32::from_bits(1.0f32.to_bits() + 1), 0.0, -0.0] {
        cache.plan(with_factor(factor)).expect("a plan");
    }
    assert_eq!(cache.statistics().built, 4);
}

#[test]
fn sizes_near_the_maximum_of_usize_are_rejected() {
    let mut b = Builder::new(RowCounts { rows: 1, output_rows: 1 });
    let most = isize::MAX as usize / 4;
    let x = b.input(X, F32, Shape::per_row(most)).expect("addressable on its own");
    let y = scale(&mut b, x, 2.0);
    let z = b.apply(Op::Add, &[x, y]).expect("fits");
    b.output(Tag::new("z"), z).expect("computed");
    assert_eq!(Plans::default().plan(b.finish()).unwrap_err(), PlanError::TooLarge);
}

#[test]
fn a_cache_evicts_the_least_recently_used_plan() {
    let mut cache = Plans::default();
    for output_rows in 1..=300 {
        cache.plan(with_rows(output_rows)).expect("a plan");
    }
    cache.plan(with_rows(300)).expect("a plan");
    assert_eq!(cache.statistics().hits, 1);
    cache.plan(with_rows(1)).expect("a plan");
    let statistics = cache.statistics();
    assert_eq!((statistics.built, statistics.hits), (301, 1));
    // The 300 plans used each of the 128 entries more than twice.
    assert_eq!(statistics.evicted, 301 - 128);
    assert_eq!(cache.0.iter().count(), 128);
}

#[test]
fn a_plan_that_was_used_again_stays_longer() {
    let mut cache = Plans::default();
    for output_rows in (1..=128).chain([1, 129]) {
        cache.plan(with_rows(output_rows)).expect("a plan");
    }
    // The second was unused for longest; the first, third and last are there.
    assert_eq!((cache.statistics().built, cache.statistics().evicted, cache.statistics().hits), (129, 1, 1));
    for output_rows in [1, 3, 128, 129] {
        cache.plan(with_rows(output_rows)).expect("a plan");
    }
    assert_eq!((cache.statistics().built, cache.statistics().hits), (129, 5));
    cache.plan(with_rows(2)).expect("a plan");
    assert_eq!((cache.statistics().built, cache.statistics().evicted), (130, 2));
}
