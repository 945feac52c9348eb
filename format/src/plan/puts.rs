//! The save: what is put, and in which order (`docs/families.md`, rules 5 and 7 to 9).

use std::collections::{BTreeSet, HashMap, HashSet};

use safetensors::Dtype;

use super::config::count;
use super::expr::{Expr, Value};
use super::family::Model;
use super::instance::{Module, Tensor};
use super::left::{Left, unfit, unfit_shape};
use super::load::named;
use super::natural::{index, without_indexes};
use super::ties::Ties;
use super::tree::Kind;
use super::values::{Held, Values};
use super::{Dropped, Experts, Options, Pack, Part, Plain, Plan, Put};
use crate::{Invalid, Result};

/// The modules of a layer whose Linears are merged, and which.
const GROUPS: [(&str, &[&str]); 2] = [
    ("self_attn", &["q_proj", "k_proj", "v_proj"]),
    ("mlp", &["gate_proj", "up_proj"]),
];

/// An embedding is put in place where its width is a multiple of this.
const EMBEDDING_WIDTH: u64 = 128;

/// The puts as they are made.
pub(super) struct Saver<'a> {
    model: &'a Model<'a>,
    values: &'a Values,
    ties: &'a Ties,
    merge: bool,
    cast: bool,
    leave: &'a BTreeSet<String>,
    plan: Plan,
    /// Tensors that are done with: packed, put, or replaced with their module.
    done: HashSet<usize>,
    /// Tensors of the checkpoint that are dropped.
    dropped: HashSet<String>,
    /// Why experts' weights are left.
    left: HashMap<usize, Left>,
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
        let &Options {
            merge, cast, leave, ..
        } = options;
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
        let Saver {
            mut plan,
            other_dtypes,
            ..
        } = self;
        plan.notes.extend(other_dtypes);
        Ok(plan)
    }

    /// A module, then its children; a merged group after its parent's other children.
    fn first(&mut self, module: &Module<'_>) -> Result<()> {
        self.experts(module)?;
        if let Some(weight) = module.tensor("weight") {
            match module.kind() {
                Kind::Linear if self.unpackable(module, weight).is_none() => {
                    self.pack(&[module])?
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
        if group.is_empty() {
            Ok(())
        } else {
            self.pack(&group)
        }
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

    /// The Linears of a decoder layer's block that are merged; none where it is no such block, or one of
    /// them is not to be packed, or only some have a bias.
    fn group<'m, 't>(&self, module: &'m Module<'t>) -> Vec<&'m Module<'t>> {
        let members = || {
            let decoder = self.model.decoder.filter(|_| self.merge)?;
            let path = if decoder.is_empty() {
                &module.path
            } else {
                module.path.strip_prefix(decoder)?.strip_prefix('.')?
            };
            let (layer, block) = path.strip_prefix("layers.")?.split_once('.')?;
            index(layer)?;
            let (_, names) = GROUPS.iter().find(|(name, _)| *name == block)?;
            let members: Option<Vec<&Module<'t>>> =
                names.iter().map(|name| module.kid(name)).collect();
            let members = members?;
            let fits = members.iter().all(|member| {
                let weight = member.tensor("weight");
                let linear = member.kind() == Kind::Linear;
                linear
                    && weight.is_some_and(|w| {
                        self.unpackable(member, w).is_none() && !self.ties.asked(w.place)
                    })
            });
            let biases = members
                .iter()
                .filter(|member| member.tensor("bias").is_some())
                .count();
            (fits && (biases == 0 || biases == members.len())).then_some(members)
        };
        members().unwrap_or_default()
    }

    /// Puts one Linear, or several as one, and the biases.
    fn pack(&mut self, members: &[&Module<'_>]) -> Result<()> {
        let weights: Vec<Tensor<'_>> = members
            .iter()
            .filter_map(|member| member.tensor("weight"))
            .collect();
        let Some(&first) = weights.first() else {
            return Ok(());
        };
        self.done.extend(weights.iter().map(|weight| weight.place));
        if self.ties.source_of(first.place).is_some() {
            // The reference loses the bias, where it is not tied itself: its readers know of none.
            for bias in members.iter().filter_map(|member| member.tensor("bias")) {
                self.done.insert(bias.place);
                if self.ties.source_of(bias.place).is_none() {
                    self.drop_whole(
                        bias,
                        "the bias of a Linear that is tied: only the embedding is saved",
                    );
                }
            }
            return Ok(());
        }
        if self.ties.is_source(first.place) {
            self.plain(first, None, Left::Embedding)?;
        } else {
            self.pack_matrix(members, &weights)?;
        }
        for bias in members.iter().filter_map(|member| member.tensor("bias")) {
            if self.cast || self.value(bias).dtype == Dtype::BF16 {
                self.plain(bias, None, Left::Dimensions(self.value(bias).shape.len()))?;
            }
        }
        Ok(())
    }

    fn pack_matrix(&mut self, members: &[&Module<'_>], weights: &[Tensor<'_>]) -> Result<()> {
        let module = members
            .first()
            .map(|member| member.path.clone())
            .unwrap_or_default();
        let tensors: Vec<Part> = weights
            .iter()
            .map(|weight| part(self.held(*weight)))
            .collect();
        let columns = tensors
            .first()
            .and_then(|t| t.shape.last())
            .copied()
            .unwrap_or(0);
        let mut rows = 0_u64;
        for tensor in &tensors {
            if tensor.shape.last() != Some(&columns) {
                let found = format!("{:?}", tensor.shape);
                let fault = Invalid {
                    expected: format!("{columns} columns, as `{module}`"),
                    found,
                    ..Invalid::default()
                };
                return Err(named(fault, &tensor.name));
            }
            let more = tensor.shape.first().copied().unwrap_or(0);
            rows = rows
                .checked_add(more)
                .filter(|r| r.checked_mul(columns).is_some())
                .ok_or_else(|| too_large(&module))?;
        }
        self.plan.puts.push(Put::Pack(Pack {
            module,
            weight: None,
            shape: [rows, columns],
            tensors,
            experts: None,
        }));
        Ok(())
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
                    self.drop_whole(
                        *tensor,
                        "inside an embedding that is saved by its weight alone",
                    );
                }
            }
            inner.extend(module.kids.iter().map(|(_, kid)| kid));
        }
        Ok(())
    }

    /// Drops a tensor; one that is tied is the same tensor of the checkpoint twice.
    fn drop_whole(&mut self, tensor: Tensor<'_>, reason: &str) {
        let value = self.value(tensor);
        let source = value.expr.sources().next().unwrap_or_default();
        self.drop_part((source.to_owned(), value.elements()), reason);
    }

    fn drop_part(&mut self, (tensor, elements): (String, u64), reason: &str) {
        if self.dropped.insert(tensor.clone()) {
            self.plan.dropped.push(Dropped {
                tensor,
                elements,
                reason: reason.to_owned(),
            });
        }
    }

    /// Puts the experts' weights of a module, where all of them pack.
    fn experts(&mut self, module: &Module<'_>) -> Result<()> {
        let mut matrices = Vec::new();
        for (i, &tensor) in module.tensors.iter().enumerate() {
            if let Some(experts) = &tensor.leaf.flags.experts {
                let field = experts
                    .count
                    .as_deref()
                    .and_then(|field| count(self.model.config, field));
                let matrices_of = Matrices::of(self.value(tensor), field, experts.transposed);
                matrices.push((
                    i,
                    tensor,
                    matrices_of.and_then(|m| self.unpackable_expert(tensor, m)),
                ));
            }
        }
        if matrices.iter().any(|(_, _, of)| of.is_err()) {
            for (_, tensor, of) in matrices {
                self.left
                    .insert(tensor.place, of.err().unwrap_or(Left::Expert));
            }
            return Ok(());
        }
        // In the order they arrived; what is tied after them.
        matrices.sort_by_key(|&(i, tensor, _)| match self.ties.asked(tensor.place) {
            true => (true, i),
            false => (false, tensor.place),
        });
        for (_, tensor, of) in matrices {
            if let Ok(of) = of {
                self.pack_experts(module, tensor, of)?;
            }
        }
        Ok(())
    }

    fn unpackable_expert(
        &self,
        tensor: Tensor<'_>,
        of: Matrices,
    ) -> std::result::Result<Matrices, Left> {
        let dtype = self.saved_dtype(tensor, true);
        if dtype != Dtype::BF16 {
            return Err(Left::Dtype(dtype));
        }
        if self.leave.contains(&self.held(tensor).name) {
            return Err(Left::Asked);
        }
        unfit(of.rows, of.columns).map_or(Ok(of), Err)
    }

    fn pack_experts(
        &mut self,
        module: &Module<'_>,
        tensor: Tensor<'_>,
        of: Matrices,
    ) -> Result<()> {
        let Held { name, value } = self.values.at(tensor.place);
        let value = match value.shape.as_slice() {
            &[held, _, _] if held != of.count => {
                for cut in past(value, of.count) {
                    self.drop_part(cut, "past the experts of config.json");
                }
                value
                    .clone()
                    .slice(0, 0, of.count)
                    .map_err(|fault| named(fault, name))?
            }
            _ => value.clone(),
        };
        self.done.insert(tensor.place);
        if self.ties.source_of(tensor.place).is_some() {
            return Ok(());
        }
        if self.ties.is_source(tensor.place) {
            return self.plain(tensor, Some(value), Left::Expert);
        }
        let rows = of
            .count
            .checked_mul(of.rows)
            .ok_or_else(|| too_large(name))?;
        self.plan.puts.push(Put::Pack(Pack {
            module: module.path.clone(),
            weight: Some(tensor.leaf.name.clone()),
            shape: [rows, of.columns],
            tensors: vec![Part {
                name: name.clone(),
                shape: value.shape.clone(),
                value,
            }],
            experts: Some(Experts {
                count: of.count,
                transposed: of.transposed,
            }),
        }));
        Ok(())
    }

    /// Puts a tensor as it is, or a part of it.
    fn plain(&mut self, tensor: Tensor<'_>, value: Option<Value>, reason: Left) -> Result<()> {
        self.done.insert(tensor.place);
        let Held { name, value: whole } = self.values.at(tensor.place);
        let mut value = value.unwrap_or_else(|| whole.clone());
        if let Some(last) = tensor.leaf.flags.last {
            value = value.last(last).map_err(|fault| named(fault, name))?;
        }
        let dtype = self.saved_dtype(tensor, false);
        if let Some(made) = tensor
            .leaf
            .flags
            .class_dtype
            .filter(|&made| made != Dtype::F32 && made != dtype)
        {
            let name = without_indexes(name);
            self.other_dtypes.insert(format!(
                "`{name}`: its class makes it {made:?}; saved as it is, {dtype:?}"
            ));
        }
        let reason = if dtype == Dtype::BF16 {
            reason
        } else {
            Left::Dtype(dtype)
        };
        self.plan.puts.push(Put::Plain(Plain {
            name: name.clone(),
            dtype,
            shape: value.shape.clone(),
            value,
            reason,
        }));
        Ok(())
    }

    /// Why a Linear's weight is not packed; none where it is.
    fn unpackable(&self, module: &Module<'_>, weight: Tensor<'_>) -> Option<Left> {
        if module.kind() != Kind::Linear {
            return Some(Left::NotLinear);
        }
        let dtype = self.saved_dtype(weight, true);
        if dtype != Dtype::BF16 {
            return Some(Left::Dtype(dtype));
        }
        let held = self.held(weight);
        let asked = self.leave.contains(&held.name);
        unfit_shape(&held.value.shape).or_else(|| asked.then_some(Left::Asked))
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
    fn saved_dtype(&self, tensor: Tensor<'_>, matrix: bool) -> Dtype {
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

    fn held(&self, tensor: Tensor<'_>) -> &'a Held {
        self.values.at(tensor.place)
    }

    fn value(&self, tensor: Tensor<'_>) -> &'a Value {
        &self.held(tensor).value
    }
}

/// The matrices of an experts' weight, as they are packed.
#[derive(Clone, Copy)]
struct Matrices {
    count: u64,
    rows: u64,
    columns: u64,
    transposed: bool,
}

impl Matrices {
    /// Of `[count, a, b]`, or `[count * a, b]`; where no field says how many, the first dimension does.
    fn of(
        value: &Value,
        field: Option<u64>,
        transposed: bool,
    ) -> std::result::Result<Matrices, Left> {
        let (count, a, b) = match *value.shape {
            [experts, a, b] => (field.unwrap_or(experts), a, b),
            [rows, b] => {
                let count = field.unwrap_or(rows);
                let even = rows.checked_rem(count) == Some(0);
                (
                    count,
                    if even {
                        rows / count
                    } else {
                        return Err(Left::Rows(rows));
                    },
                    b,
                )
            }
            _ => return Err(Left::Dimensions(value.shape.len())),
        };
        if count == 0 {
            return Err(Left::Rows(0));
        }
        let (rows, columns) = if transposed { (b, a) } else { (a, b) };
        Ok(Matrices {
            count,
            rows,
            columns,
            transposed,
        })
    }
}

/// The checkpoint's tensors, and how many elements of each, past the first `kept` of an experts' weight.
fn past(value: &Value, kept: u64) -> Vec<(String, u64)> {
    match &value.expr {
        Expr::Stack { dim: 0, parts } => {
            let first = usize::try_from(kept).unwrap_or(usize::MAX);
            let cut = parts.iter().skip(first).flat_map(|part| past(part, 0));
            cut.collect()
        }
        Expr::Cat { dim, parts } if *dim > 0 => {
            parts.iter().flat_map(|part| past(part, kept)).collect()
        }
        expr => {
            let held = value.shape.first().copied().unwrap_or(0);
            let each = value.elements().checked_div(held).unwrap_or(0);
            let source = expr.sources().next().unwrap_or_default().to_owned();
            vec![(source, held.saturating_sub(kept).saturating_mul(each))]
        }
    }
}

fn part(held: &Held) -> Part {
    Part {
        name: held.name.clone(),
        shape: held.value.shape.clone(),
        value: held.value.clone(),
    }
}

/// The dtypes that a cast makes bf16.
pub(super) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F64)
}

fn too_large(name: &str) -> crate::Error {
    named(
        Invalid {
            expected: "fewer than 2^64 elements".to_owned(),
            found: "more".to_owned(),
            ..Invalid::default()
        },
        name,
    )
}
