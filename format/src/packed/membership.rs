//! A pack's tensors are its own: `docs/format.md`, section 7, rule 5.

use std::collections::HashMap;
use std::path::Path;

use crate::error::Invalid;
use crate::finding::{Finding, Rule};
use crate::manifest::{Manifest, PackEntry, PackedTensor};
use crate::plan::MERGED_GROUPS;
use crate::step::Grid;

/// Holds every pack's tensors to its name and shape, and each tensor to one pack, or to be saved as it is.
pub(super) fn check(path: &Path, manifest: &Manifest, findings: &mut Vec<Finding>) {
    let mut damage = |name: &str, expected: String, found: String| {
        let (file, tensor) = (Some(path.to_owned()), Some(name.to_owned()));
        findings
            .push(Finding::damage(Rule::Membership, Invalid { file, tensor, expected, found, hint: None }));
    };
    let mut owners: HashMap<&str, &str> = HashMap::new();
    for (name, entry) in &manifest.packs {
        if let Err((expected, found)) = check_pack(name, entry) {
            damage(name, expected, found);
        }
        for tensor in &entry.tensors {
            if let Some(owner) = owners.insert(&tensor.name, name) {
                damage(
                    &tensor.name,
                    "a tensor of one pack, once".to_owned(),
                    format!("one of `{owner}` and of `{name}`"),
                );
            }
        }
    }
    for (name, _) in manifest.tensors.iter().flatten() {
        if let Some(owner) = owners.get(name.as_str()) {
            damage(
                name,
                "a tensor in a pack, or saved as it is".to_owned(),
                format!("one of the pack `{owner}` that is saved as it is too"),
            );
        }
    }
}

fn check_pack(name: &str, entry: &PackEntry) -> Result<(), (String, String)> {
    let names: Vec<&str> = entry.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    if entry.experts.is_some() {
        return check_experts(name, entry, &names);
    }
    let own = members(name).into_iter().any(|members| members == names);
    if !own {
        return Err((format!("`{name}.weight`, or the members of its merged group"), format!("{names:?}")));
    }
    let mut rows = 0_u64;
    for PackedTensor { name, shape, .. } in &entry.tensors {
        let [own_rows, columns] = shape[..] else {
            return Err((format!("`{name}` to be a matrix"), format!("shape {shape:?}")));
        };
        if Grid::new(own_rows, columns).is_none() || columns != entry.shape[1] {
            let expected =
                format!("`{name}` to have rows of a multiple of 64 and {} columns", entry.shape[1]);
            return Err((expected, format!("shape {shape:?}")));
        }
        rows = rows.saturating_add(own_rows);
    }
    if rows != entry.shape[0] {
        return Err((format!("{} rows in all", entry.shape[0]), format!("{rows}")));
    }
    Ok(())
}

/// The lists of tensors that a pack of this name may have: its Linear's weight, or its group's.
fn members(name: &str) -> Vec<Vec<String>> {
    let mut lists = vec![vec![format!("{name}.weight")]];
    for (block, linears) in MERGED_GROUPS {
        let parent = name.strip_suffix(linears[0]).and_then(|head| head.strip_suffix('.'));
        if let Some(parent) =
            parent.filter(|parent| *parent == block || parent.ends_with(&format!(".{block}")))
        {
            lists.push(linears.iter().map(|linear| format!("{parent}.{linear}.weight")).collect());
        }
    }
    lists
}

fn check_experts(name: &str, entry: &PackEntry, names: &[&str]) -> Result<(), (String, String)> {
    let Some(experts) = entry.experts else { return Ok(()) };
    if names != [name] {
        return Err(("the experts' weight itself".to_owned(), format!("{names:?}")));
    }
    let shape = &entry.tensors[0].shape;
    let held = match shape[..] {
        [count, a, b] if count == experts.count => Some((a, b)),
        [rows, b] if experts.count > 0 && rows.is_multiple_of(experts.count) => {
            Some((rows / experts.count, b))
        }
        _ => None,
    };
    let matrix = held.map(|(a, b)| if experts.transposed { (b, a) } else { (a, b) });
    let fits = matrix.is_some_and(|(out, into)| {
        Grid::new(out, into).is_some()
            && out.checked_mul(experts.count) == Some(entry.shape[0])
            && into == entry.shape[1]
    });
    if fits {
        return Ok(());
    }
    let expected = format!("the shape of {} experts whose matrices make {:?}", experts.count, entry.shape);
    Err((expected, format!("shape {shape:?}, transposed {}", experts.transposed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_under_its_block() {
        assert_eq!(members("a.self_attn.q_proj").len(), 2);
        assert_eq!(members("self_attn.q_proj")[1][2], "self_attn.v_proj.weight");
        assert_eq!(members("a.xself_attn.q_proj").len(), 1);
        assert_eq!(members("a.self_attn.k_proj").len(), 1);
        assert_eq!(members("mlp.gate_proj")[1], ["mlp.gate_proj.weight", "mlp.up_proj.weight"]);
    }
}
