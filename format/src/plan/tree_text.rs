//! A tree as the table has it, read (`docs/families.md`, the tree).

use safetensors::Dtype;

use super::tree::{Experts, Flags, Kid, Kind, Leaf, Node, Plug};

/// Reads a tree's text.
///
/// # Errors
/// Says which word of it is not a tree's: the table's own fault.
pub(super) fn parse(text: &str) -> Result<Node, String> {
    let spaced = text.replace('{', " { ").replace('}', " } ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut open = vec![(Kid { name: String::new(), optional: false, node: Node::default() })];
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        if word == "}" {
            let done = open.pop().ok_or("a } too many")?;
            open.last_mut().ok_or("a } too many")?.node.kids.push(done);
            continue;
        }
        let opens = words.next_if_eq(&"{").is_some();
        let parent = &mut open.last_mut().ok_or("a } too many")?.node;
        if word.contains('=') && !word.contains(':') {
            let kid = module(word, opens)?;
            if opens {
                open.push(kid);
            } else {
                parent.kids.push(kid);
            }
        } else if opens {
            open.push(module(word, true)?);
        } else {
            parent.leaves.push(leaf(word)?);
        }
    }
    match (open.pop(), open.is_empty()) {
        (Some(root), true) => Ok(root.node),
        _ => Err("a { without its }".to_owned()),
    }
}

/// `NAME?=KIND`, `NAME?`, `NAME@PATH/TYPE`: a module; where it opens none of its own, KIND says its tensors.
fn module(word: &str, opens: bool) -> Result<Kid, String> {
    let (head, kind) = match word.split_once('=') {
        Some((head, kind)) => (head, kind),
        None => (word, ""),
    };
    let (name, plug) = match head.split_once('@') {
        Some((name, plug)) => (name, Some(self::plug(plug)?)),
        None => (head, None),
    };
    let (name, optional) = optional(name);
    let bias = |optional| Leaf { name: "bias".to_owned(), optional, ..Leaf::default() };
    let mut node = Node { plug, ..Node::default() };
    if !opens {
        node.leaves.push(Leaf { name: "weight".to_owned(), ..Leaf::default() });
    }
    let mut letters = kind.chars();
    node.kind = match letters.next() {
        Some('L') => Kind::Linear,
        Some('E') => Kind::Embedding,
        Some('N') | None => Kind::Other,
        Some(_) => return Err(format!("{word}: no such kind")),
    };
    match letters.as_str() {
        "" => {}
        "b" => node.leaves.push(bias(false)),
        "o" => node.leaves.push(bias(true)),
        _ => return Err(format!("{word}: no such kind")),
    }
    Ok(Kid { name: name.to_owned(), optional, node })
}

fn plug(text: &str) -> Result<Plug, String> {
    let (config, usual) = text.split_once('/').ok_or_else(|| format!("@{text}: no type"))?;
    let (causal_lm, usual) = match usual.strip_prefix("lm:") {
        Some(usual) => (true, usual),
        None => (false, usual),
    };
    Ok(Plug { config: config.to_owned(), usual: usual.to_owned(), causal_lm })
}

fn leaf(word: &str) -> Result<Leaf, String> {
    let (name, list) = word.split_once(':').unwrap_or((word, ""));
    let (name, optional) = optional(name);
    let mut flags = Flags::default();
    for flag in list.split(',').filter(|f| !f.is_empty()) {
        set_flag(&mut flags, flag).ok_or_else(|| format!("{word}: no such flag"))?;
    }
    Ok(Leaf { name: name.to_owned(), optional, flags })
}

fn set_flag(flags: &mut Flags, flag: &str) -> Option<()> {
    match flag.split_once('=') {
        Some(("E", field)) => flags.experts.as_mut()?.count = Some(field.to_owned()),
        Some(("LAST", value)) => flags.last = Some(value.parse().ok()?),
        Some(_) => return None,
        None => match flag {
            "X" | "XT" => {
                flags.experts = Some(Experts { transposed: flag == "XT", count: None });
            }
            "f" => flags.fp32 = true,
            "B" => flags.buffer = true,
            "F32" => flags.class_dtype = Some(Dtype::F32),
            "I64" => flags.class_dtype = Some(Dtype::I64),
            _ => return None,
        },
    }
    Some(())
}

fn optional(name: &str) -> (&str, bool) {
    match name.strip_suffix('?') {
        Some(name) => (name, true),
        None => (name, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_tree() {
        for bad in ["a{", "a{b}}", "a=Q", "a:ZZ", "a=Lx", "a@b{}"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
