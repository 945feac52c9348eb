//! What the table cannot know and a user should: buffers that a class computes, and biases that the
//! config asks for or that only some layers have (`docs/families.md`, refinements).

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::Tied;
use super::config::text;
use super::instance::Tally;

/// Fields that say whether a model's Linears have biases.
const BIASES: [&str; 6] = ["attention_bias", "attn_bias", "qkv_bias", "mlp_bias", "use_bias", "bias"];

/// How many names a note lists.
const NAMES_LISTED: usize = 8;

/// Notes on the tensors that not every checkpoint of the type has.
pub(super) fn of(optional: &BTreeMap<String, Tally>, config: &Json) -> Vec<String> {
    let mut notes: Vec<String> = asked_biases(optional, config);
    let names = |which: &dyn Fn(&Tally) -> bool| {
        let chosen = optional.iter().filter(|(_, tally)| which(tally));
        listed(chosen.map(|(name, _)| name.as_str()).collect())
    };
    let some = names(&|tally| !tally.buffer && tally.there > 0 && tally.absent > 0);
    if !some.is_empty() {
        notes.push(format!("not in every layer of the checkpoint, saved where they are: {some}"));
    }
    let buffers = names(&|tally| tally.buffer && tally.absent > 0 && (!tally.optional || tally.there == 0));
    if !buffers.is_empty() {
        notes.push(format!(
            "buffers that the model's class may compute, not in the checkpoint and not saved: {buffers}"
        ));
    }
    notes
}

/// A note on the tensors that are saved under another's name.
pub(super) fn of_ties(tied: &[Tied]) -> Option<String> {
    let names: Vec<&str> = tied.iter().map(|tied| tied.tensor.as_str()).collect();
    let many =
        || format!("tied by config.json and equal to what they are tied to, saved once: {}", listed(names));
    (!tied.is_empty()).then(many)
}

/// Biases that a field of the config asks for and that the checkpoint has none of.
fn asked_biases(optional: &BTreeMap<String, Tally>, config: &Json) -> Vec<String> {
    let fields = text(config).as_object().into_iter().flatten();
    let asked =
        fields.filter(|(field, value)| BIASES.contains(&field.as_str()) && value.as_bool() == Some(true));
    let mut notes = Vec::new();
    for (field, _) in asked {
        let of_field = |name: &str| match field.as_str() {
            "attention_bias" | "attn_bias" | "qkv_bias" => {
                name.contains("attn") || name.contains("attention")
            }
            "mlp_bias" => name.contains("mlp") || name.contains("feed_forward"),
            _ => true,
        };
        let biases = optional.iter().filter(|(name, tally)| !tally.buffer && of_field(name));
        let (absent, there): (Vec<_>, Vec<_>) = biases.partition(|(_, tally)| tally.there == 0);
        if there.is_empty() && !absent.is_empty() {
            let names = listed(absent.into_iter().map(|(name, _)| name.as_str()).collect());
            notes.push(format!(
                "config.json has `{field}`, the checkpoint no such bias: saved without {}",
                names
            ));
        }
    }
    notes
}

fn listed(names: Vec<&str>) -> String {
    let more = names.len().saturating_sub(NAMES_LISTED);
    let quoted = names.into_iter().take(NAMES_LISTED).map(|name| format!("`{name}`"));
    let mut text = quoted.collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
