//! The trait that a graph requires of its ops, and checks for shape rules. Backends use both for their own ops.

use crate::value::{Extent, F32Bits, Shape, Value};
use std::fmt;
use std::hash::Hash;
use verbatim_quant::DType;

/// What a graph needs to know about its ops. [`Op`](crate::Op) is the set of model-level ops; a backend whose lowering adds more
/// defines its own op type, and its graphs are `Graph<ThatType>`.
pub trait OpRules: Copy + fmt::Debug + Eq + Hash {
    /// The op's name in messages and profiles.
    fn name(&self) -> &'static str;

    /// The shape rule: element type and shape of the result.
    ///
    /// # Errors
    /// A description of the mismatch.
    fn infer(&self, operands: &[&Value]) -> Result<(DType, Shape), String>;

    /// The operand that this op updates in place. The previous version can no longer be read.
    fn writes_state(&self) -> Option<usize>;

    /// Whether the result is the next version of the state that the op writes. Recurrences return a value instead, so
    /// that a graph advances each of their states once.
    fn returns_state(&self) -> bool;
}

/// The operands of an op that is being applied. Each check describes the mismatch.
pub struct Operands<'a>(&'a [&'a Value]);

impl<'a> Operands<'a> {
    /// The operands in order.
    pub fn new(values: &'a [&'a Value]) -> Operands<'a> {
        Operands(values)
    }

    /// The shape of an operand.
    pub fn shape(&self, i: usize) -> Shape {
        self.0[i].shape
    }

    /// Columns of an operand.
    pub fn cols(&self, i: usize) -> usize {
        self.shape(i).cols
    }

    /// Expects `wanted` operands.
    pub fn count(&self, wanted: usize) -> Result<(), String> {
        let given = self.0.len();
        if given == wanted { Ok(()) } else { Err(format!("takes {wanted} operands, not {given}")) }
    }

    /// Expects at least `wanted` operands.
    pub fn at_least(&self, wanted: usize) -> Result<(), String> {
        let given = self.0.len();
        if given >= wanted { Ok(()) } else { Err(format!("takes at least {wanted} operands, not {given}")) }
    }

    /// Expects this element type.
    pub fn dtype(&self, i: usize, wanted: DType) -> Result<(), String> {
        let given = self.0[i].dtype;
        if given == wanted { Ok(()) } else { Err(format!("operand {i} is {given}, not {wanted}")) }
    }

    /// The shape of an f32 operand.
    pub fn f32(&self, i: usize) -> Result<Shape, String> {
        self.at_least(i + 1)?;
        self.dtype(i, DType::F32)?;
        Ok(self.shape(i))
    }

    /// Expects f32 and this shape.
    pub fn is_f32(&self, i: usize, wanted: Shape) -> Result<(), String> {
        let given = self.f32(i)?;
        if given == wanted { Ok(()) } else { Err(format!("operand {i} is {given}, not {wanted}")) }
    }

    /// Expects one i32 per row; returns the rows.
    pub fn ids(&self, i: usize) -> Result<Extent, String> {
        self.at_least(i + 1)?;
        self.dtype(i, DType::I32)?;
        match self.cols(i) {
            1 => Ok(self.shape(i).rows),
            cols => Err(format!("operand {i} has {cols} columns, not 1")),
        }
    }

    /// Expects a fixed row count, and returns it.
    pub fn fixed_rows(&self, i: usize) -> Result<usize, String> {
        match self.shape(i).rows {
            Extent::Fixed(rows) => Ok(rows),
            _ => Err(format!("operand {i} is {}, not of fixed size", self.shape(i))),
        }
    }

    /// Expects equal extents.
    pub fn same_rows(&self, given: Extent, wanted: Extent) -> Result<(), String> {
        if given == wanted { Ok(()) } else { Err(format!("the row count is {given:?}, not {wanted:?}")) }
    }

    /// Expects `heads * head_dim` columns.
    pub fn is_heads(&self, i: usize, heads: usize, head_dim: usize) -> Result<(), String> {
        if heads.checked_mul(head_dim) == Some(self.cols(i)) {
            Ok(())
        } else {
            Err(format!("operand {i} has {} columns, not {heads} heads of {head_dim}", self.cols(i)))
        }
    }

    /// Expects one or more i32 columns per row, such as expert ids or path cells; returns the columns.
    pub fn ids_per_row(&self, i: usize, rows: Extent) -> Result<usize, String> {
        self.at_least(i + 1)?;
        self.dtype(i, DType::I32)?;
        self.same_rows(self.shape(i).rows, rows)?;
        match self.cols(i) {
            0 => Err(format!("operand {i} has no columns")),
            used => Ok(used),
        }
    }

    /// Expects i32 and this shape.
    pub fn ids_of(&self, i: usize, wanted: Shape) -> Result<(), String> {
        self.at_least(i + 1)?;
        self.dtype(i, DType::I32)?;
        let given = self.shape(i);
        if given == wanted { Ok(()) } else { Err(format!("operand {i} is {given}, not {wanted}")) }
    }

    /// Element type and shape of [`crate::Op::MoeLinear`] over x of `rows` rows and `k` columns.
    pub fn expert_linear(
        &self,
        rows: Extent,
        k: usize,
        experts: usize,
        bias: bool,
    ) -> Result<(DType, Shape), String> {
        self.count(3 + usize::from(bias))?;
        let used = self.ids_per_row(2, rows)?;
        let stacked = self.fixed_rows(1)?;
        if experts == 0 || !stacked.is_multiple_of(experts) {
            return Err(format!("the weight is {}, not {experts} experts", self.shape(1)));
        }
        if self.cols(1) != k && self.cols(1).checked_mul(used) != Some(k) {
            return Err(format!("the weight is {} but x has {k} columns for {used} experts", self.shape(1)));
        }
        if bias {
            self.is_f32(3, Shape::fixed(1, stacked))?;
        }
        match (stacked / experts).checked_mul(used) {
            Some(cols) => Ok((DType::F32, Shape { rows, cols })),
            None => Err(format!("{used} results of {} columns are too many", stacked / experts)),
        }
    }

    /// Element type and shape of [`crate::Op::Linear`] over x of `rows` rows and `k` columns.
    pub fn linear(
        &self,
        rows: Extent,
        k: usize,
        bias: bool,
        residual: bool,
    ) -> Result<(DType, Shape), String> {
        self.count(2 + usize::from(bias) + usize::from(residual))?;
        let n = self.fixed_rows(1)?;
        if self.cols(1) != k {
            return Err(format!("the weight is {} but x has {k} columns", self.shape(1)));
        }
        let shape = Shape { rows, cols: n };
        if bias {
            self.is_f32(2, Shape::fixed(1, n))?;
        }
        if residual {
            self.is_f32(2 + usize::from(bias), shape)?;
        }
        Ok((DType::F32, shape))
    }
}

pub(crate) fn is_cap(cap: F32Bits) -> Result<(), String> {
    if cap.0 > 0.0 && cap.0.is_finite() { Ok(()) } else { Err(format!("a cap of {cap:?} is not above 0")) }
}
