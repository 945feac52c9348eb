//! The plans of the recipes: the names that the reference saves, in its order; refusals by name; and
//! nothing of a checkpoint that is lost unmentioned, however incomplete it is.

#![expect(clippy::unwrap_used, reason = "functions that the tests share")]

mod plan_support;

use std::collections::{BTreeMap, BTreeSet};

use glyd_fixtures::Recipe;
use glyd_format::Dtype;
use glyd_format::plan::{Plan, Put, Value};
use serde_json::json;

use plan_support::{Case, packs, plains, recipes};

/// Recipes whose checkpoint lacks tensors: all that the refusal must name, a line each.
const INCOMPLETE: [(&str, &[&str]); 4] = [
    (
        "edge-missing-expert",
        &[
            "model.layers.1.mlp.experts.3.down_proj.weight",
            "model.layers.1.mlp.experts.3.gate_proj.weight",
            "model.layers.1.mlp.experts.3.up_proj.weight",
        ],
    ),
    ("edge-missing-group", &["model.layers.1.self_attn.k_proj.weight"]),
    ("edge-missing-norm", &["model.layers.1.input_layernorm.weight"]),
    ("edge-untie-unsaid", &["lm_head.weight"]),
];

/// Recipes that are saved without what they lack, and what the note must name.
const NOTED: [(&str, &str); 2] =
    [("edge-missing-bias", "self_attn.q_proj.bias"), ("edge-missing-buffer", "slope_rate")];

/// Every recipe that can be planned, and its plan.
fn plans() -> impl Iterator<Item = (String, Case, Plan)> {
    recipes().into_iter().filter_map(|recipe| {
        let case = Case::recipe(&recipe);
        let plan = case.plan().ok()?;
        Some((recipe.name, case, plan))
    })
}

#[test]
fn plans_every_recipe_in_the_references_order() {
    let mut wrong = Vec::new();
    for recipe in recipes().iter().filter(|recipe| !recipe.name.starts_with("edge-missing-")) {
        for (variant, expected) in &recipe.expected {
            let mut case = Case::recipe(recipe);
            case.merge = variant != "mma-nomerge";
            match case.plan() {
                Ok(got) if packs(&got) == expected.packs && plains(&got) == expected.tensors => {}
                Ok(_) => wrong.push(format!("{} {variant}: other names or another order", recipe.name)),
                Err(error) => wrong.push(format!("{}: {error}", recipe.name)),
            }
        }
    }
    assert!(wrong.is_empty(), "{} are not as expected:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn refuses_incomplete_checkpoints_by_name() {
    for recipe in recipes() {
        let case = Case::recipe(&recipe);
        if let Some((_, tensors)) = INCOMPLETE.iter().find(|(name, _)| *name == recipe.name) {
            let fault = case.fault();
            for tensor in *tensors {
                assert!(fault.contains(tensor), "{}: {fault}", recipe.name);
            }
            assert_eq!(fault.lines().count(), tensors.len(), "{}: {fault}", recipe.name);
        } else if let Some((_, tensor)) = NOTED.iter().find(|(name, _)| *name == recipe.name) {
            let notes = case.plan().unwrap().notes.join("\n");
            assert!(notes.contains(tensor), "{}: {notes}", recipe.name);
        } else {
            let refused = recipe.fails.is_some() || recipe.random.is_some();
            assert!(!refused, "{}: what must be refused in it?", recipe.name);
        }
    }
}

#[test]
fn gives_every_put_a_name_of_its_own() {
    for (recipe, _, plan) in plans() {
        for names in [packs(&plan), plains(&plan)] {
            let unique: BTreeSet<&String> = names.iter().collect();
            assert_eq!(unique.len(), names.len(), "{recipe}");
        }
    }
}

/// The checkpoint's tensors that a plan neither saves nor mentions.
fn unmentioned<'a>(case: &'a Case, plan: &Plan) -> BTreeSet<&'a str> {
    let mut left: BTreeSet<&str> = case.tensors.keys().map(String::as_str).collect();
    for source in plan.puts.iter().flat_map(Put::values).flat_map(|value| value.expr.sources()) {
        left.remove(source);
    }
    plan.dropped.iter().for_each(|dropped| _ = left.remove(dropped.tensor.as_str()));
    plan.tied.iter().for_each(|tied| _ = left.remove(tied.tensor.as_str()));
    left
}

#[test]
fn accounts_for_every_tensor_of_the_checkpoint() {
    for (recipe, case, plan) in plans() {
        let left = unmentioned(&case, &plan);
        assert!(left.is_empty(), "{recipe}: {left:?} are neither saved nor mentioned");
    }
}

#[test]
fn drops_no_more_elements_than_there_are() {
    for (recipe, case, plan) in plans() {
        let mut dropped: BTreeMap<&str, u64> = BTreeMap::new();
        for part in &plan.dropped {
            *dropped.entry(&part.tensor).or_default() += part.elements;
        }
        for (tensor, elements) in dropped {
            let there: u64 = case.tensors[tensor].shape.iter().product();
            assert!(elements <= there, "{recipe}: {elements} of {there} elements of {tensor}");
        }
    }
}

#[test]
fn gives_every_pack_the_shape_of_its_tensors() {
    for (recipe, _, plan) in plans() {
        for put in &plan.puts {
            let Put::Pack(pack) = put else { continue };
            let held: u64 = put.values().map(Value::elements).sum();
            assert_eq!(pack.shape[0] * pack.shape[1], held, "{recipe}: {}", pack.name());
            assert!(pack.tensors.iter().all(|part| part.shape == part.value.shape));
        }
    }
}

/// splitmix64: subsets that are the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let end = u64::try_from(end.max(1)).unwrap();
        usize::try_from((z ^ (z >> 31)) % end).unwrap()
    }
}

/// A plan of what is left of a checkpoint mentions everything; a refusal names something.
fn check_part(recipe: &str, case: &Case) -> bool {
    match case.plan() {
        Ok(plan) => {
            let left = unmentioned(case, &plan);
            assert!(left.is_empty(), "{recipe}: {left:?} are neither saved nor mentioned");
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && text.lines().count() <= 21, "{recipe}: {text}");
            false
        }
    }
}

/// Takes away a tensor or two, a part of the tree, or most of it.
fn take_away(case: &mut Case, random: &mut Random) {
    let names: Vec<String> = case.tensors.keys().cloned().collect();
    let any = &names[random.below(names.len())];
    match random.below(4) {
        0 => case.tensors.retain(|_, _| random.below(8) == 0),
        1 => {
            let word = any.split('.').nth(random.below(any.split('.').count())).unwrap();
            case.tensors.retain(|name, _| !name.split('.').any(|part| part == word));
        }
        more => {
            case.tensors.remove(any);
            if more == 2 {
                case.tensors.remove(&names[random.below(names.len())]);
            }
        }
    }
}

/// Gives a few tensors other shapes and dtypes, and adds some that are none of the model's.
fn change(case: &mut Case, random: &mut Random) {
    let names: Vec<String> = case.tensors.keys().cloned().collect();
    for _ in 0..1 + random.below(4) {
        let name = &names[random.below(names.len())];
        let info = case.tensors.get_mut(name).unwrap();
        match random.below(6) {
            0 => info.shape = vec![64; random.below(5)],
            1 => info.dtype = [Dtype::F32, Dtype::F16, Dtype::I64, Dtype::U8][random.below(4)],
            2 => info.shape.iter_mut().for_each(|size| *size *= 2),
            3 => case.add(&format!("{name}.more"), Dtype::BF16, &[64, 16]),
            4 => case.add(&format!("model.{name}"), Dtype::BF16, &[64, 16]),
            // A list that goes on.
            _ => case.add(&name.replace(".0.", ".9."), Dtype::BF16, &[64, 64]),
        }
    }
    case.equal = random.below(2) == 0;
    case.cast |= random.below(2) == 0;
    if random.below(3) == 0 {
        case.config["tie_word_embeddings"] = json!(random.below(2) == 0);
    }
}

#[test]
fn loses_nothing_of_any_part_of_a_checkpoint() {
    let (mut planned, mut refused) = (0, 0);
    for (seed, recipe) in (0_u64..).zip(recipes()) {
        let mut random = Random(seed << 32);
        for round in 0..16 {
            let mut part = Case::recipe(&recipe);
            if round % 4 == 0 {
                take_away(&mut part, &mut random);
            } else {
                change(&mut part, &mut random);
            }
            let count = if check_part(&recipe.name, &part) { &mut planned } else { &mut refused };
            *count += 1;
        }
    }
    assert!(planned > 1000 && refused > 500, "{planned} parts planned, {refused} refused");
}

#[test]
fn keeps_fp32_where_the_class_does() {
    let plain = |recipe: &str, tensor: &str, cast: bool| {
        let mut case = Case::recipe(&Recipe::named(recipe));
        case.cast = cast;
        let puts = case.plan().unwrap().puts.into_iter();
        let mut plain = puts.filter_map(|put| if let Put::Plain(plain) = put { Some(plain) } else { None });
        plain.find(|plain| plain.name == tensor)
    };
    let router = plain("edge-dtypes-fp32-kept", "model.layers.1.mlp.gate.weight", false).unwrap();
    assert_eq!((router.dtype, router.value.dtype), (Dtype::F32, Dtype::BF16));

    let linear = "model.layers.0.mlp.gate.wg.weight";
    assert!(plain("edge-fp32-linear", linear, true).is_none(), "a matrix to pack is cast");
    assert_eq!(plain("edge-fp32-linear", linear, false).unwrap().dtype, Dtype::F32);

    let scalars = "backbone.layers.0.mixer.A_log";
    assert_eq!(plain("edge-scalar-buffers", scalars, true).unwrap().dtype, Dtype::BF16);
    assert_eq!(plain("edge-scalar-buffers", scalars, false).unwrap().dtype, Dtype::F32);
}
