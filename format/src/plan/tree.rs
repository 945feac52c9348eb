//! A model's tree of modules and tensors, in the model's order (`docs/families.md`, the table).

use safetensors::Dtype;

use super::natural::index;

/// What a module is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    /// An `nn.Linear`, run as one.
    Linear,
    /// An `nn.Embedding`.
    Embedding,
    /// Any other.
    #[default]
    Other,
}

/// A module: its own tensors, then its children. A name that starts with `*` stands for every index
/// of a list.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) leaves: Vec<Leaf>,
    pub(super) kids: Vec<Kid>,
    /// Where it is a sub-model that the config chooses.
    pub(super) plug: Option<Plug>,
    /// How many elements the config says the list in it has.
    pub(super) count: Option<u64>,
}

/// A tensor of a module.
#[derive(Debug, Clone, Default)]
pub(super) struct Leaf {
    pub(super) name: String,
    /// Not in every model of the type.
    pub(super) optional: bool,
    pub(super) flags: Flags,
}

/// A child of a module.
#[derive(Debug, Clone)]
pub(super) struct Kid {
    pub(super) name: String,
    /// Not in every model of the type.
    pub(super) optional: bool,
    pub(super) node: Node,
}

/// A sub-model: where its config is, and the type it usually is of.
#[derive(Debug, Clone)]
pub(super) struct Plug {
    pub(super) config: String,
    pub(super) usual: String,
    /// The sub-model is a causal LM, not the base model of one.
    pub(super) causal_lm: bool,
}

/// What is particular to a tensor.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Flags {
    /// An experts' weight.
    pub(super) experts: Option<Experts>,
    /// Kept in fp32 by its class's list.
    pub(super) fp32: bool,
    /// The dtype its class makes it in, where not the model's.
    pub(super) class_dtype: Option<Dtype>,
    pub(super) buffer: bool,
    /// The class overwrites the last element with this.
    pub(super) last: Option<f32>,
}

/// An experts' weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Experts {
    /// Each is held as `[in, out]`.
    pub(super) transposed: bool,
    /// The config's field with their number; else it is the first dimension.
    pub(super) count: Option<String>,
}

impl Node {
    /// The tensor's leaf, where the model has a tensor of this name.
    pub(super) fn leaf(&self, name: &str) -> Option<&Leaf> {
        let Some((first, rest)) = name.split_once('.') else {
            return self.own_leaf(name);
        };
        if self.past(first) {
            return None;
        }
        self.elements(first).find_map(|kid| kid.node.leaf(rest))
    }

    /// The list and its length, where the name is of an element past its end.
    pub(super) fn past_end<'n>(&self, name: &'n str) -> Option<(&'n str, u64)> {
        let mut at = vec![self];
        let mut start = 0;
        for part in name.split('.') {
            if let Some(node) = at.iter().find(|n| n.past(part)) {
                return Some((name.get(..start)?.trim_end_matches('.'), node.count?));
            }
            at = at.iter().flat_map(|n| n.elements(part)).map(|kid| &kid.node).collect();
            if at.is_empty() {
                return None;
            }
            start += part.len() + 1;
        }
        None
    }

    fn past(&self, part: &str) -> bool {
        let end = self.count.unwrap_or(u64::MAX);
        index(part).is_some_and(|i| i >= end) && self.kid(part).is_none()
    }

    /// The child of exactly this name; a list's elements have none of their own.
    pub(super) fn kid(&self, name: &str) -> Option<&Kid> {
        self.kids.iter().find(|kid| kid.name == name && !name.starts_with('*'))
    }

    /// The children that may stand for this name: its own, else a list's, several where it has kinds.
    pub(super) fn elements<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Kid> + use<'a> {
        let own = self.kid(name);
        let listed = own.is_none() && index(name).is_some();
        self.kids.iter().filter(move |kid| match own {
            Some(own) => std::ptr::eq(own, *kid),
            None => listed && kid.name.starts_with('*'),
        })
    }

    /// The module's own tensor that stands for this name.
    pub(super) fn own_leaf(&self, name: &str) -> Option<&Leaf> {
        let own = self.leaves.iter().find(|leaf| leaf.name == name && name != "*");
        own.or_else(|| self.leaves.iter().find(|leaf| leaf.name == "*" && index(name).is_some()))
    }

    /// Tells the list at a path how many elements it has.
    pub(super) fn set_count(&mut self, path: &str, count: u64) {
        if path.is_empty() {
            self.count = Some(count);
            return;
        }
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        for kid in &mut self.kids {
            let element = first == "*" && (kid.name.starts_with('*') || index(&kid.name).is_some());
            if kid.name == first || element {
                kid.node.set_count(rest, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree_text::parse;
    use super::*;

    fn tree() -> Node {
        parse("model{embed=E{weight extra} layers{*{attn{q=Lb k=Lo scale?:B,f} experts?{w:XT,E=n b:LAST=-1}}} tower@vision_config/lm:clip{norm=N}} head=L").unwrap()
    }

    #[test]
    fn reads_modules_and_their_tensors() {
        let tree = tree();
        let bias = tree.leaf("model.layers.3.attn.q.bias").unwrap();
        assert!(!bias.optional);
        assert!(tree.leaf("model.layers.3.attn.k.bias").unwrap().optional);
        let scale = &tree.leaf("model.layers.0.attn.scale").unwrap().flags;
        assert!(scale.buffer && scale.fp32);
        let experts = tree.leaf("model.layers.0.experts.w").unwrap().flags.experts.clone();
        assert_eq!(experts, Some(Experts { transposed: true, count: Some("n".to_owned()) }));
        assert_eq!(tree.leaf("model.layers.0.experts.b").unwrap().flags.last, Some(-1.0));
        let plug = tree.kid("model").unwrap().node.kid("tower").unwrap().node.plug.clone().unwrap();
        assert_eq!(
            (plug.config.as_str(), plug.usual.as_str(), plug.causal_lm),
            ("vision_config", "clip", true)
        );
        for absent in [
            "head.bias",
            "model.layers.x.attn.q.weight",
            "model.layers.01.attn.q.weight",
            "head",
            "",
            ".",
            "head.weight.",
            "model.layers.*.attn.q.weight",
        ] {
            assert!(tree.leaf(absent).is_none(), "{absent}");
        }
    }

    #[test]
    fn ends_a_list_where_the_config_does() {
        let mut tree = tree();
        tree.set_count("model.layers", 2);
        assert!(tree.leaf("model.layers.1.attn.q.weight").is_some());
        assert!(tree.leaf("model.layers.2.attn.q.weight").is_none());
        assert_eq!(tree.past_end("model.layers.2.any.thing"), Some(("model.layers", 2)));
        assert_eq!(tree.past_end("model.layers.1.any.thing"), None);
    }

    #[test]
    fn looks_up_names_of_any_length() {
        let long = "model.layers.0.".repeat(10_000);
        assert!(tree().leaf(&long).is_none());
        assert!(tree().past_end(&long).is_none());
    }
}
