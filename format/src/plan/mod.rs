//! What is saved, packed, merged and stacked, and in which order: from the config and the tensors'
//! names, dtypes and shapes alone.
//!
//! `docs/families.md` has the rules and the table's schema.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::Dtype;
use serde_json::Value;

use crate::Result;

/// A tensor as a header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its dtype.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
}

/// A checkpoint's tensors by name.
pub type Inventory = BTreeMap<String, TensorInfo>;

/// A tensor of the model as an expression over the checkpoint's tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// The checkpoint's tensor of this name.
    Src(String),
    /// Equal-shaped tensors along a new dimension.
    Stack {
        /// The new dimension.
        dim: usize,
        /// The tensors, in order.
        parts: Vec<Expr>,
    },
    // Cat, Slice, Transpose, Interleave, Rope, Queries, Last, Reshape, ...
}

/// What the caller decides.
pub struct Options<'a> {
    /// Whether a layer's q, k, v and gate, up are merged.
    pub merge: bool,
    /// Whether every float tensor is cast to bf16, as transformers loads a checkpoint.
    pub cast: bool,
    /// Tensors of the model that must not be packed, whatever their shape: by name.
    pub leave: &'a BTreeSet<String>,
    /// Whether two tied tensors, both in the checkpoint, hold the same bytes.
    pub same: &'a mut dyn FnMut(&Expr, &Expr) -> Result<bool>,
}

/// What is saved, in the order it is put (`docs/format.md`, section 6).
#[derive(Debug, Default)]
pub struct Plan {
    /// The puts, in order.
    pub puts: Vec<Put>,
    /// The checkpoint's tensors, or parts of them, that the model does not hold.
    pub dropped: Vec<Dropped>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// One thing that is saved.
#[derive(Debug, Clone)]
pub enum Put {
    /// A matrix that is packed.
    Pack(Pack),
    /// A tensor that is saved as it is.
    Plain(Plain),
}

/// A packed matrix: one Linear's, a merged group's, or an experts' weight.
#[derive(Debug, Clone)]
pub struct Pack {
    /// The module's path; of a merged group the first member's.
    pub module: String,
    /// The weight's name in its module, of an experts' weight.
    pub weight: Option<String>,
    /// Rows and columns of the packed matrix.
    pub shape: [u64; 2],
    /// The tensors in it, in their order by rows.
    pub tensors: Vec<Part>,
    /// Of an experts' weight.
    pub experts: Option<Experts>,
}

/// A tensor in a pack.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its name in the model.
    pub name: String,
    /// Its shape, as the model holds it.
    pub shape: Vec<u64>,
    /// Its value.
    pub value: Expr,
}

/// How an experts' weight holds its experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// How many.
    pub count: u64,
    /// Whether the model holds each as `[in, out]`.
    pub transposed: bool,
}

/// A tensor that is saved as it is.
#[derive(Debug, Clone)]
pub struct Plain {
    /// Its name in the model.
    pub name: String,
    /// The dtype it is saved in: the source's, or F32 where a bf16 tensor is widened, or BF16 where it is cast.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its value.
    pub value: Expr,
    /// Why it is not packed: short words for a summary.
    pub reason: String,
}

/// A tensor of the checkpoint that is not saved, or not whole.
#[derive(Debug, Clone)]
pub struct Dropped {
    /// Its name in the checkpoint.
    pub tensor: String,
    /// How many of its elements are dropped.
    pub elements: u64,
    /// Why.
    pub reason: String,
}

/// Plans what is saved of a checkpoint with this config and these tensors.
///
/// # Errors
/// Names what the checkpoint lacks or what is not handled.
pub fn plan(config: &Value, inventory: &Inventory, options: &mut Options<'_>) -> Result<Plan> {
    let _ = (config, inventory, options);
    Ok(Plan::default())
}

/// The Linears of a layer that are merged where they can be: the block's name, and its members in
/// their order by rows.
pub const MERGED_GROUPS: [(&str, &[&str]); 2] =
    [("self_attn", &["q_proj", "k_proj", "v_proj"]), ("mlp", &["gate_proj", "up_proj"])];
