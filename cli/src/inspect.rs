//! `glyd inspect`.

use std::path::Path;

use glyd_format::finding::Finding;
use glyd_format::layout::BASE_BYTES;
use glyd_format::manifest::{MANIFEST_NAME, PackEntry, Version};
use glyd_format::packed::Opened;
use glyd_format::{Checkpoint, Coding, Layout, Packed};
use glyd_packers::{Options, SHARD_BYTES, Summary};
use serde_json::{Value, json};

use crate::args::Inspect;
use crate::output::{self, Failure, SCHEMA, Status, bytes, count};
use crate::pack::{check_folder, source};
use crate::verify::{finding, finding_line};

pub(crate) fn run(args: &Inspect) -> Result<Status, Failure> {
    check_folder(&args.dir)?;
    if args.dir.join(MANIFEST_NAME).exists() { inspect_packed(args) } else { inspect_source(args) }
}

/// A checkpoint that is not packed: what packing it would do.
fn inspect_source(args: &Inspect) -> Result<Status, Failure> {
    let checkpoint = Checkpoint::open(&args.dir)?;
    let options = Options {
        layout: Layout::Mma,
        merge: true,
        cast: false,
        shard_bytes: SHARD_BYTES,
        threads: None,
        source: source(&args.dir),
    };
    let summary = glyd_packers::plan(&checkpoint, &options)?;
    if args.json {
        output::print_json(&source_document(&summary, &args.dir))?;
    } else {
        output::print(&source_text(&summary, &args.dir))?;
    }
    Ok(Status::Good)
}

fn source_document(summary: &Summary, dir: &Path) -> Value {
    let packs: Vec<Value> = summary
        .matrices
        .iter()
        .map(|pack| json!({ "pack": pack.pack, "shape": pack.shape, "tensors": pack.tensors, "experts": pack.experts }))
        .collect();
    let plain: Vec<Value> = summary
        .left
        .iter()
        .map(|left| {
            let dtype = left.dtype.to_string();
            json!({ "tensor": left.tensor, "dtype": dtype, "shape": left.shape, "bytes": left.bytes, "reason": left.reason })
        })
        .collect();
    let dropped: Vec<Value> = summary
        .dropped
        .iter()
        .map(|dropped| json!({ "tensor": dropped.tensor, "bytes": dropped.bytes, "reason": dropped.reason }))
        .collect();
    json!({
        "schema": SCHEMA,
        "command": "inspect",
        "path": dir.display().to_string(),
        "packed": false,
        "packs": packs,
        "plain": plain,
        "dropped": dropped,
        "notes": summary.notes,
        "bytes": { "source": summary.bytes.source, "packed_source": summary.bytes.packed_source, "plain": summary.bytes.plain },
    })
}

fn source_text(summary: &Summary, dir: &Path) -> String {
    let mut text = format!("`{}`: not packed; `glyd pack` would save\n", dir.display());
    for pack in &summary.matrices {
        let [rows, columns] = pack.shape;
        let experts =
            pack.experts.map(|experts| format!(", {}", count(experts, "expert"))).unwrap_or_default();
        text.push_str(&format!("  packed  {} {rows} x {columns}{experts}\n", pack.pack));
        if pack.tensors.len() > 1 {
            pack.tensors.iter().for_each(|tensor| text.push_str(&format!("            {tensor}\n")));
        }
    }
    for left in &summary.left {
        text.push_str(&format!(
            "  as is   {} {} {:?} ({})\n",
            left.tensor, left.dtype, left.shape, left.reason
        ));
    }
    for dropped in &summary.dropped {
        text.push_str(&format!(
            "  dropped {} {} ({})\n",
            dropped.tensor,
            bytes(dropped.bytes),
            dropped.reason
        ));
    }
    summary.notes.iter().for_each(|note| text.push_str(&format!("  note    {note}\n")));
    text.push_str(&format!(
        "{} to pack: {}; {} as they are: {}\n",
        count(summary.packs, "matrix"),
        bytes(summary.bytes.packed_source),
        count(summary.plain_tensors, "tensor"),
        bytes(summary.bytes.plain)
    ));
    text
}

/// A pack, as its headers and its entry have it.
struct PackLine<'a> {
    name: &'a str,
    entry: &'a PackEntry,
    bytes: u64,
    /// Units of the steps' parts of the list: exceptions, of `mma12`.
    list: u64,
}

impl PackLine<'_> {
    fn weights(&self) -> u64 {
        self.entry.shape[0].saturating_mul(self.entry.shape[1])
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn bits_per_weight(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.weights().max(1) as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn bytes_per_step(&self) -> f64 {
        let weights = glyd_format::step::STEP_WEIGHTS as f64;
        self.bytes as f64 * weights / self.weights().max(1) as f64
    }

    fn exceptions(&self) -> Option<u64> {
        matches!(self.entry.coding, Coding::Mma12(_)).then_some(self.list)
    }
}

fn inspect_packed(args: &Inspect) -> Result<Status, Failure> {
    let Opened { packed, findings } = Packed::open(&args.dir)?;
    let Some(packed) = packed else {
        return damaged(args, &findings);
    };
    if findings.iter().any(|finding| finding.level == glyd_format::finding::Level::Damage) {
        return damaged(args, &findings);
    }
    let mut lines = Vec::new();
    for (name, entry) in &packed.manifest().packs {
        let Some(buffers) = packed.buffers(name, entry) else { continue };
        let size = |at| packed.weights().tensor(at).bytes();
        let base = size(buffers.base);
        let mut last = [0; BASE_BYTES];
        packed.weights().read_at(buffers.base, &mut last, base - BASE_BYTES as u64)?;
        let end = u64::try_from(i32::from_le_bytes(last)).unwrap_or(0);
        let list = end.saturating_sub(entry.coding.layout().list_head_units());
        lines.push(PackLine { name, entry, bytes: size(buffers.data) + size(buffers.list) + base, list });
    }
    if args.json {
        output::print_json(&packed_document(&packed, &lines, &findings))?;
    } else {
        output::print(&packed_text(&packed, &lines))?;
    }
    Ok(Status::Good)
}

fn damaged(args: &Inspect, findings: &[Finding]) -> Result<Status, Failure> {
    if args.json {
        let findings: Vec<Value> = findings.iter().map(finding).collect();
        output::print_json(&json!({
            "schema": SCHEMA,
            "command": "inspect",
            "path": args.dir.display().to_string(),
            "packed": true,
            "findings": findings,
        }))?;
    } else {
        output::print(&findings.iter().map(finding_line).collect::<String>())?;
    }
    Ok(Status::No)
}

/// Names and bytes of what is saved as it is.
fn plain(packed: &Packed) -> Vec<(&str, &glyd_format::header::Tensor)> {
    let names = packed.manifest().tensors.iter().flatten();
    names
        .filter_map(|(name, _)| Some((name.as_str(), packed.weights().tensor(packed.weights().find(name)?))))
        .collect()
}

fn packed_document(packed: &Packed, lines: &[PackLine<'_>], findings: &[Finding]) -> Value {
    let manifest = packed.manifest();
    let Version([major, minor, patch]) = manifest.glyd;
    let packs: Vec<Value> = lines
        .iter()
        .map(|line| {
            json!({
                "pack": line.name,
                "shape": line.entry.shape,
                "tensors": line.entry.tensors.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(),
                "experts": line.entry.experts.map(|experts| experts.count),
                "bytes": line.bytes,
                "bits_per_weight": line.bits_per_weight(),
                "bytes_per_step": line.bytes_per_step(),
                "exceptions": line.exceptions(),
            })
        })
        .collect();
    let plain_tensors = plain(packed);
    let total: u64 = plain_tensors.iter().map(|(_, tensor)| tensor.bytes()).sum();
    let plain: Vec<Value> = plain_tensors
        .into_iter()
        .map(|(name, tensor)| {
            let dtype = tensor.dtype.to_string();
            json!({ "tensor": name, "dtype": dtype, "shape": tensor.shape, "bytes": tensor.bytes() })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "command": "inspect",
        "path": packed.dir().display().to_string(),
        "packed": true,
        "format": manifest.format.name(),
        "layout": manifest.layout.name(),
        "glyd": format!("{major}.{minor}.{patch}"),
        "source": { "repo": manifest.source.display(), "revision": manifest.source.revision },
        "packs": packs,
        "plain": plain,
        "bytes": { "packed": lines.iter().map(|line| line.bytes).sum::<u64>(), "plain": total },
        "bits_per_weight": over_all(lines),
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn over_all(lines: &[PackLine<'_>]) -> Option<f64> {
    let weights: u64 = lines.iter().map(PackLine::weights).sum();
    let bytes: u64 = lines.iter().map(|line| line.bytes).sum();
    (weights > 0).then(|| bytes as f64 * 8.0 / weights as f64)
}

fn packed_text(packed: &Packed, lines: &[PackLine<'_>]) -> String {
    let manifest = packed.manifest();
    let source = &manifest.source;
    let revision = source.revision.as_deref().map(|revision| format!(" at {revision}")).unwrap_or_default();
    let mut text = format!(
        "`{}`: {}, {}, packed from `{}`{revision}\n",
        packed.dir().display(),
        manifest.format.name(),
        manifest.layout,
        source.display()
    );
    let name_width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).max(4);
    if !lines.is_empty() {
        let exceptions = if manifest.layout == Layout::Mma12 { "  exceptions" } else { "" };
        text.push_str(&format!(
            "{:name_width$}  {:>17}  bits a weight  bytes a step{exceptions}\n",
            "pack", "shape"
        ));
    }
    for line in lines {
        let [rows, columns] = line.entry.shape;
        let shape = format!("{rows} x {columns}");
        let exceptions = line.exceptions().map(|count| format!("  {count:>10}")).unwrap_or_default();
        text.push_str(&format!(
            "{:name_width$}  {shape:>17}  {:>13.3}  {:>12.1}{exceptions}\n",
            line.name,
            line.bits_per_weight(),
            line.bytes_per_step()
        ));
    }
    let plain = plain(packed);
    let total = plain.iter().map(|(_, tensor)| tensor.bytes()).sum();
    for (name, tensor) in &plain {
        text.push_str(&format!("{name}  {} {:?}\n", tensor.dtype, tensor.shape));
    }
    let bits = over_all(lines).map(|bits| format!(", {bits:.3} bits a weight")).unwrap_or_default();
    text.push_str(&format!(
        "{} packed: {}{bits}; {} as they are: {}\n",
        count(lines.len() as u64, "matrix"),
        bytes(lines.iter().map(|line| line.bytes).sum()),
        count(plain.len() as u64, "tensor"),
        bytes(total)
    ));
    text
}
