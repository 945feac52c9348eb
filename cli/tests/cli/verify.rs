//! `glyd verify`: its verdicts and their exit statuses.

use std::fs;

use glyd_format::finding::Rule;

use crate::util::Folder;

#[test]
fn a_good_checkpoint_is_good() {
    let folder = Folder::with_packed(&[]);
    fs::create_dir(folder.path("packed/notes")).unwrap();
    fs::write(folder.path("packed/notes/mine.txt"), "any other file").unwrap();
    let ran = folder.run(["verify", "packed", "--threads", "1"]).ends(0);
    assert_eq!(ran.stderr, "");
    assert_eq!(ran.stdout.lines().count(), 1, "{ran:#?}");
    ran.prints(&["good: `packed` (glyd-v1, mma): every rule holds; "]);
}

#[test]
fn every_finding_is_a_line() {
    for layout in ["mma", "mma12"] {
        let folder = Folder::with_packed(&["--layout", layout]);
        // Data comes last in both layouts' files: of packs, and before it of what is saved as it is.
        let bytes = fs::metadata(folder.path("packed/model.safetensors")).unwrap().len();
        folder.flip("packed/model.safetensors", 1);
        folder.flip("packed/model.safetensors", usize::try_from(bytes / 2).unwrap());
        let quiet = folder.run(["verify", "packed", "--quiet"]).ends(1);
        let ran = folder.run(["verify", "packed", "--threads", "3"]).ends(1);
        assert!(ran.stdout.lines().count() >= 3, "{ran:#?}");
        assert_eq!(quiet.stdout.lines().count(), ran.stdout.lines().count(), "{quiet:#?}");
        for line in ran.stdout.lines().filter(|line| !line.starts_with("damaged: ")) {
            let where_and_what = ["damage (", "`packed/model.safetensors`: `", "expected ", ", found "];
            where_and_what.iter().for_each(|text| assert!(line.contains(text), "{line}"));
        }
        ran.prints(&["damaged: `packed` (glyd-v"]).says(&["hint: fetch what is named again"]);
    }
}

#[test]
fn a_folder_without_a_manifest_cannot_be_verified() {
    let folder = Folder::with_model("llama");
    let ran = folder.run(["verify", "model"]).ends(2);
    assert_eq!(ran.stdout, "");
    ran.says(&["`model`: expected a packed checkpoint, found no `glyd.json`"]);
    folder.run(["verify", "nowhere"]).ends(2).says(&["`nowhere`", "found none of that name"]);
    folder.run(["verify", "model/config.json"]).ends(2).says(&["found a file"]);
}

#[test]
fn a_missing_shard_is_damage() {
    let folder = Folder::with_packed(&["--shard-size", "64KiB"]);
    let gone = folder.names("packed").into_iter().find(|name| name.starts_with("model-00002")).unwrap();
    fs::remove_file(folder.path("packed").join(&gone)).unwrap();
    folder.run(["verify", "packed"]).ends(1).prints(&["damage (files)", &gone, "no such file", "damaged: "]);
}

#[test]
fn a_broken_manifest_is_damage() {
    let folder = Folder::with_packed(&[]);
    fs::write(folder.path("packed/glyd.json"), "{").unwrap();
    folder.run(["verify", "packed"]).ends(1).prints(&["damage (manifest): `packed/glyd.json`", "damaged: "]);
}

#[test]
fn a_format_that_is_not_known_is_refused_by_its_name() {
    let folder = Folder::with_packed(&[]);
    folder.edit("packed/glyd.json", |manifest| {
        manifest.insert("format".into(), "glyd-v4".into());
    });
    let ran = folder.run(["verify", "packed"]).ends(2).says(&["glyd-v4"]);
    assert_eq!(ran.stdout, "");
}

#[test]
fn an_older_checkpoint_without_sha256s_is_unchecked() {
    let folder = Folder::with_packed(&[]);
    let plain = folder.run(["inspect", "packed", "--json"]).json()["plain"].clone();
    folder.edit("packed/glyd.json", |manifest| {
        manifest.insert("glyd".into(), "0.24.0".into());
        manifest.remove("tensors");
    });
    let ran = folder.run(["verify", "packed"]).ends(0);
    ran.prints(&["unchecked: `packed` (glyd-v1, mma): every rule holds", "no sha256 of"]);
    let document = folder.run(["verify", "packed", "--json"]).ends(0).json();
    assert_eq!(document["verdict"], "unchecked");
    assert_eq!(document["plain_tensors"], 0);
    let inspected = folder.run(["inspect", "packed", "--json"]).ends(0).json();
    assert_eq!(inspected["plain"].as_array().unwrap().len(), plain.as_array().unwrap().len());
    assert_eq!(document["unchecked_tensors"], inspected["plain"].as_array().unwrap().len());
}

#[test]
fn a_newer_writer_s_key_is_a_warning() {
    let folder = Folder::with_packed(&[]);
    folder.edit("packed/glyd.json", |manifest| {
        manifest.insert("glyd".into(), "0.99.0".into());
        manifest.insert("more".into(), 1.into());
    });
    folder.run(["verify", "packed"]).ends(0).prints(&["warning (manifest): ", "`more`", "good: "]);
    folder.run(["inspect", "packed"]).ends(0).prints(&["warning (manifest): ", "`more`"]);
}

#[test]
fn every_rule_is_in_the_page() {
    let page = include_str!("../../../docs/verify.md");
    let rules = [
        Rule::Manifest,
        Rule::Files,
        Rule::Header,
        Rule::Index,
        Rule::Coverage,
        Rule::Buffers,
        Rule::Membership,
        Rule::Lists,
        Rule::Digest,
        Rule::Canonical,
    ];
    let rows: Vec<&str> = page
        .lines()
        .skip_while(|line| *line != "| rule | what must hold | section 7 of format.md |")
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('`').nth(1).unwrap())
        .collect();
    assert_eq!(rows, rules.map(Rule::name));
}
