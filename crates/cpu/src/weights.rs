//! A model's weights in the layout that the kernels read.

use std::sync::atomic::{AtomicU64, Ordering};
use verbatim_matrix::{PackedExperts, PackedMatrix};

/// One weight.
pub enum Weight {
    /// The right-hand side of a matmul, or an embedding table: packed.
    Matrix(PackedMatrix),
    /// The right-hand sides of an MoE matmul: packed, one for each expert.
    Experts(PackedExperts),
    /// Norm weights, biases, RoPE frequency factors.
    Vector(Vec<f32>),
}

impl Weight {
    /// (rows, columns); a vector is one row, and experts are stacked.
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Weight::Matrix(matrix) => (matrix.rows(), matrix.cols()),
            Weight::Experts(experts) => (experts.rows() * experts.matrices().len(), experts.cols()),
            Weight::Vector(vector) => (1, vector.len()),
        }
    }
}

/// All weights of a model. A graph's weight leaf with index i refers to the i-th.
pub struct Weights {
    id: u64,
    items: Vec<Weight>,
}

impl Default for Weights {
    /// An empty table.
    fn default() -> Weights {
        Weights::new(Vec::new())
    }
}

impl Weights {
    /// A table of these weights.
    pub fn new(items: Vec<Weight>) -> Weights {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Weights { id: NEXT.fetch_add(1, Ordering::Relaxed), items }
    }

    /// The weights, in the order of their indices.
    pub fn items(&self) -> &[Weight] {
        &self.items
    }

    /// Appends a weight. Programs that were compiled before stay valid.
    pub fn push(&mut self, weight: Weight) {
        self.items.push(weight);
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        let bytes = |weight: &Weight| match weight {
            Weight::Matrix(matrix) => matrix.packed_bytes(),
            Weight::Experts(experts) => experts.packed_bytes(),
            Weight::Vector(vector) => size_of_val(&vector[..]),
        };
        self.items.iter().map(bytes).sum()
    }

    /// A process-wide unique id of the table.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn matrix(&self, index: usize) -> &PackedMatrix {
        match &self.items[index] {
            Weight::Matrix(matrix) => matrix,
            Weight::Experts(_) | Weight::Vector(_) => unreachable!("checked when the program was compiled"),
        }
    }

    pub(crate) fn experts(&self, index: usize) -> &PackedExperts {
        match &self.items[index] {
            Weight::Experts(experts) => experts,
            Weight::Matrix(_) | Weight::Vector(_) => unreachable!("checked when the program was compiled"),
        }
    }

    pub(crate) fn vector(&self, index: usize) -> &[f32] {
        match &self.items[index] {
            Weight::Vector(vector) => vector,
            Weight::Matrix(_) | Weight::Experts(_) => unreachable!("checked when the program was compiled"),
        }
    }
}
