//! The table of model types, `families.json`, as it is written there (`docs/families.md`, the table).

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The table: every type whose saves are known.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// What it was made with.
    pub(super) made_with: MadeWith,
    /// Conversions appended to every type's.
    pub(super) legacy: Vec<RuleText>,
    /// Causal LMs and image-text-to-text models by model type.
    pub(super) families: HashMap<String, Family>,
    /// Vision and audio models that occur in others.
    pub(super) models: HashMap<String, Family>,
    /// Lists of conversions.
    pub(super) conv: Vec<Vec<RuleText>>,
    /// Trees, as text.
    pub(super) tree: Vec<String>,
}

/// What the table was made with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeWith {
    /// The version of transformers whose classes and conversions it has.
    pub transformers: String,
    /// The version of the reference implementation whose saves it describes.
    pub glyd: String,
}

/// A model type.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Family {
    /// transformers' name of its class.
    pub(super) class: String,
    /// The sub-config it is built from, where not the whole.
    pub(super) config: Option<String>,
    /// Its base model's name in it.
    pub(super) prefix: String,
    /// The module whose `layers` are merged.
    pub(super) decoder: Option<String>,
    /// Its ties.
    #[serde(default)]
    pub(super) ties: Vec<TieText>,
    /// The config's field with each list's length.
    #[serde(default)]
    pub(super) counts: BTreeMap<String, String>,
    /// Its conversions' list.
    pub(super) conv: Option<usize>,
    /// The list it brings as another's sub-model.
    pub(super) base_conv: Option<usize>,
    /// Whether it may be another's sub-model.
    #[serde(default = "yes")]
    pub(super) base: bool,
    /// Its tree.
    pub(super) tree: usize,
}

fn yes() -> bool {
    true
}

/// Ties: the module they are of, the configs that may ask for them, what holds when none says,
/// targets and their sources.
#[derive(Deserialize)]
pub(super) struct TieText(
    pub(super) String,
    pub(super) Vec<String>,
    pub(super) bool,
    pub(super) Map<String, Value>,
);

/// A renaming, or a conversion where it has operations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleText {
    /// Source patterns.
    #[serde(rename = "s")]
    pub(super) sources: Vec<String>,
    /// Targets.
    #[serde(rename = "t")]
    pub(super) targets: Vec<String>,
    /// What is done to the tensors it gathers.
    #[serde(default)]
    pub(super) ops: Vec<Op>,
    /// The sub-module whose names it sees.
    pub(super) scope: Option<String>,
    /// How it renames.
    #[serde(default)]
    pub(super) kind: Kind,
    /// What `offset` adds.
    #[serde(default)]
    pub(super) offset: u64,
}

/// How a rule renames.
#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// The match becomes target 0.
    #[default]
    Plain,
    /// Source i becomes target i, once source 0 was seen.
    Group,
    /// Target 0's `\1` is the number plus an offset.
    Offset,
    /// Dory's pairs of layers.
    Pair,
}

/// An operation of a conversion.
#[derive(Deserialize)]
#[serde(try_from = "(String, OpArguments)")]
pub(super) enum Op {
    /// Each pattern's tensors are stacked.
    Stack(usize),
    /// All are put after one another.
    Cat(usize),
    /// One is cut in equal parts, one a target.
    Chunk(usize),
    /// One is cut by the targets' sizes.
    Split(usize),
    /// Two dimensions of one are swapped; where told to look, only if it is not as the model holds it.
    Transpose(usize, usize, bool),
    /// One is reordered: even elements, then odd ones.
    Interleave(usize),
    /// Rows are reordered for rotary embeddings: the config with the heads, and which targets.
    Rope(String, Option<Vec<String>>),
    /// The first half of the experts is the text's, the rest the vision tower's.
    ErnieExperts,
    /// Rows of padding are cut off the vocabulary.
    UnpadVocab,
    /// Experts that may be quantized; only those that are not are handled.
    Dequantize,
    /// Two tables of queries are woven.
    Queries,
}

/// Every operation's arguments.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OpArguments {
    dim: usize,
    dim0: usize,
    dim1: usize,
    check_dims: bool,
    inverse: bool,
    subconfig_key: String,
    permute_layer_names: Option<Vec<String>>,
    stack_dim: usize,
    concat_dim: usize,
    #[serde(rename = "num_shards_attribute")]
    _shards: Option<String>,
}

impl TryFrom<(String, OpArguments)> for Op {
    type Error = String;

    fn try_from((name, a): (String, OpArguments)) -> Result<Self, String> {
        if a.inverse {
            return Err(format!("{name}: its inverse is not handled"));
        }
        Ok(match name.as_str() {
            "MergeModulelist" => Op::Stack(a.dim),
            "Concatenate" => Op::Cat(a.dim),
            "Chunk" => Op::Chunk(a.dim),
            "Split" => Op::Split(a.dim),
            "Transpose" => Op::Transpose(a.dim0, a.dim1, a.check_dims),
            "Interleave" => Op::Interleave(a.dim),
            "PermuteForRope" => Op::Rope(a.subconfig_key, a.permute_layer_names),
            "ErnieFuseAndSplitTextVisionExperts" if (a.stack_dim, a.concat_dim) == (0, 1) => Op::ErnieExperts,
            "Inkling2UnpadVocab" => Op::UnpadVocab,
            "Inkling2LoopDequantizeExperts" => Op::Dequantize,
            "Inkling2LoopMergeMessageQueries" => Op::Queries,
            _ => return Err(format!("{name}: not an operation")),
        })
    }
}

/// The table this crate carries.
pub(super) fn table() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        let text = include_str!("families.json");
        serde_json::from_str(text).expect("this crate's own table is read by its tests")
    });
    &TABLE
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::super::family::{Found, find};
    use super::super::rules::Rule;
    use super::super::tree::Node;
    use super::super::tree_text::parse;
    use super::*;

    fn check_names(node: &Node) {
        let names: Vec<&str> = node
            .leaves
            .iter()
            .map(|leaf| leaf.name.as_str())
            .chain(node.kids.iter().map(|kid| kid.name.as_str()))
            .collect();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len(), "a name twice among {names:?}");
        node.kids.iter().for_each(|kid| check_names(&kid.node));
    }

    #[test]
    fn reads_every_tree() {
        for text in &table().tree {
            check_names(&parse(text).unwrap_or_else(|fault| panic!("{fault} in {text}")));
        }
    }

    #[test]
    fn compiles_every_pattern() {
        for rule in table().conv.iter().flatten().chain(&table().legacy) {
            assert!(Rule::new(rule, None, "model").is_ok(), "{:?}", rule.sources);
            assert!(!rule.targets.is_empty());
            for pattern in &rule.sources {
                // What the text before a pattern's trial takes for granted.
                let outside = pattern.split('(').next().unwrap_or_default();
                assert!(!outside.contains('|'), "{pattern}: a choice outside of a group");
                assert!(
                    rule.ops.is_empty() != pattern.contains("*.") || !pattern.contains("*."),
                    "{pattern}: a list that is only renamed"
                );
            }
        }
    }

    #[test]
    fn finds_every_type_with_all_its_parts() {
        for kind in table().families.keys() {
            let config = json!({"model_type": kind});
            let Ok(Found::Known(model)) = find(&config) else { panic!("{kind}") };
            for TieText(_, configs, _, ties) in model.ties {
                assert!(!configs.is_empty() && ties.values().all(Value::is_string), "{kind}");
            }
        }
        for model in table().models.values() {
            assert!(table().tree.get(model.tree).is_some() && model.base, "{}", model.class);
        }
    }
}
