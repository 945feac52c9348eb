//! What holds where config.json leaves a key out: the defaults of transformers' config classes
//! (`docs/fit.md`, defaults).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Aliases are one step long in the table; a longer chain is cut.
const ALIASES_MAX: usize = 4;

/// A model type's defaults.
#[derive(Debug, Deserialize)]
pub(super) struct Defaults {
    /// The kinds of its layers, a letter each, over and over; absent where only a key of the config says.
    pub(super) pattern: Option<String>,
    /// A default for the width of a head that may be a constant, or the quotient in the class's own
    /// dimensions: only a config for which both agree can leave the key out.
    pub(super) head_dim_or: Option<u64>,
    /// The type of its text model, where the config does not say.
    pub(super) text: Option<String>,
    /// Whether hub configs of the type leave out the model's dimensions at their top level too.
    #[serde(default)]
    pub(super) dimensions: bool,
    /// Whether it is an encoder and a decoder.
    #[serde(default)]
    pub(super) encoder_decoder: bool,
    /// Attention layers in a block that the config counts as one.
    pub(super) layers_per_block: Option<u64>,
    #[serde(rename = "as")]
    alias: Option<String>,
    /// Every other key: a key of config.json.
    #[serde(flatten)]
    keys: Map<String, Value>,
}

impl Defaults {
    /// The defaults of a model type; `None` where it is not known.
    pub(super) fn of(model_type: &str) -> Option<&'static Defaults> {
        let table = table();
        let mut found = table.get(model_type)?;
        for _ in 0..ALIASES_MAX {
            match &found.alias {
                Some(alias) => found = table.get(alias)?,
                None => return Some(found),
            }
        }
        None
    }

    /// The default of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key)
    }
}

fn table() -> &'static BTreeMap<String, Defaults> {
    static TABLE: OnceLock<BTreeMap<String, Defaults>> = OnceLock::new();
    // The tests read the table: what is embedded parses.
    TABLE.get_or_init(|| serde_json::from_str(include_str!("defaults.json")).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_every_alias_leads_somewhere() {
        assert!(table().len() > 300);
        for name in table().keys() {
            let defaults = Defaults::of(name).unwrap_or_else(|| panic!("{name}"));
            let letters = defaults.pattern.as_deref().unwrap_or("F");
            assert!(letters.chars().all(|letter| "FSCLVHXN".contains(letter)), "{name}: {letters}");
            assert!(defaults.text.as_deref().is_none_or(|text| Defaults::of(text).is_some()), "{name}");
        }
        assert_eq!(Defaults::of("qwen3").unwrap().get("head_dim"), Some(&128.into()));
        assert!(Defaults::of("no_such_type").is_none());
    }
}
