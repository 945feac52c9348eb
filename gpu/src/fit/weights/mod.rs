//! What a model's weights take, in bf16 and packed: from the tensors' headers alone, or with what was
//! measured (`docs/fit.md`, weights).

mod names;
mod packing;
mod quantized;

use std::collections::{BTreeMap, HashMap};

use glyd_format::Dtype;
use glyd_format::header::tensor_bytes;
use glyd_format::plan::{Inventory, TensorInfo};
use serde_json::Value;

use super::CannotSay;
use names::Rules;
use quantized::Scheme;

pub use names::{Component, NotLoaded};
pub use packing::{Basis, PackedMatrix, Packing};

/// Whether two tensors that the config ties are equal: by their names, and whether config.json says
/// itself that they are tied.
pub type Tied<'a> = &'a mut dyn FnMut(&str, &str, bool) -> bool;

/// A model, as its headers show it.
pub struct Model<'a> {
    /// Its config.json.
    pub config: &'a Value,
    /// Its tensors; of a packed checkpoint, those of the model that was packed.
    pub inventory: &'a Inventory,
    /// What is known of the size of its packs.
    pub packing: &'a Packing,
}

/// Bytes that tensor parallelism divides, and bytes that every card holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Of matrices.
    pub split: u64,
    /// Of everything else.
    pub whole: u64,
}

impl Bytes {
    /// Bytes on each of so many cards.
    #[must_use]
    pub fn on_each(self, cards: u64) -> u64 {
        self.split.div_ceil(cards.max(1)).saturating_add(self.whole)
    }

    fn add(&mut self, matrix: bool, bytes: u64) {
        let to = if matrix { &mut self.split } else { &mut self.whole };
        *to = to.saturating_add(bytes);
    }
}

/// A count of tensors and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub tensors: u64,
    /// Their bytes, as stored.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.tensors += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// What a model's weights take.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    /// Parameters that are loaded; where several are in one element, all of them.
    pub parameters: u64,
    /// Bytes as they are stored: in bf16, as a rule.
    pub bf16: Bytes,
    /// Packed in layout `mma`.
    pub mma: Bytes,
    /// Packed in layout `mma12`.
    pub mma12: Bytes,
    /// What the packed figures rest on.
    pub basis: Basis,
    /// What is loaded, by part and dtype.
    pub components: BTreeMap<(Component, Dtype), Tally>,
    /// What the files hold and no runtime loads.
    pub not_loaded: BTreeMap<NotLoaded, Tally>,
    /// What a user should know.
    pub notes: Vec<String>,
}

impl Weights {
    /// Bytes of what is not loaded.
    #[must_use]
    pub fn not_loaded_bytes(&self) -> u64 {
        self.not_loaded.values().fold(0, |all, tally| all.saturating_add(tally.bytes))
    }
}

/// A tensor and what of it is loaded.
pub(super) struct Loaded<'a> {
    info: &'a TensorInfo,
    bytes: u64,
    elements: u64,
}

/// Sums a model's weights.
///
/// # Errors
/// Where a tensor's size is more than 64 bits count.
pub fn weigh(model: &Model<'_>, tied: Tied<'_>) -> Result<Weights, CannotSay> {
    let mut weights = Weights::default();
    let rules = Rules::of(model.config);
    let mut loaded: HashMap<&str, Loaded<'_>> = HashMap::new();
    for (name, info) in model.inventory {
        let (bytes, elements) = sizes(name, info)?;
        match rules.not_loaded(name) {
            Some(why) => weights.not_loaded.entry(why).or_default().add(bytes),
            None => {
                loaded.insert(name, Loaded { info, bytes, elements });
            }
        }
    }
    let scheme = Scheme::of(model.config);
    packing::pack(model, scheme.as_ref(), &mut loaded, tied, &mut weights);
    for name in model.inventory.keys() {
        let Some(Loaded { info, bytes, elements }) = loaded.get(name.as_str()) else { continue };
        let part = (Component::of(name), info.dtype);
        weights.components.entry(part).or_default().add(*bytes);
        weights.bf16.add(info.shape.len() > 1, *bytes);
        let parameters = scheme.as_ref().map_or(*elements, |scheme| scheme.parameters(name, info, *elements));
        weights.parameters = weights.parameters.saturating_add(parameters);
    }
    note_dtypes(&loaded, scheme.as_ref(), &mut weights);
    if weights.basis == Basis::NoGain {
        (weights.mma, weights.mma12) = (weights.bf16, weights.bf16);
    }
    Ok(weights)
}

fn sizes(name: &str, info: &TensorInfo) -> Result<(u64, u64), CannotSay> {
    let elements = info.shape.iter().try_fold(1_u64, |all, &dim| all.checked_mul(dim));
    let sizes = tensor_bytes(info.dtype, &info.shape).zip(elements);
    sizes.ok_or_else(|| {
        CannotSay::new(&format!("`{name}` is larger than 64 bits count: {:?}", info.shape), &[])
    })
}

/// Says so where the stored bytes are not those of bf16.
fn note_dtypes(loaded: &HashMap<&str, Loaded<'_>>, scheme: Option<&Scheme>, weights: &mut Weights) {
    if let Some(scheme) = scheme {
        let bf16 = weights.parameters.saturating_mul(2);
        weights.notes.push(format!(
            "quantized checkpoint ({}): no gain; sized as stored, {bf16} bytes if it were dequantized to bf16",
            scheme.method
        ));
        return;
    }
    let wide = loaded.values().filter(|tensor| matches!(tensor.info.dtype, Dtype::F32 | Dtype::F64));
    let wide = wide.fold(0_u64, |all, tensor| all.saturating_add(tensor.bytes));
    let total = loaded.values().fold(0_u64, |all, tensor| all.saturating_add(tensor.bytes));
    if wide > total / 2 {
        let bf16 = weights.parameters.saturating_mul(2);
        weights.notes.push(format!("sized as stored, in fp32: {bf16} bytes if a runtime casts it to bf16"));
    }
}
