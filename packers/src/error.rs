//! What can go wrong while a checkpoint is packed.

use std::io;
use std::path::PathBuf;

use glyd_format::Invalid;

/// A result whose error is [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a checkpoint was not packed.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source cannot be read, or is not what it must be.
    #[error(transparent)]
    Source(#[from] glyd_format::Error),
    /// The source has nothing to pack: nothing was written.
    #[error("nothing to pack in `{}`: {reason}", path.display())]
    NothingToPack {
        /// The source.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The output folder cannot be used: nothing was written.
    #[error("cannot write to `{}`: {reason}; {hint}", path.display())]
    Output {
        /// The folder.
        path: PathBuf,
        /// Why.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// A file could not be written.
    #[error("cannot {action} `{}`", path.display())]
    Write {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The encoder and the decoder disagree: a defect of glyd. Nothing of the checkpoint was kept.
    #[error(
        "`{pack}`: step {step} does not decode to what it was packed from: expected {expected}, found {found}; \
         this is a defect of glyd: please report it"
    )]
    Mismatch {
        /// The pack.
        pack: String,
        /// The step of its matrix.
        step: u64,
        /// What was packed.
        expected: String,
        /// What came back.
        found: String,
    },
    /// The job was stopped from outside.
    #[error("interrupted: nothing of the new checkpoint was kept")]
    Interrupted,
    /// The worker threads could not be started.
    #[error("cannot start {threads} threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        source: rayon::ThreadPoolBuildError,
    },
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Error::Source(invalid.into())
    }
}
