//! The files of a folder that is published.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::io_error;
use super::repo::{Entry, is_inside};
use super::{HubError, Result};

/// A file of the folder.
pub(super) struct Local {
    pub(super) path: String,
    pub(super) file: PathBuf,
    pub(super) bytes: u64,
}

/// The first bytes of a file, which the Hub tells text from other files by.
pub(super) fn sample(path: &Path, bytes: usize) -> Result<Vec<u8>> {
    use std::io::Read;
    let file = fs::File::open(path).map_err(io_error("open", path))?;
    let mut sample = Vec::new();
    file.take(bytes as u64).read_to_end(&mut sample).map_err(io_error("read", path))?;
    Ok(sample)
}

/// Weights and an index of the repository that the folder has none of: they would be taken for the
/// checkpoint's.
pub(super) fn superfluous(files: &[Local], there: &[Entry]) -> Vec<String> {
    let local: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let weights = |path: &str| path.ends_with(".safetensors") || path == glyd_format::index::INDEX_NAME;
    let old = there.iter().map(|entry| entry.path.as_str());
    let old = old.filter(|path| !path.contains('/') && weights(path) && !local.contains(path));
    old.map(str::to_owned).collect()
}

/// The folder's files, by their paths in it.
pub(super) fn files(dir: &Path) -> Result<Vec<Local>> {
    let mut files = Vec::new();
    walk(dir, Path::new(""), &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn walk(dir: &Path, below: &Path, files: &mut Vec<Local>) -> Result<()> {
    const DEPTH_MAX: usize = 32;
    let here = dir.join(below);
    for entry in fs::read_dir(&here).map_err(io_error("list", &here))? {
        let name = entry.map_err(io_error("list", &here))?.file_name();
        let path = below.join(&name);
        let file = dir.join(&path);
        // What the Hub, git and this program keep for themselves.
        let hidden = name
            .to_str()
            .is_some_and(|name| name == ".git" || name == ".cache" || name.starts_with(".glyd-"));
        if hidden {
            continue;
        }
        let found = fs::symlink_metadata(&file).map_err(io_error("look at", &file))?;
        let text = path.to_str().filter(|path| is_inside(path));
        match text {
            Some(_) if found.is_dir() && path.components().count() < DEPTH_MAX => walk(dir, &path, files)?,
            Some(text) if found.is_file() => {
                files.push(Local { path: text.to_owned(), file, bytes: found.len() });
            }
            _ => {
                let file = file.display();
                return Err(HubError::Usage(format!(
                    "`{file}` cannot be published: no regular file, or of an odd name"
                )));
            }
        }
    }
    Ok(())
}
