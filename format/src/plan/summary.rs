//! What the table says of a model type, for people: data, as `glyd families` prints it.

use super::MERGED_GROUPS;
use super::table::{self, Op, RuleText, Table, TieText, table};
use super::tree::{Kind, Node};
use super::tree_text::parse;

pub use super::table::MadeWith;

/// A model type of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Family {
    /// config.json's `model_type`.
    pub model_type: &'static str,
    /// transformers' name of its class.
    pub class: &'static str,
    /// It is known as a part of other models only.
    pub part: bool,
    /// The sub-config it is built from, where not the whole: the rest of the model is dropped.
    pub config: Option<&'static str>,
    /// What saving it takes, in a few words.
    pub needs: Vec<&'static str>,
    /// Linears' weights: each packed where its shape and dtype allow.
    pub packed: Vec<Tensor>,
    /// Modules whose weights are packed as one matrix, where all of them pack.
    pub merged: Vec<Vec<String>>,
    /// Experts' weights.
    pub experts: Vec<ExpertsWeight>,
    /// Embeddings' weights: saved as they are, in their modules' places.
    pub embeddings: Vec<Tensor>,
    /// Everything else: saved as it is.
    pub plain: Vec<Tensor>,
    /// Tensors of which one value may be saved under one name.
    pub ties: Vec<Tie>,
    /// Parts whose model type is the config's choice.
    pub sub_models: Vec<SubModel>,
    /// Lists, and the field of the config with each one's length.
    pub lists: Vec<(String, String)>,
    /// What is done to the checkpoint's tensors, in the order of the rules.
    pub conversions: Vec<Conversion>,
}

/// A tensor of a model; every index of a list is `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Not every model of the type has it.
    pub optional: bool,
    /// It is kept in fp32.
    pub fp32: bool,
}

/// An experts' weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertsWeight {
    /// Its name.
    pub name: String,
    /// Not every model of the type has it.
    pub optional: bool,
    /// The model holds each expert as `[in, out]`.
    pub transposed: bool,
    /// The field with their number, where it is not the first dimension.
    pub count: Option<String>,
}

/// A tie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tie {
    /// The tensor, or a pattern of tensors, that has another's value.
    pub target: String,
    /// That other one; where it is of the same name, one of an earlier layer's.
    pub source: String,
    /// Whether they are tied where the config does not say.
    pub default: bool,
}

/// A part of a model that is a model of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubModel {
    /// Where it is in the model.
    pub module: String,
    /// The config it is built from.
    pub config: String,
    /// Its type, where the config does not say another.
    pub usual: String,
}

/// A renaming, or a conversion of the tensors that are gathered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversion {
    /// Patterns of the checkpoint's names.
    pub sources: &'static [String],
    /// What they become.
    pub targets: &'static [String],
    /// What is done to the values, in order; nothing where only the name changes.
    pub operations: Vec<&'static str>,
}

/// Every model type of the table, in the order of their names.
pub fn families() -> Vec<Family> {
    let table = table();
    let whole = table.families.iter().map(|(name, family)| family_of(table, name, family, false));
    let models = table.models.iter().filter(|(name, _)| !table.families.contains_key(*name));
    let parts = models.map(|(name, family)| family_of(table, name, family, true));
    let mut all: Vec<Family> = whole.chain(parts).collect();
    all.sort_by_key(|family| family.model_type);
    all
}

/// What the table was made with.
pub fn made_with() -> &'static MadeWith {
    &table().made_with
}

fn family_of(table: &'static Table, name: &'static str, of: &'static table::Family, part: bool) -> Family {
    let mut family = Family {
        model_type: name,
        class: &of.class,
        part,
        config: of.config.as_deref(),
        ties: of.ties.iter().flat_map(ties).collect(),
        lists: of.counts.iter().map(|(list, field)| (list.clone(), field.clone())).collect(),
        ..Family::default()
    };
    let list = if part { of.base_conv } else { of.conv };
    let rules = list.and_then(|list| table.conv.get(list)).map_or(&[][..], Vec::as_slice);
    family.conversions = rules.iter().map(conversion).collect();
    // The table's own tests read every tree.
    let tree = table.tree.get(of.tree).and_then(|text| parse(text).ok()).unwrap_or_default();
    family.walk(&tree, "", false);
    if let Some(decoder) = of.decoder.as_deref() {
        family.merged = merged(&tree, decoder);
    }
    family.needs = needs(&family, rules);
    family
}

impl Family {
    fn walk(&mut self, node: &Node, path: &str, optional: bool) {
        for leaf in &node.leaves {
            let name = join(path, &leaf.name);
            let optional = optional || leaf.optional;
            if let Some(experts) = &leaf.flags.experts {
                let (transposed, count) = (experts.transposed, experts.count.clone());
                self.experts.push(ExpertsWeight { name, optional, transposed, count });
                continue;
            }
            let to = match node.kind {
                Kind::Linear if leaf.name == "weight" && !leaf.flags.fp32 => &mut self.packed,
                Kind::Embedding if leaf.name == "weight" => &mut self.embeddings,
                _ => &mut self.plain,
            };
            let tensor = Tensor { name, optional, fp32: leaf.flags.fp32 };
            // A list's second kind of element has most tensors of the first.
            if !to.iter().any(|other| other.name == tensor.name) {
                to.push(tensor);
            }
        }
        for kid in &node.kids {
            let name = if kid.name.starts_with('*') { "*" } else { kid.name.as_str() };
            let path = join(path, name);
            if let Some(plug) = &kid.node.plug {
                let (config, usual) = (plug.config.clone(), plug.usual.clone());
                self.sub_models.push(SubModel { module: path.clone(), config, usual });
            }
            self.walk(&kid.node, &path, optional || kid.optional);
        }
    }
}

fn ties(TieText(module, _, default, names): &TieText) -> Vec<Tie> {
    let pair = |(target, source): (&String, &serde_json::Value)| {
        let source = source.as_str().unwrap_or_default();
        let block = format!("layers.*.{source}");
        let (target, source) = if target == "@hybrid" { (&block, block.as_str()) } else { (target, source) };
        Tie { target: join(module, target), source: join(module, source), default: *default }
    };
    names.iter().map(pair).collect()
}

fn conversion(rule: &'static RuleText) -> Conversion {
    let operations = rule.ops.iter().map(operation).collect();
    Conversion { sources: &rule.sources, targets: &rule.targets, operations }
}

fn operation(op: &Op) -> &'static str {
    match op {
        Op::Stack(_) => "stack",
        Op::Cat(_) => "concatenate",
        Op::Chunk(_) => "split in equal parts",
        Op::Split(_) => "split",
        Op::Transpose(..) => "transpose",
        Op::Interleave(_) => "even elements, then odd ones",
        Op::Rope(..) => "reorder for rotary embeddings",
        Op::ErnieExperts => "stack, the text's experts apart from the images'",
        Op::UnpadVocab => "cut the vocabulary's padding",
        Op::Dequantize => "take as it is, if not quantized",
        Op::Queries => "weave two tables of queries",
    }
}

/// The merged groups of a decoder's layers.
fn merged(tree: &Node, decoder: &str) -> Vec<Vec<String>> {
    let start = if decoder.is_empty() { Some(tree) } else { find(tree, decoder) };
    let Some(layers) = start.and_then(|node| node.kid("layers")) else {
        return Vec::new();
    };
    let at = join(decoder, "layers.*");
    let mut groups: Vec<Vec<String>> = Vec::new();
    for layer in &layers.node.kids {
        for (block, members) in MERGED_GROUPS {
            let Some(block_node) = layer.node.kid(block) else { continue };
            let linear =
                |name: &&str| block_node.node.kid(name).is_some_and(|kid| kid.node.kind == Kind::Linear);
            let group = members.iter().map(|name| format!("{at}.{block}.{name}")).collect();
            if members.iter().all(linear) && !groups.contains(&group) {
                groups.push(group);
            }
        }
    }
    groups
}

fn find<'a>(node: &'a Node, path: &str) -> Option<&'a Node> {
    path.split('.').try_fold(node, |node, name| node.kid(name).map(|kid| &kid.node))
}

/// What saving a type takes, in words.
fn needs(family: &Family, rules: &[RuleText]) -> Vec<&'static str> {
    let does = |which: fn(&Op) -> bool| rules.iter().flat_map(|rule| &rule.ops).any(which);
    let words = [
        (rules.iter().any(|rule| rule.ops.is_empty()), "renames"),
        (does(|op| matches!(op, Op::Stack(_) | Op::ErnieExperts)), "stacks experts"),
        (does(|op| matches!(op, Op::Cat(_))), "concatenates"),
        (does(|op| matches!(op, Op::Chunk(_) | Op::Split(_))), "splits"),
        (does(|op| matches!(op, Op::Transpose(..))), "transposes"),
        (does(|op| matches!(op, Op::Interleave(_) | Op::Rope(..) | Op::Queries)), "reorders"),
        (does(|op| matches!(op, Op::UnpadVocab)), "cuts padding"),
        (family.experts.iter().any(|experts| !experts.transposed), "packs experts"),
        (family.experts.iter().any(|experts| experts.transposed), "packs transposed experts"),
        (!family.merged.is_empty(), "merges"),
        (!family.ties.is_empty(), "ties"),
        (!family.sub_models.is_empty(), "chooses sub-models"),
        (family.config.is_some(), "takes its text model alone"),
        (family.packed.is_empty() && family.experts.is_empty(), "packs nothing"),
    ];
    words.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word).collect()
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(name: &str) -> Family {
        families().into_iter().find(|family| family.model_type == name).unwrap()
    }

    #[test]
    fn tells_a_types_parts_apart() {
        let qwen = family("qwen3_moe");
        assert_eq!(qwen.class, "Qwen3MoeForCausalLM");
        assert!(qwen.needs.starts_with(&["stacks experts", "concatenates"]), "{:?}", qwen.needs);
        let names: Vec<&str> = qwen.experts.iter().map(|experts| experts.name.as_str()).collect();
        assert!(names.contains(&"model.layers.*.mlp.experts.gate_up_proj"), "{names:?}");
        assert_eq!(qwen.merged[0].len(), 3);
        assert_eq!(qwen.lists, [("model.layers".to_owned(), "num_hidden_layers".to_owned())]);
        assert!(family("gpt_oss").experts.iter().all(|experts| experts.transposed));
        // Of GPT-2 only the output layer is a Linear, and that is tied.
        assert_eq!(family("gpt2").packed.len(), 1);
    }

    #[test]
    fn tells_a_composites_sub_models() {
        let llava = family("llava");
        let modules: Vec<&str> = llava.sub_models.iter().map(|sub| sub.module.as_str()).collect();
        assert_eq!(modules, ["model.vision_tower", "model.language_model"]);
        assert!(family("clip_vision_model").part);
        assert_eq!(family("llama4").config, Some("text_config"));
    }

    #[test]
    fn knows_every_type_once() {
        let all = families();
        assert!(all.windows(2).all(|pair| pair[0].model_type < pair[1].model_type));
        for family in &all {
            let tensors = family.packed.len() + family.experts.len() + family.plain.len();
            assert!(tensors > 0 && !family.class.is_empty(), "{}", family.model_type);
        }
        assert_eq!(made_with().transformers, "5.24.0");
    }
}
