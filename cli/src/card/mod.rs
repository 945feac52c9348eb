//! `glyd card`: a packed checkpoint's model card, which takes in the source's.

mod front;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use glyd_format::file::read_small;
use glyd_format::manifest::{MANIFEST_NAME, Manifest};
use glyd_format::packed::Opened;
use glyd_format::{Error, Invalid, Packed};
use serde_json::json;

use crate::args::Card;
use crate::hub::{HubError, RepoId};
use crate::model::check_folder;
use crate::output::{self, Failure, SCHEMA, Status, bytes, count};

const CARD: &str = "README.md";
const SOURCE_CARD: &str = "README.source.md";
/// What tells a card of ours from the source's.
const MARK: &str = "<!-- made by glyd card -->";
const CARD_BYTES_MAX: u64 = 16 << 20;

pub(crate) fn run(args: &Card) -> Result<Status, Failure> {
    check_folder(&args.dir)?;
    let base = match &args.base_model {
        None => None,
        Some(name) => Some(RepoId::parse(name).ok_or_else(|| {
            Failure::Usage(format!("--base-model: `{name}` is no model of the Hub (owner/name)"))
        })?),
    };
    let figures = Figures::of(&args.dir)?;
    let source = source_card(&args.dir)?;
    let named = std::str::from_utf8(&figures.manifest.source.repo).ok().and_then(RepoId::parse);
    let base = base.or(named);
    let text = card(&figures, base.as_ref(), source.as_deref());
    write(&args.dir, source.as_deref(), &text)?;
    if base.is_none() && !args.voice.quiet {
        let note = "it was packed from a folder, and the card has no `base_model`: --base-model names it";
        output::say(&format!("glyd: note: {note}"));
    }
    if args.voice.json {
        output::print_json(&json!({
            "schema": SCHEMA,
            "command": "card",
            "path": args.dir.display().to_string(),
            "card": CARD,
            "source_card": source.is_some().then_some(SOURCE_CARD),
            "base_model": base.as_ref().map(RepoId::name),
        }))?;
    } else if !args.voice.quiet {
        let taken = if source.is_some() {
            format!(", with the source's kept in `{SOURCE_CARD}`")
        } else {
            String::new()
        };
        output::print_lines(&[format!("wrote `{}`{taken}", args.dir.join(CARD).display())])?;
    }
    Ok(Status::Good)
}

/// What the card tells of a packed checkpoint.
struct Figures {
    manifest: Manifest,
    packed_source: u64,
    packed: u64,
    plain: u64,
    plain_tensors: u64,
}

impl Figures {
    fn of(dir: &Path) -> Result<Figures, Failure> {
        let Opened { packed, findings } = Packed::open(dir)?;
        let Some(packed) = packed.filter(|_| findings.is_empty()) else {
            let found = findings.first().map_or_else(|| "none".to_owned(), ToString::to_string);
            return Err(invalid(dir, &found));
        };
        let (mut packed_source, mut packed_bytes) = (0, 0);
        for (name, entry) in &packed.manifest().packs {
            let Some(buffers) = packed.buffers(name, entry) else { continue };
            let buffers = [buffers.data, buffers.list, buffers.base];
            packed_bytes += buffers.iter().map(|&at| packed.weights().tensor(at).bytes()).sum::<u64>();
            packed_source += entry.shape[0].saturating_mul(entry.shape[1]).saturating_mul(2);
        }
        let all: u64 = packed.weights().files().iter().map(|file| file.header.data_bytes()).sum();
        let tensors = packed.manifest().tensors.as_ref().map_or(0, Vec::len);
        Ok(Figures {
            manifest: packed.manifest().clone(),
            packed_source,
            packed: packed_bytes,
            plain: all.saturating_sub(packed_bytes),
            plain_tensors: tensors as u64,
        })
    }

    fn packed_tensors(&self) -> u64 {
        self.manifest.packs.iter().map(|(_, entry)| entry.tensors.len() as u64).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn rows(&self) -> String {
        let percent = |of: u64, all: u64| format!("{:.1} %", of as f64 * 100.0 / all.max(1) as f64);
        let row = |what: String, before: u64, after: u64| {
            format!("| {what} | {} | {} | {} |\n", bytes(before), bytes(after), percent(after, before))
        };
        let matrices = format!(
            "{} of {}",
            count(self.manifest.packs.len() as u64, "matrix"),
            count(self.packed_tensors(), "tensor")
        );
        let plain = format!("{} as they are", count(self.plain_tensors, "other tensor"));
        let (before, after) = (self.packed_source + self.plain, self.packed + self.plain);
        format!(
            "{}{}{}",
            row(format!("{matrices}, packed"), self.packed_source, self.packed),
            row(plain, self.plain, self.plain),
            row("in all".to_owned(), before, after)
        )
    }
}

/// The source's card, where there is one: kept from an earlier run, or as packing copied it.
fn source_card(dir: &Path) -> Result<Option<String>, Failure> {
    let read = |name: &str| match read_small(&dir.join(name), CARD_BYTES_MAX) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::Format(error)),
    };
    match read(CARD)? {
        Some(card) if card.contains(MARK) => read(SOURCE_CARD),
        card => Ok(card),
    }
}

fn card(figures: &Figures, base: Option<&RepoId>, source: Option<&str>) -> String {
    let manifest = &figures.manifest;
    let (front, body) = source.map_or((None, ""), front::split);
    let front = front::write(front, base.map(RepoId::name));
    let name = source_name(manifest);
    let link =
        base.map_or_else(|| format!("`{name}`"), |base| format!("[`{base}`](https://huggingface.co/{base})"));
    let commit = manifest.source.revision.as_deref();
    let at = commit.map(|commit| format!(" at commit `{commit}`")).unwrap_or_default();
    let revision = commit.map(|commit| format!(" --revision {commit}")).unwrap_or_default();
    let layout = manifest.layout;
    let format = manifest.format.name();
    let mut text = format!(
        "{front}{MARK}\n\n# {name}, packed with glyd\n\n\
         {link}{at}, packed without losing a bit: format `{format}`, layout `{layout}`. Every tensor decodes to the\n\
         bits of the model it was packed from, and `glyd.json` has the sha256 of each.\n\n\
         | what | as published | here | of it |\n| --- | --- | --- | --- |\n{}\n\
         ## How it was made\n\n```sh\nglyd pack {}{revision} out --layout {layout}\n```\n\n\
         ## How to verify it\n\n```sh\nglyd verify OWNER/NAME   # or the folder with these files\n```\n\n\
         That decodes every tensor and compares its sha256; it takes no GPU. Who packs the same commit again gets\n\
         the same files, byte for byte.\n",
        figures.rows(),
        quoted(&name)
    );
    if !body.trim().is_empty() {
        text.push_str(&format!(
            "\n## The source's card\n\nAs it was, in [`{SOURCE_CARD}`]({SOURCE_CARD}); from here on it is the source's.\n\n{}\n",
            body.trim()
        ));
    }
    text
}

/// The model's name, on one line and without what Markdown or a shell would act on.
fn source_name(manifest: &Manifest) -> String {
    let plain = |char: &char| !char.is_control() && !"`<>[]|".contains(*char);
    manifest.source.display().chars().filter(plain).collect()
}

fn quoted(name: &str) -> String {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte));
    if plain && !name.is_empty() { name.to_owned() } else { format!("'{}'", name.replace('\'', r"'\''")) }
}

/// Writes the card, and keeps the source's; at no moment is one of them lost.
fn write(dir: &Path, source: Option<&str>, text: &str) -> Result<(), Failure> {
    let files = [(SOURCE_CARD, source), (CARD, Some(text))];
    for (name, text) in files.into_iter().filter_map(|(name, text)| Some((name, text?))) {
        let path = dir.join(name);
        let part = dir.join(format!(".{name}.part"));
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
        written.map_err(|source| HubError::Io { action: "write", path, source })?;
    }
    Ok(())
}

fn invalid(dir: &Path, found: &str) -> Failure {
    Failure::Format(
        Invalid {
            file: Some(dir.join(MANIFEST_NAME)),
            expected: "a packed checkpoint whose files are as it says".to_owned(),
            found: found.to_owned(),
            hint: Some("`glyd verify` tells all that is wrong".to_owned()),
            ..Invalid::default()
        }
        .into(),
    )
}
