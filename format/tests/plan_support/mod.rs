//! Checkpoints and their plans, for the tests of the planner.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

use glyd_fixtures::Recipe;
use glyd_format::json::read_config;
use glyd_format::plan::{Inventory, Options, Pack, Plain, Plan, Put, TensorInfo, Value, plan};
use glyd_format::{Dtype, Result};
use serde_json::{Value as Json, json};

/// Recipes with tensors that the goldens' maker cast.
const CAST: [&str; 3] = ["edge-dtypes", "edge-fp32-linear", "edge-scalar-buffers"];

/// A checkpoint, and what is asked of its plan.
pub struct Case {
    pub config: Json,
    pub tensors: Inventory,
    pub cast: bool,
    pub merge: bool,
    pub leave: BTreeSet<String>,
    /// Whether any two tied tensors are equal.
    pub equal: bool,
    /// The names from which tensors' values follow: of one name, they are equal.
    pub seeds: BTreeMap<String, String>,
}

impl Case {
    pub fn of(config: Json) -> Self {
        Case {
            config,
            tensors: Inventory::new(),
            cast: false,
            merge: true,
            leave: BTreeSet::new(),
            equal: false,
            seeds: BTreeMap::new(),
        }
    }

    /// A recipe's checkpoint, cast where its goldens are.
    pub fn recipe(recipe: &Recipe) -> Self {
        let mut case = Case::of(read_config(recipe.config.as_bytes()).unwrap());
        case.cast = CAST.contains(&recipe.name.as_str());
        for tensor in &recipe.tensors {
            let dtype = serde_json::from_value(json!(tensor.dtype)).unwrap();
            case.add(&tensor.name, dtype, &tensor.shape);
            case.seeds.insert(tensor.name.clone(), tensor.values_of.clone());
        }
        case
    }

    /// A Llama of one layer, 128 wide.
    pub fn llama() -> Self {
        let mut case =
            Case::of(json!({"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": false}));
        case.add("model.embed_tokens.weight", Dtype::BF16, &[320, 128]);
        case.add("lm_head.weight", Dtype::BF16, &[320, 128]);
        case.add("model.norm.weight", Dtype::BF16, &[128]);
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            case.add(&format!("model.layers.0.{norm}.weight"), Dtype::BF16, &[128]);
        }
        for linear in
            ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"]
        {
            case.add(&format!("model.layers.0.{linear}_proj.weight"), Dtype::BF16, &[128, 128]);
        }
        case
    }

    /// A Qwen3-MoE of one layer: the Llama with experts for its MLP.
    pub fn experts(count: u64) -> Self {
        let mut case = Case::llama();
        case.tensors.retain(|name, _| !name.contains("mlp"));
        case.config = json!({"model_type": "qwen3_moe", "num_hidden_layers": 1, "num_experts": count, "num_experts_per_tok": 2});
        case.add("model.layers.0.mlp.gate.weight", Dtype::BF16, &[count, 128]);
        for norm in ["q_norm", "k_norm"] {
            case.add(&format!("model.layers.0.self_attn.{norm}.weight"), Dtype::BF16, &[32]);
        }
        for expert in 0..count {
            for (name, shape) in [("gate", [64, 128]), ("up", [64, 128]), ("down", [128, 64])] {
                case.add(
                    &format!("model.layers.0.mlp.experts.{expert}.{name}_proj.weight"),
                    Dtype::BF16,
                    &shape,
                );
            }
        }
        case
    }

    pub fn add(&mut self, name: &str, dtype: Dtype, shape: &[u64]) {
        self.tensors.insert(name.to_owned(), TensorInfo { dtype, shape: shape.to_vec() });
    }

    pub fn set(&mut self, name: &str, dtype: Dtype) {
        self.tensors.get_mut(name).unwrap().dtype = dtype;
    }

    pub fn plan(&self) -> Result<Plan> {
        let seed = |value: &Value| value.expr.source_name().and_then(|name| self.seeds.get(name));
        let mut same = |a: &Value, b: &Value| Ok(self.equal || (seed(a).is_some() && seed(a) == seed(b)));
        let mut options = Options { merge: self.merge, cast: self.cast, leave: &self.leave, same: &mut same };
        plan(&self.config, &self.tensors, &mut options)
    }

    pub fn fault(&self) -> String {
        self.plan().unwrap_err().to_string()
    }
}

pub fn packs(plan: &Plan) -> Vec<String> {
    plan.puts
        .iter()
        .filter_map(|put| if let Put::Pack(pack) = put { Some(pack.name()) } else { None })
        .collect()
}

pub fn pack<'a>(plan: &'a Plan, name: &str) -> &'a Pack {
    plan.puts
        .iter()
        .find_map(
            |put| {
                if let Put::Pack(pack) = put { Some(pack).filter(|p| p.name() == name) } else { None }
            },
        )
        .unwrap()
}

pub fn plain<'a>(plan: &'a Plan, name: &str) -> &'a Plain {
    plan.puts
        .iter()
        .find_map(
            |put| {
                if let Put::Plain(plain) = put { Some(plain).filter(|p| p.name == name) } else { None }
            },
        )
        .unwrap()
}

/// The names of the tensors that are saved as they are.
pub fn plains(plan: &Plan) -> Vec<String> {
    let name = |put: &Put| if let Put::Plain(plain) = put { Some(plain.name.clone()) } else { None };
    plan.puts.iter().filter_map(name).collect()
}

/// The recipes of this repository, and those of the folder that `GLYD_RECIPES` names.
pub fn recipes() -> Vec<Recipe> {
    let mut recipes = Recipe::all();
    if let Some(folder) = std::env::var_os("GLYD_RECIPES") {
        recipes.extend(Recipe::all_in(folder.as_ref()));
        recipes.sort_by(|a, b| a.name.cmp(&b.name));
        recipes.dedup_by(|a, b| a.name == b.name);
    }
    recipes
}
