//! Matrices encoded run by run, whatever the layout, and each run decoded again before it is let go.

use glyd_format::layout::{Flaw, Run};
use glyd_format::simd::Simd;
use glyd_format::step::{STEP_COLUMNS, STEP_ROWS, Step};
use glyd_format::{Coding, Layout, for_each_simd};

use crate::{mma, mma12};

/// Encodes the steps of one matrix.
#[derive(Debug, Clone)]
pub struct Encoder {
    coding: Coding,
    of: Of,
}

#[derive(Debug, Clone)]
enum Of {
    Mma(Box<mma::Encoder>),
    Mma12(Box<mma12::Encoder>),
}

/// A run of encoded steps: what goes into each buffer.
#[derive(Debug, Default)]
pub struct Encoded {
    /// The data buffer's part.
    pub data: Vec<u8>,
    /// The list's part.
    pub list: Vec<u8>,
    /// Where each step's part of the list starts, in units, from the run's first; and where the last ends.
    pub bases: Vec<i32>,
}

impl Encoded {
    /// Empties the buffers, and keeps their memory.
    pub fn clear(&mut self) {
        self.data.clear();
        self.list.clear();
        self.bases.clear();
    }

    /// The run, as the decoder takes it.
    #[must_use]
    pub fn run(&self) -> Run<'_> {
        Run { data: &self.data, list: &self.list, bases: &self.bases }
    }

    /// Units of the list's part.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.bases.last().map_or(0, |&units| u64::from(units.unsigned_abs()))
    }
}

impl Encoder {
    /// The encoder of a matrix of this coding.
    #[must_use]
    pub fn new(coding: Coding) -> Self {
        let of = match coding {
            Coding::Mma(tiers) => Of::Mma(Box::new(mma::Encoder::new(&tiers))),
            Coding::Mma12(base) => Of::Mma12(Box::new(mma12::Encoder::new(base))),
        };
        Encoder { coding, of }
    }

    /// The coding that its steps are decoded by.
    #[must_use]
    pub fn coding(&self) -> &Coding {
        &self.coding
    }

    /// What some weights of a step add to its counts: a step's whole is the sum of its parts.
    #[must_use]
    pub fn counts(&self, weights: &[u16]) -> u64 {
        match &self.of {
            Of::Mma(encoder) => encoder.counts(weights),
            Of::Mma12(encoder) => encoder.exceptions(weights),
        }
    }

    /// Units that a step of these counts takes of the list.
    #[must_use]
    pub fn units(&self, counts: u64) -> u64 {
        match self.of {
            Of::Mma(_) => mma::Encoder::block_bytes(counts) as u64,
            Of::Mma12(_) => counts,
        }
    }

    /// Encodes a run of `steps` steps, whose rows stand `stride` weights apart.
    ///
    /// # Panics
    /// Where `rows` is shorter than the run.
    pub fn encode(&self, rows: &[u16], stride: usize, steps: usize, encoded: &mut Encoded) {
        self.encode_by(Simd::chosen(), rows, stride, steps, encoded);
    }

    /// As [`Encoder::encode`], by this instruction set.
    ///
    /// # Panics
    /// As [`Encoder::encode`].
    pub fn encode_by(&self, simd: Simd, rows: &[u16], stride: usize, steps: usize, encoded: &mut Encoded) {
        encoded.clear();
        encoded.data.resize(steps * self.coding.layout().step_bytes(), 0);
        encode_run_by(simd, self, rows, stride, encoded);
    }

    /// Decodes what was encoded of a run, into `scratch`, and compares it with the run's rows.
    ///
    /// # Errors
    /// The first step that does not come back as it was.
    pub fn check(
        &self,
        rows: &[u16],
        stride: usize,
        encoded: &Encoded,
        scratch: &mut Vec<u16>,
    ) -> Result<(), Flaw> {
        let run = encoded.run();
        let columns = run.steps() * STEP_COLUMNS;
        scratch.clear();
        scratch.resize(STEP_ROWS * columns, 0);
        self.coding.decode(&run, scratch, columns)?;
        for (row, decoded) in scratch.chunks_exact(columns.max(1)).enumerate() {
            let weights = &rows[row * stride..row * stride + columns];
            if let Some(column) = decoded.iter().zip(weights).position(|(decoded, weight)| decoded != weight)
            {
                return Err(Flaw {
                    step: column / STEP_COLUMNS,
                    form_only: false,
                    expected: format!("weight {:#06x} at row {row}, column {column}", weights[column]),
                    found: format!("{:#06x}", decoded[column]),
                });
            }
        }
        Ok(())
    }
}

for_each_simd! {
    fn encode_run_by(encoder: &Encoder, rows: &[u16], stride: usize, encoded: &mut Encoded) -> () = encode_run;
}

#[inline(always)]
fn encode_run(simd: Simd, encoder: &Encoder, rows: &[u16], stride: usize, encoded: &mut Encoded) {
    let layout = encoder.coding.layout();
    let unit_bytes = layout.list_unit_bytes();
    let mut step = Step::default();
    encoded.bases.push(0);
    for (at, data) in encoded.data.chunks_exact_mut(layout.step_bytes()).enumerate() {
        step.gather(&rows[at * STEP_COLUMNS..], stride);
        match &encoder.of {
            Of::Mma(encoder) => encoder.encode(simd, &step, data, &mut encoded.list),
            Of::Mma12(encoder) => encoder.encode(&step, data, &mut encoded.list),
        }
        let units = encoded.list.len() / unit_bytes;
        encoded.bases.push(i32::try_from(units).expect("a run has fewer than 2^31 weights"));
    }
}

/// A whole matrix packed, for tests and measurements: its coding and its three buffers.
#[derive(Debug)]
pub struct MatrixBuffers {
    /// What it is decoded by.
    pub coding: Coding,
    /// The data buffer.
    pub data: Vec<u8>,
    /// The list.
    pub list: Vec<u8>,
    /// The base buffer.
    pub base: Vec<i32>,
}

/// Packs a matrix in memory: `weights` by rows of `columns`.
///
/// # Panics
/// Where the matrix is none of whole steps, or its list is longer than the layout takes.
#[must_use]
pub fn pack_matrix(layout: Layout, weights: &[u16], columns: usize) -> MatrixBuffers {
    assert!(columns > 0 && columns.is_multiple_of(STEP_COLUMNS), "columns of whole steps");
    assert!(weights.len().is_multiple_of(STEP_ROWS * columns), "rows of whole steps");
    let mut histogram = crate::histogram::Histogram::default();
    histogram.add(weights);
    let encoder = Encoder::new(histogram.coding(layout));
    let unit_bytes = layout.list_unit_bytes();
    let head = layout.list_head_units();
    let mut packed =
        MatrixBuffers { coding: encoder.coding, data: Vec::new(), list: Vec::new(), base: Vec::new() };
    packed.list.resize(usize::try_from(head).expect("a few bytes") * unit_bytes, 0);
    let mut encoded = Encoded::default();
    let entry = |list: &[u8]| i32::try_from(list.len() / unit_bytes).expect("a list that the layout takes");
    for strip in weights.chunks_exact(STEP_ROWS * columns) {
        encoder.encode(strip, columns, columns / STEP_COLUMNS, &mut encoded);
        let first = entry(&packed.list);
        packed.base.extend(encoded.bases[..encoded.bases.len() - 1].iter().map(|base| first + base));
        packed.data.extend_from_slice(&encoded.data);
        packed.list.extend_from_slice(&encoded.list);
    }
    packed.base.push(entry(&packed.list));
    let units = layout.list_units((packed.list.len() / unit_bytes) as u64);
    packed.list.resize(usize::try_from(units).expect("it fits in memory") * unit_bytes, 0);
    packed
}
