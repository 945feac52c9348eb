//! Whether a packed checkpoint is what it says: every rule of `docs/verify.md`, every tensor decoded
//! and hashed again.
//!
//! A verdict rests on this crate and on `glyd_format` alone: the encoders are in neither.

#![forbid(unsafe_code)]

mod content;
mod lists;
mod look;
mod tensors;

use std::path::{Path, PathBuf};

use glyd_format::finding::{Finding, Level};
use glyd_format::manifest::Format;
use glyd_format::packed::Opened;
use glyd_format::{Layout, Packed, Progress};

pub use look::{Cpu, Decoder};

/// How a checkpoint is verified.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Threads; as many as the machine runs at once where it is not said.
    pub threads: Option<usize>,
}

/// Why a checkpoint could not be looked at. What is wrong with one is a [`Finding`].
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its files could not be read, or there is no packed checkpoint.
    #[error(transparent)]
    Read(#[from] glyd_format::Error),
    /// The job was stopped from outside.
    #[error("interrupted: not all of the checkpoint was looked at")]
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

/// What the checkpoint turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every rule holds, and every tensor has its sha256.
    Good,
    /// A rule does not hold.
    Damaged,
    /// Every rule holds, but there are tensors that this checkpoint has no sha256 of.
    Unchecked,
}

impl Verdict {
    /// The verdict's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Damaged => "damaged",
            Verdict::Unchecked => "unchecked",
        }
    }
}

/// What was looked at, and what was found.
#[derive(Debug, Clone)]
pub struct Report {
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// The version of the format; `None` where there is no manifest to know it from.
    pub format: Option<Format>,
    /// The layout of the packs.
    pub layout: Option<Layout>,
    /// Tensors in packs that decoded to their sha256.
    pub packed_tensors: u64,
    /// Tensors saved as they are that have their sha256.
    pub plain_tensors: u64,
    /// Tensors that the checkpoint has no sha256 of.
    pub unchecked_tensors: u64,
    /// Every rule that does not hold, in the order of the files.
    pub findings: Vec<Finding>,
    /// Bytes that were read and held to the rules.
    pub bytes: u64,
    /// The decoder that the verdict rests on.
    pub decoder: &'static str,
}

impl Report {
    /// The verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.findings.iter().any(|finding| finding.level == Level::Damage) {
            Verdict::Damaged
        } else if self.unchecked_tensors > 0 {
            Verdict::Unchecked
        } else {
            Verdict::Good
        }
    }
}

/// Verifies the packed checkpoint in the folder `dir`.
///
/// # Errors
/// Where it cannot be looked at.
pub fn verify(dir: &Path, options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    verify_with(&Cpu, dir, options, progress)
}

/// Verifies the packed checkpoint in the folder `dir` with a decoder of the caller's: the verdict rests
/// on it too.
///
/// # Errors
/// Where it cannot be looked at.
pub fn verify_with(
    decoder: &dyn Decoder,
    dir: &Path,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let Opened { packed, mut findings } = Packed::open(dir)?;
    let mut report = Report {
        path: dir.to_owned(),
        format: None,
        layout: None,
        packed_tensors: 0,
        plain_tensors: 0,
        unchecked_tensors: 0,
        findings: Vec::new(),
        bytes: 0,
        decoder: decoder.name(),
    };
    if let Some(packed) = packed {
        report.format = Some(packed.manifest().format);
        report.layout = Some(packed.manifest().layout);
        let content = content::check(decoder, &packed, options.threads, progress)?;
        report.packed_tensors = content.packed_tensors;
        report.plain_tensors = content.plain_tensors;
        report.unchecked_tensors = content.unchecked_tensors;
        report.bytes = packed.weights().files().iter().map(|file| file.bytes()).sum();
        findings.extend(content.findings);
    }
    report.findings = findings;
    Ok(report)
}
