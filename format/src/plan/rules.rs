//! A conversion's names: which source pattern a checkpoint's name matches, and what it becomes
//! (`docs/families.md`, rule 3).

use fancy_regex::{Captures, Regex};

use super::natural::index;
use super::patterns::{Source, pattern};
use super::table::{Kind, Op, RuleText};
use crate::{Error, Invalid, Result};

/// A renaming, or a conversion of the tensors it gathers.
pub(super) struct Rule {
    pub(super) text: &'static RuleText,
    /// The starts of the names it sees, the longer first; the rest is what is matched.
    scope: Option<[String; 2]>,
    /// Its sources, longest first, and the pattern of them all.
    sources: Vec<Source>,
    regex: Regex,
    /// Of a `group`: whether source 0 was seen.
    active: bool,
}

/// A name that matched.
pub(super) struct Renamed {
    /// What it becomes.
    pub(super) name: String,
    /// Which of the rule's sources matched.
    pub(super) source: usize,
    /// What the source's `*` stood for.
    pub(super) star: Option<String>,
    /// What is before the match and after it.
    pub(super) around: [String; 2],
}

impl Rule {
    /// Compiles a rule of the table.
    ///
    /// # Errors
    /// A pattern is none: the table's own fault.
    pub(super) fn new(text: &'static RuleText, scope: Option<&str>, prefix: &str) -> Result<Self> {
        let base = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
        let scope = scope.map(|s| if s.is_empty() { String::new() } else { format!("{s}.") });
        let (pattern, sources) = pattern(&text.sources);
        let regex = Regex::new(&pattern).map_err(|cause| fault(&pattern, &cause))?;
        Ok(Rule { text, scope: scope.map(|s| [format!("{base}{s}"), s]), sources, regex, active: false })
    }

    /// What a name becomes, where the rule matches it.
    ///
    /// # Errors
    /// The name is more than the patterns can be tried on.
    pub(super) fn rename(&mut self, name: &str) -> Result<Option<Renamed>> {
        if self.text.kind == Kind::Pair {
            return Ok(half_layer(name));
        }
        let head = match &self.scope {
            None => "",
            Some(heads) => match heads.iter().find(|head| name.starts_with(head.as_str())) {
                Some(head) => head.as_str(),
                None => return Ok(None),
            },
        };
        let rest = name.get(head.len()..).unwrap_or_default();
        let Some(start) = self.start(rest) else {
            return Ok(None);
        };
        let found = self.regex.captures_from_pos(rest, start).map_err(|cause| fault(name, &cause))?;
        let Some(found) = found else {
            return Ok(None);
        };
        let head = head.to_owned();
        Ok(self.renamed(&head, rest, &found))
    }

    fn renamed(&mut self, head: &str, rest: &str, found: &Captures<'_, str>) -> Option<Renamed> {
        let (source, matched) = self.sources.iter().find_map(|s| Some((s, found.get(s.group)?)))?;
        let own = source.own_group.and_then(|g| found.get(g)).map_or("", |m| m.as_str());
        let target = match self.text.kind {
            Kind::Group => {
                self.active |= source.place == 0;
                if !self.active {
                    return None;
                }
                self.text.targets.get(source.place)?.replace("\\1", own)
            }
            Kind::Offset => {
                let number = index(own)?.checked_add(self.text.offset)?;
                self.text.targets.first()?.replace("\\1", &number.to_string())
            }
            Kind::Plain | Kind::Pair => self.text.targets.first()?.replace("\\1", own),
        };
        let before = format!("{head}{}", rest.get(..matched.start())?);
        let after = rest.get(matched.end()..)?;
        Some(Renamed {
            name: format!("{before}{target}{after}"),
            source: source.place,
            star: source.star_group.and_then(|g| found.get(g)).map(|m| m.as_str().to_owned()),
            around: [before, after.to_owned()],
        })
    }

    /// Where a match may begin at the earliest; none where there can be none. Most names match few
    /// rules, and looking for a text is far cheaper than trying a pattern.
    fn start(&self, rest: &str) -> Option<usize> {
        let possible = self.sources.iter().filter(|source| rest.contains(&source.literal));
        possible.filter_map(|source| rest.find(&source.lead)).min()
    }

    /// The rule's operations.
    pub(super) fn ops(&self) -> &'static [Op] {
        &self.text.ops
    }
}

/// Dory: layers 2i and 2i + 1 of the checkpoint are layer i's attention and its MLP.
fn half_layer(name: &str) -> Option<Renamed> {
    let parts: Vec<&str> = name.split('.').collect();
    let at = (0..parts.len()).find(|&i| matches!(parts.get(i..), Some([list, number, half, ..]) if list.ends_with("layers") && index(number).is_some() && matches!(*half, "mixer" | "attn_alpha" | "mlp_alpha")))?;
    let number = index(parts.get(at + 1)?)?;
    let half = match *parts.get(at + 2)? {
        "attn_alpha" => "lambda_1",
        "mlp_alpha" => "lambda_2",
        _ if number % 2 == 0 => "self_attn",
        _ => "mlp",
    };
    let mut renamed = parts.clone();
    let layer = (number / 2).to_string();
    renamed.splice(at + 1..at + 3, [layer.as_str(), half]);
    Some(Renamed { name: renamed.join("."), source: 0, star: None, around: [String::new(), String::new()] })
}

fn fault(name: &str, cause: &fancy_regex::Error) -> Error {
    Error::from(Invalid {
        tensor: Some(name.to_owned()),
        expected: "a name that its model type's patterns can be tried on".to_owned(),
        found: cause.to_string(),
        ..Invalid::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(text: serde_json::Value, scope: Option<&str>) -> Rule {
        let text: RuleText = serde_json::from_value(text).unwrap();
        Rule::new(Box::leak(Box::new(text)), scope, "model").unwrap()
    }

    fn renamed(rule: &mut Rule, name: &str) -> Option<String> {
        rule.rename(name).unwrap().map(|renamed| renamed.name)
    }

    #[test]
    fn replaces_a_match_where_it_matched() {
        let mut norm = rule(json!({"s": ["(?<!_)norm\\."], "t": ["ln."]}), None);
        assert_eq!(renamed(&mut norm, "q_norm.norm.weight").as_deref(), Some("q_norm.ln.weight"));
        assert_eq!(renamed(&mut norm, "q_norm.weight"), None);
    }

    #[test]
    fn ends_a_pattern_where_a_word_ends() {
        let mut layers = rule(json!({"s": ["layer"], "t": ["layers"]}), None);
        assert_eq!(renamed(&mut layers, "layer.1").as_deref(), Some("layers.1"));
        assert_eq!(renamed(&mut layers, "layers.1"), None);
    }

    #[test]
    fn prefers_longer_sources_and_says_which() {
        let mut rule = rule(json!({"s": ["gate", "gate.weight"], "t": ["g"]}), None);
        let found = rule.rename("a.gate.weight").unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.source), ("a.g", 1));
    }

    #[test]
    fn takes_one_part_for_a_star() {
        let mut experts =
            rule(json!({"s": ["experts.*.up.weight", "experts.*.gate.weight"], "t": ["experts.both"]}), None);
        let found = experts.rename("m.experts.12.gate.weight").unwrap().unwrap();
        assert_eq!(
            (found.name.as_str(), found.source, found.star.as_deref()),
            ("m.experts.both", 1, Some("12"))
        );
        assert_eq!(found.around, ["m.".to_owned(), String::new()]);
        assert_eq!(renamed(&mut experts, "m.experts.1.2.gate.weight"), None);
    }

    #[test]
    fn sees_only_names_of_its_scope() {
        let mut scoped = rule(json!({"s": ["^a"], "t": ["b"]}), Some("tower"));
        assert_eq!(renamed(&mut scoped, "model.tower.a.w").as_deref(), Some("model.tower.b.w"));
        assert_eq!(renamed(&mut scoped, "tower.a.w").as_deref(), Some("tower.b.w"));
        assert_eq!(renamed(&mut scoped, "a.w"), None);
    }

    #[test]
    fn keeps_groups_and_adds_to_numbers() {
        let mut group = rule(json!({"s": ["(a|b)\\.x"], "t": ["y.\\1"]}), None);
        assert_eq!(renamed(&mut group, "m.b.x").as_deref(), Some("m.y.b"));
        let mut offset =
            rule(json!({"s": ["q\\.(\\d+)"], "t": ["l.\\1"], "kind": "offset", "offset": 1}), None);
        assert_eq!(renamed(&mut offset, "q.9").as_deref(), Some("l.10"));
        assert_eq!(renamed(&mut offset, "q.\u{665}"), None);
    }

    #[test]
    fn starts_a_group_with_its_first_source() {
        let mut pairs = rule(json!({"s": ["n0", "n1"], "t": ["n1", "n2"], "kind": "group"}), None);
        assert_eq!(renamed(&mut pairs, "n1"), None);
        assert_eq!(renamed(&mut pairs, "n0").as_deref(), Some("n1"));
        assert_eq!(renamed(&mut pairs, "n1").as_deref(), Some("n2"));
    }

    #[test]
    fn halves_layers() {
        let mut halves = rule(json!({"s": ["layers\\.(\\d+)"], "t": ["layers.\\1"], "kind": "pair"}), None);
        assert_eq!(
            renamed(&mut halves, "m.layers.4.mixer.q.weight").as_deref(),
            Some("m.layers.2.self_attn.q.weight")
        );
        assert_eq!(
            renamed(&mut halves, "m.layers.5.mixer.up.weight").as_deref(),
            Some("m.layers.2.mlp.up.weight")
        );
        assert_eq!(renamed(&mut halves, "m.layers.5.mlp_alpha").as_deref(), Some("m.layers.2.lambda_2"));
        assert_eq!(renamed(&mut halves, "m.layers.x.mixer"), None);
    }
}
