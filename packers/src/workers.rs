//! Tasks given out to threads in their order: each does one at a time, or hashes a few side by side.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use glyd_format::Digest;
use glyd_format::digest::{Stream, hash_streams};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// Starts `threads` threads, or as many as the machine runs at once.
pub(crate) fn start(threads: Option<usize>) -> Result<ThreadPool> {
    let count = threads.unwrap_or(0);
    let build = ThreadPoolBuilder::new().num_threads(count).build();
    build.map_err(|source| Error::Threads { threads: count, source })
}

/// Does all of `tasks`, begun in their order, and returns what came of each, in their order. Each
/// thread keeps one `scratch` for all that it does.
///
/// # Errors
/// Of the tasks that failed, the first one's; no task is begun after one has failed.
pub(crate) fn run<T: Sync, S, R: Send>(
    pool: &ThreadPool,
    tasks: &[T],
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let queue = Queue::new(tasks);
    gathered(pool.broadcast(|_| queue.run(scratch(), &work)))
}

/// Hashes the streams of `tasks`, begun in their order, a few on each thread side by side; returns what
/// `end` makes of each and its digest, in the tasks' order.
///
/// # Errors
/// As [`run`].
pub(crate) fn hash<T: Sync, S: Stream<Error = Error>, R: Send>(
    pool: &ThreadPool,
    tasks: &[T],
    begin: impl Fn(&T) -> S + Sync,
    end: impl Fn(S, Digest) -> R + Sync,
) -> Result<Vec<R>> {
    let queue = Queue::new(tasks);
    gathered(pool.broadcast(|_| queue.hash(&begin, &end)))
}

/// Tasks, each taken once, by whichever thread comes first.
struct Queue<'a, T> {
    tasks: &'a [T],
    next: AtomicUsize,
    failed: AtomicBool,
}

/// What came of the tasks that a thread took: each one's number, and its result.
type Done<R> = Vec<(usize, Result<R>)>;

impl<'a, T> Queue<'a, T> {
    fn new(tasks: &'a [T]) -> Self {
        Queue { tasks, next: AtomicUsize::new(0), failed: AtomicBool::new(false) }
    }

    /// The next task and its number, unless one has failed.
    fn take(&self) -> Option<(usize, &'a T)> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        self.tasks.get(at).map(|task| (at, task))
    }

    /// Does tasks, one after another, until there are no more.
    fn run<S, R>(&self, mut scratch: S, work: impl Fn(&mut S, &T) -> Result<R>) -> Done<R> {
        let mut done = Vec::new();
        while let Some((at, task)) = self.take() {
            let result = work(&mut scratch, task);
            self.failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.push((at, result));
        }
        done
    }

    /// Hashes tasks' streams, a few side by side, until there are no more.
    fn hash<S: Stream<Error = Error>, R>(
        &self,
        begin: impl Fn(&T) -> S,
        end: impl Fn(S, Digest) -> R,
    ) -> Done<R> {
        let mut done = Vec::new();
        let next = || self.take().map(|(at, task)| Numbered(at, begin(task)));
        hash_streams(next, |Numbered(at, stream), digest| {
            self.failed.fetch_or(digest.is_err(), Ordering::Relaxed);
            done.push((at, digest.map(|digest| end(stream, digest))));
            if self.failed.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        done
    }
}

/// A task's stream, and the task's number.
struct Numbered<S>(usize, S);

impl<S: Stream> Stream for Numbered<S> {
    type Error = S::Error;

    fn next(&mut self) -> std::result::Result<Option<&[u8]>, S::Error> {
        self.1.next()
    }

    fn held_bytes(&self) -> u64 {
        self.1.held_bytes()
    }
}

/// What came of the tasks, in their order.
///
/// # Errors
/// The first task's that failed.
fn gathered<R>(done: Vec<Done<R>>) -> Result<Vec<R>> {
    let mut done: Done<R> = done.into_iter().flatten().collect();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_tasks_order() {
        let pool = start(Some(3)).unwrap();
        let tasks: Vec<u32> = (0..1000).collect();
        let doubled = run(&pool, &tasks, || (), |(), task| Ok(task * 2)).unwrap();
        assert!(doubled.into_iter().eq((0..1000).map(|task| task * 2)));
    }

    #[test]
    fn the_first_failure_is_told() {
        let pool = start(Some(2)).unwrap();
        let tasks: Vec<u32> = (0..100).collect();
        let work = |(): &mut (), task: &u32| if *task < 7 { Ok(()) } else { Err(Error::Interrupted) };
        assert!(matches!(run(&pool, &tasks, || (), work), Err(Error::Interrupted)));
    }
}
