//! The hash of a content while it arrives, as the Hub has it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use glyd_format::Hasher;
use sha1::{Digest as _, Sha1};

use super::error::io_error;
use super::repo::Hash;
use super::{HubError, Result, Stop};

/// Bytes that are read at a time.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// A hash in the making.
pub(crate) enum Running {
    Blob(Box<Sha1>),
    Sha256(Box<Hasher>),
}

impl Running {
    /// The hash of a content of so many bytes, of the kind of `hash`.
    pub(crate) fn like(hash: &Hash, bytes: u64) -> Running {
        match hash {
            Hash::Blob(_) => {
                let mut sha1 = Sha1::new();
                // Git hashes a blob's length with it.
                sha1.update(format!("blob {bytes}\0"));
                Running::Blob(Box::new(sha1))
            }
            Hash::Sha256(_) => Running::Sha256(Box::default()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Running::Blob(sha1) => sha1.update(bytes),
            Running::Sha256(hasher) => hasher.update(bytes),
        }
    }

    /// Takes all that a reader has; returns how much that was.
    pub(crate) fn read(&mut self, mut reader: impl Read, stop: &Stop) -> io::Result<u64> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut total = 0;
        while !stop.asked() {
            match reader.read(&mut chunk) {
                Ok(0) => break,
                Ok(bytes) => {
                    self.update(&chunk[..bytes]);
                    total += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    pub(crate) fn finish(self) -> Hash {
        match self {
            Running::Blob(sha1) => {
                let digest = sha1.finalize();
                Hash::Blob(digest.iter().map(|byte| format!("{byte:02x}")).collect())
            }
            Running::Sha256(hasher) => Hash::Sha256(hasher.finish()),
        }
    }
}

/// The hash of a file, of the kind of `like`.
///
/// # Errors
/// Where it cannot be read, or the work is stopped.
pub(crate) fn of_file(path: &Path, like: &Hash, stop: &Stop) -> Result<Hash> {
    let file = File::open(path).map_err(io_error("open", path))?;
    let bytes = file.metadata().map_err(io_error("look at", path))?.len();
    let mut running = Running::like(like, bytes);
    running.read(file, stop).map_err(io_error("read", path))?;
    stop.check()?;
    Ok(running.finish())
}

/// Holds a file to the hash it must have.
///
/// # Errors
/// Where it has another.
pub(crate) fn check_file(path: &Path, expected: &Hash, stop: &Stop) -> Result<()> {
    let found = of_file(path, expected, stop)?;
    if found == *expected {
        return Ok(());
    }
    let kind = if matches!(expected, Hash::Sha256(_)) { "the sha256" } else { "the git hash" };
    Err(HubError::Damaged {
        file: path.display().to_string(),
        expected: format!("{kind} {}", expected.name()),
        found: found.name(),
        hint: "remove that file and fetch it again: it is not what was published".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_s_hash_is_git_s() {
        // `printf 'what is up, doc?' | git hash-object --stdin`
        let expected = Hash::Blob("bd9dbf5aae1a3862dd1526723246b20206e5fc37".to_owned());
        let mut running = Running::like(&expected, 16);
        assert_eq!(running.read(&b"what is up, doc?"[..], &Stop::default()).unwrap(), 16);
        assert_eq!(running.finish(), expected);
    }
}
