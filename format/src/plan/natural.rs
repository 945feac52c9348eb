//! The order of names (`docs/families.md`, rule 2): part by part, numbers as numbers.

use std::cmp::Ordering;

/// Indexes from here on belong to no model's list.
const INDEX_LIMIT: u64 = 1 << 30;

/// Orders names part by part: a number before a text, a part's trailing digits as a number.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    // Neighbours share most of their parts: those are passed over as bytes.
    let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let shared = a.get(..same).and_then(|same| same.rfind('.')).map_or(0, |dot| dot + 1);
    let rest = |name| str::get(name, shared..).unwrap_or_default();
    let (mut left, mut right) = (rest(a).split('.'), rest(b).split('.'));
    loop {
        match (left.next(), right.next()) {
            (Some(x), Some(y)) if x == y => {}
            (Some(x), Some(y)) => match compare_parts(x, y) {
                Ordering::Equal => {}
                other => return other,
            },
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
        }
    }
}

fn compare_parts(x: &str, y: &str) -> Ordering {
    let ((x_stem, x_digits), (y_stem, y_digits)) = (split_digits(x), split_digits(y));
    let number = |stem: &str, digits: &str| stem.is_empty() && !digits.is_empty();
    let texts = (!number(x_stem, x_digits)).cmp(&!number(y_stem, y_digits));
    texts.then_with(|| x_stem.cmp(y_stem)).then_with(|| {
        let (p, q) = (x_digits.trim_start_matches('0'), y_digits.trim_start_matches('0'));
        // A part without digits comes before the same one with some, 0 among them.
        (!x_digits.is_empty()).cmp(&!y_digits.is_empty()).then(p.len().cmp(&q.len())).then(p.cmp(q))
    })
}

fn split_digits(part: &str) -> (&str, &str) {
    let stem = part.trim_end_matches(|c: char| c.is_ascii_digit());
    part.split_at(stem.len())
}

/// The index that a part of a name spells, written as Python writes a number: `7`, never `07`.
pub(super) fn index(part: &str) -> Option<u64> {
    let canonical = part == "0" || !part.starts_with('0');
    let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !canonical || !digits {
        return None;
    }
    part.parse().ok().filter(|&i| i < INDEX_LIMIT)
}

/// A name with every index as `*`: the same for every element of a list.
pub(super) fn without_indexes(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').map(|p| if index(p).is_some() { "*" } else { p }).collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(mut names: Vec<&str>) -> Vec<&str> {
        names.sort_by(|a, b| compare(a, b));
        names
    }

    #[test]
    fn orders_numbers_as_numbers() {
        let names = vec!["a.10.w", "a.9.w", "a.b.w", "a.w10", "a.w9", "a.w", "a", "b", "a.w0"];
        let want = vec!["a", "a.9.w", "a.10.w", "a.b.w", "a.w", "a.w0", "a.w9", "a.w10", "b"];
        assert_eq!(sorted(names), want);
    }

    #[test]
    fn orders_numbers_longer_than_any_integer() {
        let long = "9".repeat(500);
        assert_eq!(compare(&format!("a.{long}"), &format!("a.1{long}")), Ordering::Less);
        assert_eq!(compare("a.007", "a.8"), Ordering::Less);
    }

    #[test]
    fn takes_only_plain_indexes() {
        assert_eq!(index("0"), Some(0));
        assert_eq!(index("12"), Some(12));
        for bad in ["", "01", "+1", "1a", "\u{664}", "99999999999999999999", "1073741824"] {
            assert_eq!(index(bad), None, "{bad}");
        }
        assert_eq!(without_indexes("model.layers.3.experts.w1"), "model.layers.*.experts.w1");
    }
}
