//! Which tensors a config ties, spelled out by name (`docs/families.md`, rule 6).

use std::collections::{BTreeSet, HashMap};

use fancy_regex::Regex;
use serde_json::Value as Json;

use super::config::{count, look};
use super::family::Model;
use super::natural::index;
use super::table::TieText;
use super::tree::Node;
use super::values::Values;
use crate::{Invalid, Result};

/// All that the config ties: targets and their sources, each target once.
pub(super) fn pairs(model: &Model<'_>, values: &Values) -> Result<Vec<(String, String)>> {
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
    let named = || values.iter().filter_map(|held| in_layer(&held.name, under));
    let hybrid: BTreeSet<u64> =
        named().filter(|(_, inner)| *inner == "linear.weight").map(|(number, _)| number).collect();
    let hybrid: Vec<u64> = hybrid.into_iter().collect();
    // The names inside each block, whichever of its layers has them.
    let mut inner: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); n.min(hybrid.len())];
    for (number, name) in named() {
        let name = name.strip_prefix(block).filter(|name| name.starts_with('.'));
        let names = hybrid.binary_search(&number).ok().and_then(|k| inner.get_mut(k % n));
        if let (Some(name), Some(names)) = (name, names) {
            names.insert(name);
        }
    }
    let mut out = Vec::new();
    for (k, number) in hybrid.iter().enumerate().skip(n) {
        let (Some(first), Some(names)) = (hybrid.get(k % n), inner.get(k % n)) else {
            continue;
        };
        let of = |layer: &u64, name: &str| format!("{under}layers.{layer}.{block}{name}");
        let pairs = names.iter().map(|name| (of(number, name), of(first, name)));
        out.extend(pairs.filter(|(t, s)| model.tree.leaf(t).is_some() && model.tree.leaf(s).is_some()));
    }
    out
}

/// A name's layer, and its name in that.
fn in_layer<'n>(name: &'n str, under: &str) -> Option<(u64, &'n str)> {
    let (number, inner) = name.strip_prefix(under)?.strip_prefix("layers.")?.split_once('.')?;
    Some((index(number)?, inner))
}
