//! Rejected inputs, and the error messages.

mod common;

use common::OUT;
use verbatim_backend::{
    Backend, BindError, FilledInput, InputBinding, Outputs, PackError, PrepareError, ReadError, RunError,
    WeightBytes, WeightKind, WeightSource,
};
use verbatim_graph::{Builder, F32Bits, Graph, Op, Placement, RowCounts, Shape, Tag};
use verbatim_quant::{DType, QuantError};
use verbatim_reference::{Arena, Program, Reference, Weights};

const X: Tag = Tag::new("x");
const IDS: Tag = Tag::new("ids");
const ROWS: RowCounts = RowCounts { rows: 3, output_rows: 2 };

/// Two output rows of a matmul with weight 1, a 2 by 4 matrix.
fn graph() -> Graph {
    let mut b = Builder::new(ROWS);
    let x = b.input(X, DType::F32, Shape::per_row(4)).expect("fresh");
    let ids = b.input(IDS, DType::I32, Shape::per_output_row(1)).expect("fresh");
    let weight = b.weight(Tag::indexed("weight", 1), DType::F32, Shape::fixed(2, 4)).expect("fresh");
    let output_rows = b.apply(Op::GatherRows, &[x, ids]).expect("fits");
    let y = b.apply(Op::LmHead, &[output_rows, weight]).expect("fits");
    b.output(OUT, y).expect("computed");
    b.finish()
}

fn source<'a>(
    kind: WeightKind,
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: &'a dyn WeightBytes,
) -> WeightSource<'a> {
    WeightSource { kind, dtype, rows, cols, bytes }
}

fn append(weights: &mut Weights, kind: WeightKind, rows: usize, cols: usize) {
    let bytes = vec![0; 4 * rows * cols];
    Reference.append_weight(weights, source(kind, DType::F32, rows, cols, &bytes)).expect("fits");
}

/// A table with the weight that the graph needs.
fn weights() -> Weights {
    let mut weights = Reference.new_weights();
    append(&mut weights, WeightKind::Vector, 1, 9);
    append(&mut weights, WeightKind::Matrix, 2, 4);
    weights
}

fn program(weights: &Weights) -> Program {
    Reference.prepare(&graph(), weights).expect("fits")
}

fn run(
    program: &Program,
    rows: RowCounts,
    weights: &Weights,
    fill: impl FnMut(InputBinding<'_>) -> Result<FilledInput, BindError>,
) -> Result<Vec<usize>, RunError> {
    let (mut arena, mut state) = (Arena::default(), Reference.new_state());
    let outputs = Reference.run(program, &mut arena, rows, weights, &mut state, fill)?;
    Ok(vec![outputs.rows(OUT).expect("an output")])
}

fn fill(input: InputBinding<'_>) -> Result<FilledInput, BindError> {
    let count = input.count();
    match input.tag() {
        X => input.f32(&vec![1.0; count]),
        IDS => input.i32(&vec![0; count]),
        _ => input.no_data(),
    }
}

fn prepare_error(graph: &Graph, weights: &Weights) -> String {
    Reference.prepare(graph, weights).err().expect("an error").to_string()
}

#[test]
fn weights_must_match_the_graph() {
    let mut weights = Reference.new_weights();
    append(&mut weights, WeightKind::Vector, 1, 9);
    let wanted = "weight weight[1]: the graph needs [2, 4] of F32 as Matrix, the model has";
    assert_eq!(prepare_error(&graph(), &weights), format!("{wanted} none"));
    append(&mut weights, WeightKind::Matrix, 4, 2);
    assert_eq!(prepare_error(&graph(), &weights), format!("{wanted} [4, 2] of F32 as Matrix"));
    for (kind, dtype) in [(WeightKind::Experts(2), DType::F32), (WeightKind::Matrix, DType::F16)] {
        let mut weights = Reference.new_weights();
        append(&mut weights, WeightKind::Vector, 1, 9);
        let bytes = vec![0; 8 * dtype.block_bytes()];
        Reference.append_weight(&mut weights, source(kind, dtype, 2, 4, &bytes)).expect("fits");
        assert_eq!(prepare_error(&graph(), &weights), format!("{wanted} [2, 4] of {dtype} as {kind:?}"));
    }
}

#[test]
fn a_program_runs_with_its_own_weight_table_which_may_grow() {
    let mut weights = weights();
    let program = program(&weights);
    append(&mut weights, WeightKind::Matrix, 7, 7);
    assert_eq!(run(&program, ROWS, &weights, fill).expect("a run"), [2]);
    assert!(matches!(run(&program, ROWS, &self::weights(), fill), Err(RunError::WeightsMismatch)));
}

#[test]
fn a_run_takes_at_most_the_rows_of_the_bounds() {
    let weights = weights();
    let program = program(&weights);
    for (rows, output_rows) in [(3, 2), (1, 0), (1, 1)] {
        let rows = run(&program, RowCounts { rows, output_rows }, &weights, fill).expect("a run");
        assert_eq!(rows, [output_rows]);
    }
    for (rows, output_rows) in [(4, 2), (3, 3)] {
        let given = RowCounts { rows, output_rows };
        let error = run(&program, given, &weights, fill).expect_err("too many");
        let RunError::Bind(error) = error else { panic!("{error}") };
        assert_eq!(error, BindError::TooManyRows { given, max: ROWS });
    }
}

#[test]
fn inputs_reject_data_of_the_wrong_size() {
    let weights = weights();
    let program = program(&weights);
    let with = |elements: &[f32]| {
        run(&program, ROWS, &weights, |input| match input.tag() {
            X => input.f32(elements),
            _ => fill(input),
        })
    };
    with(&[1.0; 12]).expect("the right number");
    for count in [11, 13] {
        let error = with(&vec![1.0; count]).expect_err("the wrong number").to_string();
        assert_eq!(error, format!("input x[0] takes 12 elements of F32, not {count} of F32"));
    }
    let error = run(&program, ROWS, &weights, |input| input.no_data()).expect_err("unknown").to_string();
    assert_eq!(error, "no data provided for input x[0]");
}

#[test]
fn an_index_out_of_range_is_an_error_and_the_next_run_succeeds() {
    let weights = weights();
    let program = program(&weights);
    for index in [3, -1] {
        let error = run(&program, ROWS, &weights, |input| match input.tag() {
            IDS => input.i32(&[0, index]),
            _ => fill(input),
        });
        assert!(matches!(error, Err(RunError::Panicked(_))));
    }
    run(&program, ROWS, &weights, fill).expect("a run");
}

#[test]
fn placement_on_a_device_is_rejected() {
    let mut b = Builder::new(ROWS);
    let x = b.input(X, DType::F32, Shape::per_row(4)).expect("fresh");
    b.place(Placement::Device(1));
    let y = b.apply(Op::Scale { factor: F32Bits(2.0) }, &[x]).expect("fits");
    b.output(OUT, y).expect("computed");
    let error = Reference.prepare(&b.finish(), &weights()).err();
    assert!(matches!(error, Some(PrepareError::Placement(Placement::Device(1)))));
}

#[test]
fn weights_of_invalid_shapes_sizes_or_types_are_rejected() {
    use WeightKind::{Experts, Matrix, Vector};
    let mut weights = Reference.new_weights();
    let bytes = vec![0; 4096];
    let mut append_error = |kind, dtype, rows, cols, count: usize| {
        let bytes = &bytes[..count];
        let source = source(kind, dtype, rows, cols, &bytes);
        Reference.append_weight(&mut weights, source).expect_err("no weight")
    };
    for kind in [Matrix, Experts(2), Vector] {
        assert!(matches!(append_error(kind, DType::F32, 0, 8, 0), PackError::Empty { rows: 0, cols: 8 }));
        assert!(matches!(append_error(kind, DType::F32, 2, 0, 0), PackError::Empty { rows: 2, cols: 0 }));
    }
    assert!(matches!(append_error(Experts(0), DType::F32, 2, 8, 64), PackError::Empty { rows: 0, .. }));
    for kind in [Matrix, Experts(2)] {
        let error = append_error(kind, DType::Q4_0, 2, 40, 36);
        assert!(matches!(error, PackError::PartialBlock { cols: 40, block: 32, .. }));
        let error = append_error(kind, DType::Q8_0, 2, 32, 67);
        assert!(matches!(error, PackError::Size { actual: 67, expected: 68, .. }));
        let error = append_error(kind, DType::F32, 2, usize::MAX / 4, 67);
        assert!(matches!(error, PackError::Size { expected: usize::MAX, .. }));
        for dtype in [DType::Q8_1, DType::Q8_K, DType::I8, DType::I32, DType::F64] {
            let error = append_error(kind, dtype, 2, 256, 2048);
            assert!(matches!(error, PackError::NotWeights(of) if of == dtype));
        }
    }
    // Three rows are not a multiple of two experts.
    let error = append_error(Experts(2), DType::F32, 3, 1, 12);
    assert!(matches!(error, PackError::Size { rows: 2, actual: 12, expected: 8, .. }));
    let error = append_error(Vector, DType::F32, 1, 8, 31);
    assert!(matches!(error, PackError::Decode(QuantError::WrongByteCount { .. })));
    let error = append_error(Vector, DType::I32, 1, 8, 32);
    assert!(matches!(error, PackError::Decode(QuantError::NoDecoder { .. })));
    assert_eq!(Reference.weight_bytes(&weights), 0);
}

/// Bytes that cannot be read from the middle on.
struct Unreadable(usize);

impl WeightBytes for Unreadable {
    fn byte_len(&self) -> usize {
        self.0
    }

    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), ReadError> {
        if start + into.len() > self.0 / 2 { Err("the disk is gone".into()) } else { Ok(()) }
    }
}

#[test]
fn a_weight_that_cannot_be_read_is_not_appended() {
    let mut weights = Reference.new_weights();
    let kinds = [(WeightKind::Matrix, 4, 32), (WeightKind::Experts(2), 4, 32), (WeightKind::Vector, 1, 128)];
    for (kind, rows, cols) in kinds {
        let bytes = Unreadable(4 * 34);
        let source = WeightSource { kind, dtype: DType::Q8_0, rows, cols, bytes: &bytes };
        let error = Reference.append_weight(&mut weights, source).expect_err("it cannot be read");
        assert_eq!(error.to_string(), "the disk is gone");
    }
    assert_eq!(Reference.weight_bytes(&weights), 0);
}
