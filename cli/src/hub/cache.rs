//! The cache on disk, as the Python library lays it out: `models--owner--name` with `refs`, `snapshots`,
//! `blobs` and `trees`, and `.locks` beside them.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use glyd_format::file::{ignores_case, same_but_for_case};
use serde_json::{Map, Value, json};

use super::error::io_error;
use super::repo::{Entry, Hash, RepoId, is_commit, is_inside};
use super::{HubError, Result, Stop, retry};

/// What marks a folder that backups may pass over.
const TAG: &str = "CACHEDIR.TAG";
/// The version of the listings' form.
const TREE_VERSION: u64 = 1;
/// Bytes of the longest listing that is read.
const TREE_BYTES_MAX: u64 = 256 << 20;

/// A repository's part of the cache.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
    folder: String,
}

impl Cache {
    pub(crate) fn new(root: &Path, repo: &RepoId) -> Cache {
        Cache { root: root.to_owned(), folder: repo.folder() }
    }

    /// Where the repository is.
    pub(crate) fn dir(&self) -> PathBuf {
        self.root.join(&self.folder)
    }

    /// A commit's files.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.dir().join("snapshots").join(commit)
    }

    /// A content's place.
    pub(crate) fn blob(&self, hash: &Hash) -> PathBuf {
        self.dir().join("blobs").join(hash.name())
    }

    /// The commit that a revision was when it was last asked for.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.dir().join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Keeps which commit a revision is.
    pub(crate) fn keep_commit(&self, revision: &str, commit: &str) -> Result<()> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        write_whole(&self.dir().join("refs").join(revision), commit.as_bytes())
    }

    /// Whether a commit's file is there, of the size it has.
    pub(crate) fn has(&self, commit: &str, entry: &Entry) -> bool {
        let found = fs::metadata(self.snapshot(commit).join(&entry.path));
        found.is_ok_and(|found| found.is_file() && found.len() == entry.bytes)
    }

    /// The files of a commit, where a listing of them is kept.
    pub(crate) fn listing(&self, commit: &str) -> Option<Vec<Entry>> {
        let path = self.tree(commit);
        let text = glyd_format::file::read_small(&path, TREE_BYTES_MAX).ok()?;
        let tree: Value = serde_json::from_slice(&text).ok()?;
        if tree.get("format_version")?.as_u64()? != TREE_VERSION {
            return None;
        }
        tree.get("files")?.as_object()?.iter().map(|(path, file)| read_entry(path, file)).collect()
    }

    /// Keeps a commit's listing: it tells later, with no request, whether all files are there.
    pub(crate) fn keep_listing(&self, commit: &str, entries: &[Entry]) -> Result<()> {
        let file = |entry: &Entry| {
            let mut file = json!({ "size": entry.bytes, "blob_id": entry.oid });
            if let Hash::Sha256(digest) = &entry.hash {
                file["lfs_sha256"] = json!(digest.to_string());
                file["lfs_size"] = json!(entry.bytes);
            }
            (entry.path.clone(), file)
        };
        let files: Map<String, Value> = entries.iter().map(file).collect();
        let tree = json!({ "format_version": TREE_VERSION, "files": files });
        write_whole(&self.tree(commit), format!("{tree:#}").as_bytes())
    }

    fn tree(&self, commit: &str) -> PathBuf {
        self.dir().join("trees").join(format!("{commit}.json"))
    }

    /// Makes the cache's folders, and marks them as one that backups may pass over.
    pub(crate) fn prepare(&self) -> Result<()> {
        let blobs = self.dir().join("blobs");
        fs::create_dir_all(&blobs).map_err(io_error("make the folder", &blobs))?;
        let tag = self.root.join(TAG);
        if let Ok(mut file) = File::create_new(tag) {
            // A cache without it is a cache all the same.
            let _ = file.write_all(b"Signature: 8a477f597d28d172789f06886806bc55\n");
        }
        Ok(())
    }

    /// Holds a commit's files to be several in the cache, where the case of letters may not count.
    pub(crate) fn check_case(&self, entries: &[&Entry]) -> Result<()> {
        if !ignores_case(&self.root, TAG) {
            return Ok(());
        }
        match same_but_for_case(entries.iter().map(|entry| entry.path.as_str())) {
            None => Ok(()),
            Some((one, other)) => Err(HubError::Usage(format!(
                "`{one}` and `{other}` would be one file in the cache `{}`; set HF_HUB_CACHE to a folder on a disk \
                 that tells upper case from lower",
                self.root.display()
            ))),
        }
    }

    /// Locks a content against other downloads of it, theirs of Python too.
    pub(crate) fn lock(&self, hash: &Hash, stop: &Stop) -> Result<File> {
        const LOOK_EVERY: Duration = Duration::from_millis(100);
        let path = self.root.join(".locks").join(&self.folder).join(format!("{}.lock", hash.name()));
        make_parent(&path)?;
        let file = File::options().write(true).create(true).truncate(false).mode(0o664).open(&path);
        let file = file.map_err(io_error("make", &path))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if !retry::sleep(LOOK_EVERY, stop) => {
                    return Err(HubError::Interrupted);
                }
                Err(TryLockError::WouldBlock) => {}
                // Some file systems have no locks; contents are held to their hashes all the same.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
            }
        }
    }

    /// Links a commit's file to its content.
    pub(crate) fn link(&self, commit: &str, entry: &Entry) -> Result<()> {
        let path = self.snapshot(commit).join(&entry.path);
        if self.has(commit, entry) {
            return Ok(());
        }
        make_parent(&path)?;
        // Relative, so that the cache may be moved.
        let up = "../".repeat(2 + entry.path.matches('/').count());
        let target = format!("{up}blobs/{}", entry.hash.name());
        let _ = fs::remove_file(&path);
        match symlink(&target, &path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && self.has(commit, entry) => Ok(()),
            // Not every file system has links.
            Err(_) => fs::copy(self.blob(&entry.hash), &path).map(drop).map_err(io_error("write", &path)),
        }
    }

    /// A repository of the cache whose name differs in the case of its letters.
    pub(crate) fn other_case(&self) -> Option<String> {
        let names =
            fs::read_dir(&self.root).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut others = names.filter(|name| name.eq_ignore_ascii_case(&self.folder) && *name != self.folder);
        let other = others.next()?;
        Some(other.strip_prefix("models--")?.replacen("--", "/", 1))
    }
}

fn read_entry(path: &str, file: &Value) -> Option<Entry> {
    let text = |name: &str| file.get(name).and_then(Value::as_str);
    let oid = text("blob_id").filter(|oid| is_commit(oid))?.to_owned();
    let (bytes, hash) = match text("lfs_sha256") {
        Some(digest) => (file.get("lfs_size")?.as_u64()?, Hash::Sha256(digest.parse().ok()?)),
        None => (file.get("size")?.as_u64()?, Hash::Blob(oid.clone())),
    };
    is_inside(path).then(|| Entry { path: path.to_owned(), bytes, hash, oid })
}

pub(crate) fn make_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(io_error("make the folder", parent)),
        None => Ok(()),
    }
}

/// Writes a small file so that it is never half there.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    make_parent(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!("{name}.{}.tmp", std::process::id()));
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    written.map_err(io_error("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cache(dir: &Path) -> Cache {
        Cache::new(dir, &RepoId::parse("Org/Name").unwrap())
    }

    fn entry(path: &str, large: bool) -> Entry {
        let digest = glyd_format::Digest::of(b"content");
        let hash = if large { Hash::Sha256(digest) } else { Hash::Blob(COMMIT.to_owned()) };
        Entry { path: path.to_owned(), bytes: 7, hash, oid: COMMIT.to_owned() }
    }

    #[test]
    fn listings_and_commits_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        let entries = [entry("config.json", false), entry("sub/model.safetensors", true)];
        assert_eq!((cache.listing(COMMIT), cache.commit("main")), (None, None));
        cache.keep_listing(COMMIT, &entries).unwrap();
        cache.keep_commit("refs/pr/1", COMMIT).unwrap();
        assert_eq!(cache.listing(COMMIT).unwrap(), entries);
        assert_eq!(cache.commit("refs/pr/1").as_deref(), Some(COMMIT));
        fs::write(cache.dir().join("refs/odd"), "../../secret").unwrap();
        assert_eq!(cache.commit("odd"), None);
        fs::write(
            cache.tree(COMMIT),
            r#"{"format_version": 1, "files": {"../x": {"size": 1, "blob_id": "0"}}}"#,
        )
        .unwrap();
        assert_eq!(cache.listing(COMMIT), None);
    }

    #[test]
    fn links_lead_to_blobs_wherever_the_cache_is_moved() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir.path().join("one"));
        cache.prepare().unwrap();
        let entry = entry("sub/deep/model.safetensors", true);
        fs::write(cache.blob(&entry.hash), "content").unwrap();
        cache.link(COMMIT, &entry).unwrap();
        assert!(cache.has(COMMIT, &entry));
        fs::rename(dir.path().join("one"), dir.path().join("two")).unwrap();
        let moved = Cache { root: dir.path().join("two"), ..cache };
        assert!(moved.has(COMMIT, &entry));
        // One that dangles is made anew.
        fs::remove_file(moved.blob(&entry.hash)).unwrap();
        assert!(!moved.has(COMMIT, &entry));
        fs::write(moved.blob(&entry.hash), "content").unwrap();
        moved.link(COMMIT, &entry).unwrap();
        assert!(moved.has(COMMIT, &entry));
    }

    #[test]
    fn files_that_would_be_one_are_refused_where_case_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        cache.prepare().unwrap();
        let entries = [entry("README.md", false), entry("readme.md", false)];
        let entries: Vec<&Entry> = entries.iter().collect();
        if !ignores_case(dir.path(), TAG) {
            cache.check_case(&entries).unwrap();
            // As a folder looks in which it does not.
            fs::hard_link(dir.path().join(TAG), dir.path().join(TAG.to_lowercase())).unwrap();
        }
        let error = cache.check_case(&entries).unwrap_err().to_string();
        assert!(error.contains("`README.md` and `readme.md` would be one file in the cache"), "{error}");
        cache.check_case(&entries[..1]).unwrap();
    }

    #[test]
    fn a_name_in_other_letters_is_found() {
        let dir = tempfile::tempdir().unwrap();
        cache(dir.path()).prepare().unwrap();
        let other = Cache::new(dir.path(), &RepoId::parse("org/name").unwrap());
        assert_eq!(other.other_case().as_deref(), Some("Org/Name"));
        assert_eq!(cache(dir.path()).other_case(), None);
    }
}
