//! The first pass over what is packed: hashes, histograms, and how long each strip's part of the list
//! will be, so that every byte's place in the files is known before any is written.

use glyd_format::step::{STEP_ROWS, WEIGHT_BYTES};
use glyd_format::{Buffer, Coding, Digest, Hasher, Layout, Progress};
use rayon::ThreadPool;

use crate::encode::Encoder;
use crate::error::{Error, Result};
use crate::histogram::Histogram;
use crate::matrix::{Matrix, Member};
use crate::values::Values;
use crate::workers;
use glyd_format::weights::Weights;

/// Weights that are read at a time.
const CHUNK_WEIGHTS: usize = 1 << 19;
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
    /// Units of each strip's part of the list, by the coding that was guessed.
    units: Vec<u64>,
}

/// Measures matrices, each tensor on a thread of its own, the largest first.
pub(crate) fn measure(
    pool: &ThreadPool,
    weights: &Weights,
    matrices: &[&Matrix<'_>],
    layout: Layout,
    progress: &dyn Progress,
) -> Result<Vec<Measured>> {
    let numbers: Vec<usize> = (0..matrices.len()).collect();
    let guesses = workers::run(
        pool,
        &numbers,
        || Values::new(weights),
        |values, &number| guess(values, matrices[number], layout),
    )?;

    let mut tasks: Vec<(usize, usize)> = Vec::new();
    for (number, matrix) in matrices.iter().enumerate() {
        tasks.extend((0..matrix.members.len()).map(|member| (number, member)));
    }
    tasks.sort_by_key(|&(number, member)| std::cmp::Reverse(matrices[number].members[member].weights()));
    let counts = count_all(pool, weights, matrices, &tasks, &guesses, progress)?;

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
        let mut units: Vec<Vec<u64>> = counts.into_iter().map(|(_, count)| count.units).collect();
        if !histogram.same_lists(guess.coding(), &coding) {
            // The sample misled: count again, by what is now known.
            let members: Vec<(usize, usize)> = (0..matrix.members.len()).map(|member| (0, member)).collect();
            let again = count_all(pool, weights, &[*matrix], &members, &[Encoder::new(coding)], &())?;
            units = again.into_iter().map(|count| count.units).collect();
        }
        let mut starts = vec![layout.list_head_units()];
        starts.extend(units.into_iter().flatten().scan(layout.list_head_units(), |end, units| {
            *end += units;
            Some(*end)
        }));
        measured.push(Measured { coding, digests, starts });
    }
    Ok(measured)
}

/// An encoder for the coding that a sample of the matrix suggests.
fn guess<'a>(values: &mut Values<'a>, matrix: &Matrix<'a>, layout: Layout) -> Result<Encoder> {
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
    Ok(Encoder::new(histogram.coding(layout)))
}

fn count_all(
    pool: &ThreadPool,
    weights: &Weights,
    matrices: &[&Matrix<'_>],
    tasks: &[(usize, usize)],
    encoders: &[Encoder],
    progress: &dyn Progress,
) -> Result<Vec<Count>> {
    let scratch = || (Values::new(weights), vec![0; CHUNK_WEIGHTS]);
    workers::run(pool, tasks, scratch, |(values, chunk), &(number, member)| {
        count(values, &matrices[number].members[member], &encoders[number], chunk, progress)
    })
}

/// Reads a tensor once, as it is held: hashes it, counts its exponents, and the units of its strips.
fn count<'a>(
    values: &mut Values<'a>,
    member: &Member<'a>,
    encoder: &Encoder,
    chunk: &mut [u16],
    progress: &dyn Progress,
) -> Result<Count> {
    let strips = usize::try_from(member.strips).unwrap_or(usize::MAX);
    let mut hasher = Hasher::default();
    let mut histogram = Histogram::default();
    let mut cells = Cells::new(member, strips);
    let mut first = 0;
    let total = member.weights();
    while first < total {
        if progress.stopped() {
            return Err(Error::Interrupted);
        }
        let here = usize::try_from(total - first).unwrap_or(usize::MAX).min(chunk.len());
        let chunk = &mut chunk[..here];
        member.read(values, first, chunk)?;
        hasher.update(bytemuck::cast_slice(chunk));
        histogram.add(chunk);
        cells.add(encoder, chunk);
        first += here as u64;
        // Half of the work on what is packed: the other half is to pack it.
        progress.advance((here * WEIGHT_BYTES) as u64 / 2);
    }
    Ok(Count { digest: hasher.finish(), histogram, units: cells.units })
}

/// The counts of the steps that are being read, line by line.
struct Cells<'a> {
    member: &'a Member<'a>,
    /// What was counted of each step of the group.
    counts: Vec<u64>,
    cell: usize,
    line: u64,
    group: u64,
    units: Vec<u64>,
}

impl<'a> Cells<'a> {
    fn new(member: &'a Member<'a>, strips: usize) -> Self {
        let lines = member.lines();
        let cells = usize::try_from(lines.line_weights).unwrap_or(usize::MAX) / lines.cell_weights;
        Cells { member, counts: vec![0; cells], cell: 0, line: 0, group: 0, units: vec![0; strips] }
    }

    /// Counts the next weights: whole cells, as chunks are of a multiple of their length.
    fn add(&mut self, encoder: &Encoder, weights: &[u16]) {
        let lines = self.member.lines();
        debug_assert!(CHUNK_WEIGHTS.is_multiple_of(STEP_ROWS), "chunks are whole cells");
        for cell in weights.chunks_exact(lines.cell_weights) {
            self.counts[self.cell] += encoder.counts(cell);
            self.cell += 1;
            if self.cell < self.counts.len() {
                continue;
            }
            self.cell = 0;
            self.line += 1;
            if self.line == lines.group_lines {
                self.line = 0;
                self.end_group(encoder);
            }
        }
    }

    fn end_group(&mut self, encoder: &Encoder) {
        for (cell, counts) in (0..).zip(&mut self.counts) {
            let strip = self.member.strip_of(self.group, cell);
            let strip = usize::try_from(strip).unwrap_or(usize::MAX);
            self.units[strip] += encoder.units(std::mem::take(counts));
        }
        self.group += 1;
    }
}
