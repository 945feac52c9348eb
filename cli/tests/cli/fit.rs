//! `glyd fit`, of folders.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::util::{Folder, Ran};

/// A plain model of an unknown size of text: 2 layers, one matrix.
const CONFIG: &str = r#"{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
    "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 4096, "time_step_limit": [0.0, Infinity]}"#;

fn small() -> Folder {
    let folder = Folder::new();
    folder.checkpoint("model", CONFIG, &[("a.weight", "BF16", &[64, 64]), ("a.norm", "BF16", &[64])]);
    folder
}

fn fit(folder: &Folder, arguments: &[&str]) -> Ran {
    folder.run([&["fit"], arguments].concat())
}

#[test]
fn a_model_and_a_card_have_a_verdict_each() {
    let folder = small();
    let ran = fit(&folder, &["model", "--gpu", "L40S"]).ends(0);
    assert_eq!(ran.stderr, "");
    ran.prints(&[
        "`model` on L40S (44.99 GiB each): 4160 parameters, context 4096 tokens, batch 1\n",
        "  bf16 ",
        "  mma ",
        "  mma12 ",
        "fits",
        "longest context",
        "spare",
        "language model, BF16: 8.32 kB, 2 tensors\n",
        "cache: 256 bytes for each further token",
        "note: packed sizes are estimates",
        "note: runtime 1.50 GiB on each card",
    ]);
    fit(&folder, &["model", "--gpu", "1GiB"]).ends(1).prints(&["no", "-0.50 GiB"]);
    fit(&folder, &["model"]).ends(0).prints(&["needs"]);
    fit(&folder, &["model", "--quiet", "--gpu", "1GiB"]).ends(1).prints(&[]);
}

#[test]
fn a_card_that_is_none_is_refused_with_the_forms_that_there_are() {
    let folder = small();
    for gpu in ["48", "-5GB", "1e999GB", "RTX 1234", ""] {
        let ran = fit(&folder, &["model", "--gpu", gpu]).ends(2);
        ran.says(&["`48GB`", "`48GiB`", "`2x RTX 4090`"]);
    }
    fit(&folder, &["model", "--gpu", "48 gb"])
        .ends(0)
        .prints(&["48GB is taken as 49140 MiB", "L40S 46068 MiB"]);
}

#[test]
fn cards_are_not_one_pool() {
    let folder = small();
    let ran = fit(&folder, &["model", "--gpu", "2x RTX 4090", "--why"]).ends(0);
    ran.prints(&[
        "on 2 x RTX 4090",
        "on one card alone it needs",
        "64 rows and 16 columns",
        "why: mma needs",
    ]);
    let document = fit(&folder, &["model", "--gpu", "24GB,16GB", "--json"]).ends(0).json();
    assert_eq!(document["gpu"]["total_bytes"], 16_376_u64 << 20);
    assert_eq!((&document["gpu"]["count"], &document["tensor_parallel"]), (&2.into(), &2.into()));
    fit(&folder, &["model", "--gpu", "2x24GB", "--tensor-parallel", "4"])
        .ends(2)
        .says(&["more cards than the 2"]);
    fit(&folder, &["model", "--tensor-parallel", "3"]).ends(2).says(&["4 heads are not divisible by 3"]);
}

#[test]
fn auto_is_judged_by_what_is_free() {
    let folder = small();
    let tool = folder.path("nvidia-smi");
    fs::write(&tool, "#!/bin/sh\necho 'NVIDIA GeForce RTX 4090, 24564, 1024'\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |path: &std::path::Path| {
        let mut command = folder.command(["fit", "model", "--gpu", "auto", "--json"]);
        Ran::of(&command.env("PATH", format!("{}:/bin:/usr/bin", path.display())).output().unwrap())
    };
    let document = run(folder.dir()).ends(1).json();
    assert_eq!(document["gpu"]["total_bytes"], 24_564_u64 << 20);
    assert_eq!(document["gpu"]["free_bytes"], 1024_u64 << 20);
    assert!(document["assumptions"].to_string().contains("judged by what is free"), "{document}");
    fs::write(&tool, "#!/bin/sh\nexit 9\n").unwrap();
    run(folder.dir()).ends(2).says(&["nvidia-smi", "it finds none", "--gpu 48GB"]);
}

#[test]
fn a_need_of_97_percent_is_tight() {
    let folder = small();
    let needs = fit(&folder, &["model", "--json"]).ends(0).json()["needs"]["bf16"].as_u64().unwrap();
    let card = (needs * 100 / 97).to_string();
    fit(&folder, &["model", "--gpu", &card]).ends(0).prints(&["tight", "less than 5 % of the card to spare"]);
    fit(&folder, &["model", "--gpu", &needs.to_string()]).ends(0).prints(&["tight"]);
    let document = fit(&folder, &["model", "--gpu", &(needs - 1).to_string(), "--json"]).ends(0).json();
    assert_eq!(document["fits"], serde_json::json!({"bf16": false, "mma": true, "mma12": true}));
}

#[test]
fn without_its_length_the_context_is_asked_for() {
    let folder = small();
    folder.checkpoint(
        "short",
        r#"{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64}"#,
        &[("a.weight", "BF16", &[64, 64])],
    );
    fit(&folder, &["short"]).ends(2).says(&["say --context", "the weights alone take"]);
    fit(&folder, &["short", "--context", "1000"]).ends(0).prints(&["context 1000 tokens"]);
    fit(&folder, &["model", "--context", "300000"]).ends(0).prints(&["longer than the 4096"]);
    for context in ["0", "-1", "many", "1e9"] {
        fit(&folder, &["model", "--context", context]).ends(2);
    }
}

#[test]
fn all_is_a_table_over_cards_and_good_if_any_fits() {
    let folder = small();
    fit(&folder, &["model", "--gpu", "all"]).ends(0).prints(&["RTX 4090", "L40S", "H200", "tokens"]);
    fit(&folder, &["model", "--gpu", "ALL", "--runtime", "1000"]).ends(1).prints(&["GB300"]);
    let document = fit(&folder, &["model", "--gpu", "all", "--json"]).ends(0).json();
    assert!(document["cards"].as_array().unwrap().iter().any(|card| card["name"] == "B200"));
}

#[test]
fn what_is_counted_is_what_is_packed() {
    let folder = Folder::with_model("llama");
    let measured = fit(&folder, &["model", "--measure", "--json", "--context", "100"]).ends(0).json();
    assert_eq!(measured["weights"]["basis"], "measured");
    for layout in ["mma", "mma12"] {
        folder.run(["pack", "model", layout, "--layout", layout]).ends(0);
        let exact = fit(&folder, &[layout, "--json", "--context", "100"]).ends(0).json();
        let field = format!("{layout}_bytes");
        assert_eq!(exact["weights"]["basis"], "packed");
        assert_eq!(exact["weights"][&field], measured["weights"][&field], "{layout}");
        assert_eq!(exact["weights"]["bf16_bytes"], measured["weights"]["bf16_bytes"]);
        assert_eq!(exact["parameters"], measured["parameters"]);
        let inspected = folder.run(["inspect", layout, "--json"]).ends(0).json();
        let bytes = |name: &str| inspected["bytes"][name].as_u64().unwrap();
        assert_eq!(exact["weights"][&field], bytes("packed") + bytes("plain"));
    }
}

#[test]
fn nothing_is_written_and_damage_is_not_sized() {
    let folder = Folder::with_packed(&[]);
    let before = folder.files("");
    fit(&folder, &["model", "--measure", "--context", "1"]).ends(0);
    fit(&folder, &["packed", "--context", "1"]).ends(0);
    assert_eq!(folder.files(""), before);
    fs::remove_file(folder.path("packed/model.safetensors")).unwrap();
    fit(&folder, &["packed", "--context", "1"]).ends(2).says(&["glyd verify"]);
    fit(&folder, &["none"]).ends(2).says(&["none of that name"]);
    fit(&folder, &["model", "--revision", "main"]).ends(2).says(&["--revision"]);
}

#[test]
fn what_cannot_be_said_names_the_keys() {
    let folder = small();
    let config: Value = serde_json::from_str(&CONFIG.replace("Infinity", "1.0")).unwrap();
    let mut config = config.as_object().unwrap().clone();
    config.insert("compress_ratios".into(), serde_json::json!([0, 4]));
    fs::write(folder.path("model/config.json"), Value::from(config).to_string()).unwrap();
    let ran = fit(&folder, &["model", "--gpu", "48GB", "--json"]).ends(2);
    assert_eq!(ran.json()["error"]["kind"], "unknown");
    ran.says(&["cannot say", "`compress_ratios`", "upper bound: "]);
}
