//! The report at the end of `docs/families.md`: every model type, its goldens and what the plan of
//! each gives. Held to the table and the recipes; `GLYD_REPORT=write` writes it anew.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod plan_support;

use std::collections::BTreeMap;

use glyd_fixtures::Recipe;
use glyd_format::plan::families;

use plan_support::{Case, packs, plains, recipes};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/families.md");
/// What the report's part of the page begins and ends with.
const MARKS: [&str; 2] = ["<!-- report: begin -->\n", "<!-- report: end -->\n"];

/// Types of which no checkpoint of their own can be made, and why.
const NOT_MADE: [(&str, &str); 2] = [
    ("emu3", "its causal LM class takes the text model's own names alone: see `edge-emu3-names`"),
    ("evolla", "transformers' own AutoModel refuses its config"),
];

/// Whether a recipe shows a case, and not a model type.
fn special(recipe: &Recipe) -> bool {
    recipe.name.starts_with("edge-") || recipe.name.starts_with("plug-")
}

/// What the plan of a recipe is, by what its golden says.
fn result(recipe: &Recipe) -> String {
    let mut case = Case::recipe(recipe);
    if recipe.expected.is_empty() || recipe.name.starts_with("edge-missing-") {
        return match case.plan() {
            Err(_) => "refused, naming what is missing".to_owned(),
            Ok(_) => "saved without, with a note".to_owned(),
        };
    }
    for (variant, expected) in &recipe.expected {
        case.merge = variant != "mma-nomerge";
        match case.plan() {
            Ok(plan) if packs(&plan) == expected.packs && plains(&plan) == expected.tensors => {}
            _ => return "FAILS".to_owned(),
        }
    }
    "pass".to_owned()
}

/// What a recipe's golden holds.
fn golden(recipe: &Recipe) -> String {
    recipe.expected.get("mma").map_or("none".to_owned(), |golden| {
        let (packs, tensors) = (golden.packs.len(), golden.tensors.len());
        format!("{}, {packs} packs, {tensors} tensors", golden.format)
    })
}

/// A model type's row: its own recipe and those with a switch of their config thrown.
fn type_row(model_type: &str, class: &str, recipes: &[&Recipe]) -> String {
    let Some(first) = recipes.first() else {
        let why =
            NOT_MADE.iter().find(|(name, _)| *name == model_type).map_or("no golden yet", |(_, why)| why);
        return format!("| `{model_type}` | {class} | none | 0 | {why} |\n");
    };
    let mut results: Vec<String> = recipes.iter().map(|recipe| result(recipe)).collect();
    results.sort();
    results.dedup();
    let fails = if recipes.iter().any(|recipe| recipe.peer.is_some()) { " (A)" } else { "" };
    let (golden, count, results) = (golden(first), recipes.len(), results.join(", "));
    format!("| `{model_type}` | {class} | {golden} | {count} | {results}{fails} |\n")
}

fn case_row(recipe: &Recipe) -> String {
    let note = recipe.note.as_deref().map(|note| note.replace("the peer", "the reference"));
    let note = note.unwrap_or_else(|| "a composite with other sub-models than its usual ones".to_owned());
    let fails = if recipe.peer.is_some() { " (A)" } else { "" };
    let (name, model_type, result) = (&recipe.name, &recipe.model_type, result(recipe));
    format!("| `{name}` | `{model_type}` | {note} | {result}{fails} |\n")
}

fn report(recipes: &[Recipe]) -> String {
    let mut of_type: BTreeMap<&str, Vec<&Recipe>> = BTreeMap::new();
    for recipe in recipes.iter().filter(|recipe| !special(recipe)) {
        of_type.entry(&recipe.model_type).or_default().push(recipe);
    }
    let mut text =
        String::from("| model type | class | golden | recipes | result |\n| --- | --- | --- | --- | --- |\n");
    for family in families().iter().filter(|family| !family.part) {
        let own = of_type.get(family.model_type).map_or(&[][..], Vec::as_slice);
        text.push_str(&type_row(family.model_type, family.class, own));
    }
    text.push_str("\nThe special cases:\n\n| recipe | model type | what it shows | result |\n| --- | --- | --- | --- |\n");
    recipes.iter().filter(|recipe| special(recipe)).for_each(|recipe| text.push_str(&case_row(recipe)));
    text
}

fn between(page: &str) -> &str {
    let (_, rest) = page.split_once(MARKS[0]).unwrap();
    rest.split_once(MARKS[1]).unwrap().0
}

#[test]
fn the_report_has_every_type_and_every_case() {
    let recipes = recipes();
    let mut page = std::fs::read_to_string(PAGE).unwrap();
    let new = report(&recipes);
    assert!(!new.contains("FAILS"), "{new}");
    if std::env::var_os("GLYD_REPORT").is_some_and(|what| what == "write") {
        let (before, after) = (page.split_once(MARKS[0]).unwrap().0, page.rsplit_once(MARKS[1]).unwrap().1);
        page = [before, MARKS[0], &new, MARKS[1], after].concat();
        std::fs::write(PAGE, &page).unwrap();
    }
    let told = between(&page);
    // Of more recipes than these the page has rows that nothing here can hold it to.
    for family in families().iter().filter(|family| !family.part) {
        let start = format!("| `{}` | {} | ", family.model_type, family.class);
        let row =
            told.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row `{start}`"));
        let own: Vec<&Recipe> =
            recipes.iter().filter(|r| !special(r) && r.model_type == family.model_type).collect();
        if !own.is_empty() {
            let count: usize = row.split(" | ").nth(3).unwrap().parse().unwrap();
            assert!(count >= own.len() && row.contains(" | pass"), "{row}");
        }
    }
    for recipe in recipes.iter().filter(|recipe| special(recipe)) {
        assert!(told.contains(&case_row(recipe)), "{}", case_row(recipe));
    }
}

#[test]
fn the_page_names_every_flag_and_operation() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let table: serde_json::Value = serde_json::from_str(include_str!("../src/plan/families.json")).unwrap();
    let conversions = table["conv"].as_array().unwrap().iter().flat_map(|list| list.as_array().unwrap());
    for operation in conversions.flat_map(|rule| rule["ops"].as_array().into_iter().flatten()) {
        let name = operation[0].as_str().unwrap();
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
    for family in table["families"].as_object().unwrap().values() {
        for key in family.as_object().unwrap().keys() {
            assert!(page.contains(&format!("| `{key}` |")), "{key}");
        }
    }
}
