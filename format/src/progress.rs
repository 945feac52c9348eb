//! How a long job is followed, and stopped.

/// Told of a job's progress, from any of its threads. `()` is silent.
pub trait Progress: Sync {
    /// The job will take `bytes` in all.
    fn start(&self, bytes: u64) {
        let _ = bytes;
    }

    /// `bytes` more are done.
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Whether the job must stop: it ends soon, with an error that says so, and leaves nothing behind.
    fn stopped(&self) -> bool {
        false
    }
}

impl Progress for () {}
