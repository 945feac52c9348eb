//! Models packed while they are fetched, and headers asked for without their weights.

use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use glyd_fixtures::mock_hub::{Fault, Port, Repo, Rule};
use glyd_fixtures::safetensors;

use super::util::Hub;
use crate::util::Ran;

/// With a model of four shards, of four layers of 512 kB each in bf16, all random but for their exponents.
fn four_shards() -> Hub {
    let hub = Hub::new();
    for name in hub.folder.names("model") {
        if name.ends_with(".safetensors") {
            fs::remove_file(hub.folder.path("model").join(name)).unwrap();
        }
    }
    fs::write(hub.folder.path("model/config.json"), r#"{"model_type": "foo_bar"}"#).unwrap();
    let mut map = serde_json::Map::new();
    for shard in 0..4_u64 {
        let file = format!("model-0000{}-of-00004.safetensors", shard + 1);
        let names: Vec<String> = (0..2).map(|at| format!("layers.{}.w.weight", shard * 2 + at)).collect();
        let data: Vec<Vec<u8>> = (0..2).map(|at| weights(shard * 2 + at, 512 * 512)).collect();
        let entries: Vec<safetensors::Entry<'_>> = names
            .iter()
            .zip(&data)
            .map(|(name, data)| (name.as_str(), "BF16", &[512, 512][..], data.as_slice()))
            .collect();
        safetensors::write(&hub.folder.path("model").join(&file), None, &entries);
        names.iter().for_each(|name| drop(map.insert(name.clone(), file.clone().into())));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    fs::write(hub.folder.path("model/model.safetensors.index.json"), index.to_string()).unwrap();
    hub.mock.add("org/model", Repo::of_folder(&hub.folder.path("model")));
    hub
}

fn weights(seed: u64, count: u64) -> Vec<u8> {
    let mut state = seed + 1;
    let mut bytes = Vec::new();
    for _ in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let exponent = 118 + u16::try_from((state >> 40).trailing_zeros().min(6)).unwrap();
        let word = exponent << 7
            | u16::try_from(state >> 56).unwrap() & 0x7f
            | u16::try_from(state >> 33 & 1).unwrap() << 15;
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

fn size_of(dir: &std::path::Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let each = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_of(&entry.path()),
        // What is set aside and not written counts too.
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    });
    each.sum()
}

/// On disk are at most the output and two shards of the source; and the output is the same.
#[test]
fn a_model_is_packed_while_it_is_fetched_with_two_shards_on_disk() {
    for shard_size in ["5GB", "700kB"] {
        let hub = four_shards();
        hub.mock.state().bytes_per_second = Some(4_000_000);
        let mut child = hub
            .command(&["pack", "org/model", "out", "--stream", "--shard-size", shard_size])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, cache) = (hub.folder.path("out"), hub.cached("blobs"));
        let done = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&done);
        let watch = std::thread::spawn(move || {
            let (mut all, mut source) = (0, 0);
            while !watched.load(Ordering::Relaxed) {
                let (packed, fetched) = (size_of(&out), size_of(&cache));
                (all, source) = (all.max(packed + fetched), source.max(fetched));
                std::thread::sleep(Duration::from_millis(1));
            }
            (all, source)
        });
        child.wait().unwrap();
        done.store(true, Ordering::Relaxed);
        Ran::of(&child.wait_with_output().unwrap()).ends(0);
        let (all, source) = watch.join().unwrap();
        hub.run(&["pack", "model", "local", "--shard-size", shard_size]).ends(0);
        let (packed, shard) = (size_of(&hub.folder.path("out")), 1_048_576 + 200);
        let small = 20_000;
        assert!(source <= 2 * shard + small, "{source} bytes of the source");
        assert!(all <= packed + 2 * shard + small, "{all} bytes in all, with {packed} of output");
        let (local, found) = (hub.folder.files("local"), hub.folder.files("out"));
        let weights = |name: &std::path::PathBuf| name != std::path::Path::new("glyd.json");
        assert!(
            local.iter().filter(|(name, _)| weights(name)).eq(found.iter().filter(|(name, _)| weights(name)))
        );
        assert!(
            !hub.cached("snapshots").join(hub.commit()).join("model-00001-of-00004.safetensors").exists()
        );
        assert!(size_of(&hub.cached("blobs")) < small, "no weights stay");
        hub.run(&["verify", "out"]).ends(0);
    }
}

#[test]
fn what_is_streamed_is_what_is_packed_whatever_the_model_is() {
    for recipe in ["llama", "edge-sharded", "qwen3_moe", "edge-unused", "gpt2"] {
        let hub = Hub::with(recipe);
        hub.run(&["pack", "org/model", "out", "--stream"]).ends(0);
        hub.same_as_local("out");
        // Once more over what is there.
        hub.run(&["pack", "org/model", "out", "--stream", "--layout", "mma12", "--threads", "1"]).ends(0);
        hub.run(&["verify", "out"]).ends(0);
    }
}

/// Weights that packed would grow are planned anew: what was let go comes again.
#[test]
fn what_would_grow_is_fetched_a_second_time() {
    let hub = four_shards();
    let noise: Vec<u8> =
        (0..512 * 512 * 2_u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for shard in ["model-00001-of-00004.safetensors", "model-00004-of-00004.safetensors"] {
        let path = hub.folder.path("model").join(shard);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - noise.len();
        bytes[at..].copy_from_slice(&noise);
        fs::write(path, bytes).unwrap();
    }
    hub.mock.add("org/model", Repo::of_folder(&hub.folder.path("model")));
    hub.run(&["pack", "org/model", "out", "--stream"]).ends(0);
    hub.same_as_local("out");
}

#[test]
fn what_is_in_the_cache_stays_there() {
    let hub = Hub::sharded();
    hub.run(&["pack", "org/model", "out"]).ends(0);
    let snapshot = hub.cached("snapshots").join(hub.commit());
    let shard =
        hub.folder.names("model").into_iter().find(|name| name.ends_with("00003-of-00003.safetensors"));
    let shard = shard.unwrap();
    let blob = fs::canonicalize(snapshot.join(&shard)).unwrap();
    fs::remove_file(snapshot.join(&shard)).unwrap();
    fs::remove_file(&blob).unwrap();
    hub.run(&["pack", "org/model", "out", "--stream"]).ends(0);
    hub.same_as_local("out");
    assert!(snapshot.join("model-00001-of-00003.safetensors").exists());
    assert!(!snapshot.join(&shard).exists() && !blob.exists());
}

#[test]
fn a_stream_that_breaks_says_why_and_leaves_nothing() {
    let hub = four_shards();
    let key = hub.key("model-00003-of-00004.safetensors");
    hub.mock.state().rules.push(Rule {
        path: key,
        times: usize::MAX,
        // After its header.
        after: 1,
        fault: Fault::Answer(500, Vec::new(), String::new()),
    });
    let ran = hub.run(&["pack", "org/model", "out", "--stream", "--json"]).ends(2);
    assert_eq!(ran.json()["error"]["kind"], "network");
    ran.says(&[
        "model-00003-of-00004.safetensors`, redirected with status 302 to `",
        "status 500 after 5 tries",
    ]);
    assert!(!hub.folder.path("out").exists());
    assert!(size_of(&hub.cached("blobs")) < 20_000);
    for (arguments, says) in [
        (&["pack", "model", "out", "--stream"][..], "is no model of the Hub, and there already"),
        (&["pack", "org/model", "out", "--stream", "--no-download"], "cannot be used with"),
    ] {
        hub.run(arguments).ends(2).says(&[says]);
    }
    let ran = hub.run_with(&["pack", "org/model", "out", "--stream"], &[("HF_HUB_OFFLINE", "1")]);
    ran.ends(2).says(&["HF_HUB_OFFLINE forbids requests"]);
}

/// A model of one shard of zeros, whose header has this length, and so many rows of 1024.
fn with_header(hub: &Hub, length: usize, rows: usize) {
    let end = rows * 2048;
    let mut header =
        format!(r#"{{"a.weight":{{"dtype":"BF16","shape":[{rows},1024],"data_offsets":[0,{end}]}}}}"#);
    header.push_str(&" ".repeat(length - header.len()));
    fs::write(hub.folder.path("model/config.json"), r#"{"model_type": "foo_bar"}"#).unwrap();
    safetensors::write_raw(&hub.folder.path("model/model.safetensors"), &header, &vec![0; end]);
    hub.mock.add("org/model", Repo::of_folder(&hub.folder.path("model")));
}

/// What the storage sent while a dry run read the header.
fn sent_for_header(hub: &Hub) -> u64 {
    hub.mock.forget();
    let ran = hub.run(&["pack", "org/model", "out", "--dry-run", "--revision", &hub.commit()]).ends(0);
    ran.prints(&["would pack `org/model`", "1 matrix"]);
    assert!(!hub.cached("snapshots").join(hub.commit()).join("model.safetensors").exists());
    hub.mock.seen().iter().filter(|seen| seen.port == Port::Storage).map(|seen| seen.sent).sum()
}

/// A shard's header is read by ranges, at every length around the first one; no weights are.
#[test]
fn headers_are_read_without_their_weights() {
    const FIRST: usize = 100_000;
    let mut lengths: Vec<usize> = (FIRST - 17..=FIRST + 9).collect();
    lengths.extend([1_000, 10 * FIRST]);
    let hub = Hub::new();
    for (number, length) in lengths.into_iter().enumerate() {
        with_header(&hub, length, 64);
        let key = hub.key("model.safetensors");
        match number % 3 {
            // Without ranges, and with none for what is short.
            1 => hub.mock.fail(&key, usize::MAX, Fault::NoRanges),
            2 => hub.mock.fail(&key, 1, Fault::Answer(416, Vec::new(), String::new())),
            _ => {}
        }
        let sent = sent_for_header(&hub);
        assert!(number % 3 != 0 || sent <= (length + 8).max(FIRST) as u64, "{length}: {sent} bytes sent");
    }
}

#[test]
fn a_server_without_ranges_is_cut_off_after_the_header() {
    const ROWS: usize = 32 << 10;
    let hub = Hub::new();
    with_header(&hub, 1_000, ROWS);
    hub.mock.fail(&hub.key("model.safetensors"), usize::MAX, Fault::NoRanges);
    // More than was read: what a socket holds is sent before it is known that nobody reads.
    let sent = sent_for_header(&hub);
    assert!(sent < (ROWS * 2048 / 4) as u64, "{sent} bytes sent");
}

#[test]
fn what_is_no_safetensors_file_is_told_from_its_first_bytes() {
    for bytes in [
        &b"version https://git-lfs.github.com/spec/v1\n"[..],
        b"",
        b"\xff\xff\xff\xff\xff\xff\xff\xff{}",
        b"abc",
    ] {
        let hub = Hub::new();
        hub.change(|files| drop(files.insert("model.safetensors".to_owned(), bytes.to_vec())));
        let ran = hub.run(&["pack", "org/model", "out", "--stream"]).ends(2);
        ran.says(&["`org/model/model.safetensors`: expected a safetensors file of "]);
    }
}
