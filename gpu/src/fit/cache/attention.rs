//! Keys and values of attention layers, as they are or as a latent.

use super::layout::Kind;
use super::{Layer, Part, Rows, Store, state};
use crate::fit::CannotSay;
use crate::fit::config::{Config, HEAD_WIDTH, HEADS, HIDDEN, KV_HEADS};

/// Heads that keep keys and values, and how wide each is.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyValues {
    pub(super) heads: u64,
    pub(super) width: u64,
}

impl KeyValues {
    pub(super) fn of(config: &Config<'_>) -> Result<Self, CannotSay> {
        Ok(KeyValues { heads: kv_heads(config)?, width: head_width(config)? })
    }

    /// Keys and values, of one width.
    pub(super) fn part(self, rows: Rows) -> Part {
        Part { rows, heads: self.heads, width: self.width.saturating_mul(2), store: Store::Cache }
    }
}

/// A layer of this kind.
pub(super) fn layer(config: &Config<'_>, kind: Kind) -> Result<Layer, CannotSay> {
    if kind == Kind::State {
        return Ok(Layer::new("state", state::parts(config)?));
    }
    if kind == Kind::None {
        return Ok(Layer::none());
    }
    if config.is_null("kv_lora_rank") || config.count(&["kv_lora_rank"])?.is_none() {
        return plain(config, kind);
    }
    Err(CannotSay::new("a latent cache beside layers of another kind", &["kv_lora_rank", "layer_types"]))
}

fn plain(config: &Config<'_>, kind: Kind) -> Result<Layer, CannotSay> {
    let kv = KeyValues::of(config)?;
    Ok(match kind {
        Kind::Sliding(window) => Layer::new("sliding", vec![kv.part(Rows::Window(window))]),
        Kind::Chunked(chunk) => Layer::new("chunked", vec![kv.part(Rows::Window(chunk))]),
        Kind::Hybrid => {
            let mut parts = vec![kv.part(Rows::Context)];
            parts.extend(state::parts(config)?);
            Layer::new("full+state", parts)
        }
        Kind::Indexed => {
            return Err(CannotSay::new("an indexer beside full keys and values", &["layer_types"]));
        }
        Kind::Full | Kind::State | Kind::None => Layer::new("full", vec![kv.part(Rows::Context)]),
    })
}

/// Heads that keep keys and values; null is as many as attend.
fn kv_heads(config: &Config<'_>) -> Result<u64, CannotSay> {
    match config.model_type {
        "falcon" => {
            config.answer_for(&["num_kv_heads"]);
            if config.flag("new_decoder_architecture")? {
                return config.stated("num_kv_heads")?.map_or_else(|| config.need(HEADS), Ok);
            }
            return if config.flag("multi_query")? { Ok(1) } else { config.need(HEADS) };
        }
        "gpt_bigcode" if config.flag("multi_query")? => return Ok(1),
        "chatglm" if !config.flag("multi_query_attention")? => return config.need(HEADS),
        _ => {}
    }
    if config.is_null("num_key_value_heads") {
        return config.need(HEADS);
    }
    config.count(KV_HEADS)?.map_or_else(|| config.need(HEADS), Ok)
}

/// The width of a head: the config's, the class's, else the model's width over its heads.
pub(super) fn head_width(config: &Config<'_>) -> Result<u64, CannotSay> {
    let names: &[&'static str] = if config.model_type.starts_with("nemotron_h") {
        &["attention_head_dim", "head_dim"]
    } else {
        HEAD_WIDTH
    };
    let stated = names.iter().any(|&key| config.get(key).is_some());
    if (stated || !config.is_null("head_dim"))
        && let Some(width) = config.count(names)?
    {
        return Ok(width);
    }
    let (hidden, heads) = (config.need(HIDDEN)?, config.need(HEADS)?);
    let width = hidden / heads;
    let class = config.defaults.and_then(|known| known.head_dim_or).filter(|_| !config.is_null("head_dim"));
    match class {
        _ if width == 0 => Err(CannotSay::new(
            &format!("`hidden_size` {hidden} is less than `num_attention_heads` {heads}"),
            &["head_dim"],
        )),
        Some(class) if class != width => Err(CannotSay::new(
            &format!(
                "config.json has no `head_dim`, and the class of `{}` may mean {class} or {width}",
                config.model_type
            ),
            &["head_dim"],
        )),
        _ => Ok(width),
    }
}

/// The heads that tensor parallelism divides, by their keys.
pub(super) fn heads(config: &Config<'_>) -> Result<Vec<(&'static str, u64)>, CannotSay> {
    Ok(config.count(HEADS)?.map(|heads| (HEADS[0], heads)).into_iter().collect())
}
