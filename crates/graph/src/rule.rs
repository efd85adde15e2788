//! Shape rules: the checks that they are made of. Backends use them for ops of their own.

use crate::{Attention, Extent, Real, Shape, Value};
use verbatim_quant::DType;

/// The operands of an op that is being applied. Each check says in words what does not fit.
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

    /// There are so many operands.
    pub fn count(&self, wanted: usize) -> Result<(), String> {
        let given = self.0.len();
        if given == wanted { Ok(()) } else { Err(format!("takes {wanted} operands, not {given}")) }
    }

    /// There are at least so many operands.
    pub fn at_least(&self, wanted: usize) -> Result<(), String> {
        let given = self.0.len();
        if given >= wanted { Ok(()) } else { Err(format!("takes at least {wanted} operands, not {given}")) }
    }

    /// An operand has this element type.
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

    /// An operand is f32 and of this shape.
    pub fn is_f32(&self, i: usize, wanted: Shape) -> Result<(), String> {
        let given = self.f32(i)?;
        if given == wanted { Ok(()) } else { Err(format!("operand {i} is {given}, not {wanted}")) }
    }

    /// One i32 for each row; the rows.
    pub fn ids(&self, i: usize) -> Result<Extent, String> {
        self.at_least(i + 1)?;
        self.dtype(i, DType::I32)?;
        match self.cols(i) {
            1 => Ok(self.shape(i).rows),
            cols => Err(format!("operand {i} has {cols} columns, not 1")),
        }
    }

    /// The rows of an operand that has always as many.
    pub fn fixed_rows(&self, i: usize) -> Result<usize, String> {
        match self.shape(i).rows {
            Extent::Fixed(rows) => Ok(rows),
            _ => Err(format!("operand {i} is {}, not of fixed size", self.shape(i))),
        }
    }

    /// Two extents are the same.
    pub fn same_rows(&self, given: Extent, wanted: Extent) -> Result<(), String> {
        if given == wanted { Ok(()) } else { Err(format!("{given:?} where {wanted:?} is needed")) }
    }

    /// An operand has `heads * head_dim` columns.
    pub fn is_product(&self, i: usize, heads: usize, head_dim: usize) -> Result<(), String> {
        if heads.checked_mul(head_dim) == Some(self.cols(i)) {
            Ok(())
        } else {
            Err(format!("operand {i} has {} columns, not {heads} heads of {head_dim}", self.cols(i)))
        }
    }

    /// An i32 operand with several columns per row, such as expert ids; returns the columns.
    pub fn choices(&self, i: usize, rows: Extent) -> Result<usize, String> {
        self.at_least(i + 1)?;
        self.dtype(i, DType::I32)?;
        self.same_rows(self.shape(i).rows, rows)?;
        match self.cols(i) {
            0 => Err(format!("operand {i} has no columns")),
            used => Ok(used),
        }
    }

    /// The shape of q, which the result of attention has too.
    pub fn attention(&self, attention: Attention) -> Result<Shape, String> {
        let Attention { heads, kv_heads, head_dim, window, softcap, sinks, paths, .. } = attention;
        let sinks_at = if paths { 7 } else { 5 };
        self.count(sinks_at + usize::from(sinks))?;
        let q = self.f32(0)?;
        self.is_product(0, heads, head_dim)?;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(format!("{heads} heads are not a multiple of {kv_heads} KV heads"));
        }
        if window == Some(0) {
            return Err("a window of 0 positions leaves nothing to attend to".into());
        }
        if let Some(cap) = softcap {
            is_cap(cap)?;
        }
        if sinks {
            self.is_f32(sinks_at, Shape::fixed(1, heads))?;
        }
        if paths {
            self.same_rows(self.ids(5)?, q.rows)?;
            self.choices(6, q.rows)?;
        }
        self.same_rows(self.ids(2)?, q.rows)?;
        self.same_rows(self.ids(3)?, q.rows)?;
        self.dtype(4, DType::I32)?;
        self.fixed_rows(4)?;
        Ok(q)
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
        let used = self.choices(2, rows)?;
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

pub(crate) fn is_cap(cap: Real) -> Result<(), String> {
    if cap.0 > 0.0 && cap.0.is_finite() { Ok(()) } else { Err(format!("a cap of {cap:?} is not above 0")) }
}
