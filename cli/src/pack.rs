//! `glyd pack`.

use glyd_format::Checkpoint;
use glyd_format::manifest::Source;
use glyd_packers::{Options, Summary};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::Pack;
use crate::meter::Meter;
use crate::model;
use crate::output::{self, Failure, SCHEMA, Status, bytes, count, rate};

/// Lines of a list that people read; the rest is in `--json`.
const LIST_LINES: usize = 10;

pub(crate) fn run(args: &Pack) -> Result<Status, Failure> {
    let meter = Meter::new("packing", args.voice.quiet || args.dry_run);
    let model::Opened { checkpoint, source, arriving } = model::open(args, &meter)?;
    if !args.voice.quiet {
        say_notes(&checkpoint);
    }
    let options = options(args, source);
    let summary = if args.dry_run {
        glyd_packers::plan(&checkpoint, &options)
    } else {
        glyd_packers::pack(&checkpoint, &args.out, &options, &meter)
    };
    meter.finish();
    if let Some(arriving) = arriving {
        arriving.close();
        // The Hub's own error says more than that of the file that did not come.
        if let Some(error) = arriving.failure().filter(|_| summary.is_err()) {
            return Err(error.into());
        }
    }
    let summary = summary?;
    if !args.voice.quiet {
        say_dropped(&summary);
    }
    let seconds = meter.seconds();
    if args.voice.json {
        output::print_json(&document(&summary, args, seconds))?;
    } else if !args.voice.quiet {
        output::print_lines(&lines(&summary, &checkpoint, args, seconds))?;
    }
    Ok(Status::Good)
}

/// Says which of a model's files are left alone.
pub(crate) fn say_notes(checkpoint: &Checkpoint) {
    checkpoint.notes().iter().for_each(|note| output::say(&format!("glyd: note: {note}")));
}

/// Warns where the packed checkpoint does not have all of the source.
fn say_dropped(summary: &Summary) {
    if !summary.dropped.is_empty() {
        let tensors = count(summary.dropped.len() as u64, "tensor");
        let total = summary.dropped.iter().map(|dropped| dropped.bytes).sum();
        let lost = bytes(total);
        output::say(&format!(
            "glyd: warning: {tensors} ({lost}) of the source are not saved, whole or in part: --json lists them"
        ));
    }
}

fn options(args: &Pack, source: Source) -> Options {
    Options {
        layout: args.layout,
        merge: !args.no_merge,
        cast: args.cast,
        shard_bytes: args.shard_size,
        threads: args.threads,
        source,
    }
}

/// The document of `glyd pack --json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    command: &'static str,
    source: Value,
    out: String,
    format: &'static str,
    layout: &'static str,
    packs: u64,
    packed_tensors: u64,
    plain_tensors: u64,
    dropped_tensors: u64,
    bytes: Value,
    bits_per_weight: Option<f64>,
    seconds: Option<f64>,
    files: Option<Vec<Value>>,
    left: Vec<Value>,
    dropped: Vec<Value>,
    notes: &'a [String],
}

fn document<'a>(summary: &'a Summary, args: &Pack, seconds: f64) -> Document<'a> {
    let Summary { source, bytes, .. } = summary;
    let files = summary.files.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes }));
    let left = summary.left.iter().map(|left| {
        let dtype = left.dtype.to_string();
        json!({ "tensor": left.tensor, "dtype": dtype, "shape": left.shape, "bytes": left.bytes, "reason": left.reason })
    });
    let dropped = summary
        .dropped
        .iter()
        .map(|dropped| json!({ "tensor": dropped.tensor, "bytes": dropped.bytes, "reason": dropped.reason }));
    Document {
        schema: SCHEMA,
        command: "pack",
        source: json!({
            "repo": source.display(),
            "revision": source.revision,
            "path": summary.path.display().to_string(),
        }),
        out: args.out.display().to_string(),
        format: summary.format.name(),
        layout: summary.layout.name(),
        packs: summary.packs,
        packed_tensors: summary.packed_tensors,
        plain_tensors: summary.plain_tensors,
        dropped_tensors: summary.dropped.len() as u64,
        bytes: json!({
            "source": bytes.source,
            "packed_source": bytes.packed_source,
            "packed": bytes.packed,
            "plain": bytes.plain,
            "written": bytes.written,
        }),
        bits_per_weight: summary.bits_per_weight(),
        seconds: (!args.dry_run).then_some(seconds),
        files: (!args.dry_run).then(|| files.collect()),
        left: left.collect(),
        dropped: dropped.collect(),
        notes: &summary.notes,
    }
}

/// What was done, or would be, in words.
fn lines(summary: &Summary, checkpoint: &Checkpoint, args: &Pack, seconds: f64) -> Vec<String> {
    let mut lines = Vec::new();
    let head = if args.dry_run { "would pack" } else { "packed" };
    lines.push(format!(
        "{head} `{}` into `{}`: {}, {}",
        args.model.display(),
        args.out.display(),
        summary.format.name(),
        summary.layout
    ));
    let bits = summary.bits_per_weight().map(|bits| format!(", {bits:.3} bits a weight"));
    let becomes = summary.bytes.packed.map(|packed| format!(" -> {}", bytes(packed)));
    lines.push(format!(
        "  packed   {} of {}: {}{}{}",
        count(summary.packs, "matrix"),
        count(summary.packed_tensors, "tensor"),
        bytes(summary.bytes.packed_source),
        becomes.unwrap_or_default(),
        bits.unwrap_or_default()
    ));
    lines.push(format!(
        "  as is    {}: {}",
        count(summary.plain_tensors, "tensor"),
        bytes(summary.bytes.plain)
    ));
    lines.extend(left_lines(summary));
    if summary.cast_tensors > 0 {
        lines.push(format!(
            "  cast     {} to bf16: bits were lost, as --cast asks",
            count(summary.cast_tensors, "tensor")
        ));
    }
    if summary.widened_tensors > 0 {
        let widened = count(summary.widened_tensors, "tensor");
        lines.push(format!("  widened  {widened} from bf16 to fp32, which the model keeps them in: exact"));
    }
    lines.extend(dropped_lines(summary));
    // Those of the checkpoint are on stderr.
    let notes = summary.notes.iter().filter(|note| !checkpoint.notes().contains(note));
    lines.extend(notes.map(|note| format!("  note     {note}")));
    if !summary.copied.is_empty() {
        let verb = if args.dry_run { "to copy" } else { "copied " };
        let total = summary.copied.iter().map(|(_, bytes)| bytes).sum();
        lines.push(format!("  {verb}  {}: {}", count(summary.copied.len() as u64, "file"), bytes(total)));
    }
    if let Some(written) = summary.bytes.written {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let percent = written as f64 * 100.0 / summary.bytes.source.max(1) as f64;
        lines.push(format!(
            "  in all   {} -> {} ({percent:.1} %), in {seconds:.1} s ({})",
            bytes(summary.bytes.source),
            bytes(written),
            rate(summary.bytes.source, seconds)
        ));
    }
    lines
}

/// Why tensors are saved as they are: a line a reason, the most bytes first.
fn left_lines(summary: &Summary) -> Vec<String> {
    let mut reasons: Vec<(&str, u64, u64)> = Vec::new();
    for left in &summary.left {
        match reasons.iter_mut().find(|(reason, _, _)| *reason == left.reason) {
            Some((_, tensors, total)) => {
                *tensors += 1;
                *total += left.bytes;
            }
            None => reasons.push((&left.reason, 1, left.bytes)),
        }
    }
    reasons.sort_by_key(|(_, _, total)| std::cmp::Reverse(*total));
    let lines = reasons.iter().take(LIST_LINES);
    let mut lines: Vec<String> = lines
        .map(|(reason, tensors, total)| {
            format!("             {}: {} ({reason})", count(*tensors, "tensor"), bytes(*total))
        })
        .collect();
    if reasons.len() > LIST_LINES {
        lines.push(format!("             and {} more reasons: see --json", reasons.len() - LIST_LINES));
    }
    lines
}

fn dropped_lines(summary: &Summary) -> Vec<String> {
    if summary.dropped.is_empty() {
        return Vec::new();
    }
    let total = summary.dropped.iter().map(|dropped| dropped.bytes).sum();
    let mut lines = vec![format!(
        "  dropped  {}: {}, which the model does not hold",
        count(summary.dropped.len() as u64, "tensor"),
        bytes(total)
    )];
    let shown = summary.dropped.iter().take(LIST_LINES);
    lines.extend(shown.map(|dropped| {
        format!("             `{}`: {} ({})", dropped.tensor, bytes(dropped.bytes), dropped.reason)
    }));
    if summary.dropped.len() > LIST_LINES {
        lines.push(format!("             and {} more: see --json", summary.dropped.len() - LIST_LINES));
    }
    lines
}
