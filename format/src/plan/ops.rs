//! The operations of which expressions are made, each with its result's shape.
//!
//! Shapes come from a file: an operation on too few dimensions, or on sizes that don't fit, is a fault.

use safetensors::Dtype;

use super::expr::{Expr, Value};
use crate::Invalid;

/// A constructor's result: the fault names no tensor, its caller knows which one is made.
type Made = Result<Value, Invalid>;

impl Value {
    /// The checkpoint's tensor of this name.
    ///
    /// # Errors
    /// Its elements are too many to count.
    pub fn src(name: &str, dtype: Dtype, shape: &[u64]) -> Made {
        made(dtype, shape.to_vec(), Expr::Src(name.to_owned()))
    }

    /// Stacks tensors along the new dimension `dim`.
    ///
    /// # Errors
    /// There are none, or they differ in shape or dtype, or are of too few dimensions.
    pub fn stack(dim: usize, parts: Vec<Value>) -> Made {
        let first = parts.first().ok_or_else(|| fault("tensors to stack", "none"))?;
        if dim > first.shape.len() {
            return Err(fault(&format!("at least {dim} dimensions"), &shape_text(first)));
        }
        for part in &parts {
            check_dtype(first, part)?;
            if part.shape != first.shape {
                return Err(fault(&format!("every part {}", shape_text(first)), &described(part)));
            }
        }
        let mut shape = first.shape.clone();
        shape.insert(dim, parts.len() as u64);
        made(first.dtype, shape, Expr::Stack { dim, parts })
    }

    /// Puts tensors after one another along `dim`.
    ///
    /// # Errors
    /// There are none, or they differ in dtype or in another dimension.
    pub fn cat(dim: usize, parts: Vec<Value>) -> Made {
        let first = parts.first().ok_or_else(|| fault("tensors to put together", "none"))?;
        let mut shape = first.shape.clone();
        let mut total = 0_u64;
        for part in &parts {
            check_dtype(first, part)?;
            let size = size(part, dim)?;
            let mut like_first = part.shape.clone();
            if let (Some(d), Some(&f)) = (like_first.get_mut(dim), first.shape.get(dim)) {
                *d = f;
            }
            if like_first != first.shape {
                let want = format!("every part {} but for dimension {dim}", shape_text(first));
                return Err(fault(&want, &described(part)));
            }
            total = total.checked_add(size).ok_or_else(too_many)?;
        }
        if let Some(d) = shape.get_mut(dim) {
            *d = total;
        }
        made(first.dtype, shape, Expr::Cat { dim, parts })
    }

    /// Takes `from..to` of dimension `dim`.
    ///
    /// # Errors
    /// It has no such elements.
    pub fn slice(self, dim: usize, from: u64, to: u64) -> Made {
        let size = size(&self, dim)?;
        if from > to || to > size {
            return Err(fault(&format!("at least {to} along dimension {dim}"), &size.to_string()));
        }
        let mut shape = self.shape.clone();
        if let Some(d) = shape.get_mut(dim) {
            *d = to - from;
        }
        made(self.dtype, shape, Expr::Slice { dim, from, to, of: Box::new(self) })
    }

    /// Swaps dimensions `a` and `b`.
    ///
    /// # Errors
    /// It lacks one of them.
    pub fn transpose(self, a: usize, b: usize) -> Made {
        size(&self, a)?;
        size(&self, b)?;
        let mut shape = self.shape.clone();
        shape.swap(a, b);
        made(self.dtype, shape, Expr::Transpose { a, b, of: Box::new(self) })
    }

    /// Takes the even elements of dimension `dim`, then the odd ones.
    ///
    /// # Errors
    /// It lacks the dimension, or has an odd number of them.
    pub fn interleave(self, dim: usize) -> Made {
        let size = size(&self, dim)?;
        if size % 2 != 0 {
            return Err(fault(&format!("an even number along dimension {dim}"), &size.to_string()));
        }
        made(self.dtype, self.shape.clone(), Expr::Interleave { dim, of: Box::new(self) })
    }

    /// Reorders the rows of each of `heads` heads: every pair's first, then every pair's second.
    ///
    /// # Errors
    /// Its rows are not pairs of each head.
    pub fn rope(self, heads: u64) -> Made {
        let rows = size(&self, 0)?;
        let step = heads.checked_mul(2).filter(|&s| s > 0);
        if step.is_none_or(|s| rows % s != 0) {
            return Err(fault(&format!("rows in pairs for each of {heads} heads"), &rows.to_string()));
        }
        made(self.dtype, self.shape.clone(), Expr::Rope { heads, of: Box::new(self) })
    }

    /// Weaves two `[2n, width]` tensors into `[n, 4, width]`.
    ///
    /// # Errors
    /// They are not two such tensors.
    pub fn queries(a: Value, b: Value) -> Made {
        check_dtype(&a, &b)?;
        let (rows, width) = match (a.shape.as_slice(), a.shape == b.shape) {
            (&[rows, width], true) if rows % 2 == 0 => (rows, width),
            _ => {
                return Err(fault(
                    "two matrices of one shape and even rows",
                    &format!("{} and {}", shape_text(&a), shape_text(&b)),
                ));
            }
        };
        let dtype = a.dtype;
        made(dtype, vec![rows / 2, 4, width], Expr::Queries { a: Box::new(a), b: Box::new(b) })
    }

    /// Replaces the last element.
    ///
    /// # Errors
    /// It has none.
    pub fn last(self, value: f32) -> Made {
        if self.elements() == 0 {
            return Err(fault("at least one element", "none"));
        }
        made(self.dtype, self.shape.clone(), Expr::Last { f32_bits: value.to_bits(), of: Box::new(self) })
    }
}

fn made(dtype: Dtype, shape: Vec<u64>, expr: Expr) -> Made {
    shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d)).ok_or_else(too_many)?;
    Ok(Value { dtype, shape, expr })
}

fn size(value: &Value, dim: usize) -> Result<u64, Invalid> {
    let found = value.shape.get(dim).copied();
    found.ok_or_else(|| fault(&format!("at least {} dimensions", dim.saturating_add(1)), &described(value)))
}

fn check_dtype(first: &Value, part: &Value) -> Result<(), Invalid> {
    if first.dtype == part.dtype {
        return Ok(());
    }
    Err(fault(
        &format!("every part {:?}, as `{}`", first.dtype, first_source(first)),
        &format!("`{}` {:?}", first_source(part), part.dtype),
    ))
}

fn first_source(value: &Value) -> &str {
    value.expr.sources().next().unwrap_or_default()
}

fn shape_text(value: &Value) -> String {
    format!("{:?}", value.shape)
}

fn described(value: &Value) -> String {
    format!("{} of `{}`", shape_text(value), first_source(value))
}

fn too_many() -> Invalid {
    fault("fewer than 2^64 elements", "more")
}

fn fault(expected: &str, found: &str) -> Invalid {
    Invalid { expected: expected.to_owned(), found: found.to_owned(), ..Invalid::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn src(shape: &[u64]) -> Value {
        Value::src("x", Dtype::BF16, shape).unwrap()
    }

    #[test]
    fn gives_every_operation_its_shape() {
        assert_eq!(Value::stack(0, vec![src(&[4, 6]); 3]).unwrap().shape, [3, 4, 6]);
        assert_eq!(Value::stack(2, vec![src(&[4, 6]); 3]).unwrap().shape, [4, 6, 3]);
        assert_eq!(Value::cat(1, vec![src(&[4, 6]), src(&[4, 2])]).unwrap().shape, [4, 8]);
        assert_eq!(src(&[4, 6]).slice(1, 2, 5).unwrap().shape, [4, 3]);
        assert_eq!(src(&[4, 6, 8]).transpose(0, 2).unwrap().shape, [8, 6, 4]);
        assert_eq!(src(&[4, 6]).interleave(1).unwrap().shape, [4, 6]);
        assert_eq!(src(&[8]).rope(2).unwrap().shape, [8]);
        assert_eq!(Value::queries(src(&[6, 5]), src(&[6, 5])).unwrap().shape, [3, 4, 5]);
        assert_eq!(src(&[5]).last(-1.0).unwrap().shape, [5]);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let other = Value::src("y", Dtype::F32, &[4, 6]).unwrap();
        let mixed = Value::stack(0, vec![src(&[4, 6]), other.clone()]).unwrap_err();
        assert!(mixed.found.contains("`y` F32"), "{mixed}");
        assert!(Value::cat(0, vec![src(&[4, 6]), other]).is_err());
        assert!(Value::stack(0, Vec::new()).is_err());
        assert!(Value::cat(0, Vec::new()).is_err());
        assert!(Value::cat(0, vec![src(&[4, 6]), src(&[4, 7])]).is_err());
        assert!(Value::cat(0, vec![src(&[4, 6]), src(&[4])]).is_err());
        assert!(src(&[4]).slice(0, 3, 5).is_err());
        assert!(src(&[4]).slice(0, 3, 2).is_err());
        assert!(src(&[5]).interleave(0).is_err());
        assert!(src(&[8]).rope(0).is_err());
        assert!(src(&[8]).rope(u64::MAX).is_err());
        assert!(src(&[6]).rope(2).is_err());
        assert!(Value::queries(src(&[6, 5]), src(&[6, 4])).is_err());
        assert!(Value::queries(src(&[5, 5]), src(&[5, 5])).is_err());
        assert!(src(&[0]).last(0.0).is_err());
    }

    #[test]
    fn takes_any_number_of_dimensions_without_a_panic() {
        for rank in 0..=8 {
            let value = || src(&vec![2; rank]);
            for dim in 0..=9 {
                let _ = Value::stack(dim, vec![value(), value()]);
                let _ = Value::cat(dim, vec![value(), value()]);
                let _ = value().slice(dim, 0, 1);
                let _ = value().transpose(dim, 1);
                let _ = value().transpose(1, dim);
                let _ = value().interleave(dim);
            }
            let _ = value().rope(1);
            let _ = Value::queries(value(), value());
            let _ = value().last(1.0);
        }
    }

    #[test]
    fn refuses_more_elements_than_can_be_counted() {
        assert!(Value::src("x", Dtype::BF16, &[u64::MAX, 2]).is_err());
        let half = || src(&[1 << 62]);
        assert!(Value::stack(0, vec![half(); 4]).is_err());
        assert!(Value::cat(0, vec![half(); 4]).is_err());
    }
}
