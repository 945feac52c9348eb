//! What a repository holds: its commit, and its files with their sizes and hashes.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Component, Path};

use glyd_format::Digest;
use serde::Deserialize;

use super::client::{Client, Request};
use super::refusal::About;
use super::url::{Url, encode};
use super::{HubError, Result};

/// Pages of a listing, of a thousand files each.
const PAGES_MAX: usize = 1000;

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

/// What the Hub says of a repository at a revision.
#[derive(Debug, Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    disabled: Option<bool>,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "sha256")]
    oid: String,
    size: u64,
}

/// The commit that a revision is.
///
/// # Errors
/// Where the Hub does not say.
pub(crate) fn commit(client: &Client, repo: &RepoId, revision: &str) -> Result<String> {
    let path = format!("/api/models/{repo}/revision/{}", encode(revision));
    let request =
        Request::get(client.settings.endpoint.below(&path), About::reading(repo.name(), revision, None));
    let (info, response): (Info, _) =
        client.json(&request, "what the Hub says of a model, with its `sha`")?;
    if info.disabled == Some(true) {
        let message = String::new();
        return Err(HubError::Disabled { repo: repo.to_string(), status: response.status, message });
    }
    if !is_commit(&info.sha) {
        return Err(HubError::Answer {
            url: client.shown(&request.url, &response.trail),
            expected: "a commit of 40 hex digits as `sha`".to_owned(),
            found: format!("{:?}", info.sha),
        });
    }
    Ok(info.sha)
}

/// All files of a commit, in the order of their paths.
///
/// # Errors
/// Where the Hub does not list them, or lists what no repository holds.
pub(crate) fn list(client: &Client, repo: &RepoId, revision: &str) -> Result<Vec<Entry>> {
    let path = format!("/api/models/{repo}/tree/{}?recursive=true", encode(revision));
    let mut url = client.settings.endpoint.below(&path);
    let mut entries = Vec::new();
    for _ in 0..PAGES_MAX {
        let request = Request::get(url.clone(), About::reading(repo.name(), revision, None));
        let (page, response): (Vec<Listed>, _) = client.json(&request, "a list of files")?;
        let wrong = |found| HubError::Answer {
            url: client.shown(&request.url, &response.trail),
            expected: "files inside the repository, each with its size and hash".to_owned(),
            found,
        };
        for listed in page.into_iter().filter(|listed| listed.kind == "file") {
            entries.push(entry(listed).map_err(wrong)?);
        }
        match next_page(&url, response.header("link")) {
            Some(next) if next != url => url = next,
            _ => return sorted(entries).map_err(wrong),
        }
    }
    Err(HubError::Answer {
        url: url.to_string(),
        expected: format!("at most {PAGES_MAX} pages of files"),
        found: "more".to_owned(),
    })
}

fn entry(listed: Listed) -> std::result::Result<Entry, String> {
    let Listed { path, size, oid, lfs, .. } = listed;
    if !is_inside(&path) {
        return Err(format!("the path {path:?}"));
    }
    if !is_commit(&oid) {
        return Err(format!("`{path}` with the hash {oid:?}"));
    }
    let (bytes, hash) = match lfs {
        None => (size, Hash::Blob(oid.clone())),
        Some(lfs) => {
            let digest = lfs.oid.trim_start_matches("sha256:").parse();
            (lfs.size, Hash::Sha256(digest.map_err(|error| format!("`{path}`: {error}"))?))
        }
    };
    Ok(Entry { path, bytes, hash, oid })
}

/// The entries by path; none twice, and none where another needs a folder.
fn sorted(mut entries: Vec<Entry>) -> std::result::Result<Vec<Entry>, String> {
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].path == pair[1].path) {
        return Err(format!("`{}` twice", pair[0].path));
    }
    let files: BTreeSet<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    let folder = |entry: &&Entry| {
        let parents = Path::new(&entry.path).ancestors().skip(1);
        parents.filter_map(Path::to_str).any(|parent| files.contains(parent))
    };
    match entries.iter().find(folder) {
        Some(entry) => Err(format!("`{}` below a file", entry.path)),
        None => Ok(entries),
    }
}

/// The next page, on the Hub that was asked: a mirror's links lead to the Hub it mirrors.
fn next_page(url: &Url, link: Option<&str>) -> Option<Url> {
    let next = link?.split(',').find(|link| link.contains("rel=\"next\""))?;
    let (_, rest) = next.split_once('<')?;
    let (target, _) = rest.split_once('>')?;
    url.join(url.join(target)?.query()?)
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

    #[test]
    fn what_a_listing_may_not_hold_is_found() {
        let oid = "0123456789abcdef0123456789abcdef01234567";
        let listed = |path: &str, oid: &str, lfs: Option<&str>| Listed {
            kind: "file".to_owned(),
            path: path.to_owned(),
            size: 1,
            oid: oid.to_owned(),
            lfs: lfs.map(|oid| Lfs { oid: oid.to_owned(), size: 9 }),
        };
        assert_eq!(entry(listed("a/b.json", oid, None)).unwrap().hash.name(), oid);
        for path in ["../a", "/a", "a/../b", "a//b", "", "a\\b", "a\u{7}", "./a", &"n".repeat(300)] {
            assert!(entry(listed(path, oid, None)).is_err(), "{path:?}");
        }
        assert!(entry(listed("a", "../../x", None)).is_err());
        assert!(entry(listed("a", oid, Some("../x"))).is_err());
        let entries =
            |paths: &[&str]| paths.iter().map(|path| entry(listed(path, oid, None)).unwrap()).collect();
        assert!(sorted(entries(&["b", "a"])).is_ok());
        assert_eq!(sorted(entries(&["a", "a"])).unwrap_err(), "`a` twice");
        assert_eq!(sorted(entries(&["a/b", "a"])).unwrap_err(), "`a/b` below a file");
    }

    #[test]
    fn the_next_page_is_asked_where_the_first_was() {
        let url = Url::parse("http://mirror:1/p/api/models/a/b/tree/main?recursive=true").unwrap();
        let link = "<https://huggingface.co/api/models/a/b/tree/main?recursive=true&cursor=x>; rel=\"next\"";
        let next = next_page(&url, Some(link)).unwrap();
        assert_eq!(next.secret_text(), "http://mirror:1/p/api/models/a/b/tree/main?recursive=true&cursor=x");
        for last in [None, Some("<https://x/y?z>; rel=\"prev\""), Some("nonsense")] {
            assert_eq!(next_page(&url, last), None);
        }
    }
}
