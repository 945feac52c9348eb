//! The model type a config asks for: its tree, conversions, ties and lengths of lists, with the
//! sub-models that the config chooses put in (`docs/families.md`, rule 1).

use serde_json::Value;

use super::config::{count, exactly};
use super::rules::Rule;
use super::table::{Family, RuleText, Table, TieText, table};
use super::tree::{Kid, Node, Plug};
use super::tree_text::parse;
use crate::Result;

/// Sub-models inside sub-models: none goes deeper, and a config that does is not followed.
const MAX_PLUG_DEPTH: usize = 4;

/// A model type with everything its config chooses.
pub(super) struct Model<'a> {
    pub(super) class: &'static str,
    pub(super) prefix: &'static str,
    pub(super) decoder: Option<&'static str>,
    pub(super) ties: &'static [TieText],
    pub(super) rules: Vec<Rule>,
    pub(super) tree: Node,
    /// The config it is built from.
    pub(super) config: &'a Value,
}

/// What a config asks for.
pub(super) enum Found<'a> {
    /// A type of the table.
    Known(Box<Model<'a>>),
    /// One that the table does not have, in words.
    Unknown(String),
}

/// Finds the model type of a config.
pub(super) fn find(config: &Value) -> Result<Found<'_>> {
    let table = table();
    let Some(kind) = config.get("model_type").and_then(Value::as_str) else {
        return Ok(Found::Unknown("the model of a config.json without `model_type`".to_owned()));
    };
    // transformers' AutoConfig takes it so.
    let ministral = kind == "mistral" && config.get("layer_types").is_some();
    let kind = if ministral { "ministral" } else { kind };
    let Some(family) = table.families.get(kind) else {
        return Ok(Found::Unknown(format!("model type `{kind}`")));
    };
    let config = match &family.config {
        Some(part) => config.get(part).unwrap_or(&Value::Null),
        None => config,
    };
    let Some(tree) = tree_of(table, family) else {
        return Ok(Found::Unknown(format!("model type `{kind}`")));
    };
    let mut parts = Parts::of(table, family, config);
    let mut tree = tree;
    if let Err(sub_model) = parts.plug(&mut tree, &Place::default()) {
        return Ok(Found::Unknown(format!("model type `{kind}` with {sub_model}")));
    }
    for (list, field) in &parts.counts {
        if let Some(n) = count(config, field) {
            tree.set_count(list, n);
        }
    }
    let legacy = table.legacy.iter().map(|rule| (rule, None));
    let all = parts.rules.iter().map(|(rule, scope)| (*rule, scope.as_deref())).chain(legacy);
    let rules: Result<Vec<Rule>> = all.map(|(rule, scope)| Rule::new(rule, scope, &family.prefix)).collect();
    Ok(Found::Known(Box::new(Model {
        class: &family.class,
        prefix: &family.prefix,
        decoder: family.decoder.as_deref(),
        ties: &family.ties,
        rules: rules?,
        tree,
        config,
    })))
}

fn tree_of(table: &Table, family: &Family) -> Option<Node> {
    parse(table.tree.get(family.tree)?).ok()
}

fn conversions(table: &'static Table, list: Option<usize>) -> &'static [RuleText] {
    list.and_then(|i| table.conv.get(i)).map_or(&[], Vec::as_slice)
}

/// What is put together as sub-models are put in.
struct Parts<'a> {
    table: &'static Table,
    prefix: &'static str,
    config: &'a Value,
    /// Conversions, each with the sub-module whose names it sees.
    rules: Vec<(&'static RuleText, Option<String>)>,
    /// Lists and the config's fields with their lengths.
    counts: Vec<(String, String)>,
}

/// Where in the tree and in the config the sub-models are looked for.
#[derive(Default, Clone)]
struct Place {
    path: String,
    /// The sub-config of the sub-model that was put in around it, with a dot; empty for the family's own.
    config: String,
    depth: usize,
}

impl<'a> Parts<'a> {
    fn of(table: &'static Table, family: &'static Family, config: &'a Value) -> Self {
        let rules = conversions(table, family.conv).iter();
        Parts {
            table,
            prefix: &family.prefix,
            config,
            rules: rules.map(|rule| (rule, rule.scope.clone())).collect(),
            counts: family.counts.iter().map(|(list, field)| (list.clone(), field.clone())).collect(),
        }
    }

    /// Puts in the sub-models of another type than the family's usual one.
    fn plug(&mut self, node: &mut Node, place: &Place) -> std::result::Result<(), String> {
        for kid in &mut node.kids {
            let mut here = Place { path: join(&place.path, &kid.name), ..place.clone() };
            if let Some(plug) = kid.node.plug.clone() {
                let config = format!("{}{}", here.config, plug.config);
                // A flat config's own type is no sub-model's.
                let asked = exactly(self.config, &format!("{config}.model_type")).and_then(Value::as_str);
                if let Some(kind) = asked.filter(|kind| *kind != plug.usual) {
                    if here.depth >= MAX_PLUG_DEPTH {
                        return Err(format!("sub-models nested too deep at `{config}`"));
                    }
                    self.put_in(kid, &plug, kind, &config, &here.path)?;
                    here.config = format!("{config}.");
                    here.depth += 1;
                }
            }
            self.plug(&mut kid.node, &here)?;
        }
        Ok(())
    }

    fn put_in(
        &mut self,
        kid: &mut Kid,
        plug: &Plug,
        kind: &str,
        config: &str,
        path: &str,
    ) -> std::result::Result<(), String> {
        let unknown = || format!("`{kind}` as its `{config}`");
        let model = self.table.models.get(kind);
        let family =
            model.or_else(|| self.table.families.get(kind)).filter(|f| f.base).ok_or_else(unknown)?;
        let tree = tree_of(self.table, family).ok_or_else(unknown)?;
        // A family's tree is its causal LM's: the base model is the part under its prefix.
        let own = if model.is_none() && !plug.causal_lm { family.prefix.as_str() } else { "" };
        kid.node = if own.is_empty() { tree } else { tree.kid(own).ok_or_else(unknown)?.node.clone() };

        let list = if plug.causal_lm { family.conv } else { family.base_conv };
        self.put_rules_in(conversions(self.table, list), path);
        self.counts.retain(|(of, _)| of == path || !inside(of, path));
        for (of, field) in &family.counts {
            let under = if own.is_empty() {
                Some(of.as_str())
            } else {
                of.strip_prefix(own).and_then(|of| of.strip_prefix('.'))
            };
            if let Some(under) = under {
                self.counts.push((join(path, under), format!("{config}.{field}")));
            }
        }
        Ok(())
    }

    /// Puts a sub-model's conversions in the place of those for the usual one.
    fn put_rules_in(&mut self, rules: &'static [RuleText], path: &str) {
        let scope = path.strip_prefix(self.prefix).unwrap_or(path);
        let scope = scope.strip_prefix('.').unwrap_or(scope);
        self.rules.retain(|(_, of)| !of.as_deref().is_some_and(|of| inside(of, scope)));
        for rule in rules {
            self.rules.push((rule, Some(join(scope, rule.scope.as_deref().unwrap_or("")))));
        }
    }
}

fn inside(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn join(path: &str, name: &str) -> String {
    match (path.is_empty(), name.is_empty()) {
        (true, _) => name.to_owned(),
        (_, true) => path.to_owned(),
        _ => format!("{path}.{name}"),
    }
}
