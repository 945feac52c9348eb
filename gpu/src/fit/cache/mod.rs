//! The bytes that a sequence keeps in memory: keys and values, latents, recurrent states, by layer
//! (`docs/fit.md`, cache).

mod attention;
mod encoders;
mod guard;
mod layout;
mod special;
mod state;

use serde_json::Value;

use super::CannotSay;
use super::config::{Config, LAYERS};

/// More layers than this are no model's.
const LAYERS_MAX: u64 = 1 << 12;

/// Rows of a part of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rows {
    /// One a token.
    Context,
    /// One a token, up to a window.
    Window(u64),
    /// One for every so many tokens.
    Every(u64),
    /// As many whatever the context.
    Fixed(u64),
}

/// What an element is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Store {
    /// In the dtype asked for.
    Cache,
    /// In the model's, bf16.
    Model,
    /// In fp32.
    Single,
}

/// A part of what a layer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    pub(super) rows: Rows,
    /// What is spread over the cards of a tensor-parallel group, down to one each.
    pub(super) heads: u64,
    /// Elements a row and head.
    pub(super) width: u64,
    pub(super) store: Store,
}

/// What one layer keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) kind: &'static str,
    pub(super) parts: Vec<Part>,
}

/// How a cache is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) context: u64,
    pub(super) batch: u64,
    pub(super) tensor_parallel: u64,
    /// Bytes of an element of keys and values.
    pub(super) element_bytes: u64,
}

/// A model's cache.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    /// What differs, and how many layers of each there are, in the order of the first of each.
    pub(super) layers: Vec<(Layer, u64)>,
    /// Attention heads, which tensor parallelism divides; none in a model without attention.
    pub(super) heads: Vec<(&'static str, u64)>,
    /// What was taken for granted.
    pub(super) assumed: Vec<String>,
    /// The longest context that the model is made for.
    pub(super) positions: Option<u64>,
}

impl Part {
    fn bytes(self, asked: Asked) -> Option<u64> {
        let rows = match self.rows {
            Rows::Context => asked.context,
            Rows::Window(window) => asked.context.min(window),
            Rows::Every(tokens) => asked.context.checked_div(tokens)?,
            Rows::Fixed(rows) => rows,
        };
        rows.checked_mul(self.row_bytes(asked)?)
    }

    fn row_bytes(self, asked: Asked) -> Option<u64> {
        let element = match self.store {
            Store::Cache => asked.element_bytes,
            Store::Model => 2,
            Store::Single => 4,
        };
        let heads = self.heads.div_ceil(asked.tensor_parallel.max(1)).max(1);
        heads.checked_mul(self.width)?.checked_mul(element)
    }
}

impl Layer {
    pub(super) fn new(kind: &'static str, parts: Vec<Part>) -> Self {
        Layer { kind, parts }
    }

    /// A layer that keeps nothing.
    pub(super) fn none() -> Self {
        Layer::new("none", Vec::new())
    }

    /// Bytes of all sequences on one card.
    pub(super) fn bytes(&self, asked: Asked) -> Option<u64> {
        let sum = |all: u64, part: &Part| all.checked_add(part.bytes(asked)?);
        self.parts.iter().try_fold(0, sum)?.checked_mul(asked.batch)
    }
}

impl Cache {
    /// Bytes of all sequences on one card; `None` where 64 bits do not count them.
    pub(super) fn bytes(&self, asked: Asked) -> Option<u64> {
        self.sum(|layer| layer.bytes(asked))
    }

    /// Bytes that a further token of one sequence takes for good: what a window drops again is not in it.
    pub(super) fn token_bytes(&self, asked: Asked) -> Option<u64> {
        self.sum(|layer| {
            let part = |part: &Part| match part.rows {
                Rows::Context => part.row_bytes(asked),
                Rows::Every(tokens) => Some(part.row_bytes(asked)?.div_ceil(tokens.max(1))),
                Rows::Window(_) | Rows::Fixed(_) => Some(0),
            };
            layer.parts.iter().try_fold(0_u64, |all, of| all.checked_add(part(of)?))
        })
    }

    /// Bytes that do not depend on the context, of all sequences.
    pub(super) fn fixed_bytes(&self, asked: Asked) -> Option<u64> {
        self.sum(|layer| {
            let fixed = layer.parts.iter().filter(|part| matches!(part.rows, Rows::Fixed(_)));
            let sum = |all: u64, part: &Part| all.checked_add(part.bytes(asked)?);
            fixed.copied().collect::<Vec<_>>().iter().try_fold(0, sum)?.checked_mul(asked.batch)
        })
    }

    fn sum(&self, of: impl Fn(&Layer) -> Option<u64>) -> Option<u64> {
        let add = |all: u64, (layer, count): &(Layer, u64)| all.checked_add(of(layer)?.checked_mul(*count)?);
        self.layers.iter().try_fold(0, add)
    }
}

/// The cache of the model that this config describes.
pub(super) fn of(config: &Value) -> Result<Cache, CannotSay> {
    let config = Config::new(config)?;
    let (layers, heads) = match encoders::of(&config)? {
        Some(layers) => (layers, Vec::new()),
        None => {
            let found =
                decoder(&config).map_err(|fault| CannotSay { bound: guard::bound(&config), ..fault })?;
            (found, attention::heads(&config)?)
        }
    };
    let mut counted: Vec<(Layer, u64)> = Vec::new();
    for layer in layers {
        match counted.iter_mut().find(|(known, _)| *known == layer) {
            Some((_, count)) => *count += 1,
            None => counted.push((layer, 1)),
        }
    }
    Ok(Cache { layers: counted, heads, assumed: config.assumed(), positions: config.positions() })
}

/// The layers of a decoder.
fn decoder(config: &Config<'_>) -> Result<Vec<Layer>, CannotSay> {
    guard::known_type(config)?;
    let layers = match special::of(config)? {
        Some(layers) => layers,
        None => {
            let kinds = layout::kinds(config, layer_count(config)?)?;
            kinds.into_iter().map(|kind| attention::layer(config, kind)).collect::<Result<_, _>>()?
        }
    };
    guard::all_read(config)?;
    Ok(layers)
}

/// How many layers the config says there are.
fn layer_count(config: &Config<'_>) -> Result<u64, CannotSay> {
    if let Some(each) = config.defaults.and_then(|known| known.layers_per_block)
        && let Some(blocks) = config.stated("num_layers")?
    {
        return check_layers(blocks.saturating_mul(each));
    }
    check_layers(config.need(LAYERS)?)
}

fn check_layers(count: u64) -> Result<u64, CannotSay> {
    if count <= LAYERS_MAX { Ok(count) } else { Err(super::config::wrong(LAYERS[0], &count.to_string())) }
}
