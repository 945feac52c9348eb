//! A model type the table does not have: every bf16 matrix that a layout takes is packed under its own
//! name, none merged, all in natural order of names (`docs/families.md`, types not in the table).

use std::collections::HashSet;

use safetensors::Dtype;

use super::expr::Value;
use super::left::{Left, unfit, unfit_shape};
use super::load::named;
use super::puts::is_float;
use super::{Experts, Inventory, Options, Pack, Part, Plain, Plan, Put, natural};
use crate::{Invalid, Result};

/// Plans a checkpoint of an unknown type; `what` says what is unknown, in words.
pub(super) fn plan(what: &str, inventory: &Inventory, options: &Options<'_>) -> Result<Plan> {
    let mut plan = Plan::default();
    plan.notes
        .push(format!("{what} is not known: every bf16 matrix is packed under its own name, none merged"));
    let mut taken: HashSet<String> = HashSet::new();
    for (name, info) in natural::sorted(inventory) {
        let value = Value::src(name, info.dtype, &info.shape).map_err(|fault| named(fault, name))?;
        if name.rsplit('.').next().is_some_and(|last| last.starts_with("glyd_")) {
            return Err(packed_already(name));
        }
        let dtype = if options.cast && is_float(value.dtype) { Dtype::BF16 } else { value.dtype };
        let packed = packed(name, &value, dtype, options);
        // Two packs of one name would have the same buffers.
        let packed =
            packed.and_then(|pack| if taken.insert(pack.name()) { Ok(pack) } else { Err(Left::NotLinear) });
        plan.puts.push(match packed {
            Ok(pack) => Put::Pack(pack),
            Err(reason) => {
                Put::Plain(Plain { name: name.clone(), dtype, shape: value.shape.clone(), value, reason })
            }
        });
    }
    Ok(plan)
}

/// A tensor as a pack, or why it is none.
fn packed(name: &str, value: &Value, dtype: Dtype, options: &Options<'_>) -> std::result::Result<Pack, Left> {
    if dtype != Dtype::BF16 {
        return Err(Left::Dtype(dtype));
    }
    let Some((module, weight)) = name.rsplit_once('.').filter(|(module, _)| !module.is_empty()) else {
        return Err(Left::NotLinear);
    };
    let (weight, shape, experts) = match *value.shape {
        [rows, columns] if weight == "weight" && !names(name, &["norm", "conv"]) => {
            if embeds(module) {
                return Err(Left::Embedding);
            }
            unfit(rows, columns).map_or(Ok(()), Err)?;
            (None, [rows, columns], None)
        }
        [count, rows, columns] if names(name, &["experts"]) && !names(name, &["conv", "embed"]) => {
            unfit(rows, columns).map_or(Ok(()), Err)?;
            let all = count.checked_mul(rows).filter(|&n| n > 0).ok_or(Left::Rows(0))?;
            (Some(weight.to_owned()), [all, columns], Some(Experts { count, transposed: false }))
        }
        [_, _] => return Err(Left::NotLinear),
        _ => return Err(unfit_shape(&value.shape).unwrap_or(Left::NotLinear)),
    };
    if options.leave.contains(name) {
        return Err(Left::Grows);
    }
    let part = Part { name: name.to_owned(), shape: value.shape.clone(), value: value.clone() };
    Ok(Pack { module: module.to_owned(), weight, shape, tensors: vec![part], experts })
}

fn names(name: &str, words: &[&str]) -> bool {
    let lower = name.to_ascii_lowercase();
    words.iter().any(|word| lower.contains(word))
}

/// Whether a module's name says that it is an embedding.
fn embeds(module: &str) -> bool {
    let lower = module.to_ascii_lowercase();
    let last = lower.rsplit('.').next().unwrap_or_default();
    // T5's and BART's one embedding is a module named `shared`.
    let words = |part: &str| part.split('_').any(|word| matches!(word, "wte" | "wpe" | "emb" | "embs"));
    lower.contains("embed") || last == "shared" || lower.split('.').any(words)
}

fn packed_already(name: &str) -> crate::Error {
    named(
        Invalid {
            expected: "a checkpoint that is not packed".to_owned(),
            found: "a pack's buffer".to_owned(),
            hint: Some("unpack it, or take the checkpoint it was made from".to_owned()),
            ..Invalid::default()
        },
        name,
    )
}
