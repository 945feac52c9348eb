//! Stdout and stderr, wherever they lead: pipes that close, full disks, logs, terminals.

use std::fs::File;
use std::process::{Command, Stdio};

use crate::util::{Folder, Ran};

/// The program run with nobody at the other end of stdout.
fn unread(folder: &Folder, arguments: &[&str]) -> Ran {
    let mut child = folder.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    Ran::of(&child.wait_with_output().unwrap())
}

#[test]
fn a_reader_that_has_left_is_no_error() {
    let folder = Folder::with_packed(&[]);
    for arguments in [
        &["--help"][..],
        &["inspect", "packed"],
        &["inspect", "model", "--json"],
        &["verify", "packed"],
        &["pack", "model", "out"],
    ] {
        let ran = unread(&folder, arguments).ends(0);
        assert_eq!(ran.stderr, "", "{arguments:?}");
    }
}

#[test]
fn a_reader_that_has_left_does_not_make_damage_good() {
    let folder = Folder::with_packed(&[]);
    folder.flip("packed/model.safetensors", 1);
    unread(&folder, &["verify", "packed"]).ends(1);
    unread(&folder, &["verify", "packed", "--json"]).ends(1);
    unread(&folder, &["verify", "model", "--json"]).ends(2);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    let folder = Folder::with_packed(&[]);
    for arguments in [&["--help"][..], &["inspect", "packed"], &["verify", "packed", "--json"], &["demo"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = folder.command(arguments).stdout(full).output().unwrap();
        Ran::of(&output).ends(2).says(&["glyd: cannot write to stdout: No space left on device"]);
    }
}

#[test]
fn a_log_has_no_carriage_returns_and_no_colours() {
    let folder = Folder::with_model("llama");
    folder.run(["pack", "model", "packed"]).ends(0);
    folder.flip("packed/model.safetensors", 1);
    for ci in [None, Some("1"), Some("true")] {
        for arguments in
            [&["pack", "model", "out"][..], &["verify", "packed"], &["verify", "none"], &["frob"], &["demo"]]
        {
            let mut command = folder.command(arguments);
            ci.map(|ci| command.env("CI", ci));
            let ran = Ran::of(&command.output().unwrap());
            for text in [&ran.stdout, &ran.stderr] {
                assert!(!text.contains(['\r', '\u{1b}']), "{arguments:?}: {ran:#?}");
            }
        }
    }
}

/// The program run on a terminal, and all that it showed there; `None` without util-linux's `script`.
#[cfg(target_os = "linux")]
fn on_a_terminal(folder: &Folder, arguments: &str, ci: Option<&str>) -> Option<String> {
    let script = Command::new("script").arg("--version").output();
    if !script.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("util-linux")) {
        eprintln!("skipped: no util-linux `script` to make a terminal with");
        return None;
    }
    let line = format!("'{}' {arguments}", env!("CARGO_BIN_EXE_glyd"));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(folder.dir()).stdin(Stdio::null());
    command.env_remove("CI").env("TERM", "xterm");
    ci.map(|ci| command.env("CI", ci));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
#[cfg(target_os = "linux")]
fn a_terminal_has_a_bar_unless_it_is_ci_or_quiet() {
    let folder = Folder::new();
    folder.slow_checkpoint("model");
    let Some(shown) = on_a_terminal(&folder, "pack model out", None) else { return };
    assert!(shown.contains("packing ") && shown.contains(" of 268.44 MB, "), "{shown:?}");
    assert!(shown.contains("packed `model` into `out`"), "{shown:?}");
    let shown = on_a_terminal(&folder, "pack model out", Some("1")).unwrap();
    assert!(!shown.contains('\u{1b}') && shown.contains("packed `model`"), "{shown:?}");
    let shown = on_a_terminal(&folder, "verify out --quiet", None).unwrap();
    assert_eq!(shown, "");
}
