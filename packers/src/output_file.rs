//! A file of a checkpoint while it is written, and its way to the disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::Result;
use crate::save::written;

/// Bytes of a file that are written before they are sent to the disk.
const SYNC_BYTES: u64 = 128 << 20;
/// A file of the checkpoint while it is written.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: Arc<File>,
    path: PathBuf,
    turn: Mutex<()>,
    written: AtomicU64,
    syncing: Mutex<Option<Syncing>>,
}

impl OutputFile {
    /// A new file, which nothing was written to.
    pub(crate) fn new(file: File, path: PathBuf) -> Self {
        OutputFile {
            file: Arc::new(file),
            path,
            turn: Mutex::default(),
            written: AtomicU64::new(0),
            syncing: Mutex::default(),
        }
    }

    /// Sends all of it on its way to the disk.
    pub(crate) fn sync_all(self) -> Result<Syncing> {
        // What an earlier sync failed at, a later one is not told.
        self.syncing.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Syncing::wait)?;
        Syncing::start(self.file, self.path, File::sync_all)
    }

    /// Writes `bytes` at `offset`.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        {
            // A file takes one write at a time: without this lock, the system has those that wait spin.
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            self.file.write_all_at(bytes, offset).map_err(written("write", &self.path))?;
        }
        let before = self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if before / SYNC_BYTES == (before + bytes.len() as u64) / SYNC_BYTES {
            return Ok(());
        }
        self.sync_some()
    }

    /// Sends what was written on its way to the disk, unless the last sync still does: at the end there is
    /// little left to wait for.
    fn sync_some(&self) -> Result<()> {
        let mut syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sync) = syncing.take_if(|sync| sync.thread.is_finished()) {
            sync.wait()?;
        }
        if syncing.is_none() {
            *syncing = Some(Syncing::start(Arc::clone(&self.file), self.path.clone(), File::sync_data)?);
        }
        Ok(())
    }
}

/// A file's way to the disk, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Syncing {
    path: PathBuf,
    thread: JoinHandle<io::Result<()>>,
}

impl Syncing {
    fn start(file: Arc<File>, path: PathBuf, sync: fn(&File) -> io::Result<()>) -> Result<Syncing> {
        match std::thread::Builder::new().spawn(move || sync(&file)) {
            Ok(thread) => Ok(Syncing { path, thread }),
            Err(error) => Err(written("sync", &path)(error)),
        }
    }

    pub(crate) fn wait(self) -> Result<()> {
        let failed = |_| Err(io::Error::other("the thread that syncs it panicked"));
        self.thread.join().unwrap_or_else(failed).map_err(written("sync", &self.path))
    }
}
