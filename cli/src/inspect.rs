//! `glyd inspect`.

use std::collections::HashSet;
use std::path::Path;

use glyd_format::finding::{Finding, Level};
use glyd_format::header::Tensor;
use glyd_format::layout::BASE_BYTES;
use glyd_format::manifest::{MANIFEST_NAME, PackEntry, Version, buffer_name};
use glyd_format::packed;
use glyd_format::{Buffer, Checkpoint, Coding, Layout, Packed};
use glyd_packers::{Options, SHARD_BYTES, Summary};
use serde_json::{Value, json};

use crate::args::Inspect;
use crate::meter::Meter;
use crate::model::{self, Looked, Opened, source};
use crate::output::{self, Failure, SCHEMA, Status, bytes, count};
use crate::pack::say_notes;
use crate::verify::{finding, finding_line};

pub(crate) fn run(args: &Inspect) -> Result<Status, Failure> {
    // Silent: it is there so that an interrupt ends what is asked of the Hub.
    let meter = Meter::new("looking", true);
    let dir = match model::look(args, &meter)? {
        Looked::Headers(opened) => return inspect_source(args, &args.dir, *opened),
        Looked::Folder(dir) => dir,
    };
    // A link that dangles is there too.
    if std::fs::symlink_metadata(dir.join(MANIFEST_NAME)).is_ok() {
        return inspect_packed(&Inspect { dir, ..args.clone() });
    }
    let opened = Opened { checkpoint: Checkpoint::open(&dir)?, source: source(&dir), arriving: None };
    inspect_source(args, &dir, opened)
}

/// A checkpoint that is not packed: what packing it would do.
fn inspect_source(args: &Inspect, dir: &Path, opened: Opened) -> Result<Status, Failure> {
    let Opened { checkpoint, source, arriving } = opened;
    say_notes(&checkpoint);
    let options = Options {
        layout: Layout::Mma,
        merge: true,
        cast: false,
        shard_bytes: SHARD_BYTES,
        threads: None,
        source,
    };
    let summary = glyd_packers::plan(&checkpoint, &options);
    if let Some(arriving) = arriving {
        arriving.close();
    }
    let summary = summary?;
    if args.json {
        output::print_json(&source_document(&summary, dir))?;
    } else {
        output::print_lines(&source_lines(&summary, &checkpoint, dir))?;
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

fn source_lines(summary: &Summary, checkpoint: &Checkpoint, dir: &Path) -> Vec<String> {
    let mut lines = vec![format!("`{}`: not packed; `glyd pack` would save", dir.display())];
    for pack in &summary.matrices {
        let [rows, columns] = pack.shape;
        let experts =
            pack.experts.map(|experts| format!(", {}", count(experts, "expert"))).unwrap_or_default();
        lines.push(format!("  packed   {} {rows} x {columns}{experts}", pack.pack));
        if pack.tensors.len() > 1 {
            lines.extend(pack.tensors.iter().map(|tensor| format!("             {tensor}")));
        }
    }
    lines.extend(
        summary.left.iter().map(|left| {
            format!("  as is    {} {} {:?} ({})", left.tensor, left.dtype, left.shape, left.reason)
        }),
    );
    lines.extend(summary.dropped.iter().map(|dropped| {
        format!("  dropped  {} {} ({})", dropped.tensor, bytes(dropped.bytes), dropped.reason)
    }));
    // Those of the checkpoint are on stderr.
    let notes = summary.notes.iter().filter(|note| !checkpoint.notes().contains(note));
    lines.extend(notes.map(|note| format!("  note     {note}")));
    lines.push(format!(
        "{} to pack: {}; {} as they are: {}",
        count(summary.packs, "matrix"),
        bytes(summary.bytes.packed_source),
        count(summary.plain_tensors, "tensor"),
        bytes(summary.bytes.plain)
    ));
    lines
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
    let packed::Opened { packed, findings } = Packed::open(&args.dir)?;
    let damage = findings.iter().any(|finding| finding.level == Level::Damage);
    let Some(packed) = packed.filter(|_| !damage) else {
        return damaged(args, &findings);
    };
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
        output::print_lines(&packed_lines(&packed, &lines, &findings))?;
    }
    Ok(Status::Good)
}

/// A checkpoint that is not what it says: only what was found is told.
fn damaged(args: &Inspect, findings: &[Finding]) -> Result<Status, Failure> {
    if args.json {
        let findings: Vec<Value> = findings.iter().map(finding).collect();
        output::print_json(&json!({
            "schema": SCHEMA,
            "command": "inspect",
            "path": args.dir.display().to_string(),
            "packed": true,
            "format": null,
            "layout": null,
            "glyd": null,
            "source": null,
            "packs": null,
            "plain": null,
            "bytes": null,
            "bits_per_weight": null,
            "findings": findings,
        }))?;
    } else {
        output::print_lines(&findings.iter().map(finding_line).collect::<Vec<_>>())?;
    }
    Ok(Status::No)
}

/// Names and headers of what is saved as it is: in the manifest's order, where it has one.
pub(crate) fn plain(packed: &Packed) -> Vec<(&str, &Tensor)> {
    let weights = packed.weights();
    let tensor = |name| Some((name, weights.tensor(weights.find(name)?)));
    if let Some(tensors) = &packed.manifest().tensors {
        return tensors.iter().filter_map(|(name, _)| tensor(name)).collect();
    }
    let mut buffers = HashSet::new();
    for (name, entry) in &packed.manifest().packs {
        let layout = entry.coding.layout();
        buffers.extend(Buffer::ALL.map(|buffer| buffer_name(name, entry.experts.is_some(), layout, buffer)));
    }
    weights.names().filter(|name| !buffers.contains(*name)).filter_map(tensor).collect()
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

fn packed_lines(packed: &Packed, packs: &[PackLine<'_>], findings: &[Finding]) -> Vec<String> {
    let manifest = packed.manifest();
    let source = &manifest.source;
    let revision = source.revision.as_deref().map(|revision| format!(" at {revision}")).unwrap_or_default();
    let mut lines: Vec<String> = findings.iter().map(finding_line).collect();
    lines.push(format!(
        "`{}`: {}, {}, packed from `{}`{revision}",
        packed.dir().display(),
        manifest.format.name(),
        manifest.layout,
        source.display()
    ));
    let name_width = packs.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).max(4);
    if !packs.is_empty() {
        let exceptions = if manifest.layout == Layout::Mma12 { "  exceptions" } else { "" };
        lines.push(format!(
            "{:name_width$}  {:>17}  bits a weight  bytes a step{exceptions}",
            "pack", "shape"
        ));
    }
    for line in packs {
        let [rows, columns] = line.entry.shape;
        let shape = format!("{rows} x {columns}");
        let exceptions = line.exceptions().map(|count| format!("  {count:>10}")).unwrap_or_default();
        lines.push(format!(
            "{:name_width$}  {shape:>17}  {:>13.3}  {:>12.1}{exceptions}",
            line.name,
            line.bits_per_weight(),
            line.bytes_per_step()
        ));
    }
    let plain = plain(packed);
    let total = plain.iter().map(|(_, tensor)| tensor.bytes()).sum();
    for (name, tensor) in &plain {
        lines.push(format!("{name}  {} {:?}", tensor.dtype, tensor.shape));
    }
    let bits = over_all(packs).map(|bits| format!(", {bits:.3} bits a weight")).unwrap_or_default();
    lines.push(format!(
        "{} packed: {}{bits}; {} as they are: {}",
        count(packs.len() as u64, "matrix"),
        bytes(packs.iter().map(|line| line.bytes).sum()),
        count(plain.len() as u64, "tensor"),
        bytes(total)
    ));
    lines
}
