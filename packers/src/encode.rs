//! Matrices encoded run by run, whatever the layout, and each run decoded again before it is let go.

use glyd_format::layout::{Flaw, Run};
use glyd_format::simd::{Kernels, Simd};
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
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The data buffer's part.
    pub data: Vec<u8>,
    /// The list's part.
    pub list: Vec<u8>,
    /// Where each step's part of the list starts, in units, from the run's first; and where the last ends.
    pub bases: Vec<i32>,
}

impl Encoded {
    /// Begins a run of `steps` steps of a layout; the buffers' memory is kept.
    pub fn begin(&mut self, layout: Layout, steps: usize) {
        // Every byte of it is written: what was there need not be zero.
        self.data.resize(steps * layout.step_bytes(), 0);
        self.list.clear();
        self.bases.clear();
        self.bases.push(0);
    }

    /// The run, as the decoder takes it.
    #[must_use]
    pub fn run(&self) -> Run<'_> {
        Run { data: &self.data, list: &self.list, bases: &self.bases }
    }

    /// The run from the step `step` on.
    fn run_from(&self, layout: Layout, step: usize) -> Run<'_> {
        let bases = &self.bases[step..];
        let list = usize::try_from(bases[0]).expect("bases count from 0");
        Run {
            data: &self.data[step * layout.step_bytes()..],
            list: &self.list[list * layout.list_unit_bytes()..],
            bases,
        }
    }

    /// Steps that are encoded.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.bases.len().saturating_sub(1)
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

    /// Encodes the next `steps` steps of a run, whose rows stand `stride` weights apart.
    ///
    /// # Panics
    /// Where `rows` is shorter than the steps, or more steps come than the run was begun for.
    pub fn encode(&self, rows: &[u16], stride: usize, steps: usize, encoded: &mut Encoded) {
        self.encode_by(Simd::chosen(), rows, stride, steps, encoded);
    }

    /// As [`Encoder::encode`], by this instruction set.
    ///
    /// # Panics
    /// As [`Encoder::encode`].
    pub fn encode_by(&self, simd: Simd, rows: &[u16], stride: usize, steps: usize, encoded: &mut Encoded) {
        encode_run_by(simd, self, rows, stride, steps, encoded);
    }

    /// Encodes the next `steps` steps of a run, decodes them again and compares them with their rows.
    ///
    /// # Errors
    /// The first step, counted from the run's first, that does not come back as it was.
    ///
    /// # Panics
    /// As [`Encoder::encode`].
    pub fn encode_checked(
        &self,
        rows: &[u16],
        stride: usize,
        steps: usize,
        encoded: &mut Encoded,
    ) -> Result<(), Flaw> {
        let mut scratch = [0; STEP_ROWS * STEP_COLUMNS * CHECKED_STEPS];
        for step in (0..steps).step_by(CHECKED_STEPS) {
            let rows = &rows[step * STEP_COLUMNS..];
            let first = encoded.steps();
            let here = CHECKED_STEPS.min(steps - step);
            self.encode(rows, stride, here, encoded);
            let columns = here * STEP_COLUMNS;
            let decoded = &mut scratch[..STEP_ROWS * columns];
            let in_run = |flaw: Flaw| Flaw { step: first + flaw.step, ..flaw };
            self.coding.decode(&encoded.run_from(self.layout(), first), decoded, columns).map_err(in_run)?;
            for (row, decoded) in decoded.chunks_exact(columns).enumerate() {
                let weights = &rows[row * stride..row * stride + columns];
                if weights != decoded {
                    return Err(in_run(difference(row, weights, decoded)));
                }
            }
        }
        Ok(())
    }

    fn layout(&self) -> Layout {
        self.coding.layout()
    }
}

/// Steps that are encoded and decoded again before the next: their rows stay in the nearest cache.
const CHECKED_STEPS: usize = 8;

fn difference(row: usize, weights: &[u16], decoded: &[u16]) -> Flaw {
    let column = decoded.iter().zip(weights).position(|(decoded, weight)| decoded != weight).unwrap_or(0);
    Flaw {
        step: column / STEP_COLUMNS,
        form_only: false,
        expected: format!("weight {:#06x} at row {row}, column {column}", weights[column]),
        found: format!("{:#06x}", decoded[column]),
    }
}

for_each_simd! {
    fn encode_run_by(encoder: &Encoder, rows: &[u16], stride: usize, steps: usize, encoded: &mut Encoded) -> () = encode_run;
}

#[inline(always)]
fn encode_run<K: Kernels>(
    kernels: K,
    encoder: &Encoder,
    rows: &[u16],
    stride: usize,
    steps: usize,
    encoded: &mut Encoded,
) {
    let layout = encoder.layout();
    let (unit_bytes, step_bytes) = (layout.list_unit_bytes(), layout.step_bytes());
    let first = encoded.steps() * step_bytes;
    let data = &mut encoded.data[first..first + steps * step_bytes];
    let (mut a, mut b) = (Step::default(), Step::default());
    // Two steps are a cache line of a row.
    for (pair, data) in data.chunks_mut(2 * step_bytes).enumerate() {
        let rows = &rows[2 * pair * STEP_COLUMNS..];
        if data.len() == step_bytes {
            kernels.gather(rows, stride, &mut a.high, &mut a.low);
        } else {
            kernels.gather_two(rows, stride, [&mut a.high, &mut b.high], [&mut a.low, &mut b.low]);
        }
        for (step, data) in [&a, &b].into_iter().zip(data.chunks_exact_mut(step_bytes)) {
            match &encoder.of {
                Of::Mma(encoder) => encoder.encode(kernels, step, data, &mut encoded.list),
                Of::Mma12(encoder) => encoder.encode(step, data, &mut encoded.list),
            }
            let units = encoded.list.len() / unit_bytes;
            encoded.bases.push(i32::try_from(units).expect("a run has fewer than 2^31 weights"));
        }
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
        encoded.begin(layout, columns / STEP_COLUMNS);
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
