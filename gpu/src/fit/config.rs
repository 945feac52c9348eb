//! config.json as the cache's rules read it: the text model's part, keys under their several names,
//! and class defaults where hub configs leave a key out (`docs/fit.md`, reading config.json).

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::CannotSay;
use super::defaults::Defaults;

/// The names of a key that several families spell their own way.
pub(super) const LAYERS: &[&str] =
    &["num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers"];
pub(super) const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads", "num_heads"];
pub(super) const KV_HEADS: &[&str] =
    &["num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "attn_config.kv_n_heads"];
pub(super) const HEAD_WIDTH: &[&str] = &["head_dim", "attention_head_dim", "kv_channels", "d_kv"];
pub(super) const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model"];

/// Where the text model's config is, of a composite's.
const TEXT: [&str; 7] = [
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "decoder",
    "generator",
    "language_model",
];
/// How deep it is looked for.
const DEPTH: usize = 3;
/// A count above this is no model's.
const COUNT_MAX: u64 = 1 << 40;
/// The dimensions that only a part of a config may leave to its class.
const DIMENSIONS: [&[&str]; 3] = [LAYERS, HEADS, HIDDEN];
/// Longest context, by its names.
const POSITIONS: [&str; 7] = [
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "n_ctx",
];

/// The text model's config.
pub(super) struct Config<'a> {
    outer: &'a Value,
    map: &'a Map<String, Value>,
    /// Its model type.
    pub(super) model_type: &'a str,
    /// Its class's defaults, where it is known.
    pub(super) defaults: Option<&'static Defaults>,
    nested: bool,
    read: RefCell<BTreeSet<&'static str>>,
    assumed: RefCell<BTreeSet<String>>,
}

impl<'a> Config<'a> {
    /// The text model's part of a config.
    pub(super) fn new(outer: &'a Value) -> Result<Self, CannotSay> {
        let whole = outer.as_object().ok_or_else(|| CannotSay::new("config.json is no JSON object", &[]))?;
        let (mut map, mut nested) = (whole, false);
        let mut model_type = text(map, "model_type").unwrap_or_default();
        for _ in 0..DEPTH {
            let Some((key, part)) = TEXT.iter().find_map(|key| Some((*key, sub_model(map, key)?))) else {
                break;
            };
            // A text config that does not say its type has its composite's usual one.
            let usual = Defaults::of(model_type).and_then(|known| known.text.as_deref());
            model_type = text(part, "model_type").or(usual).unwrap_or(model_type);
            map = part;
            nested |= key != "thinker_config";
        }
        Ok(Config {
            outer,
            map,
            model_type,
            defaults: Defaults::of(model_type),
            nested,
            read: RefCell::default(),
            assumed: RefCell::default(),
        })
    }

    /// The whole config's first architecture.
    pub(super) fn architecture(&self) -> Option<&'a str> {
        let named = |map: &'a Map<String, Value>| map.get("architectures")?.get(0)?.as_str();
        named(self.map).or_else(|| named(self.outer.as_object()?))
    }

    /// A key's value, unless it is absent or null; a dotted key is looked up in its object.
    pub(super) fn get(&self, key: &'static str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key.split('.').next().unwrap_or(key));
        let value = match key.split_once('.') {
            Some((object, key)) => self.map.get(object)?.get(key)?,
            None => self.map.get(key)?,
        };
        (!value.is_null()).then_some(value)
    }

    /// Whether the key is there and null.
    pub(super) fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// Keys that a rule answers for without their values.
    pub(super) fn answer_for(&self, keys: &[&'static str]) {
        self.read.borrow_mut().extend(keys);
    }

    /// A count under one of its names, or its class's default; a count of 0 is told.
    pub(super) fn count_or_zero(&self, names: &[&'static str]) -> Result<Option<u64>, CannotSay> {
        if let Some((key, value)) = names.iter().find_map(|&key| Some((key, self.get(key)?))) {
            return count(key, value).map(Some);
        }
        let dimension = DIMENSIONS.contains(&names);
        let Some(defaults) = self.defaults.filter(|known| !dimension || self.nested || known.dimensions)
        else {
            return Ok(None);
        };
        let default = names.iter().find_map(|&key| Some((key, defaults.get(key)?.as_u64()?)));
        Ok(default.map(|(key, value)| {
            self.assume(format!(
                "`{key}` is not in config.json: {value}, as the class of `{}` has it",
                self.model_type
            ));
            value
        }))
    }

    /// As [`Config::count_or_zero`], of what cannot be 0.
    pub(super) fn count(&self, names: &[&'static str]) -> Result<Option<u64>, CannotSay> {
        match self.count_or_zero(names)? {
            Some(0) => Err(wrong(names.first().copied().unwrap_or_default(), "0")),
            count => Ok(count),
        }
    }

    /// As [`Config::count`], of what must be there.
    pub(super) fn need(&self, names: &[&'static str]) -> Result<u64, CannotSay> {
        let key = names.first().copied().unwrap_or_default();
        self.count(names)?.ok_or_else(|| CannotSay::new(&format!("config.json has no `{key}`"), &[key]))
    }

    /// A count that is not the class's to say.
    pub(super) fn stated(&self, key: &'static str) -> Result<Option<u64>, CannotSay> {
        self.get(key).map(|value| count(key, value)).transpose()
    }

    /// A yes or no, or its class's default, or no.
    pub(super) fn flag(&self, key: &'static str) -> Result<bool, CannotSay> {
        let default = || self.defaults.and_then(|known| known.get(key)?.as_bool()).unwrap_or(false);
        match self.get(key) {
            None => Ok(default()),
            Some(value) => value.as_bool().ok_or_else(|| wrong(key, &value.to_string())),
        }
    }

    /// Notes what the sums take for granted.
    pub(super) fn assume(&self, what: String) {
        self.assumed.borrow_mut().insert(what);
    }

    /// All that was taken for granted.
    pub(super) fn assumed(&self) -> Vec<String> {
        self.assumed.borrow().iter().cloned().collect()
    }

    /// The keys of `keys` that are there, say something, and that no rule has read.
    pub(super) fn unread<'k>(&self, keys: &[&'k str]) -> Vec<&'k str> {
        let read = self.read.borrow();
        keys.iter()
            .copied()
            .filter(|&key| !read.contains(key) && self.map.get(key).is_some_and(says))
            .collect()
    }

    /// The keys that are not among these, and say something.
    pub(super) fn others(&self, known: &BTreeSet<&str>) -> Vec<&'a str> {
        let read = self.read.borrow();
        let other = |key: &&str| !known.contains(*key) && !read.contains(*key);
        self.map.iter().filter(|(_, value)| says(value)).map(|(key, _)| key.as_str()).filter(other).collect()
    }

    /// The longest context that the model is made for, where the config says.
    pub(super) fn positions(&self) -> Option<u64> {
        let of = |map: &Map<String, Value>| POSITIONS.iter().find_map(|key| map.get(*key)?.as_u64());
        let stated =
            of(self.map).or_else(|| of(self.outer.as_object()?)).filter(|&positions| positions > 0)?;
        let scaling = self.map.get("rope_scaling").or_else(|| self.map.get("rope_parameters"));
        let scaled = scaling.and_then(|scaling| {
            let factor = scaling.get("factor")?.as_f64().filter(|factor| (1.0..1e6).contains(factor))?;
            let original = scaling.get("original_max_position_embeddings").and_then(Value::as_u64);
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a length of text, not negative"
            )]
            original.map(|original| (original as f64 * factor) as u64)
        });
        Some(stated.max(scaled.unwrap_or(0)))
    }
}

fn sub_model<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Map<String, Value>> {
    let part = map.get(key)?.as_object()?;
    let own = |map: &Map<String, Value>| LAYERS.iter().chain(HIDDEN).any(|key| map.contains_key(*key));
    let deeper = TEXT.iter().any(|key| part.get(*key).is_some_and(Value::is_object));
    let typed = text(part, "model_type").is_some_and(|of| Defaults::of(of).is_some()) && !own(map);
    (own(part) || deeper || typed).then_some(part)
}

fn text<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    map.get(key)?.as_str()
}

/// Whether a value says anything: null, no, nothing and an empty list leave the class as it is.
fn says(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(yes) => *yes,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

/// A count, as config.json must have it.
pub(super) fn count(key: &str, value: &Value) -> Result<u64, CannotSay> {
    value.as_u64().filter(|&count| count <= COUNT_MAX).ok_or_else(|| wrong(key, &value.to_string()))
}

/// What a key holds makes no sense.
pub(super) fn wrong(key: &str, found: &str) -> CannotSay {
    let found: String = found.chars().take(60).collect();
    CannotSay::new(&format!("config.json has `{key}`: {found}"), &[key])
}
