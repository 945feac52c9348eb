//! What the program says: data on stdout, everything else on stderr; and how it ends.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

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
            | Failure::Verify(glyd_verify::Error::Interrupted) => Status::Interrupted,
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
            Failure::Usage(_) => "usage",
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
            Failure::Usage(message) => vec![message.clone()],
            Failure::Stdout(error) => vec![format!("cannot write to stdout: {error}")],
        }
    }

    fn details(&self) -> Vec<Value> {
        use glyd_packers::Error as Packers;
        use glyd_verify::Error as Verify;
        match self {
            Failure::Format(error)
            | Failure::Packers(Packers::Source(error))
            | Failure::Verify(Verify::Read(error)) => format_errors(error).into_iter().map(detail).collect(),
            _ => self
                .lines()
                .into_iter()
                .map(|message| json!({ "kind": self.kind(), "message": message }))
                .collect(),
        }
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

fn detail(error: &glyd_format::Error) -> Value {
    let mut detail = json!({ "kind": format_kind(error), "message": chain(error) });
    if let glyd_format::Error::Invalid(what) = error {
        detail["file"] = json!(what.file.as_ref().map(|file| file.display().to_string()));
        detail["tensor"] = json!(what.tensor);
        detail["expected"] = json!(what.expected);
        detail["found"] = json!(what.found);
        detail["hint"] = json!(what.hint);
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

/// Tells of a failure, in the form that was asked for; returns how the program ends.
pub(crate) fn fail(command: &str, json: bool, failure: &Failure) -> Status {
    if let Failure::Stdout(error) = failure
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        // Whoever reads has what it wanted.
        return Status::Good;
    }
    let lines = failure.lines();
    if json && !matches!(failure, Failure::Stdout(_)) {
        let error =
            json!({ "kind": failure.kind(), "message": lines.join("\n"), "errors": failure.details() });
        let document = json!({ "schema": SCHEMA, "command": command, "error": error });
        if let Err(error) = print_json(&document) {
            say(&format!("glyd: cannot write to stdout: {error}"));
        }
    } else {
        lines.iter().for_each(|line| say(&format!("glyd: {line}")));
    }
    failure.status()
}

/// Prints data.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
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
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Bytes, for people.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => {
            let hundredths = u128::from(bytes) * 100 / u128::from(unit);
            format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
        }
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
        assert_eq!(bytes(16_400_000_000), "16.40 GB");
        assert_eq!(rate(2_000_000_000, 0.5), "4.00 GB/s");
        assert_eq!(count(1, "tensor"), "1 tensor");
        assert_eq!(count(0, "matrix"), "0 matrices");
    }
}
