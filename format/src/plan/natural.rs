//! The order of names (`docs/families.md`, rule 2): part by part, numbers as numbers.

use super::{Inventory, TensorInfo};

/// Indexes from here on belong to no model's list.
const INDEX_LIMIT: u64 = 1 << 30;

/// The tensors in the order of their names.
pub(super) fn sorted(inventory: &Inventory) -> Vec<(&String, &TensorInfo)> {
    let mut tensors: Vec<_> = inventory.iter().collect();
    tensors.sort_by_cached_key(|(name, _)| key(name));
    tensors
}

/// Bytes that are in order where names are: part by part, a number before a text, a part's trailing
/// digits as a number, a part without digits before the same one with some.
///
/// Comparing bytes is several times as fast as comparing parts, and there are millions of comparisons.
fn key(name: &str) -> Vec<u8> {
    const NUMBER: u8 = 1;
    const TEXT: u8 = 2;
    // After a text: more than the end of a shorter one, a NUL that is the text's own.
    const OWN_NUL: u8 = 0xFF;
    let mut key = Vec::with_capacity(name.len() + 16);
    for part in name.split('.') {
        let (stem, digits) = split_digits(part);
        if stem.is_empty() && !digits.is_empty() {
            key.push(NUMBER);
            push_number(&mut key, digits);
            continue;
        }
        key.push(TEXT);
        for byte in stem.bytes() {
            key.push(byte);
            if byte == 0 {
                key.push(OWN_NUL);
            }
        }
        key.extend([0, u8::from(!digits.is_empty())]);
        if !digits.is_empty() {
            push_number(&mut key, digits);
        }
    }
    key
}

/// A number of any length: how many digits, then the digits.
fn push_number(key: &mut Vec<u8>, digits: &str) {
    let digits = digits.trim_start_matches('0');
    key.extend((digits.len() as u64).to_be_bytes());
    key.extend(digits.bytes());
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

    fn in_order(mut names: Vec<&str>) -> Vec<&str> {
        names.sort_by_cached_key(|name| key(name));
        names
    }

    #[test]
    fn orders_numbers_as_numbers() {
        let names = vec!["a.10.w", "a.9.w", "a.b.w", "a.w10", "a.w9", "a.w", "a", "b", "a.w0"];
        let want = vec!["a", "a.9.w", "a.10.w", "a.b.w", "a.w", "a.w0", "a.w9", "a.w10", "b"];
        assert_eq!(in_order(names), want);
    }

    #[test]
    fn orders_numbers_longer_than_any_integer() {
        let long = "9".repeat(500);
        assert!(key(&format!("a.{long}")) < key(&format!("a.1{long}")));
        assert!(key("a.007") < key("a.8"));
    }

    #[test]
    fn orders_texts_with_any_byte_in_them() {
        let names = vec!["a.\u{0}", "a", "a\u{0}b", "a\u{0}", "", "a.x", "."];
        assert_eq!(in_order(names), ["", ".", "a", "a.\u{0}", "a.x", "a\u{0}", "a\u{0}b"]);
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
