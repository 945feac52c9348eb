//! The program as it is used: of every command the exit status, stdout and stderr, each test in a
//! folder of its own. No network and no GPU.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test may fail, and says what it skips"
)]

mod files;
mod fit;
mod fit_hub;
mod hub;
mod inspect;
mod interrupt;
mod json;
mod pack;
mod streams;
mod usage;
mod util;
mod verify;
