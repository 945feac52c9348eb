//! All of a checkpoint's weights looked at: `docs/format.md`, section 7, rules 6 to 8.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};

use glyd_format::digest::hash_streams;
use glyd_format::finding::Finding;
use glyd_format::manifest::{PackEntry, buffer_name};
use glyd_format::packed::Buffers;
use glyd_format::step::{Grid, STEP_ROWS};
use glyd_format::weights::Location;
use glyd_format::{Buffer, Digest, Packed, Progress};

use crate::Error;
use crate::look::{Decoder, Look, Member, Stop};
use crate::tensors::{Held, Memory, Tensor};

/// Weights that are decoded at a time, at the most: 64 rows of 32,768 columns.
pub(crate) const RUN_WEIGHTS: u64 = 1 << 21;

/// What was found in the weights.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) packed_tensors: u64,
    pub(crate) plain_tensors: u64,
    pub(crate) unchecked_tensors: u64,
    pub(crate) findings: Vec<Finding>,
}

pub(crate) enum Task<'a> {
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

    /// The tensor that is hashed, where the task is to hash one.
    pub(crate) fn held(&self) -> Option<Held<'_>> {
        match self {
            Task::Lists { .. } => None,
            Task::Packed(member) => Some(Held::Packed(member)),
            Task::Plain { name, sha256, at } => Some(Held::Plain { name, sha256: *sha256, at: *at }),
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
    let look = Look { decoder, packed, progress, run_weights: RUN_WEIGHTS };
    let numbers: Vec<usize> = (0..tasks.len()).collect();
    let lists = pool.install(|| {
        let found = numbers.par_iter().filter_map(|&task| match tasks[task] {
            Task::Lists { pack, entry, buffers, grid } => {
                Some(look.lists(pack, entry, buffers, grid).map(|findings| (task, findings)))
            }
            _ => None,
        });
        found.collect::<Result<Vec<_>, Error>>()
    });
    let mut found = lists?;
    found.extend(hash(&pool, &look, &tasks)?);
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

/// Hashes the tasks' tensors, a few on each thread side by side.
fn hash(pool: &ThreadPool, look: &Look<'_>, tasks: &[Task<'_>]) -> Result<Vec<(usize, Vec<Finding>)>, Error> {
    // The largest first, so that no thread is left with one at the end.
    let mut order: Vec<usize> = (0..tasks.len()).filter(|&task| tasks[task].held().is_some()).collect();
    order.sort_by_key(|&task| std::cmp::Reverse(tasks[task].bytes(look.packed)));
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let found = pool.broadcast(|_| {
        let memories: RefCell<Vec<Memory>> = RefCell::default();
        let mut found = Vec::new();
        let begin = || {
            let task = *order.get(next.fetch_add(1, Ordering::Relaxed))?;
            let memory = memories.borrow_mut().pop().unwrap_or_default();
            Some(Hashed { task, tensor: Tensor::new(look, tasks[task].held()?, memory) })
        };
        hash_streams(begin, |Hashed { task, tensor }, digest| {
            let checked = digest.and_then(|digest| tensor.check_digest(digest));
            memories.borrow_mut().push(tensor.into_memory());
            found.push(match checked {
                Ok(()) => Ok((task, Vec::new())),
                Err(Stop::Damage(finding)) => Ok((task, vec![*finding])),
                Err(Stop::Error(error)) => {
                    failed.store(true, Ordering::Relaxed);
                    Err(error)
                }
            });
            if failed.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    });
    found.into_iter().flatten().collect()
}

/// A task's tensor, and the task's number.
struct Hashed<'a> {
    task: usize,
    tensor: Tensor<'a>,
}

impl glyd_format::digest::Stream for Hashed<'_> {
    type Error = Stop;

    fn next(&mut self) -> Result<Option<&[u8]>, Stop> {
        self.tensor.next()
    }

    fn held_bytes(&self) -> u64 {
        self.tensor.held_bytes()
    }
}

/// What there is to look at: packs and tensors whose buffers and shapes are what they must be. The
/// others have a finding already.
pub(crate) fn tasks(packed: &Packed) -> Vec<Task<'_>> {
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
