//! Whether a model fits a card: what its weights, its cache and its runtime take, in bf16 and packed.
//!
//! `docs/fit.md` has the rules, the defaults, and what is assumed.

mod answer;
mod cache;
mod cards;
mod config;
mod defaults;
mod weights;

pub use answer::{
    CONTEXT, CacheDtype, Layers, Needs, RUNTIME_BYTES, Request, TIGHT_PERCENT, needs, parallel_note,
};
pub use cards::{Card, Gpu, cards, parse_gpu};
pub use weights::{
    Basis, Bytes, Component, Model, NotLoaded, PackedMatrix, Packing, Tally, Tied, Weights, weigh,
};

/// Why it cannot be said how much a model takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot say: {reason}{}{}", named(.keys), at_most(*.bound))]
pub struct CannotSay {
    /// What stands in the way, in words.
    pub reason: String,
    /// The keys of config.json that it is about.
    pub keys: Vec<String>,
    /// Bytes of cache a token and sequence that it is at most, where that can be said.
    pub bound: Option<u64>,
}

impl CannotSay {
    fn new(reason: &str, keys: &[&str]) -> Self {
        CannotSay {
            reason: reason.to_owned(),
            keys: keys.iter().map(|&key| key.to_owned()).collect(),
            bound: None,
        }
    }
}

fn named(keys: &[String]) -> String {
    let named: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
    if named.is_empty() { String::new() } else { format!(" (keys in the way: {})", named.join(", ")) }
}

fn at_most(bound: Option<u64>) -> String {
    let text =
        |bytes| format!("; upper bound: {bytes} bytes of cache a token, if every layer kept all heads");
    bound.map(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::cache::{self, Asked};
    use serde_json::Value;

    fn asked(context: u64) -> Asked {
        Asked { context, batch: 1, tensor_parallel: 1, element_bytes: 2 }
    }

    #[test]
    fn every_golden_models_cache_is_known_to_the_byte() {
        let mut models = 0;
        let mut wrong = Vec::new();
        for line in include_str!("../../../fixtures/fit/models.jsonl").lines() {
            let model: Value = serde_json::from_str(line).unwrap();
            let found = cache::of(&model["config"]);
            for (context, key) in [(8192, "cache_8192"), (131_072, "cache_131072")] {
                let bytes = found.as_ref().map(|cache| cache.bytes(asked(context)));
                if bytes != Ok(model[key].as_u64()) {
                    wrong.push(format!("{} {context}: {bytes:?}, not {}", model["model"], model[key]));
                }
            }
            models += 1;
        }
        assert_eq!(models, 52);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
