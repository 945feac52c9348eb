//! The safetensors files of a checkpoint: headers read once, data read where it is asked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Invalid, Result};
use crate::file::{File, Stamp};
use crate::header::{Header, Tensor};

/// Files kept open, however many the checkpoint has: systems allow a few hundred, for all threads.
const OPEN_FILES: usize = 8;

/// A safetensors file, seen once.
#[derive(Debug)]
pub struct WeightsFile {
    /// Its path in the checkpoint's folder.
    pub name: String,
    /// Its header.
    pub header: Header,
    path: PathBuf,
    stamp: Stamp,
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
        Ok((WeightsFile { name: name.to_owned(), header, path, stamp }, text))
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
        Weights { files, tensors, open: Mutex::default() }
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
        self.files.iter().try_for_each(|file| File::open_same(&file.path, file.stamp).map(drop))
    }

    fn open(&self, number: usize) -> Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, file)) = open.iter().find(|(open, _)| *open == number) {
            return Ok(Arc::clone(file));
        }
        let WeightsFile { path, stamp, .. } = &self.files[number];
        let file = Arc::new(File::open_same(path, *stamp)?);
        if open.len() >= OPEN_FILES {
            open.remove(0);
        }
        open.push((number, Arc::clone(&file)));
        Ok(file)
    }
}
