//! The second pass: a shard is written at known offsets by many threads, each of which packs a tile,
//! decodes it again and compares it with the weights before its bytes go to the file.

use std::collections::BTreeMap;
use std::ops::Range;

use glyd_format::header::Header;
use glyd_format::layout::BASE_BYTES;
use glyd_format::plan::{Plain, Put};
use glyd_format::step::{STEP_COLUMNS, STEP_ROWS, WEIGHT_BYTES};
use glyd_format::weights::Weights;
use glyd_format::{Buffer, Progress};
use rayon::ThreadPool;

use crate::encode::{Encoded, Encoder};
use crate::error::{Error, Result};
use crate::matrix::{Matrix, Member, Tile};
use crate::measure::Measured;
use crate::output_file::OutputFile;
use crate::values::Values;
use crate::workers;

/// Bytes of a plain tensor that are copied at a time, and pieces of a task.
const COPY_BYTES: u64 = 1 << 18;
const COPY_PIECES: u64 = 64;

/// A tensor of a shard: which put it is of, and which of a pack's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) put: usize,
    pub(crate) buffer: Option<Buffer>,
}

/// A shard's file, and where in it each of its entries goes.
pub(crate) struct ShardFile<'a> {
    pub(crate) file: &'a OutputFile,
    pub(crate) header: &'a Header,
    /// Entries, and the number of each one's tensor in the header.
    pub(crate) entries: &'a [(Entry, usize)],
}

/// What a shard is written from.
pub(crate) struct Sources<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) puts: &'a [Put],
    pub(crate) measured: &'a BTreeMap<usize, Measured>,
}

/// A pack of a shard while it is written: all of its buffers, or those that the shard has.
struct Target<'a> {
    matrix: Matrix<'a>,
    measured: &'a Measured,
    encoder: Encoder,
    offsets: [Option<u64>; 3],
}

enum Task<'a> {
    /// Some elements of a plain tensor, and where in the file its first one goes.
    Copy { plain: &'a Plain, elements: Range<u64>, offset: u64 },
    /// A tile, and the number of its target.
    Tile { target: usize, tile: Tile },
}

/// A thread's memory.
struct Scratch<'a> {
    values: Values<'a>,
    rows: Vec<u16>,
    encoded: Encoded,
    bytes: Vec<u8>,
}

/// Writes a shard: all but its header.
pub(crate) fn write_shard(
    pool: &ThreadPool,
    sources: &Sources<'_>,
    shard: &ShardFile<'_>,
    progress: &dyn Progress,
) -> Result<()> {
    let (targets, tasks) = plan(sources, shard);
    let scratch = || Scratch {
        values: Values::new(sources.weights),
        rows: Vec::new(),
        encoded: Encoded::default(),
        bytes: Vec::new(),
    };
    workers::run(pool, &tasks, scratch, |scratch, task| match task {
        Task::Copy { plain, elements, offset } => {
            copy(scratch, plain, elements.clone(), shard.file, *offset, progress)
        }
        Task::Tile { target, tile } => pack_tile(scratch, &targets[*target], *tile, shard.file, progress),
    })?;
    targets.iter().try_for_each(|target| target.write_end(shard.file))
}

/// The shard's packs, and the tasks to write it.
fn plan<'a>(sources: &Sources<'a>, shard: &ShardFile<'_>) -> (Vec<Target<'a>>, Vec<Task<'a>>) {
    let mut tasks = Vec::new();
    let mut packs: BTreeMap<usize, [Option<u64>; 3]> = BTreeMap::new();
    for &(entry, tensor) in shard.entries {
        let tensor = &shard.header.tensors[tensor];
        let offset = shard.header.data_offset + tensor.begin;
        match (entry.buffer, &sources.puts[entry.put]) {
            (Some(buffer), _) => packs.entry(entry.put).or_default()[buffer as usize] = Some(offset),
            (None, Put::Plain(plain)) => {
                let total = plain.value.elements();
                let some = COPY_PIECES * piece_elements(plain, COPY_BYTES);
                let starts = (0..total).step_by(usize::try_from(some).unwrap_or(usize::MAX));
                let part = |start| start..total.min(start + some);
                tasks.extend(starts.map(|start| Task::Copy { plain, elements: part(start), offset }));
            }
            (None, Put::Pack(_)) => {}
        }
    }
    let mut targets = Vec::new();
    for (put, offsets) in packs {
        let Put::Pack(pack) = &sources.puts[put] else { continue };
        let (Some(matrix), Some(measured)) = (Matrix::new(pack), sources.measured.get(&put)) else {
            continue;
        };
        tasks.extend(matrix.tiles().into_iter().map(|tile| Task::Tile { target: targets.len(), tile }));
        targets.push(Target { encoder: Encoder::new(measured.coding), matrix, measured, offsets });
    }
    (targets, tasks)
}

/// Elements of a plain tensor in a piece of about `bytes` bytes: whole ones, and of whole bytes where
/// elements are smaller.
pub(crate) fn piece_elements(plain: &Plain, bytes: u64) -> u64 {
    bytes * 8 / plain.dtype.bitsize() as u64 / 8 * 8
}

/// Copies elements of a plain tensor, cast or widened where its plan says so.
fn copy<'a>(
    scratch: &mut Scratch<'a>,
    plain: &'a Plain,
    elements: Range<u64>,
    file: &OutputFile,
    offset: u64,
    progress: &dyn Progress,
) -> Result<()> {
    let bits = plain.dtype.bitsize() as u64;
    let mut first = elements.start;
    while first < elements.end {
        if progress.stopped() {
            return Err(Error::Interrupted);
        }
        let here = piece_elements(plain, COPY_BYTES).min(elements.end - first);
        let bytes = here * bits / 8;
        scratch.bytes.resize(usize::try_from(bytes).unwrap_or(usize::MAX), 0);
        scratch.values.read(&plain.value, plain.dtype, first, &mut scratch.bytes)?;
        file.write_at(&scratch.bytes, offset + first * bits / 8)?;
        first += here;
        // The half of the work that is not to hash it.
        progress.advance(bytes - bytes / 2);
    }
    Ok(())
}

/// Packs a tile: chunk by chunk of its columns, each strip of the chunk in turn.
fn pack_tile<'a>(
    scratch: &mut Scratch<'a>,
    target: &Target<'a>,
    tile: Tile,
    file: &OutputFile,
    progress: &dyn Progress,
) -> Result<()> {
    let Target { matrix, measured, .. } = target;
    let strips = usize::try_from(tile.strips).unwrap_or(usize::MAX);
    let starts = usize::try_from(tile.strip).unwrap_or(usize::MAX);
    let starts = &measured.starts[starts..=starts + strips];
    let mut ends: Vec<u64> = starts[..strips].to_vec();
    let member = &matrix.members[tile.member];
    let whole = tile.columns >= matrix.grid.columns();
    let mut column = 0;
    while column < matrix.grid.columns() {
        if progress.stopped() {
            return Err(Error::Interrupted);
        }
        let columns = column..(column + tile.columns).min(matrix.grid.columns());
        member.read_tile(&mut scratch.values, tile, columns.clone(), &mut scratch.rows)?;
        let wide = scratch.rows.len() / STEP_ROWS / strips;
        let steps = wide / STEP_COLUMNS;
        // Strips that are whole follow each other in the buffers: they are written together.
        let together = if whole { strips } else { 1 };
        for first in (0..strips).step_by(together) {
            let step = (tile.strip + first as u64) * matrix.grid.strip_steps() + column / STEP_COLUMNS as u64;
            let start = ends[first];
            scratch.encoded.begin(measured.coding.layout(), together * steps);
            for at in first..first + together {
                let rows = &scratch.rows[at * STEP_ROWS * wide..];
                let done = target.encoder.encode_checked(rows, wide, steps, &mut scratch.encoded);
                done.map_err(|flaw| Error::Mismatch {
                    pack: matrix.pack.name(),
                    step: step + flaw.step as u64,
                    expected: flaw.expected,
                    found: flaw.found,
                })?;
                ends[at] = start + scratch.encoded.units();
                if ends[at] > starts[at + 1] || whole && ends[at] < starts[at + 1] {
                    return Err(changed(target, member, scratch.values.weights()));
                }
            }
            target.write_run(file, step, start, &scratch.encoded, &mut scratch.bytes)?;
        }
        column = columns.end;
        // A pack that parts over shards is worked on once for each, and counted once.
        if target.offset(Buffer::Data).is_some() {
            progress.advance((scratch.rows.len() * WEIGHT_BYTES / 2) as u64);
        }
    }
    if ends != starts[1..] {
        return Err(changed(target, member, scratch.values.weights()));
    }
    Ok(())
}

/// The lists are not of the lengths that were measured: the weights are not those that were hashed.
fn changed(target: &Target<'_>, member: &Member<'_>, weights: &Weights) -> Error {
    if let Err(error) = weights.check_unchanged() {
        return error.into();
    }
    let source = member.part.value.expr.sources().next().and_then(|name| weights.find(name));
    glyd_format::Invalid {
        file: source.map(|at| weights.file(at).path().to_owned()),
        tensor: Some(target.matrix.pack.name()),
        expected: "the weights that were read first".to_owned(),
        found: "others, read a moment later".to_owned(),
        hint: Some("start again once nothing writes to the checkpoint".to_owned()),
    }
    .into()
}

impl Target<'_> {
    fn offset(&self, buffer: Buffer) -> Option<u64> {
        self.offsets[buffer as usize]
    }

    /// Writes a run of steps into those buffers that the shard has: its first step, and where its part
    /// of the list starts, in units.
    fn write_run(
        &self,
        file: &OutputFile,
        step: u64,
        start: u64,
        encoded: &Encoded,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let layout = self.measured.coding.layout();
        if let Some(offset) = self.offset(Buffer::Data) {
            file.write_at(&encoded.data, offset + step * layout.step_bytes() as u64)?;
        }
        if let Some(offset) = self.offset(Buffer::List) {
            file.write_at(&encoded.list, offset + start * layout.list_unit_bytes() as u64)?;
        }
        if let Some(offset) = self.offset(Buffer::Base) {
            bytes.clear();
            let bases = &encoded.bases[..encoded.bases.len() - 1];
            for &base in bases {
                bytes.extend_from_slice(&entry(start + u64::from(base.unsigned_abs())));
            }
            file.write_at(bytes, offset + step * BASE_BYTES as u64)?;
        }
        Ok(())
    }

    /// Writes the base buffer's last entry: where the last step's part of the list ends. The zero bytes
    /// around the list are those of the new file.
    fn write_end(&self, file: &OutputFile) -> Result<()> {
        let end = self.measured.starts.last().copied().unwrap_or(0);
        match self.offset(Buffer::Base) {
            Some(offset) => file.write_at(&entry(end), offset + self.matrix.grid.steps() * BASE_BYTES as u64),
            None => Ok(()),
        }
    }
}

/// An entry of the base buffer: lists are held to what its 32 bits count before they are written.
fn entry(units: u64) -> [u8; BASE_BYTES] {
    let [a, b, c, d, ..] = units.to_le_bytes();
    [a, b, c, d]
}
