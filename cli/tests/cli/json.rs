//! The JSON documents, held to `docs/json.md`: what is printed is documented, and the other way round.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::util::Folder;

/// The fields of one of the page's tables and their types.
pub(crate) struct Documented {
    title: &'static str,
    types: BTreeMap<String, String>,
    /// Fields that a document has had, and of those that may be null, those that have had a value.
    printed: BTreeSet<String>,
    valued: BTreeSet<String>,
}

impl Documented {
    pub(crate) fn under(title: &'static str) -> Self {
        let page = include_str!("../../../docs/json.md");
        let mut lines = page.lines().skip_while(|line| line.strip_prefix("## ") != Some(title));
        assert!(lines.next().is_some(), "docs/json.md has no `{title}`");
        let rows = lines.take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| `"));
        let types = rows.map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            assert_eq!(cells.len(), 4, "field, type, unit and meaning: {row}");
            assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
            (cells[0].trim_matches('`').to_owned(), cells[1].to_owned())
        });
        let types: BTreeMap<_, _> = types.collect();
        assert!(!types.is_empty(), "{title}");
        Documented { title, types, printed: BTreeSet::new(), valued: BTreeSet::new() }
    }

    /// Holds a document to the table.
    pub(crate) fn hold(&mut self, document: &Value) {
        self.object("", document);
    }

    fn object(&mut self, path: &str, value: &Value) {
        let members = value.as_object().unwrap_or_else(|| panic!("{}: `{path}`: {value}", self.title));
        let below = |field: &&String| {
            let name = field.strip_prefix(path)?;
            (!name.is_empty() && !name.contains('.') && !name.contains("[]")).then(|| name.to_owned())
        };
        let expected: BTreeSet<String> = self.types.keys().filter_map(|field| below(&field)).collect();
        let found: BTreeSet<String> = members.keys().cloned().collect();
        assert_eq!(found, expected, "{}: below `{path}`", self.title);
        for (name, value) in members {
            self.field(&format!("{path}{name}"), value);
        }
    }

    fn field(&mut self, field: &str, value: &Value) {
        self.printed.insert(field.to_owned());
        let declared = self.types[field].clone();
        let (plain, nullable) = match declared.strip_suffix(" or null") {
            Some(plain) => (plain, true),
            None => (declared.as_str(), false),
        };
        if value.is_null() {
            assert!(nullable, "{}: `{field}` is null", self.title);
            return;
        }
        self.valued.insert(field.to_owned());
        let title = self.title;
        let of = |kind: &str, value: &Value| match kind {
            "string" => value.is_string(),
            "integer" => value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "object" => value.is_object(),
            "lists of string" => value.as_array().is_some_and(|items| items.iter().all(Value::is_string)),
            other => panic!("{title}: `{field}`: no such type: {other}"),
        };
        let Some(items) = plain.strip_prefix("list of ") else {
            assert!(of(plain, value), "{}: `{field}` is {declared}: {value}", self.title);
            if plain == "object" {
                self.object(&format!("{field}."), value);
            }
            return;
        };
        for item in value.as_array().unwrap_or_else(|| panic!("{}: `{field}`: {value}", self.title)) {
            assert!(of(items.trim_end_matches('s'), item), "{}: `{field}`: {item}", self.title);
            if item.is_object() {
                self.object(&format!("{field}[]."), item);
            }
        }
    }

    /// Holds the table to the documents: each field was there, and each had a value once.
    pub(crate) fn all_printed(self) {
        let fields: BTreeSet<String> = self.types.into_keys().collect();
        assert_eq!(self.printed, fields, "{}", self.title);
        assert_eq!(self.valued, fields, "{}", self.title);
    }
}

#[test]
fn pack_is_as_documented() {
    let mut documented = Documented::under("pack");
    // A commit in its path, tensors that the model does not hold, a note.
    let snapshot = "snapshots/0123456789abcdef0123456789abcdef01234567";
    let folder = Folder::new();
    glyd_fixtures::Recipe::named("edge-unused").make(&folder.path(snapshot));
    fs::write(folder.path(snapshot).join("training.bin"), "").unwrap();
    for arguments in [&["--dry-run"][..], &["--layout", "mma12"], &["--shard-size", "64KiB"]] {
        let ran = folder.run([&["pack", snapshot, "out", "--json"], arguments].concat()).ends(0);
        let document = ran.json();
        documented.hold(&document);
        let unknown = ["/bytes/packed", "/bytes/written", "/bits_per_weight", "/seconds", "/files"];
        for pointer in unknown {
            let value = document.pointer(pointer).unwrap();
            assert_eq!(value.is_null(), arguments == ["--dry-run"], "{pointer}: {value}");
        }
    }
    documented.all_printed();
}

#[test]
fn the_figures_of_pack_are_those_of_the_files() {
    let folder = Folder::with_model("llama");
    let document = folder.run(["pack", "model", "out", "--json", "--shard-size", "64KiB"]).ends(0).json();
    let mut written = 0;
    for file in document["files"].as_array().unwrap() {
        let bytes = fs::metadata(folder.path("out").join(file["name"].as_str().unwrap())).unwrap().len();
        assert_eq!(file["bytes"], bytes);
        written += bytes;
    }
    assert_eq!(document["bytes"]["written"], written);
    let inspected = folder.run(["inspect", "out", "--json"]).ends(0).json();
    assert_eq!(document["bits_per_weight"], inspected["bits_per_weight"]);
    assert_eq!(document["bytes"]["packed"], inspected["bytes"]["packed"]);
    assert_eq!(document["bytes"]["plain"], inspected["bytes"]["plain"]);
    assert_eq!(document["packs"], inspected["packs"].as_array().unwrap().len());
    assert_eq!(document["plain_tensors"], inspected["plain"].as_array().unwrap().len());
    let verified = folder.run(["verify", "out", "--json"]).ends(0).json();
    assert_eq!(document["packed_tensors"], verified["packed_tensors"]);
    assert_eq!(document["plain_tensors"], verified["plain_tensors"]);
}

#[test]
fn verify_is_as_documented() {
    let mut documented = Documented::under("verify");
    let folder = Folder::with_packed(&["--layout", "mma12"]);
    let good = folder.run(["verify", "packed", "--json"]).ends(0).json();
    assert_eq!(good["verdict"], "good");
    documented.hold(&good);
    folder.flip("packed/model.safetensors", 1);
    let damaged = folder.run(["verify", "packed", "--json", "--quiet"]).ends(1).json();
    assert_eq!(damaged["verdict"], "damaged");
    documented.hold(&damaged);
    fs::write(folder.path("packed/glyd.json"), "[]").unwrap();
    documented.hold(&folder.run(["verify", "packed", "--json"]).ends(1).json());
    documented.all_printed();
}

#[test]
fn inspect_of_a_packed_checkpoint_is_as_documented() {
    let mut documented = Documented::under("inspect, of a packed checkpoint");
    for (recipe, layout) in [("llama", "mma12"), ("edge-experts-stacked", "mma")] {
        let snapshot = "snapshots/0123456789abcdef0123456789abcdef01234567";
        let folder = Folder::new();
        glyd_fixtures::Recipe::named(recipe).make(&folder.path(snapshot));
        folder.run(["pack", snapshot, "packed", "--layout", layout]).ends(0);
        documented.hold(&folder.run(["inspect", "packed", "--json"]).ends(0).json());
        folder.edit("packed/glyd.json", |manifest| {
            manifest.insert("more".into(), 1.into());
        });
        documented.hold(&folder.run(["inspect", "packed", "--json"]).ends(1).json());
    }
    // What only damage to a tensor has: the tensor.
    let folder = Folder::with_packed(&[]);
    folder.edit("packed/glyd.json", |manifest| {
        manifest["tensors"].as_object_mut().unwrap().remove("model.norm.weight").unwrap();
    });
    documented.hold(&folder.run(["inspect", "packed", "--json"]).ends(1).json());
    documented.all_printed();
}

#[test]
fn inspect_of_a_checkpoint_that_is_not_packed_is_as_documented() {
    let mut documented = Documented::under("inspect, of a checkpoint that is not packed");
    for recipe in ["edge-unused", "edge-experts-stacked"] {
        let folder = Folder::with_model(recipe);
        fs::write(folder.path("model/training.bin"), "").unwrap();
        documented.hold(&folder.run(["inspect", "model", "--json"]).ends(0).json());
    }
    documented.all_printed();
}

#[test]
fn fit_is_as_documented() {
    let mut documented = Documented::under("fit");
    let snapshot = "snapshots/0123456789abcdef0123456789abcdef01234567";
    let folder = Folder::new();
    glyd_fixtures::Recipe::named("llama").make(&folder.path(snapshot));
    let tool = folder.path("nvidia-smi");
    fs::write(&tool, "#!/bin/sh\necho 'NVIDIA L4, 23034, 20000'\n").unwrap();
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for arguments in [&[][..], &["--gpu", "L4"], &["--gpu", "all"], &["--gpu", "auto"]] {
        let arguments = [&["fit", snapshot, "--json", "--context", "100"], arguments].concat();
        let mut command = folder.command(arguments);
        let path = format!("{}:/bin:/usr/bin", folder.dir().display());
        documented.hold(&crate::util::Ran::of(&command.env("PATH", path).output().unwrap()).ends(0).json());
    }
    documented.all_printed();
}

#[test]
fn families_is_as_documented() {
    let mut documented = Documented::under("families");
    let folder = Folder::new();
    let all = folder.run(["families", "--json"]).ends(0).json();
    documented.hold(&all);
    let one = folder.run(["families", "qwen3_moe", "--json"]).ends(0).json();
    documented.hold(&one);
    assert_eq!(one["families"].as_array().unwrap().len(), 1);
    assert!(all["families"].as_array().unwrap().contains(&one["families"][0]));
    documented.all_printed();
}

#[test]
fn errors_are_as_documented() {
    let mut documented = Documented::under("errors");
    let folder = Folder::with_packed(&[]);
    fs::write(folder.path("file"), "").unwrap();
    folder.checkpoint("f32", r#"{"model_type": "foo_bar"}"#, &[("a.weight", "F32", &[64, 16])]);
    fs::create_dir(folder.path("twice")).unwrap();
    for name in ["a.safetensors", "b.safetensors"] {
        fs::copy(folder.path("model/model.safetensors"), folder.path("twice").join(name)).unwrap();
    }
    for (arguments, status, kind) in [
        (&["pack", "model"][..], 2, "usage"),
        (&["verify", "none"], 2, "invalid"),
        (&["verify", "model"], 2, "invalid"),
        (&["inspect", "none"], 2, "invalid"),
        (&["pack", "twice", "out"], 2, "invalid"),
        (&["pack", "packed", "out"], 2, "unsupported"),
        (&["pack", "f32", "out"], 1, "nothing-to-pack"),
        (&["pack", "model", "model"], 2, "output"),
        (&["pack", "model", "no/such/out"], 2, "io"),
        (&["fit", "f32", "--context", "1"], 2, "unknown"),
    ] {
        let ran = folder.run([arguments, &["--json"]].concat()).ends(status);
        let document = ran.json();
        documented.hold(&document);
        assert_eq!(document["error"]["kind"], kind, "{arguments:?}");
        // stderr has it too, for a log's reader.
        assert!(ran.stderr.contains(document["error"]["message"].as_str().unwrap()), "{ran:#?}");
    }
    documented.all_printed();
    let page = include_str!("../../../docs/json.md");
    for kind in [
        "usage",
        "invalid",
        "unsupported",
        "nothing-to-pack",
        "output",
        "unknown",
        "io",
        "not-found",
        "auth",
        "gated",
        "disabled",
        "rate-limit",
        "offline",
        "network",
        "interrupted",
        "defect",
    ] {
        assert!(page.contains(&format!("- `{kind}`: ")), "{kind}");
    }
}
