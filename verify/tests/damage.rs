//! Packed checkpoints broken on purpose, a rule of `docs/format.md`, section 7, at a time; and every bit
//! of small ones flipped, and every truncation.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests' code: it panics when it fails")]

#[path = "../../packers/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Model, bytes_of, options};
use glyd_fixtures::weights::{all_patterns, trained_like};
use glyd_format::finding::{Level, Rule};
use glyd_format::header::Header;
use glyd_format::manifest::{MANIFEST_NAME, Manifest};
use glyd_format::packed::SINGLE_NAME;
use glyd_format::{Coding, Digest, Dtype, Layout};
use glyd_packers::Options;
use glyd_verify::{Report, Verdict};
use tempfile::TempDir;

/// A packed checkpoint in memory: what a test may break.
struct Made {
    dir: TempDir,
    manifest: Manifest,
    tensors: Vec<(String, Dtype, Vec<u64>, Vec<u8>)>,
}

const EXPERTS: &str = "b.experts.w";

/// A model of a Linear of two strips, experts and two tensors saved as they are.
fn model(experts: bool) -> Model {
    // Some weights of every kind, so that all parts of a step are there.
    let mut weights = trained_like(128 * 32, 1);
    weights.iter_mut().step_by(20).zip(all_patterns(1)).for_each(|(weight, any)| *weight = any);
    let model = Model::unknown()
        .with_weights("a.weight", &[128, 32], &weights)
        .with("norm", "F32", &[4], bytes_of(&all_patterns(3)[..8]))
        .with_weights("other", &[8], &trained_like(8, 4));
    if experts { model.with_weights(EXPERTS, &[2, 64, 16], &trained_like(2048, 2)) } else { model }
}

fn pack(model: &Model, options: &Options) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("in");
    model.write(&source);
    common::pack(&source, &dir.path().join("out"), options).unwrap();
    fs::remove_dir_all(&source).unwrap();
    dir
}

impl Made {
    fn new(layout: Layout) -> Made {
        let dir = pack(&model(layout == Layout::Mma), &options(layout));
        let out = dir.path().join("out");
        let manifest = common::manifest(&out);
        let bytes = fs::read(out.join(SINGLE_NAME)).unwrap();
        let file = glyd_format::file::File::open(&out.join(SINGLE_NAME)).unwrap();
        let (header, _) = Header::read(&file).unwrap();
        let tensors = header.tensors.into_iter().map(|tensor| {
            let at = |offset: u64| usize::try_from(header.data_offset + offset).unwrap();
            let data = bytes[at(tensor.begin)..at(tensor.end)].to_vec();
            (tensor.name, tensor.dtype, tensor.shape, data)
        });
        Made { manifest, tensors: tensors.collect(), dir }
    }

    fn tensor(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap().3
    }

    /// The 32-bit entries of a tensor.
    fn entries(&mut self, name: &str, change: impl FnOnce(&mut Vec<i32>)) {
        let bytes = self.tensor(name);
        let mut entries: Vec<i32> =
            bytes.as_chunks::<4>().0.iter().map(|&entry| i32::from_le_bytes(entry)).collect();
        change(&mut entries);
        *bytes = entries.into_iter().flat_map(i32::to_le_bytes).collect();
    }

    fn out(&self) -> std::path::PathBuf {
        self.dir.path().join("out")
    }

    /// Writes it with headers as they must be, and verifies it.
    fn verify(&self) -> Report {
        let sizes = self.tensors.iter().map(|(name, dtype, shape, bytes)| {
            let shape = match shape[..] {
                [_] => vec![(bytes.len() * 8 / dtype.bitsize()) as u64],
                _ => shape.clone(),
            };
            (name.clone(), *dtype, shape)
        });
        let header = Header::arrange(sizes.collect()).unwrap();
        let mut file = header.to_bytes();
        for tensor in &header.tensors {
            file.extend(&self.tensors.iter().find(|own| own.0 == tensor.name).unwrap().3);
        }
        fs::write(self.out().join(SINGLE_NAME), file).unwrap();
        fs::write(self.out().join(MANIFEST_NAME), self.manifest.text()).unwrap();
        common::verify(&self.out())
    }

    /// Holds what is found to be these: each its rule, its tensor, and a part of its message.
    fn finds(&self, wanted: &[(Rule, &str, &str)]) {
        let report = self.verify();
        assert_eq!(report.verdict(), Verdict::Damaged);
        let found: Vec<String> =
            report.findings.iter().map(|finding| format!("{}: {finding}", finding.rule)).collect();
        assert_eq!(found.len(), wanted.len(), "{found:#?}");
        for (finding, (rule, tensor, part)) in report.findings.iter().zip(wanted) {
            assert_eq!(finding.rule, *rule, "{found:#?}");
            assert_eq!(finding.level, Level::Damage);
            assert_eq!(finding.what.tensor.as_deref(), Some(*tensor), "{found:#?}");
            assert!(finding.to_string().contains(part), "{part}: {found:#?}");
            assert!(finding.what.file.is_some());
        }
    }
}

fn broken(layout: Layout, change: impl FnOnce(&mut Made), wanted: &[(Rule, &str, &str)]) {
    let mut made = Made::new(layout);
    assert_eq!(made.verify().verdict(), Verdict::Good);
    change(&mut made);
    made.finds(wanted);
}

#[test]
fn lists_start_where_they_must() {
    for first in [0, 127, 129, -1, i32::MIN] {
        broken(
            Layout::Mma,
            |made| made.entries("a.glyd_block_base", |base| base[0] = first),
            &[
                (Rule::Lists, "a.glyd_block_base", "128 first"),
                (Rule::Lists, "a.weight", "in step 0 of the pack `a`"),
            ],
        );
    }
    broken(
        Layout::Mma12,
        |made| made.entries("a.glyd_exc_base", |base| base[0] = 1),
        &[(Rule::Lists, "a.glyd_exc_base", "0 first"), (Rule::Digest, "a.weight", "sha256")],
    );
}

#[test]
fn lists_end_where_they_must() {
    for layout in Layout::ALL {
        let base = if layout == Layout::Mma { "a.glyd_block_base" } else { "a.glyd_exc_base" };
        for change in [4, -4, 1 << 20, i32::MIN] {
            let mut made = Made::new(layout);
            made.entries(base, |base| *base.last_mut().unwrap() = base[3].wrapping_add(change));
            let findings = made.verify().findings;
            let tensors: Vec<_> = findings.iter().map(|finding| finding.what.tensor.as_deref()).collect();
            assert_eq!(tensors, [Some(base), Some("a.weight")], "{findings:#?}");
            assert_eq!(findings[0].rule, Rule::Lists);
            assert!(findings[0].to_string().contains("an end that"), "{findings:#?}");
        }
    }
}

#[test]
fn lists_rise() {
    broken(
        Layout::Mma,
        |made| made.entries("a.glyd_block_base", |base| base[2] = base[1] - 1),
        &[(Rule::Lists, "a.weight", "in step 1 of the pack `a`, a part of the list")],
    );
    broken(
        Layout::Mma12,
        |made| made.entries("a.glyd_exc_base", |base| base[3] = base[4] + 1),
        &[(Rule::Lists, "a.weight", "in step 3 of the pack `a`, a part of the list")],
    );
}

#[test]
fn a_block_is_as_long_as_its_digits_say() {
    // A byte more before the first block's tier-2 words, and every base after it one higher.
    broken(
        Layout::Mma,
        |made| {
            let passed = |byte: &u8| (0..4).filter(|digit| byte >> (2 * digit) & 3 == 3).count();
            let t1: usize = made.tensor("a.glyd_data")[..256].iter().map(passed).sum();
            let mut words = 0;
            made.entries("a.glyd_block_base", |base| {
                words = usize::try_from(base[1]).unwrap() - 4 * t1.div_ceil(16);
                base[1..].iter_mut().for_each(|base| *base += 1);
            });
            made.tensor("a.glyd_blocks").insert(words, 0);
        },
        &[(Rule::Lists, "a.weight", "in step 0 of the pack `a`, a block of the")],
    );
    // One whose last digits are another's.
    let mut made = Made::new(Layout::Mma);
    made.entries("a.glyd_block_base", |base| base[1] -= 1);
    let report = made.verify();
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].what.tensor.as_deref(), Some("a.weight"));
}

#[test]
fn what_is_beside_the_blocks_is_zero() {
    for at in [0, 127] {
        broken(
            Layout::Mma,
            |made| made.tensor("a.glyd_blocks")[at] = 1,
            &[(Rule::Canonical, "a.glyd_blocks", "zeros from byte 0 to 128")],
        );
    }
    broken(
        Layout::Mma,
        |made| *made.tensor("a.glyd_blocks").last_mut().unwrap() = 0x80,
        &[(Rule::Canonical, "a.glyd_blocks", "found 0x80 at byte")],
    );
    broken(
        Layout::Mma,
        |made| made.tensor("a.glyd_blocks").push(0),
        &[(Rule::Lists, "a.glyd_block_base", "an end that")],
    );
    broken(
        Layout::Mma12,
        |made| made.entries("a.glyd_exc", |exc| *exc.last_mut().unwrap() = 1),
        &[(Rule::Canonical, "a.glyd_exc", "zeros from byte")],
    );
    broken(
        Layout::Mma12,
        |made| made.entries("a.glyd_exc", |exc| exc.extend([0; 4])),
        &[(Rule::Lists, "a.glyd_exc_base", "an end that")],
    );
}

#[test]
fn exceptions_keep_their_form() {
    type Change = fn(&mut Vec<i32>);
    let cases: [(Change, &str); 4] = [
        (|exc| exc.swap(0, 1), "in the order of their weights"),
        (|exc| exc[0] |= 1 << 10, "zero bits beside"),
        (|exc| exc[0] |= 1 << 31, "zero bits beside"),
        (|exc| exc[0] &= 0x3FF, "an exception outside the window"),
    ];
    for (change, part) in cases {
        broken(
            Layout::Mma12,
            |made| made.entries("a.glyd_exc", change),
            &[(Rule::Canonical, "a.weight", part)],
        );
    }
    // An offset in the code of a weight that is an exception.
    broken(
        Layout::Mma12,
        |made| {
            let mut place = 0;
            made.entries("a.glyd_exc", |exc| place = usize::try_from(exc[0] & 0x3FF).unwrap());
            let (lane, i) = (place / 32, place % 32);
            let word = 16 * lane + 4 * (i / 8);
            let (byte, bit) = if i % 8 < 4 { (i % 4, 1) } else { ((i % 4 + 3) % 4, 16) };
            made.tensor("a.glyd_data")[word + byte] ^= bit;
        },
        &[(Rule::Canonical, "a.weight", "offset 0 in an exception's code")],
    );
}

#[test]
fn another_base_or_other_tiers_are_other_weights() {
    let mut made = Made::new(Layout::Mma12);
    let Coding::Mma12(base) = made.manifest.packs[0].1.coding else { panic!("another layout") };
    made.manifest.packs[0].1.coding =
        Coding::Mma12(glyd_format::layout::mma12::Base::new(u64::from(base.get()) - 1).unwrap());
    let report = made.verify();
    assert_eq!(report.verdict(), Verdict::Damaged);
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].what.tensor.as_deref(), Some("a.weight"));

    let mut made = Made::new(Layout::Mma);
    let Coding::Mma(tiers) = made.manifest.packs[0].1.coding else { panic!("another layout") };
    for (a, b) in [(0, 1), (2, 3), (6, 8)] {
        let mut exponents = *tiers.exponents();
        exponents.swap(a, b);
        made.manifest.packs[0].1.coding =
            Coding::Mma(glyd_format::layout::mma::Tiers::new(exponents).unwrap());
        made.finds(&[(Rule::Digest, "a.weight", "sha256")]);
    }
}

#[test]
fn every_sum_is_held_to() {
    let zero: Digest = "0".repeat(64).parse().unwrap();
    broken(
        Layout::Mma,
        |made| made.manifest.packs[0].1.tensors[0].sha256 = zero,
        &[(Rule::Digest, "a.weight", &zero.to_string())],
    );
    broken(
        Layout::Mma,
        |made| made.manifest.tensors.as_mut().unwrap()[1].1 = zero,
        &[(Rule::Digest, "other", &zero.to_string())],
    );
    broken(Layout::Mma, |made| made.tensor("norm")[15] ^= 1, &[(Rule::Digest, "norm", "sha256")]);
    broken(
        Layout::Mma,
        |made| made.tensor("b.experts.glyd_w_data")[300] ^= 2,
        &[(Rule::Digest, EXPERTS, "sha256")],
    );
}

#[test]
fn buffers_of_one_size_that_are_swapped_are_found() {
    let dir = {
        let model = Model::unknown()
            .with_weights("a.weight", &[64, 32], &trained_like(2048, 1))
            .with_weights("b.weight", &[64, 32], &trained_like(2048, 2));
        pack(&model, &options(Layout::Mma))
    };
    let out = dir.path().join("out");
    let bytes = fs::read(out.join(SINGLE_NAME)).unwrap();
    let file = glyd_format::file::File::open(&out.join(SINGLE_NAME)).unwrap();
    let (header, _) = Header::read(&file).unwrap();
    for buffer in ["data", "block_base"] {
        let range = |pack: &str| {
            let name = format!("{pack}.glyd_{buffer}");
            let tensor = header.tensors.iter().find(|tensor| tensor.name == name).unwrap();
            let at = |offset: u64| usize::try_from(header.data_offset + offset).unwrap();
            at(tensor.begin)..at(tensor.end)
        };
        let mut swapped = bytes.clone();
        swapped[range("a")].copy_from_slice(&bytes[range("b")]);
        swapped[range("b")].copy_from_slice(&bytes[range("a")]);
        fs::write(out.join(SINGLE_NAME), swapped).unwrap();
        let report = common::verify(&out);
        let mut found: Vec<&str> =
            report.findings.iter().map(|finding| finding.what.tensor.as_deref().unwrap()).collect();
        found.retain(|tensor| tensor.ends_with(".weight"));
        assert_eq!(found, ["a.weight", "b.weight"], "{buffer}");
    }
}

#[test]
fn findings_gather_in_the_files_order_whatever_the_threads() {
    let mut model = Model::unknown();
    for number in 0..12 {
        let rows = 64 * (1 + number % 3);
        let weights = trained_like(usize::try_from(rows * 32).unwrap(), number);
        model = model.with_weights(&format!("layers.{number}.weight"), &[rows, 32], &weights);
        model = model.with_weights(&format!("layers.{number}.norm"), &[8], &trained_like(8, number));
    }
    let dir = pack(&model, &Options { shard_bytes: 10_000, ..options(Layout::Mma) });
    let out = dir.path().join("out");
    // A byte of every hundred.
    for (name, mut bytes) in common::files(&out) {
        if name.ends_with(".safetensors") {
            let start = usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap() + 8;
            bytes[start..].iter_mut().step_by(100).for_each(|byte| *byte ^= 0x10);
            fs::write(out.join(name), bytes).unwrap();
        }
    }
    let report = |threads| {
        let options = glyd_verify::Options { threads: Some(threads) };
        let report = glyd_verify::verify(&out, &options, &()).unwrap();
        (report.findings, report.packed_tensors, report.plain_tensors, report.bytes)
    };
    let one = report(1);
    assert!(one.0.len() >= 12, "{}", one.0.len());
    let packed: Vec<&str> = one
        .0
        .iter()
        .filter_map(|finding| finding.what.tensor.as_deref())
        .filter(|name| name.ends_with(".weight"))
        .collect();
    let order: Vec<String> = (0..12).map(|number| format!("layers.{number}.weight")).collect();
    assert_eq!(packed, order);
    for _ in 0..5 {
        assert_eq!(report(7), one);
    }
}

/// The smallest checkpoint of each version of the format.
fn smallest(version: u32) -> TempDir {
    let layout = if version == 3 { Layout::Mma12 } else { Layout::Mma };
    let mut weights = trained_like(1024, 1);
    weights.iter_mut().step_by(20).zip(all_patterns(1)).for_each(|(weight, any)| *weight = any);
    let model = Model::unknown().with_weights("norm", &[3], &trained_like(3, 4));
    let model = if version == 2 {
        model.with_weights("experts.w", &[1, 64, 16], &weights)
    } else {
        model.with_weights("a.weight", &[64, 16], &weights)
    };
    let dir = pack(&model, &options(layout));
    let manifest = common::manifest(&dir.path().join("out"));
    assert_eq!((manifest.format.name(), manifest.packs.len()), (&*format!("glyd-v{version}"), 1));
    dir
}

fn damaged(out: &Path) -> bool {
    let options = glyd_verify::Options { threads: Some(1) };
    match glyd_verify::verify(out, &options, &()) {
        Ok(report) => report.verdict() == Verdict::Damaged,
        // What is no packed checkpoint, or one of a later format, is told so.
        Err(glyd_verify::Error::Read(_)) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Flips every bit of a file, and returns those that nobody noticed, by byte and bit.
fn unnoticed_bits(out: &Path, name: &str) -> BTreeMap<usize, Vec<u32>> {
    let path = out.join(name);
    let whole = fs::read(&path).unwrap();
    let mut unnoticed: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    let file = fs::File::options().write(true).open(&path).unwrap();
    for (at, &byte) in whole.iter().enumerate() {
        for bit in 0..8 {
            file.write_all_at(&[byte ^ 1 << bit], at as u64).unwrap();
            if !damaged(out) {
                unnoticed.entry(at).or_default().push(bit);
            }
        }
        file.write_all_at(&[byte], at as u64).unwrap();
    }
    assert!(!damaged(out));
    unnoticed
}

fn no_bit_of_the_weights(version: u32) {
    let dir = smallest(version);
    let unnoticed = unnoticed_bits(&dir.path().join("out"), SINGLE_NAME);
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

#[test]
fn no_bit_of_the_weights_of_a_glyd_v1_is_flipped_unnoticed() {
    no_bit_of_the_weights(1);
}

#[test]
fn no_bit_of_the_weights_of_a_glyd_v2_is_flipped_unnoticed() {
    no_bit_of_the_weights(2);
}

#[test]
fn no_bit_of_the_weights_of_a_glyd_v3_is_flipped_unnoticed() {
    no_bit_of_the_weights(3);
}

#[test]
fn the_bits_of_the_manifest_that_may_flip_unnoticed_are_few() {
    for version in 1..=3 {
        let dir = smallest(version);
        let out = dir.path().join("out");
        let text = fs::read_to_string(out.join(MANIFEST_NAME)).unwrap();
        let line_at = |at: usize| text[..=at].matches('\n').count();
        let lines: Vec<&str> = text.lines().collect();
        for (at, bits) in unnoticed_bits(&out, MANIFEST_NAME) {
            let line = lines[line_at(at).min(lines.len() - 1)];
            let what = format!("glyd-v{version}: byte {at}, bits {bits:?}, of {line:?}");
            let before = &text[..at];
            // Between values, and in the indent, one space is as good as another.
            let space = text.as_bytes()[at].is_ascii_whitespace();
            let source = line.contains("\"repo\"") || line.contains("\"revision\"");
            // The writer's version is one, whichever: what an older one may lack is there.
            let writer = line.contains("\"glyd\":");
            // Exponents of ranks that no weight has.
            let tiers = before.contains("\"tiers\"") && !before.contains("\"tensors\"");
            assert!(space || source || writer || tiers, "{what}");
        }
    }
}

#[test]
fn every_truncation_is_noticed() {
    for version in 1..=3 {
        let dir = smallest(version);
        let out = dir.path().join("out");
        for name in [SINGLE_NAME, MANIFEST_NAME] {
            let path = out.join(name);
            let whole = fs::read(&path).unwrap();
            for length in 0..whole.len() {
                fs::write(&path, &whole[..length]).unwrap();
                assert!(damaged(&out), "glyd-v{version}: `{name}` of {length} bytes");
            }
            let longer = [&whole[..], b"x"].concat();
            fs::write(&path, longer).unwrap();
            assert!(damaged(&out), "glyd-v{version}: `{name}` with a byte more");
            fs::write(&path, whole).unwrap();
        }
        assert!(!damaged(&out));
    }
}

#[test]
fn no_bit_of_a_sharded_checkpoints_index_or_small_shards_is_flipped_unnoticed() {
    let weights = trained_like(1024, 1);
    let model =
        Model::unknown().with_weights("a.weight", &[64, 16], &weights).with_weights("b", &[2], &weights[..2]);
    let dir = pack(&model, &Options { shard_bytes: 1, ..options(Layout::Mma12) });
    let out = dir.path().join("out");
    for name in common::files(&out).into_keys().filter(|name| name.starts_with("model")) {
        let text = fs::read(out.join(&name)).unwrap();
        if text.len() > 1500 {
            continue;
        }
        let index = name.ends_with(".json");
        for (at, bits) in unnoticed_bits(&out, &name) {
            let line = text[..at].iter().filter(|&&byte| byte == b'\n').count();
            // Spaces, and what is declared of the total: a warning.
            let excused = index && (text[at].is_ascii_whitespace() || (1..=3).contains(&line));
            assert!(excused, "`{name}`: byte {at}, bits {bits:?}");
        }
    }
}

/// Shapes that no memory holds.
#[test]
fn what_a_manifest_tells_allocates_nothing() {
    let huge = [1_u64 << 40, 1 << 57, (1 << 60) - 16, u64::MAX - 15];
    for layout in Layout::ALL {
        for columns in huge {
            for rows in [64, 1 << 40, 1 << 62, u64::MAX - 63] {
                let mut made = Made::new(layout);
                let shapes = [[rows, columns], [rows, 32], [128, columns]];
                for shape in shapes {
                    made.manifest.packs[0].1.shape = shape;
                    made.manifest.packs[0].1.tensors[0].shape = shape.to_vec();
                    assert_eq!(made.verify().verdict(), Verdict::Damaged, "{shape:?}");
                }
            }
        }
    }
}

#[test]
fn experts_of_any_count_are_looked_at_without_end_or_panic() {
    for count in [0, 1, 3, 4, 64, 1 << 40, u64::MAX] {
        for transposed in [false, true] {
            let mut made = Made::new(Layout::Mma);
            let pack = made.manifest.packs.iter().position(|(name, _)| name == EXPERTS).unwrap();
            let entry = &mut made.manifest.packs[pack].1;
            entry.experts = Some(glyd_format::manifest::ExpertsEntry { count, transposed });
            assert_eq!(made.verify().verdict(), Verdict::Damaged, "{count}, {transposed}");
            made.manifest.packs[pack].1.tensors[0].shape = vec![count, 64, 16];
            assert_eq!(made.verify().verdict(), Verdict::Damaged, "{count}, {transposed}");
        }
    }
}

#[test]
fn a_job_that_is_stopped_says_so() {
    struct Stop;
    impl glyd_format::Progress for Stop {
        fn stopped(&self) -> bool {
            true
        }
    }
    let made = Made::new(Layout::Mma);
    let done = glyd_verify::verify(&made.out(), &glyd_verify::Options::default(), &Stop);
    assert!(matches!(done, Err(glyd_verify::Error::Interrupted)));
}
