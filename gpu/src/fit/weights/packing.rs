//! What packing makes of a model's weights: exactly the matrices that the plan packs, by layout.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use glyd_format::header::tensor_bytes;
use glyd_format::plan::{self, Plan, Put, Value as Source};
use glyd_format::{Dtype, Layout};
use serde_json::Value;

use super::quantized::Scheme;
use super::{Bytes, Loaded, Model, NotLoaded, Tied, Weights};

/// Thousandths of a bit that a packed weight is estimated to take (`docs/fit.md`, weights).
const MMA_MILLIBITS: u64 = 10_850;
const MMA12_MILLIBITS: u64 = 12_040;

/// What is known of the size of packs.
#[derive(Debug, Clone)]
pub enum Packing {
    /// Nothing but their shapes.
    Estimated,
    /// Bytes of each pack in `mma` and `mma12`, by its name; those that would grow are not there.
    Measured(BTreeMap<String, [u64; 2]>),
    /// The packs of a packed checkpoint.
    Packed {
        /// Their layout.
        layout: Layout,
        /// Every one.
        packs: Vec<PackedMatrix>,
    },
}

/// A pack of a packed checkpoint.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    /// Names of the tensors in it.
    pub tensors: Vec<String>,
    /// Its weights.
    pub weights: u64,
    /// Bytes of its buffers.
    pub bytes: u64,
}

/// What packed sizes rest on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Basis {
    /// Bits a weight of other models.
    #[default]
    Estimated,
    /// A counting pass over the weights.
    Measured,
    /// A packed checkpoint: exact for its layout, the other one estimated.
    Packed(Layout),
    /// There is nothing to pack: sized as stored.
    NoGain,
}

impl Basis {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Basis::Estimated => "estimated",
            Basis::Measured => "measured",
            Basis::Packed(_) => "packed",
            Basis::NoGain => "as stored",
        }
    }
}

impl Weights {
    /// What the packed figures are estimated from, where they are.
    #[must_use]
    pub fn basis_note(&self) -> Option<String> {
        const SPREAD: &str = "10.85 bits a packed weight in mma (trained weights take 10.68 to 11.42) and 12.04 in mma12 (12.00 to 12.08)";
        match self.basis {
            Basis::Estimated => Some(format!(
                "packed sizes are estimates, at {SPREAD}: --measure counts the weights of a folder"
            )),
            Basis::Packed(layout) => Some(format!(
                "exact for {layout}, in which the checkpoint is packed; the other layout is an estimate, at {SPREAD}"
            )),
            Basis::Measured | Basis::NoGain => None,
        }
    }
}

/// Bytes that packed weights are estimated to take.
pub(super) fn estimate(weights: u64, layout: Layout) -> u64 {
    let millibits = match layout {
        Layout::Mma => MMA_MILLIBITS,
        Layout::Mma12 => MMA12_MILLIBITS,
    };
    let bytes = (u128::from(weights) * u128::from(millibits)).div_ceil(8000);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Sums the packed bytes, and takes out of `loaded` what the plan does not load.
pub(super) fn pack(
    model: &Model<'_>,
    scheme: Option<&Scheme>,
    loaded: &mut HashMap<&str, Loaded<'_>>,
    tied: Tied<'_>,
    weights: &mut Weights,
) {
    if scheme.is_some() || !loaded.values().any(|tensor| tensor.info.dtype == Dtype::BF16) {
        if scheme.is_none() {
            weights.notes.push("no bf16 tensor, so nothing to pack: no gain".to_owned());
        }
        weights.basis = Basis::NoGain;
        return;
    }
    if let Packing::Packed { layout, packs } = model.packing {
        return packed(*layout, packs, loaded, weights);
    }
    let plan = plan_of(model, loaded, tied, weights);
    not_loaded(&plan, loaded, weights);
    for put in &plan.puts {
        let sources: Vec<&str> = put.values().flat_map(|value| value.expr.sources()).collect();
        if !sources.iter().any(|name| loaded.contains_key(name)) {
            continue;
        }
        let [mma, mma12, matrix] = put_bytes(put, model.packing);
        weights.mma.add(matrix > 0, mma);
        weights.mma12.add(matrix > 0, mma12);
    }
    weights.basis = match model.packing {
        Packing::Measured(_) => Basis::Measured,
        _ => Basis::Estimated,
    };
}

/// Bytes of a put in both layouts, and 1 for a matrix.
fn put_bytes(put: &Put, packing: &Packing) -> [u64; 3] {
    match put {
        Put::Plain(plain) => {
            let bytes = tensor_bytes(plain.dtype, &plain.shape).unwrap_or(u64::MAX);
            [bytes, bytes, u64::from(plain.shape.len() > 1)]
        }
        Put::Pack(pack) => {
            let count = pack.shape[0].saturating_mul(pack.shape[1]);
            let [mma, mma12] = match packing {
                // What would grow is saved as it is.
                Packing::Measured(known) => {
                    known.get(&pack.name()).copied().unwrap_or([count.saturating_mul(2); 2])
                }
                _ => [estimate(count, Layout::Mma), estimate(count, Layout::Mma12)],
            };
            [mma, mma12, 1]
        }
    }
}

/// The plan; where the checkpoint is not what its type's table says, that of a type that is not known.
fn plan_of(
    model: &Model<'_>,
    loaded: &HashMap<&str, Loaded<'_>>,
    tied: Tied<'_>,
    weights: &mut Weights,
) -> Plan {
    let stated = [Some(model.config), model.config.get("text_config")].into_iter().flatten();
    let stated = stated.filter_map(|config| config.get("tie_word_embeddings")?.as_bool()).any(|tied| tied);
    let mut unsure = BTreeSet::new();
    let mut same = |a: &Source, b: &Source| {
        let name = |value: &Source| value.expr.sources().next().unwrap_or_default().to_owned();
        let (a, b) = (name(a), name(b));
        let equal = tied(&a, &b, stated);
        if !equal {
            unsure.insert(a);
        }
        Ok(equal)
    };
    let leave = BTreeSet::new();
    let mut options = plan::Options { merge: true, cast: false, leave: &leave, same: &mut same };
    let found = plan::plan(model.config, model.inventory, &mut options);
    let found = found.or_else(|_| {
        // What no runtime loads may be what the table does not know.
        let rest = model.inventory.iter().filter(|(name, _)| loaded.contains_key(name.as_str()));
        let rest = rest.map(|(name, info)| (name.clone(), info.clone())).collect();
        plan::plan(model.config, &rest, &mut options).or_else(|error| {
            weights.notes.push(format!(
                "not a complete checkpoint of its type, so every tensor is counted and every bf16 matrix taken as packed: {error}"
            ));
            plan::plan(&Value::Null, &rest, &mut options)
        })
    });
    for name in unsure {
        weights.notes.push(format!(
            "`{name}` is counted, though config.json may tie it: whether it is equal to what it is tied to is not known"
        ));
    }
    found.unwrap_or_default()
}

/// Takes out what the plan drops, and what it saves under another's name.
fn not_loaded(plan: &Plan, loaded: &mut HashMap<&str, Loaded<'_>>, weights: &mut Weights) {
    for tied in &plan.tied {
        if let Some(tensor) = loaded.remove(tied.tensor.as_str()) {
            weights.not_loaded.entry(NotLoaded::Tied).or_default().add(tensor.bytes);
        }
    }
    for dropped in &plan.dropped {
        let Some(tensor) = loaded.get_mut(dropped.tensor.as_str()) else { continue };
        let elements = dropped.elements.min(tensor.elements);
        let bits = (tensor.info.dtype.bitsize() as u64).saturating_mul(elements);
        let bytes = (bits / 8).min(tensor.bytes);
        weights.not_loaded.entry(NotLoaded::NotInTheModel).or_default().add(bytes);
        (tensor.bytes, tensor.elements) = (tensor.bytes - bytes, tensor.elements - elements);
        if tensor.elements == 0 {
            loaded.remove(dropped.tensor.as_str());
        }
    }
}

/// A packed checkpoint: its layout's bytes are exact, the other's estimated.
fn packed(layout: Layout, packs: &[PackedMatrix], loaded: &HashMap<&str, Loaded<'_>>, weights: &mut Weights) {
    let mut in_packs: HashSet<&str> = HashSet::new();
    let (mut own, mut other) = (Bytes::default(), Bytes::default());
    for pack in packs.iter().filter(|pack| pack.tensors.iter().any(|name| loaded.contains_key(name.as_str())))
    {
        in_packs.extend(pack.tensors.iter().map(String::as_str));
        let another = if layout == Layout::Mma { Layout::Mma12 } else { Layout::Mma };
        own.add(true, pack.bytes);
        other.add(true, estimate(pack.weights, another));
    }
    for (_, tensor) in loaded.iter().filter(|(name, _)| !in_packs.contains(*name)) {
        own.add(tensor.info.shape.len() > 1, tensor.bytes);
        other.add(tensor.info.shape.len() > 1, tensor.bytes);
    }
    (weights.mma, weights.mma12) = if layout == Layout::Mma { (own, other) } else { (other, own) };
    weights.basis = Basis::Packed(layout);
}
