//! Tied tensors: one value under two names (`docs/families.md`, rule 6).

use std::collections::{HashMap, HashSet};

use super::expr::Value;
use super::family::Model;
use super::tied_names::pairs;
use super::values::Values;
use super::{Options, Put, Tied};
use crate::Result;

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
        let holds = match (values.place(target), values.place(source)) {
            (Some(t), Some(s)) => {
                let same = equal(&values.at(t).value, &values.at(s).value, options)?;
                if same {
                    twice.push(t);
                } else {
                    notes.push(format!("`{target}` is not tied to `{source}`: their values differ"));
                }
                same
            }
            // Where neither is there, another tensor tied to the same source may be.
            (t, s) => t.or(s).or(first.get(source.as_str()).copied()).is_some_and(|there| {
                copy(values, there, source);
                copy(values, there, target);
                true
            }),
        };
        if holds {
            held.push((target, source));
        }
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

/// Gives a name the value of another, unless it has one.
fn copy(values: &mut Values, from: usize, to: &str) {
    if values.place(to).is_none() {
        let value = values.at(from).value.clone();
        let _ = values.add(to, value);
    }
}

fn equal(a: &Value, b: &Value, options: &mut Options<'_>) -> Result<bool> {
    Ok(a.dtype == b.dtype && a.shape == b.shape && (a.expr == b.expr || (options.same)(a, b)?))
}
