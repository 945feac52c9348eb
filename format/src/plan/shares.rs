//! Which of the checkpoint's tensors a value's elements are, so that whatever is left out of a save
//! can be told by name.

use super::expr::{Expr, Value};

/// A tensor of the checkpoint, and how many of its elements are meant.
pub(super) type Share<'a> = (&'a str, u64);

/// The tensors that a value is made of.
pub(super) fn whole(value: &Value) -> Vec<Share<'_>> {
    match &value.expr {
        Expr::Src(name) => vec![(name, value.elements())],
        Expr::Stack { parts, .. } | Expr::Cat { parts, .. } => parts.iter().flat_map(whole).collect(),
        Expr::Queries { a, b } => [whole(a), whole(b)].concat(),
        Expr::Slice { dim, from, to, of } => part(of, *dim, *from, *to),
        Expr::Transpose { of, .. }
        | Expr::Interleave { of, .. }
        | Expr::Rope { of, .. }
        | Expr::Last { of, .. } => whole(of),
    }
}

/// The tensors that the elements `from..to` of a dimension are of.
pub(super) fn part(value: &Value, dim: usize, from: u64, to: u64) -> Vec<Share<'_>> {
    let size = value.shape.get(dim).copied().unwrap_or(0);
    let to = to.min(size);
    if from >= to {
        return Vec::new();
    }
    match &value.expr {
        Expr::Stack { dim: stacked, parts } if *stacked == dim => {
            let (from, to) = (to_index(from), to_index(to));
            parts.get(from..to).unwrap_or_default().iter().flat_map(whole).collect()
        }
        Expr::Stack { dim: stacked, parts } => {
            let inner = if dim > *stacked { dim - 1 } else { dim };
            parts.iter().flat_map(|each| part(each, inner, from, to)).collect()
        }
        Expr::Cat { dim: joined, parts } if *joined == dim => {
            let mut start = 0_u64;
            let mut shares = Vec::new();
            for each in parts {
                let end = start.saturating_add(each.shape.get(dim).copied().unwrap_or(0));
                shares.extend(part(each, dim, from.saturating_sub(start), to.saturating_sub(start)));
                start = end;
            }
            shares
        }
        Expr::Cat { parts, .. } => parts.iter().flat_map(|each| part(each, dim, from, to)).collect(),
        Expr::Transpose { a, b, of } => {
            let dim = match dim {
                dim if dim == *a => *b,
                dim if dim == *b => *a,
                dim => dim,
            };
            part(of, dim, from, to)
        }
        Expr::Slice { dim: cut, from: first, of, .. } if *cut == dim => {
            part(of, dim, first.saturating_add(from), first.saturating_add(to))
        }
        // Of a permutation every tensor has its share.
        _ => whole(value).into_iter().map(|(name, n)| (name, fraction(n, to - from, size))).collect(),
    }
}

fn to_index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// `n * part / size`, for a part of the size.
fn fraction(n: u64, part: u64, size: u64) -> u64 {
    let exact = u128::from(n) * u128::from(part) / u128::from(size.max(1));
    u64::try_from(exact).unwrap_or(n)
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;

    fn src(name: &str, shape: &[u64]) -> Value {
        Value::src(name, Dtype::BF16, shape).unwrap()
    }

    #[test]
    fn counts_every_tensors_elements() {
        let stack = |names: [&str; 2]| Value::stack(0, names.map(|n| src(n, &[4, 6])).to_vec()).unwrap();
        let experts = Value::cat(1, vec![stack(["g0", "g1"]), stack(["u0", "u1"])]).unwrap();
        assert_eq!(whole(&experts), [("g0", 24), ("g1", 24), ("u0", 24), ("u1", 24)]);
        assert_eq!(part(&experts, 0, 1, 2), [("g1", 24), ("u1", 24)]);
        assert_eq!(part(&experts, 1, 3, 5), [("g0", 6), ("g1", 6), ("u0", 6), ("u1", 6)]);
        assert_eq!(part(&experts, 1, 5, 99), [("u0", 18), ("u1", 18)]);
        assert_eq!(whole(&experts.slice(0, 0, 1).unwrap()), [("g0", 24), ("u0", 24)]);
    }

    #[test]
    fn follows_a_dimension_through_what_moves_it() {
        let joined = Value::cat(0, vec![src("a", &[2, 8]), src("b", &[6, 8])]).unwrap();
        let turned = joined.clone().transpose(0, 1).unwrap();
        assert_eq!(part(&turned, 1, 0, 3), [("a", 16), ("b", 8)]);
        assert_eq!(whole(&joined.clone().slice(0, 1, 3).unwrap().slice(0, 1, 2).unwrap()), [("b", 8)]);
        assert_eq!(part(&joined.interleave(0).unwrap(), 0, 0, 4), [("a", 8), ("b", 24)]);
        assert_eq!(part(&src("a", &[0, 8]), 0, 0, 4), []);
    }
}
