//! `glyd verify`.

use glyd_format::finding::Finding;
use glyd_verify::{Options, Report, Verdict};
use serde_json::{Value, json};

use crate::args::Verify;
use crate::hub::Purpose;
use crate::meter::Meter;
use crate::model;
use crate::output::{self, Failure, SCHEMA, Status, bytes, count, rate};

pub(crate) fn run(args: &Verify) -> Result<Status, Failure> {
    let model = model::find(&args.dir, &args.hub, Purpose::Packed, args.voice.quiet)?;
    let meter = Meter::new("verifying", args.voice.quiet);
    let report = glyd_verify::verify(&model.dir, &Options { threads: args.threads }, &meter);
    meter.finish();
    let report = report?;
    if args.voice.json {
        output::print_json(&document(&report, meter.seconds()))?;
    } else if !args.voice.quiet || report.verdict() == Verdict::Damaged {
        output::print_lines(&lines(&report, meter.seconds()))?;
    }
    Ok(match report.verdict() {
        Verdict::Good | Verdict::Unchecked => Status::Good,
        Verdict::Damaged => {
            output::say(
                "hint: fetch what is named again, or pack the model again: not all of it is what it was",
            );
            Status::No
        }
    })
}

fn document(report: &Report, seconds: f64) -> Value {
    json!({
        "schema": SCHEMA,
        "command": "verify",
        "path": report.path.display().to_string(),
        "format": report.format.map(|format| format.name()),
        "layout": report.layout.map(|layout| layout.name()),
        "verdict": report.verdict().name(),
        "packed_tensors": report.packed_tensors,
        "plain_tensors": report.plain_tensors,
        "unchecked_tensors": report.unchecked_tensors,
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "bytes": report.bytes,
        "seconds": seconds,
    })
}

pub(crate) fn finding(finding: &Finding) -> Value {
    json!({
        "level": finding.level.name(),
        "rule": finding.rule.name(),
        "file": finding.what.file.as_ref().map(|file| file.display().to_string()),
        "tensor": finding.what.tensor,
        "expected": finding.what.expected,
        "found": finding.what.found,
        "message": finding.to_string(),
    })
}

/// A finding in words.
pub(crate) fn finding_line(finding: &Finding) -> String {
    format!("{} ({}): {finding}", finding.level.name(), finding.rule)
}

fn lines(report: &Report, seconds: f64) -> Vec<String> {
    let mut lines: Vec<String> = report.findings.iter().map(finding_line).collect();
    let what = match (report.format, report.layout) {
        (Some(format), Some(layout)) => format!(" ({}, {layout})", format.name()),
        _ => String::new(),
    };
    let verdict = report.verdict();
    let good = format!(
        "{} and {} saved as they are have their sha256",
        count(report.packed_tensors, "packed tensor"),
        report.plain_tensors
    );
    let rest = match verdict {
        Verdict::Good => format!("every rule holds; {good}"),
        Verdict::Unchecked => format!(
            "every rule holds; {good}; this checkpoint has no sha256 of {}",
            count(report.unchecked_tensors, "other tensor")
        ),
        Verdict::Damaged => format!("{}; {good}", count(report.findings.len() as u64, "finding")),
    };
    lines.push(format!(
        "{}: `{}`{what}: {rest}; {} in {seconds:.1} s ({})",
        verdict.name(),
        report.path.display(),
        bytes(report.bytes),
        rate(report.bytes, seconds)
    ));
    lines
}
