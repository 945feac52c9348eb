//! `glyd pack`: what is packed, what is refused, and that what is refused leaves nothing behind.

use std::fs;

use glyd_fixtures::Recipe;
use glyd_format::Digest;

use crate::util::Folder;

#[test]
fn both_layouts_merged_and_not_are_the_golden_files() {
    let recipe = Recipe::named("llama");
    for (variant, arguments) in [
        ("mma", &[][..]),
        ("mma12", &["--layout", "mma12"][..]),
        ("mma-nomerge", &["--no-merge", "--threads", "1"][..]),
    ] {
        let Some(expected) = recipe.expected.get(variant) else { continue };
        let folder = Folder::new();
        recipe.make(&folder.path(recipe.repo()));
        folder.run([&["pack", &recipe.repo(), "out"], arguments].concat()).ends(0).says(&[]);
        for (file, sha256) in &expected.files {
            let bytes = fs::read(folder.path("out").join(file)).unwrap();
            assert_eq!(Digest::of(&bytes).to_string(), *sha256, "{variant}: {file}");
        }
    }
}

#[test]
fn the_summary_says_what_was_done() {
    let folder = Folder::with_model("llama");
    fs::write(folder.path("model/LICENSE"), "free").unwrap();
    let ran = folder.run(["pack", "model", "out"]).ends(0);
    assert_eq!(ran.stderr, "");
    ran.prints(&[
        "packed `model` into `out`: glyd-v1, mma\n",
        "  packed   ",
        " bits a weight\n",
        "  as is    ",
        "(embedding)",
        "(1-D)",
        "  copied   2 files: ",
        "  in all   ",
        " %), in ",
        "B/s)",
    ]);
}

#[test]
fn a_dry_run_writes_nothing() {
    let folder = Folder::with_model("llama");
    let ran = folder.run(["pack", "model", "out", "--dry-run", "--layout", "mma12"]).ends(0);
    ran.prints(&["would pack `model` into `out`: glyd-v3, mma12\n", "  to copy  1 file: "]);
    assert!(!folder.path("out").exists());
}

#[test]
fn what_is_not_saved_is_warned_of() {
    let folder = Folder::new();
    Recipe::named("edge-unused").make(&folder.path("model"));
    let warning = ["glyd: warning: ", " of the source are not saved, whole or in part: --json lists them"];
    folder.run(["pack", "model", "out"]).ends(0).says(&warning);
    assert_eq!(folder.run(["pack", "model", "out", "--quiet"]).ends(0).stderr, "");
}

#[test]
fn quiet_says_nothing() {
    let folder = Folder::with_model("llama");
    fs::write(folder.path("model/training.bin"), "").unwrap();
    let ran = folder.run(["pack", "model", "out", "--quiet"]).ends(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    let ran = folder.run(["verify", "out", "-q"]).ends(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
}

#[test]
fn shards_begin_where_asked() {
    let folder = Folder::with_model("llama");
    folder.run(["pack", "model", "out", "--shard-size", "64KiB"]).ends(0);
    let names = folder.names("out");
    let shards = names.iter().filter(|name| name.starts_with("model-")).count();
    assert!(shards > 2, "{names:?}");
    assert!(names.contains(&format!("model-{shards:05}-of-{shards:05}.safetensors")), "{names:?}");
    assert!(names.contains(&"model.safetensors.index.json".to_owned()), "{names:?}");
    assert!(!names.contains(&"model.safetensors".to_owned()), "{names:?}");
    folder.run(["verify", "out"]).ends(0);
}

#[test]
fn a_cast_is_told() {
    let folder = Folder::with_model("edge-fp32-linear");
    folder.run(["pack", "model", "plain"]).ends(0).prints(&["(dtype F32)"]);
    folder.run(["pack", "model", "cast", "--cast"]).ends(0).prints(&["  cast     ", "bits were lost"]);
    folder.run(["verify", "plain"]).ends(0);
    folder.run(["verify", "cast"]).ends(0);
}

#[test]
fn a_model_that_is_quantized_has_nothing_to_pack() {
    let folder = Folder::with_model("llama");
    folder.edit("model/config.json", |config| {
        config.insert("quantization_config".into(), serde_json::json!({ "quant_method": "awq" }));
    });
    let ran = folder.run(["pack", "model", "out"]).ends(1);
    assert_eq!(ran.stdout, "");
    ran.says(&["glyd: nothing to pack in `model`: it is quantized already (quantization_config, `awq`)"]);
    assert!(!folder.path("out").exists());
}

#[test]
fn a_model_without_bf16_has_nothing_to_pack() {
    let folder = Folder::new();
    folder.checkpoint("model", r#"{"model_type": "foo_bar"}"#, &[("a.weight", "F32", &[64, 16])]);
    let ran = folder.run(["pack", "model", "out"]).ends(1);
    ran.says(&["nothing to pack in `model`: 0 of its 4096 bytes are bf16", "`--cast`"]);
    assert!(!folder.path("out").exists());
    folder.run(["pack", "model", "out", "--cast"]).ends(0);
}

#[test]
fn bf16_of_no_shape_to_pack_is_saved_with_a_note() {
    let folder = Folder::new();
    folder.checkpoint("model", r#"{"model_type": "foo_bar"}"#, &[("a.weight", "BF16", &[63, 16])]);
    let ran = folder.run(["pack", "model", "out"]).ends(0);
    ran.prints(&["  packed   0 matrices", "(rows 63 are not a multiple of 64)"]);
    folder.run(["verify", "out"]).ends(0);
}

#[test]
fn an_unknown_type_with_odd_names_is_packed_with_a_note() {
    let folder = Folder::new();
    let names = ["模型.ü ☃.weight", "a b/c.weight", "line\nbreak.weight", "\u{1b}[31mred.weight", "lone"];
    let tensors: Vec<(&str, &str, &[u64])> =
        names.iter().map(|name| (*name, "BF16", &[64, 16][..])).collect();
    folder.checkpoint("model", r#"{"model_type": "foo_bar"}"#, &tensors);
    let ran = folder.run(["pack", "model", "out"]).ends(0);
    ran.prints(&["  packed   4 matrices", "  note     ", "foo_bar", "is not known"]);
    folder.run(["verify", "out"]).ends(0).prints(&["good"]);
    let ran = folder.run(["inspect", "out"]).ends(0).prints(&["line\\nbreak", "\\u{1b}[31mred", "模型.ü ☃"]);
    assert!(!ran.stdout.contains('\u{1b}'), "{ran:#?}");
}

#[test]
fn a_source_that_is_not_there_is_named() {
    let folder = Folder::with_model("llama");
    let ran = folder.run(["pack", "Qwen3-8B", "out"]).ends(2);
    assert_eq!(ran.stdout, "");
    ran.says(&["glyd: `Qwen3-8B`: expected the folder of a checkpoint, found none of that name"]);
    folder.run(["pack", "model/model.safetensors", "out"]).ends(2).says(&["found a file; name the folder"]);
    fs::create_dir(folder.path("empty")).unwrap();
    folder.run(["pack", "empty", "out"]).ends(2).says(&["`empty`", "an empty folder"]);
    assert!(!folder.path("out").exists());
}

#[test]
fn a_source_that_lacks_tensors_is_refused_by_their_names() {
    let folder = Folder::with_model("edge-missing-norm");
    folder.run(["pack", "model", "out"]).ends(2).says(&["model.layers.1.input_layernorm.weight"]);
    assert!(!folder.path("out").exists());
}

#[test]
fn bad_shards_are_named_all_at_once() {
    let folder = Folder::with_model("edge-sharded");
    fs::remove_file(folder.path("model/model-00001-of-00002.safetensors")).ok();
    let shards: Vec<String> =
        folder.names("model").into_iter().filter(|name| name.ends_with(".safetensors")).collect();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    shards.iter().for_each(|shard| fs::write(folder.path("model").join(shard), pointer).unwrap());
    let named: Vec<&str> = shards.iter().map(String::as_str).collect();
    let ran = folder.run(["pack", "model", "out"]).ends(2).says(&named).says(&["LFS"]);
    assert!(ran.stderr.lines().count() >= shards.len(), "{ran:#?}");
    assert!(!folder.path("out").exists());
}

#[test]
fn a_packed_checkpoint_is_no_source() {
    let folder = Folder::with_packed(&[]);
    let ran = folder.run(["pack", "packed", "again"]).ends(2);
    ran.says(&["`packed`", "packed already", "name the model it was packed from"]);
    assert!(!folder.path("again").exists());
}

#[test]
fn an_output_folder_with_other_files_is_refused() {
    let folder = Folder::with_model("llama");
    fs::create_dir(folder.path("out")).unwrap();
    fs::write(folder.path("out/thesis.tex"), "mine").unwrap();
    let ran = folder.run(["pack", "model", "out"]).ends(2);
    ran.says(&["cannot write to `out`", "`thesis.tex` among them", "name a new or empty folder"]);
    assert_eq!(folder.names("out"), ["thesis.tex"]);
    fs::write(folder.path("file"), "mine").unwrap();
    folder.run(["pack", "model", "file"]).ends(2).says(&["`file`"]);
    folder.run(["pack", "model", "not/there/yet"]).ends(2).says(&["`not/there/yet`"]);
}

#[test]
fn an_output_that_is_the_source_is_refused() {
    let folder = Folder::with_model("llama");
    let before = folder.files("");
    std::os::unix::fs::symlink("model", folder.path("link")).unwrap();
    for out in ["model", "model/", "./model/../model", "model/inside", "link", "link/inside", "."] {
        let ran = folder.run(["pack", "model", out]).ends(2);
        ran.says(&["cannot write to", "name a folder apart from the source"]);
    }
    fs::remove_file(folder.path("link")).unwrap();
    assert_eq!(folder.files(""), before);
}

#[test]
fn an_old_checkpoint_is_replaced_whole() {
    let folder = Folder::with_packed(&["--shard-size", "64KiB"]);
    let sharded = folder.names("packed");
    folder.run(["pack", "model", "packed", "--layout", "mma12"]).ends(0);
    assert_eq!(folder.names("packed"), ["config.json", "glyd.json", "model.safetensors"]);
    folder.run(["verify", "packed"]).ends(0).prints(&["glyd-v3, mma12"]);
    folder.run(["pack", "model", "packed", "--shard-size", "64KiB"]).ends(0);
    assert_eq!(folder.names("packed"), sharded);
    folder.run(["verify", "packed"]).ends(0).prints(&["glyd-v1, mma"]);
}

#[test]
fn the_same_source_gives_the_same_bytes() {
    let folder = Folder::with_packed(&["--threads", "1"]);
    folder.run(["pack", "model", "again", "--threads", "7"]).ends(0);
    assert!(folder.files("packed") == folder.files("again"));
}
