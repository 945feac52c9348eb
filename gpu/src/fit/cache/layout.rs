//! What kind each layer is of: the config's own list, else the rule of its model type.

use serde_json::Value;

use crate::fit::CannotSay;
use crate::fit::config::{Config, count, wrong};

/// A layer's kind, before its sizes are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Full,
    Sliding(u64),
    Chunked(u64),
    /// Full attention, and keys of an indexer.
    Indexed,
    /// A recurrent state in place of keys and values.
    State,
    /// Attention and a state in one layer.
    Hybrid,
    None,
}

/// Keys that say the layout where there is no list of layers, and say nothing new where there is.
const PATTERN_KEYS: [&str; 14] = [
    "layer_types",
    "layers_block_type",
    "sliding_window_pattern",
    "full_attention_interval",
    "full_attn_idxs",
    "attn_layer_indices",
    "attn_layer_period",
    "attn_layer_offset",
    "attn_type_list",
    "hybrid_override_pattern",
    "no_rope_layers",
    "no_rope_layer_interval",
    "max_window_layers",
    "use_sliding_window",
];

/// The kinds of `layers` layers.
pub(super) fn kinds(config: &Config<'_>, layers: u64) -> Result<Vec<Kind>, CannotSay> {
    if let Some(list) = config.get("layer_types").or_else(|| config.get("layers_block_type")) {
        config.answer_for(&PATTERN_KEYS);
        return listed(config, list, layers);
    }
    if let Some(kinds) = by_indexes(config, layers)? {
        return Ok(kinds);
    }
    by_rule(config, layers)
}

/// A list with a name for each layer; what goes on past the layers is cut off.
fn listed(config: &Config<'_>, list: &Value, layers: u64) -> Result<Vec<Kind>, CannotSay> {
    let names = list.as_array().ok_or_else(|| wrong("layer_types", "no list"))?;
    let wanted = usize::try_from(layers).unwrap_or(usize::MAX);
    if names.len() < wanted {
        return Err(wrong("layer_types", &format!("{} entries for {layers} layers", names.len())));
    }
    names.iter().take(wanted).map(|name| named(config, name.as_str().unwrap_or_default())).collect()
}

fn named(config: &Config<'_>, name: &str) -> Result<Kind, CannotSay> {
    match name {
        "full_attention" | "attention" => Ok(Kind::Full),
        "sliding_attention" => Ok(window(config)?.map_or(Kind::Full, Kind::Sliding)),
        "chunked_attention" => Ok(chunk(config)?.map_or(Kind::Full, Kind::Chunked)),
        "linear_attention" | "mamba" | "conv" => Ok(Kind::State),
        "deepseek_sparse_attention" | "indexed_attention" | "qwen_sparse_attention" => Ok(Kind::Indexed),
        "hybrid" => Ok(Kind::Hybrid),
        "none" | "moe" | "mlp" | "dummy" => Ok(Kind::None),
        other => Err(wrong("layer_types", &format!("`{other}`, which is not known"))),
    }
}

/// The window of sliding layers: absent is the class's, null is none.
pub(super) fn window(config: &Config<'_>) -> Result<Option<u64>, CannotSay> {
    if config.is_null("sliding_window") {
        return Ok(None);
    }
    Ok(config.count_or_zero(&["sliding_window"])?.filter(|&window| window > 0))
}

fn chunk(config: &Config<'_>) -> Result<Option<u64>, CannotSay> {
    if config.is_null("attention_chunk_size") {
        return Ok(None);
    }
    config.count(&["attention_chunk_size"])
}

/// A kind for each layer, by a test of its number.
fn each(layers: u64, kind: impl Fn(u64) -> Kind) -> Vec<Kind> {
    (0..layers).map(kind).collect()
}

fn attention_or_state(attention: bool) -> Kind {
    if attention { Kind::Full } else { Kind::State }
}

/// The families whose configs name the attention layers by their numbers.
fn by_indexes(config: &Config<'_>, layers: u64) -> Result<Option<Vec<Kind>>, CannotSay> {
    let among = |key: &'static str, first: u64, all: bool| {
        let given = config.get(key).map(|list| numbers(key, list)).transpose()?;
        Ok(each(layers, |at| {
            attention_or_state(given.as_ref().map_or(all, |given| given.contains(&(at + first))))
        }))
    };
    let kinds = match config.model_type {
        "bamba" => among("attn_layer_indices", 0, false),
        "lfm2" | "lfm2_moe" => among("full_attn_idxs", 0, true),
        "kimi_linear" => {
            if config.get("linear_attn_config.full_attn_layers").is_none() {
                return Err(CannotSay::new(
                    "`linear_attn_config` does not say which layers are full attention",
                    &["linear_attn_config"],
                ));
            }
            among("linear_attn_config.full_attn_layers", 1, false)
        }
        "jamba" => {
            let period = config.need(&["attn_layer_period"])?;
            let offset = config.count_or_zero(&["attn_layer_offset"])?.unwrap_or(0);
            Ok(each(layers, |at| attention_or_state(at % period == offset)))
        }
        "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" | "qwen3_5" | "qwen3_5_moe" => {
            let interval = config.stated("full_attention_interval")?.unwrap_or(4).max(1);
            Ok(each(layers, |at| attention_or_state((at + 1) % interval == 0)))
        }
        "minimax" => match config.get("attn_type_list") {
            Some(list) => {
                let types = numbers("attn_type_list", list)?;
                Ok(types
                    .iter()
                    .take(usize::try_from(layers).unwrap_or(0))
                    .map(|&of| attention_or_state(of != 0))
                    .collect())
            }
            None => Ok(each(layers, |at| attention_or_state(at % 2 == 0))),
        },
        "nemotron_h" | "nemotron_h_omni" => override_pattern(config),
        "smollm3" => no_rope_sliding(config, layers),
        "llama4_text" | "llama4" => no_rope_chunks(config, layers),
        _ => return Ok(None),
    };
    let kinds = kinds?;
    if kinds.len() as u64 == layers { Ok(Some(kinds)) } else { Err(short(config, kinds.len())) }
}

fn short(config: &Config<'_>, found: usize) -> CannotSay {
    let reason =
        format!("the layers' kinds of `{}` are {found}, not as many as its layers", config.model_type);
    CannotSay::new(&reason, &["num_hidden_layers"])
}

fn numbers(key: &str, list: &Value) -> Result<Vec<u64>, CannotSay> {
    let items = list.as_array().ok_or_else(|| wrong(key, "no list"))?;
    items.iter().map(|item| count(key, item)).collect()
}

/// Nemotron-H's letters: M a state, * attention, - and E neither.
fn override_pattern(config: &Config<'_>) -> Result<Vec<Kind>, CannotSay> {
    const KEY: &str = "hybrid_override_pattern";
    let pattern = config.get(KEY).and_then(Value::as_str);
    let pattern = pattern.ok_or_else(|| CannotSay::new(&format!("config.json has no `{KEY}`"), &[KEY]))?;
    let kind = |letter: char| match letter {
        'M' => Ok(Kind::State),
        '*' => Ok(Kind::Full),
        '-' | 'E' => Ok(Kind::None),
        other => Err(wrong(KEY, &format!("`{other}`, which is not known"))),
    };
    pattern.chars().map(kind).collect()
}

/// Which layers have rotary embeddings: the config's list, else all but every fourth.
fn rotary(config: &Config<'_>, layers: u64) -> Result<Vec<bool>, CannotSay> {
    let interval = config.stated("no_rope_layer_interval")?.unwrap_or(4).max(1);
    match config.get("no_rope_layers").filter(|list| list.as_array().is_none_or(|list| !list.is_empty())) {
        Some(list) => Ok(numbers("no_rope_layers", list)?.iter().map(|&rotary| rotary != 0).collect()),
        None => Ok((0..layers).map(|at| (at + 1) % interval != 0).collect()),
    }
}

fn no_rope_sliding(config: &Config<'_>, layers: u64) -> Result<Vec<Kind>, CannotSay> {
    config.answer_for(&["max_window_layers"]);
    let window = if config.flag("use_sliding_window")? { window(config)? } else { None };
    let kinds = rotary(config, layers)?.into_iter();
    Ok(kinds.map(|rotary| window.filter(|_| !rotary).map_or(Kind::Full, Kind::Sliding)).collect())
}

fn no_rope_chunks(config: &Config<'_>, layers: u64) -> Result<Vec<Kind>, CannotSay> {
    let chunk = chunk(config)?;
    let kinds = rotary(config, layers)?.into_iter();
    Ok(kinds.map(|rotary| chunk.filter(|_| rotary).map_or(Kind::Full, Kind::Chunked)).collect())
}

/// The rule of the model type: its class's pattern, and the windows that its keys turn on.
fn by_rule(config: &Config<'_>, layers: u64) -> Result<Vec<Kind>, CannotSay> {
    let defaults = config.defaults;
    let switched = defaults.is_some_and(|known| known.get("use_sliding_window").is_some());
    if switched || config.get("use_sliding_window").is_some() {
        let window = if config.flag("use_sliding_window")? { window(config)? } else { None };
        let first = config.count_or_zero(&["max_window_layers"])?.unwrap_or(0);
        // A class without `max_window_layers` slides in every layer.
        let first =
            if defaults.is_some_and(|known| known.get("max_window_layers").is_some()) { first } else { 0 };
        return Ok(each(layers, |at| window.filter(|_| at >= first).map_or(Kind::Full, Kind::Sliding)));
    }
    let pattern: Vec<char> = match defaults.map(|known| known.pattern.as_deref()) {
        None => vec!['F'],
        Some(Some(pattern)) => pattern.chars().collect(),
        Some(None) => {
            let reason = format!(
                "only `layer_types` says the layers' kinds of `{}`, and it is not there",
                config.model_type
            );
            return Err(CannotSay::new(&reason, &["layer_types"]));
        }
    };
    let window = window(config)?;
    let pattern = stated_pattern(config, window)?.unwrap_or(pattern);
    // What slides in no layer by its class slides in all where the config sets a window.
    let plain = pattern.iter().all(|&letter| letter == 'F');
    let chunk = chunk(config)?;
    let kind = |letter: char| match letter {
        'F' if plain => Ok(window.map_or(Kind::Full, Kind::Sliding)),
        'F' => Ok(Kind::Full),
        'S' => Ok(window.map_or(Kind::Full, Kind::Sliding)),
        'C' => Ok(chunk.map_or(Kind::Full, Kind::Chunked)),
        'L' | 'V' => Ok(Kind::State),
        'H' => Ok(Kind::Hybrid),
        'X' => Ok(Kind::Indexed),
        'N' => Ok(Kind::None),
        _ => Err(CannotSay::new("a pattern of layers that is not known", &["layer_types"])),
    };
    (0..layers).zip(pattern.iter().cycle()).map(|(_, &letter)| kind(letter)).collect()
}

/// `sliding_window_pattern`: every so many layers one is full, or the letters L and G.
fn stated_pattern(config: &Config<'_>, window: Option<u64>) -> Result<Option<Vec<char>>, CannotSay> {
    const KEY: &str = "sliding_window_pattern";
    if let Some(letters) = config.get(KEY).and_then(Value::as_str) {
        let letter = |letter: char| match letter {
            'L' => Ok('S'),
            'G' => Ok('F'),
            other => Err(wrong(KEY, &format!("`{other}`, which is not known"))),
        };
        return letters.chars().map(letter).collect::<Result<Vec<_>, _>>().map(Some);
    }
    let every = config.stated(KEY)?.filter(|&every| every > 0 && window.is_some());
    Ok(every.map(|every| {
        let sliding = usize::try_from(every.min(1 << 16)).unwrap_or(1) - 1;
        std::iter::repeat_n('S', sliding).chain(['F']).collect()
    }))
}
