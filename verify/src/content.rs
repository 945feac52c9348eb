//! Packs decoded and tensors hashed: `docs/format.md`, section 7, rules 6 to 8.

use std::collections::HashSet;

use rayon::ThreadPoolBuilder;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};

use glyd_format::finding::{Finding, Rule};
use glyd_format::layout::{BASE_BYTES, Flaw, Run};
use glyd_format::manifest::{MANIFEST_NAME, PackEntry, buffer_name};
use glyd_format::packed::Buffers;
use glyd_format::step::{Grid, STEP_COLUMNS, STEP_ROWS};
use glyd_format::weights::Location;
use glyd_format::{Buffer, Coding, Digest, Hasher, Invalid, Packed, Progress};

use crate::Error;

/// Weights that are decoded at a time, at the most: 64 rows of 8,192 columns.
const RUN_WEIGHTS: u64 = 1 << 19;
/// Bytes of a plain tensor that are hashed at a time.
const HASH_BYTES: u64 = 1 << 20;

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

/// What was found in the weights.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) packed_tensors: u64,
    pub(crate) plain_tensors: u64,
    pub(crate) unchecked_tensors: u64,
    pub(crate) findings: Vec<Finding>,
}

/// A tensor in a pack, and which of the matrix's strips are its own.
struct Member<'a> {
    pack: &'a str,
    entry: &'a PackEntry,
    buffers: Buffers,
    grid: Grid,
    tensor: usize,
    strips: std::ops::Range<u64>,
}

enum Task<'a> {
    /// A pack's base buffer, and the ends of its list.
    Lists { pack: &'a str, entry: &'a PackEntry, buffers: Buffers, grid: Grid },
    /// A tensor of a pack, decoded and hashed.
    Packed(Member<'a>),
    /// A tensor saved as it is, hashed.
    Plain { name: &'a str, sha256: Digest, at: Location },
}

impl Task<'_> {
    fn bytes(&self, packed: &Packed) -> u64 {
        match self {
            Task::Lists { .. } => 0,
            Task::Packed(member) => (member.strips.end - member.strips.start) * member.grid.columns(),
            Task::Plain { at, .. } => packed.weights().tensor(*at).bytes(),
        }
    }
}

/// Looks at all of the checkpoint's weights. Findings come in the manifest's order, whatever the
/// threads do.
pub(crate) fn check(
    decoder: &dyn Decoder,
    packed: &Packed,
    threads: Option<usize>,
    progress: &dyn Progress,
) -> Result<Content, Error> {
    let count = threads.unwrap_or(0);
    let pool = ThreadPoolBuilder::new().num_threads(count).build();
    let pool = pool.map_err(|source| Error::Threads { threads: count, source })?;
    let tasks = tasks(packed);
    progress.start(tasks.iter().map(|task| task.bytes(packed)).sum());
    // The largest first, so that no thread is left with one at the end.
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by_key(|&task| std::cmp::Reverse(tasks[task].bytes(packed)));
    let look = Look { decoder, packed, progress, run_weights: RUN_WEIGHTS };
    let found = pool.install(|| {
        let numbers = order.par_iter().with_max_len(1);
        let found =
            numbers.map_init(Scratch::default, |scratch, &task| Ok((task, look.at(scratch, &tasks[task])?)));
        found.collect::<Result<Vec<_>, Error>>()
    });
    let mut found = found?;
    found.sort_by_key(|(task, _)| *task);

    let mut content = Content { unchecked_tensors: unchecked(packed), ..Content::default() };
    for (task, findings) in found {
        match tasks[task] {
            Task::Packed(_) if findings.is_empty() => content.packed_tensors += 1,
            Task::Plain { .. } if findings.is_empty() => content.plain_tensors += 1,
            _ => {}
        }
        content.findings.extend(findings);
    }
    Ok(content)
}

/// What there is to look at: packs and tensors whose buffers and shapes are what they must be. The
/// others have a finding already.
fn tasks(packed: &Packed) -> Vec<Task<'_>> {
    let mut tasks = Vec::new();
    for (pack, entry) in &packed.manifest().packs {
        let (Some(grid), Some(buffers)) = (Packed::grid(entry), packed.buffers(pack, entry)) else {
            continue;
        };
        tasks.push(Task::Lists { pack, entry, buffers, grid });
        // Experts held as `[in, out]` are of equal runs of strips.
        if entry
            .experts
            .is_some_and(|experts| experts.count == 0 || !grid.strips().is_multiple_of(experts.count))
        {
            continue;
        }
        let mut strip = 0;
        for (number, tensor) in entry.tensors.iter().enumerate() {
            let weights = tensor.shape.iter().try_fold(1_u64, |all, &dim| all.checked_mul(dim));
            let own = weights.and_then(|weights| {
                let strip_weights = grid.columns() * STEP_ROWS as u64;
                weights.is_multiple_of(strip_weights).then_some(weights / strip_weights)
            });
            let Some(strips) = own.filter(|strips| *strips > 0 && strip + strips <= grid.strips()) else {
                break;
            };
            let strips = strip..strip + strips;
            strip = strips.end;
            tasks.push(Task::Packed(Member { pack, entry, buffers, grid, tensor: number, strips }));
        }
    }
    for (name, sha256) in packed.manifest().tensors.iter().flatten() {
        if let Some(at) = packed.weights().find(name) {
            tasks.push(Task::Plain { name, sha256: *sha256, at });
        }
    }
    tasks
}

/// How many tensors the checkpoint has no sha256 of.
fn unchecked(packed: &Packed) -> u64 {
    if packed.manifest().tensors.is_some() {
        return 0;
    }
    let mut buffers = HashSet::new();
    for (name, entry) in &packed.manifest().packs {
        let layout = entry.coding.layout();
        buffers.extend(Buffer::ALL.map(|buffer| buffer_name(name, entry.experts.is_some(), layout, buffer)));
    }
    packed.weights().names().filter(|name| !buffers.contains(*name)).count() as u64
}

/// A thread's memory.
#[derive(Default)]
struct Scratch {
    data: Vec<u8>,
    list: Vec<u8>,
    bases: Vec<i32>,
    rows: Vec<u16>,
    line: Vec<u16>,
    bytes: Vec<u8>,
}

struct Look<'a> {
    decoder: &'a dyn Decoder,
    packed: &'a Packed,
    progress: &'a dyn Progress,
    /// Weights that are decoded at a time, at the most: a step's or more.
    run_weights: u64,
}

/// Why a tensor was not read to its end: damage, or that it could not be looked at.
enum Stop {
    Damage(Box<Finding>),
    Error(Error),
}

impl From<glyd_format::Error> for Stop {
    fn from(error: glyd_format::Error) -> Self {
        Stop::Error(error.into())
    }
}

impl Look<'_> {
    fn at(&self, scratch: &mut Scratch, task: &Task<'_>) -> Result<Vec<Finding>, Error> {
        let done = match task {
            Task::Lists { pack, entry, buffers, grid } => {
                return self.lists(scratch, pack, entry, *buffers, *grid);
            }
            Task::Packed(member) => self.packed(scratch, member),
            Task::Plain { name, sha256, at } => self.plain(scratch, name, *sha256, *at),
        };
        match done {
            Ok(()) => Ok(Vec::new()),
            Err(Stop::Damage(finding)) => Ok(vec![*finding]),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    fn check_stopped(&self) -> Result<(), Error> {
        if self.progress.stopped() { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn damage(&self, rule: Rule, at: Location, tensor: &str, expected: String, found: String) -> Finding {
        let file = Some(self.packed.weights().file(at).path().to_owned());
        Finding::damage(rule, Invalid { file, tensor: Some(tensor.to_owned()), expected, found, hint: None })
    }

    /// Rule 7, of a tensor saved as it is.
    fn plain(&self, scratch: &mut Scratch, name: &str, sha256: Digest, at: Location) -> Result<(), Stop> {
        let total = self.packed.weights().tensor(at).bytes();
        let mut hasher = Hasher::default();
        let mut offset = 0;
        while offset < total {
            self.check_stopped().map_err(Stop::Error)?;
            let here = HASH_BYTES.min(total - offset);
            scratch.bytes.resize(usize::try_from(here).unwrap_or(usize::MAX), 0);
            self.packed.weights().read_at(at, &mut scratch.bytes, offset)?;
            hasher.update(&scratch.bytes);
            offset += here;
            self.progress.advance(here);
        }
        self.check_digest(hasher.finish(), sha256, at, name)
    }

    fn check_digest(&self, found: Digest, sha256: Digest, at: Location, name: &str) -> Result<(), Stop> {
        if found == sha256 {
            return Ok(());
        }
        let expected = format!("sha256 {sha256}, as `{MANIFEST_NAME}` has it");
        Err(Stop::Damage(Box::new(self.damage(Rule::Digest, at, name, expected, found.to_string()))))
    }

    /// Rule 6, of the base buffer as a whole, and what of rule 8 is beside the steps: the list's ends.
    fn lists(
        &self,
        scratch: &mut Scratch,
        pack: &str,
        entry: &PackEntry,
        buffers: Buffers,
        grid: Grid,
    ) -> Result<Vec<Finding>, Error> {
        let layout = entry.coding.layout();
        let name = |buffer| buffer_name(pack, entry.experts.is_some(), layout, buffer);
        let mut findings = Vec::new();
        let base_damage = |expected: String, found: String| {
            self.damage(Rule::Lists, buffers.base, &name(Buffer::Base), expected, found)
        };
        let entry_at = |scratch: &mut Scratch, number: u64| -> Result<i64, Error> {
            scratch.bytes.resize(BASE_BYTES, 0);
            self.packed.weights().read_at(buffers.base, &mut scratch.bytes, number * BASE_BYTES as u64)?;
            Ok(i64::from(base_entry(&scratch.bytes)))
        };
        let first = entry_at(scratch, 0)?;
        let head = layout.list_head_units();
        if first != i64::try_from(head).unwrap_or(i64::MAX) {
            findings.push(base_damage(format!("{head} first"), first.to_string()));
        }
        let last = entry_at(scratch, grid.steps())?;
        let units = self.packed.weights().tensor(buffers.list).bytes() / layout.list_unit_bytes() as u64;
        let fits = u64::try_from(last).is_ok_and(|last| last >= head && layout.list_units(last) == units);
        if !fits {
            let list = name(Buffer::List);
            let expected = format!("an end that `{list}` of {units} entries has room for, and no more");
            findings.push(base_damage(expected, format!("{last} last")));
            return Ok(findings);
        }
        let end = u64::try_from(last).unwrap_or(0);
        for range in [0..head, end..units] {
            let unit = layout.list_unit_bytes() as u64;
            let bytes = usize::try_from((range.end - range.start) * unit).unwrap_or(usize::MAX);
            scratch.bytes.resize(bytes, 0);
            self.packed.weights().read_at(buffers.list, &mut scratch.bytes, range.start * unit)?;
            if let Some(at) = scratch.bytes.iter().position(|&byte| byte != 0) {
                let expected = format!("zeros from byte {} to {}", range.start * unit, range.end * unit);
                let found = format!("{:#04x} at byte {}", scratch.bytes[at], range.start * unit + at as u64);
                findings.push(self.damage(
                    Rule::Canonical,
                    buffers.list,
                    &name(Buffer::List),
                    expected,
                    found,
                ));
            }
        }
        Ok(findings)
    }

    /// Rules 6 to 8, of a tensor in a pack: decoded and hashed as the model holds it.
    fn packed(&self, scratch: &mut Scratch, member: &Member<'_>) -> Result<(), Stop> {
        let mut hasher = Hasher::default();
        match member.entry.experts.filter(|experts| experts.transposed) {
            None => self.hash_rows(scratch, member, &mut hasher)?,
            Some(experts) => {
                let own = member.grid.strips() / experts.count;
                for expert in 0..experts.count {
                    let strips = expert * own..(expert + 1) * own;
                    self.hash_columns(scratch, member, strips, &mut hasher)?;
                }
            }
        }
        let tensor = &member.entry.tensors[member.tensor];
        self.check_digest(hasher.finish(), tensor.sha256, member.buffers.data, &tensor.name)
    }

    /// Hashes a tensor whose rows are the matrix's. Rows too long to hold 64 of are decoded in as many
    /// passes as it takes to have them whole, a few at a time; of those too long to hold one, each pass
    /// hashes a row as it comes.
    fn hash_rows(&self, scratch: &mut Scratch, member: &Member<'_>, hasher: &mut Hasher) -> Result<(), Stop> {
        let columns = member.grid.columns();
        let steps = member.grid.strip_steps();
        let run_steps = (self.run_weights / (STEP_ROWS * STEP_COLUMNS) as u64).min(steps);
        let wide = usize::try_from(columns).unwrap_or(usize::MAX);
        // Rows that are kept of each pass.
        let kept = usize::try_from(self.run_weights / columns).unwrap_or(0).clamp(1, STEP_ROWS);
        let hold = run_steps < steps && columns <= self.run_weights;
        for strip in member.strips.clone() {
            let mut row = 0;
            while row < STEP_ROWS {
                let rows = if run_steps == steps { STEP_ROWS } else { kept.min(STEP_ROWS - row) };
                let mut line = std::mem::take(&mut scratch.line);
                line.resize(if hold { rows * wide } else { 0 }, 0);
                let mut step = 0;
                while step < steps {
                    let run = strip * steps + step..strip * steps + (step + run_steps).min(steps);
                    let own = self.decode(scratch, member, run.clone())?;
                    if run_steps == steps {
                        hasher.update(bytemuck::cast_slice(&scratch.rows));
                    } else if !hold {
                        hasher.update(bytemuck::cast_slice(&scratch.rows[row * own..(row + 1) * own]));
                    } else {
                        let at = usize::try_from(step).unwrap_or(usize::MAX) * STEP_COLUMNS;
                        for (to, from) in
                            line.chunks_exact_mut(wide).zip(scratch.rows.chunks_exact(own).skip(row))
                        {
                            to[at..at + own].copy_from_slice(from);
                        }
                    }
                    step += run_steps;
                }
                hasher.update(bytemuck::cast_slice(&line));
                scratch.line = line;
                row += rows;
            }
            self.progress.advance(STEP_ROWS as u64 * columns);
        }
        Ok(())
    }

    /// Hashes an expert whose rows are the matrix's columns: bands of columns over all of its strips.
    fn hash_columns(
        &self,
        scratch: &mut Scratch,
        member: &Member<'_>,
        strips: std::ops::Range<u64>,
        hasher: &mut Hasher,
    ) -> Result<(), Stop> {
        let steps = member.grid.strip_steps();
        let rows = (strips.end - strips.start) * STEP_ROWS as u64;
        let band = 2 * self.run_weights / (rows * STEP_COLUMNS as u64);
        if band == 0 {
            return self.hash_long_columns(scratch, member, strips, hasher);
        }
        let mut step = 0;
        while step < steps {
            let band = band.min(steps - step);
            let columns = usize::try_from(band).unwrap_or(usize::MAX) * STEP_COLUMNS;
            let rows = usize::try_from(rows).unwrap_or(usize::MAX);
            let mut line = std::mem::take(&mut scratch.line);
            line.resize(columns * rows, 0);
            for (number, strip) in strips.clone().enumerate() {
                self.decode(scratch, member, strip * steps + step..strip * steps + step + band)?;
                let at = number * STEP_ROWS;
                for (column, held) in line.chunks_exact_mut(rows).enumerate() {
                    let column = scratch.rows[column..].iter().step_by(columns);
                    held[at..at + STEP_ROWS].iter_mut().zip(column).for_each(|(to, from)| *to = *from);
                }
            }
            hasher.update(bytemuck::cast_slice(&line));
            self.progress.advance(line.len() as u64);
            scratch.line = line;
            step += band;
        }
        Ok(())
    }

    /// As [`Look::hash_columns`], where not even a step's columns can be held: each of them takes a pass.
    fn hash_long_columns(
        &self,
        scratch: &mut Scratch,
        member: &Member<'_>,
        strips: std::ops::Range<u64>,
        hasher: &mut Hasher,
    ) -> Result<(), Stop> {
        let steps = member.grid.strip_steps();
        for step in 0..steps {
            for column in 0..STEP_COLUMNS {
                for strip in strips.clone() {
                    let at = strip * steps + step;
                    let columns = self.decode(scratch, member, at..at + 1)?;
                    let mut held = [0; STEP_ROWS];
                    let column = scratch.rows[column..].iter().step_by(columns);
                    held.iter_mut().zip(column).for_each(|(to, from)| *to = *from);
                    hasher.update(bytemuck::cast_slice(&held));
                }
            }
            self.progress.advance((strips.end - strips.start) * (STEP_ROWS * STEP_COLUMNS) as u64);
        }
        Ok(())
    }

    /// Decodes a run of steps of one strip into `scratch.rows`; returns their columns.
    fn decode(
        &self,
        scratch: &mut Scratch,
        member: &Member<'_>,
        run: std::ops::Range<u64>,
    ) -> Result<usize, Stop> {
        self.check_stopped().map_err(Stop::Error)?;
        let layout = member.entry.coding.layout();
        self.read_bases(scratch, member, &run)?;
        self.read_list(scratch, member, &run)?;
        let steps = scratch.bases.len() - 1;
        scratch.data.resize(steps * layout.step_bytes(), 0);
        let weights = self.packed.weights();
        weights.read_at(member.buffers.data, &mut scratch.data, run.start * layout.step_bytes() as u64)?;
        let columns = steps * STEP_COLUMNS;
        scratch.rows.resize(STEP_ROWS * columns, 0);
        let parts = Run { data: &scratch.data, list: &scratch.list, bases: &scratch.bases };
        let decoded = self.decoder.decode(&member.entry.coding, &parts, &mut scratch.rows, columns);
        decoded.map(|()| columns).map_err(|flaw| {
            let rule = if flaw.form_only { Rule::Canonical } else { Rule::Lists };
            self.step_damage(rule, member, run.start + flaw.step as u64, &flaw.expected, flaw.found)
        })
    }

    fn read_bases(
        &self,
        scratch: &mut Scratch,
        member: &Member<'_>,
        run: &std::ops::Range<u64>,
    ) -> Result<(), Stop> {
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

    fn read_list(
        &self,
        scratch: &mut Scratch,
        member: &Member<'_>,
        run: &std::ops::Range<u64>,
    ) -> Result<(), Stop> {
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

fn base_entry(bytes: &[u8]) -> i32 {
    let mut entry = [0; BASE_BYTES];
    entry.copy_from_slice(bytes);
    i32::from_le_bytes(entry)
}

#[cfg(test)]
mod tests {
    use glyd_fixtures::Recipe;
    use glyd_format::manifest::Source;
    use glyd_format::{Checkpoint, Layout};

    use super::*;

    #[test]
    fn tensors_hash_the_same_however_few_weights_are_decoded_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (source, out) = (dir.path().join("in"), dir.path().join("out"));
        Recipe::named("gpt_oss").make(&source);
        let options = glyd_packers::Options {
            layout: Layout::Mma,
            merge: true,
            cast: false,
            shard_bytes: glyd_packers::SHARD_BYTES,
            threads: Some(2),
            source: Source { repo: b"a".to_vec(), revision: None },
        };
        glyd_packers::pack(&Checkpoint::open(&source).unwrap(), &out, &options, &()).unwrap();
        let packed = Packed::open(&out).unwrap().packed.unwrap();
        let transposed = |task: &Task<'_>| matches!(task, Task::Packed(member) if member.entry.experts.is_some_and(|experts| experts.transposed));
        let tasks = tasks(&packed);
        assert!(tasks.iter().any(transposed));
        // A step; a few of a strip; all of one; and all.
        for run_weights in [1 << 10, 1 << 11, 3 << 10, 1 << 12, 1 << 13, 1 << 14, RUN_WEIGHTS] {
            let look = Look { decoder: &Cpu, packed: &packed, progress: &(), run_weights };
            let mut scratch = Scratch::default();
            for task in &tasks {
                let found = look.at(&mut scratch, task).unwrap();
                assert!(found.is_empty(), "{run_weights}: {found:?}");
            }
        }
    }
}
