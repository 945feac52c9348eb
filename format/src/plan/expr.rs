//! A tensor of the model as an expression over the checkpoint's (`docs/families.md`, the expressions).
//!
//! Every operand carries its shape, so a reader finds any element of the result without the inventory.

use safetensors::Dtype;

/// A tensor: what it is made of, and its dtype and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The dtype of every source it is made of.
    pub dtype: Dtype,
    /// Its shape; the product of its dimensions fits a `u64`.
    pub shape: Vec<u64>,
    /// How it is made.
    pub expr: Expr,
}

impl Value {
    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(d))
    }
}

/// How a tensor is made of the checkpoint's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// The checkpoint's tensor of this name.
    Src(String),
    /// Tensors of one shape along a new dimension.
    Stack {
        /// The new dimension.
        dim: usize,
        /// The tensors, in order.
        parts: Vec<Value>,
    },
    /// Tensors after one another along a dimension they have.
    Cat {
        /// The dimension.
        dim: usize,
        /// The tensors, in order.
        parts: Vec<Value>,
    },
    /// The elements `from..to` of a dimension.
    Slice {
        /// The dimension.
        dim: usize,
        /// The first that is taken.
        from: u64,
        /// The first after them.
        to: u64,
        /// What is sliced.
        of: Box<Value>,
    },
    /// Two dimensions swapped.
    Transpose {
        /// One dimension.
        a: usize,
        /// The other.
        b: usize,
        /// What is transposed.
        of: Box<Value>,
    },
    /// Along a dimension, the even elements and then the odd ones.
    Interleave {
        /// The dimension.
        dim: usize,
        /// What is reordered.
        of: Box<Value>,
    },
    /// The n rows taken as `[heads, n / heads / 2, 2]`, the last two dimensions swapped.
    Rope {
        /// How many heads.
        heads: u64,
        /// What is reordered.
        of: Box<Value>,
    },
    /// Two `[2n, width]` tensors as `[n, 4, width]`: a's row 2i, b's 2i, b's 2i + 1, a's 2i + 1.
    Queries {
        /// The outer rows.
        a: Box<Value>,
        /// The inner rows.
        b: Box<Value>,
    },
    /// The last element replaced.
    Last {
        /// The bits of its value as a binary32; exact in bf16 too.
        f32_bits: u32,
        /// The tensor.
        of: Box<Value>,
    },
}

impl Expr {
    /// The checkpoint's tensor that this is, unchanged.
    pub fn source_name(&self) -> Option<&str> {
        match self {
            Expr::Src(name) => Some(name),
            _ => None,
        }
    }

    /// The checkpoint's tensors it needs, in the order they occur.
    pub fn sources(&self) -> Sources<'_> {
        Sources { left: vec![self] }
    }

    fn push_operands<'a>(&'a self, to: &mut Vec<&'a Expr>) {
        match self {
            Expr::Src(_) => {}
            Expr::Stack { parts, .. } | Expr::Cat { parts, .. } => {
                to.extend(parts.iter().rev().map(|p| &p.expr));
            }
            Expr::Queries { a, b } => to.extend([&b.expr, &a.expr]),
            Expr::Slice { of, .. }
            | Expr::Transpose { of, .. }
            | Expr::Interleave { of, .. }
            | Expr::Rope { of, .. }
            | Expr::Last { of, .. } => to.push(&of.expr),
        }
    }
}

/// An iterator over the names of an expression's sources.
#[derive(Debug)]
pub struct Sources<'a> {
    left: Vec<&'a Expr>,
}

impl<'a> Iterator for Sources<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        while let Some(expr) = self.left.pop() {
            if let Expr::Src(name) = expr {
                return Some(name);
            }
            expr.push_operands(&mut self.left);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sources_in_order_however_deep() {
        let src = |name: &str| Value::src(name, Dtype::BF16, &[2, 4]).unwrap();
        let stacks = [["a", "b"], ["c", "d"]].map(|names| Value::stack(0, names.map(src).to_vec()).unwrap());
        let value = Value::cat(1, stacks.to_vec()).unwrap();
        assert_eq!(value.expr.sources().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        let woven = Value::queries(src("x"), src("y")).unwrap();
        assert_eq!(woven.expr.sources().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(woven.expr.source_name(), None);
        assert_eq!(src("x").expr.source_name(), Some("x"));
    }
}
