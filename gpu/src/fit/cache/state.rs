//! Recurrent states: what a layer keeps whatever the context, by family.

use super::{Part, Rows, Store};
use crate::fit::CannotSay;
use crate::fit::config::{Config, HEADS, HIDDEN, count};

/// What a layer with a state keeps of one sequence: columns of its convolution, and the state in fp32.
pub(super) fn parts(config: &Config<'_>) -> Result<Vec<Part>, CannotSay> {
    match config.model_type {
        "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" | "qwen3_5" | "qwen3_5_moe" => delta_net(config),
        "bamba" | "granitemoehybrid" | "falcon_h1" => {
            let wide = config.count(&["mamba_d_ssm"])?.filter(|_| config.model_type == "falcon_h1");
            let inner = match wide {
                Some(inner) => inner,
                None => expanded(config, "mamba_expand")?,
            };
            config.answer_for(&["mamba_n_heads", "mamba_d_head", "mamba_expand"]);
            mamba2(config, inner, &["mamba_n_groups"], &["mamba_d_state"], &["mamba_d_conv"])
        }
        "nemotron_h" | "nemotron_h_omni" => {
            let inner = config.need(&["mamba_num_heads"])?.saturating_mul(config.need(&["mamba_head_dim"])?);
            mamba2(config, inner, &["n_groups"], &["ssm_state_size"], &["conv_kernel"])
        }
        "mamba2" => {
            let inner = config.need(&["num_heads"])?.saturating_mul(config.need(&["head_dim"])?);
            mamba2(config, inner, &["n_groups"], &["state_size"], &["conv_kernel"])
        }
        "mamba" | "falcon_mamba" => {
            let stated = config.stated("intermediate_size")?.or(config.stated("d_inner")?);
            let inner = stated.map_or_else(|| expanded(config, "expand"), Ok)?;
            mamba1(config, inner, &["state_size"], &["conv_kernel"])
        }
        "jamba" => mamba1(config, expanded(config, "mamba_expand")?, &["mamba_d_state"], &["mamba_d_conv"]),
        "minimax" => lightning(config),
        "kimi_linear" => kimi_delta(config),
        "lfm2" | "lfm2_moe" | "lfm3" | "lfm2_vl" => {
            Ok(vec![channels(config.need(HIDDEN)?, config.need(&["conv_L_cache"])?, Store::Model)])
        }
        other => {
            let reason = format!("how large the state of a linear layer of `{other}` is, is not known");
            Err(CannotSay::new(&reason, &["layer_types"]))
        }
    }
}

fn expanded(config: &Config<'_>, key: &'static str) -> Result<u64, CannotSay> {
    Ok(config.need(&[key])?.saturating_mul(config.need(HIDDEN)?))
}

/// Channels that tensor parallelism divides, with so many elements each.
fn channels(channels: u64, elements: u64, store: Store) -> Part {
    Part { rows: Rows::Fixed(elements), heads: channels, width: 1, store }
}

fn heads(heads: u64, width: u64, rows: u64, store: Store) -> Part {
    Part { rows: Rows::Fixed(rows), heads, width, store }
}

fn delta_net(config: &Config<'_>) -> Result<Vec<Part>, CannotSay> {
    let need = |key| config.need(&[key]);
    let (key_heads, value_heads) = (need("linear_num_key_heads")?, need("linear_num_value_heads")?);
    let (key, value) = (need("linear_key_head_dim")?, need("linear_value_head_dim")?);
    let columns = need("linear_conv_kernel_dim")?;
    Ok(vec![
        heads(key_heads, key.saturating_mul(2), columns, Store::Model),
        heads(value_heads, value, columns, Store::Model),
        heads(value_heads, value, key, Store::Single),
    ])
}

fn mamba2(
    config: &Config<'_>,
    inner: u64,
    groups: &[&'static str],
    state: &[&'static str],
    columns: &[&'static str],
) -> Result<Vec<Part>, CannotSay> {
    let (groups, state, columns) = (config.need(groups)?, config.need(state)?, config.need(columns)?);
    Ok(vec![
        channels(inner, columns, Store::Model),
        heads(groups, state.saturating_mul(2), columns, Store::Model),
        channels(inner, state, Store::Single),
    ])
}

fn mamba1(
    config: &Config<'_>,
    inner: u64,
    state: &[&'static str],
    columns: &[&'static str],
) -> Result<Vec<Part>, CannotSay> {
    Ok(vec![
        channels(inner, config.need(columns)?, Store::Model),
        channels(inner, config.need(state)?, Store::Single),
    ])
}

/// MiniMax-Text's: a matrix a head, in the model's dtype.
fn lightning(config: &Config<'_>) -> Result<Vec<Part>, CannotSay> {
    let width = super::attention::head_width(config)?;
    Ok(vec![heads(config.need(HEADS)?, width, width, Store::Model)])
}

fn kimi_delta(config: &Config<'_>) -> Result<Vec<Part>, CannotSay> {
    let need = |key: &'static str| {
        let value =
            config.get(key).ok_or_else(|| CannotSay::new(&format!("config.json has no `{key}`"), &[key]))?;
        count(key, value)
    };
    let (number, width) = (need("linear_attn_config.num_heads")?, need("linear_attn_config.head_dim")?);
    let columns = need("linear_attn_config.short_conv_kernel_size")?;
    Ok(vec![
        heads(number, width.saturating_mul(3), columns, Store::Model),
        heads(number, width, width, Store::Single),
    ])
}
