//! Configs and names that nobody means well with: a plan or a refusal, soon, and never a panic.

#![expect(clippy::unwrap_used, reason = "functions that the tests share")]

mod plan_support;

use std::time::{Duration, Instant};

use glyd_fixtures::Recipe;
use glyd_format::Dtype;
use serde_json::{Value as Json, json};

use plan_support::{Case, packs, plains};

/// Types of every kind: dense, experts, transposed, hybrid, composite, lists of kinds, odd conversions.
const KINDS: [&str; 20] = [
    "llama",
    "qwen3_moe",
    "deepseek_v3",
    "gpt_oss",
    "dbrx",
    "jamba",
    "zamba2",
    "dory",
    "diffusion_gemma",
    "laguna",
    "mllama",
    "llava",
    "qwen3_vl_moe",
    "llama4",
    "ernie4_5_vl_moe",
    "inkling2_loop",
    "longcat_flash",
    "qwen3_5",
    "olmo_hybrid",
    "unheard_of",
];

/// Far more than any plan here takes, also without optimization and beside other work.
const SOON: Duration = Duration::from_secs(20);

fn soon<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let out = run();
    assert!(start.elapsed() < SOON, "{what}: {:?}", start.elapsed());
    out
}

/// Every path to a field in a config.
fn paths(config: &Json, at: &str, out: &mut Vec<String>) {
    let Some(fields) = config.as_object() else { return };
    for (name, value) in fields {
        let path = format!("{at}/{name}");
        paths(value, &path, out);
        out.push(path);
    }
}

#[test]
fn survives_configs_of_wrong_types() {
    let deep = (0..100).fold(json!([]), |inner, _| json!([inner]));
    let wrong = [
        json!("2"),
        json!(-1),
        json!(0),
        json!(1_000_000_000_000_000_000_u64),
        json!(u64::MAX),
        json!(1.5e300),
        json!(true),
        json!(null),
        json!({}),
        json!([[["a", {"b": [null]}]], -3]),
        deep,
    ];
    for name in ["llama", "qwen3_moe", "deepseek_v3", "longcat_flash", "llava", "qwen3_5", "zamba2", "dbrx"] {
        let case = Case::recipe(&Recipe::named(name));
        let mut fields = Vec::new();
        paths(&case.config, "", &mut fields);
        // What planning reads is told of in names like these; the others are all alike.
        fields.retain(|field| {
            let words = ["num_", "n_", "size", "dim", "type", "config", "tie", "heads", "experts", "layer"];
            words.iter().any(|word| field.contains(word))
        });
        for field in &fields {
            for value in &wrong {
                let mut case = Case::recipe(&Recipe::named(name));
                *case.config.pointer_mut(field).unwrap() = value.clone();
                let _ = soon(&format!("{name} {field} {value}"), || case.plan());
            }
        }
        for value in &wrong {
            let mut case = Case::recipe(&Recipe::named(name));
            for field in &fields {
                if let Some(at) = case.config.pointer_mut(field)
                    && !field.ends_with("model_type")
                    && !at.is_object()
                {
                    *at = value.clone();
                }
            }
            let _ = soon(&format!("{name} {value}"), || case.plan());
        }
    }
}

#[test]
fn survives_configs_that_are_no_objects() {
    for config in [json!(null), json!([]), json!("llama"), json!(7), json!([{"model_type": "llama"}])] {
        let mut case = Case::llama();
        case.config = config;
        assert!(case.plan().unwrap().notes[0].contains("not known"));
    }
}

#[test]
fn counts_beyond_all_measure_are_not_counted_out() {
    for kind in KINDS {
        let huge = json!(1_000_000_000_000_000_000_u64);
        let fields = json!({
            "num_hidden_layers": huge, "n_layer": huge, "num_experts": huge, "n_routed_experts": huge,
            "num_local_experts": huge, "num_attention_heads": huge, "num_mem_blocks": huge, "head_dim": huge,
            "unpadded_vocab_size": huge, "moe_num_experts": [huge, huge], "layer_types": [],
        });
        let mut case = Case::experts(2);
        case.config = fields.clone();
        case.config["model_type"] = json!(kind);
        case.config["text_config"] = fields.clone();
        case.config["vision_config"] = fields.clone();
        let _ = soon(kind, || case.plan());
    }
}

/// Names made to be tried again and again by a pattern: long, and nearly what it asks for.
fn adversarial_names() -> Vec<String> {
    let long = |part: &str| part.repeat(60_000 / part.len());
    let mut names = vec![
        ".".repeat(10_000),
        format!("model{}", ".".repeat(10_000)),
        long("model.layers.0."),
        long("experts.0."),
        long("a"),
        long("norm"),
        long("_norm."),
        long("language_model.model."),
        long("model.language_model."),
        long("layers.1.mixer."),
        format!("{}weight", long("mlp.experts.0.gate_proj.")),
        format!("model.layers.0.mlp.experts.{}.gate_proj.weight", "9".repeat(50_000)),
        format!("model.layers.0.mlp.experts.{}.gate_proj.weight", "\u{661}".repeat(20_000)),
        format!("model.layers.{}.self_attn.q_proj.weight", "1".repeat(50_000)),
        "(((((((((((((((((((((((a*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)".to_owned(),
        r"\1\2\g<0>(?P<a>.*)[[:alpha:]]{1000000}$^".to_owned(),
        "\u{0}\u{0}.\u{0}.weight".to_owned(),
        "\u{202e}model.layers.0.mlp.up_proj.weight".to_owned(),
        "model.layers.\u{1d7d8}.mlp.up_proj.weight".to_owned(),
        "model.layers.+0.mlp.up_proj.weight".to_owned(),
        "model.layers. 0.mlp.up_proj.weight".to_owned(),
        "model.layers.00.mlp.up_proj.weight".to_owned(),
        "model.layers.0.mlp..up_proj.weight".to_owned(),
        "model..layers.0.mlp.up_proj.weight".to_owned(),
        ".model.layers.0.mlp.up_proj.weight".to_owned(),
        "model.layers.0.mlp.up_proj.weight.".to_owned(),
        "model.layers.*.mlp.up_proj.weight".to_owned(),
        "*".to_owned(),
        String::new(),
    ];
    // Every text that a pattern of some type looks for, many times over.
    for word in
        ["embed_tokens.", "transformer.", "layer.", "LayerNorm.gamma", ".weight_g", "conv_out.", "ln_f."]
    {
        names.push(long(word));
    }
    names
}

#[test]
fn survives_names_made_for_patterns() {
    for kind in KINDS {
        let mut case = Case::experts(2);
        case.config["model_type"] = json!(kind);
        for name in adversarial_names() {
            case.add(&name, Dtype::BF16, &[64, 16]);
        }
        match soon(kind, || case.plan()) {
            Ok(plan) => {
                let told = plan.puts.iter().flat_map(|put| put.values()).count() + plan.dropped.len();
                assert!(told >= case.tensors.len(), "{kind}");
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

#[test]
fn takes_only_plain_indexes_for_a_lists() {
    let mut case = Case::llama();
    let odd: Vec<String> = adversarial_names().into_iter().filter(|name| name.len() < 1000).collect();
    for name in &odd {
        case.add(name, Dtype::BF16, &[64, 16]);
    }
    let planned = case.plan().unwrap();
    let mut dropped: Vec<&str> = planned.dropped.iter().map(|dropped| dropped.tensor.as_str()).collect();
    let mut odd: Vec<&str> = odd.iter().map(String::as_str).collect();
    dropped.sort_unstable();
    odd.sort_unstable();
    assert_eq!(dropped, odd, "none of them is a tensor of the model");
    assert_eq!((packs(&planned), plains(&planned)), {
        let plain = Case::llama().plan().unwrap();
        (packs(&plain), plains(&plain))
    });
}

#[test]
fn many_long_names_are_no_more_than_their_length() {
    // As many bytes of names as a header may well hold, nearly what a type's patterns look for.
    for kind in ["qwen3_moe", "gemma3", "molmo2", "inkling2_loop", "internvl"] {
        let mut case = Case::of(json!({"model_type": kind}));
        for i in 0..2000 {
            let name = format!("{}{i}", "model.language_model.layer_norm.".repeat(60));
            case.add(&name, Dtype::BF16, &[64, 16]);
        }
        let _ = soon(kind, || case.plan());
    }
}

#[test]
fn names_a_screenful_of_what_is_missing() {
    let mut case = Case::recipe(&Recipe::named("deepseek_v3"));
    case.tensors.clear();
    case.config["num_hidden_layers"] = json!(1_000_000_000_000_000_000_u64);
    let fault = case.fault();
    assert!(fault.contains("`model.layers.0` to `model.layers.999999999999999999`"), "{fault}");

    let mut case = Case::recipe(&Recipe::named("edge-many"));
    let all = case.tensors.len();
    case.tensors.retain(|name, _| !name.ends_with("norm.weight"));
    let missing = all - case.tensors.len();
    let fault = case.fault();
    assert!(missing > 21, "{missing}");
    assert_eq!(fault.lines().count(), 21, "{fault}");
    assert!(fault.ends_with(&format!("found {} more faults like these", missing - 20)), "{fault}");
}

#[test]
fn names_every_layer_that_config_json_has_and_the_checkpoint_lacks() {
    let mut case = Case::llama();
    case.config["num_hidden_layers"] = json!(3);
    assert!(case.fault().contains("`model.layers.1` to `model.layers.2`"), "{}", case.fault());
    // One in the middle.
    for name in case.tensors.keys().cloned().collect::<Vec<_>>() {
        if name.starts_with("model.layers.0") {
            let info = case.tensors[&name].clone();
            case.tensors.insert(name.replace("layers.0", "layers.2"), info);
        }
    }
    assert!(case.fault().contains("`model.layers.1`: expected"), "{}", case.fault());
    assert_eq!(case.fault().lines().count(), 1);
}
