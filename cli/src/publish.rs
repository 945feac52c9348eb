//! `glyd publish`.

use glyd_verify::{Options, Report, Verdict};
use serde_json::{Value, json};

use crate::args::Publish;
use crate::hub::{self, Published, RepoId, Settings, Target};
use crate::meter::Meter;
use crate::model::check_folder;
use crate::output::{self, Failure, SCHEMA, Status, bytes, count};
use crate::verify::{finding, finding_line};

/// The branch that is published to, where none is named.
const REVISION: &str = "main";

pub(crate) fn run(args: &Publish) -> Result<Status, Failure> {
    check_folder(&args.dir)?;
    let wrong = || Failure::Usage(format!("`{}` is no name of a model on the Hub: owner/name", args.repo));
    let repo = RepoId::parse(&args.repo).ok_or_else(wrong)?;
    let meter = Meter::new("verifying", args.voice.quiet);
    let report = glyd_verify::verify(&args.dir, &Options { threads: args.threads }, &meter);
    meter.finish();
    let report = report?;
    if report.verdict() != Verdict::Good {
        return refuse(args, &report);
    }
    let revision = args.revision.as_deref().unwrap_or(REVISION);
    let target = Target { repo: &repo, revision, private: args.private };
    let meter = Meter::new("uploading", args.voice.quiet);
    let published = hub::publish(&args.dir, &target, Settings::from_env()?, meter.stop(), &meter);
    meter.finish();
    let published = published?;
    if args.voice.json {
        output::print_json(&document(args, &target, &report, Some(&published), meter.seconds()))?;
    } else if !args.voice.quiet {
        output::print_lines(&lines(&published))?;
    }
    Ok(Status::Good)
}

/// What does not verify is not published.
fn refuse(args: &Publish, report: &Report) -> Result<Status, Failure> {
    output::say(&format!(
        "glyd: `{}` is {}, and was not published: `glyd verify` tells more",
        args.dir.display(),
        report.verdict().name()
    ));
    let revision = args.revision.as_deref().unwrap_or(REVISION);
    if args.voice.json {
        let wrong = || Failure::Usage(args.repo.clone());
        let repo = RepoId::parse(&args.repo).ok_or_else(wrong)?;
        let target = Target { repo: &repo, revision, private: args.private };
        output::print_json(&document(args, &target, report, None, 0.0))?;
    } else {
        output::print_lines(&report.findings.iter().map(finding_line).collect::<Vec<_>>())?;
    }
    Ok(Status::No)
}

fn document(
    args: &Publish,
    target: &Target<'_>,
    report: &Report,
    published: Option<&Published>,
    seconds: f64,
) -> Value {
    let files = |files: &[(String, u64)]| -> Vec<Value> {
        files.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect()
    };
    json!({
        "schema": SCHEMA,
        "command": "publish",
        "path": args.dir.display().to_string(),
        "repo": target.repo.name(),
        "revision": target.revision,
        "verdict": report.verdict().name(),
        "commit": published.and_then(|published| published.commit.as_deref()),
        "url": published.map(|published| published.url.as_str()),
        "uploaded": published.map(|published| files(&published.uploaded)),
        "unchanged": published.map(|published| files(&published.unchanged)),
        "removed": published.map(|published| published.removed.clone()),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "seconds": published.map(|_| seconds),
    })
}

fn lines(published: &Published) -> Vec<String> {
    let total = |files: &[(String, u64)]| bytes(files.iter().map(|(_, bytes)| bytes).sum());
    let files = |files: &[(String, u64)]| format!("{} ({})", count(files.len() as u64, "file"), total(files));
    let mut lines = vec![match &published.commit {
        Some(commit) => format!("published {} as commit {commit}", published.url),
        None => format!("{} has all of it already", published.url),
    }];
    lines.push(format!("  uploaded   {}", files(&published.uploaded)));
    lines.push(format!("  unchanged  {}", files(&published.unchanged)));
    if !published.removed.is_empty() {
        lines.push(format!(
            "  removed    `{}`: weights of an older checkpoint",
            published.removed.join("`, `")
        ));
    }
    lines
}
