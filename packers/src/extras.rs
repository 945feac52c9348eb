//! What stands beside a checkpoint's weights and comes along: custom code, tokenizers, licences,
//! sub-folders.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use glyd_format::checkpoint::Root;
use glyd_format::file::File;
use glyd_format::{Error as FormatError, Progress};

use crate::error::{Error, Result};
use crate::save::{LOCK, Output, STAGING};

/// Endings of weights, which are not copied; their indexes end in these and `.index.json`.
const WEIGHTS: [&str; 11] =
    [".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz", ".tflite"];
const INDEX: &str = ".index.json";
/// Folders are not followed deeper: a checkpoint has none, and a loop of mounts would not end.
const DEPTH_MAX: usize = 32;

/// The files beside a checkpoint's weights, by their paths in its folder, in order.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    /// Copied: with their bytes.
    pub(crate) copied: Vec<(PathBuf, u64)>,
    /// Not copied: with the reason.
    pub(crate) left: Vec<(PathBuf, &'static str)>,
}

/// Finds what stands beside the weights in the folder `dir`.
pub(crate) fn find(dir: &Path) -> Result<Extras> {
    let mut extras = Extras::default();
    let root = Root::new(dir)?;
    walk(dir, &root, Path::new(""), 0, &mut extras)?;
    extras.copied.sort();
    extras.left.sort();
    Ok(extras)
}

fn walk(dir: &Path, root: &Root, below: &Path, depth: usize, extras: &mut Extras) -> Result<()> {
    let here = dir.join(below);
    let io = |source| FormatError::Io { action: "list", path: here.clone(), source };
    for entry in fs::read_dir(&here).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let path = below.join(&name);
        let full = dir.join(&path);
        if let Some(reason) = excluded(&name) {
            extras.left.push((path, reason));
            continue;
        }
        let link = fs::symlink_metadata(&full).is_ok_and(|found| found.is_symlink());
        if link && !fs::canonicalize(&full).is_ok_and(|resolved| root.holds(&resolved)) {
            extras.left.push((path, "links out of the checkpoint"));
            continue;
        }
        let found = fs::metadata(&full).map_err(|source| FormatError::Io {
            action: "look at",
            path: full.clone(),
            source,
        })?;
        if found.is_dir() && link {
            extras.left.push((path, "a link to a folder"));
        } else if found.is_dir() && depth < DEPTH_MAX {
            walk(dir, root, &path, depth + 1, extras)?;
        } else if found.is_file() {
            extras.copied.push((path, found.len()));
        } else {
            extras.left.push((path, if found.is_dir() { "too deep a folder" } else { "no regular file" }));
        }
    }
    Ok(())
}

/// Why a file of a checkpoint, by its path in it, does not come along, where it does not.
#[must_use]
pub fn left_behind(path: &Path) -> Option<&'static str> {
    path.iter().find_map(excluded)
}

/// Why a file or folder of this name is not copied, where it is not.
fn excluded(name: &OsStr) -> Option<&'static str> {
    let name = name.to_string_lossy().to_ascii_lowercase();
    let weights = |name: &str| WEIGHTS.iter().any(|ending| name.ends_with(ending));
    if weights(&name) {
        Some("weights")
    } else if name.strip_suffix(INDEX).is_some_and(weights) {
        Some("an index of weights")
    } else if name.starts_with(".git") || [".cache", STAGING, LOCK].contains(&name.as_str()) {
        Some("not of the model")
    } else {
        None
    }
}

/// Holds the extras to be files that can be read, before the work that comes ahead of their copying.
pub(crate) fn check_readable(dir: &Path, extras: &Extras) -> Result<()> {
    let errors = extras.copied.iter().filter_map(|(path, _)| File::open(&dir.join(path)).err());
    Ok(FormatError::all(errors.collect())?)
}

/// Copies the extras' contents into the new checkpoint, as ordinary files.
pub(crate) fn copy(dir: &Path, extras: &Extras, output: &Output, progress: &dyn Progress) -> Result<()> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let mut chunk = Vec::new();
    for (path, _) in &extras.copied {
        let from = File::open(&dir.join(path))?;
        let to = output.file(path, from.bytes())?;
        let mut offset = 0;
        while offset < from.bytes() {
            if progress.stopped() {
                return Err(Error::Interrupted);
            }
            let here = CHUNK_BYTES.min(from.bytes() - offset);
            chunk.resize(usize::try_from(here).unwrap_or(usize::MAX), 0);
            from.read_at(&mut chunk, offset)?;
            to.write_at(&chunk, offset)?;
            offset += here;
        }
        from.check_unchanged()?;
        output.finish(to)?;
    }
    Ok(())
}
