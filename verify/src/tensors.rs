//! Tensors as streams of bytes that are hashed: `docs/format.md`, section 7, rules 6 to 8.

use glyd_format::Digest;
use glyd_format::digest::Stream;
use glyd_format::finding::Rule;
use glyd_format::manifest::MANIFEST_NAME;
use glyd_format::step::{STEP_COLUMNS, STEP_ROWS, STEP_WEIGHTS, WEIGHT_BYTES, transpose};
use glyd_format::weights::Location;

use crate::look::{Look, Member, Scratch, Stop};

/// Bytes of a tensor that are given at a time.
const PIECE_BYTES: usize = 1 << 16;

/// Where a tensor's bytes are.
pub(crate) enum Held<'a> {
    /// Saved as it is.
    Plain { name: &'a str, sha256: Digest, at: Location },
    /// In a pack.
    Packed(&'a Member<'a>),
}

/// A tensor's bytes, read or decoded as the model holds them.
pub(crate) struct Tensor<'a> {
    look: &'a Look<'a>,
    held: Held<'a>,
    place: Place,
    memory: Memory,
    /// Bytes of what is ready that were given.
    given: usize,
}

/// How far a tensor was read.
#[derive(Default)]
struct Place {
    /// Of a plain tensor: bytes.
    offset: u64,
    /// The strip; of a transposed expert, its first.
    strip: u64,
    step: u64,
    /// The row of the strip; of a transposed expert, the column of the step.
    line: usize,
    /// Of a transposed expert: how many strips past its first.
    part: u64,
}

/// A stream's memory, kept for the next one.
#[derive(Default)]
pub(crate) struct Memory {
    scratch: Scratch,
    /// Steps that were decoded, where their rows are not the tensor's as they are.
    rows: Vec<u16>,
    /// Weights in the tensor's order.
    weights: Vec<u16>,
}

impl<'a> Tensor<'a> {
    pub(crate) fn new(look: &'a Look<'a>, held: Held<'a>, memory: Memory) -> Self {
        let strip = match &held {
            Held::Packed(member) => member.strips.start,
            Held::Plain { .. } => 0,
        };
        let mut tensor = Tensor { look, held, place: Place { strip, ..Place::default() }, memory, given: 0 };
        tensor.memory.weights.clear();
        tensor.memory.scratch.bytes.clear();
        tensor
    }

    /// Rule 7: the tensor's bytes have its digest.
    pub(crate) fn check_digest(&self, found: Digest) -> Result<(), Stop> {
        let (name, sha256, at) = match &self.held {
            Held::Plain { name, sha256, at } => (*name, *sha256, *at),
            Held::Packed(member) => {
                let tensor = &member.entry.tensors[member.tensor];
                (tensor.name.as_str(), tensor.sha256, member.buffers.data)
            }
        };
        if found == sha256 {
            return Ok(());
        }
        let expected = format!("sha256 {sha256}, as `{MANIFEST_NAME}` has it");
        Err(Stop::Damage(Box::new(self.look.damage(Rule::Digest, at, name, expected, found.to_string()))))
    }

    pub(crate) fn into_memory(self) -> Memory {
        self.memory
    }

    /// Makes the next bytes ready: none after the last.
    fn refill(&mut self) -> Result<(), Stop> {
        let Tensor { look, place, memory, .. } = self;
        match &self.held {
            Held::Plain { at, .. } => {
                let left = look.packed.weights().tensor(*at).bytes() - place.offset;
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
                memory.scratch.bytes.resize(here, 0);
                look.packed.weights().read_at(*at, &mut memory.scratch.bytes, place.offset)?;
                place.offset += here as u64;
                look.progress.advance(here as u64);
                Ok(())
            }
            Held::Packed(member) => match member.entry.experts.filter(|experts| experts.transposed) {
                None => look.rows(member, place, memory),
                Some(experts) => look.columns(member, member.grid.strips() / experts.count, place, memory),
            },
        }
    }

    fn ready(&self) -> &[u8] {
        match self.held {
            Held::Plain { .. } => &self.memory.scratch.bytes,
            Held::Packed(_) => bytemuck::cast_slice(&self.memory.weights),
        }
    }
}

impl Stream for Tensor<'_> {
    type Error = Stop;

    fn next(&mut self) -> Result<Option<&[u8]>, Stop> {
        if self.given == self.ready().len() {
            self.look.check_stopped().map_err(Stop::Error)?;
            self.refill()?;
            self.given = 0;
        }
        let from = self.given;
        self.given = self.ready().len().min(from + PIECE_BYTES);
        let piece = &self.ready()[from..self.given];
        Ok((!piece.is_empty()).then_some(piece))
    }

    fn held_bytes(&self) -> u64 {
        match &self.held {
            Held::Plain { .. } => PIECE_BYTES as u64,
            Held::Packed(member) => {
                // Of a transposed expert, a band of columns over all of its rows besides what is decoded.
                let strip = (member.grid.columns() * STEP_ROWS as u64).min(self.look.run_weights);
                let transposed = member.entry.experts.is_some_and(|experts| experts.transposed);
                (if transposed { self.look.run_weights } else { strip }) * WEIGHT_BYTES as u64
            }
        }
    }
}

impl Look<'_> {
    /// Rows of a tensor whose rows are the matrix's: a strip's. Where they are too long to hold 64, the
    /// strip is decoded in as many passes as it takes to have them whole, a few at a time; of a row too
    /// long to hold, a part.
    fn rows(&self, member: &Member<'_>, place: &mut Place, memory: &mut Memory) -> Result<(), Stop> {
        let (columns, steps) = (member.grid.columns(), member.grid.strip_steps());
        if place.strip == member.strips.end {
            memory.weights.clear();
            return Ok(());
        }
        let first = place.strip * steps;
        let run_steps = (self.run_weights / STEP_WEIGHTS as u64).min(steps);
        if run_steps == steps {
            self.decode(&mut memory.scratch, &mut memory.weights, member, first..first + steps)?;
            place.line = STEP_ROWS;
        } else if columns <= self.run_weights {
            let rows = usize::try_from(self.run_weights / columns).unwrap_or(usize::MAX);
            let rows = rows.min(STEP_ROWS - place.line);
            let wide = usize::try_from(columns).unwrap_or(usize::MAX);
            memory.weights.resize(rows * wide, 0);
            let mut step = 0;
            while step < steps {
                let end = (step + run_steps).min(steps);
                let own =
                    self.decode(&mut memory.scratch, &mut memory.rows, member, first + step..first + end)?;
                let at = usize::try_from(step).unwrap_or(usize::MAX) * STEP_COLUMNS;
                let held = memory.rows.chunks_exact(own).skip(place.line);
                for (to, from) in memory.weights.chunks_exact_mut(wide).zip(held) {
                    to[at..at + own].copy_from_slice(from);
                }
                step = end;
            }
            place.line += rows;
        } else {
            let end = (place.step + run_steps).min(steps);
            let own =
                self.decode(&mut memory.scratch, &mut memory.rows, member, first + place.step..first + end)?;
            memory.weights.clear();
            memory.weights.extend_from_slice(&memory.rows[place.line * own..(place.line + 1) * own]);
            place.step = end % steps;
            place.line += usize::from(place.step == 0);
        }
        if place.line == STEP_ROWS {
            place.line = 0;
            place.strip += 1;
            self.progress.advance(STEP_ROWS as u64 * columns);
        }
        Ok(())
    }

    /// Rows of an expert of `own` strips whose rows are the matrix's columns: a band of columns over all
    /// of its strips. Where not even a step's can be held, a strip's part of one column.
    fn columns(
        &self,
        member: &Member<'_>,
        own: u64,
        place: &mut Place,
        memory: &mut Memory,
    ) -> Result<(), Stop> {
        let steps = member.grid.strip_steps();
        if place.strip + own > member.strips.end {
            memory.weights.clear();
            return Ok(());
        }
        let rows = own * STEP_ROWS as u64;
        let band = (self.run_weights / 2 / (rows * STEP_COLUMNS as u64)).min(steps - place.step);
        if band == 0 {
            let at = (place.strip + place.part) * steps + place.step;
            let columns = self.decode(&mut memory.scratch, &mut memory.rows, member, at..at + 1)?;
            memory.weights.clear();
            memory.weights.extend(memory.rows[place.line..].iter().step_by(columns));
            place.part = (place.part + 1) % own;
            place.line += usize::from(place.part == 0);
            if place.line == STEP_COLUMNS {
                place.line = 0;
                place.step += 1;
                self.progress.advance(rows * STEP_COLUMNS as u64);
            }
        } else {
            let rows = usize::try_from(rows).unwrap_or(usize::MAX);
            let columns = usize::try_from(band).unwrap_or(usize::MAX) * STEP_COLUMNS;
            memory.weights.resize(columns * rows, 0);
            for part in 0..own {
                let at = (place.strip + part) * steps + place.step;
                self.decode(&mut memory.scratch, &mut memory.rows, member, at..at + band)?;
                let at = usize::try_from(part).unwrap_or(usize::MAX) * STEP_ROWS;
                transpose(&memory.rows, columns, &mut memory.weights[at..], rows);
            }
            place.step += band;
            self.progress.advance(memory.weights.len() as u64);
        }
        if place.step == steps {
            place.step = 0;
            place.strip += own;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
