//! The first pass over what is packed: hashes, histograms, and how long each strip's part of the list
//! will be, so that every byte's place in the files is known before any is written.

use glyd_format::digest::Stream;
use glyd_format::step::{STEP_COLUMNS, STEP_ROWS, WEIGHT_BYTES};
use glyd_format::weights::Weights;
use glyd_format::{Buffer, Coding, Digest, Layout, Progress};
use rayon::ThreadPool;

use crate::count::Counts;
use crate::encode::{Encoded, Encoder};
use crate::error::{Error, Result};
use crate::histogram::Histogram;
use crate::matrix::{Matrix, Member, Tile};
use crate::values::Values;
use crate::workers;

/// Weights that are read at a time: those of the tensors that a thread reads side by side stay in its
/// own cache.
const PIECE_WEIGHTS: usize = 1 << 16;
/// Samples of a matrix that its coding is guessed from, and the weights of each.
const SAMPLES: u64 = 8;
const SAMPLE_WEIGHTS: u64 = 1 << 14;

/// What is known of a matrix before it is packed.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) coding: Coding,
    /// The sha256 of each tensor's bf16 bytes, as the model holds it.
    pub(crate) digests: Vec<Digest>,
    /// Where each strip's part of the list starts, in units, and where the last one ends.
    pub(crate) starts: Vec<u64>,
}

impl Measured {
    /// Units of the whole list.
    pub(crate) fn list_units(&self) -> u64 {
        self.coding.layout().list_units(self.starts.last().copied().unwrap_or(0))
    }

    /// Bytes of a buffer.
    pub(crate) fn buffer_bytes(&self, matrix: &Matrix<'_>, buffer: Buffer) -> u64 {
        let layout = self.coding.layout();
        match buffer {
            Buffer::Data => layout.data_bytes(matrix.grid),
            Buffer::List => self.list_units() * layout.list_unit_bytes() as u64,
            Buffer::Base => layout.base_entries(matrix.grid) * glyd_format::layout::BASE_BYTES as u64,
        }
    }
}

/// What a tensor's weights say.
struct Count {
    digest: Digest,
    histogram: Histogram,
    /// Units of each strip's part of the list, by the coding that was guessed; none where they could not
    /// be counted.
    units: Vec<u64>,
}

/// Measures matrices: each tensor is read once, the largest first.
pub(crate) fn measure(
    pool: &ThreadPool,
    weights: &Weights,
    matrices: &[&Matrix<'_>],
    layout: Layout,
    progress: &dyn Progress,
) -> Result<Vec<Measured>> {
    let guesses = workers::run(
        pool,
        matrices,
        || Values::new(weights),
        |values, matrix| guess(values, matrix, layout),
    )?;

    let mut tasks: Vec<(usize, usize)> = Vec::new();
    for (number, matrix) in matrices.iter().enumerate() {
        tasks.extend((0..matrix.members.len()).map(|member| (number, member)));
    }
    tasks.sort_by_key(|&(number, member)| std::cmp::Reverse(matrices[number].members[member].weights()));
    let counts = workers::hash(
        pool,
        &tasks,
        |&(number, member)| {
            Reading::new(weights, &matrices[number].members[member], guesses[number], progress)
        },
        |reading, digest| reading.finish(digest),
    )?;

    let mut gathered: Vec<Vec<(usize, Count)>> = matrices.iter().map(|_| Vec::new()).collect();
    for (&(number, member), count) in tasks.iter().zip(counts) {
        gathered[number].push((member, count));
    }
    let mut measured = Vec::with_capacity(matrices.len());
    for ((matrix, guess), mut counts) in matrices.iter().zip(&guesses).zip(gathered) {
        counts.sort_by_key(|(member, _)| *member);
        let mut histogram = Histogram::default();
        counts.iter().for_each(|(_, count)| histogram.merge(&count.histogram));
        let coding = histogram.coding(layout);
        let digests = counts.iter().map(|(_, count)| count.digest).collect();
        let counted = counts.iter().all(|(_, count)| !count.units.is_empty());
        let units = if counted && histogram.same_lists(guess, &coding) {
            counts.into_iter().flat_map(|(_, count)| count.units).collect()
        } else {
            // The sample misled, or lines are too long: the strips are encoded to see.
            strip_units(pool, weights, matrix, coding, progress)?
        };
        let mut starts = vec![layout.list_head_units()];
        starts.extend(units.into_iter().scan(layout.list_head_units(), |end, units| {
            *end += units;
            Some(*end)
        }));
        measured.push(Measured { coding, digests, starts });
    }
    Ok(measured)
}

/// The coding that a sample of the matrix suggests.
fn guess<'a>(values: &mut Values<'a>, matrix: &Matrix<'a>, layout: Layout) -> Result<Coding> {
    let mut histogram = Histogram::default();
    let mut sample = Vec::new();
    for member in &matrix.members {
        let weights = member.weights();
        let each = SAMPLE_WEIGHTS.min(weights);
        sample.resize(usize::try_from(each).unwrap_or(usize::MAX), 0);
        for at in 0..SAMPLES {
            member.read(values, (weights - each) / (SAMPLES - 1) * at, &mut sample)?;
            histogram.add(&sample);
            if each == weights {
                break;
            }
        }
    }
    Ok(histogram.coding(layout))
}

/// A tensor while it is read once, as it is held: hashed, and counted.
struct Reading<'a> {
    values: Values<'a>,
    member: &'a Member<'a>,
    progress: &'a dyn Progress,
    counts: Counts,
    /// Units of the list of each strip.
    units: Vec<u64>,
    /// Groups of lines that were counted.
    groups: u64,
    piece: Vec<u16>,
    /// Weights that were read.
    read: u64,
}

impl<'a> Reading<'a> {
    fn new(weights: &'a Weights, member: &'a Member<'a>, guess: Coding, progress: &'a dyn Progress) -> Self {
        Reading {
            values: Values::new(weights),
            member,
            progress,
            counts: Counts::new(member.lines(), guess),
            units: Vec::new(),
            groups: 0,
            piece: Vec::new(),
            read: 0,
        }
    }

    fn finish(self, digest: Digest) -> Count {
        Count { digest, histogram: self.counts.into_histogram(), units: self.units }
    }
}

impl Stream for Reading<'_> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.progress.stopped() {
            return Err(Error::Interrupted);
        }
        let left = usize::try_from(self.member.weights() - self.read).unwrap_or(usize::MAX);
        let here = left.min(PIECE_WEIGHTS);
        if here == 0 {
            return Ok(None);
        }
        self.piece.resize(here, 0);
        self.member.read(&mut self.values, self.read, &mut self.piece)?;
        self.read += here as u64;
        let (member, groups, units) = (self.member, &mut self.groups, &mut self.units);
        self.counts.add(&self.piece, |steps| {
            units.resize(usize::try_from(member.strips).unwrap_or(usize::MAX), 0);
            for (step, own) in (0..).zip(steps) {
                let strip = member.strip_of(*groups, step);
                units[usize::try_from(strip).unwrap_or(usize::MAX)] += own;
            }
            *groups += 1;
        });
        // Half of the work on what is packed: the other half is to pack it.
        self.progress.advance((here * WEIGHT_BYTES) as u64 / 2);
        Ok(Some(bytemuck::cast_slice(&self.piece)))
    }
}

/// Units of the list of each strip of a matrix, by encoding it.
fn strip_units(
    pool: &ThreadPool,
    weights: &Weights,
    matrix: &Matrix<'_>,
    coding: Coding,
    progress: &dyn Progress,
) -> Result<Vec<u64>> {
    let encoder = Encoder::new(coding);
    let scratch = || (Values::new(weights), Vec::new(), Encoded::default());
    let tiles = matrix.tiles();
    let units = workers::run(pool, &tiles, scratch, |(values, rows, encoded), &tile: &Tile| {
        let strips = usize::try_from(tile.strips).unwrap_or(usize::MAX);
        let mut units = vec![0; strips];
        let mut column = 0;
        while column < matrix.grid.columns() {
            if progress.stopped() {
                return Err(Error::Interrupted);
            }
            let end = (column + tile.columns).min(matrix.grid.columns());
            matrix.members[tile.member].read_tile(values, tile, column..end, rows)?;
            let wide = rows.len() / STEP_ROWS / strips;
            for (units, rows) in units.iter_mut().zip(rows.chunks_exact(STEP_ROWS * wide)) {
                encoded.begin(coding.layout(), wide / STEP_COLUMNS);
                encoder.encode(rows, wide, wide / STEP_COLUMNS, encoded);
                *units += encoded.units();
            }
            column = end;
        }
        Ok(units)
    })?;
    Ok(units.into_iter().flatten().collect())
}
