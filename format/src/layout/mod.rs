//! The two layouts of a packed matrix: their buffers' names, dtypes and lengths, and how steps are
//! read back. `docs/format.md`, section 4.

pub mod mma;
pub mod mma12;

use std::fmt;
use std::str::FromStr;

use safetensors::Dtype;

use crate::for_each_simd;
use crate::simd::{Kernels, Simd};
use crate::step::{Grid, STEP_COLUMNS, Step};

/// How a matrix is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// Tiered: about 10.8 bits a weight.
    Mma,
    /// Split byte: about 12 bits a weight.
    Mma12,
}

/// One of the three buffers of a pack, by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffer {
    /// The same number of bytes for every step.
    Data,
    /// What differs in length from step to step: `blocks`, or `exc`.
    List,
    /// Where each step's part of the list starts: `block_base`, or `exc_base`.
    Base,
}

impl Buffer {
    /// The three, in the order in which they are put.
    pub const ALL: [Buffer; 3] = [Buffer::Data, Buffer::List, Buffer::Base];
}

impl Layout {
    /// Both.
    pub const ALL: [Layout; 2] = [Layout::Mma, Layout::Mma12];

    /// The name in `glyd.json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Mma => "mma",
            Layout::Mma12 => "mma12",
        }
    }

    /// The last part of a buffer's name.
    #[must_use]
    pub const fn buffer_name(self, buffer: Buffer) -> &'static str {
        match (self, buffer) {
            (_, Buffer::Data) => "data",
            (Layout::Mma, Buffer::List) => "blocks",
            (Layout::Mma, Buffer::Base) => "block_base",
            (Layout::Mma12, Buffer::List) => "exc",
            (Layout::Mma12, Buffer::Base) => "exc_base",
        }
    }

    /// A buffer's dtype.
    #[must_use]
    pub const fn dtype(self, buffer: Buffer) -> Dtype {
        match (self, buffer) {
            (_, Buffer::Data) | (Layout::Mma, Buffer::List) => Dtype::U8,
            _ => Dtype::I32,
        }
    }

    /// Bytes of the data buffer that a step takes.
    #[must_use]
    pub const fn step_bytes(self) -> usize {
        match self {
            Layout::Mma => mma::STEP_BYTES,
            Layout::Mma12 => mma12::STEP_BYTES,
        }
    }

    /// Bytes of one unit in which the base buffer counts the list.
    #[must_use]
    pub const fn list_unit_bytes(self) -> usize {
        match self {
            Layout::Mma => 1,
            Layout::Mma12 => BASE_BYTES,
        }
    }

    /// The most units that a step's part of the list takes.
    #[must_use]
    pub const fn step_list_units(self) -> usize {
        match self {
            Layout::Mma => mma::BLOCK_BYTES_MAX,
            Layout::Mma12 => crate::step::STEP_WEIGHTS,
        }
    }

    /// The first entry of the base buffer: units before the first step's part of the list.
    #[must_use]
    pub const fn list_head_units(self) -> u64 {
        match self {
            Layout::Mma => mma::HEAD_BYTES as u64,
            Layout::Mma12 => 0,
        }
    }

    /// Units of the whole list whose steps' parts end at `end` (the base buffer's last entry).
    #[must_use]
    pub const fn list_units(self, end: u64) -> u64 {
        match self {
            Layout::Mma => end + mma::TAIL_BYTES as u64,
            Layout::Mma12 => mma12::padded_count(end),
        }
    }

    /// The most units of a list: what the 32-bit entries of the base buffer count, and for `mma` its
    /// zero bytes as well.
    #[must_use]
    pub const fn list_units_max(self) -> u64 {
        match self {
            Layout::Mma => i32::MAX as u64,
            Layout::Mma12 => mma12::padded_count(i32::MAX as u64),
        }
    }

    /// Bytes of the data buffer of a matrix.
    #[must_use]
    pub fn data_bytes(self, grid: Grid) -> u64 {
        grid.steps() * self.step_bytes() as u64
    }

    /// Entries of the base buffer of a matrix.
    #[must_use]
    pub fn base_entries(self, grid: Grid) -> u64 {
        grid.steps() + 1
    }
}

/// Bytes of an entry of the base buffer, and of an exception.
pub const BASE_BYTES: usize = 4;

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Layout::ALL
            .into_iter()
            .find(|layout| layout.name() == name)
            .ok_or_else(|| format!("expected `mma` or `mma12`, found `{name}`"))
    }
}

/// What a matrix's weights are decoded by, beside its buffers: kept in `glyd.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Of `mma`.
    Mma(mma::Tiers),
    /// Of `mma12`.
    Mma12(mma12::Base),
}

/// A run of neighbouring steps of one strip, as a pack's buffers hold them.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The steps' part of the data buffer.
    pub data: &'a [u8],
    /// The steps' part of the list.
    pub list: &'a [u8],
    /// The steps' entries of the base buffer, and the one after them.
    pub bases: &'a [i32],
}

impl<'a> Run<'a> {
    /// Steps of the run.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.bases.len().saturating_sub(1)
    }

    /// The bytes of step `step` of the run: its data, and its part of the list.
    fn step(&self, layout: Layout, step: usize) -> Option<(&'a [u8], &'a [u8])> {
        let bytes = layout.step_bytes();
        let data = self.data.get(step * bytes..(step + 1) * bytes)?;
        let first = i64::from(*self.bases.first()?);
        let offset = |at: usize| {
            let units = usize::try_from(i64::from(*self.bases.get(at)?) - first).ok()?;
            units.checked_mul(layout.list_unit_bytes())
        };
        let list = self.list.get(offset(step)?..offset(step + 1)?)?;
        Some((data, list))
    }
}

/// Why a step cannot be read back: what its layout asks for, and what is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// The step, counted from the run's first.
    pub step: usize,
    /// Whether the weights would decode all the same: only the form is not the one that is written.
    pub form_only: bool,
    /// What must hold.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl Coding {
    /// The layout it belongs to.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        match self {
            Coding::Mma(_) => Layout::Mma,
            Coding::Mma12(_) => Layout::Mma12,
        }
    }

    /// Decodes a run of steps into rows that stand `stride` weights apart: the run's first column is
    /// `rows[0]`.
    ///
    /// # Errors
    /// The first step that is not as its layout writes it (`docs/format.md`, section 7, rules 6 and 8).
    ///
    /// # Panics
    /// Where `rows` is shorter than the run's steps in 64 rows of `stride`.
    pub fn decode(&self, run: &Run<'_>, rows: &mut [u16], stride: usize) -> Result<(), Flaw> {
        self.decode_by(Simd::chosen(), run, rows, stride)
    }

    /// As [`Coding::decode`], by this instruction set.
    ///
    /// # Errors
    /// As [`Coding::decode`]'s.
    ///
    /// # Panics
    /// As [`Coding::decode`].
    pub fn decode_by(&self, simd: Simd, run: &Run<'_>, rows: &mut [u16], stride: usize) -> Result<(), Flaw> {
        decode_run_by(simd, self, run, rows, stride)
    }
}

for_each_simd! {
    fn decode_run_by(coding: &Coding, run: &Run<'_>, rows: &mut [u16], stride: usize) -> Result<(), Flaw> = decode_run;
}

#[inline(always)]
fn decode_run<K: Kernels>(
    kernels: K,
    coding: &Coding,
    run: &Run<'_>,
    rows: &mut [u16],
    stride: usize,
) -> Result<(), Flaw> {
    // Two steps are a cache line of a row: what is written to one half of it finds it for the other.
    let (mut a, mut b) = (Step::default(), Step::default());
    let steps = run.steps();
    for step in (0..steps).step_by(2) {
        let rows = &mut rows[step * STEP_COLUMNS..];
        decode_step(kernels, coding, run, step, &mut a)?;
        if step + 1 < steps {
            decode_step(kernels, coding, run, step + 1, &mut b)?;
            kernels.scatter_two([&a.high, &b.high], [&a.low, &b.low], rows, stride);
        } else {
            kernels.scatter(&a.high, &a.low, rows, stride);
        }
    }
    Ok(())
}

// No closure: one would be compiled for no instruction set.
#[inline(always)]
fn decode_step<K: Kernels>(
    kernels: K,
    coding: &Coding,
    run: &Run<'_>,
    step: usize,
    weights: &mut Step,
) -> Result<(), Flaw> {
    let (data, list) = run.step(coding.layout(), step).ok_or_else(|| Flaw {
        step,
        form_only: false,
        expected: "data and a rising list of the run's length".to_owned(),
        found: format!("{} and {} bytes", run.data.len(), run.list.len()),
    })?;
    match coding {
        Coding::Mma(tiers) => mma::decode_step(kernels, tiers, data, list, weights),
        Coding::Mma12(base) => mma12::decode_step(*base, data, list, weights),
    }
    .map_err(|flaw| Flaw { step, ..flaw })
}
