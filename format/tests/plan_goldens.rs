//! The plans of the recipes against the names that the reference saves, in its order.
//!
//! The recipes are read from the folder that `GLYD_RECIPES` names; without it there is nothing to test.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "functions that the tests share")]

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use glyd_format::plan::{Inventory, Options, Plan, Put, TensorInfo, Value, plan};
use glyd_format::{Dtype, Error, Result};
use serde_json::Value as Json;

/// Recipes with tensors that the reference casts.
const CAST: [&str; 3] = ["edge-dtypes", "edge-fp32-linear", "edge-scalar-buffers"];

/// Recipes whose checkpoint lacks a tensor, and what of its name the refusal must hold.
const INCOMPLETE: [(&str, &str); 4] = [
    ("edge-missing-expert", "model.layers.1.mlp.experts.3.gate_proj.weight"),
    ("edge-missing-group", "model.layers.1.self_attn.k_proj.weight"),
    ("edge-missing-norm", "model.layers.1.input_layernorm.weight"),
    ("edge-untie-unsaid", "lm_head.weight"),
];

/// Recipes that are saved without what they lack, and what the note must name.
const NOTED: [(&str, &str); 2] =
    [("edge-missing-bias", "self_attn.q_proj.bias"), ("edge-missing-buffer", "slope_rate")];

struct Recipe {
    name: String,
    json: Json,
    inventory: Inventory,
    /// The name from which each tensor's values follow.
    seeds: BTreeMap<String, String>,
}

fn recipes() -> Vec<Recipe> {
    let Some(folder) = std::env::var_os("GLYD_RECIPES").map(PathBuf::from) else {
        println!("GLYD_RECIPES is not set: no recipe is read");
        return Vec::new();
    };
    let mut paths = Vec::new();
    for folder in [folder.clone(), folder.join("variants")] {
        paths.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    }
    paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
    paths.sort();
    paths.iter().map(|path| recipe(path)).collect()
}

fn recipe(path: &Path) -> Recipe {
    let text = fs::read_to_string(path).unwrap();
    let json: Json = serde_json::from_str(&without_infinity(&text)).unwrap();
    let (mut inventory, mut seeds) = (Inventory::new(), BTreeMap::new());
    for tensor in json["tensors"].as_array().unwrap() {
        let name = tensor[0].as_str().unwrap().to_owned();
        let dtype: Dtype = serde_json::from_value(tensor[1].clone()).unwrap();
        let shape = tensor[2].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
        seeds.insert(name.clone(), tensor[3].as_str().unwrap_or(&name).to_owned());
        inventory.insert(name, TensorInfo { dtype, shape });
    }
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    Recipe { name, json, inventory, seeds }
}

/// A bare `Infinity`, as Python writes it, is no JSON: null outside of strings.
fn without_infinity(text: &str) -> String {
    let parts: Vec<&str> = text.split('"').collect();
    let strings = parts.iter().enumerate().map(|(i, part)| {
        if i % 2 == 0 {
            part.replace("-Infinity", "null").replace("Infinity", "null")
        } else {
            (*part).to_owned()
        }
    });
    assert!(!text.contains("\\\""), "a quoted quote");
    strings.collect::<Vec<_>>().join("\"")
}

impl Recipe {
    fn plan(&self, merge: bool) -> Result<Plan> {
        self.plan_with(merge, CAST.contains(&self.name.as_str()))
    }

    fn plan_with(&self, merge: bool, cast: bool) -> Result<Plan> {
        let seed = |value: &Value| value.expr.source_name().and_then(|name| self.seeds.get(name));
        let mut same = |a: &Value, b: &Value| Ok(seed(a).is_some() && seed(a) == seed(b));
        let mut options = Options { merge, cast, leave: &BTreeSet::new(), same: &mut same };
        plan(&self.json["config"], &self.inventory, &mut options)
    }
}

fn names(list: &Json) -> Vec<String> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

fn packs(plan: &Plan) -> Vec<String> {
    let packs =
        plan.puts.iter().filter_map(|put| if let Put::Pack(pack) = put { Some(pack.name()) } else { None });
    packs.collect()
}

fn tensors(plan: &Plan) -> Vec<String> {
    let plain = plan
        .puts
        .iter()
        .filter_map(|put| if let Put::Plain(plain) = put { Some(plain.name.clone()) } else { None });
    plain.collect()
}

#[test]
fn plans_every_recipe_in_the_references_order() {
    let mut wrong = Vec::new();
    for recipe in recipes().iter().filter(|recipe| !recipe.name.starts_with("edge-missing-")) {
        for (variant, expected) in recipe.json["expected"].as_object().into_iter().flatten() {
            let got = match recipe.plan(variant != "mma-nomerge") {
                Ok(got) => got,
                Err(error) => {
                    wrong.push(format!("{}: {error}", recipe.name));
                    continue;
                }
            };
            if packs(&got) != names(&expected["packs"]) || tensors(&got) != names(&expected["tensors"]) {
                wrong.push(format!("{} {variant}: other names or another order", recipe.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} are not as expected:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn refuses_incomplete_checkpoints_by_name() {
    for recipe in recipes() {
        let refused = recipe.json.get("fails").is_some() || recipe.json.get("random").is_some();
        if let Some((_, tensor)) = INCOMPLETE.iter().find(|(name, _)| *name == recipe.name) {
            let error: Error = recipe.plan(true).unwrap_err();
            assert!(error.to_string().contains(tensor), "{}: {error}", recipe.name);
        } else if let Some((_, tensor)) = NOTED.iter().find(|(name, _)| *name == recipe.name) {
            let notes = recipe.plan(true).unwrap().notes.join("\n");
            assert!(notes.contains(tensor), "{}: {notes}", recipe.name);
        } else {
            assert!(!refused, "{}: what must be refused in it?", recipe.name);
        }
    }
}

#[test]
fn gives_every_put_a_name_of_its_own() {
    for recipe in recipes() {
        let Ok(plan) = recipe.plan(true) else {
            continue;
        };
        for names in [packs(&plan), tensors(&plan)] {
            let unique: BTreeSet<&String> = names.iter().collect();
            assert_eq!(unique.len(), names.len(), "{}", recipe.name);
        }
    }
}

#[test]
fn accounts_for_every_tensor_of_the_checkpoint() {
    for recipe in recipes() {
        let Ok(plan) = recipe.plan(true) else {
            continue;
        };
        let mut left: BTreeSet<&str> = recipe.inventory.keys().map(String::as_str).collect();
        for put in &plan.puts {
            let values: Vec<&Value> = match put {
                Put::Pack(pack) => pack.tensors.iter().map(|part| &part.value).collect(),
                Put::Plain(plain) => vec![&plain.value],
            };
            for source in values.iter().flat_map(|value| value.expr.sources()) {
                // Of two tied tensors one is saved.
                left.retain(|name| recipe.seeds[*name] != recipe.seeds[source]);
            }
        }
        for dropped in &plan.dropped {
            left.remove(dropped.tensor.as_str());
        }
        assert!(left.is_empty(), "{}: {left:?} are neither saved nor dropped", recipe.name);
    }
}

#[test]
fn gives_every_pack_the_shape_of_its_tensors() {
    for recipe in recipes() {
        let Ok(plan) = recipe.plan(true) else {
            continue;
        };
        for put in &plan.puts {
            let Put::Pack(pack) = put else { continue };
            let held: u64 = pack.tensors.iter().map(|part| part.value.elements()).sum();
            assert_eq!(pack.shape[0] * pack.shape[1], held, "{}: {}", recipe.name, pack.name());
            assert!(pack.tensors.iter().all(|part| part.shape == part.value.shape));
        }
    }
}

#[test]
fn keeps_fp32_where_the_class_does() {
    for recipe in recipes() {
        let plain = |name: &str, cast: bool| {
            let plan = recipe.plan_with(true, cast).unwrap();
            let mut plain = plan
                .puts
                .into_iter()
                .filter_map(|put| if let Put::Plain(plain) = put { Some(plain) } else { None });
            plain.find(|plain| plain.name == name)
        };
        match recipe.name.as_str() {
            "edge-dtypes-fp32-kept" => {
                let router = plain("model.layers.1.mlp.gate.weight", false).unwrap();
                assert_eq!((router.dtype, router.value.dtype), (Dtype::F32, Dtype::BF16));
            }
            "edge-fp32-linear" => {
                let name = "model.layers.0.mlp.gate.wg.weight";
                assert!(plain(name, true).is_none(), "a matrix to pack is cast");
                assert_eq!(plain(name, false).unwrap().dtype, Dtype::F32);
            }
            "edge-scalar-buffers" => {
                let name = "backbone.layers.0.mixer.A_log";
                assert_eq!(plain(name, true).unwrap().dtype, Dtype::BF16);
                assert_eq!(plain(name, false).unwrap().dtype, Dtype::F32);
            }
            _ => {}
        }
    }
}
