//! One file brought into the cache: resumed where it broke off, and held to its size and hash.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::cache::{Cache, make_parent};
use super::client::{Broken, Client, Request, Response};
use super::error::io_error;
use super::hash::{CHUNK_BYTES, Running};
use super::refusal::About;
use super::repo::{Entry, RepoId};
use super::url::encode_path;
use super::{HubError, Result};

/// Where files come from and go to.
pub(crate) struct Place<'a> {
    pub(crate) client: &'a Client,
    pub(crate) repo: &'a RepoId,
    pub(crate) cache: &'a Cache,
    pub(crate) commit: &'a str,
}

/// What is told of the bytes of a file as they arrive; how many there are now, from its start.
pub(crate) type Told<'a> = &'a mut dyn FnMut(u64);

impl Place<'_> {
    /// Brings a file into the cache, and links it to the commit.
    ///
    /// # Errors
    /// Where it cannot be had, or is not what the Hub says it is.
    pub(crate) fn fetch(&self, entry: &Entry, told: Told<'_>) -> Result<()> {
        let lock = self.cache.lock(&entry.hash, &self.client.stop)?;
        let blob = self.cache.blob(&entry.hash);
        // Another program may have brought it while this one waited.
        if !fs::metadata(&blob).is_ok_and(|found| found.len() == entry.bytes) {
            make_parent(&blob)?;
            self.fetch_blob(entry, &blob, told)?;
        }
        told(entry.bytes);
        let linked = self.cache.link(self.commit, entry);
        drop(lock);
        linked
    }

    fn fetch_blob(&self, entry: &Entry, blob: &Path, told: Told<'_>) -> Result<()> {
        // A second time, where what another run left of it was no good.
        const WHOLE_TRIES: u32 = 2;
        let part = Part::open(blob, entry)?;
        let mut last = None;
        for whole in 1..=WHOLE_TRIES {
            let mut arrived = part.resume(entry, whole > 1, &self.client.stop)?;
            told(arrived.bytes);
            self.arrive(entry, &part, &mut arrived, told)?;
            let found = arrived.running.finish();
            if found == entry.hash {
                return part.keep(blob);
            }
            last = Some(found);
        }
        part.discard();
        let found = last.map(|hash| hash.name()).unwrap_or_default();
        Err(HubError::Damaged {
            file: format!("{}: {}", self.repo, entry.path),
            expected: format!("a file with the hash {}", entry.hash.name()),
            found: format!("one of its size with the hash {found}, twice"),
            hint: "start again later; where HF_ENDPOINT names a mirror, it may be the mirror's fault"
                .to_owned(),
        })
    }

    /// Reads the rest of a file, however often the connection breaks, as long as some of it arrives.
    fn arrive(&self, entry: &Entry, part: &Part, arrived: &mut Arrived, told: Told<'_>) -> Result<()> {
        let path = format!("/{}/resolve/{}/{}", self.repo, self.commit, encode_path(&entry.path));
        let about = About::reading(self.repo.name(), self.commit, Some(&entry.path));
        let mut request = Request::get(self.client.settings.endpoint.below(&path), about);
        let mut tries = 0;
        while arrived.bytes < entry.bytes {
            let before = arrived.bytes;
            request.range = (before > 0).then(|| format!("bytes={before}-"));
            let mut response = match self.client.send(&request) {
                Err(HubError::Status { status: 416, .. }) if before > 0 => {
                    *arrived = part.resume(entry, true, &self.client.stop)?;
                    continue;
                }
                response => response?,
            };
            if before > 0 && !continues(&response, before) {
                *arrived = part.resume(entry, true, &self.client.stop)?;
            }
            let read = self.read(entry, part, arrived, &mut response, told)?;
            tries = if arrived.bytes > before { 1 } else { tries + 1 };
            if let Err(error) = read {
                let broken = Broken { url: response.url, error: error.into() };
                self.client.wait(&request, &broken, tries)?;
            }
        }
        Ok(())
    }

    /// Reads a body into the file. The inner result is the connection's.
    fn read(
        &self,
        entry: &Entry,
        part: &Part,
        arrived: &mut Arrived,
        response: &mut Response,
        told: Told<'_>,
    ) -> Result<io::Result<()>> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut reader = response.body.with_config().limit(u64::MAX).reader();
        loop {
            self.client.stop.check()?;
            let bytes = match reader.read(&mut chunk) {
                Ok(0) if arrived.bytes == entry.bytes => return Ok(Ok(())),
                Ok(0) => return Ok(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => bytes,
                Err(error) => return Ok(Err(error)),
            };
            if arrived.bytes + bytes as u64 > entry.bytes {
                part.discard();
                return Err(HubError::Damaged {
                    file: format!("{}: {}", self.repo, entry.path),
                    expected: format!("{} bytes", entry.bytes),
                    found: "more".to_owned(),
                    hint: "start again later".to_owned(),
                });
            }
            (&part.file).write_all(&chunk[..bytes]).map_err(io_error("write", &part.path))?;
            arrived.running.update(&chunk[..bytes]);
            arrived.bytes += bytes as u64;
            told(arrived.bytes);
        }
    }
}

/// Whether an answer goes on where a file breaks off.
fn continues(response: &Response, at: u64) -> bool {
    let starts = || {
        let range = response.header("content-range")?.trim().strip_prefix("bytes")?.trim();
        range.split('-').next()?.parse::<u64>().ok()
    };
    response.status == 206 && starts() == Some(at)
}

/// What has arrived of a file.
struct Arrived {
    bytes: u64,
    running: Running,
}

/// A file that is not whole yet, beside its place.
struct Part {
    file: File,
    path: PathBuf,
}

impl Part {
    fn open(blob: &Path, entry: &Entry) -> Result<Part> {
        let path = blob.with_file_name(format!("{}.incomplete", entry.hash.name()));
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        Ok(Part { file: file.map_err(io_error("make", &path))?, path })
    }

    /// What is there of it already, hashed; nothing where `anew`, or where it cannot be of this file.
    fn resume(&self, entry: &Entry, anew: bool, stop: &super::Stop) -> Result<Arrived> {
        let io = |action| io_error(action, &self.path);
        let there = self.file.metadata().map_err(io("look at"))?.len();
        let mut running = Running::like(&entry.hash, entry.bytes);
        if anew || there > entry.bytes {
            self.file.set_len(0).map_err(io("empty"))?;
        }
        (&self.file).seek(SeekFrom::Start(0)).map_err(io("read"))?;
        let bytes = running.read(&self.file, stop).map_err(io("read"))?;
        stop.check()?;
        Ok(Arrived { bytes, running })
    }

    /// Puts the whole file into its place.
    fn keep(&self, blob: &Path) -> Result<()> {
        self.file.sync_all().map_err(io_error("sync", &self.path))?;
        // What dangles, or is of another size, gives way.
        let _ = fs::remove_file(blob);
        fs::rename(&self.path, blob).map_err(io_error("rename to", blob))
    }

    fn discard(&self) {
        let _ = fs::remove_file(&self.path);
    }
}
