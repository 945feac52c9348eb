//! Paths, permissions, and what stands beside the weights.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use glyd_fixtures::Recipe;

use crate::util::{Folder, Ran};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn odd_paths_pack_and_verify() {
    let long = "n".repeat(255);
    let names: [&[u8]; 4] =
        ["模型 ☃ ü/in dir".as_bytes(), b"line\nbreak", b"not \xFF utf-8 \xC3", long.as_bytes()];
    for name in names {
        let folder = Folder::new();
        let dir = Path::new(OsStr::from_bytes(name));
        fs::create_dir_all(folder.path(dir)).unwrap();
        Recipe::named("llama").make(&folder.path(dir.join("model")));
        let (model, out) = (dir.join("model"), dir.join("o ut"));
        let packed = folder.run([Path::new("pack"), &model, &out]).ends(0);
        let words = [Path::new("inspect"), &out];
        for arguments in [&words[..], &[words[0], words[1], Path::new("--json")]] {
            folder.run(arguments).ends(0);
        }
        let verified = folder.run([Path::new("verify"), &out]).ends(0);
        assert_eq!(verified.stdout.lines().count(), 1, "{verified:#?}");
        assert!(packed.stdout.starts_with("packed `"), "{packed:#?}");
    }
}

#[test]
fn a_source_that_is_read_only_is_packed() {
    let folder = Folder::with_model("llama");
    fs::write(folder.path("model/LICENSE"), "free").unwrap();
    for name in folder.names("model") {
        set_mode(&folder.path("model").join(name), 0o444);
    }
    set_mode(&folder.path("model"), 0o555);
    let ran = folder.run(["pack", "model", "out"]);
    let again = folder.run(["pack", "model", "out"]);
    set_mode(&folder.path("model"), 0o755);
    ran.ends(0);
    again.ends(0);
    folder.run(["verify", "out"]).ends(0);
}

#[test]
fn a_source_that_cannot_be_read_is_named() {
    let folder = Folder::with_model("llama");
    let weights = folder.path("model/model.safetensors");
    set_mode(&weights, 0);
    if fs::File::open(&weights).is_ok() {
        eprintln!("skipped: this user may read any file");
        return;
    }
    let ran = folder.run(["pack", "model", "out"]).ends(2);
    ran.says(&["`model/model.safetensors`", "Permission denied"]);
    assert!(!folder.path("out").exists());
}

#[test]
fn files_have_the_modes_that_the_umask_leaves() {
    for (umask, files, folders) in [("0007", 0o660, 0o770), ("0022", 0o644, 0o755)] {
        let folder = Folder::with_model("llama");
        fs::create_dir(folder.path("model/code")).unwrap();
        fs::write(folder.path("model/code/model.py"), "").unwrap();
        set_mode(&folder.path("model/code/model.py"), 0o444);
        let line = format!("umask {umask} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_glyd"), "pack", "model", "out"]);
        Ran::of(&command.current_dir(folder.dir()).output().unwrap()).ends(0);
        assert_eq!(mode(&folder.path("out")), folders, "{umask}");
        for name in folder.names("out") {
            let expected = if name == "code" { folders } else { files };
            assert_eq!(mode(&folder.path("out").join(&name)), expected, "{umask} {name}");
        }
    }
}

#[test]
fn what_stands_beside_the_weights_comes_along() {
    let folder = Folder::with_model("llama");
    let extras = [
        "README.md",
        "LICENSE",
        "modeling_llama.py",
        "chat_template.jinja",
        ".dotfile",
        "sub/deeper/data.json",
        "onnx/config.json",
    ];
    let left = [
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "onnx/model.onnx",
        "original/consolidated.00.pth",
        "sub/adapter.safetensors",
        ".gitattributes",
        ".git/HEAD",
        ".cache/huggingface/x",
    ];
    for name in extras.iter().chain(&left) {
        let path = folder.path("model").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, *name).unwrap();
    }
    fs::write(folder.path("secret"), "not of the model").unwrap();
    symlink("../secret", folder.path("model/out-link")).unwrap();
    symlink("README.md", folder.path("model/in-link")).unwrap();
    let ran = folder.run(["pack", "model", "out"]).ends(0);
    for name in extras {
        assert_eq!(fs::read_to_string(folder.path("out").join(name)).unwrap(), name);
    }
    let linked = folder.path("out/in-link");
    assert!(fs::symlink_metadata(&linked).unwrap().is_file(), "an ordinary file");
    for name in left.iter().chain(&["out-link"]) {
        assert!(fs::symlink_metadata(folder.path("out").join(name)).is_err(), "{name}");
    }
    let named =
        left.iter().map(|name| name.split('/').take_while(|_| name.starts_with('.')).next().unwrap_or(name));
    for name in named.chain(["out-link"]) {
        assert!(ran.stdout.contains(&format!("`{name}`")), "{name}: {ran:#?}");
    }
    folder.run(["verify", "out"]).ends(0);
}

#[test]
fn weights_that_the_index_does_not_name_are_named_once_on_stderr() {
    let folder = Folder::with_model("edge-sharded");
    fs::copy(
        folder
            .path("model")
            .join(folder.names("model").into_iter().find(|name| name.ends_with(".safetensors")).unwrap()),
        folder.path("model/extra.safetensors"),
    )
    .unwrap();
    for arguments in
        [&["pack", "model", "out"][..], &["inspect", "model"], &["pack", "model", "dry", "--dry-run"]]
    {
        let ran = folder.run(arguments).ends(0).says(&["glyd: note: not read, ", "`extra.safetensors` ("]);
        assert_eq!(ran.stderr.matches("extra.safetensors").count(), 1, "{ran:#?}");
        assert!(!ran.stdout.contains("extra.safetensors"), "{ran:#?}");
    }
    let quiet = folder.run(["pack", "model", "quiet", "--quiet"]).ends(0);
    assert_eq!(quiet.stderr, "");
    let document = folder.run(["pack", "model", "json", "--json"]).ends(0).json();
    assert!(document["notes"].to_string().contains("extra.safetensors"), "{document}");
}
