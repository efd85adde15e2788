//! The values of a run: a buffer for each, held until its last reader has read it.

use crate::memory::zeros;
use verbatim_backend::BindError;
use verbatim_graph::{Graph, RowCounts, ValueId};
use verbatim_quant::DType;

/// Memory for the values of a run. It serves any number of programs, one at a time.
#[derive(Default)]
pub struct Arena {
    /// By value of the graph. Only values that are no views have a buffer.
    buffers: Vec<Buffer>,
}

/// The elements of a value, row by row.
#[derive(Default)]
pub(crate) enum Buffer {
    /// Not made yet, not needed any more, or never there: views, weights and states.
    #[default]
    Empty,
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl Arena {
    /// Forgets the last run and makes room for this graph's values.
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
    /// Zeros for a value of which there are so many rows.
    pub(crate) fn zeros(graph: &Graph, id: ValueId, rows: RowCounts) -> Result<Buffer, BindError> {
        let value = graph.value(id);
        // The bounds' sizes were checked when the graph was built, and there are no more rows than they say.
        let count = value.shape.rows.at(rows) * value.shape.cols;
        let buffer = match value.dtype {
            DType::F32 => zeros(count).map(Buffer::F32),
            DType::I32 => zeros(count).map(Buffer::I32),
            other => unreachable!("only ops that backends make give or take values of {other}"),
        };
        buffer.ok_or(BindError::NoMemory(4 * count))
    }

    pub(crate) fn f32_mut(&mut self) -> &mut [f32] {
        match self {
            Buffer::F32(elements) => elements,
            Buffer::I32(_) | Buffer::Empty => unreachable!("made for an op that gives floats"),
        }
    }

    pub(crate) fn i32_mut(&mut self) -> &mut [i32] {
        match self {
            Buffer::I32(elements) => elements,
            Buffer::F32(_) | Buffer::Empty => unreachable!("made for an op that gives integers"),
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
