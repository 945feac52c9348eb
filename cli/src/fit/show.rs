//! What `glyd fit` prints: a short table, every term of it, or one document.

use glyd_gpu::fit::{Basis, Gpu, TIGHT_PERCENT};
use serde_json::{Map, Value, json};

use super::{Answer, Judged, KEPT, Row, Verdict};
use crate::output::{SCHEMA, bytes, count};

/// The document of `--json`.
pub(super) fn document(answer: &Answer<'_>) -> Value {
    let needs = &answer.needs;
    let [bf16, mma, mma12] = [0, 1, 2].map(|at| answer.rows.get(at).map(|row| row.weights_bytes));
    let layers: Vec<Value> = needs
        .layers
        .iter()
        .map(|layers| json!({ "kind": layers.kind, "count": layers.count, "bytes": layers.bytes }))
        .collect();
    let (fits, max_context) = judged(answer, answer.gpu.as_ref());
    let any = (!answer.table.is_empty()).then(|| {
        let any = |row: &Row| answer.table.iter().any(|gpu| answer.judge(row, gpu).verdict != Verdict::No);
        by_kept(answer, |row| any(row).into())
    });
    let cards: Vec<Value> = answer
        .table
        .iter()
        .map(|gpu| {
            let (fits, max_context) = judged(answer, Some(gpu));
            json!({ "name": gpu.name, "total_bytes": gpu.total_bytes, "fits": fits, "max_context": max_context })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "command": "fit",
        "model": answer.args.model,
        "revision": answer.source.revision,
        "parameters": answer.weights.parameters,
        "context": needs.context,
        "batch": answer.args.batch,
        "tensor_parallel": answer.tensor_parallel,
        "gpu": answer.gpu.as_ref().map(|gpu| json!({
            "name": gpu.name, "count": gpu.count, "total_bytes": gpu.total_bytes, "free_bytes": gpu.free_bytes,
        })),
        "weights": {
            "bf16_bytes": bf16, "mma_bytes": mma, "mma12_bytes": mma12,
            "basis": answer.weights.basis.name(), "not_loaded_bytes": answer.weights.not_loaded_bytes(),
        },
        "cache": {
            "bytes": needs.cache_bytes, "per_token_bytes": needs.token_bytes,
            "fixed_bytes": needs.fixed_bytes, "layers": layers,
        },
        "runtime_bytes": answer.args.runtime,
        "needs": by_kept(answer, |row| row.needs_bytes.into()),
        "fits": any.unwrap_or(fits),
        "max_context": max_context,
        "cards": (!cards.is_empty()).then_some(cards),
        "assumptions": answer.assumptions,
    })
}

/// A value for each way to keep the model.
fn by_kept(answer: &Answer<'_>, value: impl Fn(&Row) -> Value) -> Value {
    Value::Object(answer.rows.iter().map(|row| (row.kept.to_owned(), value(row))).collect::<Map<_, _>>())
}

/// Whether each fits, and the longest context that does.
fn judged(answer: &Answer<'_>, gpu: Option<&Gpu>) -> (Value, Value) {
    let judge = |row: &Row| gpu.map(|gpu| answer.judge(row, gpu));
    let fits = by_kept(answer, |row| judge(row).map(|judged| judged.verdict != Verdict::No).into());
    (fits, by_kept(answer, |row| judge(row).and_then(|judged| judged.max_context).into()))
}

/// The lines that people read.
pub(super) fn lines(answer: &Answer<'_>) -> Vec<String> {
    let mut lines = vec![head(answer)];
    lines.extend(if answer.table.is_empty() { rows(answer) } else { over_cards(answer) });
    lines.extend(parts(answer));
    if answer.args.why {
        lines.extend(why(answer));
    }
    lines.extend(answer.assumptions.iter().map(|assumed| format!("  note: {assumed}")));
    lines
}

fn head(answer: &Answer<'_>) -> String {
    let revision = answer.source.revision.as_deref().map(|revision| format!(" at {revision}"));
    let on = answer.gpu.as_ref().map(|gpu| {
        let times = if gpu.count > 1 { format!("{} x ", gpu.count) } else { String::new() };
        format!(" on {times}{} ({} each)", gpu.name, gib(gpu.total_bytes))
    });
    format!(
        "`{}`{}{}: {} parameters, context {} tokens, batch {}",
        answer.args.model,
        revision.unwrap_or_default(),
        on.unwrap_or_default(),
        answer.weights.parameters,
        answer.needs.context,
        answer.args.batch
    )
}

/// The table: one line for each way to keep the model, with figures for each card.
fn rows(answer: &Answer<'_>) -> Vec<String> {
    let heads = ["", "weights", "cache", "runtime", "needs", "verdict", "longest context", "spare"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    for row in &answer.rows {
        let mut cells = vec![
            row.kept.to_owned(),
            gib(row.weights_bytes),
            gib(answer.needs.cache_bytes),
            gib(answer.args.runtime),
            gib(row.needs_bytes),
        ];
        if let Some(gpu) = &answer.gpu {
            let judged = answer.judge(row, gpu);
            let card = gpu.usable_bytes();
            let spare = match card.checked_sub(row.needs_bytes) {
                Some(spare) => gib(spare),
                None => format!("-{}", gib(row.needs_bytes - card)),
            };
            cells.extend([judged.verdict.name().to_owned(), longest(&judged), spare]);
        }
        table.push(cells);
    }
    let width = table.last().map_or(0, Vec::len);
    table.iter_mut().for_each(|cells| cells.truncate(width));
    aligned(&table)
}

/// The table of every card that is known.
fn over_cards(answer: &Answer<'_>) -> Vec<String> {
    let mut table = vec![vec!["card".to_owned(), "memory".to_owned()]];
    table.iter_mut().for_each(|head| head.extend(KEPT.map(str::to_owned)));
    for gpu in &answer.table {
        let mut cells = vec![gpu.name.clone(), gib(gpu.total_bytes)];
        cells.extend(answer.rows.iter().map(|row| {
            let judged = answer.judge(row, gpu);
            match judged.verdict {
                Verdict::No => "no".to_owned(),
                verdict => format!("{}, to {}", verdict.name(), longest(&judged)),
            }
        }));
        table.push(cells);
    }
    aligned(&table)
}

fn longest(judged: &Judged) -> String {
    judged.max_context.map_or("any".to_owned(), |tokens| format!("{tokens} tokens"))
}

/// Columns: the first to the left, the others to the right.
fn aligned(table: &[Vec<String>]) -> Vec<String> {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |at: usize| table.iter().filter_map(|cells| cells.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let line = |cells: &Vec<String>| {
        let mut line = String::new();
        for (at, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
            let cell = if at == 0 { format!("  {cell:<width$}") } else { format!("  {cell:>width$}") };
            line.push_str(&cell);
        }
        line.trim_end().to_owned()
    };
    table.iter().map(line).collect()
}

/// What the weights are of, and what of them is not loaded.
fn parts(answer: &Answer<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for ((component, dtype), tally) in &answer.weights.components {
        lines.push(format!(
            "  {}, {dtype}: {}, {}",
            component.name(),
            bytes(tally.bytes),
            count(tally.tensors, "tensor")
        ));
    }
    for (why, tally) in &answer.weights.not_loaded {
        let (size, tensors) = (bytes(tally.bytes), count(tally.tensors, "tensor"));
        lines.push(format!("  not loaded ({}): {size}, {tensors}", why.reason()));
    }
    let needs = &answer.needs;
    lines.push(format!("  cache: {} bytes for each further token of a sequence", needs.token_bytes));
    if needs.fixed_bytes > 0 {
        let sequences = count(answer.args.batch, "sequence");
        lines.push(format!("  state: {} whatever the context, for {sequences}", bytes(needs.fixed_bytes)));
    }
    lines
}

/// Every term and where it is from.
fn why(answer: &Answer<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let cards = answer.tensor_parallel;
    let basis = match answer.weights.basis {
        Basis::Estimated => {
            "estimated bits a weight, over the matrices that `glyd pack` would pack".to_owned()
        }
        Basis::Measured => "counted over the weights".to_owned(),
        Basis::Packed(layout) => format!("the files, for {layout}; the other layout is estimated"),
        Basis::NoGain => "as stored: nothing to pack".to_owned(),
    };
    for (row, weights) in
        answer.rows.iter().zip([answer.weights.bf16, answer.weights.mma, answer.weights.mma12])
    {
        let from = if row.kept == "bf16" { "the tensors' headers" } else { basis.as_str() };
        lines.push(format!(
            "  why: {} weights {} bytes = {} of matrices / {cards} + {} of all else ({from})",
            row.kept, row.weights_bytes, weights.split, weights.whole
        ));
    }
    for layers in &answer.needs.layers {
        lines.push(format!(
            "  why: cache {} bytes = {} of kind {}, at {} tokens, batch {} (config.json)",
            layers.bytes,
            count(layers.count, "layer"),
            layers.kind,
            answer.needs.context,
            answer.args.batch
        ));
    }
    lines.push(format!("  why: cache in all {} bytes on each card", answer.needs.cache_bytes));
    lines.push(format!("  why: runtime {} bytes on each card (assumed)", answer.args.runtime));
    for row in &answer.rows {
        lines.push(format!(
            "  why: {} needs {} bytes = {} + {} + {}",
            row.kept, row.needs_bytes, row.weights_bytes, answer.needs.cache_bytes, answer.args.runtime
        ));
    }
    if let Some(gpu) = &answer.gpu {
        let usable = gpu.usable_bytes();
        lines.push(format!(
            "  why: each card has {usable} bytes; tight is less than {TIGHT_PERCENT} % of them to spare"
        ));
    }
    lines
}

/// Bytes of memory, for people: cards are told of in these.
pub(super) fn gib(bytes: u64) -> String {
    let hundredths = (u128::from(bytes) * 100 + (1 << 29)) >> 30;
    format!("{}.{:02} GiB", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::gib;

    #[test]
    fn memory_is_told_in_gib() {
        assert_eq!(gib(3 << 29), "1.50 GiB");
        assert_eq!(gib(49_140 << 20), "47.99 GiB");
        assert_eq!(gib(0), "0.00 GiB");
    }
}
