//! Files as they are read: with positional reads, so that a file that shrinks is an error and never
//! a signal, and held to be the same file from the first look to the last.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Invalid, Result};

/// What tells a file from another, or from itself after it was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// A file open for reading.
#[derive(Debug)]
pub struct File {
    file: fs::File,
    path: PathBuf,
    stamp: Stamp,
}

impl File {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// Where it cannot be opened, or is no regular file.
    pub fn open(path: &Path) -> Result<File> {
        let io = |source| Error::Io { action: "open", path: path.to_owned(), source };
        // A pipe would block the open itself: look first.
        let found = fs::metadata(path).map_err(|source| match fs::read_link(path) {
            Ok(target) => dangling(path, &target, source),
            Err(_) => io(source),
        })?;
        if !found.is_file() {
            return Err(Invalid {
                file: Some(path.to_owned()),
                expected: "a regular file".to_owned(),
                found: if found.is_dir() { "a folder" } else { "a special file" }.to_owned(),
                hint: Some("put the file itself there".to_owned()),
                ..Invalid::default()
            }
            .into());
        }
        let file = fs::File::open(path).map_err(io)?;
        let stamp = Stamp::of(&file.metadata().map_err(io)?);
        Ok(File { file, path: path.to_owned(), stamp })
    }

    /// Opens the file that was seen before, and holds it to be the same.
    ///
    /// # Errors
    /// As [`File::open`], and where the file changed since it was seen.
    pub fn open_same(path: &Path, seen: Stamp) -> Result<File> {
        let file = File::open(path)?;
        file.check(seen)?;
        Ok(file)
    }

    /// Holds the file to be as it was when it was opened.
    ///
    /// # Errors
    /// Where it was written to since.
    pub fn check_unchanged(&self) -> Result<()> {
        let io = |source| Error::Io { action: "look at", path: self.path.clone(), source };
        let now = Stamp::of(&self.file.metadata().map_err(io)?);
        if now == self.stamp { Ok(()) } else { Err(self.changed(self.stamp, now)) }
    }

    fn check(&self, seen: Stamp) -> Result<()> {
        if self.stamp == seen { Ok(()) } else { Err(self.changed(seen, self.stamp)) }
    }

    fn changed(&self, seen: Stamp, now: Stamp) -> Error {
        let found = match (seen.bytes, now.bytes) {
            (seen, now) if seen != now => format!("{now} bytes where there were {seen}"),
            _ => "other contents or another file".to_owned(),
        };
        Invalid {
            file: Some(self.path.clone()),
            expected: "the file to stay as it was when the work began".to_owned(),
            found,
            hint: Some("start again once nothing writes to it".to_owned()),
            ..Invalid::default()
        }
        .into()
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// What tells this file from another.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Fills `buffer` from the file's bytes at `offset`.
    ///
    /// # Errors
    /// Where they cannot be read, or the file ends before them.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|source| {
            if source.kind() == std::io::ErrorKind::UnexpectedEof {
                return Invalid {
                    file: Some(self.path.clone()),
                    expected: format!("{} bytes at {offset}", buffer.len()),
                    found: "the end of the file: it became shorter while it was read".to_owned(),
                    hint: Some("start again once nothing writes to it".to_owned()),
                    ..Invalid::default()
                }
                .into();
            }
            Error::Io { action: "read", path: self.path.clone(), source }
        })
    }
}

fn dangling(path: &Path, target: &Path, source: std::io::Error) -> Error {
    if source.kind() != std::io::ErrorKind::NotFound {
        return Error::Io { action: "open", path: path.to_owned(), source };
    }
    Invalid {
        file: Some(path.to_owned()),
        expected: "a link to a file".to_owned(),
        found: format!("a dangling link to `{}`", target.display()),
        hint: Some("fetch the checkpoint again: the file it links to is not there".to_owned()),
        ..Invalid::default()
    }
    .into()
}

/// Two of these names that are one where the case of letters does not count.
#[must_use]
pub fn same_but_for_case<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<(&'a str, &'a str)> {
    let mut seen = HashMap::new();
    names.into_iter().find_map(|name| {
        let other = seen.insert(name.to_lowercase(), name)?;
        (other != name).then_some((other, name))
    })
}

/// Whether the case of letters does not count in a folder, of which `name` is a file with letters in it.
#[must_use]
pub fn ignores_case(dir: &Path, name: &str) -> bool {
    let other = if name.to_uppercase() == name { name.to_lowercase() } else { name.to_uppercase() };
    let inode = |name: &str| fs::symlink_metadata(dir.join(name)).map(|found| (found.dev(), found.ino()));
    inode(name).is_ok_and(|found| inode(&other).is_ok_and(|other| other == found))
}

/// Reads the whole of a small file.
///
/// # Errors
/// Where it cannot be read, or has more than `bytes_max` bytes.
pub fn read_small(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    if file.bytes() > bytes_max {
        return Err(Invalid {
            file: Some(path.to_owned()),
            expected: format!("at most {bytes_max} bytes"),
            found: format!("{} bytes", file.bytes()),
            ..Invalid::default()
        }
        .into());
    }
    let mut bytes = vec![0; usize::try_from(file.bytes()).unwrap_or(usize::MAX)];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_one_but_for_case_are_found() {
        assert_eq!(
            same_but_for_case(["README.md", "config.json", "readme.md"]),
            Some(("README.md", "readme.md"))
        );
        assert_eq!(
            same_but_for_case(["Model.safetensors", "model.safetensors"]).map(|pair| pair.1),
            Some("model.safetensors")
        );
        assert_eq!(same_but_for_case(["sub/A", "SUB/a"]), Some(("sub/A", "SUB/a")));
        assert_eq!(same_but_for_case(["a", "b", "a"]), None);
    }

    #[test]
    fn a_folder_in_which_case_counts_is_known() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("probe"), "").unwrap();
        fs::hard_link(dir.path().join("probe"), dir.path().join("linked")).unwrap();
        assert_eq!(ignores_case(dir.path(), "probe"), dir.path().join("PROBE").exists());
        assert!(!ignores_case(dir.path(), "none"));
        // As a folder looks in which it does not.
        if fs::hard_link(dir.path().join("probe"), dir.path().join("PROBE")).is_ok() {
            assert!(ignores_case(dir.path(), "probe"));
        }
    }
}
