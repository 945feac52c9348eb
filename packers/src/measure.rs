//! The first pass over what is packed: hashes, histograms, and how long each strip's part of the list
//! will be, so that every byte's place in the files is known before any is written.

use glyd_format::digest::Stream;
use glyd_format::header::tensor_bytes;
use glyd_format::plan::Plain;
use glyd_format::step::{STEP_COLUMNS, STEP_ROWS, WEIGHT_BYTES};
use glyd_format::weights::Weights;
use glyd_format::{Buffer, Coding, Digest, Dtype, Layout, Progress};
use rayon::ThreadPool;

use crate::count::Counts;
use crate::encode::{Encoded, Encoder};
use crate::error::{Error, Result};
use crate::histogram::Histogram;
use crate::matrix::{Matrix, Member, Tile};
use crate::values::Values;
use crate::workers;
use crate::write::piece_elements;

/// Bytes of a tensor that are read at a time: those of the tensors that a thread reads side by side stay
/// in its own cache.
const PIECE_BYTES: u64 = 1 << 16;
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

/// What is measured of the puts of a plan.
pub(crate) struct Puts<'a, 'b> {
    pub(crate) matrices: &'b [&'b Matrix<'a>],
    /// Tensors that are saved as they are: hashed beside the others.
    pub(crate) plain: &'b [&'a Plain],
}

/// What a tensor's weights say.
struct Count {
    digest: Digest,
    histogram: Histogram,
    /// Units of each strip's part of the list, by the coding that was guessed; none where they could not
    /// be counted.
    units: Vec<u64>,
}

/// Measures puts: each tensor is read once, the largest first. Returns what is known of each matrix, and the
/// sha256 of each plain tensor.
pub(crate) fn measure<'a>(
    pool: &ThreadPool,
    weights: &'a Weights,
    puts: &Puts<'a, '_>,
    layout: Layout,
    progress: &dyn Progress,
) -> Result<(Vec<Measured>, Vec<Digest>)> {
    let Puts { matrices, plain } = *puts;
    let guesses = workers::run(
        pool,
        matrices,
        || Values::new(weights),
        |values, matrix| guess(values, matrix, layout),
    )?;

    let mut tasks: Vec<Task> = (0..plain.len()).map(|number| Task::Plain { number }).collect();
    for (matrix, own) in matrices.iter().enumerate() {
        tasks.extend((0..own.members.len()).map(|member| Task::Member { matrix, member }));
    }
    tasks.sort_by_key(|&task| std::cmp::Reverse(puts.bytes(task)));
    let begin = |task: &Task| match *task {
        Task::Plain { number } => Reading::Plain(Hashing::new(weights, plain[number], progress)),
        Task::Member { matrix, member } => {
            let member = &matrices[matrix].members[member];
            Reading::Member(Box::new(Counting::new(weights, member, guesses[matrix], progress)))
        }
    };
    let counts = workers::hash(pool, &tasks, begin, Reading::finish)?;

    let mut digests = vec![None; plain.len()];
    let mut gathered: Vec<Vec<(usize, Count)>> = matrices.iter().map(|_| Vec::new()).collect();
    for (&task, count) in tasks.iter().zip(counts) {
        match task {
            Task::Plain { number } => digests[number] = Some(count.digest),
            Task::Member { matrix, member } => gathered[matrix].push((member, count)),
        }
    }
    let measured = matrices.iter().zip(&guesses).zip(gathered).map(|((matrix, guess), mut counts)| {
        counts.sort_by_key(|(member, _)| *member);
        let counts = counts.into_iter().map(|(_, count)| count).collect();
        conclude(pool, weights, matrix, guess, counts, progress)
    });
    Ok((measured.collect::<Result<_>>()?, digests.into_iter().flatten().collect()))
}

/// A tensor that is read: of those saved as they are, or a matrix's.
#[derive(Clone, Copy)]
enum Task {
    Plain { number: usize },
    Member { matrix: usize, member: usize },
}

impl Puts<'_, '_> {
    fn bytes(&self, task: Task) -> u64 {
        match task {
            Task::Plain { number } => {
                tensor_bytes(self.plain[number].dtype, &self.plain[number].shape).unwrap_or(u64::MAX)
            }
            Task::Member { matrix, member } => {
                self.matrices[matrix].members[member].weights() * WEIGHT_BYTES as u64
            }
        }
    }
}

/// What a matrix's tensors say of it.
fn conclude(
    pool: &ThreadPool,
    weights: &Weights,
    matrix: &Matrix<'_>,
    guess: &Coding,
    counts: Vec<Count>,
    progress: &dyn Progress,
) -> Result<Measured> {
    let layout = guess.layout();
    let mut histogram = Histogram::default();
    counts.iter().for_each(|count| histogram.merge(&count.histogram));
    let coding = histogram.coding(layout);
    let digests = counts.iter().map(|count| count.digest).collect();
    let counted = counts.iter().all(|count| !count.units.is_empty());
    let units = if counted && histogram.same_lists(guess, &coding) {
        counts.into_iter().flat_map(|count| count.units).collect()
    } else {
        // The sample misled, or lines are too long: the strips are encoded to see.
        strip_units(pool, weights, matrix, coding, progress)?
    };
    let mut starts = vec![layout.list_head_units()];
    starts.extend(units.into_iter().scan(layout.list_head_units(), |end, units| {
        *end += units;
        Some(*end)
    }));
    Ok(Measured { coding, digests, starts })
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

/// A tensor while it is read.
enum Reading<'a> {
    Plain(Hashing<'a>),
    Member(Box<Counting<'a>>),
}

impl Reading<'_> {
    fn finish(self, digest: Digest) -> Count {
        match self {
            Reading::Plain(_) => Count { digest, histogram: Histogram::default(), units: Vec::new() },
            Reading::Member(counting) => {
                Count { digest, histogram: counting.counts.into_histogram(), units: counting.units }
            }
        }
    }
}

impl Stream for Reading<'_> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<&[u8]>> {
        match self {
            Reading::Plain(hashing) => hashing.next(),
            Reading::Member(counting) => counting.next(),
        }
    }

    fn held_bytes(&self) -> u64 {
        match self {
            Reading::Plain(hashing) => hashing.held_bytes(),
            Reading::Member(counting) => counting.held_bytes(),
        }
    }
}

/// A plain tensor while it is hashed, as it will be saved.
struct Hashing<'a> {
    values: Values<'a>,
    plain: &'a Plain,
    progress: &'a dyn Progress,
    piece: Vec<u8>,
    /// Elements that were read.
    read: u64,
}

impl<'a> Hashing<'a> {
    fn new(weights: &'a Weights, plain: &'a Plain, progress: &'a dyn Progress) -> Self {
        Hashing { values: Values::new(weights), plain, progress, piece: Vec::new(), read: 0 }
    }
}

impl Stream for Hashing<'_> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.progress.stopped() {
            return Err(Error::Interrupted);
        }
        let some = piece_elements(self.plain, PIECE_BYTES);
        let here = some.min(self.plain.value.elements() - self.read);
        if here == 0 {
            return Ok(None);
        }
        let bytes = here * self.plain.dtype.bitsize() as u64 / 8;
        self.piece.resize(usize::try_from(bytes).unwrap_or(usize::MAX), 0);
        self.values.read(&self.plain.value, self.plain.dtype, self.read, &mut self.piece)?;
        self.read += here;
        // The half of the work that is not to copy it.
        self.progress.advance(bytes / 2);
        Ok(Some(&self.piece))
    }

    fn held_bytes(&self) -> u64 {
        let elements = piece_elements(self.plain, PIECE_BYTES);
        PIECE_BYTES + Values::held_bytes(&self.plain.value, self.plain.dtype, elements)
    }
}

/// A matrix's tensor while it is read, as it is held: hashed, and counted.
struct Counting<'a> {
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

impl<'a> Counting<'a> {
    fn new(weights: &'a Weights, member: &'a Member<'a>, guess: Coding, progress: &'a dyn Progress) -> Self {
        Counting {
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
}

impl Stream for Counting<'_> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.progress.stopped() {
            return Err(Error::Interrupted);
        }
        let left = self.member.weights() - self.read;
        let here = usize::try_from(left.min(PIECE_BYTES / WEIGHT_BYTES as u64)).unwrap_or(usize::MAX);
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

    fn held_bytes(&self) -> u64 {
        let weights = PIECE_BYTES / WEIGHT_BYTES as u64;
        let values = Values::held_bytes(&self.member.part.value, Dtype::BF16, weights);
        PIECE_BYTES + self.counts.held_bytes() + values
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
