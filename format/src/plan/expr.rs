//! A tensor of the model as an expression over the checkpoint's (`docs/families.md`, the expressions).
//!
//! Every operand carries its shape, so a reader finds any element of the result without the inventory.
//! The constructors check ranks and sizes: shapes come from a file.

use safetensors::Dtype;

use crate::Invalid;

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
                to.extend(parts.iter().rev().map(|p| &p.expr))
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

/// A constructor's result: the fault names no tensor, its caller knows which one is made.
type Made = Result<Value, Invalid>;

impl Value {
    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

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
        let first = parts
            .first()
            .ok_or_else(|| fault("tensors to stack", "none"))?;
        if dim > first.shape.len() {
            return Err(fault(
                &format!("at least {dim} dimensions"),
                &shape_text(first),
            ));
        }
        for part in &parts {
            check_dtype(first, part)?;
            if part.shape != first.shape {
                return Err(fault(
                    &format!("every part {}", shape_text(first)),
                    &described(part),
                ));
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
        let first = parts
            .first()
            .ok_or_else(|| fault("tensors to put together", "none"))?;
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
            return Err(fault(
                &format!("at least {to} along dimension {dim}"),
                &size.to_string(),
            ));
        }
        let mut shape = self.shape.clone();
        if let Some(d) = shape.get_mut(dim) {
            *d = to - from;
        }
        made(
            self.dtype,
            shape,
            Expr::Slice {
                dim,
                from,
                to,
                of: Box::new(self),
            },
        )
    }

    /// Swaps dimensions `a` and `b`.
    ///
    /// # Errors
    /// It lacks one of them.
    pub fn transpose(self, a: usize, b: usize) -> Made {
        (size(&self, a)?, size(&self, b)?);
        let mut shape = self.shape.clone();
        shape.swap(a, b);
        made(
            self.dtype,
            shape,
            Expr::Transpose {
                a,
                b,
                of: Box::new(self),
            },
        )
    }

    /// Takes the even elements of dimension `dim`, then the odd ones.
    ///
    /// # Errors
    /// It lacks the dimension, or has an odd number of them.
    pub fn interleave(self, dim: usize) -> Made {
        let size = size(&self, dim)?;
        if size % 2 != 0 {
            return Err(fault(
                &format!("an even number along dimension {dim}"),
                &size.to_string(),
            ));
        }
        made(
            self.dtype,
            self.shape.clone(),
            Expr::Interleave {
                dim,
                of: Box::new(self),
            },
        )
    }

    /// Reorders the rows of each of `heads` heads: every pair's first, then every pair's second.
    ///
    /// # Errors
    /// Its rows are not pairs of each head.
    pub fn rope(self, heads: u64) -> Made {
        let rows = size(&self, 0)?;
        let step = heads.checked_mul(2).filter(|&s| s > 0);
        if step.is_none_or(|s| rows % s != 0) {
            return Err(fault(
                &format!("rows in pairs for each of {heads} heads"),
                &rows.to_string(),
            ));
        }
        made(
            self.dtype,
            self.shape.clone(),
            Expr::Rope {
                heads,
                of: Box::new(self),
            },
        )
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
        made(
            dtype,
            vec![rows / 2, 4, width],
            Expr::Queries {
                a: Box::new(a),
                b: Box::new(b),
            },
        )
    }

    /// Replaces the last element.
    ///
    /// # Errors
    /// It has none.
    pub fn last(self, value: f32) -> Made {
        if self.elements() == 0 {
            return Err(fault("at least one element", "none"));
        }
        made(
            self.dtype,
            self.shape.clone(),
            Expr::Last {
                f32_bits: value.to_bits(),
                of: Box::new(self),
            },
        )
    }
}

fn made(dtype: Dtype, shape: Vec<u64>, expr: Expr) -> Made {
    shape
        .iter()
        .try_fold(1_u64, |n, &d| n.checked_mul(d))
        .ok_or_else(too_many)?;
    Ok(Value { dtype, shape, expr })
}

fn size(value: &Value, dim: usize) -> Result<u64, Invalid> {
    let found = value.shape.get(dim).copied();
    found.ok_or_else(|| {
        fault(
            &format!("at least {} dimensions", dim.saturating_add(1)),
            &described(value),
        )
    })
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
    Invalid {
        expected: expected.to_owned(),
        found: found.to_owned(),
        ..Invalid::default()
    }
}
