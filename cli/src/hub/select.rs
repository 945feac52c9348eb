//! Which of a repository's files are wanted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use glyd_format::Invalid;
use glyd_format::checkpoint::{CONFIG_NAME, choose_weights};
use glyd_format::index::{INDEX_NAME, Index};
use glyd_format::manifest::MANIFEST_NAME;

use super::repo::{Entry, RepoId};

/// What a repository is fetched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be packed: its weights and what comes along with them.
    Source,
    /// To be verified: a packed checkpoint, whole.
    Packed,
    /// To be looked at, whichever it is.
    Either,
}

/// A repository's files by what they are to the purpose.
#[derive(Debug)]
pub(crate) struct Selection<'a> {
    pub(crate) wanted: Vec<&'a Entry>,
    /// Not wanted, in bytes: other weights for the most part.
    pub(crate) left_bytes: u64,
}

/// The index of the weights, where the repository has one: it is needed before it is known what is wanted.
pub(crate) fn index(entries: &[Entry]) -> Option<&Entry> {
    entries.iter().find(|entry| entry.path == INDEX_NAME)
}

/// Whether they are those of a packed checkpoint.
pub(crate) fn is_packed(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.path == MANIFEST_NAME)
}

/// The files that are wanted, of which `index` is the index of the weights.
///
/// # Errors
/// Where the repository cannot be what it is wanted for: nothing of it need be fetched then.
pub(crate) fn select<'a>(
    repo: &RepoId,
    entries: &'a [Entry],
    index: Option<&Index>,
    purpose: Purpose,
) -> glyd_format::Result<Selection<'a>> {
    let dir = Path::new(repo.name());
    let tops: BTreeSet<String> =
        entries.iter().filter(|entry| !entry.path.contains('/')).map(|entry| entry.path.clone()).collect();
    let weights: BTreeSet<String> = match purpose {
        Purpose::Source => source(dir, &tops, index)?,
        Purpose::Packed => packed(dir, &tops, entries)?,
        Purpose::Either if tops.contains(MANIFEST_NAME) => packed(dir, &tops, entries)?,
        Purpose::Either => source(dir, &tops, index)?,
    };
    let there: BTreeSet<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    let missing: Vec<String> =
        weights.iter().filter(|name| !there.contains(name.as_str())).cloned().collect();
    if !missing.is_empty() {
        return Err(Invalid {
            file: Some(dir.join(INDEX_NAME)),
            expected: "shards that the repository holds".to_owned(),
            found: format!("`{}`, which it does not", missing.join("`, `")),
            hint: Some("tell its owner: the upload is incomplete".to_owned()),
            ..Invalid::default()
        }
        .into());
    }
    let is_wanted = |entry: &&Entry| {
        let path = entry.path.as_str();
        weights.contains(path) || path == INDEX_NAME || glyd_packers::left_behind(Path::new(path)).is_none()
    };
    let (wanted, left): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(is_wanted);
    let left_bytes = left.iter().map(|entry| entry.bytes).sum();
    Ok(Selection { wanted, left_bytes })
}

fn source(
    dir: &Path,
    tops: &BTreeSet<String>,
    index: Option<&Index>,
) -> glyd_format::Result<BTreeSet<String>> {
    if tops.contains(MANIFEST_NAME) {
        return Err(glyd_format::Error::Unsupported {
            what: format!("`{}`", dir.display()),
            found: format!("`{MANIFEST_NAME}`: a checkpoint that is packed already"),
            hint: "a packed checkpoint is no source: name the model it was packed from".to_owned(),
        });
    }
    let weights = choose_weights(dir, tops, index)?;
    if !tops.contains(CONFIG_NAME) {
        let hint = "no program can load its weights without: use another model";
        return Err(lacks(dir, &format!("`{CONFIG_NAME}`, which says what the tensors are"), hint));
    }
    Ok(weights.into_iter().collect())
}

fn packed(dir: &Path, tops: &BTreeSet<String>, entries: &[Entry]) -> glyd_format::Result<BTreeSet<String>> {
    if !tops.contains(MANIFEST_NAME) {
        let hint = "name a repository with a packed checkpoint";
        return Err(lacks(dir, &format!("`{MANIFEST_NAME}` of a packed checkpoint"), hint));
    }
    // All of them: one that does not belong there is for the verdict to say.
    let weights = entries.iter().filter(|entry| entry.path.ends_with(".safetensors"));
    Ok(weights.map(|entry| entry.path.clone()).collect())
}

fn lacks(dir: &Path, expected: &str, hint: &str) -> glyd_format::Error {
    Invalid {
        file: Some(PathBuf::from(dir)),
        expected: expected.to_owned(),
        found: "none in the repository".to_owned(),
        hint: Some(hint.to_owned()),
        ..Invalid::default()
    }
    .into()
}
