//! Tasks given out to threads in their order, each thread with memory of its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let done = pool.broadcast(|_| {
        let mut scratch = scratch();
        let mut done = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(at) else { break };
            let result = work(&mut scratch, task);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.push((at, result));
        }
        done
    });
    let mut done: Vec<(usize, Result<R>)> = done.into_iter().flatten().collect();
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
