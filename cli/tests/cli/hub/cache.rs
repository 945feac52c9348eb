//! The cache as other programs leave it: links, other cases, and contents that are not what they were.

use std::fs;
use std::os::unix::fs::symlink;

use super::util::Hub;

/// Links of a snapshot lead to blobs, to other links, or nowhere.
#[test]
fn a_snapshot_s_links_are_followed_and_one_that_dangles_is_named() {
    let hub = Hub::new();
    hub.run(&["pack", "org/model", "out"]).ends(0);
    let snapshot = hub.cached("snapshots").join(hub.commit());
    let named = snapshot.display().to_string();
    hub.run(&["pack", &named, "by-path"]).ends(0);
    // A link to a link.
    let weights = snapshot.join("model.safetensors");
    fs::rename(&weights, snapshot.join("first.link")).unwrap();
    symlink("first.link", &weights).unwrap();
    hub.run(&["pack", &named, "by-link"]).ends(0);
    // The whole snapshot is a link.
    symlink(&snapshot, hub.folder.path("linked")).unwrap();
    hub.run(&["pack", "linked", "by-folder"]).ends(0);
    for out in ["by-path", "by-link", "by-folder"] {
        for name in hub.folder.names(out) {
            assert!(!fs::symlink_metadata(hub.folder.path(out).join(name)).unwrap().is_symlink());
        }
        hub.run(&["verify", out]).ends(0);
    }
    let blob = fs::canonicalize(&weights).unwrap();
    fs::remove_file(&blob).unwrap();
    let ran = hub.run(&["pack", &named, "dangles"]).ends(2);
    ran.says(&["model.safetensors`: expected a link to a file, found a dangling link to `"]);
    // By name it is fetched again.
    fs::remove_file(&weights).unwrap();
    fs::remove_file(snapshot.join("first.link")).unwrap();
    hub.run(&["pack", "org/model", "again"]).ends(0);
    hub.same_as_local("again");
}

#[test]
fn a_cache_that_is_named_by_a_relative_path_has_links_that_hold() {
    let hub = Hub::new();
    hub.run_with(&["pack", "org/model", "out"], &[("HF_HUB_CACHE", "my cache")]).ends(0);
    let snapshot = hub.folder.path("my cache/models--org--model/snapshots").join(hub.commit());
    assert!(fs::metadata(snapshot.join("code/model.py")).unwrap().is_file());
    hub.same_as_local("out");
}

#[test]
fn a_name_in_other_letters_is_hinted_at() {
    let hub = Hub::new();
    hub.run(&["pack", "org/model", "out"]).ends(0);
    for command in [&["pack", "Org/Model", "out"][..], &["fit", "Org/Model"], &["verify", "Org/Model"]] {
        let ran = hub.run(&[command, &["--no-download"]].concat()).ends(2);
        ran.says(&["not in the cache", "the cache has `org/model`: name it so"]);
    }
}

#[test]
fn what_fits_is_told_of_what_is_in_the_cache_without_a_request() {
    let hub = Hub::new();
    let asked = hub.run(&["fit", "org/model", "--context", "10", "--json"]).ends(0).json();
    assert!(hub.mock.seen().iter().all(|seen| !seen.path.ends_with("/README.md")));
    hub.run(&["pack", "org/model", "out"]).ends(0);
    hub.mock.forget();
    for arguments in [&["--json"][..], &["--json", "--no-download"]] {
        let told = hub.run(&[&["fit", "org/model", "--context", "10"], arguments].concat()).ends(0).json();
        assert_eq!((&told["weights"], &told["revision"]), (&asked["weights"], &asked["revision"]));
    }
    assert_eq!(hub.mock.seen().len(), 0);
    let ran = hub.run(&["fit", "org/none"]).ends(2);
    ran.says(&[
        "no folder is named `org/none`: it is taken as a model of the Hub",
        "private, gated, or not there",
    ]);
}

/// A content of the right size is not taken for the right one where it is asked to be looked at.
#[test]
fn a_flipped_byte_in_the_cache_is_found() {
    let hub = Hub::new();
    hub.run(&["pack", "org/model", "out"]).ends(0);
    hub.run(&["pack", "org/model", "out", "--check-source"]).ends(0);
    let snapshot = hub.cached("snapshots").join(hub.commit());
    let key = hub.key("model.safetensors");
    let mut bytes = fs::read(snapshot.join("model.safetensors")).unwrap();
    let at = bytes.len() - 5;
    bytes[at] ^= 1;
    fs::write(fs::canonicalize(snapshot.join("model.safetensors")).unwrap(), bytes).unwrap();
    for model in ["org/model", &snapshot.display().to_string()] {
        let ran = hub.run(&["pack", model, "out", "--check-source"]).ends(2);
        ran.says(&[
            &format!("blobs/{key}`: expected the sha256 {key}, found "),
            "remove that file and fetch it again",
        ]);
    }
    // A folder has no hashes to hold it to.
    hub.run(&["pack", "model", "out", "--check-source"])
        .ends(0)
        .says(&["nothing says which hashes the files of `model` have"]);
}

/// As older programs leave it: no listing, and not all files beside the weights.
#[test]
fn a_snapshot_without_a_listing_is_enough_offline() {
    let hub = Hub::new();
    hub.run(&["pack", "org/model", "out"]).ends(0);
    fs::remove_dir_all(hub.cached("trees")).unwrap();
    hub.mock.forget();
    let ran = hub.run(&["pack", "org/model", "again", "--no-download"]).ends(0);
    ran.says(&["does not know whether all files beside the weights are there"]);
    assert_eq!(hub.mock.seen().len(), 0);
    hub.same_as_local("again");
    // Where requests may be made the Hub is asked, and only for the listing.
    hub.run(&["pack", "org/model", "again"]).ends(0);
    assert!(hub.mock.seen().iter().all(|seen| seen.path.starts_with("/api/")));
}
