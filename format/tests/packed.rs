//! Packed checkpoints opened: each rule that needs no weights, broken on purpose in a checkpoint that
//! the reference codec made, and what is found then.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests' code: it panics when it fails")]

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use glyd_fixtures::reference::{encode_mma, encode_mma12};
use glyd_fixtures::weights::trained_like;
use glyd_format::finding::{Finding, Level, Rule};
use glyd_format::header::Header;
use glyd_format::index::{INDEX_NAME, Index};
use glyd_format::layout::{mma, mma12};
use glyd_format::manifest::{
    ExpertsEntry, Format, MANIFEST_NAME, PackEntry, PackedTensor, Source, Version, buffer_name,
};
use glyd_format::packed::SINGLE_NAME;
use glyd_format::{Buffer, Coding, Digest, Dtype, Error, Layout, Manifest, Packed};
use tempfile::TempDir;

const LINEAR: &str = "model.layers.0.self_attn.o_proj";
const GROUP: &str = "model.layers.0.self_attn.q_proj";
const EXPERTS: &str = "model.layers.0.mlp.experts.gate_up_proj";
const PLAIN: &str = "model.norm.weight";

/// A tensor in a file: name, dtype, shape and bytes.
type Saved = (String, Dtype, Vec<u64>, Vec<u8>);

/// A checkpoint before it is written: what a test may break.
struct Made {
    manifest: Manifest,
    saved: Vec<Saved>,
}

/// A packed matrix's entry, and its buffers.
fn pack(layout: Layout, name: &str, rows: u64, columns: u64, experts: bool) -> (PackEntry, Vec<Saved>) {
    let (r, c) = (usize::try_from(rows).unwrap(), usize::try_from(columns).unwrap());
    let weights = trained_like(r * c, 1);
    let bytes = |integers: &[i32]| integers.iter().flat_map(|integer| integer.to_le_bytes()).collect();
    let (coding, data, list, base): (_, _, Vec<u8>, Vec<u8>) = match layout {
        Layout::Mma => {
            let packed = encode_mma(r, c, &weights);
            let tiers = mma::Tiers::from_words(packed.tiers).unwrap();
            (Coding::Mma(tiers), packed.data, packed.blocks, bytes(&packed.block_base))
        }
        Layout::Mma12 => {
            let packed = encode_mma12(r, c, &weights);
            let base = mma12::Base::new(packed.hb.into()).unwrap();
            (Coding::Mma12(base), packed.data, bytes(&packed.exc), bytes(&packed.exc_base))
        }
    };
    let buffers = Buffer::ALL.into_iter().zip([data, list, base]).map(|(buffer, bytes)| {
        let dtype = layout.dtype(buffer);
        let shape = vec![(8 * bytes.len() / dtype.bitsize()) as u64];
        (buffer_name(name, experts, layout, buffer), dtype, shape, bytes)
    });
    (PackEntry { shape: [rows, columns], coding, tensors: Vec::new(), experts: None }, buffers.collect())
}

fn tensor(name: &str, shape: &[u64]) -> PackedTensor {
    PackedTensor { name: name.to_owned(), shape: shape.to_vec(), sha256: Digest::of(name.as_bytes()) }
}

impl Made {
    /// A Linear, a merged group and a tensor saved as it is.
    fn dense(layout: Layout) -> Made {
        let plain = (PLAIN.to_owned(), Dtype::F32, vec![3], vec![1; 12]);
        let manifest = Manifest {
            format: Format::of(layout, false),
            glyd: Version([0, 25, 1]),
            source: Source { repo: b"a/b".to_vec(), revision: None },
            layout,
            packs: Vec::new(),
            tensors: Some(vec![(PLAIN.to_owned(), Digest::of(&plain.3))]),
        };
        let mut made = Made { manifest, saved: vec![plain] };
        let (mut entry, buffers) = pack(layout, LINEAR, 64, 48, false);
        entry.tensors = vec![tensor(&format!("{LINEAR}.weight"), &[64, 48])];
        made.push(LINEAR, entry, buffers);
        let (mut entry, buffers) = pack(layout, GROUP, 256, 32, false);
        let member = |linear, rows| tensor(&format!("model.layers.0.self_attn.{linear}.weight"), &[rows, 32]);
        entry.tensors = vec![member("q_proj", 128), member("k_proj", 64), member("v_proj", 64)];
        made.push(GROUP, entry, buffers);
        made
    }

    /// As [`Made::dense`], with two experts of [64, 32], which the model holds in this shape.
    fn with_experts(shape: &[u64], transposed: bool) -> Made {
        let mut made = Made::dense(Layout::Mma);
        let (mut entry, buffers) = pack(Layout::Mma, EXPERTS, 128, 32, true);
        entry.tensors = vec![tensor(EXPERTS, shape)];
        entry.experts = Some(ExpertsEntry { count: 2, transposed });
        made.push(EXPERTS, entry, buffers);
        made.manifest.format = Format::V2;
        made
    }

    fn push(&mut self, name: &str, entry: PackEntry, buffers: Vec<Saved>) {
        self.manifest.packs.push((name.to_owned(), entry));
        self.saved.extend(buffers);
    }

    fn entry(&mut self, name: &str) -> &mut PackEntry {
        let mut packs = self.manifest.packs.iter_mut();
        &mut packs.find(|(pack, _)| pack == name).unwrap().1
    }

    fn saved(&mut self, name: &str) -> &mut Saved {
        self.saved.iter_mut().find(|(saved, ..)| saved == name).unwrap()
    }

    /// Writes it as one file.
    fn save(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MANIFEST_NAME), self.manifest.text()).unwrap();
        write(&dir.path().join(SINGLE_NAME), &self.saved);
        dir
    }

    /// Writes it as two shards and an index, which `change` may break first.
    fn save_shards(&self, change: impl Fn(&mut Index)) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MANIFEST_NAME), self.manifest.text()).unwrap();
        let shards = self.saved.split_at(self.saved.len() / 2);
        let mut index = Index { weight_map: Vec::new(), total_bytes: Some(0) };
        for (number, shard) in [shards.0, shards.1].into_iter().enumerate() {
            write(&dir.path().join(SHARDS[number]), shard);
            let map = shard.iter().map(|saved| (saved.0.clone(), SHARDS[number].to_owned()));
            index.weight_map.extend(map);
            let bytes: usize = shard.iter().map(|saved| saved.3.len()).sum();
            index.total_bytes = index.total_bytes.map(|total| total + bytes as u64);
        }
        change(&mut index);
        fs::write(dir.path().join(INDEX_NAME), index.text()).unwrap();
        dir
    }
}

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// Writes a file as section 6 of the format has it.
fn write(path: &Path, tensors: &[Saved]) {
    let of_header = tensors.iter().map(|(name, dtype, shape, _)| (name.clone(), *dtype, shape.clone()));
    let header = Header::arrange(of_header.collect()).unwrap();
    let mut bytes = header.to_bytes();
    for tensor in &header.tensors {
        bytes.extend(&tensors.iter().find(|saved| saved.0 == tensor.name).unwrap().3);
    }
    fs::write(path, bytes).unwrap();
}

/// What a finding must be: damage of this rule, in this file, of this tensor, in these words.
type Wanted<'a> = (Rule, &'a str, Option<&'a str>, &'a str);

#[track_caller]
fn holds(dir: &Path, findings: &[Finding], wanted: &[Wanted]) {
    let list: Vec<String> = findings.iter().map(|finding| format!("{}: {finding}", finding.rule)).collect();
    assert_eq!(findings.len(), wanted.len(), "{list:#?}");
    for (finding, (rule, file, tensor, words)) in findings.iter().zip(wanted) {
        let path = if file.is_empty() { dir.to_owned() } else { dir.join(file) };
        let found = (finding.level, finding.rule, finding.what.file.as_ref(), finding.what.tensor.as_deref());
        assert_eq!(found, (Level::Damage, *rule, Some(&path), *tensor), "{list:#?}");
        assert!(finding.to_string().contains(words), "no {words:?} in {list:#?}");
    }
}

/// Opens a checkpoint and holds what is found to be exactly this damage, in this order.
#[track_caller]
fn finds(dir: &Path, wanted: &[Wanted]) {
    holds(dir, &Packed::open(dir).unwrap().findings, wanted);
}

/// Edits the text of `glyd.json`.
#[track_caller]
fn edit(dir: &TempDir, from: &str, to: &str) {
    let path = dir.path().join(MANIFEST_NAME);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

fn buffer(pack: &str, layout: Layout, buffer: Buffer) -> String {
    buffer_name(pack, pack == EXPERTS, layout, buffer)
}

#[test]
fn a_whole_checkpoint_has_no_findings() {
    let mut all: Vec<TempDir> = Layout::ALL.map(|layout| Made::dense(layout).save()).into();
    all.extend(Layout::ALL.map(|layout| Made::dense(layout).save_shards(|_| {})));
    all.push(Made::with_experts(&[2, 64, 32], false).save());
    all.push(Made::with_experts(&[2, 32, 64], true).save());
    all.push(Made::with_experts(&[128, 32], false).save());
    all.push(Made::with_experts(&[64, 64], true).save());
    for dir in all {
        fs::write(dir.path().join("glyd-source.safetensors"), "no part of it").unwrap();
        let opened = Packed::open(dir.path()).unwrap();
        holds(dir.path(), &opened.findings, &[]);
        let packed = opened.packed.unwrap();
        for (name, entry) in &packed.manifest().packs {
            let buffers = packed.buffers(name, entry).unwrap();
            let grid = Packed::grid(entry).unwrap();
            let data = packed.weights().tensor(buffers.data).bytes();
            assert_eq!(data, entry.coding.layout().data_bytes(grid), "{name}");
        }
    }
}

#[test]
fn a_checkpoint_without_packs_is_whole() {
    let mut made = Made::dense(Layout::Mma);
    made.manifest.packs.clear();
    made.saved.truncate(1);
    finds(made.save().path(), &[]);
}

#[test]
fn what_is_no_packed_checkpoint_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let message = Packed::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("expected a packed checkpoint, found no `glyd.json`"), "{message}");
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let message = Packed::open(&file).unwrap_err().to_string();
    assert!(message.contains("expected the folder of a packed checkpoint, found a file"), "{message}");
    let error = Packed::open(&dir.path().join("none")).unwrap_err();
    let Error::Io { path, .. } = error else { panic!("{error}") };
    assert_eq!(path, dir.path().join("none"));
}

#[test]
fn a_later_format_is_refused_by_its_name() {
    let dir = Made::dense(Layout::Mma).save();
    edit(&dir, "glyd-v1", "glyd-v4");
    let error = Packed::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("format: `glyd-v4`; glyd-v1, glyd-v2 and glyd-v3 are read"), "{message}");
}

#[test]
fn a_manifest_that_is_none_is_damage() {
    for (text, words) in [
        ("", "expected a JSON object, found invalid JSON: EOF while parsing a value at line 1 column 0"),
        ("[]", "invalid type: sequence, expected an object"),
        ("{}", "expected `format` to be a format's name, found no such key"),
        ("{\"format\": 1}", "expected `format` to be a format's name, found invalid type: integer `1`"),
        (
            "{\"format\": \"glyd-v0\"}",
            "expected `format` to be glyd-v1, glyd-v2 or glyd-v3, found \"glyd-v0\"",
        ),
        ("{\"format\": \"glyd-v1\", \"format\": \"glyd-v1\"}", "duplicate key `format`"),
    ] {
        let dir = Made::dense(Layout::Mma).save();
        fs::write(dir.path().join(MANIFEST_NAME), text).unwrap();
        let opened = Packed::open(dir.path()).unwrap();
        assert!(opened.packed.is_none());
        holds(dir.path(), &opened.findings, &[(Rule::Manifest, MANIFEST_NAME, None, words)]);
    }
}

#[test]
fn a_manifest_that_is_a_dangling_link_is_damage() {
    let dir = Made::dense(Layout::Mma).save();
    fs::remove_file(dir.path().join(MANIFEST_NAME)).unwrap();
    symlink("gone", dir.path().join(MANIFEST_NAME)).unwrap();
    finds(dir.path(), &[(Rule::Manifest, MANIFEST_NAME, None, "found a dangling link to `gone`")]);
}

#[test]
fn values_of_the_manifest_are_held_to_their_kinds() {
    for (layout, from, to, words) in [
        (
            Layout::Mma,
            "\"0.25.1\"",
            "\"0.25\"",
            "expected `glyd` to be a version MAJOR.MINOR.PATCH, found \"0.25\"",
        ),
        (Layout::Mma, "\"repo\": \"a/b\"", "\"repo\": 1", "expected `source.repo` to be a string"),
        (
            Layout::Mma,
            "\"layout\": \"mma\"",
            "\"layout\": \"mma8\"",
            "expected `layout` to be `mma` or `mma12`, found \"mma8\"",
        ),
        (
            Layout::Mma,
            "\"shape\": [\n    64",
            "\"shape\": [\n    -64",
            "o_proj.shape` to be two numbers, found invalid value",
        ),
        (Layout::Mma, "\"tiers\": [", "\"tiers\": [4294967296,", "o_proj.tiers` to be three words"),
        (Layout::Mma12, "\"hb\": ", "\"hb\": 1", "o_proj.hb` to be 0 to 120, found 1"),
        (Layout::Mma, "\"sha256\": \"", "\"sha256\": \"A", "o_proj.tensors.0.sha256` to be a sha256"),
        (
            Layout::Mma,
            "\"tensors\": {",
            "\"tensors\": {\"x\": \"\",",
            "expected `tensors` to be an object of sha256",
        ),
    ] {
        let dir = Made::dense(layout).save();
        edit(&dir, from, to);
        finds(dir.path(), &[(Rule::Manifest, MANIFEST_NAME, None, words)]);
    }
}

#[test]
fn every_broken_entry_is_named() {
    let dir = Made::dense(Layout::Mma12).save();
    edit(&dir, "\"hb\": ", "\"hb\": 2");
    edit(&dir, "\"hb\": 5", "\"hb\": 35");
    finds(
        dir.path(),
        &[
            (Rule::Manifest, MANIFEST_NAME, None, "`packs.model.layers.0.self_attn.o_proj.hb`"),
            (Rule::Manifest, MANIFEST_NAME, None, "`packs.model.layers.0.self_attn.q_proj.hb`"),
        ],
    );
}

#[test]
fn tiers_are_nine_different_exponents_under_a_full_byte() {
    let words = "three words of 0xFF and three exponents each, all nine different";
    for change in [|word: u32| word & 0x7FFF_FFFF, |word: u32| (word & 0xFFFF_FF00) | (word >> 8 & 0xFF)] {
        let mut made = Made::dense(Layout::Mma);
        let Coding::Mma(tiers) = made.entry(LINEAR).coding else { panic!() };
        let word = tiers.words()[1];
        let dir = made.save();
        edit(&dir, &word.to_string(), &change(word).to_string());
        finds(dir.path(), &[(Rule::Manifest, MANIFEST_NAME, None, words)]);
    }
}

#[test]
fn the_format_is_the_one_of_what_is_inside() {
    let mut made = Made::dense(Layout::Mma);
    made.manifest.format = Format::V2;
    let words = "expected `format` to be glyd-v1, of packs in `mma` without experts' weights, found glyd-v2";
    finds(made.save().path(), &[(Rule::Manifest, MANIFEST_NAME, None, words)]);
    let mut made = Made::dense(Layout::Mma12);
    made.manifest.format = Format::V1;
    finds(made.save().path(), &[(Rule::Manifest, MANIFEST_NAME, None, "to be glyd-v3, of packs in `mma12`")]);
    let mut made = Made::with_experts(&[2, 64, 32], false);
    made.manifest.format = Format::V1;
    finds(made.save().path(), &[(Rule::Manifest, MANIFEST_NAME, None, "in `mma` with experts' weights")]);
}

#[test]
fn unknown_keys_are_damage_unless_the_writer_is_newer() {
    for version in ["0.25.1", "0.24.0", "0.26.0", "1.0.0"] {
        let dir = Made::dense(Layout::Mma).save();
        edit(&dir, "\"0.25.1\",", &format!("\"{version}\",\n \"later\": {{\"x\": 1}},"));
        let findings = Packed::open(dir.path()).unwrap().findings;
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        let level = if version < "0.26" { Level::Damage } else { Level::Warning };
        assert_eq!((finding.level, finding.rule), (level, Rule::Manifest), "{version}");
        assert!(finding.to_string().contains("found `later`"), "{finding}");
    }
}

#[test]
fn only_older_dense_checkpoints_may_be_without_sums() {
    let mut made = Made::dense(Layout::Mma);
    made.manifest.tensors = None;
    for version in [[0, 20, 0], [0, 24, 9]] {
        made.manifest.glyd = Version(version);
        let dir = made.save();
        let opened = Packed::open(dir.path()).unwrap();
        holds(dir.path(), &opened.findings, &[]);
        assert!(opened.packed.unwrap().manifest().tensors.is_none());
    }
    let words = "expected `tensors` to be there in this version, found no such key";
    made.manifest.glyd = Version([0, 25, 0]);
    finds(made.save().path(), &[(Rule::Manifest, MANIFEST_NAME, None, words)]);
    let mut made = Made::dense(Layout::Mma12);
    made.manifest.tensors = None;
    made.manifest.glyd = Version([0, 24, 0]);
    finds(made.save().path(), &[(Rule::Manifest, MANIFEST_NAME, None, words)]);
}

#[test]
fn weights_in_one_file_and_in_shards_are_damage() {
    let dir = Made::dense(Layout::Mma).save();
    fs::write(dir.path().join(INDEX_NAME), "{}").unwrap();
    let words = "found both `model.safetensors` and `model.safetensors.index.json`";
    finds(dir.path(), &[(Rule::Files, "", None, words)]);
}

#[test]
fn no_weights_are_one_finding_and_not_one_a_tensor() {
    let dir = Made::dense(Layout::Mma).save();
    fs::remove_file(dir.path().join(SINGLE_NAME)).unwrap();
    let words = "expected `model.safetensors` or `model.safetensors.index.json`, found neither";
    finds(dir.path(), &[(Rule::Files, "", None, words)]);
}

#[test]
fn weights_that_cannot_be_read_are_one_finding() {
    for (bytes, words) in [
        (&b"version https://git-lfs.github.com/spec/v1\n"[..], "found a Git LFS pointer"),
        (b"", "found an empty file"),
        (&[0; 4096], "found zeros"),
        (b"<!DOCTYPE html>", "found an HTML page"),
        (&[255; 100], "found header length 18446744073709551615 exceeds file size"),
    ] {
        let dir = Made::dense(Layout::Mma).save();
        fs::write(dir.path().join(SINGLE_NAME), bytes).unwrap();
        finds(dir.path(), &[(Rule::Header, SINGLE_NAME, None, words)]);
    }
}

#[test]
fn a_file_cut_short_names_the_first_tensor_past_its_end() {
    let dir = Made::dense(Layout::Mma).save();
    let path = dir.path().join(SINGLE_NAME);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let findings = Packed::open(dir.path()).unwrap().findings;
    assert_eq!((findings.len(), findings[0].rule), (1, Rule::Header));
    assert!(findings[0].what.found.contains("first tensor past the end"), "{}", findings[0]);
}

#[test]
fn links_are_followed_within_a_checkpoint_and_into_the_hubs_cache() {
    let cache = tempfile::tempdir().unwrap();
    let repo = cache.path().join("models--a--b");
    let snapshot = repo.join("snapshots/0123");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(repo.join("blobs")).unwrap();
    let dir = Made::dense(Layout::Mma).save();
    for (blob, file) in [MANIFEST_NAME, SINGLE_NAME].into_iter().enumerate() {
        fs::copy(dir.path().join(file), repo.join(format!("blobs/{blob}"))).unwrap();
        symlink(format!("../../blobs/{blob}"), snapshot.join(file)).unwrap();
    }
    finds(&snapshot, &[]);
    fs::rename(repo.join("blobs/1"), repo.join("1")).unwrap();
    finds(&snapshot, &[(Rule::Header, SINGLE_NAME, None, "found a dangling link to `../../blobs/1`")]);
    fs::remove_file(snapshot.join(SINGLE_NAME)).unwrap();
    symlink("../../1", snapshot.join(SINGLE_NAME)).unwrap();
    finds(
        &snapshot,
        &[(Rule::Files, SINGLE_NAME, None, "expected a file inside the checkpoint, found a link to")],
    );
}

#[test]
fn a_missing_shard_is_one_finding_and_the_rest_is_looked_at() {
    let mut made = Made::dense(Layout::Mma);
    made.manifest.tensors.as_mut().unwrap().push(("other".to_owned(), Digest::of(b"")));
    let dir = made.save_shards(|_| {});
    fs::remove_file(dir.path().join(SHARDS[1])).unwrap();
    finds(
        dir.path(),
        &[
            (Rule::Files, SHARDS[1], None, "found no such file"),
            (Rule::Coverage, MANIFEST_NAME, Some("other"), "found no such tensor"),
        ],
    );
}

#[test]
fn shards_are_files_of_the_folder_itself() {
    let dir = Made::dense(Layout::Mma).save_shards(|index| {
        index
            .weight_map
            .iter_mut()
            .for_each(|(_, file)| *file = file.replace("model-00002", "sub/model-00002"));
    });
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::rename(dir.path().join(SHARDS[1]), dir.path().join("sub").join(SHARDS[1])).unwrap();
    let words = "expected shards in the folder itself, found `sub/model-00002-of-00002.safetensors`";
    finds(dir.path(), &[(Rule::Files, "", None, words)]);
    let dir = Made::dense(Layout::Mma).save_shards(|index| index.weight_map[0].1 = "../x".to_owned());
    finds(
        dir.path(),
        &[(Rule::Index, INDEX_NAME, None, "expected files inside the checkpoint, found \"../x\"")],
    );
}

#[test]
fn a_broken_index_is_one_finding() {
    for (text, words) in [
        ("{", "found invalid JSON: EOF while parsing an object"),
        (
            r#"{"metadata": {"total_size": 1, "total_size": 1}, "weight_map": {}}"#,
            "duplicate key `total_size`",
        ),
        (r#"{"weight_map": {"a": "b", "a": "b"}}"#, "duplicate key `a`"),
    ] {
        let dir = Made::dense(Layout::Mma).save_shards(|_| {});
        fs::write(dir.path().join(INDEX_NAME), text).unwrap();
        finds(dir.path(), &[(Rule::Index, INDEX_NAME, None, words)]);
    }
}

#[test]
fn the_index_has_each_tensor_in_the_shard_that_holds_it() {
    // In the other shard.
    let dir = Made::dense(Layout::Mma).save_shards(|index| index.weight_map[0].1 = SHARDS[1].to_owned());
    let there = format!("expected `{INDEX_NAME}` to have it in this shard, found it in `{}`", SHARDS[1]);
    let here = format!("expected it in `{}`, found it in `{}`", SHARDS[1], SHARDS[0]);
    finds(
        dir.path(),
        &[(Rule::Index, SHARDS[0], Some(PLAIN), &there), (Rule::Index, INDEX_NAME, Some(PLAIN), &here)],
    );
    // In none.
    let dir = Made::dense(Layout::Mma).save_shards(|index| drop(index.weight_map.remove(0)));
    finds(dir.path(), &[(Rule::Index, SHARDS[0], Some(PLAIN), "to have it in this shard, found it in none")]);
    // A tensor that no shard holds.
    let dir = Made::dense(Layout::Mma).save_shards(|index| {
        index.weight_map.push(("x".to_owned(), SHARDS[1].to_owned()));
    });
    let words = "expected it in `model-00002-of-00002.safetensors`, found it in no shard";
    finds(dir.path(), &[(Rule::Index, INDEX_NAME, Some("x"), words)]);
}

#[test]
fn a_tensor_in_two_shards_is_damage() {
    let mut made = Made::dense(Layout::Mma);
    let copy = made.saved(PLAIN).clone();
    let dir = made.save_shards(|_| {});
    let half = made.saved.len() / 2;
    made.saved.push(copy);
    write(&dir.path().join(SHARDS[1]), &made.saved[half..]);
    let findings = Packed::open(dir.path()).unwrap().findings;
    let words = "to have it in this shard, found it in `model-00001-of-00002.safetensors`";
    holds(dir.path(), &findings[..1], &[(Rule::Index, SHARDS[1], Some(PLAIN), words)]);
    assert_eq!(findings[1..].iter().map(|finding| finding.level).collect::<Vec<_>>(), [Level::Warning]);
}

#[test]
fn a_wrong_total_is_a_warning() {
    for total in [Some(1), None] {
        let dir = Made::dense(Layout::Mma).save_shards(|_| {});
        let path = dir.path().join(INDEX_NAME);
        let text = fs::read_to_string(&path).unwrap();
        let real: serde_json::Value = serde_json::from_str(&text).unwrap();
        let real = real["metadata"]["total_size"].to_string();
        let to = total.map_or("null".to_owned(), |total: u64| total.to_string());
        fs::write(&path, text.replacen(&real, &to, 1)).unwrap();
        let findings = Packed::open(dir.path()).unwrap().findings;
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((finding.level, finding.rule), (Level::Warning, Rule::Index));
        assert!(finding.to_string().contains(&format!("expected a total_size of {real} bytes")), "{finding}");
    }
}

#[test]
fn headers_are_written_in_one_way() {
    let made = Made::dense(Layout::Mma);
    let text = |bytes: &[u8]| {
        let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
        (String::from_utf8(bytes[8..8 + length].to_vec()).unwrap(), bytes[8 + length..].to_vec())
    };
    let changes: [fn(&str) -> String; 5] = [
        |text| text.replacen("\"format\":\"pt\"", "\"format\":\"np\"", 1),
        |text| text.replacen("\"__metadata__\":{\"format\":\"pt\"},", "", 1),
        |text| text.replacen("\"dtype\":\"F32\",\"shape\":[3]", "\"shape\":[3],\"dtype\":\"F32\"", 1),
        |text| format!("{text}        "),
        |text| text.replacen(',', ", ", 1),
    ];
    for change in changes {
        let dir = made.save();
        let path = dir.path().join(SINGLE_NAME);
        let (header, data) = text(&fs::read(&path).unwrap());
        let header = change(&header);
        glyd_fixtures::safetensors::write_raw(&path, &header, &data);
        finds(
            dir.path(),
            &[(Rule::Canonical, SINGLE_NAME, None, "expected the header that is written for its tensors")],
        );
    }
    // The tensors in another order.
    let dir = made.save();
    let reversed: Vec<Saved> = made.saved.iter().rev().cloned().collect();
    let entries: Vec<_> = reversed
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            (name.as_str(), dtype.to_string(), shape.as_slice(), bytes.as_slice())
        })
        .collect();
    let entries: Vec<_> =
        entries.iter().map(|(name, dtype, shape, bytes)| (*name, dtype.as_str(), *shape, *bytes)).collect();
    glyd_fixtures::safetensors::write(&dir.path().join(SINGLE_NAME), Some(&[("format", "pt")]), &entries);
    finds(dir.path(), &[(Rule::Canonical, SINGLE_NAME, None, "found another")]);
}

#[test]
fn every_buffer_and_every_tensor_with_a_sum_is_there() {
    let mut made = Made::dense(Layout::Mma12);
    let list = buffer(GROUP, Layout::Mma12, Buffer::List);
    made.saved.retain(|(name, ..)| *name != list && name != PLAIN);
    finds(
        made.save().path(),
        &[
            (
                Rule::Coverage,
                MANIFEST_NAME,
                Some(&list),
                "expected the buffer of a pack, found no such tensor",
            ),
            (
                Rule::Coverage,
                MANIFEST_NAME,
                Some(PLAIN),
                "that `tensors` has a sha256 of, found no such tensor",
            ),
        ],
    );
}

#[test]
fn a_tensor_that_nothing_answers_for_is_damage() {
    let mut made = Made::dense(Layout::Mma);
    made.saved.push(("x".to_owned(), Dtype::U8, vec![1], vec![1]));
    let words = "expected a pack's buffer or a tensor that `tensors` has a sha256 of, found a tensor that `glyd.json`";
    finds(made.save().path(), &[(Rule::Coverage, SINGLE_NAME, Some("x"), words)]);
    // Where there are no sums, nobody can say.
    made.manifest.tensors = None;
    made.manifest.glyd = Version([0, 24, 0]);
    finds(made.save().path(), &[]);
}

#[test]
fn a_buffer_has_no_sum_of_its_own() {
    let mut made = Made::dense(Layout::Mma);
    let data = buffer(LINEAR, Layout::Mma, Buffer::Data);
    made.manifest.tensors.as_mut().unwrap().push((data.clone(), Digest::of(b"")));
    let words = "expected a pack's buffer or a tensor with a sha256, found a name that is both";
    finds(made.save().path(), &[(Rule::Coverage, MANIFEST_NAME, Some(&data), words)]);
}

#[test]
fn buffers_have_their_layouts_dtypes() {
    for layout in Layout::ALL {
        for of in Buffer::ALL {
            let mut made = Made::dense(layout);
            let name = buffer(LINEAR, layout, of);
            let saved = made.saved(&name);
            let found = format!("found F32 {:?}", [saved.3.len() / 4]);
            let words = format!("expected {} [", saved.1);
            (saved.1, saved.2) = (Dtype::F32, vec![(saved.3.len() / 4) as u64]);
            saved.3.truncate(saved.3.len() / 4 * 4);
            let dir = made.save();
            finds(dir.path(), &[(Rule::Buffers, SINGLE_NAME, Some(&name), &words)]);
            let opened = Packed::open(dir.path()).unwrap();
            assert!(opened.findings[0].to_string().contains(&found), "{}", opened.findings[0]);
            let packed = opened.packed.unwrap();
            let buffers = |name: &str| {
                let mut packs = packed.manifest().packs.iter();
                packed.buffers(name, &packs.find(|(pack, _)| pack == name).unwrap().1)
            };
            assert!(buffers(LINEAR).is_none() && buffers(GROUP).is_some());
        }
    }
}

#[test]
fn buffers_have_the_sizes_of_their_packs_shape() {
    for layout in Layout::ALL {
        for of in [Buffer::Data, Buffer::Base] {
            let mut made = Made::dense(layout);
            let name = buffer(GROUP, layout, of);
            let saved = made.saved(&name);
            let words = format!("{} [{}], for a matrix of 256 x 32, found", saved.1, saved.2[0]);
            saved.2[0] -= 1;
            saved.3.truncate(saved.3.len() - saved.1.bitsize() / 8);
            finds(made.save().path(), &[(Rule::Buffers, SINGLE_NAME, Some(&name), &words)]);
            // The same bytes in two dimensions.
            let mut made = Made::dense(layout);
            made.saved(&name).2.push(1);
            finds(made.save().path(), &[(Rule::Buffers, SINGLE_NAME, Some(&name), &words)]);
        }
        let mut made = Made::dense(layout);
        let name = buffer(GROUP, layout, Buffer::List);
        let saved = made.saved(&name);
        (saved.2, saved.3) = (vec![0], Vec::new());
        finds(
            made.save().path(),
            &[(
                Rule::Buffers,
                SINGLE_NAME,
                Some(&name),
                "[a list's length], for a matrix of 256 x 32, found",
            )],
        );
    }
}

#[test]
fn a_shape_that_no_layout_takes_is_damage() {
    for shape in [[63, 48], [64, 0], [1 << 40, 1 << 40], [u64::MAX - 63, 16]] {
        let mut made = Made::dense(Layout::Mma);
        made.entry(LINEAR).shape = shape;
        let findings = Packed::open(made.save().path()).unwrap().findings;
        let rules: Vec<Rule> = findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, [Rule::Buffers, Rule::Membership], "{shape:?}");
        assert!(findings[0].to_string().contains(&format!("found shape {shape:?}")), "{}", findings[0]);
    }
}

/// What is found where the dense checkpoint's group has been changed so.
#[track_caller]
fn group_finds(change: impl Fn(&mut PackEntry), words: &str) {
    let mut made = Made::dense(Layout::Mma);
    change(made.entry(GROUP));
    finds(made.save().path(), &[(Rule::Membership, MANIFEST_NAME, Some(GROUP), words)]);
}

#[test]
fn a_packs_tensors_are_its_own() {
    let names =
        "expected `model.layers.0.self_attn.q_proj.weight`, or the members of its merged group, found [";
    group_finds(|entry| entry.tensors.swap(1, 2), names);
    group_finds(|entry| drop(entry.tensors.pop()), names);
    group_finds(|entry| drop(entry.tensors.remove(0)), names);
    group_finds(|entry| entry.tensors.clear(), names);
    group_finds(|entry| entry.tensors.push(tensor("x", &[64, 32])), names);
    group_finds(|entry| entry.tensors[1].name = "model.layers.1.self_attn.k_proj.weight".to_owned(), names);
    group_finds(|entry| entry.tensors[0].shape = vec![64, 32], "expected 256 rows in all, found 192");
    group_finds(
        |entry| entry.tensors[0].shape = vec![64, 2, 32],
        "q_proj.weight` to be a matrix, found shape [64, 2, 32]",
    );
    group_finds(
        |entry| entry.tensors[2].shape = vec![64, 48],
        "v_proj.weight` to have rows of a multiple of 64 and 32 columns",
    );
    group_finds(|entry| entry.tensors[2].shape = vec![32, 32], "found shape [32, 32]");
    group_finds(
        |entry| entry.tensors[0].shape = vec![1 << 50, 32],
        "expected 256 rows in all, found 1125899906842752",
    );
    let mut made = Made::dense(Layout::Mma);
    made.entry(LINEAR).tensors[0].name = "o_proj.weight".to_owned();
    let words = "expected `model.layers.0.self_attn.o_proj.weight`, or";
    finds(made.save().path(), &[(Rule::Membership, MANIFEST_NAME, Some(LINEAR), words)]);
}

#[test]
fn a_tensor_is_in_one_pack_once() {
    let mut made = Made::dense(Layout::Mma);
    let key = "model.layers.0.self_attn.k_proj";
    let (mut entry, buffers) = pack(Layout::Mma, key, 64, 32, false);
    entry.tensors = vec![tensor(&format!("{key}.weight"), &[64, 32])];
    made.push(key, entry, buffers);
    let words = "expected a tensor of one pack, once, found one of `model.layers.0.self_attn.q_proj` and of `model.layers.0.self_attn.k_proj`";
    let name = format!("{key}.weight");
    finds(made.save().path(), &[(Rule::Membership, MANIFEST_NAME, Some(&name), words)]);
    let mut made = Made::dense(Layout::Mma);
    let first = made.entry(LINEAR).tensors[0].clone();
    made.entry(LINEAR).tensors.push(first.clone());
    finds(
        made.save().path(),
        &[
            (Rule::Membership, MANIFEST_NAME, Some(LINEAR), "or the members of its merged group"),
            (Rule::Membership, MANIFEST_NAME, Some(&first.name), "expected a tensor of one pack, once"),
        ],
    );
}

#[test]
fn a_packed_tensor_is_not_saved_as_it_is_too() {
    let mut made = Made::dense(Layout::Mma);
    let name = format!("{LINEAR}.weight");
    let bytes = vec![0; 64 * 48 * 2];
    made.manifest.tensors.as_mut().unwrap().push((name.clone(), Digest::of(&bytes)));
    made.saved.push((name.clone(), Dtype::BF16, vec![64, 48], bytes));
    let words = "expected a tensor in a pack, or saved as it is, found one of the pack `model.layers.0.self_attn.o_proj`";
    finds(made.save().path(), &[(Rule::Membership, MANIFEST_NAME, Some(&name), words)]);
}

#[test]
fn experts_have_the_shapes_of_their_matrices() {
    let words = "expected the shape of 2 experts whose matrices make [128, 32], found shape ";
    for (shape, transposed) in [
        (&[2, 32, 64][..], false),
        (&[2, 64, 32], true),
        (&[1, 128, 32], false),
        (&[4, 32, 32], false),
        (&[32, 128], false),
        (&[128, 32], true),
        (&[127, 32], false),
        (&[128], false),
        (&[2, 64, 32, 1], false),
        (&[2, u64::MAX, 32], false),
    ] {
        let dir = Made::with_experts(shape, transposed).save();
        finds(dir.path(), &[(Rule::Membership, MANIFEST_NAME, Some(EXPERTS), words)]);
    }
    for count in [0, 1, 3, u64::MAX] {
        let mut made = Made::with_experts(&[2, 64, 32], false);
        made.entry(EXPERTS).experts = Some(ExpertsEntry { count, transposed: false });
        let words = format!("expected the shape of {count} experts");
        finds(made.save().path(), &[(Rule::Membership, MANIFEST_NAME, Some(EXPERTS), &words)]);
    }
    for count in [0, 3] {
        let mut made = Made::with_experts(&[128, 32], false);
        made.entry(EXPERTS).experts = Some(ExpertsEntry { count, transposed: false });
        let words = format!("expected the shape of {count} experts");
        finds(made.save().path(), &[(Rule::Membership, MANIFEST_NAME, Some(EXPERTS), &words)]);
    }
}

#[test]
fn experts_are_one_tensor_of_the_packs_name() {
    let mut made = Made::with_experts(&[2, 64, 32], false);
    made.entry(EXPERTS).tensors[0].name = format!("{EXPERTS}.weight");
    finds(
        made.save().path(),
        &[(Rule::Membership, MANIFEST_NAME, Some(EXPERTS), "expected the experts' weight itself, found [")],
    );
    let mut made = Made::with_experts(&[2, 64, 32], false);
    made.entry(EXPERTS).tensors.clear();
    finds(
        made.save().path(),
        &[(Rule::Membership, MANIFEST_NAME, Some(EXPERTS), "expected the experts' weight itself, found []")],
    );
    let dir = Made::with_experts(&[2, 64, 32], false).save();
    edit(&dir, ",\n   \"transposed\": false", "");
    let words =
        "gate_up_proj` to be an entry with both `experts` and `transposed`, or none, found one of them";
    finds(dir.path(), &[(Rule::Manifest, MANIFEST_NAME, None, words)]);
}

#[test]
fn findings_of_every_rule_are_gathered() {
    let mut made = Made::dense(Layout::Mma);
    made.entry(GROUP).tensors.swap(0, 1);
    made.saved.push(("x".to_owned(), Dtype::U8, vec![1], vec![1]));
    let data = buffer(LINEAR, Layout::Mma, Buffer::Data);
    made.saved(&data).1 = Dtype::I8;
    made.saved.retain(|(name, ..)| name != PLAIN);
    let dir = made.save();
    edit(&dir, "\"0.25.1\",", "\"0.25.1\", \"y\": 0,");
    finds(
        dir.path(),
        &[
            (Rule::Manifest, MANIFEST_NAME, None, "found `y`"),
            (Rule::Coverage, MANIFEST_NAME, Some(PLAIN), "found no such tensor"),
            (Rule::Coverage, SINGLE_NAME, Some("x"), "does not name"),
            (Rule::Buffers, SINGLE_NAME, Some(&data), "expected U8 ["),
            (Rule::Membership, MANIFEST_NAME, Some(GROUP), "or the members of its merged group"),
        ],
    );
}

/// What is left to tell apart once the values that opening cannot judge are put right: the writer's
/// version, the source, and what the weights are decoded by and hashed to.
fn judged(mut manifest: Manifest, whole: &Manifest) -> Manifest {
    manifest.glyd = whole.glyd;
    manifest.source = whole.source.clone();
    for ((_, entry), (_, whole)) in manifest.packs.iter_mut().zip(&whole.packs) {
        entry.coding = whole.coding;
        for (tensor, whole) in entry.tensors.iter_mut().zip(&whole.tensors) {
            tensor.sha256 = whole.sha256;
        }
    }
    let sums = manifest.tensors.iter_mut().flatten().zip(whole.tensors.iter().flatten());
    sums.for_each(|((_, sum), (_, whole))| *sum = *whole);
    manifest
}

/// Flips every bit of the first `length` bytes of a file in turn, and opens the checkpoint.
fn flip_every_bit(dir: &Path, file: &str, length: usize, opened: impl Fn(usize, Option<Manifest>)) {
    let path = dir.join(file);
    let whole = fs::read(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    for bit in 0..8 * length {
        let (at, byte) = (bit / 8, whole[bit / 8]);
        file.write_all_at(&[byte ^ 1 << (bit % 8)], at as u64).unwrap();
        let unnoticed = Packed::open(dir).ok().filter(|opened| opened.findings.is_empty());
        opened(bit, unnoticed.map(|opened| opened.packed.unwrap().manifest().clone()));
        file.write_all_at(&[byte], at as u64).unwrap();
    }
}

#[test]
fn no_flipped_bit_of_the_manifest_goes_unnoticed_but_in_values() {
    let made = Made::with_experts(&[2, 64, 32], false);
    let dir = made.save();
    let length = made.manifest.text().len();
    flip_every_bit(dir.path(), MANIFEST_NAME, length, |bit, unnoticed| {
        if let Some(manifest) = unnoticed {
            assert_eq!(judged(manifest, &made.manifest), made.manifest, "bit {bit}");
        }
    });
}

#[test]
fn no_flipped_bit_of_a_header_goes_unnoticed() {
    let dir = Made::dense(Layout::Mma12).save();
    let bytes = fs::read(dir.path().join(SINGLE_NAME)).unwrap();
    let length = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    flip_every_bit(dir.path(), SINGLE_NAME, length, |bit, unnoticed| {
        assert!(unnoticed.is_none(), "bit {bit}");
    });
}

#[test]
fn no_flipped_bit_of_an_index_goes_unnoticed() {
    let dir = Made::dense(Layout::Mma12).save_shards(|_| {});
    let length = fs::read(dir.path().join(INDEX_NAME)).unwrap().len();
    flip_every_bit(dir.path(), INDEX_NAME, length, |bit, unnoticed| {
        assert!(unnoticed.is_none(), "bit {bit}");
    });
}
