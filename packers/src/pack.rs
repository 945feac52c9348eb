//! A checkpoint packed: planned, measured, written shard by shard, and put into its place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use glyd_format::header::tensor_bytes;
use glyd_format::manifest::Source;
use glyd_format::plan::{self, Plan};
use glyd_format::{Checkpoint, Dtype, Layout, Progress};

use crate::error::{Error, Result};
use crate::extras;
use crate::save::Output;
use crate::shards::{Job, Written, work_bytes};
use crate::summary::{Summary, finish, summarize};
use crate::values::Values;
use crate::workers;

/// Bytes of data that a shard holds before a new one begins, where nothing else is asked for.
pub const SHARD_BYTES: u64 = 5_000_000_000;
/// How a checkpoint is packed.
#[derive(Debug, Clone)]
pub struct Options {
    /// The layout of its packs.
    pub layout: Layout,
    /// Whether a layer's q, k, v and gate, up are merged.
    pub merge: bool,
    /// Whether every float tensor is cast to bf16.
    pub cast: bool,
    /// Bytes of data that a shard holds before a new one begins; 0 is taken as 1, a tensor a shard.
    pub shard_bytes: u64,
    /// Threads; as many as the machine runs at once where it is not said.
    pub threads: Option<usize>,
    /// What the manifest says of where the checkpoint came from.
    pub source: Source,
}

/// Says what packing the checkpoint would do. Reads no weights but those of tied tensors, to compare
/// them.
///
/// # Errors
/// As [`pack`]'s, but for those of writing.
pub fn plan(checkpoint: &Checkpoint, options: &Options) -> Result<Summary> {
    let plan = plan_for(checkpoint, options, &BTreeSet::new())?;
    let extras = extras::find(checkpoint.dir())?;
    summarize(checkpoint, options, &plan, &extras)
}

/// Packs a checkpoint into the folder `out`: what `out` held before is there until the new checkpoint
/// is whole.
///
/// # Errors
/// Where there is nothing to pack, the source lacks something or changes, `out` cannot be used or
/// written, or the job is stopped: in each case nothing of the new checkpoint stays.
pub fn pack(
    checkpoint: &Checkpoint,
    out: &Path,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Summary> {
    check_apart(checkpoint.dir(), out)?;
    let pool = workers::start(options.threads)?;
    let extras = extras::find(checkpoint.dir())?;
    // Nothing is written, and no folder made, before it is known that there is something to pack.
    let mut left = BTreeSet::new();
    let mut plan = plan_for(checkpoint, options, &left)?;
    extras::check_readable(checkpoint.dir(), &extras)?;
    let output = Output::take(out)?;
    output.check_room(extras.copied.iter().map(|(path, _)| path.as_path()))?;
    output.check_case(extras.copied.iter().map(|(path, _)| path.as_path()))?;
    let followed = Followed { progress, done: AtomicU64::new(0), told: AtomicU64::new(0) };
    let job = Job { checkpoint, options, pool: &pool, output: &output, progress: &followed };
    progress.start(work_bytes(&plan));
    let mut known = BTreeMap::new();
    let (saved, summary) = loop {
        match job.write(&plan, &mut known)? {
            Written::Saved(saved) => break (saved, summarize(checkpoint, options, &plan, &extras)?),
            Written::Grew(tensors) => {
                // Not as such checkpoints are made: plan again, without what would grow.
                left.extend(tensors);
                plan = plan_for(checkpoint, options, &left)?;
                output.restart()?;
                followed.done.store(0, Ordering::Relaxed);
            }
        }
    };
    extras::copy(checkpoint.dir(), &extras, &output, progress)?;
    checkpoint.weights().check_unchanged()?;
    if progress.stopped() {
        return Err(Error::Interrupted);
    }
    output.commit()?;
    Ok(finish(summary, saved))
}

/// A job's progress, told of no byte twice where work begins anew.
struct Followed<'a> {
    progress: &'a dyn Progress,
    /// Bytes done since the work began last.
    done: AtomicU64,
    /// The most that was told of.
    told: AtomicU64,
}

impl Progress for Followed<'_> {
    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let told = self.told.fetch_max(done, Ordering::Relaxed);
        if done > told {
            self.progress.advance(done - told);
        }
    }

    fn stopped(&self) -> bool {
        self.progress.stopped()
    }
}

/// Plans what is saved; `leave` is what must not be packed.
pub(crate) fn plan_for(checkpoint: &Checkpoint, options: &Options, leave: &BTreeSet<String>) -> Result<Plan> {
    let nothing = |reason: String| Error::NothingToPack { path: checkpoint.dir().to_owned(), reason };
    if checkpoint.config().is_null() {
        return Err(glyd_format::Invalid {
            file: Some(checkpoint.dir().to_owned()),
            expected: "`config.json`, which says what the tensors are".to_owned(),
            found: "none".to_owned(),
            hint: Some("fetch it with the weights: no program can load them without".to_owned()),
            ..Default::default()
        }
        .into());
    }
    if let Some(quantization) = plan::quantized(checkpoint.config()) {
        let method = quantization.get("quant_method").and_then(|method| method.as_str()).unwrap_or("unnamed");
        return Err(nothing(format!("it is quantized already (quantization_config, `{method}`)")));
    }
    let inventory = checkpoint.inventory();
    let packable =
        |dtype| dtype == Dtype::BF16 || options.cast && matches!(dtype, Dtype::F16 | Dtype::F32 | Dtype::F64);
    if !inventory.values().any(|tensor| packable(tensor.dtype)) {
        let bytes: u64 =
            inventory.values().filter_map(|tensor| tensor_bytes(tensor.dtype, &tensor.shape)).sum();
        let floats =
            inventory.values().any(|tensor| matches!(tensor.dtype, Dtype::F16 | Dtype::F32 | Dtype::F64));
        let hint = if floats && !options.cast { "; `--cast` casts its float tensors to bf16" } else { "" };
        return Err(nothing(format!("0 of its {bytes} bytes are bf16{hint}")));
    }
    let mut same = |a: &plan::Value, b: &plan::Value| {
        same_bytes(checkpoint, a, b).map_err(|error| match error {
            Error::Source(error) => error,
            other => glyd_format::Invalid {
                expected: "tied tensors that can be read".to_owned(),
                found: other.to_string(),
                ..Default::default()
            }
            .into(),
        })
    };
    let mut options = plan::Options { merge: options.merge, cast: options.cast, leave, same: &mut same };
    Ok(plan::plan(checkpoint.config(), &inventory, &mut options)?)
}

fn same_bytes(checkpoint: &Checkpoint, a: &plan::Value, b: &plan::Value) -> Result<bool> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let mut values = Values::new(checkpoint.weights());
    if (a.dtype, &a.shape) != (b.dtype, &b.shape) {
        return Ok(false);
    }
    let bits = a.dtype.bitsize() as u64;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut first = 0;
    while first < a.elements() {
        let here = (CHUNK_BYTES * 8 / bits / 8 * 8).min(a.elements() - first);
        let bytes = usize::try_from(here * bits / 8).unwrap_or(usize::MAX);
        left.resize(bytes, 0);
        right.resize(bytes, 0);
        values.read(a, a.dtype, first, &mut left)?;
        values.read(b, b.dtype, first, &mut right)?;
        if left != right {
            return Ok(false);
        }
        first += here;
    }
    Ok(true)
}

/// The output is neither the source, nor in it, nor around it.
fn check_apart(source: &Path, out: &Path) -> Result<()> {
    let Ok(source) = fs::canonicalize(source) else { return Ok(()) };
    // What is not there yet is where its parent is.
    let resolved = fs::canonicalize(out).or_else(|error| {
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = out.file_name().ok_or(error)?;
        fs::canonicalize(parent).map(|parent| parent.join(name))
    });
    let resolved = resolved.map_err(|source| Error::Write {
        action: "make the folder",
        path: out.to_owned(),
        source,
    })?;
    if source.starts_with(&resolved) || resolved.starts_with(&source) {
        return Err(Error::Output {
            path: resolved,
            reason: format!("it is the source `{}`, or one is in the other", source.display()),
            hint: "name a folder apart from the source: sources are never written to".to_owned(),
        });
    }
    Ok(())
}
