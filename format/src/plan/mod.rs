//! What is saved, packed, merged and stacked, and in which order: from the config and the tensors'
//! names, dtypes and shapes alone.
//!
//! `docs/families.md` has the rules and the table's schema. In the order in which they run: `family`
//! finds the model type, `load` gives each name of the checkpoint the model's, `ties` ties,
//! `instance` is the model's tree over what is there, `puts` is the save.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::Dtype;
use serde_json::Value as Json;

use crate::{Error, Invalid, Result};

mod complete;
mod config;
mod convert;
mod experts;
mod expr;
mod family;
mod instance;
mod left;
mod linears;
mod load;
mod natural;
mod notes;
mod ops;
mod patterns;
mod puts;
mod rules;
mod shares;
mod summary;
mod table;
mod tied_names;
mod ties;
mod tree;
mod tree_text;
mod unknown;
mod values;

pub use expr::{Expr, Sources, Value};
pub use left::Left;
pub use summary::{Conversion, ExpertsWeight, Family, MadeWith, SubModel, Tensor, Tie, families, made_with};

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

/// What the caller decides.
pub struct Options<'a> {
    /// Whether a layer's q, k, v and gate, up are merged.
    pub merge: bool,
    /// Whether every float tensor is cast to bf16, as transformers loads a checkpoint.
    pub cast: bool,
    /// Tensors of the model that must not be packed, whatever their shape: by name.
    pub leave: &'a BTreeSet<String>,
    /// Whether two tied tensors, both in the checkpoint, hold the same bytes; asked only of two of one
    /// dtype and shape.
    pub same: &'a mut dyn FnMut(&Value, &Value) -> Result<bool>,
}

/// What is saved, in the order it is put (`docs/format.md`, section 6).
#[derive(Debug, Default)]
pub struct Plan {
    /// The puts, in order; no two of one name.
    pub puts: Vec<Put>,
    /// The checkpoint's tensors, or parts of them, that the model does not hold.
    pub dropped: Vec<Dropped>,
    /// The checkpoint's tensors that are saved under another one's name.
    pub tied: Vec<Tied>,
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

impl Put {
    /// The values of the tensors in it.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        let (parts, plain): (&[Part], _) = match self {
            Put::Pack(pack) => (&pack.tensors, None),
            Put::Plain(plain) => (&[], Some(&plain.value)),
        };
        parts.iter().map(|part| &part.value).chain(plain)
    }
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

impl Pack {
    /// Its name among the packs (`docs/format.md`, section 5).
    pub fn name(&self) -> String {
        match &self.weight {
            Some(weight) => format!("{}.{weight}", self.module),
            None => self.module.clone(),
        }
    }
}

/// A tensor in a pack.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its name in the model.
    pub name: String,
    /// Its shape, as the model holds it: its value's.
    pub shape: Vec<u64>,
    /// Its value; one of another dtype than bf16 is cast.
    pub value: Value,
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
    /// The dtype it is saved in: its value's, or F32 where a bf16 tensor is widened, or what it is cast to.
    pub dtype: Dtype,
    /// Its shape: its value's.
    pub shape: Vec<u64>,
    /// Its value.
    pub value: Value,
    /// Why it is not packed; in short words when printed.
    pub reason: Left,
}

/// A tensor of the checkpoint that is not saved, or not whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Its name in the checkpoint.
    pub tensor: String,
    /// How many of its elements are dropped.
    pub elements: u64,
    /// Why.
    pub reason: String,
}

impl Dropped {
    fn new((tensor, elements): shares::Share<'_>, reason: &str) -> Self {
        Dropped { tensor: tensor.to_owned(), elements, reason: reason.to_owned() }
    }
}

/// A tensor of the checkpoint that is not saved, as one that is has its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tied {
    /// Its name in the checkpoint.
    pub tensor: String,
    /// The tensor of the model to which the config ties it.
    pub to: String,
}

/// How a checkpoint is quantized already, where its config says so: there is nothing to pack then, and
/// [`plan`] takes the caller to have looked.
pub fn quantized(config: &Json) -> Option<&Json> {
    let text = config.get("text_config").and_then(|text| text.get("quantization_config"));
    config.get("quantization_config").or(text).filter(|q| !q.is_null())
}

/// Plans what is saved of a checkpoint with this config and these tensors.
///
/// # Errors
/// Names everything that the checkpoint lacks, and what cannot be made of what it has.
pub fn plan(config: &Json, inventory: &Inventory, options: &mut Options<'_>) -> Result<Plan> {
    match family::find(config)? {
        family::Found::Known(mut model) => {
            let class = model.class;
            plan_known(&mut model, inventory, options).or_else(|fault| match other_model(config, class) {
                Some(what) => unknown::plan(&what, inventory, options),
                None => Err(fault),
            })
        }
        family::Found::Unknown(what) => unknown::plan(&what, inventory, options),
    }
}

/// What else than a language model of `class` the config says that its checkpoint is, in words: an
/// encoder without the head, say, of a type whose language model has one.
fn other_model(config: &Json, class: &str) -> Option<String> {
    const LANGUAGE_MODELS: [&str; 3] = ["ForCausalLM", "ForConditionalGeneration", "LMHeadModel"];
    let named = config.get("architectures")?.as_array()?;
    let named: Vec<&str> = named.iter().filter_map(Json::as_str).collect();
    let language =
        |name: &&str| *name == class || LANGUAGE_MODELS.iter().any(|ending| name.ends_with(ending));
    let first = named.first()?;
    (!named.iter().any(language)).then(|| format!("{first}, which is not the {class} of its model type,"))
}

fn plan_known(
    model: &mut family::Model<'_>,
    inventory: &Inventory,
    options: &mut Options<'_>,
) -> Result<Plan> {
    let load::Loaded { mut values, dropped, mut faults, incomplete } = load::load(model, inventory)?;
    let mut notes = Vec::new();
    let ties = ties::tie(model, &mut values, options, &mut notes)?;
    let root = match instance::Module::new(&model.tree, &values) {
        Ok(root) => root,
        Err(fault) => {
            faults.push(fault);
            return Err(all_of(faults));
        }
    };
    let lacking = instance::lacking(&root, model.class, &incomplete);
    faults.extend(lacking.faults);
    if !faults.is_empty() {
        return Err(all_of(faults));
    }
    notes.extend(notes::of(&lacking.optional, model.config));
    let mut plan = puts::Saver::new(model, &values, &ties, options).save(&root)?;
    plan.tied = ties.saved_once(&values, &plan.puts);
    notes.extend(notes::of_ties(&plan.tied));
    plan.dropped.splice(0..0, dropped);
    plan.notes.splice(0..0, notes);
    Ok(plan)
}

/// How many faults of a checkpoint are named.
const FAULTS_NAMED: usize = 20;

/// The error that is all of these, of which a screenful is named one by one.
fn all_of(mut faults: Vec<Error>) -> Error {
    let more = faults.len().saturating_sub(FAULTS_NAMED);
    faults.truncate(FAULTS_NAMED);
    if more > 0 {
        faults.push(Error::from(Invalid {
            expected: "a complete checkpoint".to_owned(),
            found: format!("{more} more faults like these"),
            ..Invalid::default()
        }));
    }
    Error::several(faults)
}

/// The Linears of a layer that are merged where they can be: the block's name, and its members in
/// their order by rows.
pub const MERGED_GROUPS: [(&str, &[&str]); 2] =
    [("self_attn", &["q_proj", "k_proj", "v_proj"]), ("mlp", &["gate_proj", "up_proj"])];
