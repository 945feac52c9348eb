//! The safetensors files of a checkpoint: headers read once, data read where it is asked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Invalid, Result};
use crate::file::{File, Stamp};
use crate::header::{Header, Tensor};

/// Files kept open, however many the checkpoint has: systems allow a few hundred, for all threads.
const OPEN_FILES: usize = 8;

/// Brings files that are not on disk yet, in time for their tensors to be read.
pub trait Arrivals: Send + Sync + std::fmt::Debug {
    /// The files will be needed in this order.
    fn order(&self, files: &[&str]);

    /// Returns once the file is there.
    ///
    /// # Errors
    /// Where it cannot be had.
    fn wait(&self, file: &str) -> Result<()>;

    /// The file is not needed any more; where it is all the same, [`Arrivals::wait`] brings it again.
    fn release(&self, file: &str);
}

/// A safetensors file, seen once.
#[derive(Debug)]
pub struct WeightsFile {
    /// Its path in the checkpoint's folder.
    pub name: String,
    /// Its header.
    pub header: Header,
    path: PathBuf,
    /// None of a file that is yet to come.
    stamp: Option<Stamp>,
}

impl WeightsFile {
    /// Reads the header of the file `name` in the folder `dir`, and the header's text.
    ///
    /// # Errors
    /// Where it cannot be read, or is no safetensors file.
    pub fn open(dir: &Path, name: &str) -> Result<(WeightsFile, Vec<u8>)> {
        let file = File::open(&dir.join(name))?;
        let (header, text) = Header::read(&file)?;
        let (path, stamp) = (file.path().to_owned(), file.stamp());
        Ok((WeightsFile { name: name.to_owned(), header, path, stamp: Some(stamp) }, text))
    }

    /// The file `name` of the folder `dir`, which is yet to come and will have this header.
    #[must_use]
    pub fn to_come(dir: &Path, name: &str, header: Header) -> WeightsFile {
        WeightsFile { name: name.to_owned(), header, path: dir.join(name), stamp: None }
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.header.data_offset + self.header.data_bytes()
    }
}

/// Where a tensor is: a file's number, and a tensor's in that file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    file: usize,
    tensor: usize,
}

/// A checkpoint's safetensors files and the tensors in them.
#[derive(Debug, Default)]
pub struct Weights {
    files: Vec<WeightsFile>,
    tensors: HashMap<String, Location>,
    open: Mutex<Vec<(usize, Arc<File>)>>,
    arrivals: Option<Arc<dyn Arrivals>>,
}

impl Weights {
    /// The tensors of `files` that `holds` says are there to be read: `(file name, tensor name)`.
    #[must_use]
    pub fn new(files: Vec<WeightsFile>, holds: impl Fn(&str, &str) -> bool) -> Self {
        let mut tensors = HashMap::new();
        for (file, weights) in files.iter().enumerate() {
            for (tensor, entry) in weights.header.tensors.iter().enumerate() {
                if holds(&weights.name, &entry.name) {
                    tensors.insert(entry.name.clone(), Location { file, tensor });
                }
            }
        }
        Weights { files, tensors, open: Mutex::default(), arrivals: None }
    }

    /// These weights, whose files are brought when they are read.
    #[must_use]
    pub fn arriving(self, arrivals: Arc<dyn Arrivals>) -> Self {
        Weights { arrivals: Some(arrivals), ..self }
    }

    /// What brings the files, where they are not all on disk.
    #[must_use]
    pub fn arrivals(&self) -> Option<&dyn Arrivals> {
        self.arrivals.as_deref()
    }

    /// The number of the file that holds a tensor, of [`Weights::files`].
    #[must_use]
    pub fn file_number(&self, at: Location) -> usize {
        at.file
    }

    /// Closes a file that is not needed any more, and lets it go where it was brought.
    pub fn release(&self, number: usize) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|(open, _)| *open != number);
        if let (Some(arrivals), Some(file)) = (&self.arrivals, self.files.get(number)) {
            arrivals.release(&file.name);
        }
    }

    /// The files, in their order.
    #[must_use]
    pub fn files(&self) -> &[WeightsFile] {
        &self.files
    }

    /// The names of the tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Where the tensor `name` is.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Location> {
        self.tensors.get(name).copied()
    }

    /// A tensor's entry in its file's header.
    #[must_use]
    pub fn tensor(&self, at: Location) -> &Tensor {
        &self.files[at.file].header.tensors[at.tensor]
    }

    /// The file that holds a tensor.
    #[must_use]
    pub fn file(&self, at: Location) -> &WeightsFile {
        &self.files[at.file]
    }

    /// Fills `buffer` from a tensor's bytes at `offset`.
    ///
    /// # Errors
    /// Where they cannot be read, the tensor ends before them, or its file changed since its header
    /// was read.
    pub fn read_at(&self, at: Location, buffer: &mut [u8], offset: u64) -> Result<()> {
        let tensor = self.tensor(at);
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > tensor.bytes()) {
            return Err(Invalid {
                file: Some(self.file(at).path.clone()),
                tensor: Some(tensor.name.clone()),
                expected: format!("{} bytes at {offset}", buffer.len()),
                found: format!("a tensor of {} bytes", tensor.bytes()),
                hint: None,
            }
            .into());
        }
        let start = self.file(at).header.data_offset + tensor.begin;
        self.open(at.file)?.read_at(buffer, start + offset)
    }

    /// Holds every file to be as it was when its header was read.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check_unchanged(&self) -> Result<()> {
        let seen = self.files.iter().filter_map(|file| Some((file, file.stamp?)));
        seen.into_iter().try_for_each(|(file, stamp)| File::open_same(&file.path, stamp).map(drop))
    }

    fn open(&self, number: usize) -> Result<Arc<File>> {
        if let Some(file) = self.is_open(number) {
            return Ok(file);
        }
        let WeightsFile { name, path, stamp, .. } = &self.files[number];
        if let Some(arrivals) = &self.arrivals {
            arrivals.wait(name)?;
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let file = Arc::new(match stamp {
            Some(stamp) => File::open_same(path, *stamp)?,
            None => File::open(path)?,
        });
        if open.len() >= OPEN_FILES {
            open.remove(0);
        }
        open.push((number, Arc::clone(&file)));
        Ok(file)
    }

    fn is_open(&self, number: usize) -> Option<Arc<File>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().find(|(open, _)| *open == number).map(|(_, file)| Arc::clone(file))
    }
}
