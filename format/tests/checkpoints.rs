//! Checkpoints as publishers save them: which files are read, and what is wrong with those that are
//! not whole.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests' code: it panics when it fails")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use glyd_fixtures::safetensors;
use glyd_format::{Checkpoint, Error};
use serde_json::json;
use tempfile::TempDir;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Writes a file of these tensors: four bytes each, all of the number given.
fn shard(dir: &Path, file: &str, tensors: &[(&str, u8)]) {
    let data: Vec<[u8; 4]> = tensors.iter().map(|(_, byte)| [*byte; 4]).collect();
    let entries: Vec<safetensors::Entry> =
        tensors.iter().zip(&data).map(|((name, _), data)| (*name, "BF16", &[2][..], &data[..])).collect();
    fs::create_dir_all(dir.join(file).parent().unwrap()).unwrap();
    safetensors::write(&dir.join(file), None, &entries);
}

fn index(dir: &Path, weight_map: &[(&str, &str)]) {
    let weight_map: serde_json::Map<_, _> =
        weight_map.iter().map(|(tensor, file)| ((*tensor).to_owned(), json!(file))).collect();
    let index = json!({"metadata": {"total_size": 4 * weight_map.len()}, "weight_map": weight_map});
    fs::write(dir.join(INDEX), index.to_string()).unwrap();
}

/// Two shards and their index: `a` and `b` in the first, `c` in the second.
fn two_shards(dir: &Path) {
    shard(dir, "model-00001-of-00002.safetensors", &[("a", 1), ("b", 2)]);
    shard(dir, "model-00002-of-00002.safetensors", &[("c", 3)]);
    index(
        dir,
        &[
            ("a", "model-00001-of-00002.safetensors"),
            ("b", "model-00001-of-00002.safetensors"),
            ("c", "model-00002-of-00002.safetensors"),
        ],
    );
}

/// The tensors of a checkpoint, by name, and the byte they are made of.
#[track_caller]
fn tensors(dir: &Path) -> BTreeMap<String, u8> {
    read(&Checkpoint::open(dir).unwrap())
}

fn read(checkpoint: &Checkpoint) -> BTreeMap<String, u8> {
    let weights = checkpoint.weights();
    let byte = |name: &str| {
        let mut byte = [0];
        weights.read_at(weights.find(name).unwrap(), &mut byte, 0).unwrap();
        (name.to_owned(), byte[0])
    };
    weights.names().map(byte).collect()
}

fn expected(tensors: &[(&str, u8)]) -> BTreeMap<String, u8> {
    tensors.iter().map(|(name, byte)| ((*name).to_owned(), *byte)).collect()
}

/// Why the checkpoint in a folder is refused; the message has all of `parts`.
#[track_caller]
fn refused(dir: &Path, parts: &[&str]) -> String {
    let message = Checkpoint::open(dir).unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    message
}

fn in_dir(dir: &Path, file: &str) -> String {
    format!("`{}`", dir.join(file).display())
}

#[test]
fn an_indexs_shards_are_the_checkpoint() {
    let dir = folder();
    two_shards(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(read(&checkpoint), expected(&[("a", 1), ("b", 2), ("c", 3)]));
    assert!(checkpoint.notes().is_empty(), "{:?}", checkpoint.notes());
    assert_eq!(checkpoint.weights().files().len(), 2);
    let inventory = checkpoint.inventory();
    assert_eq!((inventory["a"].dtype, &inventory["a"].shape[..]), (glyd_format::Dtype::BF16, &[2][..]));
}

#[test]
fn files_that_the_index_does_not_name_are_not_read_and_named_once() {
    let dir = folder();
    two_shards(dir.path());
    shard(dir.path(), "consolidated.safetensors", &[("other.name", 9)]);
    shard(dir.path(), "model-00001-of-00001.safetensors", &[("a", 9), ("b", 9), ("c", 9)]);
    fs::write(dir.path().join("model-00003-of-00003.safetensors"), "broken").unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(read(&checkpoint), expected(&[("a", 1), ("b", 2), ("c", 3)]));
    let [note] = checkpoint.notes() else { panic!("{:?}", checkpoint.notes()) };
    assert!(note.starts_with("not read, since the index `model.safetensors.index.json`"), "{note}");
    for file in ["`consolidated.safetensors` (", "`model-00001-of-00001.safetensors` (", "(6 bytes)"] {
        assert!(note.contains(file), "{note}");
    }
}

#[test]
fn missing_shards_are_all_named_with_their_tensors() {
    let dir = folder();
    two_shards(dir.path());
    fs::remove_file(dir.path().join("model-00001-of-00002.safetensors")).unwrap();
    fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    let message = refused(dir.path(), &["the download is incomplete"]);
    let lines: Vec<&str> = message.lines().collect();
    let first = in_dir(dir.path(), "model-00001-of-00002.safetensors");
    let second = in_dir(dir.path(), "model-00002-of-00002.safetensors");
    let wanted = "of the tensors in `model.safetensors.index.json`, found no such file";
    assert_eq!(lines.len(), 2, "{message}");
    assert!(lines[0].starts_with(&format!("{first}: expected a shard with 2 {wanted}")), "{message}");
    assert!(lines[1].starts_with(&format!("{second}: expected a shard with 1 {wanted}")), "{message}");
}

#[test]
fn a_tensor_that_is_not_in_its_shard_is_named_and_where_else_it_is() {
    let dir = folder();
    two_shards(dir.path());
    let second = "model-00002-of-00002.safetensors";
    let first = "model-00001-of-00002.safetensors";
    index(dir.path(), &[("a", second), ("b", first), ("c", second), ("mtp.fc.weight", second)]);
    let file = in_dir(dir.path(), second);
    let says =
        "expected this tensor, which `model.safetensors.index.json` says is there, found none of that name";
    let message = refused(
        dir.path(),
        &[
            &format!("{file}: `a`: {says}, but one in `model-00001-of-00002.safetensors`"),
            &format!("{file}: `mtp.fc.weight`: {says}; "),
        ],
    );
    assert_eq!(message.lines().count(), 2, "{message}");
}

#[test]
fn a_copy_in_another_shard_is_left_alone_and_named() {
    for copy in [1, 2] {
        let dir = folder();
        shard(dir.path(), "1.safetensors", &[("w", 1), ("v", 5)]);
        shard(dir.path(), "2.safetensors", &[("w", copy), ("unnamed", 4), ("more", 5)]);
        index(dir.path(), &[("w", "2.safetensors"), ("v", "1.safetensors")]);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(read(&checkpoint), expected(&[("w", copy), ("v", 5)]));
        assert_eq!(
            checkpoint.notes(),
            [
                "`1.safetensors`: left alone, since the index has it in `2.safetensors`: `w`",
                "`2.safetensors`: not read, since the index does not name it: `more`, `unnamed`",
            ]
        );
    }
}

#[test]
fn without_an_index_model_safetensors_is_read_alone() {
    let dir = folder();
    shard(dir.path(), SINGLE, &[("a", 1)]);
    shard(dir.path(), "adapter.safetensors", &[("a", 2)]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(read(&checkpoint), expected(&[("a", 1)]));
    let [note] = checkpoint.notes() else { panic!("{:?}", checkpoint.notes()) };
    assert!(
        note.starts_with("not read, since `model.safetensors` holds the checkpoint: `adapter.safe"),
        "{note}"
    );
}

#[test]
fn without_both_every_file_is_read_but_consolidated_ones() {
    let dir = folder();
    shard(dir.path(), "llama3.safetensors", &[("a", 1)]);
    shard(dir.path(), "vision.safetensors", &[("b", 2)]);
    shard(dir.path(), "consolidated.00.safetensors", &[("a", 9)]);
    shard(dir.path(), "._llama3.safetensors", &[("a", 9)]);
    shard(dir.path(), "sub/more.safetensors", &[("d", 9)]);
    assert_eq!(tensors(dir.path()), expected(&[("a", 1), ("b", 2)]));

    let dir = folder();
    shard(dir.path(), "consolidated.00.safetensors", &[("a", 1)]);
    shard(dir.path(), "consolidated.01.safetensors", &[("b", 2)]);
    assert_eq!(tensors(dir.path()), expected(&[("a", 1), ("b", 2)]));
}

#[test]
fn without_an_index_a_tensor_in_two_files_names_both() {
    for copy in [1, 2] {
        let dir = folder();
        shard(dir.path(), "1.safetensors", &[("w", 1)]);
        shard(dir.path(), "2.safetensors", &[("w", copy)]);
        refused(
            dir.path(),
            &[
                "`w`: expected a tensor in one file, found one in `1.safetensors` and one in `2.safetensors`; ",
                "add the `model.safetensors.index.json`",
            ],
        );
    }
}

#[test]
fn two_splits_without_an_index_are_one_error_for_two_files() {
    let dir = folder();
    let tensors = [("a", 1), ("b", 2), ("c", 3), ("d", 4)];
    for file in 0..2 {
        shard(dir.path(), &format!("model-{:05}-of-00002.safetensors", file + 1), &tensors[2 * file..][..2]);
    }
    shard(dir.path(), "model-00001-of-00001.safetensors", &tensors);
    let message = refused(dir.path(), &["`a`: ", "`model-00001-of-00001.safetensors`", " (and 1 more)"]);
    assert_eq!(message.lines().count(), 2, "{message}");
}

#[test]
fn without_an_index_numbered_files_are_held_to_their_count() {
    let dir = folder();
    shard(dir.path(), "model-00001-of-00003.safetensors", &[("a", 1)]);
    shard(dir.path(), "model-00003-of-00003.safetensors", &[("c", 3)]);
    refused(
        dir.path(),
        &[
            "expected the 3 files `model-*-of-00003.safetensors`, found 2 of them, without [2], and no index",
            "incomplete",
        ],
    );
    shard(dir.path(), "model-00002-of-00003.safetensors", &[("b", 2)]);
    assert_eq!(tensors(dir.path()).len(), 3);
    shard(dir.path(), "model-00004-of-00003.safetensors", &[("d", 4)]);
    refused(dir.path(), &["found 4 of them"]);
}

#[test]
fn numbers_that_start_at_zero_are_a_whole_count_too() {
    let dir = folder();
    shard(dir.path(), "model-00000-of-00002.safetensors", &[("a", 1)]);
    shard(dir.path(), "model-00001-of-00002.safetensors", &[("b", 2)]);
    assert_eq!(tensors(dir.path()).len(), 2);
    fs::remove_file(dir.path().join("model-00001-of-00002.safetensors")).unwrap();
    refused(dir.path(), &["found 1 of them, without [1], and no index"]);
}

#[test]
fn the_right_count_of_wrong_numbers_is_not_enough() {
    let dir = folder();
    shard(dir.path(), "model-00001-of-00002.safetensors", &[("a", 1)]);
    shard(dir.path(), "model-00003-of-00002.safetensors", &[("b", 2)]);
    refused(dir.path(), &["found 2 of them, without [2], and no index"]);
    let dir = folder();
    shard(dir.path(), "model-00001-of-18446744073709551615.safetensors", &[("a", 1)]);
    refused(dir.path(), &["found 1 of them, without [2, 3, 4, 5, 6, 7, 8, 9], and no index"]);
}

#[test]
fn declared_totals_are_not_believed() {
    let dir = folder();
    shard(dir.path(), SINGLE, &[("a", 1)]);
    for metadata in [
        r#""metadata": {"total_size": 96},"#,
        r#""metadata": {"total_size": "x", "n": 1.5},"#,
        r#""metadata": null,"#,
        "",
    ] {
        let text = format!(r#"{{{metadata} "weight_map": {{"a": "model.safetensors"}}}}"#);
        fs::write(dir.path().join(INDEX), text).unwrap();
        assert_eq!(tensors(dir.path()), expected(&[("a", 1)]), "{metadata}");
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let note = "`model.safetensors.index.json` declares 96 bytes of tensors, which have 4";
        let notes = if metadata.contains("96") { &[note][..] } else { &[] };
        assert_eq!(checkpoint.notes(), notes, "{metadata}");
    }
}

#[test]
fn an_index_names_no_file_outside_the_checkpoint() {
    let outside = folder();
    let dir = outside.path().join("model");
    shard(outside.path(), SINGLE, &[("a", 9)]);
    shard(&dir, SINGLE, &[("a", 1)]);
    for bad in ["/etc/hostname", "../model.safetensors", "sub/../../model.safetensors", "..", "", "sub/"] {
        index(&dir, &[("a", bad)]);
        let file = in_dir(&dir, INDEX);
        refused(&dir, &[&format!("{file}: expected files inside the checkpoint, found {bad:?}")]);
    }
}

#[test]
fn an_index_may_name_files_in_sub_folders() {
    let dir = folder();
    shard(dir.path(), "sub/model-1.safetensors", &[("a", 1)]);
    index(dir.path(), &[("a", "sub/model-1.safetensors")]);
    assert_eq!(tensors(dir.path()), expected(&[("a", 1)]));
}

#[test]
fn an_index_that_is_none_is_named() {
    let dir = folder();
    shard(dir.path(), SINGLE, &[("a", 1)]);
    for (text, found) in [
        ("", "found invalid JSON: EOF while parsing a value at line 1 column 0"),
        ("{}", "found missing field `weight_map`"),
        (r#"{"weight_map": {"a": 1}}"#, "found invalid type: integer `1`, expected a string at line 1"),
        (r#"{"weight_map": {"a": "x", "a": "y"}}"#, "found duplicate key `a`"),
        (r#"{"weight_map": {}, "weight_map": {}}"#, "found duplicate key `weight_map`"),
        (r#"{"weight_map": {}}"#, "an index `model.safetensors.index.json` that names none"),
    ] {
        fs::write(dir.path().join(INDEX), text).unwrap();
        refused(dir.path(), &[found, &dir.path().display().to_string()]);
    }
}

#[test]
fn links_out_of_the_checkpoint_are_refused() {
    let outside = folder();
    shard(outside.path(), "other.safetensors", &[("a", 9)]);
    shard(&outside.path().join("blobs"), "x", &[("a", 9)]);
    for target in ["../other.safetensors", "../blobs/x"] {
        let dir = outside.path().join("model");
        fs::create_dir(&dir).unwrap();
        symlink(target, dir.join(SINGLE)).unwrap();
        refused(
            &dir,
            &[
                &format!(
                    "{}: expected a file inside the checkpoint, found a link to `",
                    in_dir(&dir, SINGLE)
                ),
                "put the file itself there",
            ],
        );
        index(&dir, &[("a", SINGLE)]);
        refused(&dir, &["found a link to `"]);
        fs::remove_dir_all(&dir).unwrap();
    }
    // Neither does the name of a folder make a cache: `model` is no snapshot.
    let dir = outside.path().join("x/model");
    fs::create_dir_all(&dir).unwrap();
    symlink("../../blobs/x", dir.join(SINGLE)).unwrap();
    refused(&dir, &["found a link to `"]);
}

#[test]
fn links_within_the_checkpoint_are_followed() {
    let dir = folder();
    shard(dir.path(), "sub/weights", &[("a", 1)]);
    symlink("sub/weights", dir.path().join(SINGLE)).unwrap();
    assert_eq!(tensors(dir.path()), expected(&[("a", 1)]));
    let link = dir.path().parent().unwrap().join(format!("{}-link", dir.path().display()));
    symlink(dir.path(), &link).unwrap();
    assert_eq!(tensors(&link), expected(&[("a", 1)]));
    fs::remove_file(link).unwrap();
}

#[test]
fn snapshots_of_the_hub_cache_are_links_into_its_blobs() {
    let cache = folder();
    let repo = cache.path().join("models--a--b");
    let snapshot = repo.join("snapshots/0123");
    shard(&repo, "blobs/x", &[("a", 1)]);
    shard(&repo, "blobs/y", &[("b", 2)]);
    fs::create_dir_all(snapshot.join("sub")).unwrap();
    symlink("../../blobs/x", snapshot.join(SINGLE)).unwrap();
    assert_eq!(tensors(&snapshot), expected(&[("a", 1)]));
    // In a sub-folder of the snapshot, and through another link.
    symlink("../../../blobs/y", snapshot.join("sub/y.safetensors")).unwrap();
    symlink("model.safetensors", snapshot.join("again.safetensors")).unwrap();
    index(&snapshot, &[("a", "again.safetensors"), ("b", "sub/y.safetensors")]);
    assert_eq!(tensors(&snapshot), expected(&[("a", 1), ("b", 2)]));
    // The snapshot's folder a link itself.
    let link = cache.path().join("model");
    symlink(&snapshot, &link).unwrap();
    assert_eq!(tensors(&link), expected(&[("a", 1), ("b", 2)]));
    // A folder of links into the cache, as downloads to a folder have been.
    let local = cache.path().join("local");
    fs::create_dir(&local).unwrap();
    symlink("../models--a--b/blobs/x", local.join(SINGLE)).unwrap();
    assert_eq!(tensors(&local), expected(&[("a", 1)]));
}

#[test]
fn a_snapshot_of_a_missing_blob_names_the_link_and_its_target() {
    let cache = folder();
    let snapshot = cache.path().join("models--a--b/snapshots/0123");
    fs::create_dir_all(&snapshot).unwrap();
    symlink("../../blobs/x", snapshot.join(SINGLE)).unwrap();
    let file = in_dir(&snapshot, SINGLE);
    let message =
        format!("{file}: expected a link to a file, found a dangling link to `../../blobs/x`; fetch");
    refused(&snapshot, &[&message]);
}

#[test]
fn shards_that_are_no_weights_are_all_named_at_once() {
    let dir = folder();
    two_shards(dir.path());
    let files =
        ["pointer", "empty", "zeros", "page", "short", "gone"].map(|file| format!("{file}.safetensors"));
    fs::write(
        dir.path().join(&files[0]),
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{:064}\nsize 9\n", 0),
    )
    .unwrap();
    fs::write(dir.path().join(&files[1]), "").unwrap();
    fs::write(dir.path().join(&files[2]), [0; 4096]).unwrap();
    fs::write(dir.path().join(&files[3]), "<!DOCTYPE html><html>").unwrap();
    shard(dir.path(), &files[4], &[("x", 1), ("y", 2), ("z", 3)]);
    let short = fs::File::options().write(true).open(dir.path().join(&files[4])).unwrap();
    short.set_len(short.metadata().unwrap().len() - 7).unwrap();
    let mut weight_map = vec![("a", "model-00001-of-00002.safetensors")];
    weight_map.extend(files.iter().map(|file| (file.as_str(), file.as_str())));
    index(dir.path(), &weight_map);
    let message = refused(dir.path(), &[]);
    for (file, found) in files.iter().zip([
        "expected a safetensors file, found a Git LFS pointer; fetch the file itself with `git lfs pull`",
        "expected a safetensors file, found an empty file",
        "expected a safetensors file, found zeros",
        "expected a safetensors file, found an HTML page",
        "`y`: expected the 12 bytes of data that the header declares, found 5 bytes on disk: [4, 8) is the first",
        "found no such file",
    ]) {
        let line = message.lines().find(|line| line.starts_with(&in_dir(dir.path(), file)));
        assert!(line.is_some_and(|line| line.contains(found)), "{file}: {message}");
    }
    assert_eq!(message.lines().count(), files.len(), "{message}");
}

#[test]
fn weights_of_other_kinds_are_named() {
    for file in ["pytorch_model.bin", "x.gguf", "X.GGUF", "consolidated.00.pth"] {
        let dir = folder();
        fs::write(dir.path().join(file), "x").unwrap();
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        refused(
            dir.path(),
            &[
                "expected `model.safetensors`, `model.safetensors.index.json` or other safetensors files",
                &format!("found no safetensors weights, but `{file}`; convert them to safetensors first"),
            ],
        );
    }
}

#[test]
fn folders_without_a_model_are_told_apart() {
    let dir = folder();
    refused(dir.path(), &["found an empty folder"]);
    fs::write(dir.path().join("README.md"), "x").unwrap();
    refused(dir.path(), &["found no weights; name the folder that holds"]);
    for path in [dir.path().join("none"), dir.path().join("README.md")] {
        let error = Checkpoint::open(&path).unwrap_err();
        let Error::Io { action, path: found, source } = error else { panic!("{error}") };
        assert_eq!((action, &found), ("list", &path));
        assert!(!source.to_string().is_empty());
    }
}

#[test]
fn a_checkpoint_may_have_no_config() {
    let dir = folder();
    shard(dir.path(), SINGLE, &[("a", 1)]);
    assert!(Checkpoint::open(dir.path()).unwrap().config().is_null());
}

#[test]
fn a_config_may_hold_pythons_infinity_and_nan() {
    let dir = folder();
    shard(dir.path(), SINGLE, &[("a", 1)]);
    let text = "{\n \"time_step_limit\": [0.0, Infinity],\n \"x\": NaN,\n \"y\": [-Infinity],\n \"note\": \"Infinity and beyond\"\n}";
    fs::write(dir.path().join("config.json"), text).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let read = json!({"time_step_limit": [0.0, null], "x": null, "y": [null], "note": "Infinity and beyond"});
    assert_eq!(*checkpoint.config(), read);
    assert_eq!(fs::read_to_string(dir.path().join("config.json")).unwrap(), text);
}

#[test]
fn a_broken_config_is_named_with_line_and_column() {
    let dir = folder();
    shard(dir.path(), SINGLE, &[("a", 1)]);
    let file = in_dir(dir.path(), "config.json");
    for (text, found) in [
        ("{\n \"a\": Infinity,\n \"b\": }\n", "found invalid JSON: expected value at line 3 column 7"),
        ("{\"a\": Infinit}", "found invalid JSON: expected value at line 1 column 7"),
        ("", "found invalid JSON: EOF while parsing a value at line 1 column 0"),
        ("[1]", "found another value"),
        ("\u{FEFF}{}", "found a byte order mark before the JSON; fetch the file again, or mend it"),
    ] {
        fs::write(dir.path().join("config.json"), text).unwrap();
        refused(dir.path(), &[&format!("{file}: expected a JSON object, {found}")]);
    }
    fs::write(dir.path().join("config.json"), "[".repeat(100_000)).unwrap();
    refused(dir.path(), &["recursion limit exceeded"]);
}

#[test]
fn a_packed_checkpoint_is_no_source() {
    let dir = folder();
    shard(dir.path(), SINGLE, &[("a", 1)]);
    fs::write(dir.path().join("glyd.json"), "{}").unwrap();
    refused(dir.path(), &["a checkpoint that is packed already; a packed checkpoint is no source"]);
}

#[test]
fn a_source_is_only_read() {
    let dir = folder();
    two_shards(dir.path());
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let files: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let state = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.modified().unwrap(), metadata.len(), metadata.permissions())
    };
    files.iter().for_each(|file| mode(file, 0o444));
    mode(dir.path(), 0o555);
    let before: Vec<_> = files.iter().map(|file| state(file)).chain([state(dir.path())]).collect();
    assert_eq!(tensors(dir.path()).len(), 3);
    let after: Vec<_> = files.iter().map(|file| state(file)).chain([state(dir.path())]).collect();
    assert_eq!(before, after);
    mode(dir.path(), 0o755);
}

#[test]
fn names_that_are_no_utf8_or_odd_are_no_hindrance() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let parent = folder();
    let dir = parent.path().join(OsStr::from_bytes(b"\xe6\xa8\xa1 \xff\n")).join("in dir");
    shard(&dir, SINGLE, &[("α/0 \u{2603}", 1)]);
    fs::write(dir.join(OsStr::from_bytes(b"\xff.safetensors")), "x").unwrap();
    assert_eq!(tensors(&dir), expected(&[("α/0 \u{2603}", 1)]));
}

#[test]
fn a_hundred_thousand_tensors_in_a_thousand_missing_shards_are_no_matter() {
    let dir = folder();
    let names: Vec<(String, String)> = (0..100_000)
        .map(|at| (format!("layers.{at}.weight"), format!("{}.safetensors", at % 1000)))
        .collect();
    let weight_map: Vec<(&str, &str)> = names.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    index(dir.path(), &weight_map);
    let message = refused(dir.path(), &["expected a shard with 100 of the tensors"]);
    assert_eq!(message.lines().count(), 1000);
}
