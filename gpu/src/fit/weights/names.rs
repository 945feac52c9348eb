//! What a tensor's name says: which part of the model it is of, and whether a runtime loads it.

use serde_json::Value;

use crate::fit::config::{Config, LAYERS};

/// A part of a model, as the breakdown shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The language model.
    Language,
    /// Images and video.
    Vision,
    /// Sound.
    Audio,
}

impl Component {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Component::Language => "language model",
            Component::Vision => "vision",
            Component::Audio => "audio",
        }
    }

    /// The part that a tensor is of.
    pub(super) fn of(tensor: &str) -> Component {
        const VISION: [&str; 8] =
            ["vision", "visual", "image", "img", "vit", "mm_projector", "multi_modal_projector", "video"];
        const AUDIO: [&str; 5] = ["audio", "speech", "sound", "talker", "token2wav"];
        let names = |words: &[&str]| {
            tensor.split('.').any(|part| words.iter().any(|word| part == *word || starts_word(part, word)))
        };
        if names(&AUDIO) {
            Component::Audio
        } else if names(&VISION) {
            Component::Vision
        } else {
            Component::Language
        }
    }
}

fn starts_word(part: &str, word: &str) -> bool {
    part.strip_prefix(word).is_some_and(|rest| rest.starts_with('_'))
}

/// Why a runtime does not load a tensor that the files hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotLoaded {
    /// It predicts further tokens, in training or for speculation.
    MultiTokenPrediction,
    /// It is another tensor's value a second time.
    Tied,
    /// It makes keys or values in a layer that uses an earlier layer's.
    SharedKeyValues,
    /// It is a buffer, which the class computes or which is no parameter.
    Buffer,
    /// The model does not hold it.
    NotInTheModel,
}

impl NotLoaded {
    /// In words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            NotLoaded::MultiTokenPrediction => "multi-token prediction",
            NotLoaded::Tied => "tied to another tensor, stored twice",
            NotLoaded::SharedKeyValues => "keys and values of layers that share an earlier layer's",
            NotLoaded::Buffer => "buffers, no parameters",
            NotLoaded::NotInTheModel => "not in the model",
        }
    }
}

/// What of a config tells which tensors are loaded.
pub(super) struct Rules {
    layers: Option<u64>,
    /// The first layer that shares an earlier one's keys and values.
    shared_from: Option<u64>,
    masks: bool,
}

impl Rules {
    pub(super) fn of(config: &Value) -> Rules {
        let text = Config::new(config).ok();
        let count = |keys: &[&'static str]| text.as_ref()?.count_or_zero(keys).ok()?;
        let stated = |keys: &[&'static str]| keys.iter().find_map(|key| text.as_ref()?.stated(key).ok()?);
        let layers = match text.as_ref().and_then(|text| text.defaults?.layers_per_block) {
            Some(_) => stated(&["num_layers"]),
            None => stated(LAYERS),
        };
        let shared = count(&["num_kv_shared_layers"]).filter(|&shared| shared > 0);
        let masks = text
            .as_ref()
            .is_some_and(|text| ["gpt2", "gptj", "gpt_neo", "gpt_neox"].contains(&text.model_type));
        Rules {
            layers,
            shared_from: layers.zip(shared).map(|(all, shared)| all.saturating_sub(shared)),
            masks,
        }
    }

    /// Why a tensor of this name is not loaded.
    pub(super) fn not_loaded(&self, tensor: &str) -> Option<NotLoaded> {
        const BUFFERS: [&str; 11] = [
            "inv_freq",
            "position_ids",
            "masked_bias",
            "layer_scalar",
            "std_bias",
            "std_scale",
            "input_max",
            "input_min",
            "output_max",
            "output_min",
            "num_batches_tracked",
        ];
        let parts: Vec<&str> = tensor.split('.').collect();
        let last = parts.last().copied().unwrap_or_default();
        let mask = self.masks
            && last == "bias"
            && matches!(parts.iter().rev().nth(1), Some(&("attn" | "attention")));
        if BUFFERS.contains(&last) || mask {
            return Some(NotLoaded::Buffer);
        }
        let speculative =
            |part: &&str| matches!(*part, "mtp" | "mtp_layers" | "mtp_block" | "nextn" | "mtp_model");
        if parts.iter().any(speculative) {
            return Some(NotLoaded::MultiTokenPrediction);
        }
        let layer = layer(&parts)?;
        let beyond = self.layers.is_some_and(|layers| layer >= layers) && !parts.contains(&"encoder");
        let projection = parts.iter().any(|part| matches!(*part, "k_proj" | "v_proj" | "k_norm" | "v_norm"));
        let sharing = self.shared_from.is_some_and(|first| layer >= first);
        let shared = sharing && projection && parts.contains(&"self_attn");
        // A tower's layers are counted apart from the language model's.
        let why = if beyond {
            NotLoaded::MultiTokenPrediction
        } else if shared {
            NotLoaded::SharedKeyValues
        } else {
            return None;
        };
        (Component::of(tensor) == Component::Language).then_some(why)
    }
}

/// The number of the layer that a tensor is of.
fn layer(parts: &[&str]) -> Option<u64> {
    let at = parts.iter().position(|part| matches!(*part, "layers" | "h" | "blocks"))?;
    parts.get(at + 1)?.parse().ok()
}
