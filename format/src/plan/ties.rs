//! Tied tensors: one value under two names (`docs/families.md`, rule 6).

use std::collections::{HashMap, HashSet};

use fancy_regex::Regex;
use serde_json::Value as Json;

use super::config::{count, look};
use super::expr::Value;
use super::family::Model;
use super::natural::index;
use super::table::TieText;
use super::tree::Node;
use super::values::Values;
use super::{Options, Put, Tied};
use crate::{Invalid, Result};

/// The ties that hold, by the tensors' places among the values.
#[derive(Debug, Default)]
pub(super) struct Ties {
    source_of: HashMap<usize, usize>,
    sources: HashSet<usize>,
    /// All that the config ties, also where the checkpoint's values differ: they are not merged.
    asked: HashSet<usize>,
    /// Of those that hold, targets whose own tensor is in the checkpoint too.
    twice: Vec<usize>,
}

impl Ties {
    /// The tensor whose value this one has.
    pub(super) fn source_of(&self, place: usize) -> Option<usize> {
        self.source_of.get(&place).copied()
    }

    pub(super) fn is_source(&self, place: usize) -> bool {
        self.sources.contains(&place)
    }

    pub(super) fn asked(&self, place: usize) -> bool {
        self.asked.contains(&place)
    }

    /// The checkpoint's tensors that no put has, as each has the values of the one it is tied to.
    pub(super) fn saved_once(&self, values: &Values, puts: &[Put]) -> Vec<Tied> {
        if self.twice.is_empty() {
            return Vec::new();
        }
        let saved: HashSet<&str> =
            puts.iter().flat_map(Put::values).flat_map(|value| value.expr.sources()).collect();
        let mut out = Vec::new();
        for &target in &self.twice {
            let Some(source) = self.source_of(target) else {
                continue;
            };
            let of = values.at(target).value.expr.sources().filter(|name| !saved.contains(name));
            out.extend(of.map(|name| Tied { tensor: name.to_owned(), to: values.at(source).name.clone() }));
        }
        out
    }
}

/// Ties what the config ties: a name the checkpoint leaves out takes the other's value, and two that
/// are there are tied if they are equal.
pub(super) fn tie(
    model: &Model<'_>,
    values: &mut Values,
    options: &mut Options<'_>,
    notes: &mut Vec<String>,
) -> Result<Ties> {
    let pairs = pairs(model, values)?;
    // The first tensor of each source's that is there: it is the value of all of them.
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (target, source) in &pairs {
        if let Some(place) = values.place(target) {
            first.entry(source).or_insert(place);
        }
    }
    let (mut held, mut twice) = (Vec::new(), Vec::new());
    for (target, source) in &pairs {
        match (values.place(target), values.place(source)) {
            (Some(t), Some(s)) => {
                if equal(&values.at(t).value, &values.at(s).value, options)? {
                    held.push((target, source));
                    twice.push(t);
                } else {
                    notes.push(format!("`{target}` is not tied to `{source}`: their values differ"));
                }
                continue;
            }
            (Some(t), None) => copy(values, t, source),
            (None, Some(s)) => copy(values, s, target),
            (None, None) => {
                // Another tensor tied to the same source may be there.
                let Some(&other) = first.get(source.as_str()) else {
                    continue;
                };
                copy(values, other, source);
                copy(values, other, target);
            }
        }
        held.push((target, source));
    }
    let mut ties = Ties { twice, ..Ties::default() };
    for (target, source) in held {
        if let (Some(t), Some(s)) = (values.place(target), values.place(source)) {
            ties.source_of.insert(t, s);
            ties.sources.insert(s);
        }
    }
    ties.asked = pairs.iter().flat_map(|(t, s)| [t, s]).filter_map(|name| values.place(name)).collect();
    Ok(ties)
}

/// All that the config ties: targets and their sources, each target once.
fn pairs(model: &Model<'_>, values: &Values) -> Result<Vec<(String, String)>> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for ties in model.ties.iter().filter(|ties| wanted(ties, model.config)) {
        for (target, source) in expand(ties, model, values)? {
            match places.get(&target).and_then(|&place| pairs.get_mut(place)) {
                Some(pair) => pair.1 = source,
                None => {
                    places.insert(target.clone(), pairs.len());
                    pairs.push((target, source));
                }
            }
        }
    }
    Ok(pairs)
}

fn copy(values: &mut Values, from: usize, to: &str) {
    let value = values.at(from).value.clone();
    // Its name is not among the values: every caller looked.
    let _ = values.add(to, value);
}

fn equal(a: &Value, b: &Value, options: &mut Options<'_>) -> Result<bool> {
    Ok(a.dtype == b.dtype && a.shape == b.shape && (a.expr == b.expr || (options.same)(a, b)?))
}

/// Whether a config asks for these ties: one that says so, or none that says anything where they are
/// the default.
fn wanted(TieText(_, configs, default, _): &TieText, config: &Json) -> bool {
    let told: Vec<Option<bool>> = configs
        .iter()
        .map(|path| {
            let field = if path.is_empty() {
                "tie_word_embeddings".to_owned()
            } else {
                format!("{path}.tie_word_embeddings")
            };
            look(config, &field).map(|told| told.as_bool().unwrap_or(false))
        })
        .collect();
    told.contains(&Some(true)) || (*default && told.iter().all(Option::is_none))
}

/// Ties spelled out: targets and their sources, names of the model.
fn expand(
    TieText(module, _, _, ties): &TieText,
    model: &Model<'_>,
    values: &Values,
) -> Result<Vec<(String, String)>> {
    let under = if module.is_empty() { String::new() } else { format!("{module}.") };
    let mut out = Vec::new();
    for (target, source) in ties {
        let source = source.as_str().unwrap_or_default();
        if target == "@hybrid" {
            out.extend(shared_blocks(&under, source, model, values));
        } else if plain(target) && plain(source) {
            out.push((format!("{under}{target}"), format!("{under}{source}")));
        } else {
            out.extend(matching(&under, target, source, &model.tree, values)?);
        }
    }
    Ok(out)
}

fn plain(pattern: &str) -> bool {
    pattern.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.')
}

/// A tie's pattern, of a name's start.
fn starting(pattern: &str) -> Result<Regex> {
    let compiled = Regex::new(&format!("^(?:{pattern})"));
    Ok(compiled.map_err(|cause| Invalid {
        expected: "a tie's pattern".to_owned(),
        found: format!("`{pattern}`: {cause}"),
        ..Invalid::default()
    })?)
}

/// Two patterns of many tensors: a name that one of them matches is tied to the one with what the
/// patterns begin with exchanged.
fn matching(
    under: &str,
    target: &str,
    source: &str,
    tree: &Node,
    values: &Values,
) -> Result<Vec<(String, String)>> {
    let common = target.bytes().rev().zip(source.bytes().rev()).take_while(|(t, s)| t == s).count();
    let head = |pattern: &str| {
        pattern.get(..pattern.len() - common).map(|head| head.replace('\\', "")).unwrap_or_default()
    };
    let (target_head, source_head) = (head(target), head(source));
    let sides = [(starting(target)?, &target_head), (starting(source)?, &source_head)];
    let mut out = Vec::new();
    for held in values.iter() {
        let Some(name) = held.name.strip_prefix(under) else {
            continue;
        };
        for (pattern, head) in &sides {
            let Some(rest) = name.strip_prefix(head.as_str()) else {
                continue;
            };
            if !pattern.is_match(name).unwrap_or(false) {
                continue;
            }
            let (t, s) = (format!("{under}{target_head}{rest}"), format!("{under}{source_head}{rest}"));
            if tree.leaf(&t).is_some() && tree.leaf(&s).is_some() {
                out.push((t, s));
            }
        }
    }
    out.sort();
    out.dedup();
    Ok(out)
}

/// Zamba's shared blocks: of n in memory, the k-th hybrid layer's is the (k mod n)-th's.
fn shared_blocks(under: &str, block: &str, model: &Model<'_>, values: &Values) -> Vec<(String, String)> {
    let n = count(model.config, "num_mem_blocks").unwrap_or(1);
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    let layer = |name: &str, rest: &mut String| {
        let (number, inner) = name.strip_prefix(under)?.strip_prefix("layers.")?.split_once('.')?;
        inner.clone_into(rest);
        index(number)
    };
    let mut rest = String::new();
    let mut hybrid: Vec<u64> = values
        .iter()
        .filter_map(|held| layer(&held.name, &mut rest).filter(|_| rest == "linear.weight"))
        .collect();
    hybrid.sort_unstable();
    hybrid.dedup();
    let mut inner: Vec<Vec<String>> = vec![Vec::new(); n.min(hybrid.len())];
    for held in values.iter() {
        let Some(number) = layer(&held.name, &mut rest) else {
            continue;
        };
        let Some(name) = rest.strip_prefix(block).filter(|name| name.starts_with('.')) else {
            continue;
        };
        if let Some(names) = hybrid.binary_search(&number).ok().and_then(|k| inner.get_mut(k % n)) {
            names.push(name.to_owned());
        }
    }
    let mut out = Vec::new();
    for (k, number) in hybrid.iter().enumerate().skip(n) {
        let (Some(first), Some(names)) = (hybrid.get(k % n), inner.get_mut(k % n)) else {
            continue;
        };
        names.sort_unstable();
        names.dedup();
        let pair = |name: &String| {
            (format!("{under}layers.{number}.{block}{name}"), format!("{under}layers.{first}.{block}{name}"))
        };
        out.extend(
            names
                .iter()
                .map(pair)
                .filter(|(t, s)| model.tree.leaf(t).is_some() && model.tree.leaf(s).is_some()),
        );
    }
    out
}
