//! Models fetched: what is asked for, what is kept, and what comes of a run that was broken off.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use glyd_fixtures::mock_hub::{Fault, Port, Seen};

use super::util::Hub;

#[test]
fn a_model_is_fetched_packed_and_verified() {
    let hub = Hub::sharded();
    let ran = hub.run(&["pack", "org/model", "out"]).ends(0);
    ran.says(&["no folder is named `org/model`: it is taken as a model of the Hub"]);
    hub.same_as_local("out");
    let snapshot = hub.cached("snapshots").join(hub.commit());
    for (path, bytes) in hub.folder.files("model") {
        if hub.folder.path("model").join(&path).is_file() {
            assert_eq!(fs::read(snapshot.join(&path)).unwrap(), bytes, "{}", path.display());
            assert!(fs::symlink_metadata(snapshot.join(&path)).unwrap().is_symlink());
        }
    }
    assert_eq!(fs::read_to_string(hub.cached("refs/main")).unwrap(), hub.commit());
    let left = fs::read_dir(hub.cached("blobs"))
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert!(left.into_iter().all(|name| name.len() == 40 || name.len() == 64));
    assert!(fs::symlink_metadata(hub.folder.path("out/config.json")).unwrap().is_file());
}

#[test]
fn what_is_in_the_cache_takes_no_request() {
    let hub = Hub::new();
    hub.run(&["pack", "org/model", "out"]).ends(0);
    hub.mock.forget();
    let commit = hub.commit();
    hub.run(&["pack", "org/model", "again"]).ends(0).says(&["in the cache, commit ", &commit]);
    hub.run(&["pack", "org/model", "again", "--revision", &commit]).ends(0);
    hub.run(&["pack", "org/model", "again", "--no-download"]).ends(0);
    hub.run_with(&["pack", "org/model", "again"], &[("HF_HUB_OFFLINE", "1")]).ends(0);
    assert_eq!(hub.mock.seen().len(), 0);
    hub.same_as_local("again");
}

#[test]
fn where_no_request_may_be_made_none_is() {
    let hub = Hub::new();
    for (arguments, variables, why) in [
        (&["pack", "org/model", "out", "--no-download"][..], &[][..], "--no-download"),
        (&["pack", "org/model", "out"], &[("HF_HUB_OFFLINE", "1")], "HF_HUB_OFFLINE"),
        (&["verify", "org/model"], &[("TRANSFORMERS_OFFLINE", "true")], "TRANSFORMERS_OFFLINE"),
    ] {
        let ran = hub.run_with(&[arguments, &["--json"]].concat(), variables).ends(2);
        assert_eq!(ran.json()["error"]["kind"], "offline");
        ran.says(&["`org/model`: not in the cache `", why, "forbids to ask the Hub"]);
    }
    // A part of it is no model.
    hub.run(&["pack", "org/model", "out"]).ends(0);
    fs::remove_file(hub.cached("snapshots").join(hub.commit()).join("code/model.py")).unwrap();
    hub.mock.forget();
    let ran = hub.run(&["pack", "org/model", "new", "--no-download"]).ends(2);
    ran.says(&["only a part of it is in the cache", "without code/model.py"]);
    assert_eq!(hub.mock.seen().len(), 0);
    // With requests, the rest is fetched and nothing else.
    hub.run(&["pack", "org/model", "new"]).ends(0);
    let resolved = |seen: &&Seen| seen.path.contains("/resolve/");
    assert_eq!(
        hub.mock.seen().iter().filter(resolved).count(),
        0,
        "the blob was there: only its link was not"
    );
    hub.same_as_local("new");
}

#[test]
fn revisions_are_branches_tags_and_commits() {
    let hub = Hub::new();
    let first = hub.commit();
    hub.change(|files| {
        files.insert("README.md".to_owned(), b"other".to_vec());
    });
    let second = hub.commit();
    hub.mock.state().repos.get_mut("org/model").unwrap().refs.insert("refs/pr/1".to_owned(), first.clone());
    for (revision, commit, readme) in [
        ("refs/pr/1", &first, "---\nlicense: mit\n---\n# A model\n"),
        ("main", &second, "other"),
        (first.as_str(), &first, "---\nlicense: mit\n---\n# A model\n"),
    ] {
        let document =
            hub.run(&["pack", "org/model", "out", "--revision", revision, "--json"]).ends(0).json();
        assert_eq!(document["source"]["revision"], **commit);
        assert_eq!(document["source"]["repo"], "org/model");
        assert_eq!(fs::read_to_string(hub.folder.path("out/README.md")).unwrap(), readme);
    }
    hub.run(&["pack", "model", "out", "--revision", "main"])
        .ends(2)
        .says(&["`model` is a folder: it has no --revision"]);
    hub.run(&["pack", "org/model", "out", "--revision", "../x"])
        .ends(2)
        .says(&["is no branch, tag or commit"]);
}

#[test]
fn a_packed_model_on_the_hub_is_verified() {
    let hub = Hub::new();
    hub.run(&["pack", "model", "packed"]).ends(0);
    hub.mock.add("org/packed", glyd_fixtures::mock_hub::Repo::of_folder(&hub.folder.path("packed")));
    hub.run(&["verify", "org/packed"]).ends(0).prints(&["good: `"]);
    hub.run(&["verify", "org/packed", "--no-download"]).ends(0);
    hub.run(&["verify", "org/model"])
        .ends(2)
        .says(&["`org/model`: expected `glyd.json` of a packed checkpoint"]);
    hub.run(&["pack", "org/packed", "out"]).ends(2).says(&["a checkpoint that is packed already"]);
    // Damage that was published is damage.
    hub.folder.flip("packed/model.safetensors", 9);
    hub.mock.add("org/damaged", glyd_fixtures::mock_hub::Repo::of_folder(&hub.folder.path("packed")));
    hub.run(&["verify", "org/damaged"]).ends(1).prints(&["damage (digest)"]);
}

#[test]
fn a_model_on_the_hub_is_inspected_by_its_headers() {
    let hub = Hub::sharded();
    let local = hub.run(&["inspect", "model"]).ends(0);
    let ran = hub.run(&["inspect", "org/model"]).ends(0);
    assert_eq!(
        ran.stdout.lines().skip(1).collect::<Vec<_>>(),
        local.stdout.lines().skip(1).collect::<Vec<_>>()
    );
    let sent: u64 =
        hub.mock.seen().iter().filter(|seen| seen.port == Port::Storage).map(|seen| seen.sent).sum();
    let weights = hub.folder.names("model").into_iter().filter(|name| name.ends_with(".safetensors"));
    let weights: u64 =
        weights.map(|name| fs::metadata(hub.folder.path("model").join(name)).unwrap().len()).sum();
    assert!(sent <= weights.min(300_000), "{sent} bytes of {weights}");
    hub.run(&["pack", "model", "packed"]).ends(0);
    hub.mock.add("org/packed", glyd_fixtures::mock_hub::Repo::of_folder(&hub.folder.path("packed")));
    hub.run(&["inspect", "org/packed"]).ends(0).prints(&["packed from `model`"]);
    hub.run(&["inspect", "org/packed", "--no-download", "--json"]).ends(0);
    hub.run(&["inspect", "org/none"]).ends(2).says(&["private, gated, or not there"]);
}

#[test]
fn only_what_is_needed_is_fetched() {
    let hub = Hub::new();
    hub.change(|files| {
        for name in [
            "pytorch_model.bin",
            "pytorch_model.bin.index.json",
            "original/a.pth",
            "consolidated.safetensors",
            ".gitattributes",
        ] {
            files.insert(name.to_owned(), vec![0; 1000]);
        }
    });
    hub.run(&["pack", "org/model", "out"])
        .ends(0)
        .says(&["not fetched, since it is not needed: 5.00 kB of other files"]);
    for seen in hub.mock.seen() {
        let unwanted = [".bin", ".pth", "consolidated", ".gitattributes"];
        assert!(!unwanted.iter().any(|name| seen.path.contains(name)), "{seen:?}");
    }
}

#[test]
fn a_fetch_that_was_killed_goes_on_where_it_was() {
    let hub = Hub::new();
    let weights = fs::metadata(hub.folder.path("model/model.safetensors")).unwrap().len();
    let key = hub.key("model.safetensors");
    hub.mock.fail(&key, 1, Fault::Stall(weights / 2));
    let mut child = hub.command(&["pack", "org/model", "out"]).stderr(Stdio::null()).spawn().unwrap();
    let part = hub.cached("blobs").join(format!("{key}.incomplete"));
    let begun = Instant::now();
    while fs::metadata(&part).map_or(0, |found| found.len()) < weights / 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let arrived = fs::metadata(&part).unwrap().len();
    hub.mock.forget();
    hub.run(&["pack", "org/model", "out"]).ends(0);
    let seen = hub.mock.seen();
    let fetched = seen.iter().find(|seen| seen.port == Port::Storage).unwrap();
    assert_eq!(fetched.headers["range"], format!("bytes={arrived}-"), "the range goes along to the storage");
    assert_eq!(fetched.sent, weights - arrived);
    assert!(!part.exists());
    hub.same_as_local("out");
}

#[test]
fn what_was_left_of_another_content_is_fetched_anew() {
    let hub = Hub::new();
    let key = hub.key("model.safetensors");
    fs::create_dir_all(hub.cached("blobs")).unwrap();
    for left in [vec![7; 5000], vec![7; 10 << 20]] {
        fs::write(hub.cached("blobs").join(format!("{key}.incomplete")), left).unwrap();
        hub.run(&["pack", "org/model", "out"]).ends(0);
        hub.same_as_local("out");
        fs::remove_dir_all(hub.cached("")).unwrap();
        fs::create_dir_all(hub.cached("blobs")).unwrap();
    }
}

#[test]
fn a_file_that_is_not_what_the_hub_says_is_refused() {
    let hub = Hub::new();
    hub.mock.fail("/config.json", usize::MAX, Fault::Flip);
    let ran = hub.run(&["pack", "org/model", "out"]).ends(2);
    ran.says(&[
        "`org/model: config.json`: expected a file with the hash ",
        "found one of its size with the hash ",
    ]);
    assert!(!hub.folder.path("out").exists());
    assert!(!hub.cached("snapshots").join(hub.commit()).join("config.json").exists());
    // Once may be the line's fault.
    let hub = Hub::new();
    hub.mock.fail(&hub.key("model.safetensors"), 1, Fault::Flip);
    hub.run(&["pack", "org/model", "out"]).ends(0);
    hub.same_as_local("out");
}

#[test]
fn a_listing_of_many_pages_is_read_whole() {
    let hub = Hub::sharded();
    hub.mock.state().page = 2;
    hub.run(&["pack", "org/model", "out"]).ends(0);
    assert!(hub.mock.seen().iter().filter(|seen| seen.path.contains("/tree/")).count() > 1);
    hub.same_as_local("out");
}

#[test]
fn an_interrupt_leaves_what_was_fetched() {
    let hub = Hub::new();
    hub.mock.state().bytes_per_second = Some(40_000);
    let child = hub
        .command(&["pack", "org/model", "out"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let part = hub.cached("blobs").join(format!("{}.incomplete", hub.key("model.safetensors")));
    let begun = Instant::now();
    while fs::metadata(&part).map_or(0, |found| found.len()) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let ran = crate::util::Ran::of(&child.wait_with_output().unwrap()).ends(130);
    ran.says(&["interrupted: the next run goes on with what is there"]);
    assert!(part.exists() && !hub.folder.path("out").exists());
}

/// Two runs share a cache: each content comes once.
#[test]
fn two_runs_at_once_fetch_each_content_once() {
    let hub = Hub::new();
    hub.mock.state().bytes_per_second = Some(400_000);
    let run = |out: &str| {
        hub.command(&["pack", "org/model", out]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let children = [run("one"), run("two")];
    for child in children {
        crate::util::Ran::of(&child.wait_with_output().unwrap()).ends(0);
    }
    let large = hub.mock.seen().iter().filter(|seen| seen.port == Port::Storage).count();
    assert_eq!(large, 1);
    hub.same_as_local("one");
    hub.same_as_local("two");
}

#[test]
fn a_break_in_every_try_ends_with_what_was_tried() {
    let hub = Hub::new();
    hub.mock.fail(&hub.key("model.safetensors"), usize::MAX, Fault::Cut(0));
    let ran = hub.run(&["pack", "org/model", "out", "--json"]).ends(2);
    assert_eq!(ran.json()["error"]["kind"], "network");
    ran.says(&["/resolve/", "/model.safetensors`, redirected to `", "after 5 tries"]);
}
