//! Checkpoints packed: the same bytes whatever the threads and the files, every tensor bit for bit,
//! and shapes that are at the edges of how the work is cut up.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests' code: it panics when it fails, and says how long it took"
)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Model, bytes_of, files, holds, manifest, options, pack, packs, saved};
use glyd_fixtures::values::values;
use glyd_fixtures::weights::{
    all_patterns, nan_payloads, one_exponent, signed_zeros, subnormals, trained_like, uniform_bits,
};
use glyd_format::file::File;
use glyd_format::header::Header;
use glyd_format::index::Index;
use glyd_format::{Checkpoint, Digest, Layout, Progress};
use glyd_packers::{Error, Options};

/// A model of an unknown type with a tensor of every kind.
fn mixed() -> Model {
    Model::unknown()
        .with("a.scale", "U8", &[3], vec![1, 2, 3])
        .with_weights("a.weight", &[128, 48], &trained_like(128 * 48, 1))
        .with_weights("a.bias", &[128], &uniform_bits(128, 2))
        .with("b.weight", "F8_E4M3", &[64, 64], (0..64 * 64).map(|at: u32| at.to_le_bytes()[0]).collect())
        .with("b.flags", "BOOL", &[3], vec![1, 0, 1])
        .with_weights("c.weight", &[64, 64], &all_patterns(3)[..64 * 64])
        .with("d.weight", "F16", &[64, 16], bytes_of(&all_patterns(4)[..1024]))
        .with("e.weight", "F32", &[64, 16], bytes_of(&all_patterns(5)[..2048]))
        .with("ids", "I64", &[1], vec![9; 8])
        .with("table", "I32", &[8, 8], values("table", "I32", &[8, 8]))
        .with("f.experts.w", "BF16", &[2, 64, 32], bytes_of(&trained_like(2 * 64 * 32, 6)))
        .with_weights("g.weight", &[66, 16], &trained_like(66 * 16, 7))
        .with("marker", "F8_E4M3", &[0], Vec::new())
        .with("h.weight", "BF16", &[0, 128], Vec::new())
        .with("scalar", "F32", &[], vec![0xFF; 4])
        .with("brain", "BF16", &[], vec![0x81, 0x7F])
}

#[test]
fn the_bytes_are_the_same_whatever_the_threads_and_the_files() {
    let mut wide = Model::unknown().with_weights("w.weight", &[128, 272], &trained_like(128 * 272, 8));
    wide.tensors.extend(mixed().tensors);
    for model in [Model::recipe("llama"), Model::recipe("gpt_oss"), wide] {
        for (layout, shard_bytes) in [(Layout::Mma, 100_000), (Layout::Mma12, 50_000_000)] {
            let dir = tempfile::tempdir().unwrap();
            model.write(&dir.path().join("one"));
            model.write_odd(&dir.path().join("odd"));
            model.write_dealt(&dir.path().join("dealt"), 4);
            let mut wanted = None;
            for (source, threads) in
                [("one", 1), ("one", 2), ("one", 7), ("odd", 1), ("odd", 7), ("dealt", 2), ("dealt", 7)]
            {
                let out = dir.path().join(format!("{source}-{threads}"));
                let options = Options { threads: Some(threads), shard_bytes, ..options(layout) };
                pack(&dir.path().join(source), &out, &options).unwrap();
                let found = files(&out);
                let wanted = wanted.get_or_insert_with(|| found.clone());
                assert!(found == *wanted, "{source}, {threads} threads, {layout}");
            }
        }
    }
}

#[test]
fn every_dtype_is_kept_bit_for_bit() {
    for layout in Layout::ALL {
        let (summary, manifest) = packs(&mixed(), &options(layout));
        let packed: Vec<&str> = manifest.packs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(packed, ["a", "f.experts.w"], "{layout}");
        // `c` has all patterns alike, and would grow.
        assert_eq!(
            summary.left.iter().find(|left| left.tensor == "c.weight").unwrap().reason,
            "packed, it would be larger"
        );
        assert_eq!(summary.cast_tensors + summary.widened_tensors, 0);
        assert_eq!(summary.packed_tensors + summary.plain_tensors, 16);
    }
}

#[test]
fn nan_payloads_zeros_and_subnormals_come_back_as_they_were() {
    let mut model = Model::unknown().with_weights("flat", &[65_536], &all_patterns(1));
    for (name, weights) in [
        ("nan", nan_payloads(4096, 2)),
        ("zero", signed_zeros(4096, 3)),
        ("tiny", subnormals(4096, 4)),
        ("one", one_exponent(4096, 5)),
    ] {
        model = model.with_weights(&format!("{name}.weight"), &[64, 64], &weights);
    }
    for layout in Layout::ALL {
        let (_, manifest) = packs(&model, &options(layout));
        assert_eq!(manifest.packs.len(), 4);
    }
}

/// The bf16 nearest to a number, found by looking at its neighbours: ties to the even one.
fn nearest(number: f64) -> u16 {
    let value = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
    let sign = if number.is_sign_negative() { 0x8000_u16 } else { 0 };
    // The largest bf16 that is no further from zero.
    let below = (0..=0x7F7F_u16).rev().find(|&bits| value(bits) <= number.abs()).unwrap();
    // Past the largest number comes what would be the next one: infinity stands in its place.
    let above = if below == 0x7F7F { 2.0_f64.powi(128) } else { value(below + 1) };
    let (down, up) = (number.abs() - value(below), above - number.abs());
    let up = up < down || up == down && below % 2 == 1;
    sign | if up { below + 1 } else { below }
}

#[test]
fn cast_rounds_to_the_nearest_and_ties_to_even() {
    const NAN: u16 = 0x7FC0;
    let ends = [0_u32, 0x7FFF, 0x8000, 0x8001, 0xFFFF];
    let tops = [0_u32, 1, 0x7F, 0x80, 0x3F80, 0x3F81, 0x7F7E, 0x7F7F, 0x8001, 0xBF80, 0xBF81, 0xFF7F];
    let mut singles: Vec<f32> =
        tops.iter().flat_map(|top| ends.map(|end| f32::from_bits(top << 16 | end))).collect();
    let specials =
        [f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7F80_0001), f32::from_bits(0xFFFF_FFFF)];
    singles.extend(specials);
    singles.resize(1024, 1.5);
    let wanted: Vec<u16> = singles
        .iter()
        .map(|&single| match single {
            single if single.is_nan() => NAN,
            single if single.is_infinite() => {
                (single.to_bits() >> 16).to_le_bytes().map(u16::from)[0]
                    | 0x7F80
                    | if single < 0.0 { 0x8000 } else { 0 }
            }
            single => nearest(f64::from(single)),
        })
        .collect();
    let bytes: Vec<u8> = singles.iter().flat_map(|single| single.to_le_bytes()).collect();
    let doubles: Vec<u8> = singles.iter().flat_map(|&single| f64::from(single).to_le_bytes()).collect();
    let model = Model::unknown()
        .with("a.weight", "F32", &[64, 16], bytes)
        .with("b.weight", "F64", &[64, 16], doubles)
        .with("ids", "I64", &[1], vec![7; 8]);
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("in"), dir.path().join("out"));
    model.write(&source);
    let summary = pack(&source, &out, &Options { cast: true, ..options(Layout::Mma) }).unwrap();
    assert_eq!(summary.cast_tensors, 2);
    let mut cast = model;
    cast.tensors[0] =
        common::Tensor { dtype: "BF16".into(), bytes: bytes_of(&wanted), ..cast.tensors[0].clone() };
    cast.tensors[1] =
        common::Tensor { dtype: "BF16".into(), bytes: bytes_of(&wanted), ..cast.tensors[1].clone() };
    holds(&out, &cast);
}

#[test]
fn what_the_class_keeps_in_fp32_is_widened_and_nothing_of_it_lost() {
    let mut model = Model::recipe("edge-dtypes-fp32-kept");
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("in"), dir.path().join("out"));
    model.write(&source);
    let summary = pack(&source, &out, &options(Layout::Mma)).unwrap();
    let widened: BTreeSet<String> = summary
        .left
        .iter()
        .filter(|left| {
            let own = model.tensors.iter().find(|tensor| tensor.name == left.tensor);
            left.dtype.to_string() == "F32" && own.is_some_and(|own| own.dtype == "BF16")
        })
        .map(|left| left.tensor.clone())
        .collect();
    assert_eq!(summary.widened_tensors, widened.len() as u64);
    // Any pattern at all is widened as it is.
    for tensor in model.tensors.iter_mut().filter(|tensor| widened.contains(&tensor.name)) {
        let weights: Vec<u16> = nan_payloads(tensor.bytes.len() / 2, 1);
        tensor.bytes = bytes_of(&weights);
    }
    fs::remove_dir_all(&source).unwrap();
    model.write(&source);
    pack(&source, &out, &options(Layout::Mma)).unwrap();
    let sums = manifest(&out).tensors.unwrap();
    for tensor in model.tensors.iter().filter(|tensor| widened.contains(&tensor.name)) {
        let wide: Vec<u8> = tensor.bytes.chunks(2).flat_map(|weight| [0, 0, weight[0], weight[1]]).collect();
        let (_, found) = sums.iter().find(|(name, _)| *name == tensor.name).unwrap();
        assert_eq!(*found, Digest::of(&wide), "{}", tensor.name);
    }
}

#[test]
fn a_matrix_that_would_grow_is_saved_as_it_is() {
    let model = Model::unknown()
        .with_weights("a.weight", &[1024, 1024], &uniform_bits(1 << 20, 1))
        .with_weights("b.weight", &[64, 64], &trained_like(4096, 1));
    for layout in Layout::ALL {
        let (summary, manifest) = packs(&model, &options(layout));
        assert_eq!(manifest.packs.len(), 1, "{layout}");
        assert!(summary.bytes.written.unwrap() <= model.bytes() + model.bytes() / 100, "{layout}");
    }
}

#[test]
fn a_merged_group_that_would_grow_is_saved_as_it_is() {
    let mut model = Model::recipe("llama");
    for linear in ["q_proj", "k_proj", "v_proj"] {
        let name = format!("model.layers.0.self_attn.{linear}.weight");
        model.set(&name, &[128, 128], &uniform_bits(128 * 128, 1));
    }
    // One member alone does not make its group grow.
    model.set("model.layers.1.self_attn.v_proj.weight", &[128, 128], &uniform_bits(128 * 128, 2));
    for shard_bytes in [1, 1 << 30] {
        let options = Options { shard_bytes, ..options(Layout::Mma) };
        let (_, manifest) = packs(&model, &options);
        let packs: Vec<&str> = manifest.packs.iter().map(|(name, _)| name.as_str()).collect();
        assert!(!packs.contains(&"model.layers.0.self_attn.q_proj"), "{packs:?}");
        assert!(packs.contains(&"model.layers.1.self_attn.q_proj"), "{packs:?}");
        assert!(packs.contains(&"model.layers.0.self_attn.o_proj"), "{packs:?}");
    }
}

/// The later of two experts' weights of a module grows, once the first one's shard is written.
#[test]
fn experts_whose_sibling_is_written_already_are_saved_as_they_are() {
    for (weight, sibling) in [("gate_up_proj", "down_proj"), ("down_proj", "gate_up_proj")] {
        let mut model = Model::recipe("gpt_oss");
        let [name, sibling] = [weight, sibling].map(|weight| format!("model.layers.1.mlp.experts.{weight}"));
        let shape = model.tensors.iter().find(|tensor| tensor.name == name).unwrap().shape.clone();
        let count = usize::try_from(shape.iter().product::<u64>()).unwrap();
        model.set(&name, &shape, &uniform_bits(count, 1));
        for shard_bytes in [1, 40_000, 1 << 30] {
            let options = Options { shard_bytes, ..options(Layout::Mma) };
            let (summary, manifest) = packs(&model, &options);
            let experts: Vec<&str> = manifest
                .packs
                .iter()
                .filter(|(name, entry)| entry.experts.is_some() && !name.contains("layers.1."))
                .map(|(name, _)| name.as_str())
                .collect();
            let all = manifest.packs.iter().filter(|(_, entry)| entry.experts.is_some()).count();
            assert_eq!((experts.len(), all), (6, 6), "{experts:?}");
            let sibling = summary.left.iter().find(|left| left.tensor == sibling).unwrap();
            assert_eq!(sibling.reason, "an expert of this module does not pack");
            assert_eq!(summary.packs, manifest.packs.len() as u64);
        }
    }
}

#[test]
fn rows_wider_than_a_tile_are_packed_in_parts() {
    let columns = 16_384 + 32;
    let model =
        Model::unknown().with_weights("a.weight", &[128, columns as u64], &trained_like(128 * columns, 1));
    for layout in Layout::ALL {
        let (_, manifest) = packs(&model, &options(layout));
        assert_eq!(manifest.packs.len(), 1);
    }
}

#[test]
fn strips_of_a_matrix_may_be_more_than_a_tile() {
    let model = Model::unknown()
        .with_weights("a.weight", &[1088, 1040], &trained_like(1088 * 1040, 1))
        .with_weights("b.experts.w", &[3, 64 * 5, 1040], &trained_like(3 * 64 * 5 * 1040, 2));
    for layout in Layout::ALL {
        let (_, manifest) = packs(&model, &options(layout));
        assert_eq!(manifest.packs.len(), 2);
    }
}

#[test]
fn experts_held_the_other_way_may_be_of_several_tiles() {
    let mut model = Model::recipe("gpt_oss");
    // An expert's matrix of 18 strips, two tiles; and one of more columns than a tile has.
    for (name, shape) in [("gate_up_proj", [4, 48, 1152]), ("down_proj", [4, 1056, 64])] {
        let name = format!("model.layers.0.mlp.experts.{name}");
        let count = usize::try_from(shape.iter().product::<u64>()).unwrap();
        model.set(&name, &shape, &trained_like(count, 1));
    }
    for layout in Layout::ALL {
        for threads in [1, 7] {
            let options = Options { threads: Some(threads), ..options(layout) };
            let (_, manifest) = packs(&model, &options);
            let (_, entry) = manifest
                .packs
                .iter()
                .find(|(name, _)| name == "model.layers.0.mlp.experts.gate_up_proj")
                .unwrap();
            assert_eq!(entry.shape, [4 * 1152, 48]);
            assert!(entry.experts.unwrap().transposed);
        }
    }
}

/// Shards begin where the one before holds the limit or more, wherever in a pack that is.
#[test]
fn shards_are_cut_at_every_place() {
    let model = Model::unknown()
        .with_weights("a.weight", &[64, 32], &trained_like(2048, 1))
        .with("b.bias", "F32", &[5], vec![1; 20])
        .with("c", "BF16", &[0, 4], Vec::new())
        .with_weights("d.experts.w", &[2, 64, 16], &trained_like(2048, 2))
        .with_weights("e.weight", &[128, 16], &trained_like(2048, 3));
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("in");
        model.write(&source);
        let whole = dir.path().join("whole");
        pack(&source, &whole, &options(layout)).unwrap();
        // The places in the order of puts: the index of a checkpoint of the smallest shards has it.
        let small = dir.path().join("small");
        pack(&source, &small, &Options { shard_bytes: 1, ..options(layout) }).unwrap();
        let index = Index::read(&small.join("model.safetensors.index.json")).unwrap();
        let sizes = sizes(&whole);
        let puts: Vec<(&str, u64)> =
            index.weight_map.iter().map(|(name, _)| (name.as_str(), sizes[name])).collect();
        let mut limits = BTreeSet::from([0, 1, 2, 100]);
        for start in 0..puts.len() {
            for end in start..puts.len() {
                let bytes: u64 = puts[start..=end].iter().map(|(_, bytes)| bytes).sum();
                limits.extend([bytes, bytes + 1]);
            }
        }
        for limit in limits {
            let out = dir.path().join(format!("out-{limit}"));
            pack(&source, &out, &Options { shard_bytes: limit, ..options(layout) }).unwrap();
            holds(&out, &model);
            check_shards(&out, &puts, limit.max(1));
        }
    }
}

fn sizes(out: &std::path::Path) -> std::collections::HashMap<String, u64> {
    let file = File::open(&out.join("model.safetensors")).unwrap();
    let (header, _) = Header::read(&file).unwrap();
    header.tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor.bytes())).collect()
}

fn check_shards(out: &std::path::Path, puts: &[(&str, u64)], limit: u64) {
    let mut wanted: Vec<Vec<&str>> = vec![Vec::new()];
    let mut bytes = 0;
    for (name, own) in puts {
        if bytes >= limit {
            wanted.push(Vec::new());
            bytes = 0;
        }
        wanted.last_mut().unwrap().push(name);
        bytes += own;
    }
    let index = out.join("model.safetensors.index.json");
    if wanted.len() == 1 {
        assert!(!index.exists() && out.join("model.safetensors").exists(), "{limit}");
        return;
    }
    let index = Index::read(&index).unwrap();
    let count = wanted.len();
    let named = wanted.into_iter().enumerate().flat_map(|(number, names)| {
        names
            .into_iter()
            .map(move |name| (name.to_owned(), format!("model-{:05}-of-{count:05}.safetensors", number + 1)))
    });
    assert_eq!(index.weight_map, named.collect::<Vec<_>>(), "{limit}");
    assert_eq!(index.total_bytes, Some(puts.iter().map(|(_, bytes)| bytes).sum()));
}

#[test]
fn an_unknown_architecture_is_packed_by_dtype_and_shape() {
    let trained = |count| trained_like(count, 1);
    let model = Model::unknown()
        .with_weights("blk/0/α.w", &[64, 64], &trained(4096))
        .with_weights("visual.patch.proj.weight", &[64, 32], &trained(2048))
        .with_weights("visual.patch.proj.bias", &[64], &trained(64))
        .with_weights("token_embed.weight", &[128, 64], &trained(8192))
        .with_weights("final_norm.weight", &[64, 64], &trained(4096))
        .with_weights("layers.10.q.weight", &[64, 64], &trained(4096))
        .with_weights("layers.9.q.weight", &[64, 64], &trained(4096))
        .with_weights("experts.gate_up_proj", &[4, 128, 64], &trained(4 * 128 * 64))
        .with_weights("experts.down_proj", &[4, 64, 64], &trained(4 * 64 * 64))
        .with_weights("odd.experts.w", &[3, 130, 66], &trained(3 * 130 * 66))
        .with_weights("vision.conv.weight", &[32, 3, 2, 14, 14], &trained(32 * 3 * 2 * 14 * 14));
    let (summary, manifest) = packs(&model, &options(Layout::Mma));
    let packs: Vec<&str> = manifest.packs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        packs,
        ["experts.down_proj", "experts.gate_up_proj", "layers.9.q", "layers.10.q", "visual.patch.proj"]
    );
    let reason = |tensor: &str| {
        let left = summary.left.iter().find(|left| left.tensor == tensor).unwrap();
        (left.reason.as_str(), left.bytes)
    };
    assert_eq!(reason("blk/0/α.w"), ("not a Linear", 8192));
    assert_eq!(reason("token_embed.weight"), ("embedding", 16_384));
    assert_eq!(reason("final_norm.weight"), ("not a Linear", 8192));
    assert_eq!(reason("odd.experts.w"), ("rows 130 are not a multiple of 64", 2 * 3 * 130 * 66));
    assert_eq!(reason("vision.conv.weight").0, "5-D");
    assert_eq!(reason("visual.patch.proj.bias").0, "1-D");
    assert!(summary.notes[0].contains("foo_bar"), "{:?}", summary.notes);
    // Stacked or one by one, experts come to the same size, but for what each pack has about its list.
    let mut apart = Model::unknown();
    for tensor in model.tensors.iter().filter(|tensor| tensor.name.starts_with("experts")) {
        let (rows, columns) = (tensor.shape[1], tensor.shape[2]);
        for (expert, bytes) in tensor.bytes.chunks(tensor.bytes.len() / 4).enumerate() {
            let name = format!("{}.{expert}.weight", tensor.name);
            apart = apart.with(&name, "BF16", &[rows, columns], bytes.to_vec());
        }
    }
    let stacked = Model { tensors: model.tensors[7..9].to_vec(), ..model };
    let packed = |model: &Model| common::packs(model, &options(Layout::Mma)).0.bytes.packed.unwrap();
    let (stacked, apart) = (packed(&stacked), packed(&apart));
    assert!(stacked < apart && apart - stacked < 6 * (128 + 256 + 4 + 50), "{stacked}, {apart}");
}

#[test]
fn what_has_nothing_to_pack_writes_nothing() {
    let quantized = Model {
        config: r#"{"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}"#.to_owned(),
        ..mixed()
    };
    let halves = Model::unknown().with("a.weight", "F16", &[64, 16], vec![0; 2048]);
    let integers = Model::unknown().with("a.weight", "I32", &[64, 16], vec![0; 4096]);
    for (model, cast, told) in [
        (&quantized, false, "it is quantized already (quantization_config, `gptq`)"),
        (&halves, false, "0 of its 2048 bytes are bf16; `--cast`"),
        (&integers, true, "0 of its 4096 bytes are bf16"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (source, out) = (dir.path().join("in"), dir.path().join("out"));
        model.write(&source);
        let error = pack(&source, &out, &Options { cast, ..options(Layout::Mma) }).unwrap_err();
        assert!(matches!(error, Error::NothingToPack { .. }));
        assert!(error.to_string().contains(told), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn a_model_without_a_config_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("in"), dir.path().join("out"));
    mixed().write(&source);
    fs::remove_file(source.join("config.json")).unwrap();
    let error = pack(&source, &out, &options(Layout::Mma)).unwrap_err().to_string();
    assert!(error.contains("expected `config.json`, which says what the tensors are, found none"), "{error}");
    assert!(!out.exists());
}

#[test]
fn a_model_of_no_shape_to_pack_is_saved_without_packs() {
    let model = Model::unknown().with_weights("a.weight", &[3, 5], &trained_like(15, 1));
    for layout in Layout::ALL {
        let (summary, manifest) = packs(&model, &options(layout));
        assert_eq!((summary.packs, summary.plain_tensors, manifest.packs.len()), (0, 1, 0));
        assert_eq!(summary.bits_per_weight(), None);
    }
}

#[test]
fn names_of_any_kind_come_through() {
    let mut model = Model::unknown();
    for name in ["a\"b\\c\n.weight", "é\u{7f}🦀.weight", "../../etc/passwd.weight", " .weight", "a..weight"]
    {
        model = model.with_weights(name, &[64, 16], &trained_like(1024, 1));
    }
    for shard_bytes in [1, 1 << 30] {
        let (_, manifest) = packs(&model, &Options { shard_bytes, ..options(Layout::Mma12) });
        assert_eq!(manifest.packs.len(), 5);
    }
}

#[test]
fn what_an_interrupted_job_left_in_a_source_is_no_part_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("in"), dir.path().join("out"));
    let model = mixed();
    model.write(&source);
    fs::create_dir_all(source.join(".glyd-partial/sub")).unwrap();
    fs::write(source.join(".glyd-partial/sub/config.json"), "{}").unwrap();
    fs::write(source.join(".glyd-lock"), "").unwrap();
    let summary = pack(&source, &out, &options(Layout::Mma)).unwrap();
    holds(&out, &model);
    assert!(files(&out).keys().all(|name| !name.contains(".glyd")));
    assert!(summary.notes.iter().any(|note| note.contains("`.glyd-partial`")), "{:?}", summary.notes);
}

/// The bytes that a job says it will take, and those it tells of.
#[derive(Default)]
struct Told {
    wanted: AtomicU64,
    done: AtomicU64,
}

impl Progress for Told {
    fn start(&self, bytes: u64) {
        assert_eq!(self.wanted.swap(bytes, Ordering::SeqCst), 0);
    }

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::SeqCst);
    }
}

#[test]
fn progress_comes_to_what_it_said_it_would() {
    let dir = tempfile::tempdir().unwrap();
    let mut plain = mixed();
    // What grows is begun anew, and is told of less.
    plain.tensors.retain(|tensor| !["c.weight", "d.weight", "e.weight"].contains(&tensor.name.as_str()));
    let plain = plain.with("k.weight", "F32", &[64, 16], values("k.weight", "F32", &[64, 16]));
    for (at, (model, cast)) in
        [(Model::recipe("gpt_oss"), false), (plain.clone(), false), (plain, true)].into_iter().enumerate()
    {
        let source = dir.path().join(format!("in-{at}"));
        model.write(&source);
        for shard_bytes in [1, 10_000, 1 << 30] {
            let told = Told::default();
            let options = Options { shard_bytes, cast, ..options(Layout::Mma) };
            let out = dir.path().join(format!("out-{at}-{shard_bytes}"));
            glyd_packers::pack(&Checkpoint::open(&source).unwrap(), &out, &options, &told).unwrap();
            assert_eq!(told.done.into_inner(), told.wanted.into_inner(), "{at}, {shard_bytes}");
        }
    }
}

/// Nothing is done once for every pair of tensors: in one shard, and in a shard for every few.
#[test]
fn many_thousand_matrices_take_their_share_of_time() {
    let mut model = Model::unknown();
    let weights = trained_like(1024, 1);
    for number in 0..20_000 {
        model = model.with_weights(&format!("experts.{number}.weight"), &[64, 16], &weights);
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("in");
    model.write(&source);
    for (layout, shard_bytes) in [(Layout::Mma, 1 << 30), (Layout::Mma12, 100_000)] {
        let started = Instant::now();
        let out = dir.path().join(layout.name());
        pack(&source, &out, &Options { shard_bytes, ..options(layout) }).unwrap();
        let packed = started.elapsed();
        assert_eq!(common::verify(&out).findings, []);
        eprintln!("{layout}: {packed:?}, verified in {:?}", started.elapsed() - packed);
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    }
}

#[test]
fn saved_buffers_have_one_dimension() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("in"), dir.path().join("out"));
    mixed().write(&source);
    pack(&source, &out, &options(Layout::Mma)).unwrap();
    let saved = saved(&out);
    assert_eq!(saved["a.glyd_data"], ("U8".to_owned(), vec![6 * 1280]));
    assert_eq!(saved["a.glyd_block_base"], ("I32".to_owned(), vec![7]));
    assert_eq!(saved["f.experts.glyd_w_block_base"], ("I32".to_owned(), vec![5]));
}
