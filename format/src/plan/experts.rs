//! Experts' weights in the save: all of a module's packed, or none (`docs/families.md`, rule 7).

use safetensors::Dtype;

use super::config::count;
use super::expr::Value;
use super::instance::{Module, Tensor};
use super::left::{Left, unfit};
use super::load::named;
use super::puts::{Saver, too_large};
use super::shares;
use super::values::Held;
use super::{Experts, Pack, Part, Put};
use crate::Result;

impl Saver<'_> {
    /// Puts the experts' weights of a module, where all of them pack.
    pub(super) fn experts(&mut self, module: &Module<'_>) -> Result<()> {
        let mut matrices = Vec::new();
        for (i, &tensor) in module.tensors.iter().enumerate() {
            if let Some(experts) = &tensor.leaf.flags.experts {
                let field = experts.count.as_deref().and_then(|field| count(self.model.config, field));
                let matrices_of = Matrices::of(self.value(tensor), field, experts.transposed);
                matrices.push((i, tensor, matrices_of.and_then(|m| self.unpackable_expert(tensor, m))));
            }
        }
        if matrices.iter().any(|(_, _, of)| of.is_err()) {
            for (_, tensor, of) in matrices {
                self.left.insert(tensor.place, of.err().unwrap_or(Left::Expert));
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

    fn unpackable_expert(&self, tensor: Tensor<'_>, of: Matrices) -> std::result::Result<Matrices, Left> {
        let dtype = self.saved_dtype(tensor, true);
        if dtype != Dtype::BF16 {
            return Err(Left::Dtype(dtype));
        }
        if self.leave.contains(&self.held(tensor).name) {
            return Err(Left::Grows);
        }
        unfit(of.rows, of.columns).map_or(Ok(of), Err)
    }

    fn pack_experts(&mut self, module: &Module<'_>, tensor: Tensor<'_>, of: Matrices) -> Result<()> {
        let Held { name, value } = self.values.at(tensor.place);
        let value = match value.shape.as_slice() {
            &[held, _, _] if held != of.count => {
                for share in shares::part(value, 0, of.count, held) {
                    self.drop_share(share, "past the experts of config.json");
                }
                value.clone().slice(0, 0, of.count).map_err(|fault| named(fault, name))?
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
        let rows = of.count.checked_mul(of.rows).ok_or_else(|| too_large(name))?;
        self.plan.puts.push(Put::Pack(Pack {
            module: module.path.clone(),
            weight: Some(tensor.leaf.name.clone()),
            shape: [rows, of.columns],
            tensors: vec![Part { name: name.clone(), shape: value.shape.clone(), value }],
            experts: Some(Experts { count: of.count, transposed: of.transposed }),
        }));
        Ok(())
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
    fn of(value: &Value, field: Option<u64>, transposed: bool) -> std::result::Result<Matrices, Left> {
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
        Ok(Matrices { count, rows, columns, transposed })
    }
}
