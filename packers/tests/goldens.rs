//! Recipes packed, and every file held to the sha256 of the one that the reference implementation
//! writes. `fixtures/README.md` says where they come from, and how more of them are run.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test may fail, and says what it skips")]

use std::path::{Path, PathBuf};

use glyd_fixtures::Recipe;
use glyd_fixtures::recipe::Expected;
use glyd_format::manifest::Source;
use glyd_format::{Checkpoint, Digest, Layout, Manifest};
use glyd_packers::{Options, SHARD_BYTES, pack};

/// Recipes whose goldens were made by a loader that casts what is not bf16.
const CAST: [&str; 3] = ["edge-dtypes", "edge-fp32-linear", "edge-scalar-buffers"];

/// Recipes whose goldens hold tensors that the reference made up, or fewer experts than it says: ours
/// refuses them, and names what is missing.
const REFUSED: [(&str, &str); 4] = [
    ("edge-missing-expert", "experts"),
    ("edge-missing-group", "model.layers.1.self_attn.k_proj.weight"),
    ("edge-missing-norm", "model.layers.1.input_layernorm.weight"),
    ("edge-untie-unsaid", "lm_head.weight"),
];

/// Recipes saved without what they lack, which a note names.
const NOTED: [(&str, &str); 2] =
    [("edge-missing-bias", "q_proj.bias"), ("edge-missing-buffer", "self_attn.diagonal_decay")];

fn options(recipe: &Recipe, variant: &str, threads: usize) -> Options {
    Options {
        layout: if variant.starts_with("mma12") { Layout::Mma12 } else { Layout::Mma },
        merge: !variant.ends_with("nomerge"),
        cast: CAST.contains(&recipe.name.as_str()),
        shard_bytes: recipe
            .expected
            .get(variant)
            .and_then(|expected| expected.shard_bytes)
            .unwrap_or(SHARD_BYTES),
        threads: Some(threads),
        source: Source { repo: recipe.repo().into_bytes(), revision: None },
    }
}

/// Makes the recipe's checkpoint below `dir`; returns its folder.
fn make(recipe: &Recipe, dir: &Path) -> PathBuf {
    let source = dir.join(recipe.repo());
    recipe.make(&source);
    source
}

fn packed(
    recipe: &Recipe,
    variant: &str,
    threads: usize,
    dir: &Path,
) -> Result<(PathBuf, Vec<String>), String> {
    let source = make(recipe, dir);
    let out = dir.join(format!("{variant}-{threads}"));
    let checkpoint = Checkpoint::open(&source).map_err(|error| error.to_string())?;
    let summary = pack(&checkpoint, &out, &options(recipe, variant, threads), &())
        .map_err(|error| error.to_string())?;
    Ok((out, summary.notes))
}

/// What of `expected` the packed checkpoint in `out` is not.
fn differences(out: &Path, expected: &Expected) -> Vec<String> {
    let mut differences = Vec::new();
    for (name, sha256) in &expected.files {
        let found = std::fs::read(out.join(name))
            .map_or("no such file".to_owned(), |bytes| Digest::of(&bytes).to_string());
        if found != *sha256 {
            differences.push(format!("{name}: {found}"));
        }
    }
    let weights =
        std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let weights = weights.filter(|name| name.starts_with("model") || name == "glyd.json");
    differences.extend(
        weights.filter(|name| !expected.files.contains_key(name)).map(|name| format!("{name}: too many")),
    );
    if !differences.is_empty() {
        let manifest = glyd_format::manifest::ReadManifest::read(&out.join("glyd.json"));
        let Manifest { packs, tensors, .. } = manifest.unwrap().manifest;
        let packs: Vec<String> = packs.into_iter().map(|(name, _)| name).collect();
        let tensors: Vec<String> = tensors.unwrap().into_iter().map(|(name, _)| name).collect();
        differences.push(format!(
            "packs {}, tensors {}",
            packs == expected.packs,
            tensors == expected.tensors
        ));
    }
    differences
}

/// What a recipe's packs are not, of what they must be.
fn check(recipe: &Recipe) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let failed = |variant: &str, what: String| format!("{} {variant}: {what}", recipe.name);
    let list = |names: &[(&str, &'static str)]| {
        names.iter().find(|(name, _)| *name == recipe.name).map(|(_, what)| *what)
    };
    if let Some(missing) = list(&REFUSED) {
        return match packed(recipe, "mma", 2, dir.path()) {
            Err(message) if message.contains(missing) => Vec::new(),
            other => vec![failed("mma", format!("not refused, naming {missing}: {other:?}"))],
        };
    }
    if let Some(missing) = list(&NOTED) {
        return match packed(recipe, "mma", 2, dir.path()) {
            Ok((_, notes)) if notes.iter().any(|note| note.contains(missing)) => Vec::new(),
            other => vec![failed("mma", format!("no note of {missing}: {other:?}"))],
        };
    }
    if recipe.fails.is_some() || recipe.random.is_some() || recipe.expected.is_empty() {
        let refused = packed(recipe, "mma", 2, dir.path()).is_err();
        return if refused { Vec::new() } else { vec![failed("mma", "not refused".to_owned())] };
    }
    let mut failures = Vec::new();
    for (variant, expected) in &recipe.expected {
        match packed(recipe, variant, 2, dir.path()) {
            Ok((out, _)) => {
                failures.extend(differences(&out, expected).into_iter().map(|what| failed(variant, what)));
            }
            Err(message) => failures.push(failed(variant, message)),
        }
    }
    failures
}

fn check_all(recipes: &[Recipe]) {
    let failures: Vec<String> = recipes.iter().flat_map(check).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_recipe_packs_to_the_bytes_of_the_reference() {
    let recipes = Recipe::all();
    assert!(recipes.len() > 120);
    check_all(&recipes);
}

#[test]
fn a_larger_folder_of_recipes_packs_to_the_bytes_of_the_reference() {
    let Ok(folder) = std::env::var("GLYD_RECIPES") else {
        eprintln!("skipped: GLYD_RECIPES names no folder of recipes");
        return;
    };
    let recipes = Recipe::all_in(Path::new(&folder));
    eprintln!("{} recipes", recipes.len());
    check_all(&recipes);
}

#[test]
fn the_bytes_are_the_same_with_any_number_of_threads() {
    for name in ["llama", "edge-experts-stacked", "gpt_oss"] {
        let recipe = Recipe::named(name);
        for threads in [1, 7] {
            let dir = tempfile::tempdir().unwrap();
            for (variant, expected) in &recipe.expected {
                let (out, _) = packed(&recipe, variant, threads, dir.path()).unwrap();
                assert_eq!(differences(&out, expected), Vec::<String>::new(), "{name} {variant} {threads}");
            }
        }
    }
}
