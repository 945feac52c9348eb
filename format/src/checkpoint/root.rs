//! Which files are a checkpoint's own: those in its folder, and blobs of the Hugging Face cache.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Invalid, Result};

/// A checkpoint's folder, links resolved, to hold its files' links to.
#[derive(Debug)]
pub struct Root {
    dir: PathBuf,
    resolved: PathBuf,
}

impl Root {
    /// The root of the checkpoint in `dir`.
    ///
    /// # Errors
    /// Where `dir` cannot be resolved.
    pub fn new(dir: &Path) -> Result<Root> {
        let io = |source| Error::Io { action: "open", path: dir.to_owned(), source };
        Ok(Root { dir: dir.to_owned(), resolved: fs::canonicalize(dir).map_err(io)? })
    }

    /// Whether a file, links resolved, is the checkpoint's own: below its folder, or a blob of the
    /// Hugging Face cache, whose snapshots are links into their repository's blobs.
    #[must_use]
    pub fn holds(&self, resolved: &Path) -> bool {
        let blob = || {
            let blobs = resolved.parent()?;
            let repo = blobs.parent()?;
            let cached = repo.file_name()?.to_str()?.starts_with("models--");
            let snapshots = self.resolved.parent()?;
            let own = snapshots.file_name()? == "snapshots" && snapshots.parent() == Some(repo);
            (blobs.file_name()? == "blobs" && (cached || own)).then_some(())
        };
        resolved.starts_with(&self.resolved) || blob().is_some()
    }

    /// Holds a file to be the checkpoint's own.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        let path = self.dir.join(name);
        // What is not there, or dangles, has a message of its own once it is opened.
        let Ok(resolved) = fs::canonicalize(&path) else { return Ok(()) };
        if self.holds(&resolved) {
            return Ok(());
        }
        Err(Invalid {
            file: Some(path),
            expected: "a file inside the checkpoint".to_owned(),
            found: format!("a link to `{}`", resolved.display()),
            hint: Some("put the file itself there, or name the folder that holds it".to_owned()),
            ..Invalid::default()
        }
        .into())
    }
}
