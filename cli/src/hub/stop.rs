//! How work is stopped from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{HubError, Result};

/// Whether the work must stop: since a user says so, or a part of it failed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
    given_up: Arc<AtomicBool>,
}

impl Stop {
    /// Stops once the flag is set.
    pub(crate) fn on(flag: &Arc<AtomicBool>) -> Stop {
        Stop { asked: Arc::clone(flag), given_up: Arc::default() }
    }

    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.given_up.load(Ordering::Relaxed)
    }

    /// Stops what else is under way.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// Where the work must stop.
    pub(crate) fn check(&self) -> Result<()> {
        if self.asked() { Err(HubError::Interrupted) } else { Ok(()) }
    }
}
