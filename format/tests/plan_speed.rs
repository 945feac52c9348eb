//! How long a plan of a large mixture of experts takes.

#![expect(clippy::print_stdout, reason = "the time is what it tells")]

use std::collections::BTreeSet;
use std::time::Instant;

use glyd_format::Dtype;
use glyd_format::plan::{Inventory, Options, Put, TensorInfo, Value, plan};
use serde_json::json;

const LAYERS: u64 = 94;
const EXPERTS: u64 = 128;

/// The names and shapes of Qwen3-235B-A22B.
fn inventory() -> Inventory {
    let mut tensors = Inventory::new();
    let mut add = |name: String, shape: &[u64]| {
        tensors.insert(name, TensorInfo { dtype: Dtype::BF16, shape: shape.to_vec() });
    };
    add("model.embed_tokens.weight".to_owned(), &[151_936, 4096]);
    add("model.norm.weight".to_owned(), &[4096]);
    add("lm_head.weight".to_owned(), &[151_936, 4096]);
    for layer in 0..LAYERS {
        let at = format!("model.layers.{layer}");
        for (name, rows, columns) in
            [("q", 8192, 4096), ("k", 512, 4096), ("v", 512, 4096), ("o", 4096, 8192)]
        {
            add(format!("{at}.self_attn.{name}_proj.weight"), &[rows, columns]);
        }
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(format!("{at}.{norm}.weight"), &[4096]);
        }
        for norm in ["q_norm", "k_norm"] {
            add(format!("{at}.self_attn.{norm}.weight"), &[128]);
        }
        add(format!("{at}.mlp.gate.weight"), &[128, 4096]);
        for expert in 0..EXPERTS {
            for (name, rows, columns) in [("gate", 1536, 4096), ("up", 1536, 4096), ("down", 4096, 1536)] {
                add(format!("{at}.mlp.experts.{expert}.{name}_proj.weight"), &[rows, columns]);
            }
        }
    }
    tensors
}

#[test]
fn plans_a_mixture_of_experts_of_36_thousand_tensors() {
    let config = json!({
        "model_type": "qwen3_moe", "num_hidden_layers": LAYERS, "num_experts": EXPERTS, "num_experts_per_tok": 8,
        "tie_word_embeddings": false,
    });
    let inventory = inventory();
    let mut same = |_: &Value, _: &Value| Ok(false);
    let mut options = Options { merge: true, cast: false, leave: &BTreeSet::new(), same: &mut same };
    let start = Instant::now();
    let planned = plan(&config, &inventory, &mut options).unwrap();
    println!("{} tensors planned in {:?}", inventory.len(), start.elapsed());
    let packs = planned.puts.iter().filter(|put| matches!(put, Put::Pack(_))).count();
    // The output layer; of each layer q, k, v as one, o, and two experts' weights.
    assert_eq!(u64::try_from(packs).unwrap(), 1 + LAYERS * 4);
    assert!(planned.dropped.is_empty());
}
