//! The sums: what is needed on each card, whether it fits, and the longest context that does.

use serde_json::Value;

use super::CannotSay;
use super::cache::{self, Asked, Cache};
use super::weights::Weights;

/// Bytes of activations a token and unit of `intermediate_size`, in a prefill at one go: the least of
/// the dense models measured (`docs/fit.md`, runtime).
const PREFILL_BYTES: u64 = 8;
/// The context where none is asked for, unless the model's own is shorter.
pub const CONTEXT: u64 = 8192;
/// Bytes of the runtime where none are asked for: 1.5 GiB.
pub const RUNTIME_BYTES: u64 = 3 << 29;
/// A card with less than this part of its memory to spare is a tight fit.
pub const TIGHT_PERCENT: u64 = 5;
/// No context longer than this is looked for.
const CONTEXT_MAX: u64 = 1 << 48;

/// What keys and values are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheDtype {
    /// Two bytes.
    Bf16,
    /// One byte.
    Fp8,
}

/// What is asked.
#[derive(Debug, Clone)]
pub struct Request {
    /// Tokens of each sequence; not said, [`CONTEXT`] or the model's own, if shorter.
    pub context: Option<u64>,
    /// Sequences at once.
    pub batch: u64,
    /// Cards that share the model.
    pub tensor_parallel: u64,
    /// What keys and values are stored as.
    pub cache: CacheDtype,
    /// Bytes that the runtime takes on each card.
    pub runtime_bytes: u64,
}

/// Layers of one kind and the bytes they take together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    /// Their kind.
    pub kind: &'static str,
    /// How many.
    pub count: u64,
    /// Their bytes on each card.
    pub bytes: u64,
}

/// What the model takes beside its weights.
#[derive(Debug, Clone)]
pub struct Needs {
    /// Tokens of each sequence.
    pub context: u64,
    /// The longest context that the model is made for, where config.json says.
    pub positions: Option<u64>,
    /// Bytes of the cache on each card.
    pub cache_bytes: u64,
    /// Bytes that a further token of one sequence takes for good.
    pub token_bytes: u64,
    /// Bytes that do not depend on the context, of all sequences.
    pub fixed_bytes: u64,
    /// The layers, by what they keep.
    pub layers: Vec<Layers>,
    /// What is taken for granted.
    pub assumed: Vec<String>,
    cache: Cache,
    asked: Asked,
    runtime_bytes: u64,
}

/// Sums the cache that a request takes.
///
/// # Errors
/// Where the config describes nothing that is known, or the request makes no sense for it.
pub fn needs(config: &Value, request: &Request) -> Result<Needs, CannotSay> {
    let cache = cache::of(config)?;
    check_heads(&cache, request.tensor_parallel)?;
    let element_bytes = match request.cache {
        CacheDtype::Bf16 => 2,
        CacheDtype::Fp8 => 1,
    };
    let asked = |context| Asked {
        context,
        batch: request.batch,
        tensor_parallel: request.tensor_parallel.max(1),
        element_bytes,
    };
    let grows = cache.bytes(asked(CONTEXT)) != cache.bytes(asked(0));
    let context = match (request.context, cache.positions) {
        (Some(context), _) => context,
        (None, Some(positions)) => positions.min(CONTEXT),
        (None, None) if !grows => CONTEXT,
        (None, None) => {
            let reason = "config.json does not say how long a context the model is made for: say --context";
            return Err(CannotSay::new(reason, &["max_position_embeddings"]));
        }
    };
    let asked = asked(context);
    let large = || CannotSay::new("the cache is larger than 64 bits count", &[]);
    let layer = |(layer, count): &(cache::Layer, u64)| {
        let bytes = layer.bytes(asked)?.checked_mul(*count)?;
        Some(Layers { kind: layer.kind, count: *count, bytes })
    };
    let mut needs = Needs {
        context,
        positions: cache.positions,
        cache_bytes: cache.bytes(asked).ok_or_else(large)?,
        token_bytes: cache.token_bytes(asked).ok_or_else(large)?,
        fixed_bytes: cache.fixed_bytes(asked).ok_or_else(large)?,
        layers: cache.layers.iter().map(layer).collect::<Option<_>>().ok_or_else(large)?,
        assumed: cache.assumed.clone(),
        cache,
        asked,
        runtime_bytes: request.runtime_bytes,
    };
    needs.note(config, request);
    Ok(needs)
}

impl Needs {
    /// Bytes needed on each card with weights of so many bytes.
    #[must_use]
    pub fn total(&self, weights_bytes: u64) -> u64 {
        weights_bytes.saturating_add(self.cache_bytes).saturating_add(self.runtime_bytes)
    }

    /// The longest context that fits into `card_bytes`; `None` where every context does.
    #[must_use]
    pub fn max_context(&self, weights_bytes: u64, card_bytes: u64) -> Option<u64> {
        let fits = |context| {
            let asked = Asked { context, ..self.asked };
            let others = weights_bytes.checked_add(self.runtime_bytes);
            let total =
                self.cache.bytes(asked).zip(others).and_then(|(cache, others)| cache.checked_add(others));
            total.is_some_and(|total| total <= card_bytes)
        };
        if fits(CONTEXT_MAX) {
            return None;
        }
        // What fits is at `low`, what does not at `high`.
        let (mut low, mut high) = (0, CONTEXT_MAX);
        if !fits(low) {
            return Some(0);
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        Some(low)
    }

    fn note(&mut self, config: &Value, request: &Request) {
        if request.context.is_none() {
            self.assumed.push(format!("context {} tokens: --context says another", self.context));
        }
        if let Some(positions) = self.positions.filter(|&positions| self.context > positions) {
            self.assumed.push(format!(
                "the context of {} tokens is longer than the {positions} that the model is made for",
                self.context
            ));
        }
        let text = config.get("text_config").filter(|text| text.get("intermediate_size").is_some());
        let wide = text.unwrap_or(config).get("intermediate_size").and_then(Value::as_u64);
        let prefill = wide.and_then(|wide| wide.checked_mul(PREFILL_BYTES)?.checked_mul(self.context));
        if let Some(bytes) = prefill.filter(|&bytes| bytes > request.runtime_bytes) {
            self.assumed.push(format!(
                "a prompt of {} tokens prefilled at one go would take about {bytes} bytes of activations, more than the runtime's {}: prefill in chunks",
                self.context, request.runtime_bytes
            ));
        }
    }
}

/// Heads are divided whole, or held by several cards each.
fn check_heads(cache: &Cache, cards: u64) -> Result<(), CannotSay> {
    for &(key, heads) in &cache.heads {
        if cards > 1 && !heads.is_multiple_of(cards) {
            return Err(CannotSay::new(&format!("{heads} heads are not divisible by {cards} cards"), &[key]));
        }
    }
    for part in cache.layers.iter().flat_map(|(layer, _)| &layer.parts) {
        let shared = part.store == cache::Store::Cache && part.heads > 1 && cards > 1;
        if shared && !part.heads.is_multiple_of(cards) && !cards.is_multiple_of(part.heads) {
            let reason =
                format!("{} heads of keys and values are not divisible by {cards} cards", part.heads);
            return Err(CannotSay::new(&reason, &["num_key_value_heads"]));
        }
    }
    Ok(())
}

/// What is known of the weights under tensor parallelism, in words.
#[must_use]
pub fn parallel_note(weights: &Weights, cards: u64) -> Option<String> {
    let packed = weights.basis != super::Basis::NoGain;
    (cards > 1).then(|| {
        let steps = if packed { "; packs split at whole steps of 64 rows and 16 columns alone" } else { "" };
        format!("matrices divided evenly over {cards} cards, all else on each{steps}")
    })
}
