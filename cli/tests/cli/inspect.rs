//! `glyd inspect`, and `glyd demo`.

use std::fs;

use crate::util::Folder;

#[test]
fn a_packed_checkpoint_is_shown() {
    let folder = Folder::with_packed(&["--layout", "mma12"]);
    let ran = folder.run(["inspect", "packed"]).ends(0);
    assert_eq!(ran.stderr, "");
    ran.prints(&[
        "`packed`: glyd-v3, mma12, packed from `model`\n",
        "shape  bits a weight  bytes a step  exceptions\n",
        "model.layers.0.self_attn.q_proj",
        "model.embed_tokens.weight  BF16 [",
        " packed: ",
        " as they are: ",
    ]);
}

#[test]
fn a_checkpoint_that_is_not_packed_has_its_plan_shown() {
    let folder = Folder::with_model("llama");
    let before = folder.files("");
    folder.run(["inspect", "model"]).ends(0).prints(&[
        "`model`: not packed; `glyd pack` would save\n",
        "  packed   model.layers.0.self_attn.q_proj ",
        "             model.layers.0.self_attn.v_proj.weight\n",
        "  as is    model.embed_tokens.weight BF16 [",
        " to pack: ",
    ]);
    assert_eq!(folder.files(""), before);
}

#[test]
fn damage_that_the_headers_show_is_told() {
    let folder = Folder::with_packed(&[]);
    fs::remove_file(folder.path("packed/model.safetensors")).unwrap();
    folder.run(["inspect", "packed"]).ends(1).prints(&["damage (files): `packed`"]);
    let document = folder.run(["inspect", "packed", "--json"]).ends(1).json();
    assert_eq!(document["findings"][0]["rule"], "files");
}

#[test]
fn a_folder_that_holds_no_checkpoint_is_refused() {
    let folder = Folder::new();
    folder.run(["inspect", "."]).ends(2).says(&["`.`", "an empty folder"]);
    folder.run(["inspect", "none"]).ends(2).says(&["found none of that name"]);
}

#[test]
fn the_demo_packs_verifies_and_catches_a_bit() {
    let folder = Folder::new();
    let ran = folder.run(["demo", "--keep", "kept"]).ends(0);
    assert_eq!(ran.stderr, "");
    assert_eq!(ran.stdout.matches("verified: good").count(), 2, "{ran:#?}");
    assert_eq!(ran.stdout.matches("verified: damaged").count(), 2, "{ran:#?}");
    ran.prints(&["layout mma:", "layout mma12:", " % of bf16", "damage (", "kept in `kept`"]);
    for layout in ["mma", "mma12"] {
        folder.run(["verify", &format!("kept/{layout}")]).ends(0);
    }
    let again = folder.run(["demo", "--keep", "kept"]).ends(2);
    again.says(&["`kept` is not empty: --keep takes a new or empty folder"]);
}

#[test]
fn the_demo_leaves_nothing_behind() {
    let folder = Folder::new();
    let output = folder.command(["demo"]).env("TMPDIR", folder.dir()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(folder.names(""), Vec::<String>::new());
}

#[test]
fn the_readme_shows_what_the_demo_prints() {
    let folder = Folder::new();
    let ran = folder.run(["demo"]).ends(0);
    let readme = include_str!("../../../README.md");
    let shown = readme.lines().filter(|line| {
        ["made a model", "packed, layout", "verified: ", "one bit flipped"]
            .iter()
            .any(|head| line.starts_with(head))
    });
    let shown: Vec<&str> = shown.collect();
    assert_eq!(shown.len(), 5);
    ran.prints(&shown);
}
