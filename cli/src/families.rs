//! `glyd families`: the model types whose checkpoints are saved as the reference implementation does.

use std::fmt::Write as _;

use glyd_format::plan::{self, Conversion, ExpertsWeight, Family, Tensor, Tie};
use serde_json::{Value, json};

use crate::args::Families;
use crate::output::{self, Failure, SCHEMA, Status};

pub(crate) fn run(args: &Families) -> Result<Status, Failure> {
    let all = plan::families();
    let chosen: Vec<&Family> = match &args.model_type {
        Some(name) => all.iter().filter(|family| family.model_type == name).collect(),
        None => all.iter().collect(),
    };
    if let (Some(name), true) = (&args.model_type, chosen.is_empty()) {
        return Err(Failure::Usage(unknown(name, &all)));
    }
    match (args.json, args.model_type.is_some()) {
        (true, _) => output::print_json(&document(&chosen))?,
        (false, true) => output::print(&chosen.into_iter().map(family_text).collect::<String>())?,
        (false, false) => output::print(&list_text(&all))?,
    }
    Ok(Status::Good)
}

fn document(families: &[&Family]) -> Value {
    let made_with = plan::made_with();
    json!({
        "schema": SCHEMA,
        "command": "families",
        "made_with": { "transformers": made_with.transformers, "glyd": made_with.glyd },
        "families": families.iter().map(|family| family_json(family)).collect::<Vec<_>>(),
    })
}

fn family_json(family: &Family) -> Value {
    json!({
        "type": family.model_type,
        "class": family.class,
        "part": family.part,
        "needs": family.needs,
        "config": family.config,
        "packed": tensors_json(&family.packed),
        "merged": family.merged,
        "experts": each(&family.experts, |experts| json!({
            "tensor": experts.name,
            "optional": experts.optional,
            "transposed": experts.transposed,
            "count": experts.count,
        })),
        "embeddings": tensors_json(&family.embeddings),
        "plain": tensors_json(&family.plain),
        "ties": each(&family.ties, |tie| json!({ "target": tie.target, "source": tie.source, "default": tie.default })),
        "sub_models": each(&family.sub_models, |sub| json!({ "module": sub.module, "config": sub.config, "usual": sub.usual })),
        "lists": each(&family.lists, |(list, field)| json!({ "list": list, "length": field })),
        "conversions": each(&family.conversions, |c| json!({ "sources": c.sources, "targets": c.targets, "operations": c.operations })),
    })
}

fn tensors_json(tensors: &[Tensor]) -> Vec<Value> {
    each(tensors, |t| json!({ "tensor": t.name, "optional": t.optional, "fp32": t.fp32 }))
}

fn each<T>(all: &[T], json: impl Fn(&T) -> Value) -> Vec<Value> {
    all.iter().map(json).collect()
}

fn list_text(all: &[Family]) -> String {
    let width = |of: fn(&Family) -> &str| all.iter().map(|family| of(family).len()).max().unwrap_or(0);
    let (types, classes) = (width(|family| family.model_type), width(|family| family.class));
    let mut text = String::new();
    for family in all.iter().filter(|family| !family.part) {
        let needs = needs(family);
        let _ = writeln!(text, "{:types$}  {:classes$}  {needs}", family.model_type, family.class);
    }
    let parts: Vec<&str> = all.iter().filter(|family| family.part).map(|family| family.model_type).collect();
    let _ = writeln!(
        text,
        "{} model types, by transformers {}; as parts of others also {}",
        all.len() - parts.len(),
        plan::made_with().transformers,
        parts.join(", ")
    );
    text
}

fn needs(family: &Family) -> String {
    if family.needs.is_empty() { "nothing special".to_owned() } else { family.needs.join(", ") }
}

fn family_text(family: &Family) -> String {
    let mut text = format!("{}: {}\n", family.model_type, family.class);
    if family.part {
        text.push_str("known as a part of other models only\n");
    }
    if let Some(config) = family.config {
        let _ = writeln!(text, "built from `{config}` alone: what else the checkpoint holds is dropped");
    }
    let _ = writeln!(text, "needs: {}", needs(family));
    let merged: Vec<String> = family.merged.iter().map(|group| group.join(" + ")).collect();
    section(&mut text, "packed, each where its shape and dtype allow", &names(&family.packed));
    section(&mut text, "packed as one matrix, where all of them pack", &merged);
    section(&mut text, "packed as experts, all of a module or none", &experts(family));
    section(&mut text, "saved as they are, embeddings in their place", &names(&family.embeddings));
    section(&mut text, "saved as they are", &names(&family.plain));
    section(&mut text, "tied", &ties(family));
    let subs = family.sub_models.iter();
    let subs = subs.map(|sub| format!("{}: by `{}`, else {}", sub.module, sub.config, sub.usual));
    section(&mut text, "sub-models that config.json chooses", &subs.collect::<Vec<_>>());
    let lists = family.lists.iter().map(|(list, field)| format!("{list}: `{field}`"));
    section(&mut text, "lists, and the field with their length", &lists.collect::<Vec<_>>());
    section(&mut text, "names and values of the checkpoint that become the model's", &conversions(family));
    text
}

fn section(text: &mut String, title: &str, lines: &[String]) {
    if !lines.is_empty() {
        let _ = writeln!(text, "\n{title}:");
        lines.iter().for_each(|line| _ = writeln!(text, "  {line}"));
    }
}

fn names(tensors: &[Tensor]) -> Vec<String> {
    let line = |tensor: &Tensor| {
        let fp32 = if tensor.fp32 { " (fp32)" } else { "" };
        format!("{}{fp32}{}", tensor.name, where_there(tensor.optional))
    };
    tensors.iter().map(line).collect()
}

fn where_there(optional: bool) -> &'static str {
    if optional { " (where there)" } else { "" }
}

fn experts(family: &Family) -> Vec<String> {
    let line = |experts: &ExpertsWeight| {
        let held = if experts.transposed { " held as [in, out]" } else { "" };
        let count = experts.count.as_ref().map(|field| format!(", `{field}` of them")).unwrap_or_default();
        format!("{}{held}{count}{}", experts.name, where_there(experts.optional))
    };
    family.experts.iter().map(line).collect()
}

fn ties(family: &Family) -> Vec<String> {
    let line = |tie: &Tie| {
        let default = if tie.default { "unless config.json says not" } else { "where config.json says so" };
        let source = if tie.source == tie.target { "an earlier layer's" } else { &tie.source };
        format!("{} to {source}, {default}", tie.target)
    };
    family.ties.iter().map(line).collect()
}

fn conversions(family: &Family) -> Vec<String> {
    let line = |c: &Conversion| {
        let how =
            if c.operations.is_empty() { String::new() } else { format!(" ({})", c.operations.join(", ")) };
        format!("{} -> {}{how}", c.sources.join(" + "), c.targets.join(" + "))
    };
    family.conversions.iter().map(line).collect()
}

/// That a type is not known, and which ones may be meant.
fn unknown(name: &str, all: &[Family]) -> String {
    const NEAR: usize = 3;
    let near = |family: &&Family| {
        let known = family.model_type;
        let part = name.len() > 2 && (known.contains(name) || name.contains(known));
        let steps = if part { 1 } else { edits(name, known) };
        (steps <= 1 + name.chars().count() / 3).then_some((steps, known.len().abs_diff(name.len()), known))
    };
    let mut nearest: Vec<_> = all.iter().filter_map(|family| near(&family)).collect();
    nearest.sort_unstable();
    let nearest: Vec<String> = nearest.iter().take(NEAR).map(|(.., known)| format!("`{known}`")).collect();
    let hint = if nearest.is_empty() {
        "`glyd families` lists them all".to_owned()
    } else {
        format!("nearest: {}", nearest.join(", "))
    };
    format!("`{name}`: not a model type that is known; {hint}")
}

/// How many characters are to be added, taken away or changed to make one text of the other.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        for (a, b, n) in [
            ("", "", 0),
            ("", "ab", 2),
            ("llama", "lama", 1),
            ("qwen3", "qwen2", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!((edits(a, b), edits(b, a)), (n, n), "{a} {b}");
        }
    }

    #[test]
    fn names_the_nearest_of_an_unknown_type() {
        let all = plan::families();
        assert!(unknown("lama", &all).contains("`llama`"), "{}", unknown("lama", &all));
        assert!(unknown("qwen3-moe", &all).contains("`qwen3_moe`"));
        assert!(unknown("zzzzzzzzzzzz", &all).contains("lists them all"));
        assert!(unknown("", &all).contains("lists them all"));
    }

    #[test]
    fn explains_every_type() {
        for family in plan::families() {
            let text = family_text(&family);
            assert!(text.starts_with(&format!("{}: {}\n", family.model_type, family.class)));
            assert!(text.contains("packed"), "{text}");
            let document = family_json(&family);
            for key in [
                "packed",
                "merged",
                "experts",
                "embeddings",
                "plain",
                "ties",
                "sub_models",
                "lists",
                "conversions",
            ] {
                assert!(document[key].is_array(), "{} {key}", family.model_type);
            }
        }
    }
}
