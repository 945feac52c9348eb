//! How long plans of large checkpoints take. Under a second each, where nothing else runs:
//!
//!     cargo test --release -p glyd-format --test plan_speed -- --ignored --nocapture

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the times are what it tells, and a test may fail"
)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use glyd_format::plan::{Inventory, Options, Plan, Put, TensorInfo, Value, plan};
use glyd_format::{Dtype, Result};
use serde_json::{Value as Json, json};

/// A mixture of experts.
struct Shape {
    model_type: &'static str,
    layers: u64,
    experts: u64,
    /// Each layer's tensors beside its experts: names below the layer's, and their shapes.
    layer: &'static [(&'static str, &'static [u64])],
}

const QWEN3_MOE: Shape = Shape {
    model_type: "qwen3_moe",
    layers: 94,
    experts: 128,
    layer: &[
        ("self_attn.q_proj", &[8192, 4096]),
        ("self_attn.k_proj", &[512, 4096]),
        ("self_attn.v_proj", &[512, 4096]),
        ("self_attn.o_proj", &[4096, 8192]),
        ("self_attn.q_norm", &[128]),
        ("self_attn.k_norm", &[128]),
        ("mlp.gate", &[128, 4096]),
        ("input_layernorm", &[4096]),
        ("post_attention_layernorm", &[4096]),
    ],
};

const DEEPSEEK_V3: Shape = Shape {
    model_type: "deepseek_v3",
    layers: 61,
    experts: 256,
    layer: &[
        ("self_attn.q_a_proj", &[1536, 7168]),
        ("self_attn.q_a_layernorm", &[1536]),
        ("self_attn.q_b_proj", &[24_576, 1536]),
        ("self_attn.kv_a_proj_with_mqa", &[576, 7168]),
        ("self_attn.kv_a_layernorm", &[512]),
        ("self_attn.kv_b_proj", &[32_768, 512]),
        ("self_attn.o_proj", &[7168, 16_384]),
        ("mlp.gate", &[256, 7168]),
        ("mlp.shared_experts.gate_proj", &[2048, 7168]),
        ("mlp.shared_experts.up_proj", &[2048, 7168]),
        ("mlp.shared_experts.down_proj", &[7168, 2048]),
        ("input_layernorm", &[7168]),
        ("post_attention_layernorm", &[7168]),
    ],
};

impl Shape {
    fn config(&self) -> Json {
        json!({
            "model_type": self.model_type, "num_hidden_layers": self.layers, "tie_word_embeddings": false,
            "num_experts": self.experts, "n_routed_experts": self.experts, "num_experts_per_tok": 8,
        })
    }

    fn inventory(&self) -> Inventory {
        let mut tensors = Inventory::new();
        let mut add = |name: String, shape: &[u64]| {
            tensors.insert(name, TensorInfo { dtype: Dtype::BF16, shape: shape.to_vec() });
        };
        add("model.embed_tokens.weight".to_owned(), &[129_280, 7168]);
        add("model.norm.weight".to_owned(), &[7168]);
        add("lm_head.weight".to_owned(), &[129_280, 7168]);
        for layer in 0..self.layers {
            let at = format!("model.layers.{layer}");
            for (name, shape) in self.layer {
                add(format!("{at}.{name}.weight"), shape);
            }
            if self.model_type == "deepseek_v3" {
                add(format!("{at}.mlp.gate.e_score_correction_bias"), &[self.experts]);
            }
            for expert in 0..self.experts {
                for (name, shape) in [("gate", [2048, 7168]), ("up", [2048, 7168]), ("down", [7168, 2048])] {
                    add(format!("{at}.mlp.experts.{expert}.{name}_proj.weight"), &shape);
                }
            }
        }
        tensors
    }
}

/// Plans as often as it may, and takes the best: other work on the machine is no part of a plan.
fn timed(
    what: &str,
    config: &Json,
    inventory: &Inventory,
    (rounds, limit): (usize, Duration),
) -> Result<Plan> {
    let mut same = |_: &Value, _: &Value| Ok(false);
    let mut options = Options { merge: true, cast: false, leave: &BTreeSet::new(), same: &mut same };
    let mut run = || {
        let start = Instant::now();
        let planned = plan(config, inventory, &mut options);
        (start.elapsed(), planned)
    };
    let (taken, planned) = (0..rounds).map(|_| run()).min_by_key(|(taken, _)| *taken).unwrap();
    println!("{what}: {} tensors in {taken:?}", inventory.len());
    assert!(taken < limit, "{what}: {taken:?}");
    planned
}

fn plan_large_checkpoints(limit: (usize, Duration)) {
    let of_two = [(QWEN3_MOE, 94), (DEEPSEEK_V3, 61), (DEEPSEEK_V3, 128), (QWEN3_MOE, 256)];
    for (shape, layers) in of_two {
        let shape = Shape { layers, ..shape };
        let planned = timed(shape.model_type, &shape.config(), &shape.inventory(), limit).unwrap();
        assert!(planned.dropped.is_empty());
        let stacks =
            planned.puts.iter().filter(|put| matches!(put, Put::Pack(pack) if pack.experts.is_some()));
        assert_eq!(u64::try_from(stacks.count()).unwrap(), 2 * layers);
    }
    let inventory = Shape { layers: 128, ..DEEPSEEK_V3 }.inventory();
    let unknown = timed("unknown", &json!({"model_type": "not_yet_made"}), &inventory, limit).unwrap();
    assert_eq!(unknown.puts.len(), inventory.len());
    // Of another type: almost nothing is a tensor of the model, and almost all of it is missing.
    for kind in ["zamba2", "llama4_text", "dots3_note", "mixtral"] {
        let config = json!({"model_type": kind, "num_hidden_layers": 1_000_000_000_000_000_000_u64});
        assert!(timed(kind, &config, &inventory, limit).is_err());
    }
}

#[test]
fn a_hundred_thousand_tensors_are_no_work() {
    // In any build and beside other work, but not if time grew with the square of the tensors.
    plan_large_checkpoints((1, Duration::from_secs(20)));
}

#[test]
#[ignore = "measures: alone, and in a release build"]
fn a_hundred_thousand_tensors_plan_in_under_a_second() {
    plan_large_checkpoints((3, Duration::from_secs(1)));
}
