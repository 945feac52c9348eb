//! Jobs that are stopped, killed, or begun twice.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::util::{Folder, Ran};

/// Begins to pack a checkpoint that takes a while; returns once files are written.
fn begin(folder: &Folder) -> Child {
    folder.slow_checkpoint("slow");
    let arguments = ["pack", "slow", "out", "--threads", "1", "--json"];
    let mut command = folder.command(arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !folder.path("out/.glyd-partial").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn an_interrupted_pack_leaves_nothing() {
    for name in ["INT", "TERM"] {
        let folder = Folder::new();
        let child = begin(&folder);
        signal(&child, name);
        let ran = Ran::of(&child.wait_with_output().unwrap()).ends(130).says(&["glyd: interrupted"]);
        assert_eq!(ran.json()["error"]["kind"], "interrupted");
        assert!(!folder.path("out").exists());
    }
}

#[test]
fn an_interrupted_pack_leaves_the_old_checkpoint_whole() {
    let folder = Folder::with_model("llama");
    folder.run(["pack", "model", "out"]).ends(0);
    let before = folder.files("out");
    let child = begin(&folder);
    signal(&child, "INT");
    Ran::of(&child.wait_with_output().unwrap()).ends(130);
    assert!(folder.files("out") == before);
    folder.run(["verify", "out"]).ends(0);
}

#[test]
fn the_rest_of_a_killed_pack_is_cleared_by_the_next() {
    let folder = Folder::with_model("llama");
    let mut child = begin(&folder);
    child.kill().unwrap();
    child.wait().unwrap();
    folder.run(["verify", "out"]).ends(2).says(&["no `glyd.json`"]);
    folder.run(["pack", "model", "out"]).ends(0);
    assert_eq!(folder.names("out"), ["config.json", "glyd.json", "model.safetensors"]);
    folder.run(["verify", "out"]).ends(0);
}

#[test]
fn a_second_run_into_one_folder_is_refused() {
    let folder = Folder::with_model("llama");
    let child = begin(&folder);
    folder.run(["pack", "model", "out"]).ends(2).says(&["another run is writing to it"]);
    signal(&child, "INT");
    Ran::of(&child.wait_with_output().unwrap()).ends(130);
}
