//! The model's tree over the tensors there are: lists spelled out, in the model's order; and what
//! every model of the type has that is not there.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::complete::missing;
use super::natural::{index, without_indexes};
use super::tree::{Kid, Kind, Leaf, Node};
use super::values::Values;
use crate::{Error, Invalid, Result};

/// A module of the model.
pub(super) struct Module<'t> {
    pub(super) path: String,
    /// The tree it is an instance of: an element's is one of its list's kinds.
    node: &'t Node,
    pub(super) tensors: Vec<Tensor<'t>>,
    pub(super) kids: Vec<(String, Module<'t>)>,
}

/// A tensor of a module.
#[derive(Clone, Copy)]
pub(super) struct Tensor<'t> {
    pub(super) leaf: &'t Leaf,
    /// Its place among the values.
    pub(super) place: usize,
}

impl<'t> Module<'t> {
    /// The tree over these values, each of which it has a leaf for.
    ///
    /// # Errors
    /// An element of a list is of none of its kinds.
    pub(super) fn new(tree: &'t Node, values: &Values) -> Result<Self> {
        let names = values.iter().enumerate().map(|(place, held)| (held.name.as_str(), place)).collect();
        Module::build(tree, String::new(), names)
    }

    fn build(node: &'t Node, path: String, names: Vec<(&str, usize)>) -> Result<Self> {
        let mut tensors: Vec<(usize, u64, Tensor<'t>)> = Vec::new();
        let mut groups: Vec<(&str, Vec<(&str, usize)>)> = Vec::new();
        let mut group_of: HashMap<&str, usize> = HashMap::new();
        for (name, place) in names {
            match name.split_once('.') {
                Some((first, rest)) => {
                    let group = *group_of.entry(first).or_insert_with(|| {
                        groups.push((first, Vec::new()));
                        groups.len() - 1
                    });
                    groups[group].1.push((rest, place));
                }
                None => {
                    if let Some(leaf) = node.own_leaf(name) {
                        let rank = node.leaves.iter().position(|l| std::ptr::eq(l, leaf)).unwrap_or(0);
                        tensors.push((rank, index(name).unwrap_or(0), Tensor { leaf, place }));
                    }
                }
            }
        }
        tensors.sort_by_key(|&(rank, number, _)| (rank, number));
        let tensors = tensors.into_iter().map(|(_, _, tensor)| tensor).collect();
        let kids = Module::build_kids(node, &path, groups)?;
        Ok(Module { path, node, tensors, kids })
    }

    fn build_kids(
        node: &'t Node,
        path: &str,
        groups: Vec<(&str, Vec<(&str, usize)>)>,
    ) -> Result<Vec<(String, Module<'t>)>> {
        let mut kids: Vec<(usize, u64, String, Module<'t>)> = Vec::new();
        for (name, inner) in groups {
            let at = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            let Some((rank, kid)) = kind_of(node, name, &inner) else {
                return Err(Error::from(Invalid {
                    tensor: Some(at),
                    expected: "an element of one kind".to_owned(),
                    found: "the tensors of several".to_owned(),
                    ..Invalid::default()
                }));
            };
            let number = if kid.name == name { 0 } else { index(name).unwrap_or(0) };
            kids.push((rank, number, name.to_owned(), Module::build(&kid.node, at, inner)?));
        }
        kids.sort_by_key(|&(rank, number, ..)| (rank, number));
        Ok(kids.into_iter().map(|(_, _, name, module)| (name, module)).collect())
    }

    pub(super) fn kind(&self) -> Kind {
        self.node.kind
    }

    pub(super) fn kid(&self, name: &str) -> Option<&Module<'t>> {
        self.kids.iter().find(|(kid, _)| kid == name).map(|(_, module)| module)
    }

    pub(super) fn tensor(&self, name: &str) -> Option<Tensor<'t>> {
        self.tensors.iter().find(|tensor| tensor.leaf.name == name).copied()
    }
}

/// The child of a node that an element with these tensors is of, and its list's place among the
/// children: elements go by number, whatever their kinds.
fn kind_of<'t>(node: &'t Node, name: &str, inner: &[(&str, usize)]) -> Option<(usize, &'t Kid)> {
    let mut candidates = node.elements(name).peekable();
    let first = *candidates.peek()?;
    let rank = node.kids.iter().position(|kid| std::ptr::eq(kid, first))?;
    let kid = candidates.find(|kid| inner.iter().all(|(rest, _)| kid.node.leaf(rest).is_some()))?;
    Some((rank, kid))
}

/// What a model lacks.
#[derive(Default)]
pub(super) struct Lacking {
    /// Tensors that every model of its type has.
    pub(super) faults: Vec<Error>,
    /// Buffers that its class computes, and biases that not every model has: indexes as `*`.
    pub(super) optional: BTreeMap<String, Tally>,
}

/// How often a tensor of a list's elements is there.
#[derive(Default, Clone, Copy)]
pub(super) struct Tally {
    pub(super) buffer: bool,
    /// Not in every model of the type.
    pub(super) optional: bool,
    pub(super) there: u64,
    pub(super) absent: u64,
}

/// Finds what a model lacks, but for tensors that are known to be incomplete.
pub(super) fn lacking(root: &Module<'_>, class: &str, incomplete: &HashSet<String>) -> Lacking {
    let mut search = Search { class, incomplete, out: Lacking::default() };
    search.module(root);
    search.out
}

struct Search<'a> {
    class: &'a str,
    incomplete: &'a HashSet<String>,
    out: Lacking,
}

impl Search<'_> {
    fn module(&mut self, module: &Module<'_>) {
        let node = module.node;
        for leaf in node.leaves.iter().filter(|leaf| leaf.name != "*") {
            self.leaf(leaf, &module.path, module.tensor(&leaf.name).is_some());
        }
        for kid in &node.kids {
            if kid.name == "*" {
                self.list(module, kid.optional);
            } else if !kid.name.starts_with('*') {
                match module.kid(&kid.name) {
                    Some(there) => self.module(there),
                    None if kid.optional => {}
                    None => self.absent(&kid.node, &join(&module.path, &kid.name)),
                }
            }
        }
    }

    fn leaf(&mut self, leaf: &Leaf, path: &str, there: bool) {
        let buffer = leaf.flags.buffer;
        if buffer || (leaf.optional && leaf.name == "bias") {
            let name = without_indexes(&join(path, &leaf.name));
            let tally = self.out.optional.entry(name).or_default();
            (tally.buffer, tally.optional) = (buffer, leaf.optional);
            *(if there { &mut tally.there } else { &mut tally.absent }) += 1;
        } else if !there && !leaf.optional {
            self.fault(&join(path, &leaf.name));
        }
    }

    /// The elements of a list: those there, and those that must be. Of a list whose length the config
    /// does not tell, blocks between two others must be, but not modules like an activation's, which
    /// have no tensors.
    fn list(&mut self, module: &Module<'_>, optional: bool) {
        let mut next = 0;
        for (name, kid) in &module.kids {
            let Some(i) = index(name).filter(|_| module.node.kid(name).is_none()) else {
                continue;
            };
            if !optional && (module.node.count.is_some() || !kid.node.kids.is_empty()) {
                self.elements(&module.path, next, i);
            }
            self.module(kid);
            next = i + 1;
        }
        if let Some(count) = module.node.count.filter(|_| !optional) {
            self.elements(&module.path, next, count);
        }
    }

    /// Elements that are not there at all.
    fn elements(&mut self, path: &str, from: u64, to: u64) {
        match to.checked_sub(from) {
            None | Some(0) => {}
            Some(1) => self.fault(&format!("{path}.{from}")),
            Some(_) => self.fault(&format!("{path}.{from}` to `{path}.{}", to - 1)),
        }
    }

    /// A module that is not there at all.
    fn absent(&mut self, node: &Node, path: &str) {
        for leaf in node.leaves.iter().filter(|leaf| leaf.name != "*" && !leaf.flags.buffer) {
            self.leaf(leaf, path, false);
        }
        for kid in node.kids.iter().filter(|kid| !kid.optional) {
            if !kid.name.starts_with('*') {
                self.absent(&kid.node, &join(path, &kid.name));
            } else if let Some(count) = node.count.filter(|_| kid.name == "*") {
                self.elements(path, 0, count);
            }
        }
    }

    fn fault(&mut self, name: &str) {
        if !self.incomplete.contains(name) {
            self.out.faults.push(missing(name, self.class));
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
