//! A checkpoint's folder written so that it is never half there: everything goes to a staging folder
//! inside it, is synced, and is moved into place at the end, `glyd.json` last.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use glyd_format::file::{ignores_case, same_but_for_case};
use glyd_format::index::INDEX_NAME;
use glyd_format::manifest::MANIFEST_NAME;
use glyd_format::packed::SINGLE_NAME;

use crate::error::{Error, Result};
use crate::output_file::{OutputFile, Syncing};

/// The staging folder: what is in it is of an unfinished checkpoint.
pub(crate) const STAGING: &str = ".glyd-partial";
/// Files that are on their way to the disk at once: each is held open.
const SYNCS_MAX: usize = 4;

/// The lock file: held while a checkpoint is written.
pub(crate) const LOCK: &str = ".glyd-lock";

/// An output folder while a checkpoint is written into it. Dropped before [`Output::commit`] is done,
/// it leaves the folder as it was.
#[derive(Debug)]
pub(crate) struct Output {
    dir: PathBuf,
    created: bool,
    lock: File,
    done: bool,
    /// Files that are written whole, and on their way to the disk.
    syncing: Mutex<VecDeque<Syncing>>,
}

impl Output {
    /// Takes the folder `dir` for a new checkpoint. It is there already and empty, or holds a
    /// checkpoint that is to be replaced, or the rest of one that was interrupted, or is made.
    pub(crate) fn take(dir: &Path) -> Result<Output> {
        let created = match fs::create_dir(dir) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(source) => {
                return Err(Error::Write { action: "make the folder", path: dir.to_owned(), source });
            }
        };
        let held = if created { Vec::new() } else { list(dir)? };
        let replaceable = held.iter().any(|name| name == MANIFEST_NAME || name == STAGING);
        if let Some(name) =
            held.iter().find(|name| *name != LOCK && *name != STAGING).filter(|_| !replaceable)
        {
            return Err(Error::Output {
                path: dir.to_owned(),
                reason: format!("the folder holds other files, `{}` among them", name.display()),
                hint: "name a new or empty folder, or one with a glyd checkpoint to replace".to_owned(),
            });
        }
        let lock = lock(dir)?;
        let output = Output { dir: dir.to_owned(), created, lock, done: false, syncing: Mutex::default() };
        // What an interrupted run left.
        output.clear_staging()?;
        let staging = output.staging();
        fs::create_dir(&staging).map_err(written("make the folder", &staging))?;
        Ok(output)
    }

    /// Where the checkpoint goes.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    fn staging(&self) -> PathBuf {
        self.dir.join(STAGING)
    }

    fn clear_staging(&self) -> Result<()> {
        let staging = self.staging();
        match fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::Write { action: "remove", path: staging, source: error })
            }
            _ => Ok(()),
        }
    }

    /// Empties the staging folder, to begin again.
    pub(crate) fn restart(&self) -> Result<()> {
        self.clear_staging()?;
        let staging = self.staging();
        fs::create_dir(&staging).map_err(written("make the folder", &staging))
    }

    /// Bytes that can still be written to the folder's disk, where the system tells.
    pub(crate) fn bytes_free(&self) -> Option<u64> {
        let found = rustix::fs::statvfs(&self.dir).ok()?;
        found.f_bavail.checked_mul(found.f_frsize)
    }

    /// A new file of the checkpoint, to be written in any order.
    pub(crate) fn file(&self, name: &Path, bytes: u64) -> Result<OutputFile> {
        let path = self.staging().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(written("make the folder", parent))?;
        }
        let file = File::create_new(&path).map_err(written("make", &path))?;
        reserve(&file, bytes).map_err(written("set aside the space of", &path))?;
        Ok(OutputFile::new(file, path))
    }

    /// Sees to it that a file that is written whole gets to the disk: before [`Output::commit`] is done, while
    /// others are written.
    pub(crate) fn finish(&self, file: OutputFile) -> Result<()> {
        let mut ahead = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.push_back(file.sync_all()?);
        match ahead.len() {
            0..=SYNCS_MAX => Ok(()),
            _ => ahead.pop_front().map_or(Ok(()), Syncing::wait),
        }
    }

    /// Waits until all that is finished is on the disk.
    fn settle(&self) -> Result<()> {
        let mut ahead = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.drain(..).try_for_each(Syncing::wait)
    }

    /// Opens a file that was written, to read it.
    pub(crate) fn open(&self, name: &Path) -> Result<File> {
        let path = self.staging().join(name);
        File::open(&path).map_err(written("open", &path))
    }

    /// Removes a file that was written and is not of the checkpoint.
    pub(crate) fn remove(&self, name: &Path) -> Result<()> {
        remove(&self.staging().join(name))
    }

    /// Writes a small file of the checkpoint.
    pub(crate) fn write(&self, name: &Path, bytes: &[u8]) -> Result<()> {
        let file = self.file(name, bytes.len() as u64)?;
        file.write_at(bytes, 0)?;
        self.finish(file)
    }

    /// Gives a written file its final name: still in the staging folder.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let from = self.staging().join(from);
        fs::rename(&from, self.staging().join(to)).map_err(written("rename", &from))
    }

    /// Holds the folder to have room for files of these names: no folder stands in a file's place, and no
    /// file or link in a folder's.
    pub(crate) fn check_room<'a>(&self, files: impl Iterator<Item = &'a Path>) -> Result<()> {
        let own = [MANIFEST_NAME, SINGLE_NAME, INDEX_NAME].map(Path::new);
        for file in files.chain(own) {
            for path in file.ancestors().filter(|path| !path.as_os_str().is_empty()) {
                let Ok(found) = fs::symlink_metadata(self.dir.join(path)) else { continue };
                let found = if path == file && found.is_dir() {
                    "a folder"
                } else if path != file && !found.is_dir() {
                    "no folder"
                } else {
                    continue;
                };
                return Err(Error::Output {
                    path: self.dir.clone(),
                    reason: format!("`{}` in it is {found}, and in the way", path.display()),
                    hint: "move it away, or name a new folder".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Holds files of these names to be several in the folder, where the case of letters may not count.
    pub(crate) fn check_case<'a>(&self, files: impl Iterator<Item = &'a Path>) -> Result<()> {
        if !ignores_case(&self.dir, LOCK) {
            return Ok(());
        }
        let own = [MANIFEST_NAME, SINGLE_NAME, INDEX_NAME];
        match same_but_for_case(files.filter_map(Path::to_str).chain(own)) {
            None => Ok(()),
            Some((one, other)) => Err(Error::Output {
                path: self.dir.clone(),
                reason: format!("`{one}` and `{other}` would be one file there"),
                hint: "name a folder on a disk that tells upper case from lower".to_owned(),
            }),
        }
    }

    /// Puts the new checkpoint in the place of what the folder held. From the first change on until
    /// the last, the folder has no `glyd.json`, and so is no checkpoint.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.settle()?;
        let staging = self.staging();
        let mut files = Vec::new();
        walk(&staging, Path::new(""), &mut files)?;
        let old = list(&self.dir)?.into_iter().filter(|name| name.to_str().is_some_and(is_old_weights));
        let old: Vec<PathBuf> = old.map(PathBuf::from).collect();
        self.check_room(files.iter().chain(&old).map(PathBuf::as_path))?;
        let manifest = self.dir.join(MANIFEST_NAME);
        remove(&manifest)?;
        sync_dir(&self.dir)?;
        // From here on what is interrupted is the rest of a checkpoint: nothing is taken back.
        self.done = true;
        for name in old {
            remove(&self.dir.join(name))?;
        }
        let mut folders = BTreeSet::new();
        for name in files.iter().filter(|name| *name != Path::new(MANIFEST_NAME)) {
            let to = self.dir.join(name);
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).map_err(written("make the folder", parent))?;
            }
            fs::rename(staging.join(name), &to).map_err(written("rename to", &to))?;
            folders.extend(name.ancestors().skip(1));
        }
        for folder in folders {
            sync_dir(&self.dir.join(folder))?;
        }
        fs::rename(staging.join(MANIFEST_NAME), &manifest).map_err(written("rename to", &manifest))?;
        sync_dir(&self.dir)?;
        self.clear_staging()?;
        self.unlock();
        Ok(())
    }

    fn unlock(&self) {
        // Removed while it is held: who waits for the old file finds that it is another's.
        let _ = fs::remove_file(self.dir.join(LOCK));
        let _ = self.lock.unlock();
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let _ = self.clear_staging();
        self.unlock();
        if self.created {
            // Only where it is empty again.
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

pub(crate) fn written(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Write { action, path, source }
}

/// Names of weights that the layout of a checkpoint's files has.
fn is_old_weights(name: &str) -> bool {
    let shard = || {
        let (number, count) =
            name.strip_prefix("model-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
        let digits = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        (digits(number) && digits(count)).then_some(())
    };
    name == SINGLE_NAME || name == INDEX_NAME || shard().is_some()
}

fn list(dir: &Path) -> Result<Vec<std::ffi::OsString>> {
    let entries = fs::read_dir(dir).map_err(written("list", dir))?;
    let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    let mut names = names.map_err(written("list", dir))?;
    names.sort();
    Ok(names)
}

/// All files below a folder, by their paths from `dir`.
fn walk(dir: &Path, below: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for name in list(&dir.join(below))? {
        let path = below.join(name);
        if dir.join(&path).is_dir() {
            walk(dir, &path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::Write { action: "remove", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

fn sync_dir(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    match synced {
        // Some file systems sync no folders.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced.map_err(written("sync the folder", dir)),
    }
}

/// Sets a file's space aside, so that a full disk is known of before the work is done.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if bytes > 0 {
        use rustix::fs::{FallocateFlags, fallocate};
        match rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes)) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            done => return Ok(done?),
        }
    }
    file.set_len(bytes)
}

/// Locks a folder against other writers.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    loop {
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(written("make", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Output {
                    path: dir.to_owned(),
                    reason: "another run is writing to it".to_owned(),
                    hint: "wait for it, or name another folder".to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(written("lock", &path)(source)),
        }
        // The one that held it may have removed it meanwhile: then this is no lock any more.
        let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        if let (Ok(held), Ok(named)) = (file.metadata(), fs::metadata(&path))
            && same(held, named)
        {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_known_by_their_names() {
        for name in ["model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
        {
            assert!(is_old_weights(name), "{name}");
        }
        for name in [
            "config.json",
            "model-1-of-2.safetensors",
            "model-00001.safetensors",
            "my-model-00001-of-00002.safetensors",
        ] {
            assert!(!is_old_weights(name), "{name}");
        }
    }

    #[test]
    fn a_second_writer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let first = Output::take(&out).unwrap();
        let second = Output::take(&out).unwrap_err().to_string();
        assert!(second.contains("another run is writing to it"), "{second}");
        drop(first);
        assert!(!out.exists(), "an output that was made and not finished is gone");
        Output::take(&out).unwrap();
    }

    #[test]
    fn files_that_would_be_one_are_refused_where_case_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::take(dir.path()).unwrap();
        let names = ["README.md", "readme.md"].map(Path::new);
        if !ignores_case(dir.path(), LOCK) {
            output.check_case(names.into_iter()).unwrap();
            // As a folder looks in which it does not.
            fs::hard_link(dir.path().join(LOCK), dir.path().join(LOCK.to_uppercase())).unwrap();
        }
        let error = output.check_case(names.into_iter()).unwrap_err().to_string();
        assert!(error.contains("`README.md` and `readme.md` would be one file there"), "{error}");
        output.check_case([Path::new("README.md")].into_iter()).unwrap();
        assert!(output.check_case([Path::new("Model.safetensors")].into_iter()).is_err());
    }

    #[test]
    fn other_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "").unwrap();
        let error = Output::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains("`thesis.tex` among them"), "{error}");
        assert_eq!(list(dir.path()).unwrap(), ["thesis.tex"]);
    }

    #[test]
    fn the_old_checkpoint_is_there_until_the_new_one_is() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["glyd.json", "model-00001-of-00001.safetensors", "kept.txt"] {
            fs::write(dir.path().join(name), "old").unwrap();
        }
        let output = Output::take(dir.path()).unwrap();
        output.write(Path::new("glyd.json"), b"new").unwrap();
        output.write(Path::new("model.safetensors"), b"new").unwrap();
        output.write(Path::new("sub/config.json"), b"new").unwrap();
        assert_eq!(fs::read(dir.path().join("glyd.json")).unwrap(), b"old");
        output.commit().unwrap();
        let mut files = Vec::new();
        walk(dir.path(), Path::new(""), &mut files).unwrap();
        let expected = ["glyd.json", "kept.txt", "model.safetensors", "sub/config.json"];
        assert_eq!(files, expected.map(PathBuf::from));
        assert_eq!(fs::read(dir.path().join("glyd.json")).unwrap(), b"new");
    }

    #[test]
    fn an_unfinished_one_leaves_the_old_one_whole() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("glyd.json"), "old").unwrap();
        let output = Output::take(dir.path()).unwrap();
        output.write(Path::new("glyd.json"), b"new").unwrap();
        drop(output);
        assert_eq!(list(dir.path()).unwrap(), ["glyd.json"]);
        assert_eq!(fs::read(dir.path().join("glyd.json")).unwrap(), b"old");
    }
}
