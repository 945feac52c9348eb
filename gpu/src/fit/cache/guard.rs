//! What is not recognised is not guessed at: keys that say something about the cache and that no rule
//! has read, and model types that are not known.

use std::collections::BTreeSet;

use crate::fit::CannotSay;
use crate::fit::config::{Config, HEAD_WIDTH, HEADS, HIDDEN, LAYERS};

/// Keys that change what is cached, in the families that have them.
const LAYOUT_KEYS: [&str; 39] = [
    "attention_chunk_size",
    "attn_config",
    "attn_layer_indices",
    "attn_layer_period",
    "attn_type_list",
    "block_types",
    "cla_share_factor",
    "compress_ratios",
    "conv_L_cache",
    "cross_attention_layers",
    "full_attention_interval",
    "full_attn_idxs",
    "global_head_dim",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "index_head_dim",
    "indexer_types",
    "kv_lora_rank",
    "layer_group_size",
    "layer_types",
    "layers_block_type",
    "linear_attn_config",
    "linear_num_value_heads",
    "local_attention",
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_num_heads",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
    "sliding_window_pattern",
    "sparse_attention_config",
    "ssm_state_size",
    "state_size",
    "swa_head_dim",
    "swa_num_key_value_heads",
    "use_cla",
    "use_sliding_window",
    "window_size",
    "mamba_n_heads",
];

/// Types whose classes keep something that no rule here describes.
const UNKNOWN_CACHES: [&str; 10] =
    ["reformer", "xlnet", "xlm", "xlstm", "recurrent_gemma", "zamba", "zamba2", "zaya", "prophetnet", "fsmt"];

/// Keys of a config that say nothing about the cache, whatever their values.
fn harmless() -> BTreeSet<&'static str> {
    include_str!("harmless.txt").split_whitespace().collect()
}

/// A model type that is not known is taken for plain attention only where every key of its config is.
pub(super) fn known_type(config: &Config<'_>) -> Result<(), CannotSay> {
    let name = config.model_type;
    if UNKNOWN_CACHES.contains(&name) {
        return Err(CannotSay::new(
            &format!("what `{name}` keeps between tokens is not known"),
            &["model_type"],
        ));
    }
    if let Some(known) = config.defaults {
        let handled = ["whisper", "t5"].contains(&name) || super::special::takes(name);
        if known.encoder_decoder && !handled {
            let reason = format!("what the decoder of `{name}` keeps of its encoder is not known");
            return Err(CannotSay::new(&reason, &["model_type"]));
        }
        return Ok(());
    }
    let mut known = harmless();
    known.extend(LAYERS.iter().chain(HEADS).chain(HEAD_WIDTH).chain(HIDDEN));
    let others = config.others(&known);
    if others.is_empty() {
        config.assume(format!(
            "the model type `{name}` is not known: plain attention, as no key says otherwise"
        ));
        return Ok(());
    }
    Err(CannotSay::new(
        &format!("the attention layout of the model type `{name}` is not recognised"),
        &others,
    ))
}

/// Every key that changes what is cached was read.
pub(super) fn all_read(config: &Config<'_>) -> Result<(), CannotSay> {
    let unread = config.unread(&LAYOUT_KEYS);
    if unread.is_empty() {
        return Ok(());
    }
    let reason =
        format!("attention layout not recognised: these keys are not ones that `{}` has", config.model_type);
    Err(CannotSay::new(&reason, &unread))
}

/// Bytes a token if every layer kept keys and values of every head, in bf16: more than any known kind.
pub(super) fn bound(config: &Config<'_>) -> Option<u64> {
    let layers = config.count(LAYERS).ok()??;
    let heads = config.count(HEADS).ok()??;
    let quotient = config.count(HIDDEN).ok().flatten().map(|hidden| hidden.div_ceil(heads));
    let split = config
        .stated("qk_nope_head_dim")
        .ok()
        .flatten()
        .zip(config.stated("qk_rope_head_dim").ok().flatten());
    let widths = [
        quotient,
        config.stated("head_dim").ok().flatten(),
        config.stated("v_head_dim").ok().flatten(),
        config.stated("global_head_dim").ok().flatten(),
        split.and_then(|(nope, rope)| nope.checked_add(rope)),
    ];
    let width = widths.into_iter().flatten().max()?;
    // Keys and values, two bytes each.
    layers.checked_mul(heads)?.checked_mul(width)?.checked_mul(4)
}
