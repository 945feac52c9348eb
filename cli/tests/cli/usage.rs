//! The command line: help, versions, and what makes no sense.

use crate::util::Folder;

#[test]
fn help_and_version_are_data() {
    let folder = Folder::new();
    for arguments in [
        &["--help"][..],
        &["-h"],
        &["help"],
        &["pack", "--help"],
        &["verify", "--help"],
        &["inspect", "--help"],
        &["card", "--help"],
        &["publish", "--help"],
        &["demo", "--help"],
    ] {
        let ran = folder.run(arguments).ends(0);
        assert_eq!(ran.stderr, "", "{arguments:?}");
        ran.prints(&["Usage: glyd", "Exit status:", "130  interrupted"]);
    }
    let ran = folder.run(["--version"]).ends(0);
    assert_eq!(ran.stdout, concat!("glyd ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(ran.stderr, "");
}

#[test]
fn what_makes_no_sense_is_2_and_on_stderr() {
    let folder = Folder::with_model("llama");
    for (arguments, said) in [
        (&[][..], "Usage: glyd"),
        (&["frob"], "unrecognized subcommand 'frob'"),
        (&["pack"], "<MODEL>"),
        (&["pack", "model"], "<OUT>"),
        (&["pack", "model", "out", "--layout", "mma13"], "mma13"),
        (&["pack", "model", "out", "--shard-size", "5XB"], "expected bytes, or a number with a unit"),
        (&["pack", "model", "out", "--shard-size", "0"], "expected more than nothing"),
        (&["pack", "model", "out", "--threads", "0"], "expected 1 to 4096"),
        (&["pack", "model", "out", "--force"], "--force"),
        (&["verify", "a", "b"], "unexpected argument 'b'"),
    ] {
        let ran = folder.run(arguments).ends(2).says(&[said]);
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
    assert!(!folder.path("out").exists());
}

#[test]
fn under_json_it_is_json_too() {
    let folder = Folder::new();
    let ran = folder.run(["pack", "model", "--json"]).ends(2).says(&["<OUT>"]);
    let document = ran.json();
    assert_eq!(document["command"], "pack");
    assert_eq!(document["error"]["kind"], "usage");
    assert!(document["error"]["message"].as_str().unwrap().contains("<OUT>"), "{document}");
    assert_eq!(folder.run(["--json"]).ends(2).json()["command"], serde_json::Value::Null);
    assert_eq!(folder.run(["frob", "--json"]).ends(2).json()["command"], serde_json::Value::Null);
}

#[test]
fn an_instruction_set_that_is_not_there_is_named() {
    let folder = Folder::with_model("llama");
    let ran = folder.command(["pack", "model", "out"]).env("GLYD_SIMD", "mmx").output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.contains("GLYD_SIMD: expected one of portable, avx2, avx512, neon, found `mmx`"), "{said}");
    let ran = folder.command(["pack", "model", "out"]).env("GLYD_SIMD", "portable").output().unwrap();
    assert_eq!(ran.status.code(), Some(0));
}
