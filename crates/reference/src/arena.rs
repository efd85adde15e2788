//! The values of a run: a buffer for each, freed after its last use.

use crate::memory::zeros;
use verbatim_backend::BindError;
use verbatim_graph::{Graph, RowCounts, ValueId};
use verbatim_quant::DType;

/// Memory for the values of a run. Any number of programs can share one arena, one run at a time.
#[derive(Default)]
pub struct Arena {
    /// By value of the graph. Views have no buffer.
    buffers: Vec<Buffer>,
}

/// The elements of a value, row by row.
#[derive(Default)]
pub(crate) enum Buffer {
    /// Not computed yet, freed, or not stored here: views, weights and states.
    #[default]
    Empty,
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl Arena {
    /// Drops the values of the last run and resizes for this graph's values.
    pub(crate) fn reset(&mut self, graph: &Graph) {
        self.buffers.clear();
        self.buffers.resize_with(graph.values().len(), Buffer::default);
    }

    pub(crate) fn put(&mut self, id: ValueId, buffer: Buffer) {
        self.buffers[id.index()] = buffer;
    }

    pub(crate) fn free(&mut self, id: ValueId) {
        self.put(id, Buffer::Empty);
    }

    /// A value of floats; `None` if it holds something else.
    pub(crate) fn f32<'a>(&'a self, graph: &Graph, id: ValueId, rows: RowCounts) -> Option<Rows<'a, f32>> {
        match &self.buffers[graph.root(id).0.index()] {
            Buffer::F32(elements) => Some(Rows::new(graph, id, rows, elements)),
            Buffer::I32(_) | Buffer::Empty => None,
        }
    }

    /// A value of integers; `None` if it holds something else.
    pub(crate) fn i32<'a>(&'a self, graph: &Graph, id: ValueId, rows: RowCounts) -> Option<Rows<'a, i32>> {
        match &self.buffers[graph.root(id).0.index()] {
            Buffer::I32(elements) => Some(Rows::new(graph, id, rows, elements)),
            Buffer::F32(_) | Buffer::Empty => None,
        }
    }
}

impl Buffer {
    /// Zeros for a value, with the row counts `rows`.
    pub(crate) fn zeros(graph: &Graph, id: ValueId, rows: RowCounts) -> Result<Buffer, BindError> {
        let value = graph.value(id);
        // The sizes for the graph's bounds were checked when it was built, and `rows` is within the bounds.
        let count = value.shape.rows.at(rows) * value.shape.cols;
        let buffer = match value.dtype {
            DType::F32 => zeros(count).map(Buffer::F32),
            DType::I32 => zeros(count).map(Buffer::I32),
            other => unreachable!("model-level ops have no values of {other}"),
        };
        buffer.ok_or(BindError::NoMemory(4 * count))
    }

    pub(crate) fn f32_mut(&mut self) -> &mut [f32] {
        match self {
            Buffer::F32(elements) => elements,
            Buffer::I32(_) | Buffer::Empty => unreachable!("allocated for an op that returns floats"),
        }
    }

    pub(crate) fn i32_mut(&mut self) -> &mut [i32] {
        match self {
            Buffer::I32(elements) => elements,
            Buffer::F32(_) | Buffer::Empty => unreachable!("allocated for an op that returns integers"),
        }
    }

    /// The elements whose bytes, four for each, an input was filled with.
    pub(crate) fn copy_from(&mut self, bytes: &[u8]) {
        let words = bytes.as_chunks::<4>().0.iter().copied();
        match self {
            Buffer::F32(elements) => {
                elements.iter_mut().zip(words).for_each(|(x, b)| *x = f32::from_ne_bytes(b))
            }
            Buffer::I32(elements) => {
                elements.iter_mut().zip(words).for_each(|(x, b)| *x = i32::from_ne_bytes(b))
            }
            Buffer::Empty => {}
        }
    }
}

/// The rows of a value: all of a buffer's columns, or some if the value is a view.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    elements: &'a [T],
    /// Rows.
    count: usize,
    /// Columns of the buffer.
    stride: usize,
    /// The first column.
    start: usize,
    /// Columns.
    cols: usize,
}

impl<'a, T> Rows<'a, T> {
    fn new(graph: &Graph, id: ValueId, rows: RowCounts, elements: &'a [T]) -> Rows<'a, T> {
        let (shape, (root, start)) = (graph.value(id).shape, graph.root(id));
        let stride = graph.value(root).shape.cols;
        Rows { elements, count: shape.rows.at(rows), stride, start, cols: shape.cols }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn row(&self, row: usize) -> &'a [T] {
        &self.elements[row * self.stride + self.start..][..self.cols]
    }
}
