//! A conversion's operations on the tensors it gathers (`docs/families.md`, rule 4).

use serde_json::Value as Json;

use super::Dropped;
use super::config::{count, look, text};
use super::expr::Value;
use super::shares;
use super::table::{Op, RuleText};
use crate::Invalid;

/// What a conversion gives: tensors of the model, and what of the checkpoint it leaves out.
#[derive(Default)]
pub(super) struct Converted {
    /// Each with its place among the rule's targets.
    pub(super) values: Vec<(usize, Value)>,
    /// What of the checkpoint's tensors is cut off.
    pub(super) cut: Vec<Dropped>,
}

/// Whose a value is while the operations run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Source(usize),
    Target(usize),
}

type Items = Vec<(Of, Vec<Value>)>;

/// Runs a rule's operations on what it gathered, by source; `name` is the target's.
pub(super) fn convert(
    rule: &RuleText,
    gathered: Vec<Vec<Value>>,
    name: &str,
    config: &Json,
) -> Result<Converted, Invalid> {
    let sources = gathered.into_iter().enumerate().filter(|(_, values)| !values.is_empty());
    let mut work = Work { rule, name, config, cut: Vec::new() };
    let mut items: Items = sources.map(|(i, values)| (Of::Source(i), values)).collect();
    for op in &rule.ops {
        items = work.run(op, items)?;
    }
    let mut out = Converted { values: Vec::new(), cut: work.cut };
    for (of, values) in items {
        let (Of::Target(target), [value]) = (of, values.as_slice()) else {
            return Err(fault("one tensor a target", "another form of it".to_owned()));
        };
        out.values.push((target, value.clone()));
    }
    Ok(out)
}

struct Work<'a> {
    rule: &'a RuleText,
    name: &'a str,
    config: &'a Json,
    cut: Vec<Dropped>,
}

impl Work<'_> {
    fn run(&mut self, op: &Op, items: Items) -> Result<Items, Invalid> {
        match op {
            Op::Stack(dim) => stack(*dim, items),
            Op::Cat(dim) => {
                let all = items.into_iter().flat_map(|(_, values)| values).collect();
                to_first(Value::cat(*dim, all)?)
            }
            Op::Chunk(dim) => self.chunk(*dim, &one(items)?),
            Op::Split(dim) => self.split(*dim, &one(items)?),
            Op::Transpose(a, b, look_first) => self.transpose([*a, *b], *look_first, one(items)?),
            Op::Interleave(dim) => to_first(one(items)?.interleave(*dim)?),
            Op::Rope(part, names) => self.rope(part, names.as_deref(), items),
            Op::ErnieExperts => self.ernie_experts(&items),
            Op::UnpadVocab => self.unpad(one(items)?),
            Op::Dequantize if items.len() == 1 => to_first(one(items)?),
            Op::Dequantize => {
                Err(fault("experts that are not quantized", "their scales beside them".to_owned()))
            }
            Op::Queries => match two(items) {
                Some((a, b)) => to_first(Value::queries(a, b)?),
                None => Err(fault("two tables of queries", "others".to_owned())),
            },
        }
    }

    /// Equal parts, the last ones smaller where it does not divide.
    fn chunk(&mut self, dim: usize, value: &Value) -> Result<Items, Invalid> {
        let targets = self.rule.targets.len() as u64;
        let size = *value.shape.get(dim).ok_or_else(|| lacks(dim, value))?;
        let step = size.div_ceil(targets.max(1));
        let sizes = (0..targets).map(|i| step.min(size.saturating_sub(i.saturating_mul(step))));
        self.parts(dim, value, sizes.collect())
    }

    /// Parts of the sizes the config gives the targets.
    fn split(&mut self, dim: usize, value: &Value) -> Result<Items, Invalid> {
        let target = self.rule.targets.first().map_or("", String::as_str);
        let mut sizes = Vec::new();
        for other in &self.rule.targets {
            let name = self.name.replacen(target, other, 1);
            let size = split_size(self.config, &name);
            sizes.push(
                size.ok_or_else(|| fault("its parts' sizes in config.json", format!("none for `{name}`")))?,
            );
        }
        self.parts(dim, value, sizes)
    }

    fn parts(&mut self, dim: usize, value: &Value, sizes: Vec<u64>) -> Result<Items, Invalid> {
        let mut items = Vec::new();
        let mut from = 0_u64;
        for (target, size) in sizes.into_iter().enumerate() {
            let to = from.checked_add(size).ok_or_else(|| lacks(dim, value))?;
            items.push((Of::Target(target), vec![value.clone().slice(dim, from, to)?]));
            from = to;
        }
        self.note_cut(value, dim, from, "past the last part the model takes");
        Ok(items)
    }

    /// Notes that of a dimension only the elements before `kept` are taken.
    fn note_cut(&mut self, value: &Value, dim: usize, kept: u64, why: &str) {
        let past = shares::part(value, dim, kept, u64::MAX);
        self.cut.extend(past.into_iter().map(|share| Dropped::new(share, why)));
    }

    fn transpose(&self, [a, b]: [usize; 2], look_first: bool, value: Value) -> Result<Items, Invalid> {
        if look_first && experts_shape(self.config, self.name, &value).as_ref() == Some(&value.shape) {
            return to_first(value);
        }
        to_first(value.transpose(a, b)?)
    }

    fn rope(&self, part: &str, names: Option<&[String]>, items: Items) -> Result<Items, Invalid> {
        let config = self.config.get(part).unwrap_or(self.config);
        let heads = count(config, "num_attention_heads").or_else(|| count(config, "num_heads")).unwrap_or(1);
        let mut out = Items::new();
        for (of, values) in items {
            let key = match of {
                Of::Source(i) => self.rule.sources.get(i),
                Of::Target(i) => self.rule.targets.get(i),
            };
            let named =
                names.is_none_or(|names| names.iter().any(|n| key.is_some_and(|key| key.contains(n))));
            let value = one(vec![(of, values)])?;
            let to = if matches!(of, Of::Target(_)) { of } else { Of::Target(0) };
            out.push((to, vec![if named { value.rope(heads)? } else { value }]));
        }
        Ok(out)
    }

    /// A target each of equal runs of the experts: the text model's, then the vision tower's.
    fn ernie_experts(&self, items: &[(Of, Vec<Value>)]) -> Result<Items, Invalid> {
        let targets = self.rule.targets.len();
        let mut out = Items::new();
        for target in 0..targets {
            let mut parts = Vec::new();
            for (_, values) in items {
                let run = values.len().div_ceil(targets.max(1));
                let experts = values.iter().skip(target * run).take(run).cloned().collect();
                parts.push(Value::stack(0, experts)?);
            }
            let value = if parts.len() == 1 { parts.swap_remove(0) } else { Value::cat(1, parts)? };
            out.push((Of::Target(target), vec![value]));
        }
        Ok(out)
    }

    fn unpad(&mut self, value: Value) -> Result<Items, Invalid> {
        let size = *value.shape.first().ok_or_else(|| lacks(0, &value))?;
        let rows = count(text(self.config), "unpadded_vocab_size").unwrap_or(size);
        if rows == size {
            return to_first(value);
        }
        self.note_cut(&value, 0, rows, "rows past the vocabulary");
        to_first(value.slice(0, 0, rows)?)
    }
}

fn stack(dim: usize, items: Items) -> Result<Items, Invalid> {
    let alone = items.len() == 1;
    let mut out = Items::new();
    for (of, values) in items {
        let to = if alone { Of::Target(0) } else { of };
        out.push((to, vec![Value::stack(dim, values)?]));
    }
    Ok(out)
}

fn to_first(value: Value) -> Result<Items, Invalid> {
    Ok(vec![(Of::Target(0), vec![value])])
}

/// The one tensor that an operation takes.
fn one(items: Items) -> Result<Value, Invalid> {
    let mut values: Vec<Value> = items.into_iter().flat_map(|(_, values)| values).collect();
    match (values.pop(), values.is_empty()) {
        (Some(value), true) => Ok(value),
        _ => Err(fault("one tensor", "several that become it".to_owned())),
    }
}

fn two(items: Items) -> Option<(Value, Value)> {
    let values: Vec<Value> = items.into_iter().flat_map(|(_, values)| values).collect();
    let [a, b] = <[Value; 2]>::try_from(values).ok()?;
    Some((a, b))
}

/// How many rows the config gives a part of a fused projection.
fn split_size(config: &Json, name: &str) -> Option<u64> {
    let c = text(config);
    let heads = count(c, "num_attention_heads");
    for part in name.split('.') {
        let delta_keys = || count(c, "linear_num_key_heads")?.checked_mul(count(c, "linear_key_head_dim")?);
        let delta_values =
            || count(c, "linear_num_value_heads")?.checked_mul(count(c, "linear_value_head_dim")?);
        let head_size = || count(c, "head_dim").or_else(|| count(c, "hidden_size")?.checked_div(heads?));
        match part {
            "in_proj_qkv" => return delta_keys()?.checked_mul(2)?.checked_add(delta_values()?),
            "in_proj_z" => return delta_values(),
            "in_proj_a" | "in_proj_b" => return count(c, "linear_num_value_heads"),
            "q_proj" => return heads?.checked_mul(head_size()?),
            "k_proj" | "v_proj" => {
                return count(c, "num_key_value_heads").or(heads)?.checked_mul(head_size()?);
            }
            _ => {}
        }
    }
    None
}

/// The shape in which the model holds experts `[E, out, in]`, by its config.
fn experts_shape(config: &Json, name: &str, value: &Value) -> Option<Vec<u64>> {
    let c = text(config);
    let experts = *value.shape.first()?;
    let inner = look(c, "moe_intermediate_size")?.as_u64()?;
    let hidden = count(c, "hidden_size")?;
    if name.ends_with(".gate_up_proj") {
        return Some(vec![experts, inner.checked_mul(2)?, hidden]);
    }
    Some(vec![experts, hidden, inner])
}

fn lacks(dim: usize, value: &Value) -> Invalid {
    fault(&format!("at least {} dimensions", dim.saturating_add(1)), format!("{:?}", value.shape))
}

fn fault(expected: &str, found: String) -> Invalid {
    Invalid { expected: expected.to_owned(), found, ..Invalid::default() }
}
