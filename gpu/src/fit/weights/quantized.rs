//! How many parameters a quantized tensor holds: several in one element, or none.

use glyd_format::Dtype;
use glyd_format::plan::{TensorInfo, quantized};
use serde_json::Value;

/// Tensors beside quantized weights, by the endings of their names.
const BESIDE: [&str; 12] = [
    "_scales",
    ".scales",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "input_scale",
    "zero_point",
    "qzeros",
    "g_idx",
    "weight_shape",
    "absmax",
    "quant_map",
];

/// How a checkpoint is quantized.
#[derive(Debug, Clone)]
pub(super) struct Scheme {
    /// The method's name.
    pub(super) method: String,
    bits: Option<u64>,
}

impl Scheme {
    /// The scheme that a config names.
    pub(super) fn of(config: &Value) -> Option<Scheme> {
        let scheme = quantized(config)?;
        let method = scheme.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed").to_owned();
        let groups = scheme.get("config_groups").and_then(|groups| groups.as_object()?.values().next());
        let grouped = groups.and_then(|group| group.get("weights")?.get("num_bits")?.as_u64());
        let four = scheme.get("load_in_4bit").and_then(Value::as_bool).unwrap_or(false);
        let bits = scheme.get("bits").and_then(Value::as_u64).or(grouped).or(four.then_some(4));
        Some(Scheme { method, bits: bits.filter(|bits| (1..=32).contains(bits)) })
    }

    /// Parameters that a tensor's elements hold.
    pub(super) fn parameters(&self, name: &str, tensor: &TensorInfo, elements: u64) -> u64 {
        if BESIDE.iter().any(|ending| name.ends_with(ending)) || name.contains(".quant_state.") {
            return 0;
        }
        let times = |bits: u64| elements.saturating_mul(bits) / self.bits.unwrap_or(4).max(1);
        match tensor.dtype {
            Dtype::F8_E8M0 => 0,
            Dtype::U8 if name.ends_with("_blocks") || self.bits == Some(4) => elements.saturating_mul(2),
            Dtype::I32 | Dtype::U32 => times(32),
            _ => elements,
        }
    }
}
