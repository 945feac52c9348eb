//! The families whose caches are of a kind of their own.

use serde_json::Value;

use super::attention::KeyValues;
use super::layout::{self, Kind};
use super::{Layer, Part, Rows, Store, layer_count, state};
use crate::fit::CannotSay;
use crate::fit::config::{Config, HEAD_WIDTH, HEADS, HIDDEN, KV_HEADS, LAYERS, count, wrong};

/// Encoder rows that a Whisper decoder attends to.
const WHISPER_ROWS: u64 = 1500;
/// Encoders and decoders whose decoders attend to as many rows as the prompt has.
const ENCODER_DECODERS: [&str; 19] = [
    "t5",
    "mt5",
    "umt5",
    "longt5",
    "switch_transformers",
    "bart",
    "mbart",
    "pegasus",
    "pegasus_x",
    "m2m_100",
    "marian",
    "blenderbot",
    "blenderbot-small",
    "plbart",
    "mvp",
    "nllb-moe",
    "bigbird_pegasus",
    "led",
    "pop2piano",
];

/// Whether the decoder of an encoder and decoder is one of those that are known.
pub(super) fn takes(model_type: &str) -> bool {
    ENCODER_DECODERS.contains(&model_type)
}

/// The layers of a family with a cache of its own; `None` of all others.
pub(super) fn of(config: &Config<'_>) -> Result<Option<Vec<Layer>>, CannotSay> {
    let of = config.model_type;
    match of {
        "whisper" => encoder_decoder(config, Some(WHISPER_ROWS)).map(Some),
        _ if ENCODER_DECODERS.contains(&of) => encoder_decoder(config, None).map(Some),
        "mamba" | "mamba2" | "falcon_mamba" => {
            let layers = layer_count(config)?;
            repeat(&Layer::new("state", state::parts(config)?), layers).map(Some)
        }
        "rwkv" => rwkv(config).map(Some),
        "falcon_h1" => {
            config.answer_for(&["attn_layer_indices"]);
            repeat(&super::attention::layer(config, Kind::Hybrid)?, layer_count(config)?).map(Some)
        }
        "deepseek_v4" => compressed(config).map(Some),
        "mimo_v2_flash" => two_widths(config).map(Some),
        "mllama_text_model" | "mllama" => cross_images(config).map(Some),
        _ if of.starts_with("minimax_m3") => sparse_index(config).map(Some),
        _ if of.starts_with("gemma4") || of.starts_with("gemma3n") => shared(config).map(Some),
        _ if !config.is_null("kv_lora_rank") && config.count(&["kv_lora_rank"])?.is_some() => {
            latent(config).map(Some)
        }
        _ => Ok(None),
    }
}

fn repeat(layer: &Layer, count: u64) -> Result<Vec<Layer>, CannotSay> {
    Ok((0..count).map(|_| layer.clone()).collect())
}

/// One row of the layer's list for each of `layers`.
fn list<'a>(config: &Config<'a>, key: &'static str, layers: u64) -> Result<&'a [Value], CannotSay> {
    let list = config.get(key).and_then(Value::as_array);
    let list = list.ok_or_else(|| CannotSay::new(&format!("config.json has no list `{key}`"), &[key]))?;
    let wanted = usize::try_from(layers).unwrap_or(usize::MAX);
    list.get(..wanted).ok_or_else(|| wrong(key, &format!("{} entries for {layers} layers", list.len())))
}

fn encoder_decoder(config: &Config<'_>, rows: Option<u64>) -> Result<Vec<Layer>, CannotSay> {
    let layers = config.need(&["num_decoder_layers", "decoder_layers", "num_layers", "num_hidden_layers"])?;
    let layers = super::check_layers(layers)?;
    let heads = config.need(&[
        "decoder_attention_heads",
        "num_heads",
        "encoder_attention_heads",
        "num_attention_heads",
    ])?;
    let width = match config.count(&["d_kv", "head_dim"])? {
        Some(width) if width > 0 => width,
        _ => (config.need(&["d_model", "hidden_size"])? / heads).max(1),
    };
    let kv = KeyValues { heads, width };
    let stated = config.stated("max_source_positions")?.filter(|_| rows.is_some());
    let cross = match stated.or(rows) {
        Some(rows) => {
            config.assume(format!("the encoder has {rows} rows for each sequence"));
            Rows::Fixed(rows)
        }
        None => {
            config.assume("the encoder's prompt is as long as the context".to_owned());
            Rows::Context
        }
    };
    repeat(&Layer::new("full+cross", vec![kv.part(Rows::Context), kv.part(cross)]), layers)
}

fn rwkv(config: &Config<'_>) -> Result<Vec<Layer>, CannotSay> {
    let hidden = config.need(HIDDEN)?;
    let part = |rows, store| Part { rows: Rows::Fixed(rows), heads: hidden, width: 1, store };
    let layer = Layer::new("state", vec![part(2, Store::Model), part(3, Store::Single)]);
    repeat(&layer, layer_count(config)?)
}

/// DeepSeek-V4: a window of one shared head, and compressed rows behind it.
fn compressed(config: &Config<'_>) -> Result<Vec<Layer>, CannotSay> {
    let window = Rows::Window(config.need(&["sliding_window"])?);
    let (width, index) = (config.need(HEAD_WIDTH)?, config.need(&["index_head_dim"])?);
    config.answer_for(&["index_n_heads"]);
    let part = |rows, width, store| Part { rows, heads: 1, width, store };
    let ratios = list(config, "compress_ratios", layer_count(config)?)?;
    let layer = |ratio: &Value| match count("compress_ratios", ratio)? {
        0 => Ok(Layer::new("sliding", vec![part(window, width.saturating_mul(2), Store::Cache)])),
        4 => {
            let both = width.saturating_add(index);
            // The last four rows are held back, each with its gate in fp32.
            let (rows, held) = (Rows::Every(4), Rows::Fixed(4));
            let parts = vec![
                part(window, width, Store::Cache),
                part(rows, both, Store::Cache),
                part(held, both, Store::Model),
                part(held, both, Store::Single),
            ];
            Ok(Layer::new("compressed+index", parts))
        }
        ratio => Ok(Layer::new(
            "compressed",
            vec![part(window, width, Store::Cache), part(Rows::Every(ratio), width, Store::Cache)],
        )),
    };
    ratios.iter().map(layer).collect()
}

/// Multi-head latent attention: one latent and one rotary key a token, and the keys of an indexer.
fn latent(config: &Config<'_>) -> Result<Vec<Layer>, CannotSay> {
    let layers = layer_count(config)?;
    let width =
        config.need(&["kv_lora_rank"])?.saturating_add(config.count(&["qk_rope_head_dim"])?.unwrap_or(64));
    let index = if config.is_null("index_head_dim") { None } else { config.count(&["index_head_dim"])? };
    config.answer_for(&["index_n_heads"]);
    let with_index = indexers(config, layers)?;
    let kinds = layout::kinds(config, layers)?;
    let latent = Part { rows: Rows::Context, heads: 1, width, store: Store::Cache };
    let layer = |(kind, indexed): (Kind, bool)| match kind {
        Kind::State => Ok(Layer::new("state", state::parts(config)?)),
        Kind::None => Ok(Layer::none()),
        Kind::Full | Kind::Indexed => match index.filter(|_| indexed) {
            Some(width) => {
                // An indexer's keys stay in the model's dtype, whatever that of the cache.
                let keys = Part { rows: Rows::Context, heads: 1, width, store: Store::Model };
                Ok(Layer::new("latent+index", vec![latent, keys]))
            }
            None => Ok(Layer::new("latent", vec![latent])),
        },
        Kind::Sliding(_) | Kind::Chunked(_) | Kind::Hybrid => {
            Err(CannotSay::new("a latent cache with a window", &["kv_lora_rank", "sliding_window"]))
        }
    };
    kinds.into_iter().zip(with_index).map(layer).collect()
}

/// Which layers have an indexer of their own.
fn indexers(config: &Config<'_>, layers: u64) -> Result<Vec<bool>, CannotSay> {
    if config.get("indexer_types").is_some() {
        config.answer_for(&["index_topk_freq", "index_topk_pattern"]);
        let types = list(config, "indexer_types", layers)?;
        return types
            .iter()
            .map(|of| match of.as_str() {
                Some("full") => Ok(true),
                Some("shared") => Ok(false),
                _ => Err(wrong("indexer_types", &of.to_string())),
            })
            .collect();
    }
    if config.stated("index_topk_freq")?.is_some_and(|every| every > 1) {
        return Err(CannotSay::new(
            "which layers share an indexer is not said",
            &["index_topk_freq", "indexer_types"],
        ));
    }
    Ok((0..layers).map(|_| true).collect())
}

/// MiniMax-M3: full keys and values, and one more key a token on sparse layers.
fn sparse_index(config: &Config<'_>) -> Result<Vec<Layer>, CannotSay> {
    const EACH: &str = "sparse_attention_config.sparse_attention_freq";
    let kv = KeyValues::of(config)?;
    let heads = config.stated("sparse_attention_config.sparse_num_index_heads")?.unwrap_or(0);
    let width = config.stated("sparse_attention_config.sparse_index_dim")?.unwrap_or(0);
    let keys = Part { rows: Rows::Context, heads: 1, width, store: Store::Model };
    let layer = |sparse: &Value| {
        let sparse = sparse.as_bool().map_or_else(|| count(EACH, sparse), |yes| Ok(yes.into()))?;
        Ok(match sparse > 0 && heads > 0 {
            true => Layer::new("full+index", vec![kv.part(Rows::Context), keys]),
            false => Layer::new("full", vec![kv.part(Rows::Context)]),
        })
    };
    list(config, EACH, layer_count(config)?)?.iter().map(layer).collect()
}

/// MiMo-V2: keys and values of two widths, and others again in sliding layers.
fn two_widths(config: &Config<'_>) -> Result<Vec<Layer>, CannotSay> {
    let part = |rows, heads: &[&'static str], key, value| {
        let width = config.need(&[key])?.saturating_add(config.need(&[value])?);
        Ok(Part { rows, heads: config.need(heads)?, width, store: Store::Cache })
    };
    let window = match config.stated("sliding_window_size")? {
        Some(behind) => behind.saturating_add(1),
        None => config.need(&["sliding_window"])?,
    };
    let sliding = part(Rows::Window(window), &["swa_num_key_value_heads"], "swa_head_dim", "swa_v_head_dim")?;
    let full = part(Rows::Context, KV_HEADS, "head_dim", "v_head_dim")?;
    let layer = |slides: &Value| {
        Ok(match count("hybrid_layer_pattern", slides)? {
            0 => Layer::new("full", vec![full]),
            _ => Layer::new("sliding", vec![sliding]),
        })
    };
    list(config, "hybrid_layer_pattern", layer_count(config)?)?.iter().map(layer).collect()
}

/// Llama 3.2 Vision: some layers attend to the image's rows alone.
fn cross_images(config: &Config<'_>) -> Result<Vec<Layer>, CannotSay> {
    const KEY: &str = "cross_attention_layers";
    let kv = KeyValues::of(config)?;
    let cross: Vec<u64> = match config.get(KEY).map(Value::as_array) {
        Some(Some(list)) => list.iter().map(|at| count(KEY, at)).collect::<Result<_, _>>()?,
        _ => return Err(CannotSay::new(&format!("config.json has no list `{KEY}`"), &[KEY])),
    };
    let layers = super::check_layers(config.need(LAYERS)?)?;
    config.assume("no image: each adds its rows to the layers of cross attention".to_owned());
    let layer = |at| match cross.contains(&at) {
        true => Layer::new("cross", Vec::new()),
        false => Layer::new("full", vec![kv.part(Rows::Context)]),
    };
    Ok((0..layers).map(layer).collect())
}

/// Gemma 3n and 4: the last layers use the keys and values of earlier ones; Gemma 4's full layers have
/// heads of their own.
fn shared(config: &Config<'_>) -> Result<Vec<Layer>, CannotSay> {
    let layers = layer_count(config)?;
    let mut kinds = layout::kinds(config, layers)?;
    let gemma4 = config.model_type.starts_with("gemma4");
    if gemma4
        && config.get("layer_types").is_none()
        && let Some(last) = kinds.last_mut()
    {
        *last = Kind::Full;
    }
    let kept = layers.saturating_sub(config.count_or_zero(&["num_kv_shared_layers"])?.unwrap_or(0));
    let kv = KeyValues::of(config)?;
    let mut global = kv;
    if gemma4 {
        global.width = config.count(&["global_head_dim"])?.unwrap_or(kv.width);
        let heads = config.stated("num_global_key_value_heads")?.filter(|&heads| heads > 0);
        let equal = config.flag("attention_k_eq_v")?;
        global.heads = heads.filter(|_| equal).unwrap_or(kv.heads);
    }
    let layer = |(at, kind): (u64, Kind)| match kind {
        _ if at >= kept => Ok(Layer::none()),
        Kind::Sliding(window) => Ok(Layer::new("sliding", vec![kv.part(Rows::Window(window))])),
        Kind::Full => Ok(Layer::new("full", vec![global.part(Rows::Context)])),
        _ => Err(wrong("layer_types", "a kind that these models do not have")),
    };
    config.answer_for(&[HEADS[0]]);
    (0..).zip(kinds).map(layer).collect()
}
