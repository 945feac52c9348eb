//! Plans of small checkpoints: what a caller can ask for, and odd checkpoints.

#![expect(clippy::unwrap_used, reason = "functions that the tests share")]

mod plan_support;

use glyd_format::Dtype;
use glyd_format::plan::{Left, Put, quantized};
use serde_json::json;

use plan_support::{Case, pack, packs, plain};

#[test]
fn merges_a_layers_groups_after_its_other_linears() {
    let mut case = Case::llama();
    let at = "model.layers.0";
    let merged = ["self_attn.o_proj", "self_attn.q_proj", "mlp.down_proj", "mlp.gate_proj"]
        .map(|m| format!("{at}.{m}"));
    let planned = case.plan().unwrap();
    assert_eq!(packs(&planned), [merged.to_vec(), vec!["lm_head".to_owned()]].concat());
    assert_eq!(pack(&planned, "model.layers.0.self_attn.q_proj").shape, [384, 128]);
    case.merge = false;
    assert_eq!(packs(&case.plan().unwrap()).len(), 8);
}

#[test]
fn leaves_what_the_caller_asks_for_and_its_group_unmerged() {
    let mut case = Case::llama();
    case.leave.insert("model.layers.0.self_attn.k_proj.weight".to_owned());
    let planned = case.plan().unwrap();
    assert_eq!(pack(&planned, "model.layers.0.self_attn.q_proj").shape, [128, 128]);
    assert_eq!(plain(&planned, "model.layers.0.self_attn.k_proj.weight").reason, Left::Grows);
}

#[test]
fn leaves_other_dtypes_as_they_are() {
    let mut case = Case::llama();
    case.set("model.layers.0.self_attn.k_proj.weight", Dtype::F32);
    case.set("model.embed_tokens.weight", Dtype::F16);
    let planned = case.plan().unwrap();
    let left = plain(&planned, "model.layers.0.self_attn.k_proj.weight");
    assert_eq!((left.dtype, left.reason.to_string().as_str()), (Dtype::F32, "dtype F32"));
    assert!(packs(&planned).contains(&"model.layers.0.self_attn.v_proj".to_owned()), "v alone, not merged");
    // Not in place: after every pack.
    let first =
        planned.puts.iter().position(|put| matches!(put, Put::Plain(p) if p.name.contains("embed"))).unwrap();
    assert!(planned.puts[first..].iter().all(|put| matches!(put, Put::Plain(_))));

    case.cast = true;
    let planned = case.plan().unwrap();
    assert_eq!(pack(&planned, "model.layers.0.self_attn.q_proj").shape, [384, 128]);
    assert_eq!(plain(&planned, "model.embed_tokens.weight").dtype, Dtype::BF16);
}

#[test]
fn never_casts_what_is_no_float() {
    let mut case = Case::llama();
    case.cast = true;
    case.set("model.norm.weight", Dtype::I64);
    assert_eq!(plain(&case.plan().unwrap(), "model.norm.weight").dtype, Dtype::I64);
}

#[test]
fn says_why_a_matrix_is_left() {
    let mut case = Case::llama();
    case.add("model.layers.0.self_attn.o_proj.weight", Dtype::BF16, &[128, 200]);
    case.add("model.layers.0.mlp.down_proj.weight", Dtype::BF16, &[321, 128]);
    let planned = case.plan().unwrap();
    let reason = |name: &str| plain(&planned, name).reason.to_string();
    assert_eq!(reason("model.layers.0.self_attn.o_proj.weight"), "columns 200 are not a multiple of 16");
    assert_eq!(reason("model.layers.0.mlp.down_proj.weight"), "rows 321 are not a multiple of 64");
    assert_eq!(reason("model.embed_tokens.weight"), "embedding");
    assert_eq!(reason("model.norm.weight"), "1-D");
}

#[test]
fn ties_two_tensors_only_if_they_are_equal() {
    let mut case = Case::llama();
    case.config["tie_word_embeddings"] = json!(true);
    let planned = case.plan().unwrap();
    assert!(packs(&planned).contains(&"lm_head".to_owned()));
    assert!(planned.notes[0].contains("`lm_head.weight` is not tied"), "{:?}", planned.notes);
    case.equal = true;
    let planned = case.plan().unwrap();
    assert!(!packs(&planned).contains(&"lm_head".to_owned()));
    assert!(!planned.puts.iter().any(|put| matches!(put, Put::Plain(p) if p.name == "lm_head.weight")));
    // Another shape is another value: nobody is asked.
    case.add("lm_head.weight", Dtype::BF16, &[384, 128]);
    assert!(packs(&case.plan().unwrap()).contains(&"lm_head".to_owned()));
}

#[test]
fn saves_a_tied_output_layer_again_where_it_does_not_pack() {
    let mut case = Case::llama();
    case.config["tie_word_embeddings"] = json!(true);
    case.tensors.remove("lm_head.weight");
    case.add("model.embed_tokens.weight", Dtype::BF16, &[321, 128]);
    let planned = case.plan().unwrap();
    let head = plain(&planned, "lm_head.weight");
    assert_eq!(head.reason.to_string(), "tied to `model.embed_tokens.weight`");
    assert_eq!(head.value.expr.source_name(), Some("model.embed_tokens.weight"));
}

#[test]
fn names_every_missing_tensor_at_once() {
    let mut case = Case::llama();
    for name in ["lm_head.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.weight"] {
        case.tensors.remove(name);
        assert!(case.fault().contains(name), "{}", case.fault());
    }
    assert_eq!(case.fault().lines().count(), 3);
    assert!(case.fault().contains("the checkpoint is incomplete"));
    case.config["num_hidden_layers"] = json!(u64::MAX);
    assert!(
        case.fault().contains("`model.layers.1` to `model.layers.18446744073709551614`"),
        "{}",
        case.fault()
    );
    case.tensors.clear();
    assert!(case.fault().contains("model.embed_tokens.weight"));
}

#[test]
fn names_missing_experts() {
    let at = "model.layers.0.mlp.experts";
    let mut case = Case::experts(4);
    assert_eq!(pack(&case.plan().unwrap(), &format!("{at}.gate_up_proj")).shape, [512, 128]);
    // A gap, which is also a pattern with fewer than the others.
    case.tensors.remove(&format!("{at}.1.up_proj.weight"));
    assert_eq!(case.fault().lines().count(), 1, "{}", case.fault());
    assert!(case.fault().contains(&format!("{at}.1.up_proj.weight")));
    // Every one of a pattern.
    case.tensors.retain(|name, _| !name.contains("up_proj"));
    assert_eq!(case.fault().lines().count(), 4);
    // The last ones: only the config tells.
    let mut case = Case::experts(4);
    case.config["num_experts"] = json!(6);
    assert_eq!(case.fault().lines().count(), 6, "{}", case.fault());
    assert!(case.fault().contains(&format!("{at}.5.gate_proj.weight")));
    case.config["num_experts"] = json!(3);
    assert!(case.fault().contains("expected 3 experts"), "{}", case.fault());
    // No number of missing experts is too large to name.
    case.config["num_experts"] = json!(u64::MAX);
    assert!(case.fault().lines().count() < 10);
}

#[test]
fn refuses_a_stack_of_several_dtypes_by_name() {
    let mut case = Case::experts(2);
    case.set("model.layers.0.mlp.experts.1.down_proj.weight", Dtype::F32);
    let fault = case.fault();
    assert!(fault.contains("`model.layers.0.mlp.experts.1.down_proj.weight` F32"), "{fault}");
}

#[test]
fn leaves_all_of_a_modules_experts_where_one_does_not_pack() {
    let at = "model.layers.0.mlp.experts";
    let mut case = Case::experts(2);
    case.leave.insert(format!("{at}.down_proj"));
    let planned = case.plan().unwrap();
    assert_eq!(plain(&planned, &format!("{at}.down_proj")).reason, Left::Grows);
    assert_eq!(plain(&planned, &format!("{at}.gate_up_proj")).reason, Left::Expert);
}

#[test]
fn lists_what_the_model_does_not_hold() {
    let mut case = Case::llama();
    case.add("model.layers.1.mlp.up_proj.weight", Dtype::BF16, &[128, 128]);
    case.add("mtp.proj.weight", Dtype::BF16, &[4, 4]);
    case.add("norm.weight", Dtype::BF16, &[128]);
    let planned = case.plan().unwrap();
    let dropped: Vec<(&str, u64, &str)> =
        planned.dropped.iter().map(|d| (d.tensor.as_str(), d.elements, d.reason.as_str())).collect();
    assert_eq!(
        dropped,
        [
            ("model.layers.1.mlp.up_proj.weight", 16384, "`model.layers` has 1 elements in config.json"),
            ("mtp.proj.weight", 16, "the model has no such tensor"),
            ("norm.weight", 128, "`model.norm.weight` is the same tensor of the model"),
        ]
    );
}

#[test]
fn packs_unknown_types_under_their_own_names() {
    let mut case = Case::of(json!({"model_type": "not_yet_made"}));
    case.add("layers.10.up.weight", Dtype::BF16, &[64, 16]);
    case.add("layers.9.up.weight", Dtype::BF16, &[64, 32]);
    case.add("layers.9.experts.w1", Dtype::BF16, &[3, 64, 16]);
    case.add("layers.9.experts.conv", Dtype::BF16, &[3, 64, 16]);
    case.add("layers.9.f32.weight", Dtype::F32, &[64, 16]);
    case.add("layers.9.odd.weight", Dtype::BF16, &[65, 16]);
    case.add("layers.9.up.table", Dtype::BF16, &[64, 16]);
    for embedding in ["wte", "embed_tokens", "shared", "word_embeddings", "pos_emb"] {
        case.add(&format!("{embedding}.weight"), Dtype::BF16, &[64, 16]);
    }
    case.add("a_norm.weight", Dtype::BF16, &[64, 16]);
    let planned = case.plan().unwrap();
    assert_eq!(packs(&planned), ["layers.9.experts.w1", "layers.9.up", "layers.10.up"]);
    let experts = pack(&planned, "layers.9.experts.w1");
    assert_eq!(
        (experts.module.as_str(), experts.weight.as_deref(), experts.shape),
        ("layers.9.experts", Some("w1"), [192, 16])
    );
    assert_eq!(experts.experts.map(|e| (e.count, e.transposed)), Some((3, false)));
    assert_eq!(planned.puts.len(), case.tensors.len());
    assert!(planned.notes[0].contains("`not_yet_made`"));
    // No model type, or none that is a name: the same.
    for config in [json!({}), json!({"model_type": 7}), json!(null)] {
        case.config = config;
        assert_eq!(packs(&case.plan().unwrap()).len(), 3);
    }
}

#[test]
fn packs_a_composite_with_an_unknown_part_as_an_unknown_type() {
    let mut case = Case::of(json!({"model_type": "llava", "text_config": {"model_type": "novel"}}));
    case.add("language_model.up.weight", Dtype::BF16, &[64, 16]);
    let planned = case.plan().unwrap();
    assert_eq!(packs(&planned), ["language_model.up"]);
    assert!(planned.notes[0].contains("`novel` as its `text_config`"), "{:?}", planned.notes);
}

#[test]
fn does_not_pack_a_packed_checkpoint_again() {
    let mut case = Case::of(json!({"model_type": "not_yet_made"}));
    case.add("up.glyd_data", Dtype::U8, &[1280]);
    assert!(case.fault().contains("up.glyd_data"));
}

#[test]
fn takes_mistral_with_layer_types_for_ministral() {
    let mut case = Case::llama();
    case.config["model_type"] = json!("mistral");
    case.config["layer_types"] = json!(["full_attention"]);
    assert_eq!(packs(&case.plan().unwrap()).len(), 5);
}

#[test]
fn survives_a_composite_of_itself() {
    let mut config = json!({"model_type": "llava"});
    for _ in 0..60 {
        config = json!({"model_type": "llava", "text_config": config.clone(), "vision_config": config});
        if config.to_string().len() > 100_000 {
            break;
        }
    }
    let mut case = Case::of(config);
    case.add("model.norm.weight", Dtype::BF16, &[64]);
    let _ = case.plan();
}

#[test]
fn survives_names_and_shapes_of_any_kind() {
    let names = [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "model.layers.0.".repeat(10_000),
        "a".repeat(100_000),
        "model.layers.0.mlp.experts.99999999999999999999.up_proj.weight".to_owned(),
        "model.layers.0.mlp.experts..up_proj.weight".to_owned(),
        "\u{0}.weight".to_owned(),
        "mod\u{e9}l.weight".to_owned(),
        "model.layers.\u{661}.mlp.up_proj.weight".to_owned(),
    ];
    for kind in ["llama", "qwen3_moe", "dory", "diffusion_gemma", "zamba", "mllama", "unheard_of"] {
        let mut case = Case::experts(2);
        case.config["model_type"] = json!(kind);
        for name in &names {
            case.add(name, Dtype::BF16, &[64, 16]);
        }
        let _ = case.plan();
    }
    let mut case = Case::llama();
    case.add("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[u64::MAX, u64::MAX]);
    assert!(case.fault().contains("up_proj"));
    case.add("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[0, 128]);
    assert!(!packs(&case.plan().unwrap()).iter().any(|name| name.contains("mlp.up_proj")));
    for rank in 0..=8 {
        let mut case = Case::experts(2);
        for info in case.tensors.values_mut() {
            info.shape = vec![64; rank];
        }
        let _ = case.plan();
    }
}

#[test]
fn drops_padding_of_a_vocabulary() {
    let mut case =
        Case::of(json!({"model_type": "inkling2_text", "unpadded_vocab_size": 300, "num_hidden_layers": 1}));
    case.add("lm_head.weight", Dtype::BF16, &[320, 128]);
    // The rest of the model is not there, and is named; the head is not.
    assert!(!case.fault().contains("lm_head"));
}

#[test]
fn finds_quantization_wherever_it_is_told() {
    assert!(quantized(&json!({"quantization_config": {}})).is_some());
    assert!(quantized(&json!({"text_config": {"quantization_config": {"quant_method": "fp8"}}})).is_some());
    assert!(quantized(&json!({"quantization_config": null, "text_config": 3})).is_none());
}

#[test]
fn an_encoder_of_a_language_models_type_is_packed_as_an_unknown_one() {
    let mut case = Case::llama();
    case.tensors.remove("lm_head.weight");
    case.config["tie_word_embeddings"] = json!(false);
    let refused = case.plan().unwrap_err().to_string();
    assert!(refused.contains("lm_head.weight"), "{refused}");
    case.config["architectures"] = json!(["LlamaModel"]);
    let planned = case.plan().unwrap();
    assert!(packs(&planned).contains(&"model.layers.0.self_attn.k_proj".to_owned()), "none merged");
    assert!(
        planned.notes[0].contains("LlamaModel, which is not the LlamaForCausalLM"),
        "{:?}",
        planned.notes
    );
    case.config["architectures"] = json!(["LlamaForCausalLM"]);
    assert!(case.plan().is_err());
}
