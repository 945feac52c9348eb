//! Linears in the save: packed alone or merged, and the biases after them (`docs/families.md`, rules 7
//! and 8).

use safetensors::Dtype;

use super::instance::{Module, Tensor};
use super::left::{Left, unfit_shape};
use super::load::named;
use super::natural::index;
use super::puts::{Saver, too_large};
use super::tree::Kind;
use super::values::Held;
use super::{MERGED_GROUPS, Pack, Part, Put};
use crate::{Invalid, Result};

impl Saver<'_> {
    /// The Linears of a decoder layer's block that are merged; none where it is no such block, or one of
    /// them is not to be packed, or only some have a bias.
    pub(super) fn group<'m, 't>(&self, module: &'m Module<'t>) -> Vec<&'m Module<'t>> {
        let members = || {
            let decoder = self.model.decoder.filter(|_| self.merge)?;
            let path = if decoder.is_empty() {
                &module.path
            } else {
                module.path.strip_prefix(decoder)?.strip_prefix('.')?
            };
            let (layer, block) = path.strip_prefix("layers.")?.split_once('.')?;
            index(layer)?;
            let (_, names) = MERGED_GROUPS.iter().find(|(name, _)| *name == block)?;
            let members: Option<Vec<&Module<'t>>> = names.iter().map(|name| module.kid(name)).collect();
            let members = members?;
            let fits = members.iter().all(|member| {
                let weight = member.tensor("weight");
                let linear = member.kind() == Kind::Linear;
                linear
                    && weight
                        .is_some_and(|w| self.unpackable(member, w).is_none() && !self.ties.asked(w.place))
            });
            let biases = members.iter().filter(|member| member.tensor("bias").is_some()).count();
            (fits && (biases == 0 || biases == members.len())).then_some(members)
        };
        members().unwrap_or_default()
    }

    /// Puts one Linear, or several as one, and the biases.
    pub(super) fn pack(&mut self, members: &[&Module<'_>]) -> Result<()> {
        let weights: Vec<Tensor<'_>> = members.iter().filter_map(|member| member.tensor("weight")).collect();
        let Some(&first) = weights.first() else {
            return Ok(());
        };
        self.done.extend(weights.iter().map(|weight| weight.place));
        if self.ties.source_of(first.place).is_some() {
            // The reference loses the bias, where it is not tied itself: its readers know of none.
            for bias in members.iter().filter_map(|member| member.tensor("bias")) {
                self.done.insert(bias.place);
                if self.ties.source_of(bias.place).is_none() {
                    self.drop_whole(bias, "the bias of a Linear that is tied: only the embedding is saved");
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
        let module = members.first().map(|member| member.path.clone()).unwrap_or_default();
        let tensors: Vec<Part> = weights.iter().map(|weight| part(self.held(*weight))).collect();
        let columns = tensors.first().and_then(|t| t.shape.last()).copied().unwrap_or(0);
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

    /// Why a Linear's weight is not packed; none where it is.
    pub(super) fn unpackable(&self, module: &Module<'_>, weight: Tensor<'_>) -> Option<Left> {
        if module.kind() != Kind::Linear {
            return Some(Left::NotLinear);
        }
        let dtype = self.saved_dtype(weight, true);
        if dtype != Dtype::BF16 {
            return Some(Left::Dtype(dtype));
        }
        let held = self.held(weight);
        let asked = self.leave.contains(&held.name);
        unfit_shape(&held.value.shape).or_else(|| asked.then_some(Left::Grows))
    }
}

fn part(held: &Held) -> Part {
    Part { name: held.name.clone(), shape: held.value.shape.clone(), value: held.value.clone() }
}
