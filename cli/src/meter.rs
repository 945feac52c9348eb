//! One bar over the whole job on a terminal, a line now and then in a log; and the end of the job where
//! it is interrupted.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use glyd_format::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::hub::Stop;
use crate::output::{bytes, rate, say};

/// Between the lines of a log.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Follows a job.
pub(crate) struct Meter {
    what: &'static str,
    shown: Shown,
    done: AtomicU64,
    total: AtomicU64,
    begun: Instant,
    stopped: Arc<AtomicBool>,
}

enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines(Mutex<Instant>),
}

impl Meter {
    /// A meter for `what` is done: `packing`, say. From here on an interrupt stops the job, and a
    /// second one ends the program at once.
    pub(crate) fn new(what: &'static str, quiet: bool) -> Self {
        let log = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty()) || !std::io::stderr().is_terminal();
        let shown = match (quiet, log) {
            (true, _) => Shown::Nothing,
            (false, true) => Shown::Lines(Mutex::new(Instant::now())),
            (false, false) => Shown::Bar(bar(what)),
        };
        let stopped = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The first sets the flag; one that finds it set ends the program. Without handlers a signal
            // ends it at once, which is safe too.
            let _ = flag::register_conditional_shutdown(signal, 130, Arc::clone(&stopped));
            let _ = flag::register(signal, Arc::clone(&stopped));
        }
        let [done, total] = [(); 2].map(|()| AtomicU64::new(0));
        Meter { what, shown, done, total, begun: Instant::now(), stopped }
    }

    /// The flag that an interrupt sets.
    pub(crate) fn stop(&self) -> Stop {
        Stop::on(&self.stopped)
    }

    /// Seconds since the job began.
    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }

    fn line(&self, last: &Mutex<Instant>, done: u64) {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() < LINE_EVERY {
            return;
        }
        *last = Instant::now();
        let total = self.total.load(Ordering::Relaxed);
        let percent = u128::from(done) * 100 / u128::from(total.max(1));
        let rate = rate(done, self.seconds());
        say(&format!("{}: {percent} % ({} of {}, {rate})", self.what, bytes(done), bytes(total)));
    }
}

fn bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    let form =
        "{prefix} {bar:30} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style);
    }
    bar.set_prefix(what);
    bar
}

impl Progress for Meter {
    fn start(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
        if let Shown::Bar(bar) = &self.shown {
            bar.set_length(bytes);
        }
    }

    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match &self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => bar.inc(bytes),
            Shown::Lines(last) => self.line(last, done),
        }
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
