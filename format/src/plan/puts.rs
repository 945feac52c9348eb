//! The save: what is put, and in which order (`docs/families.md`, rules 5 and 7 to 9).

use std::collections::{BTreeSet, HashMap, HashSet};

use safetensors::Dtype;

use super::expr::Value;
use super::family::Model;
use super::instance::{Module, Tensor};
use super::left::{Left, unfit_shape};
use super::load::named;
use super::natural::without_indexes;
use super::shares;
use super::ties::Ties;
use super::tree::Kind;
use super::values::{Held, Values};
use super::{Dropped, Options, Plain, Plan, Put};
use crate::{Invalid, Result};

/// An embedding is put in place where its width is a multiple of this.
const EMBEDDING_WIDTH: u64 = 128;

/// The puts as they are made.
pub(super) struct Saver<'a> {
    pub(super) model: &'a Model<'a>,
    pub(super) values: &'a Values,
    pub(super) ties: &'a Ties,
    pub(super) merge: bool,
    pub(super) cast: bool,
    pub(super) leave: &'a BTreeSet<String>,
    pub(super) plan: Plan,
    /// Tensors that are done with: packed, put, or replaced with their module.
    pub(super) done: HashSet<usize>,
    /// Tensors of the checkpoint that are dropped.
    dropped: HashSet<String>,
    /// Why experts' weights are left.
    pub(super) left: HashMap<usize, Left>,
    /// Tensors of another dtype than their class's, indexes as `*`.
    other_dtypes: BTreeSet<String>,
}

impl<'a> Saver<'a> {
    pub(super) fn new<'o: 'a>(
        model: &'a Model<'a>,
        values: &'a Values,
        ties: &'a Ties,
        options: &Options<'o>,
    ) -> Self {
        let &Options { merge, cast, leave, .. } = options;
        let plan = Plan::default();
        Saver {
            model,
            values,
            ties,
            merge,
            cast,
            leave,
            plan,
            done: HashSet::new(),
            dropped: HashSet::new(),
            left: HashMap::new(),
            other_dtypes: BTreeSet::new(),
        }
    }

    /// Puts everything of the model.
    pub(super) fn save(mut self, root: &Module<'_>) -> Result<Plan> {
        self.first(root)?;
        self.second(root)?;
        let Saver { mut plan, other_dtypes, .. } = self;
        plan.notes.extend(other_dtypes);
        Ok(plan)
    }

    /// A module, then its children; a merged group after its parent's other children.
    fn first(&mut self, module: &Module<'_>) -> Result<()> {
        self.experts(module)?;
        if let Some(weight) = module.tensor("weight") {
            match module.kind() {
                Kind::Linear if self.unpackable(module, weight).is_none() => {
                    self.pack(&[module])?;
                }
                Kind::Embedding if self.in_place(weight) => return self.embedding(module, weight),
                _ => {}
            }
        }
        let group = self.group(module);
        for (_, kid) in &module.kids {
            if !group.iter().any(|member| std::ptr::eq(*member, kid)) {
                self.first(kid)?;
            }
        }
        if group.is_empty() { Ok(()) } else { self.pack(&group) }
    }

    /// Everything left: a module's own tensors, then its children's.
    fn second(&mut self, module: &Module<'_>) -> Result<()> {
        for &tensor in &module.tensors {
            if !self.done.contains(&tensor.place) {
                let reason = self.reason(module, tensor);
                self.plain(tensor, None, reason)?;
            }
        }
        module.kids.iter().try_for_each(|(_, kid)| self.second(kid))
    }

    /// Whether a tensor may be put as an embedding, in its module's place.
    fn in_place(&self, weight: Tensor<'_>) -> bool {
        let width = match *self.value(weight).shape {
            [_, width] => width,
            _ => return false,
        };
        width % EMBEDDING_WIDTH == 0 && self.saved_dtype(weight, false) == Dtype::BF16
    }

    /// Puts an embedding. The reference replaces its whole module: what else is in there is not saved.
    fn embedding(&mut self, module: &Module<'_>, weight: Tensor<'_>) -> Result<()> {
        self.plain(weight, None, Left::Embedding)?;
        let mut inner = vec![module];
        while let Some(module) = inner.pop() {
            for tensor in &module.tensors {
                if self.done.insert(tensor.place) {
                    self.drop_whole(*tensor, "inside an embedding that is saved by its weight alone");
                }
            }
            inner.extend(module.kids.iter().map(|(_, kid)| kid));
        }
        Ok(())
    }

    /// Drops a tensor; one that is tied is the same tensor of the checkpoint twice.
    pub(super) fn drop_whole(&mut self, tensor: Tensor<'_>, reason: &str) {
        for share in shares::whole(self.value(tensor)) {
            self.drop_share(share, reason);
        }
    }

    pub(super) fn drop_share(&mut self, share: shares::Share<'_>, reason: &str) {
        if self.dropped.insert(share.0.to_owned()) {
            self.plan.dropped.push(Dropped::new(share, reason));
        }
    }

    /// Puts a tensor as it is, or a part of it.
    pub(super) fn plain(&mut self, tensor: Tensor<'_>, value: Option<Value>, reason: Left) -> Result<()> {
        self.done.insert(tensor.place);
        let Held { name, value: whole } = self.values.at(tensor.place);
        let mut value = value.unwrap_or_else(|| whole.clone());
        if let Some(last) = tensor.leaf.flags.last {
            value = value.last(last).map_err(|fault| named(fault, name))?;
        }
        let dtype = self.saved_dtype(tensor, false);
        if let Some(made) = tensor.leaf.flags.class_dtype.filter(|&made| made != Dtype::F32 && made != dtype)
        {
            let name = without_indexes(name);
            self.other_dtypes
                .insert(format!("`{name}`: its class makes it {made:?}; saved as it is, {dtype:?}"));
        }
        let reason = if dtype == Dtype::BF16 { reason } else { Left::Dtype(dtype) };
        self.plan.puts.push(Put::Plain(Plain {
            name: name.clone(),
            dtype,
            shape: value.shape.clone(),
            value,
            reason,
        }));
        Ok(())
    }

    /// Why a tensor is saved with the rest.
    fn reason(&self, module: &Module<'_>, tensor: Tensor<'_>) -> Left {
        if let Some(source) = self.ties.source_of(tensor.place) {
            return Left::TiedTo(self.values.at(source).name.clone());
        }
        if let Some(left) = self.left.get(&tensor.place) {
            return left.clone();
        }
        let shape = &self.value(tensor).shape;
        match module.kind() {
            _ if shape.len() != 2 => Left::Dimensions(shape.len()),
            Kind::Linear if tensor.leaf.name == "weight" => {
                self.unpackable(module, tensor).unwrap_or(Left::NotLinear)
            }
            Kind::Embedding => Left::Embedding,
            _ => Left::NotLinear,
        }
    }

    /// The dtype a tensor is saved in. A matrix that is to be packed is bf16 even where its class makes
    /// it in fp32.
    pub(super) fn saved_dtype(&self, tensor: Tensor<'_>, matrix: bool) -> Dtype {
        let Held { name, value } = self.held(tensor);
        let flags = &tensor.leaf.flags;
        let bf16 = value.dtype == Dtype::BF16;
        let cast = self.cast && is_float(value.dtype);
        let packs = matrix
            && !self.ties.asked(tensor.place)
            && unfit_shape(&value.shape).is_none()
            && !self.leave.contains(name);
        let kept = flags.fp32 || (flags.class_dtype == Some(Dtype::F32) && !packs);
        match (bf16 || cast, kept, flags.class_dtype) {
            (true, true, _) => Dtype::F32,
            (true, false, None | Some(Dtype::F32)) => Dtype::BF16,
            _ => value.dtype,
        }
    }

    pub(super) fn held(&self, tensor: Tensor<'_>) -> &'a Held {
        self.values.at(tensor.place)
    }

    pub(super) fn value(&self, tensor: Tensor<'_>) -> &'a Value {
        &self.held(tensor).value
    }
}

/// The dtypes that a cast makes bf16.
pub(super) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F64)
}

pub(super) fn too_large(name: &str) -> crate::Error {
    named(
        Invalid {
            expected: "fewer than 2^64 elements".to_owned(),
            found: "more".to_owned(),
            ..Invalid::default()
        },
        name,
    )
}
