//! Plans with one error each, which the checker must reject, and the most similar valid plans, which it must accept.

#![allow(clippy::single_range_in_vec_init)] // A phase is a range, and there may be one phase.

use std::ops::Range;
use verbatim_graph::{
    Builder, Extent, Graph, Lifetime, OpRules, Placement, RowCounts, Shape, Tag, Value, ValueId,
};
use verbatim_plan::{ALIGNMENT, Allocation, ArenaSize, CheckError, PhaseRules, check};
use verbatim_quant::DType;

/// An op whose scheduling properties a test chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TestOp {
    rows: Extent,
    splits_rows: bool,
    is_row_local: bool,
    writes_state: Option<usize>,
    returns_state: bool,
}

/// An op whose rows need nothing but the same rows of its operands.
const BY_ROWS: TestOp = TestOp {
    rows: Extent::Rows,
    splits_rows: true,
    is_row_local: true,
    writes_state: None,
    returns_state: false,
};
/// `(state, x)`: stores the rows of x.
const STORE: TestOp = TestOp { writes_state: Some(0), returns_state: true, ..BY_ROWS };
/// `(x, state)`: advances the state from row to row.
const RECUR: TestOp = TestOp { writes_state: Some(1), ..BY_ROWS };

const COLS: usize = 16;

impl OpRules for TestOp {
    fn name(&self) -> &'static str {
        "TestOp"
    }

    fn infer(&self, operands: &[&Value]) -> Result<(DType, Shape), String> {
        match self.returns_state {
            true => Ok((operands[0].dtype, operands[0].shape)),
            false => Ok((DType::F32, Shape { rows: self.rows, cols: COLS })),
        }
    }

    fn writes_state(&self) -> Option<usize> {
        self.writes_state
    }

    fn returns_state(&self) -> bool {
        self.returns_state
    }
}

impl PhaseRules for TestOp {
    fn splits_rows(&self) -> bool {
        self.splits_rows
    }

    fn is_row_local(&self, _: usize) -> bool {
        self.is_row_local
    }
}

fn builder() -> Builder<TestOp> {
    Builder::new(RowCounts { rows: 4, output_rows: 4 })
}

fn input(b: &mut Builder<TestOp>) -> ValueId {
    b.input(Tag::new("x"), DType::F32, Shape::per_row(COLS)).expect("the only one")
}

fn state(b: &mut Builder<TestOp>, index: u32) -> ValueId {
    b.state(Tag::indexed("state", index)).expect("the only one")
}

fn apply(b: &mut Builder<TestOp>, op: TestOp, operands: &[ValueId]) -> ValueId {
    b.apply(op, operands).expect("fits")
}

fn finish(mut b: Builder<TestOp>, outputs: &[ValueId]) -> Graph<TestOp> {
    for (index, &value) in (0..).zip(outputs) {
        b.output(Tag::indexed("out", index), value).expect("computed");
    }
    b.finish()
}

/// A separate allocation for every value that needs one, one after the other, and arenas of just that size.
fn apart(graph: &Graph<TestOp>) -> (Vec<Option<Allocation>>, Vec<ArenaSize>) {
    let mut arenas: Vec<ArenaSize> = Vec::new();
    let mut allocations = Vec::new();
    for (index, value) in graph.values().iter().enumerate() {
        let (id, placement) = (ValueId::new(index), value.placement);
        if graph.root(id).0 != id || matches!(value.lifetime, Lifetime::Weight | Lifetime::State) {
            allocations.push(None);
            continue;
        }
        if arenas.iter().all(|arena| arena.placement != placement) {
            arenas.push(ArenaSize { placement, bytes: 0, lower_bound_bytes: 0 });
        }
        let arena = arenas.iter_mut().find(|arena| arena.placement == placement).expect("just added");
        let allocation =
            Allocation { offset: arena.bytes.next_multiple_of(ALIGNMENT), bytes: graph.bytes(id) };
        arena.bytes = allocation.offset + allocation.bytes;
        allocations.push(Some(allocation));
    }
    (allocations, arenas)
}

/// The verdict on these phases of a graph whose values share nothing.
fn verdict_on_phases(graph: &Graph<TestOp>, phases: &[Range<usize>]) -> Result<(), CheckError> {
    let (allocations, arenas) = apart(graph);
    check(graph, phases, &allocations, &arenas)
}

/// The verdict on a graph's nodes in one phase.
fn verdict_on_one_phase(graph: &Graph<TestOp>) -> Result<(), CheckError> {
    let all = 0..graph.nodes().len();
    verdict_on_phases(graph, &[all])
}

/// Each node in a phase of its own.
fn one_by_one(graph: &Graph<TestOp>) -> Vec<Range<usize>> {
    (0..graph.nodes().len()).map(|node| node..node + 1).collect()
}

/// Nodes that do not depend on each other.
fn independent(count: usize) -> Graph<TestOp> {
    let mut b = builder();
    let x = input(&mut b);
    let outputs: Vec<ValueId> = (0..count).map(|_| apply(&mut b, BY_ROWS, &[x])).collect();
    finish(b, &outputs)
}

/// Each node reads the one before.
fn chain(count: usize) -> (Graph<TestOp>, Vec<ValueId>) {
    let mut b = builder();
    let mut values = vec![input(&mut b)];
    for index in 0..count {
        let next = apply(&mut b, BY_ROWS, &[values[index]]);
        values.push(next);
    }
    (finish(b, &values[count..]), values)
}

const MISSING_BARRIER: Result<(), CheckError> = Err(CheckError::MissingBarrier { node: 1, earlier: 0 });

#[test]
#[allow(clippy::reversed_empty_ranges)] // That is what is wrong with them.
fn phases_cover_all_nodes_once_and_in_order() {
    let graph = independent(3);
    for right in [&[0..3][..], &[0..1, 1..3], &[0..1, 1..2, 2..3]] {
        assert_eq!(verdict_on_phases(&graph, right), Ok(()), "{right:?}");
    }
    let wrong: [(&[Range<usize>], usize); 9] = [
        (&[], 0),
        (&[1..3], 0),
        (&[0..1, 2..3], 1),
        (&[0..2, 1..3], 1),
        (&[0..1, 1..1, 1..3], 1),
        (&[0..2, 2..1, 1..3], 1),
        (&[0..4], 0),
        (&[0..2, 2..4], 1),
        (&[0..2], 1),
    ];
    for (phases, phase) in wrong {
        assert_eq!(verdict_on_phases(&graph, phases), Err(CheckError::PhasesBroken { phase }), "{phases:?}");
    }
}

/// An op that reads the result of an earlier one.
fn pair(earlier: TestOp, later: TestOp) -> Graph<TestOp> {
    let mut b = builder();
    let x = input(&mut b);
    let made = apply(&mut b, earlier, &[x]);
    let read = apply(&mut b, later, &[made]);
    finish(b, &[read])
}

#[test]
fn only_rows_of_the_same_thread_are_read_without_a_barrier() {
    assert_eq!(verdict_on_one_phase(&pair(BY_ROWS, BY_ROWS)), Ok(()));
    let whole = TestOp { splits_rows: false, ..BY_ROWS };
    let other_rows = TestOp { is_row_local: false, ..BY_ROWS };
    let output_rows = TestOp { rows: Extent::OutputRows, ..BY_ROWS };
    // What the earlier one reads does not matter.
    assert_eq!(verdict_on_one_phase(&pair(other_rows, BY_ROWS)), Ok(()));
    assert_eq!(verdict_on_one_phase(&pair(output_rows, output_rows)), Ok(()));
    for (earlier, later) in [
        (whole, BY_ROWS),
        (BY_ROWS, whole),
        (BY_ROWS, other_rows),
        (BY_ROWS, output_rows),
        (output_rows, BY_ROWS),
    ] {
        let graph = pair(earlier, later);
        assert_eq!(verdict_on_one_phase(&graph), MISSING_BARRIER, "{earlier:?}, {later:?}");
        assert_eq!(verdict_on_phases(&graph, &one_by_one(&graph)), Ok(()));
    }
}

#[test]
fn a_missing_barrier_is_found_anywhere() {
    // The last node needs the first, through a view of a view and as the second operand, past one that it does not need.
    let whole = TestOp { splits_rows: false, ..BY_ROWS };
    let mut b = builder();
    let x = input(&mut b);
    let made = apply(&mut b, whole, &[x]);
    let view = b.columns(made, 4, 8).expect("fits");
    let view = b.columns(view, 2, 4).expect("fits");
    let other = apply(&mut b, BY_ROWS, &[x]);
    let last = apply(&mut b, BY_ROWS, &[x, view]);
    let graph = finish(b, &[other, last]);
    let missing = |node, earlier| Err(CheckError::MissingBarrier { node, earlier });
    assert_eq!(verdict_on_one_phase(&graph), missing(2, 0));
    assert_eq!(verdict_on_phases(&graph, &[0..1, 1..3]), Ok(()));
    assert_eq!(verdict_on_phases(&graph, &[0..2, 2..3]), Ok(()));
}

#[test]
fn a_state_is_not_read_in_the_phase_that_writes_it() {
    // The reader has as many rows as a state has: none.
    for rows in [Extent::Rows, Extent::Fixed(0)] {
        let mut b = builder();
        let (x, before) = (input(&mut b), state(&mut b, 0));
        let after = apply(&mut b, STORE, &[before, x]);
        let read = apply(&mut b, TestOp { rows, ..BY_ROWS }, &[x, after]);
        let graph = finish(b, &[read]);
        assert_eq!(verdict_on_one_phase(&graph), MISSING_BARRIER, "{rows:?}");
        assert_eq!(verdict_on_phases(&graph, &one_by_one(&graph)), Ok(()));
    }
}

#[test]
fn a_state_is_not_written_in_the_phase_that_used_it() {
    // Two ops, each of the first or the second state: a write waits for readers and writers of its own state alone.
    let read = |b: &mut Builder<TestOp>, x, state| apply(b, BY_ROWS, &[x, state]);
    let store = |b: &mut Builder<TestOp>, x, state| apply(b, STORE, &[state, x]);
    let recur = |b: &mut Builder<TestOp>, x, state| apply(b, RECUR, &[x, state]);
    type Use = fn(&mut Builder<TestOp>, ValueId, ValueId) -> ValueId;
    let cases: [(&str, Use, Use); 4] = [
        ("store after read", read, store),
        ("recur after read", read, recur),
        ("store after store", store, store),
        ("recur after store", store, recur),
    ];
    for (name, first, second) in cases {
        for is_same in [true, false] {
            let mut b = builder();
            let (x, one, two) = (input(&mut b), state(&mut b, 0), state(&mut b, 1));
            let used = first(&mut b, x, one);
            // A store has given the state's next version.
            let is_version = b.shape(used).cols == 0;
            let again = if is_version { used } else { one };
            let next = second(&mut b, x, if is_same { again } else { two });
            let computed = [used, next].into_iter().filter(|&value| b.shape(value).cols > 0);
            let computed: Vec<ValueId> = computed.collect();
            let graph = finish(b, &computed);
            let wanted = if is_same { MISSING_BARRIER } else { Ok(()) };
            assert_eq!(verdict_on_one_phase(&graph), wanted, "{name}");
            assert_eq!(verdict_on_phases(&graph, &one_by_one(&graph)), Ok(()), "{name}");
        }
    }
}

#[test]
fn a_store_reads_rows_of_the_same_thread_without_a_barrier() {
    // Its result is a state without rows; what counts is what it stores.
    for (rows, wanted) in [(Extent::Rows, Ok(())), (Extent::Fixed(0), MISSING_BARRIER)] {
        let mut b = builder();
        let (x, before) = (input(&mut b), state(&mut b, 0));
        let made = apply(&mut b, TestOp { rows, ..BY_ROWS }, &[x]);
        apply(&mut b, STORE, &[before, x, made]);
        assert_eq!(verdict_on_one_phase(&finish(b, &[])), wanted, "{rows:?}");
    }
}

#[test]
fn exactly_arena_values_have_allocations() {
    let mut b = builder();
    let (x, before) = (input(&mut b), state(&mut b, 0));
    let weight = b.weight(Tag::new("w"), DType::F32, Shape::fixed(1, COLS)).expect("fits");
    let made = apply(&mut b, BY_ROWS, &[x, weight]);
    let view = b.columns(made, 0, 8).expect("fits");
    let output = apply(&mut b, BY_ROWS, &[view]);
    let after = apply(&mut b, STORE, &[before, output]);
    let graph = finish(b, &[output]);
    let (allocations, arenas) = apart(&graph);
    let phases = one_by_one(&graph);
    assert_eq!(check(&graph, &phases, &allocations, &arenas), Ok(()));
    for id in [x, made, output] {
        let mut without = allocations.clone();
        without[id.index()] = None;
        assert_eq!(check(&graph, &phases, &without, &arenas), Err(CheckError::NoAllocation(id)));
    }
    for id in [before, weight, view, after] {
        let mut with = allocations.clone();
        with[id.index()] = Some(Allocation { offset: 0, bytes: graph.bytes(id) });
        assert_eq!(check(&graph, &phases, &with, &arenas), Err(CheckError::UnneededAllocation(id)));
    }
    // The list may not end early.
    let short = check(&graph, &phases, &allocations[..output.index()], &arenas);
    assert_eq!(short, Err(CheckError::NoAllocation(output)));
}

#[test]
fn an_allocation_is_aligned_of_the_right_size_and_inside_its_arena() {
    let (graph, values) = chain(1);
    let (allocations, arenas) = apart(&graph);
    let phases = one_by_one(&graph);
    let last = values[1];
    let bytes = graph.bytes(last);
    assert_eq!(
        allocations[last.index()],
        Some(Allocation { offset: bytes, bytes }),
        "it ends where the arena ends"
    );
    let with = |allocation: Allocation, arena_bytes: usize, placement: Placement| {
        let mut allocations = allocations.clone();
        allocations[last.index()] = Some(allocation);
        let arenas = [ArenaSize { bytes: arena_bytes, placement, ..arenas[0] }];
        check(&graph, &phases, &allocations, &arenas)
    };
    let right = Allocation { offset: bytes, bytes };
    assert_eq!(with(right, 2 * bytes, Placement::Host), Ok(()));
    assert_eq!(with(right, 2 * bytes + 1, Placement::Host), Ok(()));
    let wrong = [
        (right, 2 * bytes - 1),
        (Allocation { offset: bytes + ALIGNMENT, bytes }, 2 * bytes),
        (Allocation { offset: bytes + 1, bytes }, 4 * bytes),
        (Allocation { offset: bytes + ALIGNMENT / 2, bytes }, 4 * bytes),
        (Allocation { offset: bytes, bytes: bytes + 1 }, 4 * bytes),
        (Allocation { offset: bytes, bytes: bytes - 1 }, 4 * bytes),
        (Allocation { offset: usize::MAX - ALIGNMENT + 1, bytes }, usize::MAX),
    ];
    for (allocation, arena_bytes) in wrong {
        assert_eq!(
            with(allocation, arena_bytes, Placement::Host),
            Err(CheckError::BadAllocation(last)),
            "{allocation:?}"
        );
    }
    // The arena of a different memory does not count. The input is reported first.
    let elsewhere = with(right, 4 * bytes, Placement::Device(0));
    assert_eq!(elsewhere, Err(CheckError::BadAllocation(values[0])));
}

/// The verdict on the nodes one by one, with the allocations of some values moved to those of others.
fn verdict_on_moves(graph: &Graph<TestOp>, moves: &[(ValueId, ValueId)]) -> Result<(), CheckError> {
    let (mut allocations, arenas) = apart(graph);
    for &(value, to) in moves {
        let to = allocations[to.index()].expect("it has one").offset;
        allocations[value.index()].as_mut().expect("it has one").offset = to;
    }
    check(graph, &one_by_one(graph), &allocations, &arenas)
}

#[test]
fn an_allocation_is_free_after_the_last_reader_and_not_before() {
    let (graph, v) = chain(4);
    let overlap = |first, second, phase| Err(CheckError::Overlap { first, second, phase });
    // The result of a node may not lie where its operand does, and may where the operand's operand did.
    assert_eq!(verdict_on_moves(&graph, &[(v[1], v[0])]), overlap(v[0], v[1], 0));
    assert_eq!(verdict_on_moves(&graph, &[(v[2], v[1])]), overlap(v[1], v[2], 1));
    assert_eq!(verdict_on_moves(&graph, &[(v[2], v[0])]), Ok(()));
    assert_eq!(verdict_on_moves(&graph, &[(v[3], v[1]), (v[4], v[0])]), Ok(()));
    assert_eq!(verdict_on_moves(&graph, &[(v[2], v[0]), (v[3], v[0])]), overlap(v[2], v[3], 2));

    // Read a second time, through a view and twice by one node, it is live longer.
    let mut b = builder();
    let x = input(&mut b);
    let kept = apply(&mut b, BY_ROWS, &[x]);
    let view = b.columns(kept, 4, 8).expect("fits");
    let between = apply(&mut b, BY_ROWS, &[kept]);
    let reader = apply(&mut b, BY_ROWS, &[between, view, view]);
    let last = apply(&mut b, BY_ROWS, &[reader]);
    let graph = finish(b, &[last]);
    assert_eq!(verdict_on_moves(&graph, &[(between, kept)]), overlap(kept, between, 1));
    assert_eq!(verdict_on_moves(&graph, &[(reader, kept)]), overlap(kept, reader, 2));
    assert_eq!(verdict_on_moves(&graph, &[(last, kept)]), Ok(()));
}

#[test]
fn inputs_are_live_together_and_outputs_until_the_end() {
    let mut b = builder();
    let x = input(&mut b);
    let y = b.input(Tag::new("y"), DType::F32, Shape::per_row(COLS)).expect("the only one");
    let first = apply(&mut b, BY_ROWS, &[x]);
    let view = b.columns(first, 0, 4).expect("fits");
    let second = apply(&mut b, BY_ROWS, &[y]);
    let last = apply(&mut b, BY_ROWS, &[second]);
    // The first output is a view of what no node reads.
    let graph = finish(b, &[view, last]);
    let overlap = |first, second, phase| Err(CheckError::Overlap { first, second, phase });
    assert_eq!(verdict_on_moves(&graph, &[(y, x)]), overlap(x, y, 0));
    assert_eq!(verdict_on_moves(&graph, &[(second, first)]), overlap(first, second, 1));
    assert_eq!(verdict_on_moves(&graph, &[(last, first)]), overlap(first, last, 2));
    assert_eq!(verdict_on_moves(&graph, &[(second, x)]), Ok(()), "nobody reads that any more");
    assert_eq!(verdict_on_moves(&graph, &[(last, y)]), Ok(()));
}

#[test]
fn values_of_one_phase_are_live_together() {
    let graph = independent(2);
    let [x, first, second] = [0, 1, 2].map(ValueId::new);
    let (mut allocations, arenas) = apart(&graph);
    let in_one_phase = |allocations: &[Option<Allocation>]| check(&graph, &[0..2], allocations, &arenas);
    assert_eq!(in_one_phase(&allocations), Ok(()));
    allocations.swap(first.index(), second.index());
    assert_eq!(in_one_phase(&allocations), Ok(()), "in whichever order they lie");
    allocations[second.index()] = allocations[first.index()];
    assert_eq!(in_one_phase(&allocations), Err(CheckError::Overlap { first, second, phase: 0 }));
    // What the first node alone reads is there until the phase ends.
    allocations[second.index()] = allocations[x.index()];
    assert_eq!(in_one_phase(&allocations), Err(CheckError::Overlap { first: x, second, phase: 0 }));
    // A result that nobody reads, of a node that is there for its state, is there while the phase runs, and then no more.
    let mut b = builder();
    let (x, one) = (input(&mut b), state(&mut b, 0));
    let unread = apply(&mut b, RECUR, &[x, one]);
    let made = apply(&mut b, BY_ROWS, &[x]);
    let graph = finish(b, &[made]);
    let (mut allocations, arenas) = apart(&graph);
    allocations[made.index()] = allocations[unread.index()];
    let overlap = CheckError::Overlap { first: unread, second: made, phase: 0 };
    assert_eq!(check(&graph, &[0..2], &allocations, &arenas), Err(overlap));
    assert_eq!(check(&graph, &one_by_one(&graph), &allocations, &arenas), Ok(()));
}

#[test]
fn values_may_touch_and_not_overlap() {
    // Two inputs of two and three cache lines: at which offsets of the second do they share bytes?
    let line = ALIGNMENT / size_of::<f32>();
    let mut b = Builder::new(RowCounts { rows: 1, output_rows: 1 });
    let x = b.input(Tag::new("x"), DType::F32, Shape::per_row(2 * line)).expect("the only one");
    let y = b.input(Tag::new("y"), DType::F32, Shape::per_row(3 * line)).expect("the only one");
    let made = apply(&mut b, BY_ROWS, &[x, y]);
    let graph = finish(b, &[made]);
    let (mut allocations, mut arenas) = apart(&graph);
    arenas[0].bytes = 16 * ALIGNMENT;
    let mut at = |id: ValueId, line: usize| {
        allocations[id.index()].as_mut().expect("placed").offset = line * ALIGNMENT;
        allocations.clone()
    };
    at(x, 4);
    at(made, 12);
    for line in 0..10 {
        let wanted = match line {
            0 | 1 | 6.. => Ok(()),
            2 | 3 => Err(CheckError::Overlap { first: y, second: x, phase: 0 }),
            _ => Err(CheckError::Overlap { first: x, second: y, phase: 0 }),
        };
        assert_eq!(check(&graph, &one_by_one(&graph), &at(y, line), &arenas), wanted, "{line}");
    }
}

#[test]
fn memories_do_not_overlap_each_other() {
    let mut b = builder();
    let x = input(&mut b);
    b.place(Placement::Device(0));
    let first = apply(&mut b, BY_ROWS, &[x]);
    b.place(Placement::Device(1));
    let second = apply(&mut b, BY_ROWS, &[x, first]);
    let third = apply(&mut b, BY_ROWS, &[x, second]);
    let graph = finish(b, &[third]);
    let (allocations, arenas) = apart(&graph);
    assert_eq!(arenas.len(), 3);
    let offsets = [x, first, second].map(|id| allocations[id.index()].expect("placed").offset);
    assert_eq!(offsets, [0; 3], "at the same offsets, and alive together");
    assert_eq!(check(&graph, &one_by_one(&graph), &allocations, &arenas), Ok(()));
    let overlap = CheckError::Overlap { first: second, second: third, phase: 2 };
    assert_eq!(verdict_on_moves(&graph, &[(third, second)]), Err(overlap));
}

#[test]
fn empty_values_occupy_nothing_and_free_nothing() {
    let mut b = builder();
    let x = input(&mut b);
    let empty = b.input(Tag::new("empty"), DType::F32, Shape::per_row(0)).expect("the only one");
    let first = apply(&mut b, BY_ROWS, &[x, empty]);
    let second = apply(&mut b, BY_ROWS, &[first]);
    let third = apply(&mut b, BY_ROWS, &[second, x]);
    let graph = finish(b, &[third]);
    assert_eq!(verdict_on_moves(&graph, &[(empty, x)]), Ok(()));
    // The empty value is dead by now, and where it lay the input still is.
    let overlap = CheckError::Overlap { first: x, second, phase: 1 };
    assert_eq!(verdict_on_moves(&graph, &[(empty, x), (second, x)]), Err(overlap));
}
