//! Steps read and decoded, and what may be wrong with them: `docs/format.md`, section 7, rules 6 and 8.

use std::ops::Range;

use glyd_format::finding::{Finding, Rule};
use glyd_format::layout::{BASE_BYTES, Flaw, Run};
use glyd_format::manifest::PackEntry;
use glyd_format::packed::Buffers;
use glyd_format::step::{Grid, STEP_COLUMNS, STEP_ROWS};
use glyd_format::weights::Location;
use glyd_format::{Coding, Invalid, Packed, Progress};

use crate::Error;

/// Steps whose packed bytes are read at a time: they stay in a core's own cache.
const PART_STEPS: u64 = 128;

/// Reads steps back. The verdict rests on it.
pub trait Decoder: Sync {
    /// What it is, for reports.
    fn name(&self) -> &'static str;

    /// Decodes a run of steps into rows that stand `stride` weights apart.
    ///
    /// # Errors
    /// The first step that is not as its layout writes it.
    fn decode(&self, coding: &Coding, run: &Run<'_>, rows: &mut [u16], stride: usize) -> Result<(), Flaw>;
}

/// The decoder of `glyd_format`.
#[derive(Debug, Clone, Copy)]
pub struct Cpu;

impl Decoder for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn decode(&self, coding: &Coding, run: &Run<'_>, rows: &mut [u16], stride: usize) -> Result<(), Flaw> {
        coding.decode(run, rows, stride)
    }
}

/// A tensor in a pack, and which of the matrix's strips are its own.
pub(crate) struct Member<'a> {
    pub(crate) pack: &'a str,
    pub(crate) entry: &'a PackEntry,
    pub(crate) buffers: Buffers,
    pub(crate) grid: Grid,
    pub(crate) tensor: usize,
    pub(crate) strips: Range<u64>,
}

/// What the weights are looked at with.
pub(crate) struct Look<'a> {
    pub(crate) decoder: &'a dyn Decoder,
    pub(crate) packed: &'a Packed,
    pub(crate) progress: &'a dyn Progress,
    /// Weights that are decoded at a time, at the most: a step's or more.
    pub(crate) run_weights: u64,
}

/// Why a tensor was not read to its end: damage, or that it could not be looked at.
pub(crate) enum Stop {
    Damage(Box<Finding>),
    Error(Error),
}

impl From<glyd_format::Error> for Stop {
    fn from(error: glyd_format::Error) -> Self {
        Stop::Error(error.into())
    }
}

/// Memory that steps are decoded in.
#[derive(Default)]
pub(crate) struct Scratch {
    data: Vec<u8>,
    list: Vec<u8>,
    bases: Vec<i32>,
    pub(crate) bytes: Vec<u8>,
}

impl Look<'_> {
    pub(crate) fn check_stopped(&self) -> Result<(), Error> {
        if self.progress.stopped() { Err(Error::Interrupted) } else { Ok(()) }
    }

    pub(crate) fn damage(
        &self,
        rule: Rule,
        at: Location,
        tensor: &str,
        expected: String,
        found: String,
    ) -> Finding {
        let file = Some(self.packed.weights().file(at).path().to_owned());
        Finding::damage(rule, Invalid { file, tensor: Some(tensor.to_owned()), expected, found, hint: None })
    }

    /// Decodes a run of steps of one strip into `rows`; returns their columns.
    pub(crate) fn decode(
        &self,
        scratch: &mut Scratch,
        rows: &mut Vec<u16>,
        member: &Member<'_>,
        run: Range<u64>,
    ) -> Result<usize, Stop> {
        let layout = member.entry.coding.layout();
        let columns = usize::try_from(run.end - run.start).unwrap_or(usize::MAX).saturating_mul(STEP_COLUMNS);
        rows.resize(STEP_ROWS.saturating_mul(columns), 0);
        let mut first = run.start;
        while first < run.end {
            self.check_stopped().map_err(Stop::Error)?;
            let part = first..run.end.min(first + PART_STEPS);
            self.read_bases(scratch, member, &part)?;
            self.read_list(scratch, member, &part)?;
            let steps = scratch.bases.len() - 1;
            scratch.data.resize(steps * layout.step_bytes(), 0);
            let weights = self.packed.weights();
            weights.read_at(member.buffers.data, &mut scratch.data, first * layout.step_bytes() as u64)?;
            let parts = Run { data: &scratch.data, list: &scratch.list, bases: &scratch.bases };
            let at = usize::try_from(first - run.start).unwrap_or(usize::MAX) * STEP_COLUMNS;
            let decoded = self.decoder.decode(&member.entry.coding, &parts, &mut rows[at..], columns);
            decoded.map_err(|flaw| {
                let rule = if flaw.form_only { Rule::Canonical } else { Rule::Lists };
                self.step_damage(rule, member, first + flaw.step as u64, &flaw.expected, flaw.found)
            })?;
            first = part.end;
        }
        Ok(columns)
    }

    fn read_bases(&self, scratch: &mut Scratch, member: &Member<'_>, run: &Range<u64>) -> Result<(), Stop> {
        let entries = usize::try_from(run.end - run.start).unwrap_or(usize::MAX) + 1;
        scratch.bytes.resize(entries * BASE_BYTES, 0);
        let weights = self.packed.weights();
        weights.read_at(member.buffers.base, &mut scratch.bytes, run.start * BASE_BYTES as u64)?;
        scratch.bases.clear();
        scratch.bases.extend(scratch.bytes.chunks_exact(BASE_BYTES).map(base_entry));
        let most = i64::try_from(member.entry.coding.layout().step_list_units()).unwrap_or(i64::MAX);
        let grows = |pair: &[i32]| (0..=most).contains(&(i64::from(pair[1]) - i64::from(pair[0])));
        match scratch.bases.windows(2).position(|pair| !grows(pair)) {
            None => Ok(()),
            Some(at) => {
                let pair = (scratch.bases[at], scratch.bases[at + 1]);
                let expected = format!("a part of the list of 0 to {most} entries");
                let found = format!("one from {} to {}", pair.0, pair.1);
                Err(self.step_damage(Rule::Lists, member, run.start + at as u64, &expected, found))
            }
        }
    }

    fn read_list(&self, scratch: &mut Scratch, member: &Member<'_>, run: &Range<u64>) -> Result<(), Stop> {
        let layout = member.entry.coding.layout();
        let unit = layout.list_unit_bytes() as u64;
        let ends = scratch.bases.first().zip(scratch.bases.last());
        let range =
            ends.and_then(|(&first, &last)| Some((u64::try_from(first).ok()?, u64::try_from(last).ok()?)));
        let bytes = self.packed.weights().tensor(member.buffers.list).bytes();
        let room = range.filter(|&(first, last)| {
            first >= layout.list_head_units() && layout.list_units(last) * unit <= bytes
        });
        let Some((first, last)) = room else {
            let expected = format!("a part of the list, which has {} entries", bytes / unit);
            return Err(self.step_damage(Rule::Lists, member, run.start, &expected, format!("{range:?}")));
        };
        scratch.list.resize(usize::try_from((last - first) * unit).unwrap_or(usize::MAX), 0);
        Ok(self.packed.weights().read_at(member.buffers.list, &mut scratch.list, first * unit)?)
    }

    /// Damage in one step of a matrix.
    fn step_damage(&self, rule: Rule, member: &Member<'_>, step: u64, expected: &str, found: String) -> Stop {
        let tensor = &member.entry.tensors[member.tensor].name;
        let expected = format!("in step {step} of the pack `{}`, {expected}", member.pack);
        Stop::Damage(Box::new(self.damage(rule, member.buffers.list, tensor, expected, found)))
    }
}

pub(crate) fn base_entry(bytes: &[u8]) -> i32 {
    let mut entry = [0; BASE_BYTES];
    entry.copy_from_slice(bytes);
    i32::from_le_bytes(entry)
}
