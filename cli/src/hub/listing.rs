//! What the Hub says a repository holds: the commit that a revision is, and the files of one.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use super::client::{Client, Request};
use super::refusal::About;
use super::repo::{Entry, Hash, RepoId, is_commit, is_inside};
use super::url::{Url, encode};
use super::{HubError, Result};

/// Pages of a listing, of a thousand files each.
const PAGES_MAX: usize = 1000;

/// What the Hub says of a repository at a revision.
#[derive(Debug, Deserialize)]
pub(crate) struct Info {
    /// The commit.
    pub(crate) sha: String,
    #[serde(default)]
    disabled: Option<bool>,
    /// The names of the files at its top.
    #[serde(default, rename = "siblings", deserialize_with = "tops")]
    pub(crate) files: Vec<String>,
}

fn tops<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    struct Sibling {
        rfilename: String,
    }
    let siblings = Option::<Vec<Sibling>>::deserialize(deserializer)?.unwrap_or_default();
    let names = siblings.into_iter().map(|sibling| sibling.rfilename);
    Ok(names.filter(|name| is_inside(name) && !name.contains('/')).collect())
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
    info(client, repo, revision).map(|info| info.sha)
}

/// What the Hub says of a repository at a revision.
///
/// # Errors
/// Where it does not say, or has disabled it.
pub(crate) fn info(client: &Client, repo: &RepoId, revision: &str) -> Result<Info> {
    let path = format!("/api/models/{repo}/revision/{}", encode(revision));
    let about = About::reading(repo.name(), revision, None);
    let request = Request::get(client.settings.endpoint.below(&path), about);
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
    Ok(info)
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
