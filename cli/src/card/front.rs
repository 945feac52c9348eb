//! The metadata at the head of a card, between two lines of `---`: a source's is kept, but for what is
//! not true of the packed model.

/// What this program says of a packed model itself.
const OWN: [&str; 4] = ["base_model", "base_model_relation", "library_name", "tags"];

/// A card's metadata, where it has any, and the rest of it.
pub(super) fn split(card: &str) -> (Option<&str>, &str) {
    let text = card.trim_start_matches('\u{feff}');
    let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else {
        return (None, text);
    };
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return (Some(&rest[..at]), &rest[at + line.len()..]);
        }
        at += line.len();
    }
    (None, text)
}

/// The metadata of a packed model, between its lines.
pub(super) fn write(source: Option<&str>, base: Option<&str>) -> String {
    let source = source.unwrap_or_default();
    let kept = blocks(source).into_iter().filter(|block| !OWN.contains(&key(block)));
    let mut text = String::from("---\n");
    text.extend(kept);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    if let Some(base) = base {
        // Of the four relations that the Hub knows the nearest: the weights are the same, in fewer bits.
        text.push_str(&format!("base_model: {base}\nbase_model_relation: quantized\n"));
    }
    text.push_str("library_name: glyd\ntags:\n");
    tags(source).iter().for_each(|tag| text.push_str(&format!("- {tag}\n")));
    text.push_str("- glyd\n---\n");
    text
}

/// The entries of a mapping at its top, each with the lines below it.
fn blocks(yaml: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    for line in yaml.split_inclusive('\n') {
        let begins = line.starts_with(|char: char| char.is_ascii_alphanumeric() || "_\"'#".contains(char));
        match blocks.last_mut() {
            Some(block) if !begins => block.push_str(line),
            _ => blocks.push(line.to_owned()),
        }
    }
    blocks
}

fn key(block: &str) -> &str {
    block.split(':').next().unwrap_or_default().trim().trim_matches(['"', '\''])
}

/// The source's tags, as they are written there, but for this program's own.
fn tags(yaml: &str) -> Vec<String> {
    let Some(block) = blocks(yaml).into_iter().find(|block| key(block) == "tags") else { return Vec::new() };
    let (_, rest) = block.split_once(':').unwrap_or_default();
    let (first, below) = rest.split_once('\n').unwrap_or((rest, ""));
    let inline = first.trim().strip_prefix('[').and_then(|list| list.strip_suffix(']'));
    let items: Vec<&str> = match inline {
        Some(list) => list.split(',').collect(),
        None => below.lines().filter_map(|line| line.trim().strip_prefix("- ")).collect(),
    };
    let items = items.into_iter().map(str::trim).filter(|tag| !tag.is_empty() && *tag != "glyd");
    items.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_s_metadata_is_kept_but_for_what_is_ours() {
        let source = "license: other\nlicense_name: llama3\nbase_model:\n  - x/y\n- z/w\ntags:\n- chat\n- glyd\n\
                      extra_gated_prompt: >-\n  Read this:\n\n  and that.\nlibrary_name: transformers\nlanguage: [en, de]\n";
        let expected = "---\nlicense: other\nlicense_name: llama3\nextra_gated_prompt: >-\n  Read this:\n\n  and that.\n\
                        language: [en, de]\nbase_model: a/b\nbase_model_relation: quantized\nlibrary_name: glyd\n\
                        tags:\n- chat\n- glyd\n---\n";
        assert_eq!(write(Some(source), Some("a/b")), expected);
        assert_eq!(write(None, None), "---\nlibrary_name: glyd\ntags:\n- glyd\n---\n");
        assert_eq!(tags("tags: [a, \"b c\"]\n"), ["a", "\"b c\""]);
        assert!(write(Some("license: mit"), None).starts_with("---\nlicense: mit\nlibrary_name"));
    }

    #[test]
    fn metadata_ends_at_its_line() {
        assert_eq!(split("---\na: 1\n---\n# T\n"), (Some("a: 1\n"), "# T\n"));
        assert_eq!(split("---\r\na: 1\r\n---\r\nT"), (Some("a: 1\r\n"), "T"));
        for none in ["# T\n", "---\na: 1\n", "", "--- \nx\n---\n"] {
            assert_eq!(split(none), (None, none), "{none:?}");
        }
    }
}
