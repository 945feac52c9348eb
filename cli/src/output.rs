//! What the program says: data on stdout, everything else on stderr; and how it ends.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

use crate::hub::HubError;

/// The version of the JSON documents' form.
pub(crate) const SCHEMA: u32 = 1;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Done, and the answer is good.
    Good,
    /// Looked, and the answer is no.
    No,
    /// Could not do it.
    Failed,
    /// Interrupted.
    Interrupted,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        ExitCode::from(match status {
            Status::Good => 0,
            Status::No => 1,
            Status::Failed => 2,
            Status::Interrupted => 130,
        })
    }
}

/// Why a command could not do its work, or why the answer is no.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A checkpoint could not be read.
    Format(glyd_format::Error),
    /// One could not be packed.
    Packers(glyd_packers::Error),
    /// One could not be verified.
    Verify(glyd_verify::Error),
    /// One could not be had from the Hub, or published there.
    Hub(HubError),
    /// It cannot be said what a model takes.
    Unknown(glyd_gpu::fit::CannotSay),
    /// The command line makes no sense.
    Usage(String),
    /// Stdout could not be written.
    Stdout(io::Error),
}

impl From<glyd_format::Error> for Failure {
    fn from(error: glyd_format::Error) -> Self {
        Failure::Format(error)
    }
}

impl From<glyd_packers::Error> for Failure {
    fn from(error: glyd_packers::Error) -> Self {
        Failure::Packers(error)
    }
}

impl From<glyd_verify::Error> for Failure {
    fn from(error: glyd_verify::Error) -> Self {
        Failure::Verify(error)
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Checkpoint(error) => Failure::Format(error),
            error => Failure::Hub(error),
        }
    }
}

impl From<glyd_gpu::fit::CannotSay> for Failure {
    fn from(error: glyd_gpu::fit::CannotSay) -> Self {
        Failure::Unknown(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Stdout(error)
    }
}

impl Failure {
    fn status(&self) -> Status {
        match self {
            Failure::Packers(glyd_packers::Error::NothingToPack { .. }) => Status::No,
            Failure::Packers(glyd_packers::Error::Interrupted)
            | Failure::Verify(glyd_verify::Error::Interrupted)
            | Failure::Hub(HubError::Interrupted) => Status::Interrupted,
            _ => Status::Failed,
        }
    }

    /// A word for what kind of failure it is: docs/json.md lists them.
    fn kind(&self) -> &'static str {
        use glyd_packers::Error as Packers;
        use glyd_verify::Error as Verify;
        match self {
            Failure::Format(error)
            | Failure::Packers(Packers::Source(error))
            | Failure::Verify(Verify::Read(error)) => format_kind(error),
            Failure::Packers(Packers::NothingToPack { .. }) => "nothing-to-pack",
            Failure::Packers(Packers::Output { .. }) => "output",
            Failure::Packers(Packers::Mismatch { .. }) => "defect",
            Failure::Packers(Packers::Interrupted) | Failure::Verify(Verify::Interrupted) => "interrupted",
            Failure::Hub(error) => error.kind(),
            Failure::Usage(_) => "usage",
            Failure::Unknown(_) => "unknown",
            Failure::Packers(_) | Failure::Verify(_) | Failure::Stdout(_) => "io",
        }
    }

    /// The failure's errors, each with its causes, a line each.
    fn lines(&self) -> Vec<String> {
        use glyd_packers::Error as Packers;
        use glyd_verify::Error as Verify;
        match self {
            Failure::Format(error)
            | Failure::Packers(Packers::Source(error))
            | Failure::Verify(Verify::Read(error)) => {
                format_errors(error).into_iter().map(|error| chain(error)).collect()
            }
            Failure::Packers(error) => vec![chain(error)],
            Failure::Verify(error) => vec![chain(error)],
            Failure::Hub(error) => vec![chain(error)],
            Failure::Usage(message) => vec![message.clone()],
            Failure::Unknown(error) => vec![error.to_string()],
            Failure::Stdout(error) => vec![format!("cannot write to stdout: {error}")],
        }
    }

    fn details(&self) -> Vec<Value> {
        use glyd_packers::Error as Packers;
        use glyd_verify::Error as Verify;
        match self {
            Failure::Format(error)
            | Failure::Packers(Packers::Source(error))
            | Failure::Verify(Verify::Read(error)) => format_errors(error)
                .into_iter()
                .map(|error| format_detail(error).json(&chain(error)))
                .collect(),
            _ => self.lines().iter().map(|message| self.detail().json(message)).collect(),
        }
    }

    /// What of a failure that is no checkpoint's has a field of its own.
    fn detail(&self) -> Detail<'_> {
        use glyd_packers::Error as Packers;
        let mut detail = Detail { kind: self.kind(), ..Detail::default() };
        match self {
            Failure::Packers(Packers::NothingToPack { path, reason }) => {
                detail.file = Some(path);
                detail.found = Some(reason);
            }
            Failure::Packers(Packers::Output { path, reason, hint }) => {
                detail.file = Some(path);
                detail.found = Some(reason);
                detail.hint = Some(hint);
            }
            Failure::Packers(Packers::Write { path, .. }) => detail.file = Some(path),
            Failure::Packers(Packers::Mismatch { pack, expected, found, .. }) => {
                detail.tensor = Some(pack);
                detail.expected = Some(expected);
                detail.found = Some(found);
            }
            _ => {}
        }
        detail
    }
}

/// An error's parts: what it is not about is null in JSON.
#[derive(Default)]
struct Detail<'a> {
    kind: &'static str,
    file: Option<&'a Path>,
    tensor: Option<&'a str>,
    expected: Option<&'a str>,
    found: Option<&'a str>,
    hint: Option<&'a str>,
}

impl Detail<'_> {
    fn json(&self, message: &str) -> Value {
        json!({
            "kind": self.kind,
            "message": message,
            "file": self.file.map(|file| file.display().to_string()),
            "tensor": self.tensor,
            "expected": self.expected,
            "found": self.found,
            "hint": self.hint,
        })
    }
}

fn format_errors(error: &glyd_format::Error) -> Vec<&glyd_format::Error> {
    match error {
        glyd_format::Error::Several(errors) => errors.iter().flat_map(format_errors).collect(),
        error => vec![error],
    }
}

fn format_kind(error: &glyd_format::Error) -> &'static str {
    match error {
        glyd_format::Error::Io { .. } => "io",
        glyd_format::Error::Unsupported { .. } => "unsupported",
        _ => "invalid",
    }
}

fn format_detail(error: &glyd_format::Error) -> Detail<'_> {
    let mut detail = Detail { kind: format_kind(error), ..Detail::default() };
    match error {
        glyd_format::Error::Invalid(what) => {
            detail.file = what.file.as_deref();
            detail.tensor = what.tensor.as_deref();
            detail.expected = Some(&what.expected);
            detail.found = Some(&what.found);
            detail.hint = what.hint.as_deref();
        }
        glyd_format::Error::Io { path, .. } => detail.file = Some(path),
        glyd_format::Error::Unsupported { found, hint, .. } => {
            detail.found = Some(found);
            detail.hint = Some(hint);
        }
        _ => {}
    }
    detail
}

/// An error and what caused it, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(line, ": {error}");
        cause = error.source();
    }
    line
}

/// Tells of a failure on stderr and, where it was asked for, as JSON on stdout; returns how the program
/// ends.
pub(crate) fn fail(command: Option<&str>, json: bool, failure: &Failure) -> Status {
    failure.lines().iter().for_each(|line| say(&format!("glyd: {line}")));
    if json && !matches!(failure, Failure::Stdout(_)) {
        print_failure(command, failure);
    }
    failure.status()
}

/// Prints a failure as JSON.
pub(crate) fn print_failure(command: Option<&str>, failure: &Failure) {
    let error = json!({
        "kind": failure.kind(),
        "message": failure.lines().join("\n"),
        "errors": failure.details(),
    });
    let document = json!({ "schema": SCHEMA, "command": command, "error": error });
    if let Err(error) = print_json(&document) {
        say(&format!("glyd: cannot write to stdout: {error}"));
    }
}

/// Prints data. Where the reader has closed the pipe it has what it wanted, and that is no error: how
/// the program ends says what came of the work.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Prints lines of data.
pub(crate) fn print_lines(lines: &[String]) -> io::Result<()> {
    print(&lines.iter().map(|line| format!("{}\n", one_line(line))).collect::<String>())
}

/// A text on one line: names and paths may hold newlines, and what a terminal would act on.
fn one_line(text: &str) -> String {
    let escape = |char: char| match char.is_control() {
        true => char.escape_default().collect(),
        false => String::from(char),
    };
    text.chars().map(escape).collect()
}

/// Prints a JSON document.
pub(crate) fn print_json(document: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    print(&text)
}

/// Says something that is not data.
pub(crate) fn say(line: &str) {
    // Nothing is left to tell it to where stderr is closed.
    let _ = writeln!(io::stderr().lock(), "{}", one_line(line));
}

/// Bytes, for people.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let hundredths = |unit: u64| (u128::from(bytes) * 100 + u128::from(unit / 2)) / u128::from(unit);
    // What would round to 1000.00 of a unit is 1.00 of the next.
    match UNITS.into_iter().find(|(unit, _)| bytes >= unit - unit / 200_000) {
        Some((unit, name)) => format!("{}.{:02} {name}", hundredths(unit) / 100, hundredths(unit) % 100),
        None => format!("{bytes} bytes"),
    }
}

/// How many bytes went by a second, for people.
pub(crate) fn rate(of: u64, seconds: f64) -> String {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a figure for people"
    )]
    let rate = (of as f64 / seconds.max(1e-9)) as u64;
    format!("{}/s", bytes(rate))
}

/// `count` of a thing, `things` where there is not one.
pub(crate) fn count(count: u64, thing: &str) -> String {
    let plural = match (count, thing) {
        (1, _) => thing.to_owned(),
        (_, "matrix") => "matrices".to_owned(),
        _ => format!("{thing}s"),
    };
    format!("{count} {plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units() {
        assert_eq!(bytes(999), "999 bytes");
        assert_eq!(bytes(1_500), "1.50 kB");
        assert_eq!(bytes(62_619_648), "62.62 MB");
        assert_eq!(bytes(999_994), "999.99 kB");
        assert_eq!(bytes(999_996), "1.00 MB");
        assert_eq!(bytes(u64::MAX), "18446744.07 TB");
        assert_eq!(bytes(16_400_000_000), "16.40 GB");
        assert_eq!(rate(2_000_000_000, 0.5), "4.00 GB/s");
        assert_eq!(count(1, "tensor"), "1 tensor");
        assert_eq!(count(0, "matrix"), "0 matrices");
    }

    #[test]
    fn names_cannot_end_a_line_or_move_a_terminal_s_cursor() {
        assert_eq!(one_line("a\nb\u{1b}[2Kc\r模型 ü"), "a\\nb\\u{1b}[2Kc\\r模型 ü");
    }
}
