//! A source's files held to the hashes that name them in a cache.

use std::fs;
use std::path::{Path, PathBuf};

use glyd_format::Progress;

use super::error::io_error;
use super::hash::check_file;
use super::repo::{Hash, is_commit};
use super::{Result, Stop};

/// Folders are not followed deeper.
const DEPTH_MAX: usize = 32;

/// Hashes every file of a snapshot whose blob's name is a hash; returns how many those are.
///
/// # Errors
/// Names the blob that is not what its name says.
pub(crate) fn check_source(dir: &Path, stop: &Stop, progress: &dyn Progress) -> Result<u64> {
    let mut files = Vec::new();
    walk(dir, 0, &mut files)?;
    files.sort();
    files.dedup();
    let bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |found| found.len());
    progress.start(files.iter().map(|(path, _)| bytes(path)).sum());
    for (path, name) in &files {
        let hash = if is_commit(name) {
            Some(Hash::Blob(name.clone()))
        } else {
            name.parse().ok().map(Hash::Sha256)
        };
        if let Some(hash) = hash {
            check_file(path, &hash, stop)?;
            progress.advance(bytes(path));
        }
    }
    Ok(files.len() as u64)
}

/// The files below a folder, links followed, that have a hash for a name.
fn walk(dir: &Path, depth: usize, files: &mut Vec<(PathBuf, String)>) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let path = entry.map_err(io_error("list", dir))?.path();
        // What dangles is for the reading of the checkpoint to say.
        let Ok(resolved) = fs::canonicalize(&path) else { continue };
        let name = resolved.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if resolved.is_dir() && depth < DEPTH_MAX && !path.is_symlink() {
            walk(&path, depth + 1, files)?;
        } else if resolved.is_file() && (is_commit(&name) || name.parse::<glyd_format::Digest>().is_ok()) {
            files.push((resolved, name));
        }
    }
    Ok(())
}
