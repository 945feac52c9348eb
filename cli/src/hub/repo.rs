//! A repository's name, its revisions, and its files with their sizes and hashes.

use std::fmt;
use std::path::{Component, Path};

use glyd_format::Digest;

use super::{HubError, Result};

/// A repository's name: `owner/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepoId(String);

impl RepoId {
    /// A name that the Hub takes, or nothing.
    pub(crate) fn parse(text: &str) -> Option<RepoId> {
        const NAME_BYTES_MAX: usize = 96;
        let part = |part: &str| {
            let plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            let edge = |char| char == '-' || char == '.';
            !part.is_empty() && plain && !part.starts_with(edge) && !part.ends_with(edge)
        };
        let (owner, name) = text.split_once('/')?;
        let apart = text.contains("--")
            || text.contains("..")
            || text.len() > NAME_BYTES_MAX
            || text.ends_with(".git");
        (part(owner) && part(name) && !apart).then(|| RepoId(text.to_owned()))
    }

    /// `owner/name`.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The folder in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text is a whole commit hash.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A revision that may be part of a path: a branch, a tag or a commit.
///
/// # Errors
/// Where it may not.
pub(crate) fn check_revision(text: &str) -> Result<()> {
    const REVISION_BYTES_MAX: usize = 255;
    let wrong =
        text.is_empty() || text.len() > REVISION_BYTES_MAX || text.starts_with('-') || !is_inside(text);
    match wrong {
        true => Err(HubError::Usage(format!("--revision: {text:?} is no branch, tag or commit"))),
        false => Ok(()),
    }
}

/// Whether a path has plain parts only, each of which is a name.
pub(crate) fn is_inside(path: &str) -> bool {
    const PART_BYTES_MAX: usize = 255;
    let parts = || path.split('/');
    let name = |part: &str| !part.is_empty() && part.len() <= PART_BYTES_MAX && part != "." && part != "..";
    let plain = |char: char| !char.is_control() && char != '\\';
    parts().all(name)
        && path.chars().all(plain)
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) hash: Hash,
    /// Git's name of it, which for a large file is that of its pointer.
    pub(crate) oid: String,
}

/// What the Hub says a file's content has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hash {
    /// Git's SHA-1 of a blob.
    Blob(String),
    /// The SHA-256 of a large file.
    Sha256(Digest),
}

impl Hash {
    /// The name of the blob in the cache.
    pub(crate) fn name(&self) -> String {
        match self {
            Hash::Blob(oid) => oid.clone(),
            Hash::Sha256(digest) => digest.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_hub_takes() {
        for name in ["Qwen/Qwen3-8B", "a/b", "openai/gpt_2.x"] {
            assert!(RepoId::parse(name).is_some(), "{name}");
        }
        for name in [
            "gpt2", "a/b/c", "../b", "./model", "a/", "/a", "a/-b", "a/b..c", "a/b--c", "a/b.git", "a/ü",
            "a b/c",
        ] {
            assert!(RepoId::parse(name).is_none(), "{name}");
        }
        assert_eq!(RepoId::parse("a/b.c").unwrap().folder(), "models--a--b.c");
    }

    #[test]
    fn revisions_and_paths_stay_inside() {
        for good in ["main", "refs/pr/1", "v1.0", "0123456789abcdef0123456789abcdef01234567"] {
            check_revision(good).unwrap();
        }
        for bad in ["", "../x", "/x", "a//b", "a/", "-x", "a\\b", "a\nb", "."] {
            assert!(check_revision(bad).is_err(), "{bad:?}");
        }
    }
}
