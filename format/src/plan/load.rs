//! The load: each of the checkpoint's tensors to the model's that it becomes, or is a part of
//! (`docs/families.md`, rules 2 and 4).

use std::collections::{HashMap, HashSet};

use super::complete::{self, Part};
use super::convert::convert;
use super::expr::Value;
use super::family::Model;
use super::natural;
use super::rules::Rule;
use super::shares;
use super::tree::Node;
use super::values::Values;
use super::{Dropped, Inventory};
use crate::{Error, Invalid, Result};

/// What the checkpoint gives the model.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) values: Values,
    pub(super) dropped: Vec<Dropped>,
    /// What stands in the way of a save.
    pub(super) faults: Vec<Error>,
    /// Tensors of the model whose parts are not all there: `faults` says which.
    pub(super) incomplete: HashSet<String>,
}

/// The checkpoint's tensors that become one of the model's, or, cut up, several.
struct Gathered {
    name: String,
    /// The conversion that gathers them, and what of the name is before and after its target.
    rule: Option<usize>,
    around: [String; 2],
    /// By the rule's source.
    parts: Vec<Vec<Part>>,
}

/// A name of the checkpoint as the model's.
struct Resolved {
    name: String,
    hit: Option<Hit>,
}

/// How a conversion matched a name.
struct Hit {
    rule: usize,
    source: usize,
    star: Option<String>,
    around: [String; 2],
}

/// Loads the checkpoint's tensors into the model's.
pub(super) fn load(model: &mut Model<'_>, inventory: &Inventory) -> Result<Loaded> {
    let mut loaded = Loaded::default();
    let gathered = gather(model, inventory, &mut loaded)?;
    for group in gathered {
        match group.rule {
            None => loaded.add_plain(group),
            Some(rule) => loaded.add_converted(model, rule, group),
        }
    }
    Ok(loaded)
}

fn gather(model: &mut Model<'_>, inventory: &Inventory, loaded: &mut Loaded) -> Result<Vec<Gathered>> {
    let mut gathered: Vec<Gathered> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (source, info) in natural::sorted(inventory) {
        let value = Value::src(source, info.dtype, &info.shape).map_err(|fault| named(fault, source))?;
        let resolved = resolve(&mut model.rules, &model.tree, model.prefix, source)?;
        if model.tree.leaf(&resolved.name).is_none() {
            loaded.drop_whole(&value, &not_held(&model.tree, &resolved.name));
            continue;
        }
        let place = *places.entry(resolved.name.clone()).or_insert_with(|| {
            gathered.push(Gathered::new(&resolved, &model.rules));
            gathered.len() - 1
        });
        let group = &mut gathered[place];
        if let Some(other) = group.add(resolved, value) {
            let first = group.first_source();
            loaded.drop_whole(&other, &format!("`{first}` is the same tensor of the model"));
        }
    }
    Ok(gathered)
}

impl Gathered {
    fn new(resolved: &Resolved, rules: &[Rule]) -> Self {
        let rule = resolved.hit.as_ref().map(|hit| hit.rule);
        let sources = rule.and_then(|r| rules.get(r)).map_or(1, |r| r.text.sources.len());
        Gathered {
            name: resolved.name.clone(),
            rule,
            around: resolved.hit.as_ref().map(|hit| hit.around.clone()).unwrap_or_default(),
            parts: std::iter::repeat_with(Vec::new).take(sources).collect(),
        }
    }

    /// Adds a tensor; gives it back where there is one for its place already.
    fn add(&mut self, resolved: Resolved, value: Value) -> Option<Value> {
        let (source, star) = match resolved.hit {
            Some(hit) if Some(hit.rule) == self.rule => (hit.source, hit.star),
            None if self.rule.is_none() => (0, None),
            _ => return Some(value),
        };
        match self.parts.get_mut(source) {
            Some(parts) if parts.is_empty() || star.is_some() => parts.push(Part { star, value }),
            _ => return Some(value),
        }
        None
    }

    fn first_source(&self) -> String {
        let first = self.parts.iter().flatten().next();
        first.and_then(|part| part.value.expr.source_name()).unwrap_or_default().to_owned()
    }
}

impl Loaded {
    fn add_plain(&mut self, group: Gathered) {
        if let Some(part) = group.parts.into_iter().flatten().next() {
            self.add(&group.name, part.value);
        }
    }

    fn add_converted(&mut self, model: &Model<'_>, rule: usize, group: Gathered) {
        let Some(rule) = model.rules.get(rule) else {
            return;
        };
        let leaf = model.tree.leaf(&group.name);
        let experts = leaf.and_then(|leaf| leaf.flags.experts.as_ref());
        let faults = complete::faults(rule.text, &group.parts, &group.around, experts, model);
        if !faults.is_empty() {
            self.faults.extend(faults);
            self.incomplete.insert(group.name);
            return;
        }
        let values = group.parts.into_iter().map(|parts| parts.into_iter().map(|part| part.value).collect());
        let converted = match convert(rule.text, values.collect(), &group.name, model.config) {
            Ok(converted) => converted,
            Err(fault) => {
                self.faults.push(named(fault, &group.name));
                self.incomplete.insert(group.name);
                return;
            }
        };
        self.dropped.extend(converted.cut);
        // The name of another target is the first one's, with that target in its place.
        let first = rule.text.targets.first().map_or("", String::as_str);
        let at = group.name.rfind(first).unwrap_or(0);
        let (before, after) = (
            group.name.get(..at).unwrap_or_default(),
            group.name.get(at + first.len()..).unwrap_or_default(),
        );
        for (target, value) in converted.values {
            let target = rule.text.targets.get(target).map_or("", String::as_str);
            let name = format!("{before}{target}{after}");
            if model.tree.leaf(&name).is_some() {
                self.add(&name, value);
            } else {
                self.drop_whole(&value, &not_held(&model.tree, &name));
            }
        }
    }

    fn add(&mut self, name: &str, value: Value) {
        if let Some(value) = self.values.add(name, value) {
            self.drop_whole(&value, &format!("the model's `{name}` is made of others"));
        }
    }

    fn drop_whole(&mut self, value: &Value, reason: &str) {
        self.dropped.extend(shares::whole(value).into_iter().map(|share| Dropped::new(share, reason)));
    }
}

/// A name through all renamings, the first conversion that matches, and the base model's prefix; where
/// that is no tensor of the model and the name itself is one, the name itself.
fn resolve(rules: &mut [Rule], tree: &Node, prefix: &str, source: &str) -> Result<Resolved> {
    let mut name = source.to_owned();
    for rule in rules.iter_mut().filter(|rule| rule.ops().is_empty()) {
        if let Some(renamed) = rule.rename(&name)? {
            name = renamed.name;
        }
    }
    let mut hit = None;
    for (i, rule) in rules.iter_mut().enumerate().filter(|(_, rule)| !rule.ops().is_empty()) {
        if let Some(renamed) = rule.rename(&name)? {
            name = renamed.name;
            hit = Some(Hit { rule: i, source: renamed.source, star: renamed.star, around: renamed.around });
            break;
        }
    }
    let name = with_prefix(tree, prefix, name);
    if tree.leaf(&name).is_none() && tree.leaf(source).is_some() {
        return Ok(Resolved { name: with_prefix(tree, prefix, source.to_owned()), hit: None });
    }
    Ok(Resolved { name, hit })
}

/// The base model's prefix taken off or put on, where the model has the name so.
fn with_prefix(tree: &Node, prefix: &str, name: String) -> String {
    if prefix.is_empty() {
        return name;
    }
    if let Some(bare) = name.strip_prefix(prefix) {
        let mut rest = bare.chars();
        rest.next();
        if tree.leaf(rest.as_str()).is_some() {
            return rest.as_str().to_owned();
        }
    }
    let full = format!("{prefix}.{name}");
    if tree.leaf(&full).is_some() { full } else { name }
}

fn not_held(tree: &Node, name: &str) -> String {
    match tree.past_end(name) {
        Some((list, count)) => format!("`{list}` has {count} elements in config.json"),
        None => "the model has no such tensor".to_owned(),
    }
}

/// The fault, with the tensor it is of.
pub(super) fn named(fault: Invalid, tensor: &str) -> Error {
    Error::from(Invalid { tensor: Some(tensor.to_owned()), ..fault })
}
