//! One op at a time: a graph is built from values and run.
#![allow(dead_code)] // Each test binary uses a part.

use verbatim_backend::{Backend, Outputs, StateLayers, StateStore, WeightKind, WeightSource};
use verbatim_graph::{Builder, Lifetime, Op, Placement, RowCounts, Shape, Tag, ValueId};
use verbatim_quant::{DType, dequantize, quantize};
use verbatim_reference::{Arena, Reference, State, Weights};

pub const OUT: Tag = Tag::new("out");

/// The values of an input.
enum Values {
    Floats(Vec<f32>),
    Integers(Vec<i32>),
}

/// A graph being built, with the values of its leaves.
pub struct Case {
    pub builder: Builder,
    rows: RowCounts,
    weights: Weights,
    weight_count: u32,
    state_count: u32,
    pub state: State,
    inputs: Vec<Values>,
}

impl Case {
    /// A step of `rows` rows, all of them output rows.
    pub fn new(rows: usize) -> Case {
        Case::with_output_rows(rows, rows)
    }

    pub fn with_output_rows(rows: usize, output_rows: usize) -> Case {
        let rows = RowCounts { rows, output_rows };
        let mut builder = Builder::new(rows);
        builder.place(Placement::Host);
        let (weights, state) = (Reference.new_weights(), Reference.new_state());
        Case { builder, rows, weights, weight_count: 0, state_count: 0, state, inputs: Vec::new() }
    }

    /// An input of all rows.
    pub fn floats(&mut self, x: &[f32]) -> ValueId {
        let shape = Shape::per_row(x.len() / self.rows.rows);
        self.input(DType::F32, shape, Values::Floats(x.to_vec()))
    }

    /// An input of all rows.
    pub fn integers(&mut self, x: &[i32]) -> ValueId {
        let shape = Shape::per_row(x.len() / self.rows.rows);
        self.integers_of(shape, x)
    }

    pub fn integers_of(&mut self, shape: Shape, x: &[i32]) -> ValueId {
        self.input(DType::I32, shape, Values::Integers(x.to_vec()))
    }

    fn input(&mut self, dtype: DType, shape: Shape, elements: Values) -> ValueId {
        let tag = Tag::indexed("input", self.inputs.len() as u32);
        self.inputs.push(elements);
        self.builder.input(tag, dtype, shape).expect("a fresh tag")
    }

    pub fn vector(&mut self, x: &[f32]) -> ValueId {
        self.weight(WeightKind::Vector, DType::F32, 1, x)
    }

    pub fn matrix(&mut self, dtype: DType, rows: usize, x: &[f32]) -> ValueId {
        self.weight(WeightKind::Matrix, dtype, rows, x)
    }

    pub fn experts(&mut self, dtype: DType, experts: usize, rows: usize, x: &[f32]) -> ValueId {
        self.weight(WeightKind::Experts(experts), dtype, experts * rows, x)
    }

    fn weight(&mut self, kind: WeightKind, dtype: DType, rows: usize, x: &[f32]) -> ValueId {
        let cols = x.len() / rows;
        let bytes = encoded(dtype, x);
        let source = WeightSource { kind, dtype, rows, cols, bytes: &bytes };
        Reference.append_weight(&mut self.weights, source).expect("a weight that fits");
        let tag = Tag::indexed("weight", self.weight_count);
        self.weight_count += 1;
        self.builder.weight(tag, dtype, Shape::fixed(rows, cols)).expect("a fresh tag")
    }

    /// The next layer's state.
    pub fn layer(&mut self, layers: &StateLayers) -> ValueId {
        self.state.append(layers).expect("small");
        let tag = Tag::indexed("state", self.state_count);
        self.state_count += 1;
        self.builder.state(tag).expect("a fresh tag")
    }

    pub fn apply(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        self.builder.apply(op, operands).expect("the shape rule is kept")
    }

    /// The rows of the op's result.
    pub fn run(&mut self, op: Op, operands: &[ValueId]) -> Vec<Vec<f32>> {
        let value = self.apply(op, operands);
        self.builder.output(OUT, value).expect("a computed value");
        self.run_graph()
    }

    pub fn run_graph(&mut self) -> Vec<Vec<f32>> {
        let graph = std::mem::replace(&mut self.builder, Builder::new(self.rows)).finish();
        assert!(graph.leaves(Lifetime::Input).count() <= self.inputs.len());
        let program = Reference.prepare(&graph, &self.weights).expect("weights that fit");
        let mut arena = Arena::default();
        let inputs = &self.inputs;
        let outputs = Reference
            .run(&program, &mut arena, self.rows, &self.weights, &mut self.state, |input| {
                match &inputs[input.tag().index as usize] {
                    Values::Floats(x) => input.f32(x),
                    Values::Integers(x) => input.i32(x),
                }
            })
            .expect("a run");
        let rows = outputs.rows(OUT).unwrap_or(0);
        assert!(outputs.row(OUT, rows).is_none());
        (0..rows).map(|row| outputs.row(OUT, row).expect("a row").to_vec()).collect()
    }
}

pub fn encoded(dtype: DType, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(x.len()).expect("whole blocks")];
    quantize(dtype, x, &mut bytes).expect("small values");
    bytes
}

/// Values after encoding and decoding.
pub fn rounded(dtype: DType, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    dequantize(dtype, &encoded(dtype, x), &mut out).expect("whole blocks");
    out
}

/// `count` values in -1..1.
pub fn random_values(random: &mut verbatim_graph::random::Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.unit()).collect()
}

pub fn assert_near(given: &[f32], wanted: &[f64], tolerance: f64) {
    assert_eq!(given.len(), wanted.len());
    for (i, (&given, &wanted)) in given.iter().zip(wanted).enumerate() {
        let error = (f64::from(given) - wanted).abs();
        assert!(error <= tolerance * wanted.abs().max(1.0), "element {i}: {given}, not {wanted}");
    }
}

pub fn exact(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}
