//! The planner and its checker over many random graphs, and the checker against wrong plans.

use std::collections::BTreeMap;
use std::sync::Arc;
use verbatim_graph::random::{self, Random};
use verbatim_graph::{Attention, Graph, Lifetime, Op, OpRules, Tag, Value, ValueId};
use verbatim_quant::DType;

/// Ops as a backend with threads splits them: most by rows, so that neighbours share a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ByRows(Op);

impl OpRules for ByRows {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn infer(&self, operands: &[&Value]) -> Result<(DType, verbatim_graph::Shape), String> {
        self.0.infer(operands)
    }

    fn writes_state(&self) -> Option<usize> {
        self.0.writes_state()
    }

    fn returns_state(&self) -> bool {
        self.0.returns_state()
    }
}

impl PhaseRules for ByRows {
    fn splits_rows(&self) -> bool {
        !matches!(
            self.0,
            Op::Linear { .. }
                | Op::MoeLinear { .. }
                | Op::Attention(_)
                | Op::ShortConv { .. }
                | Op::GatedDelta(_)
        )
    }

    fn is_row_local(&self, operand: usize) -> bool {
        match self.0 {
            Op::GatherRows | Op::KvRead { .. } => operand != 0,
            Op::ScatterLogits { .. } => operand == 0,
            Op::Attention(attention @ Attention { paths, valid_from, .. }) => {
                matches!(operand, 0 | 2 | 3)
                    || paths && matches!(operand, 5 | 6)
                    || valid_from && operand == attention.valid_from_operand()
            }
            _ => true,
        }
    }
}

fn graph(seed: u64) -> Graph<ByRows> {
    random::graph(seed).map_ops(ByRows)
}
use verbatim_plan::{ALIGNMENT, Allocation, CheckError, PhaseRules, Plan, check};

#[test]
fn plans_of_random_graphs_are_accepted_and_near_the_lower_bound() {
    let (mut planned, mut bound) = (0, 0);
    for seed in 0..3_000 {
        let plan = Plan::new(Arc::new(graph(seed))).expect("every valid graph can be planned");
        for arena in plan.arenas() {
            assert!(arena.bytes >= arena.lower_bound_bytes);
            planned += arena.bytes;
            bound += arena.lower_bound_bytes;
        }
    }
    // Values of 4 to 96 bytes each waste most of a cache line; what the 1.05 of real graphs hides is visible here.
    println!("3000 random graphs: {planned} bytes planned, lower bound {bound}");
    assert!(planned * 1000 <= bound * 1025, "{planned} bytes planned, lower bound {bound}");
}

/// The first and the last phase that need a value, found by brute force.
fn needed(graph: &Graph<ByRows>, plan: &Plan<ByRows>, id: ValueId) -> (usize, usize) {
    let phase_of = |node: usize| plan.phases().iter().position(|p| p.contains(&node)).expect("in a phase");
    let made = graph.nodes().iter().position(|node| node.output == id).map_or(0, phase_of);
    let reads = graph.nodes().iter().enumerate();
    let reads = reads.filter(|(_, node)| node.operands.iter().any(|&operand| graph.root(operand).0 == id));
    let read = reads.map(|(node, _)| phase_of(node)).max().unwrap_or(made);
    let is_output = graph.value(id).lifetime == Lifetime::Output;
    (made, if is_output { plan.phases().len() } else { read })
}

/// Whether some phase needs both values.
fn alive_together(graph: &Graph<ByRows>, plan: &Plan<ByRows>, a: ValueId, b: ValueId) -> bool {
    let ((a_first, a_last), (b_first, b_last)) = (needed(graph, plan, a), needed(graph, plan, b));
    a_first <= b_last && b_first <= a_last
}

#[test]
fn every_mutation_that_overlaps_live_values_is_caught() {
    let mut random = Random(7);
    let (mut caught, mut seed) = (0, 0);
    while caught < 2_000 {
        seed += 1;
        let graph = Arc::new(graph(seed));
        let plan = Plan::new(graph.clone()).expect("a plan");
        let placed: Vec<ValueId> = (0..graph.values().len())
            .map(ValueId::new)
            .filter(|id| plan.allocations()[id.index()].is_some())
            .collect();
        for _ in 0..4 {
            let (a, b) = (placed[random.below(placed.len())], placed[random.below(placed.len())]);
            if a == b || !alive_together(&graph, &plan, a, b) {
                continue;
            }
            // Move a onto some byte of b, where alignment allows.
            let mut allocations = plan.allocations().to_vec();
            let target = allocations[b.index()].expect("placed");
            let lines = target.bytes.div_ceil(ALIGNMENT);
            let moved = allocations[a.index()].as_mut().expect("placed");
            moved.offset = target.offset + ALIGNMENT * random.below(lines);
            let mut arenas = plan.arenas().to_vec();
            arenas[0].bytes = arenas[0].bytes.max(moved.offset + moved.bytes);
            let verdict = check(&graph, plan.phases(), &allocations, &arenas);
            assert!(
                matches!(verdict, Err(CheckError::Overlap { .. })),
                "seed {seed}: {a:?} onto {b:?}: {verdict:?}"
            );
            caught += 1;
        }
    }
}

#[test]
fn broken_phases_and_allocations_are_caught() {
    let graph = Arc::new(graph(3));
    let plan = Plan::new(graph.clone()).expect("a plan");
    let verdict = |phases: &[std::ops::Range<usize>], allocations: &[Option<Allocation>]| {
        check(&graph, phases, allocations, plan.arenas())
    };
    assert_eq!(verdict(plan.phases(), plan.allocations()), Ok(()));

    let all_at_once = 0..graph.nodes().len();
    let one_phase = verdict(std::slice::from_ref(&all_at_once), plan.allocations());
    assert!(matches!(one_phase, Err(CheckError::MissingBarrier { .. })), "{one_phase:?}");
    let cut = verdict(&plan.phases()[1..], plan.allocations());
    assert_eq!(cut, Err(CheckError::PhasesBroken { phase: 0 }));

    let placed = plan.allocations().iter().position(Option::is_some).expect("some value is placed");
    let with = |change: &dyn Fn(&mut Option<Allocation>)| {
        let mut allocations = plan.allocations().to_vec();
        change(&mut allocations[placed]);
        verdict(plan.phases(), &allocations)
    };
    let id = ValueId::new(placed);
    assert_eq!(with(&|allocation| *allocation = None), Err(CheckError::NoAllocation(id)));
    assert_eq!(
        with(&|allocation| allocation.as_mut().expect("placed").offset += 1),
        Err(CheckError::BadAllocation(id))
    );
    assert_eq!(
        with(&|allocation| allocation.as_mut().expect("placed").bytes += 1),
        Err(CheckError::BadAllocation(id))
    );
    let far = usize::MAX / ALIGNMENT * ALIGNMENT;
    assert_eq!(
        with(&|allocation| allocation.as_mut().expect("placed").offset = far),
        Err(CheckError::BadAllocation(id))
    );
}

#[test]
fn outputs_stay_live_after_the_run() {
    for seed in 0..200 {
        let plan = Plan::new(Arc::new(graph(seed))).expect("a plan");
        for phase in 0..plan.phases().len() {
            for (id, _) in plan.freed_after(phase) {
                assert_ne!(plan.graph().value(id).lifetime, Lifetime::Output);
            }
        }
        assert!(plan.graph().outputs().iter().any(|&(tag, _)| tag == Tag::new("last")));
    }
}

#[test]
fn without_rules_dependent_nodes_do_not_share_a_phase() {
    for seed in 0..200 {
        let graph = random::graph(seed);
        let plan = Plan::new(Arc::new(graph.clone())).expect("a plan");
        for phase in plan.phases() {
            let nodes = &graph.nodes()[phase.clone()];
            for (i, node) in nodes.iter().enumerate() {
                let made_here = |operand: ValueId| {
                    nodes[..i].iter().any(|earlier| earlier.output == graph.root(operand).0)
                };
                assert!(!node.operands.iter().any(|&operand| made_here(operand)), "seed {seed}");
            }
        }
    }
}

#[test]
fn the_lower_bound_and_freed_values_agree_with_brute_force() {
    for seed in 0..300 {
        let plan = Plan::new(Arc::new(graph(seed))).expect("a plan");
        let graph = plan.graph();
        let placed = plan
            .allocations()
            .iter()
            .enumerate()
            .filter_map(|(index, allocation)| Some((index, (*allocation)?)));
        let placed: Vec<(ValueId, Allocation)> =
            placed.map(|(index, allocation)| (ValueId::new(index), allocation)).collect();
        let mut most = 0;
        for phase in 0..=plan.phases().len() {
            let is_alive = |id: ValueId| {
                let (first, last) = needed(graph, &plan, id);
                (first..=last).contains(&phase)
            };
            let bytes = placed.iter().filter(|(id, _)| is_alive(*id)).map(|(_, allocation)| allocation.bytes);
            most = most.max(bytes.sum());
            let freed: Vec<_> = plan.freed_after(phase).collect();
            let wanted = placed.iter().filter(|(id, _)| needed(graph, &plan, *id).1 == phase);
            assert!(wanted.eq(&freed), "seed {seed}, phase {phase}: {freed:?}");
        }
        assert_eq!(plan.arenas().len(), 1);
        assert_eq!(plan.arenas()[0].lower_bound_bytes, most, "seed {seed}");
    }
}

#[test]
fn a_phase_extends_until_the_next_node_has_to_wait() {
    let mut barriers = 0;
    for seed in 0..500 {
        // Without shared memory, so that nothing but a missing barrier can be wrong.
        let plan = Plan::disjoint(Arc::new(graph(seed))).expect("a plan");
        for at in 1..plan.phases().len() {
            let mut phases = plan.phases().to_vec();
            let node = phases[at].start;
            phases[at - 1].end += 1;
            phases[at].start += 1;
            phases.retain(|phase| !phase.is_empty());
            let verdict = check(plan.graph(), &phases, plan.allocations(), plan.arenas());
            let is_missing =
                matches!(verdict, Err(CheckError::MissingBarrier { node: later, .. }) if later == node);
            assert!(is_missing, "seed {seed}, node {node}: {verdict:?}");
            barriers += 1;
        }
    }
    assert!(barriers > 2_000, "{barriers}");
}

#[test]
fn values_of_a_disjoint_plan_share_nothing() {
    for seed in 0..300 {
        let plan = Plan::disjoint(Arc::new(graph(seed))).expect("a plan");
        let mut allocations: Vec<Allocation> = plan.allocations().iter().flatten().copied().collect();
        allocations.sort_by_key(|allocation| (allocation.offset, allocation.bytes));
        let mut end = 0;
        for allocation in allocations {
            assert_eq!(allocation.offset, end, "seed {seed}: the next line after the one before");
            end += allocation.bytes.next_multiple_of(ALIGNMENT);
        }
        assert_eq!(plan.arenas()[0].bytes, end);
    }
}

#[test]
fn no_op_of_a_backend_without_phases_shares_one() {
    assert!(!Op::Add.splits_rows() && !Op::Add.is_row_local(0));
}

/// How often each form of an op occurs: its parameters with their numbers, its operands' types, and the kind of its rows.
fn forms(graphs: u64) -> BTreeMap<&'static str, BTreeMap<String, usize>> {
    let mut forms: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for seed in 0..graphs {
        let graph = random::graph(seed);
        for node in graph.nodes() {
            let types: Vec<_> = node.operands.iter().map(|id| graph.value(*id).dtype).collect();
            let form = format!("{:?} {types:?} {:?}", node.op, graph.value(node.output).shape.rows);
            *forms.entry(node.op.name()).or_default().entry(form).or_default() += 1;
        }
    }
    forms
}

/// The forms of each op: the product of its flags, its weight types, its sizes, and rows or output rows.
const FORMS: [(&str, usize); 25] = [
    ("Add", 2),
    ("Attention", 4 * 2 * 2 * 2 * 2),
    ("Concat", 3),
    ("Embed", 1),
    ("GatedDelta", 1),
    ("GatherRows", 1),
    ("Glu", 4 * 2),
    ("Hadamard", 60),
    ("HeadColumns", 150),
    ("KvRead", 1),
    ("KvWrite", 1),
    ("Linear", 2 * 2 * 2 * 2),
    ("MoeCombine", 2),
    ("MoeLinear", 48),
    ("MoeTopK", 3 * 2 * 2 * 2),
    ("MoeWeights", 2 * 2 * 2),
    ("Mul", 2),
    ("RmsNorm", 3 * 2),
    ("Rope", 2),
    ("RopeTable", 3 * 4 * 2),
    ("RowGate", 2),
    ("Scale", 2),
    ("ScatterLogits", 40),
    ("ShortConv", 1),
    ("Softcap", 2),
];

#[test]
fn random_graphs_contain_every_form_of_every_op() {
    let forms = forms(20_000);
    for (name, expected) in FORMS {
        let found = forms.get(name).map_or(0, BTreeMap::len);
        assert!(found >= expected, "{name}: {found} forms of {expected}: {:#?}", forms.get(name));
    }
    let unexpected: Vec<_> = forms.keys().filter(|name| FORMS.iter().all(|form| form.0 != **name)).collect();
    assert!(unexpected.is_empty(), "not in the list: {unexpected:?}");
}
