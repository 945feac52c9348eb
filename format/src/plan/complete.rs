//! Whether all parts of a converted tensor are there: every source of its conversion, and of a list
//! of experts every one (`docs/families.md`, refinements).

use serde_json::Value as Json;

use super::config::{count, look};
use super::expr::Value;
use super::family::Model;
use super::natural::index;
use super::table::{Op, RuleText};
use super::tree::Experts;
use crate::{Error, Invalid};

/// The fields that say how many experts there are (and not how many a token goes to).
const EXPERT_COUNTS: [&str; 4] = ["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"];

/// Missing elements of a list are named one by one up to this many in a row, beyond as a range.
const NAMED_IN_A_ROW: u64 = 8;

/// A tensor of the checkpoint that a conversion gathers.
pub(super) struct Part {
    /// What the `*` of its pattern stood for.
    pub(super) star: Option<String>,
    pub(super) value: Value,
}

/// What of a conversion's sources is not there, or not as it must be.
pub(super) fn faults(
    rule: &RuleText,
    parts: &[Vec<Part>],
    around: &[String; 2],
    experts: Option<&Experts>,
    model: &Model<'_>,
) -> Vec<Error> {
    // What a quantized release has beside its weights need not be there.
    if matches!(rule.ops.first(), Some(Op::Dequantize)) {
        return Vec::new();
    }
    let stacked = rule.sources.iter().any(|pattern| pattern.contains("*."));
    if !stacked {
        let lacking = rule.sources.iter().zip(parts).filter(|(_, parts)| parts.is_empty());
        return lacking.map(|(pattern, _)| missing(&spelled(pattern, "", around), model.class)).collect();
    }
    let lists: Result<Vec<Vec<u64>>, Error> = parts.iter().map(|parts| indexes(parts)).collect();
    let lists = match lists {
        Ok(lists) => lists,
        Err(fault) => return vec![fault],
    };
    let there = lists.iter().flatten().max().map_or(0, |&last| last.saturating_add(1));
    let wanted = match experts {
        Some(experts) => wanted(there, experts, rule, model.config),
        None => Ok(there),
    };
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(told) => {
            let pattern = rule.sources.first().map_or("", String::as_str);
            return vec![too_many(there, &told, &spelled(pattern, "*", around))];
        }
    };
    let each = rule.sources.iter().zip(&lists);
    each.flat_map(|(pattern, list)| gaps(list, wanted).into_iter().map(move |gap| (pattern, gap)))
        .flat_map(|(pattern, gap)| gap_faults(pattern, gap, around, model.class))
        .collect()
}

/// How many experts there must be where this many are there; what the config says where they are more.
fn wanted(there: u64, experts: &Experts, rule: &RuleText, config: &Json) -> Result<u64, Vec<u64>> {
    if let Some(field) = &experts.count {
        // LongCat's list may go on past its experts: the rest is cut off later.
        return Ok(count(config, field).map_or(there, |told| told.max(there)));
    }
    // Ernie's list is the text model's experts and then as many of the vision tower's.
    let lists =
        if matches!(rule.ops.first(), Some(Op::ErnieExperts)) { rule.targets.len() as u64 } else { 1 };
    let configs = [Some(config), config.get("text_config"), config.get("vision_config")];
    let fields =
        configs.into_iter().flatten().flat_map(|c| EXPERT_COUNTS.iter().filter_map(|field| look(c, field)));
    let numbers = fields.flat_map(|field| match field {
        Json::Array(each) => each.iter().filter_map(Json::as_u64).collect(),
        other => other.as_u64().into_iter().collect::<Vec<u64>>(),
    });
    let told: Vec<u64> = numbers.filter(|&n| n > 0).map(|n| n.saturating_mul(lists)).collect();
    match told.iter().copied().filter(|&n| n >= there).min() {
        Some(wanted) => Ok(wanted),
        None if told.is_empty() => Ok(there),
        None => Err(told),
    }
}

/// The elements' indexes, rising.
fn indexes(parts: &[Part]) -> Result<Vec<u64>, Error> {
    let mut out: Vec<u64> = Vec::with_capacity(parts.len());
    for part in parts {
        let star = part.star.as_deref().unwrap_or_default();
        let fault = |expected: &str| {
            Error::from(Invalid {
                tensor: part.value.expr.source_name().map(str::to_owned),
                expected: expected.to_owned(),
                found: format!("`{star}`"),
                ..Invalid::default()
            })
        };
        let index = index(star).ok_or_else(|| fault("an index in a list"))?;
        if out.last().is_some_and(|&last| last >= index) {
            return Err(fault("every index in a list once"));
        }
        out.push(index);
    }
    Ok(out)
}

/// The runs of `0..wanted` that a rising list lacks: each first index and the one after the last.
fn gaps(list: &[u64], wanted: u64) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    let mut next = 0;
    for &index in list.iter().chain([&wanted]) {
        if index > next {
            out.push((next, index.min(wanted)));
        }
        next = index.saturating_add(1);
    }
    out
}

fn gap_faults(pattern: &str, (from, to): (u64, u64), around: &[String; 2], class: &str) -> Vec<Error> {
    let name = |index: u64| spelled(pattern, &index.to_string(), around);
    if to - from > NAMED_IN_A_ROW {
        return vec![missing(&format!("{}` to `{}", name(from), name(to - 1)), class)];
    }
    (from..to).map(|index| missing(&name(index), class)).collect()
}

/// The name that a source pattern stands for.
fn spelled(pattern: &str, index: &str, [before, after]: &[String; 2]) -> String {
    let text = pattern.replace("*.", &format!("{index}.")).replace('\\', "");
    format!("{before}{text}{after}")
}

fn too_many(there: u64, told: &[u64], name: &str) -> Error {
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    Error::from(Invalid {
        tensor: Some(name.to_owned()),
        expected: format!("{} experts, as config.json says", told.join(" or ")),
        found: there.to_string(),
        hint: Some("check that config.json is this checkpoint's".to_owned()),
        ..Invalid::default()
    })
}

/// That a tensor is not in the checkpoint.
pub(super) fn missing(name: &str, class: &str) -> Error {
    Error::from(Invalid {
        tensor: Some(name.to_owned()),
        expected: format!("a tensor that every {class} has"),
        found: "none".to_owned(),
        hint: Some("the checkpoint is incomplete".to_owned()),
        ..Invalid::default()
    })
}
