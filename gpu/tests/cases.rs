//! What people ask of such a calculator, and where others went wrong.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use std::collections::BTreeMap;

use glyd_format::Dtype;
use glyd_format::plan::{Inventory, TensorInfo};
use glyd_gpu::fit::{
    Basis, CacheDtype, CannotSay, Component, Model, Needs, NotLoaded, Packing, RUNTIME_BYTES, Request,
    Weights, needs, parse_gpu, weigh,
};
use serde_json::{Value, json};

fn request(context: u64) -> Request {
    Request {
        context: Some(context),
        batch: 1,
        tensor_parallel: 1,
        cache: CacheDtype::Bf16,
        runtime_bytes: RUNTIME_BYTES,
    }
}

fn inventory(tensors: &[(&str, Dtype, &[u64])]) -> Inventory {
    let entry = |(name, dtype, shape): &(&str, Dtype, &[u64])| {
        ((*name).to_owned(), TensorInfo { dtype: *dtype, shape: shape.to_vec() })
    };
    tensors.iter().map(entry).collect()
}

fn weights(config: &Value, tensors: &[(&str, Dtype, &[u64])]) -> Weights {
    let inventory = inventory(tensors);
    let model = Model { config, inventory: &inventory, packing: &Packing::Estimated };
    weigh(&model, &mut |_, _, stated| stated).unwrap()
}

fn token(config: &Value) -> u64 {
    needs(config, &request(1)).unwrap().token_bytes
}

fn cannot_say(config: &Value) -> CannotSay {
    needs(config, &request(8192)).map(|needs| needs.cache_bytes).unwrap_err()
}

/// A plain model: 32 layers, 32 heads of 128, 8 of them with keys and values.
fn llama() -> Value {
    json!({
        "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_size": 4096, "max_position_embeddings": 262_144, "intermediate_size": 14336
    })
}

fn with(mut config: Value, key: &str, value: Value) -> Value {
    config.as_object_mut().unwrap().insert(key.to_owned(), value);
    config
}

fn without(mut config: Value, key: &str) -> Value {
    config.as_object_mut().unwrap().remove(key);
    config
}

fn all(of: &Needs) -> String {
    of.assumed.join("\n")
}

#[test]
fn the_context_is_said_and_is_not_the_longest_there_is() {
    let unsaid = Request { context: None, ..request(0) };
    let found = needs(&llama(), &unsaid).unwrap();
    assert_eq!((found.context, found.token_bytes), (8192, 131_072));
    assert!(all(&found).contains("context 8192 tokens"), "{found:?}");
    let short = needs(&with(llama(), "max_position_embeddings", 2048.into()), &unsaid).unwrap();
    assert_eq!(short.context, 2048);
    let long = needs(&llama(), &request(300_000)).unwrap();
    assert!(all(&long).contains("longer than the 262144"), "{long:?}");
    let scaled = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 131_072});
    let long = needs(&with(llama(), "rope_scaling", scaled), &request(300_000)).unwrap();
    assert!(!all(&long).contains("longer than"), "{long:?}");
    let asked = needs(&without(llama(), "max_position_embeddings"), &unsaid).unwrap_err();
    assert!(asked.to_string().contains("say --context"), "{asked}");
}

#[test]
fn experts_that_are_not_active_take_memory_too() {
    let config = json!({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2});
    let mut tensors: Vec<(String, [u64; 2])> = Vec::new();
    for expert in 0..8 {
        tensors.push((format!("model.layers.0.block_sparse_moe.experts.{expert}.w1.weight"), [32_768, 4096]));
    }
    tensors.push(("model.layers.0.self_attn.q_proj.weight".to_owned(), [32_768, 3276]));
    let tensors: Vec<(&str, Dtype, &[u64])> =
        tensors.iter().map(|(name, shape)| (name.as_str(), Dtype::BF16, shape.as_slice())).collect();
    let weights = weights(&config, &tensors);
    let bytes = (8 * 32_768 * 4096 + 32_768 * 3276) * 2;
    assert_eq!(weights.bf16.on_each(1), bytes);
    let card = parse_gpu("1GB").unwrap();
    assert_eq!(card.total_bytes, 1_000_000_000);
    assert!(weights.mma.on_each(1) > card.total_bytes);
}

#[test]
fn weights_are_the_bytes_that_are_stored() {
    let quantized = [
        ("model.layers.0.q.qweight", Dtype::I32, &[25_000, 1000][..]),
        ("model.layers.0.q.scales", Dtype::F16, &[2500, 1000]),
    ];
    let quantized_config =
        json!({"quantization_config": {"quant_method": "gptq", "bits": 4}, "dtype": "float16"});
    for config in [quantized_config, json!({"torch_dtype": "bfloat16"}), json!({})] {
        let weights = weights(&config, &quantized);
        for bytes in [weights.bf16, weights.mma, weights.mma12] {
            assert_eq!(bytes.on_each(1), 105_000_000);
        }
        assert_eq!(weights.basis, Basis::NoGain);
        assert!(weights.notes.join("\n").contains("no gain"), "{weights:?}");
    }
    let wide = weights(&json!({"dtype": "bfloat16"}), &[("a.weight", Dtype::F32, &[25_000, 1000])]);
    assert_eq!((wide.bf16.on_each(1), wide.mma.on_each(1)), (100_000_000, 100_000_000));
    assert!(wide.notes.join("\n").contains("50000000 bytes if"), "{wide:?}");
}

#[test]
fn heads_have_the_width_that_the_config_gives() {
    let config = json!({
        "model_type": "llama", "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_size": 2560, "head_dim": 128
    });
    assert_eq!(token(&config), 147_456);
    assert_eq!(token(&without(config.clone(), "head_dim")), 92_160);
    assert_eq!(token(&with(config.clone(), "num_key_value_heads", Value::Null)), 589_824);
    assert_eq!(token(&without(config, "model_type")), 147_456);
}

#[test]
fn latents_are_not_charged_as_heads_and_unknown_ones_not_at_all() {
    let config = json!({
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "num_attention_heads": 128, "hidden_size": 7168, "q_lora_rank": 1536, "qk_nope_head_dim": 128
    });
    assert_eq!(token(&config), 70_272);
    let variant = with(without(config, "kv_lora_rank"), "compress_ratios", json!([0, 4, 128]));
    for config in [variant.clone(), with(variant.clone(), "model_type", "deepseek_v9".into())] {
        let fault = cannot_say(&config);
        assert!(fault.keys.contains(&"compress_ratios".to_owned()), "{fault}");
        assert!(fault.to_string().contains("recognised"), "{fault}");
        assert!(fault.bound.is_some_and(|bound| bound >= 61 * 128 * 192 * 4), "{fault}");
    }
}

#[test]
fn states_are_counted_once_and_do_not_grow() {
    let linear = json!({
        "model_type": "qwen3_next", "num_hidden_layers": 64, "full_attention_interval": 4, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2048, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4
    });
    let at = |context, batch| needs(&linear, &Request { batch, ..request(context) }).unwrap();
    assert_eq!(at(1, 1).token_bytes, 65_536);
    let state = 48 * (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 4 * 2);
    assert_eq!(
        (at(1, 1).fixed_bytes, at(131_072, 1).fixed_bytes, at(1, 3).fixed_bytes),
        (state, state, 3 * state)
    );
    assert_eq!(at(100, 1).cache_bytes, state + 6_553_600);
    let letters = json!({
        "model_type": "nemotron_h", "num_hidden_layers": 4, "hybrid_override_pattern": "M-M*",
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4
    });
    let found = needs(&letters, &request(1)).unwrap();
    let kinds: Vec<(&str, u64)> = found.layers.iter().map(|layers| (layers.kind, layers.count)).collect();
    assert_eq!(kinds, [("state", 2), ("none", 1), ("full", 1)]);
    assert_eq!(found.token_bytes, 2 * 8 * 128 * 2);
}

#[test]
fn a_need_of_47_gib_fits_an_a6000_and_not_an_l40s() {
    let need = 47 << 30;
    assert!(need > parse_gpu("L40S").unwrap().total_bytes);
    let spare = parse_gpu("RTX A6000").unwrap().total_bytes - need;
    assert!(spare * 100 < parse_gpu("RTX A6000").unwrap().total_bytes * glyd_gpu::fit::TIGHT_PERCENT);
}

#[test]
fn the_language_models_numbers_are_read_wherever_they_are() {
    let text = json!({"model_type": "llama", "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096});
    let tower = json!({"model_type": "llava", "num_hidden_layers": 27, "text_config": text.clone()});
    let deep = json!({"model_type": "qwen2_5_omni", "thinker_config": {"text_config": with(text.clone(), "model_type", "qwen2".into())}});
    let older = json!({"model_type": "gpt2", "n_layer": 40, "n_head": 8, "n_embd": 1024});
    for config in [tower, deep, json!({"llm_config": text.clone()}), older] {
        assert_eq!(token(&config), 40 * 2 * 8 * 128 * 2, "{config}");
    }
    for key in ["num_hidden_layers", "num_attention_heads"] {
        let fault = cannot_say(&without(llama(), key));
        assert!(fault.to_string().contains(&format!("no `{key}`")), "{fault}");
    }
    let weights = weights(
        &json!({"model_type": "mystery"}),
        &[
            ("vision_tower.a.weight", Dtype::BF16, &[64, 64]),
            ("model.a.weight", Dtype::BF16, &[64, 64]),
            ("audio_tower.a.weight", Dtype::F32, &[64, 64]),
        ],
    );
    let parts: BTreeMap<Component, u64> =
        weights.components.iter().map(|((part, _), tally)| (*part, tally.bytes)).collect();
    assert_eq!(
        parts,
        [(Component::Language, 8192), (Component::Vision, 8192), (Component::Audio, 16_384)].into()
    );
}

#[test]
fn keys_that_a_part_leaves_out_are_its_classs() {
    // As gemma-3-4b and llava-1.5-7b are published.
    let gemma = json!({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}});
    let found = needs(&gemma, &request(8192)).unwrap();
    assert_eq!(found.token_bytes, 5 * 2 * 4 * 256 * 2);
    assert!(all(&found).contains("`head_dim` is not in config.json: 256"), "{found:?}");
    let llava = json!({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}});
    assert_eq!(token(&llava), 32 * 2 * 32 * 128 * 2);
}

#[test]
fn tensor_parallelism_divides_heads_down_to_one_each() {
    let config = with(llama(), "num_key_value_heads", 4.into());
    let cache = |cards| {
        needs(&config, &Request { tensor_parallel: cards, ..request(1000) }).map(|needs| needs.cache_bytes)
    };
    let whole = cache(1).unwrap();
    assert_eq!((cache(2).unwrap(), cache(4).unwrap(), cache(8).unwrap()), (whole / 2, whole / 4, whole / 4));
    let eight = with(llama(), "num_attention_heads", 8.into());
    let fault = needs(&eight, &Request { tensor_parallel: 3, ..request(1000) }).unwrap_err();
    assert!(fault.to_string().contains("8 heads are not divisible by 3"), "{fault}");
    let halves =
        weights(&llama(), &[("a.weight", Dtype::BF16, &[128, 64]), ("norm.weight", Dtype::BF16, &[64])]);
    assert_eq!(halves.bf16.on_each(2), 128 * 64 + 128);
    assert!(glyd_gpu::fit::parallel_note(&halves, 2).unwrap().contains("64 rows and 16 columns"));
}

#[test]
fn what_is_not_loaded_is_told_apart() {
    let config = with(llama(), "num_hidden_layers", 1.into());
    let weights = weights(
        &config,
        &[
            ("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[64, 64]),
            ("model.layers.1.mlp.up_proj.weight", Dtype::BF16, &[64, 64]),
            ("mtp.layers.0.mlp.up_proj.weight", Dtype::BF16, &[64, 64]),
            ("visual.blocks.7.attn.weight", Dtype::BF16, &[64, 64]),
            ("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::F32, &[64]),
        ],
    );
    assert_eq!(weights.not_loaded[&NotLoaded::MultiTokenPrediction].bytes, 2 * 8192);
    assert_eq!(weights.not_loaded[&NotLoaded::Buffer].bytes, 256);
    assert_eq!((weights.parameters, weights.not_loaded_bytes()), (2 * 4096, 2 * 8192 + 256));
    let parts: Vec<&str> = weights.components.keys().map(|(part, _)| part.name()).collect();
    assert_eq!(parts, ["language model", "vision"]);
}

#[test]
fn a_tied_head_is_counted_once_where_the_config_says_so_and_twice_where_only_its_class_does() {
    let mut tensors = Vec::new();
    for (name, shape) in [
        ("model.embed_tokens.weight", vec![128, 64]),
        ("lm_head.weight", vec![128, 64]),
        ("model.norm.weight", vec![64]),
        ("model.layers.0.input_layernorm.weight", vec![64]),
        ("model.layers.0.post_attention_layernorm.weight", vec![64]),
        ("model.layers.0.self_attn.q_proj.weight", vec![64, 64]),
        ("model.layers.0.self_attn.k_proj.weight", vec![64, 64]),
        ("model.layers.0.self_attn.v_proj.weight", vec![64, 64]),
        ("model.layers.0.self_attn.o_proj.weight", vec![64, 64]),
        ("model.layers.0.mlp.gate_proj.weight", vec![64, 64]),
        ("model.layers.0.mlp.up_proj.weight", vec![64, 64]),
        ("model.layers.0.mlp.down_proj.weight", vec![64, 64]),
    ] {
        tensors.push((name, shape));
    }
    let tensors: Vec<(&str, Dtype, &[u64])> =
        tensors.iter().map(|(name, shape)| (*name, Dtype::BF16, shape.as_slice())).collect();
    let config = with(with(llama(), "num_hidden_layers", 1.into()), "tie_word_embeddings", true.into());
    let tied = weights(&config, &tensors);
    assert_eq!(tied.parameters, 128 * 64 + 3 * 64 + 7 * 4096, "{tied:?}");
    assert_eq!(tied.not_loaded[&NotLoaded::Tied].bytes, 128 * 64 * 2);
    let inventory = inventory(&tensors);
    let model = Model { config: &config, inventory: &inventory, packing: &Packing::Estimated };
    let apart = weigh(&model, &mut |_, _, _| false).unwrap();
    assert_eq!(apart.parameters, tied.parameters + 128 * 64);
    assert!(apart.notes.join("\n").contains("is counted, though config.json may tie it"), "{apart:?}");
    // Seven Linears and, untied, the output layer are packed.
    let packed = 7 * 4096 * 10_850_u64 / 8000;
    assert!(tied.mma.on_each(1).abs_diff(packed + (128 * 64 + 3 * 64) * 2) <= 7, "{tied:?}");
}

#[test]
fn layers_that_share_keys_and_values_do_not_load_their_own() {
    let config = json!({"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text", "num_hidden_layers": 4, "num_kv_shared_layers": 2}});
    let weights = weights(
        &config,
        &[
            ("model.language_model.layers.1.self_attn.k_proj.weight", Dtype::BF16, &[64, 64]),
            ("model.language_model.layers.2.self_attn.k_proj.weight", Dtype::BF16, &[64, 64]),
            ("model.language_model.layers.3.self_attn.q_proj.weight", Dtype::BF16, &[64, 64]),
        ],
    );
    assert_eq!(weights.not_loaded[&NotLoaded::SharedKeyValues].bytes, 8192);
    assert_eq!(weights.parameters, 2 * 4096);
}

#[test]
fn quantized_parameters_are_counted_and_scales_are_not() {
    let count = |method: Value, tensors: &[(&str, Dtype, &[u64])]| {
        weights(&json!({ "quantization_config": method }), tensors).parameters
    };
    let blocks = [
        ("a.gate_up_proj_blocks", Dtype::U8, &[4, 64, 16][..]),
        ("a.gate_up_proj_scales", Dtype::U8, &[4, 64]),
    ];
    assert_eq!(count(json!({"quant_method": "mxfp4"}), &blocks), 4 * 64 * 32);
    let fp8 = [("a.weight", Dtype::F8_E4M3, &[64, 64][..]), ("a.weight_scale_inv", Dtype::F32, &[1, 1])];
    assert_eq!(count(json!({"quant_method": "fp8"}), &fp8), 4096);
    let awq = [
        ("a.qweight", Dtype::I32, &[64, 8][..]),
        ("a.qzeros", Dtype::I32, &[1, 8]),
        ("a.scales", Dtype::F16, &[1, 64]),
    ];
    assert_eq!(count(json!({"quant_method": "awq", "bits": 4}), &awq), 64 * 64);
}

#[test]
fn families_of_their_own_are_known_beyond_the_golden_ones() {
    // falcon-40b with its key and value heads, Mixtral with none sliding, Mistral's absent and null window.
    let falcon = json!({"model_type": "falcon", "new_decoder_architecture": true, "num_kv_heads": 8, "num_attention_heads": 128, "hidden_size": 8192, "num_hidden_layers": 60});
    assert_eq!(token(&falcon), 60 * 2 * 8 * 64 * 2);
    let mistral = with(without(llama(), "intermediate_size"), "model_type", "mistral".into());
    let at = |config: &Value| needs(config, &request(8192)).unwrap().cache_bytes;
    assert_eq!(at(&mistral), 4096 * 131_072);
    assert_eq!(at(&with(mistral, "sliding_window", Value::Null)), 8192 * 131_072);
    let qwen = with(
        with(with(llama(), "model_type", "qwen2".into()), "use_sliding_window", false.into()),
        "sliding_window",
        4096.into(),
    );
    assert_eq!(at(&qwen), 8192 * 131_072);
    let slides = with(with(qwen, "use_sliding_window", true.into()), "max_window_layers", 16.into());
    assert_eq!(at(&slides), (8192 + 4096) * 131_072 / 2);
    let whisper = json!({"model_type": "whisper", "decoder_layers": 32, "decoder_attention_heads": 20, "d_model": 1280});
    assert_eq!(at(&whisper), 32 * 2 * 1280 * 2 * (8192 + 1500));
}

#[test]
fn what_is_not_recognised_is_named() {
    let fault = cannot_say(&with(
        with(llama(), "model_type", "brand_new".into()),
        "auto_map",
        json!({"AutoConfig": "x.Y"}),
    ));
    assert_eq!(fault.keys, ["auto_map"]);
    let fault = cannot_say(&with(llama(), "layer_types", json!(vec!["warped_attention"; 32])));
    assert!(fault.to_string().contains("`warped_attention`"), "{fault}");
    let fault = cannot_say(&with(llama(), "sparse_attention_config", json!({"a": 1})));
    assert_eq!(fault.keys, ["sparse_attention_config"]);
    assert!(needs(&with(llama(), "model_type", "brand_new".into()), &request(1)).is_ok());
}

/// The tensors of a dense model, as its publisher stores them: with the output layer also where it is tied.
fn dense(config: &Value) -> Inventory {
    let field = |key: &str| config[key].as_u64().unwrap();
    let (hidden, inner, heads) =
        (field("hidden_size"), field("intermediate_size"), field("num_attention_heads"));
    let width = config["head_dim"].as_u64().unwrap_or(hidden / heads);
    let (q, kv) = (heads * width, field("num_key_value_heads") * width);
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![field("vocab_size"), hidden]),
        ("lm_head.weight".to_owned(), vec![field("vocab_size"), hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..field("num_hidden_layers") {
        let mut add = |name: &str, shape: Vec<u64>| {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        };
        add("input_layernorm", vec![hidden]);
        add("post_attention_layernorm", vec![hidden]);
        add("self_attn.q_proj", vec![q, hidden]);
        add("self_attn.k_proj", vec![kv, hidden]);
        add("self_attn.v_proj", vec![kv, hidden]);
        add("self_attn.o_proj", vec![hidden, q]);
        add("mlp.gate_proj", vec![inner, hidden]);
        add("mlp.up_proj", vec![inner, hidden]);
        add("mlp.down_proj", vec![hidden, inner]);
        if config["model_type"] == "qwen3" {
            add("self_attn.q_norm", vec![width]);
            add("self_attn.k_norm", vec![width]);
        }
    }
    tensors.into_iter().map(|(name, shape)| (name, TensorInfo { dtype: Dtype::BF16, shape })).collect()
}

#[test]
fn golden_parameters_and_bytes_come_from_the_headers() {
    let mut counted = 0;
    for line in include_str!("../../fixtures/fit/models.jsonl").lines() {
        let model: Value = serde_json::from_str(line).unwrap();
        let config = &model["config"];
        if !["qwen3", "llama"].contains(&config["model_type"].as_str().unwrap()) {
            continue;
        }
        let inventory = dense(config);
        let model_of = Model { config, inventory: &inventory, packing: &Packing::Estimated };
        let weights = weigh(&model_of, &mut |_, _, stated| stated).unwrap();
        let parameters = model["params"].as_u64().unwrap();
        assert_eq!(weights.parameters, parameters, "{}", model["model"]);
        assert_eq!(weights.bf16.on_each(1), parameters * 2, "{}", model["model"]);
        assert!(weights.notes.is_empty(), "{}: {:?}", model["model"], weights.notes);
        counted += 1;
    }
    assert_eq!(counted, 7);
}
