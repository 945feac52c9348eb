//! What can go wrong while a checkpoint is read: one enum, a variant for each thing a caller would
//! act on differently.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A result whose error is [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a checkpoint cannot be read.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be opened, read or listed.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried: a verb, `read` for example.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something was read, and is not what a checkpoint must hold.
    #[error(transparent)]
    Invalid(Box<Invalid>),
    /// A valid checkpoint of a kind that is not handled.
    #[error("{what}: {found}; {hint}")]
    Unsupported {
        /// What was looked at: `` `config.json`: model_type `` for example.
        what: String,
        /// What was found there.
        found: String,
        /// What is handled, or what to do.
        hint: String,
    },
    /// Several things at once: every one of them is named.
    #[error("{}", several(.0))]
    Several(Vec<Error>),
}

impl Error {
    /// One error that is all of these.
    #[must_use]
    pub fn several(mut errors: Vec<Error>) -> Error {
        match errors.len() {
            1 => errors.remove(0),
            _ => Error::Several(errors),
        }
    }

    /// Fails with all of these errors, where there are any.
    ///
    /// # Errors
    /// All of them.
    pub fn all(errors: Vec<Error>) -> Result<()> {
        if errors.is_empty() { Ok(()) } else { Err(Error::several(errors)) }
    }
}

/// A part of a checkpoint that is not what it must be: where it is, what was expected, what was found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// The file, where one is at fault.
    pub file: Option<PathBuf>,
    /// The tensor, where one is at fault.
    pub tensor: Option<String>,
    /// What must hold.
    pub expected: String,
    /// What was found instead.
    pub found: String,
    /// What to do about it, where something helps.
    pub hint: Option<String>,
}

impl std::error::Error for Invalid {}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "`{}`: ", file.display())?;
        }
        if let Some(tensor) = &self.tensor {
            write!(f, "`{tensor}`: ")?;
        }
        write!(f, "expected {}, found {}", self.expected, self.found)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Error::Invalid(Box::new(invalid))
    }
}

fn several(errors: &[Error]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
