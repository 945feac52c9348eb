//! A checkpoint packed: planned, measured, written shard by shard, and put into its place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use glyd_format::header::{Header, tensor_bytes};
use glyd_format::index::{INDEX_NAME, Index};
use glyd_format::manifest::{
    ExpertsEntry, Format, MANIFEST_NAME, Manifest, PackEntry, PackedTensor, Source, WRITER_VERSION,
    buffer_name,
};
use glyd_format::packed::SINGLE_NAME;
use glyd_format::plan::{self, Pack, Plan, Put};
use glyd_format::{Buffer, Checkpoint, Digest, Dtype, Layout, Progress};
use rayon::ThreadPool;

use crate::error::{Error, Result};
use crate::extras::{self, Extras};
use crate::matrix::Matrix;
use crate::measure::{Measured, measure};
use crate::save::Output;
use crate::summary::{Bytes, DroppedTensor, LeftTensor, PackedMatrix, Summary};
use crate::values::Values;
use crate::workers;
use crate::write::{Entry, ShardFile, Sources, write_shard};

/// Bytes of data that a shard holds before a new one begins, where nothing else is asked for.
pub const SHARD_BYTES: u64 = 5_000_000_000;
/// A matrix that packed would be larger than its weights by more than this part is saved as it is.
const GROWTH_MAX: u64 = 100;

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
    summary(checkpoint, options, &plan, &extras)
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
    let followed = Followed { progress, done: AtomicU64::new(0), told: AtomicU64::new(0) };
    let job = Job { checkpoint, options, pool: &pool, output: &output, progress: &followed };
    progress.start(work_bytes(&plan));
    let mut known = BTreeMap::new();
    let (saved, summary) = loop {
        match job.write(&plan, &mut known)? {
            Written::Saved(saved) => break (saved, summary(checkpoint, options, &plan, &extras)?),
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

/// What was written of a plan.
enum Written {
    Saved(Saved),
    /// These tensors of the model would grow: by name.
    Grew(Vec<String>),
}

struct Saved {
    files: Vec<(String, u64)>,
    packed_bytes: u64,
}

struct Job<'a> {
    checkpoint: &'a Checkpoint,
    options: &'a Options,
    pool: &'a ThreadPool,
    output: &'a Output,
    progress: &'a dyn Progress,
}

/// A shard while its entries gather: names, dtypes and shapes in the order of puts.
#[derive(Default)]
struct Shard {
    entries: Vec<Entry>,
    tensors: Vec<(String, Dtype, Vec<u64>)>,
    bytes: u64,
}

impl Job<'_> {
    /// Measures and writes all that the plan puts; `known` keeps what was measured, by pack, for a
    /// second try.
    fn write(&self, plan: &Plan, known: &mut BTreeMap<String, Measured>) -> Result<Written> {
        let mut writer = Writer {
            job: self,
            plan,
            measured: BTreeMap::new(),
            shard: Shard::default(),
            shards: Vec::new(),
            weight_map: Vec::new(),
            digests: BTreeMap::new(),
            packs: BTreeMap::new(),
            packed_bytes: 0,
        };
        let mut next = 0;
        while next < plan.puts.len() {
            let end = self.batch_end(plan, next);
            let mut grew = writer.measure(next..end, known)?;
            if !grew.is_empty() {
                // All else that would grow is found at once: what is written now is written again.
                grew.extend(writer.measure(end..plan.puts.len(), known)?);
                known.extend(writer.take_measured());
                return Ok(Written::Grew(grew));
            }
            for put in next..end {
                writer.put(put)?;
            }
            next = end;
        }
        writer.finish().map(Written::Saved)
    }

    /// The puts that are measured together: about a shard's.
    fn batch_end(&self, plan: &Plan, start: usize) -> usize {
        let mut bytes = 0_u64;
        let rest = plan.puts[start..].iter();
        let fit = rest.take_while(|put| {
            let fits = bytes < self.shard_bytes();
            bytes = bytes.saturating_add(put_bytes(put));
            fits
        });
        start + fit.count()
    }

    /// The bytes that fill a shard: an empty one is never full.
    fn shard_bytes(&self) -> u64 {
        self.options.shard_bytes.max(1)
    }
}

/// Bytes of a put's tensors, unpacked.
fn put_bytes(put: &Put) -> u64 {
    match put {
        Put::Pack(pack) => pack.shape[0].saturating_mul(pack.shape[1]).saturating_mul(2),
        Put::Plain(plain) => tensor_bytes(plain.dtype, &plain.shape).unwrap_or(u64::MAX),
    }
}

/// Bytes that are worked on: what [`Progress`] is told of.
fn work_bytes(plan: &Plan) -> u64 {
    plan.puts.iter().fold(0, |all, put| all.saturating_add(put_bytes(put)))
}

struct Writer<'a> {
    job: &'a Job<'a>,
    plan: &'a Plan,
    /// What is measured and not yet written whole, by put.
    measured: BTreeMap<usize, Measured>,
    shard: Shard,
    shards: Vec<(String, u64)>,
    /// Tensors and the number of the shard of each.
    weight_map: Vec<(String, usize)>,
    digests: BTreeMap<usize, Digest>,
    packs: BTreeMap<usize, PackEntry>,
    packed_bytes: u64,
}

impl Writer<'_> {
    /// Measures the packs among these puts; returns the tensors that would grow if they were packed.
    fn measure(
        &mut self,
        puts: std::ops::Range<usize>,
        known: &mut BTreeMap<String, Measured>,
    ) -> Result<Vec<String>> {
        let mut numbers = Vec::new();
        let mut matrices = Vec::new();
        for put in puts {
            let Put::Pack(pack) = &self.plan.puts[put] else { continue };
            if let Some(measured) = known.remove(&pack.name()) {
                self.measured.insert(put, measured);
                continue;
            }
            numbers.push(put);
            matrices.push(matrix(pack)?);
        }
        let Job { checkpoint, options, pool, progress, .. } = self.job;
        let of: Vec<&Matrix<'_>> = matrices.iter().collect();
        let measured = measure(pool, checkpoint.weights(), &of, options.layout, *progress)?;
        let mut grew = Vec::new();
        for ((put, matrix), measured) in numbers.into_iter().zip(&matrices).zip(measured) {
            let bytes = Buffer::ALL.iter().map(|&buffer| measured.buffer_bytes(matrix, buffer)).sum::<u64>();
            let fits = measured.list_units() <= options.layout.list_units_max();
            if bytes > matrix.bytes() + matrix.bytes() / GROWTH_MAX || !fits {
                grew.extend(matrix.pack.tensors.iter().map(|tensor| tensor.name.clone()));
            }
            self.measured.insert(put, measured);
        }
        Ok(grew)
    }

    fn take_measured(&mut self) -> Vec<(String, Measured)> {
        let measured = std::mem::take(&mut self.measured).into_iter();
        let name = |put: usize| match &self.plan.puts[put] {
            Put::Pack(pack) => pack.name(),
            Put::Plain(plain) => plain.name.clone(),
        };
        measured.map(|(put, measured)| (name(put), measured)).collect()
    }

    /// Puts what a put saves into the shard, which is written once it is full.
    fn put(&mut self, put: usize) -> Result<()> {
        match &self.plan.puts[put] {
            Put::Plain(plain) => {
                let entry = Entry { put, buffer: None };
                self.add(entry, plain.name.clone(), plain.dtype, plain.shape.clone())
            }
            Put::Pack(pack) => {
                let matrix = matrix(pack)?;
                let measured = &self.measured[&put];
                let layout = self.job.options.layout;
                self.packs.insert(put, pack_entry(pack, measured));
                let name = pack.name();
                let buffers = Buffer::ALL.map(|buffer| {
                    let bytes = measured.buffer_bytes(&matrix, buffer);
                    let dtype = layout.dtype(buffer);
                    let length = bytes / (dtype.bitsize() as u64 / 8);
                    (buffer, buffer_name(&name, pack.experts.is_some(), layout, buffer), dtype, length, bytes)
                });
                for (buffer, name, dtype, length, bytes) in buffers {
                    self.packed_bytes += bytes;
                    self.add(Entry { put, buffer: Some(buffer) }, name, dtype, vec![length])?;
                }
                Ok(())
            }
        }
    }

    fn add(&mut self, entry: Entry, name: String, dtype: Dtype, shape: Vec<u64>) -> Result<()> {
        if self.shard.bytes >= self.job.shard_bytes() {
            self.write_shard()?;
        }
        self.shard.bytes += tensor_bytes(dtype, &shape).unwrap_or(0);
        self.weight_map.push((name.clone(), self.shards.len()));
        self.shard.entries.push(entry);
        self.shard.tensors.push((name, dtype, shape));
        Ok(())
    }

    /// Writes the shard under a temporary name: how many there will be is not known yet.
    fn write_shard(&mut self) -> Result<()> {
        let shard = std::mem::take(&mut self.shard);
        let names: Vec<String> = shard.tensors.iter().map(|(name, _, _)| name.clone()).collect();
        let header = Header::arrange(shard.tensors).ok_or_else(|| too_large(self.job.checkpoint))?;
        let places: BTreeMap<&str, usize> =
            header.tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
        let entries: Vec<(Entry, usize)> =
            shard.entries.iter().zip(&names).map(|(entry, name)| (*entry, places[name.as_str()])).collect();
        let bytes = header.data_offset + header.data_bytes();
        self.check_space(bytes)?;
        let name = format!("{:05}.part", self.shards.len());
        let file = self.job.output.file(Path::new(&name), bytes)?;
        file.write_at(&header.to_bytes(), 0)?;
        let sources = Sources {
            weights: self.job.checkpoint.weights(),
            puts: &self.plan.puts,
            measured: &self.measured,
        };
        let written = ShardFile { file: &file, header: &header, entries: &entries };
        self.digests.extend(write_shard(self.job.pool, &sources, &written, self.job.progress)?);
        file.finish()?;
        self.shards.push((name, bytes));
        if let Some(last) = shard.entries.last() {
            // What was measured ahead is kept, and a pack whose other buffers go into the next shard.
            let goes_on = !matches!(last.buffer, None | Some(Buffer::Base));
            self.measured.retain(|&put, _| put > last.put || put == last.put && goes_on);
        }
        Ok(())
    }

    fn check_space(&self, bytes: u64) -> Result<()> {
        match self.job.output.bytes_free() {
            Some(free) if free < bytes => Err(Error::Output {
                path: self.job.output.path().to_owned(),
                reason: format!("the next file needs {bytes} bytes, and {free} are free on its disk"),
                hint: "free some space, or name a folder on another disk".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Writes the last shard, the index and the manifest.
    fn finish(mut self) -> Result<Saved> {
        if !self.shard.entries.is_empty() || self.shards.is_empty() {
            self.write_shard()?;
        }
        let count = self.shards.len();
        let name = |number: usize| match count {
            1 => SINGLE_NAME.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let output = self.job.output;
        let mut files = Vec::new();
        for (number, (part, bytes)) in self.shards.iter().enumerate() {
            output.rename(part, &name(number))?;
            files.push((name(number), *bytes));
        }
        if count > 1 {
            let total = self.weight_map_bytes();
            let weight_map =
                self.weight_map.iter().map(|(tensor, shard)| (tensor.clone(), name(*shard))).collect();
            let text = Index { weight_map, total_bytes: Some(total) }.text();
            output.write(Path::new(INDEX_NAME), &text)?;
            files.push((INDEX_NAME.to_owned(), text.len() as u64));
        }
        let text = self.manifest().text();
        output.write(Path::new(MANIFEST_NAME), &text)?;
        files.push((MANIFEST_NAME.to_owned(), text.len() as u64));
        Ok(Saved { files, packed_bytes: self.packed_bytes })
    }

    /// Bytes of data of all shards.
    fn weight_map_bytes(&self) -> u64 {
        let plain = self.plan.puts.iter().filter(|put| matches!(put, Put::Plain(_))).map(put_bytes);
        self.packed_bytes + plain.sum::<u64>()
    }

    fn manifest(&self) -> Manifest {
        let options = self.job.options;
        let mut packs = Vec::new();
        let mut tensors = Vec::new();
        for (number, put) in self.plan.puts.iter().enumerate() {
            match put {
                Put::Pack(pack) => packs.push((pack.name(), self.packs[&number].clone())),
                Put::Plain(plain) => tensors.push((plain.name.clone(), self.digests[&number])),
            }
        }
        Manifest {
            format: format_of(self.plan, options.layout),
            glyd: WRITER_VERSION,
            source: options.source.clone(),
            layout: options.layout,
            packs,
            tensors: Some(tensors),
        }
    }
}

fn pack_entry(pack: &Pack, measured: &Measured) -> PackEntry {
    let tensors = pack.tensors.iter().zip(&measured.digests).map(|(part, &sha256)| PackedTensor {
        name: part.name.clone(),
        shape: part.shape.clone(),
        sha256,
    });
    let experts =
        pack.experts.map(|experts| ExpertsEntry { count: experts.count, transposed: experts.transposed });
    PackEntry { shape: pack.shape, coding: measured.coding, tensors: tensors.collect(), experts }
}

fn format_of(plan: &Plan, layout: Layout) -> Format {
    let experts = plan.puts.iter().any(|put| matches!(put, Put::Pack(pack) if pack.experts.is_some()));
    Format::of(layout, experts)
}

fn matrix(pack: &Pack) -> Result<Matrix<'_>> {
    Matrix::new(pack).ok_or_else(|| {
        glyd_format::Invalid {
            tensor: Some(pack.name()),
            expected: "a matrix of whole steps, made of its tensors".to_owned(),
            found: format!("shape {:?}", pack.shape),
            ..Default::default()
        }
        .into()
    })
}

fn too_large(checkpoint: &Checkpoint) -> Error {
    glyd_format::Invalid {
        file: Some(checkpoint.dir().to_owned()),
        expected: "tensors of fewer than 2^64 bytes in all".to_owned(),
        found: "more".to_owned(),
        ..Default::default()
    }
    .into()
}

/// Plans what is saved; `leave` is what must not be packed.
fn plan_for(checkpoint: &Checkpoint, options: &Options, leave: &BTreeSet<String>) -> Result<Plan> {
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

/// What the plan does: of a dry run, all that can be known.
fn summary(checkpoint: &Checkpoint, options: &Options, plan: &Plan, extras: &Extras) -> Result<Summary> {
    let inventory = checkpoint.inventory();
    let source_bytes = |name: &str, elements: u64| {
        let dtype = inventory.get(name).map_or(8, |tensor| tensor.dtype.bitsize() as u64);
        elements.saturating_mul(dtype) / 8
    };
    let mut notes: Vec<String> = checkpoint.notes().to_vec();
    notes.extend(plan.notes.iter().cloned());
    notes.extend(not_copied(checkpoint, extras));
    let mut summary = Summary {
        source: options.source.clone(),
        path: checkpoint.dir().to_owned(),
        format: format_of(plan, options.layout),
        layout: options.layout,
        packs: 0,
        packed_tensors: 0,
        packed_weights: 0,
        plain_tensors: 0,
        cast_tensors: 0,
        widened_tensors: 0,
        bytes: Bytes::default(),
        files: Vec::new(),
        copied: extras.copied.clone(),
        matrices: Vec::new(),
        left: Vec::new(),
        dropped: Vec::new(),
        notes,
    };
    summary.bytes.source =
        inventory.values().filter_map(|tensor| tensor_bytes(tensor.dtype, &tensor.shape)).sum();
    for put in &plan.puts {
        match put {
            Put::Pack(pack) => {
                let matrix = matrix(pack)?;
                summary.packs += 1;
                summary.matrices.push(PackedMatrix {
                    pack: pack.name(),
                    shape: pack.shape,
                    tensors: pack.tensors.iter().map(|part| part.name.clone()).collect(),
                    experts: pack.experts.map(|experts| experts.count),
                });
                summary.packed_tensors += pack.tensors.len() as u64;
                summary.packed_weights += matrix.grid.weights();
                summary.bytes.packed_source += matrix.bytes();
                summary.cast_tensors +=
                    pack.tensors.iter().filter(|part| part.value.dtype != Dtype::BF16).count() as u64;
            }
            Put::Plain(plain) => {
                let bytes = put_bytes(put);
                summary.plain_tensors += 1;
                summary.bytes.plain += bytes;
                summary.widened_tensors +=
                    u64::from(plain.value.dtype == Dtype::BF16 && plain.dtype == Dtype::F32);
                summary.cast_tensors +=
                    u64::from(plain.value.dtype != plain.dtype && plain.dtype == Dtype::BF16);
                summary.left.push(LeftTensor {
                    tensor: plain.name.clone(),
                    dtype: plain.dtype,
                    shape: plain.shape.clone(),
                    bytes,
                    reason: plain.reason.to_string(),
                });
            }
        }
    }
    summary.dropped = plan
        .dropped
        .iter()
        .map(|dropped| DroppedTensor {
            tensor: dropped.tensor.clone(),
            bytes: source_bytes(&dropped.tensor, dropped.elements),
            reason: dropped.reason.clone(),
        })
        .collect();
    Ok(summary)
}

/// The files that stay behind, but for the weights that were packed, their index, and those that the
/// checkpoint's own notes name.
fn not_copied(checkpoint: &Checkpoint, extras: &Extras) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, reason) in &extras.left {
        let packed = checkpoint.weights().files().iter().any(|file| Path::new(&file.name) == path);
        let noted =
            path.components().count() == 1 && path.extension().is_some_and(|ending| ending == "safetensors");
        if !packed && !noted && path != Path::new(INDEX_NAME) {
            by_reason.entry(reason).or_default().push(format!("`{}`", path.display()));
        }
    }
    by_reason
        .into_iter()
        .map(|(reason, paths)| format!("not copied ({reason}): {}", paths.join(", ")))
        .collect()
}

fn finish(mut summary: Summary, saved: Saved) -> Summary {
    summary.bytes.packed = Some(saved.packed_bytes);
    summary.bytes.written = Some(saved.files.iter().map(|(_, bytes)| bytes).sum());
    summary.files = saved.files;
    summary
}
