//! Files that are none, and files that change while they are read.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests' code: it panics when it fails")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use glyd_fixtures::safetensors::write;
use glyd_format::Error;
use glyd_format::file::{File, read_small};
use glyd_format::weights::{Weights, WeightsFile};

const NAME: &str = "model.safetensors";

#[track_caller]
fn refused(path: &Path, found: &str) {
    let message = File::open(path).unwrap_err().to_string();
    assert!(message.starts_with(&format!("`{}`: expected ", path.display())), "{message}");
    assert!(message.contains(found), "{message}");
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(&pipe, "expected a regular file, found a special file");
    let link = folder.path().join("link");
    symlink(&pipe, &link).unwrap();
    refused(&link, "found a special file");
    refused(Path::new("/dev/zero"), "found a special file");
}

#[test]
fn a_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    refused(folder.path(), "expected a regular file, found a folder");
}

#[test]
fn a_dangling_link_is_named_with_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join(NAME);
    symlink("../../blobs/abc", &link).unwrap();
    refused(&link, "expected a link to a file, found a dangling link to `../../blobs/abc`");
}

#[test]
fn what_the_system_says_is_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let error = File::open(&folder.path().join("none")).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(std::error::Error::source(&error).is_some());
    let looped = folder.path().join("loop");
    symlink(&looped, &looped).unwrap();
    assert!(matches!(File::open(&looped), Err(Error::Io { .. })));
}

#[test]
fn a_small_file_has_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, "12345").unwrap();
    assert_eq!(read_small(&path, 5).unwrap(), b"12345");
    let message = read_small(&path, 4).unwrap_err().to_string();
    assert!(message.contains("expected at most 4 bytes, found 5 bytes"), "{message}");
}

/// The weights of a folder with one file of the tensor `w`, [8] of U8.
fn weights(folder: &Path) -> Weights {
    write(&folder.join(NAME), None, &[("w", "U8", &[8], &[1, 2, 3, 4, 5, 6, 7, 8])]);
    Weights::new(vec![WeightsFile::open(folder, NAME).unwrap().0], |_, _| true)
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(folder.path());
    let at = weights.find("w").unwrap();
    let mut bytes = [0; 4];
    weights.read_at(at, &mut bytes, 4).unwrap();
    assert_eq!(bytes, [5, 6, 7, 8]);
    let file = fs::File::options().write(true).open(folder.path().join(NAME)).unwrap();
    file.set_len(weights.file(at).bytes() - 1).unwrap();
    let message = weights.read_at(at, &mut bytes, 4).unwrap_err().to_string();
    assert!(message.contains("expected 4 bytes at"), "{message}");
    assert!(message.contains("it became shorter while it was read; start again"), "{message}");
    let message = weights.check_unchanged().unwrap_err().to_string();
    assert!(message.contains("bytes where there were"), "{message}");
}

#[test]
fn a_file_that_is_replaced_is_not_read_on() {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(folder.path());
    weights.check_unchanged().unwrap();
    let other = folder.path().join("other");
    write(&other, None, &[("w", "U8", &[8], &[8; 8])]);
    fs::rename(&other, folder.path().join(NAME)).unwrap();
    let at = weights.find("w").unwrap();
    let message = weights.read_at(at, &mut [0; 8], 0).unwrap_err().to_string();
    assert!(message.contains("found other contents or another file"), "{message}");
}

#[test]
fn a_read_past_a_tensor_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(folder.path());
    let at = weights.find("w").unwrap();
    for (bytes, offset) in [(9, 0), (1, 8), (1, u64::MAX), (8, 1)] {
        let message = weights.read_at(at, &mut vec![0; bytes], offset).unwrap_err().to_string();
        let expected = format!("`w`: expected {bytes} bytes at {offset}, found a tensor of 8 bytes");
        assert!(message.contains(&expected), "{message}");
    }
    weights.read_at(at, &mut [], 8).unwrap();
}

#[test]
fn few_files_are_open_at_once_however_many_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let files = (0..300_u16).map(|number| {
        let (name, tensor) = (format!("{number}.safetensors"), format!("w{number}"));
        write(&folder.path().join(&name), None, &[(&tensor, "U16", &[1], &number.to_le_bytes())]);
        WeightsFile::open(folder.path(), &name).unwrap().0
    });
    let weights = Weights::new(files.collect(), |_, _| true);
    let before = open_files();
    for number in 0..300_u16 {
        let mut bytes = [0; 2];
        weights.read_at(weights.find(&format!("w{number}")).unwrap(), &mut bytes, 0).unwrap();
        assert_eq!(u16::from_le_bytes(bytes), number);
    }
    // The other tests of this program have files of their own.
    assert!(open_files() < before + 50);
}

/// Files that this process has open, where the system says so.
fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
