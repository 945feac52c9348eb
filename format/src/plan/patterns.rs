//! A rule's source patterns as one regular expression, and what can be told of a name without trying
//! it (`docs/families.md`, rule 3).

/// A source pattern within the rule's.
pub(super) struct Source {
    /// Its place among the rule's sources.
    pub(super) place: usize,
    /// The capture group that is all of it.
    pub(super) group: usize,
    /// The capture group of its own group, where it has one.
    pub(super) own_group: Option<usize>,
    /// The capture group of its `*`, where it has one.
    pub(super) star_group: Option<usize>,
    /// A text that every name it matches holds.
    pub(super) literal: String,
    /// The text that its match begins with; may be empty.
    pub(super) lead: String,
}

/// One pattern of all sources, longest first, each a capture group.
pub(super) fn pattern(sources: &[String]) -> (String, Vec<Source>) {
    let mut order: Vec<usize> = (0..sources.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(sources.get(i).map_or(0, String::len)));
    let (mut branches, mut out, mut groups) = (Vec::new(), Vec::new(), 0);
    for place in order {
        let Some(text) = sources.get(place) else {
            continue;
        };
        let group = groups + 1;
        let own_groups = own_groups(text);
        let stars = text.matches("*.").count();
        groups = group + own_groups + stars;
        let (literal, lead) = literals(text);
        out.push(Source {
            place,
            group,
            own_group: (own_groups > 0).then_some(group + 1),
            star_group: (stars > 0).then_some(group + own_groups + 1),
            literal,
            lead,
        });
        // Digits are ASCII; a name's part ends where the pattern does; `*` is one part, an index.
        // After a word's character `\b` is the table's `(?!\w)`, and needs no backtracking: a pattern
        // without lookaround of its own takes time that only grows with the name.
        let whole = text.ends_with(|c: char| c.is_ascii_alphanumeric());
        let end = if whole { r"\b" } else { "" };
        branches.push(format!("({}{end})", text.replace("*.", r"([^.]*)\.").replace(r"\d", "[0-9]")));
    }
    (branches.join("|"), out)
}

/// How many capture groups a pattern of the table has.
fn own_groups(pattern: &str) -> usize {
    let opens = pattern.match_indices('(').filter(|&(at, _)| {
        let escaped = pattern.get(..at).is_some_and(|before| before.ends_with('\\'));
        let special = pattern.get(at + 1..).is_some_and(|after| after.starts_with('?'));
        !escaped && !special
    });
    opens.count()
}

/// The longest text outside groups that a pattern asks for, and the text that it begins with.
fn literals(pattern: &str) -> (String, String) {
    let mut runs = vec![String::new()];
    let mut depth = 0_usize;
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => chars.next().filter(|&c| c == '.'),
            c if c.is_ascii_alphanumeric() || c == '_' => Some(c),
            _ => None,
        };
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let repeated = matches!(chars.peek(), Some('*' | '+' | '?' | '{'));
        match (plain.filter(|_| depth == 0 && !repeated), runs.last_mut()) {
            (Some(c), Some(run)) => run.push(c),
            _ => runs.push(String::new()),
        }
    }
    let lead = runs.first().cloned().unwrap_or_default();
    (runs.into_iter().max_by_key(String::len).unwrap_or_default(), lead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_texts_that_a_pattern_asks_for() {
        let cases = [
            (r"mlp\.experts\.(\d+)\.up", ".experts.", "mlp.experts."),
            (r"^model\.(.+)", "model.", ""),
            (r"(?<!_)norm\.", "norm.", ""),
            ("a?bc", "bc", ""),
            ("(x|y)", "", ""),
        ];
        for (pattern, longest, lead) in cases {
            let (literal, found) = literals(pattern);
            assert!(literal.contains(longest) && found == lead, "{pattern}: {literal} {found}");
        }
    }

    #[test]
    fn counts_capture_groups() {
        for (pattern, groups) in [("a", 0), (r"(a)(?:b)(?!c)\(", 1), ("((a)|b)", 2)] {
            assert_eq!(own_groups(pattern), groups, "{pattern}");
        }
    }

    #[test]
    fn needs_no_backtracking_without_lookaround() {
        let (pattern, _) = pattern(&["experts.*.up.weight".to_owned(), r"q\.(\d+)".to_owned()]);
        assert_eq!(pattern, r"(experts.([^.]*)\.up.weight\b)|(q\.([0-9]+))");
    }
}
