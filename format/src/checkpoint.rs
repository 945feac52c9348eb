//! A checkpoint as a model's publisher saved it: which files hold it, and the tensors in them.

mod root;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::error::{Error, Invalid, Result};
use crate::file::read_small;
use crate::header::Header;
use crate::index::{INDEX_NAME, Index};
use crate::json::{BYTE_ORDER_MARK, found, read_config};
use crate::manifest::MANIFEST_NAME;
use crate::plan::{Inventory, TensorInfo};
use crate::weights::{Arrivals, Weights, WeightsFile};

pub use root::Root;

/// The config's name in a checkpoint.
pub const CONFIG_NAME: &str = "config.json";
const SINGLE_NAME: &str = "model.safetensors";
const EXTENSION: &str = ".safetensors";
const CONFIG_BYTES_MAX: u64 = 100_000_000;
/// Weights that are not safetensors, by the endings of their names.
const OTHER_WEIGHTS: [&str; 10] =
    [".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz", ".tflite"];

/// A checkpoint that is not packed.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: Value,
    weights: Weights,
    notes: Vec<String>,
}

/// The files that hold a checkpoint, and what each is asked for.
struct Selection {
    names: Vec<String>,
    /// Each tensor's file, where there is an index.
    index: Option<HashMap<String, String>>,
    /// The bytes of data that the index declares, where it does.
    declared_bytes: Option<u64>,
    notes: Vec<String>,
}

impl Checkpoint {
    /// Opens the checkpoint in the folder `dir`: its config and its files' headers are read, no weights.
    ///
    /// # Errors
    /// Names every file that is missing or is not what it must be.
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        let names = list(dir)?;
        if names.contains(MANIFEST_NAME) {
            return Err(Error::Unsupported {
                what: format!("`{}`", dir.display()),
                found: format!("`{MANIFEST_NAME}`: a checkpoint that is packed already"),
                hint: "a packed checkpoint is no source: name the model it was packed from".to_owned(),
            });
        }
        let config = if names.contains(CONFIG_NAME) { config(&dir.join(CONFIG_NAME))? } else { Value::Null };
        let mut selection = select(dir, &names)?;
        let weights = open_weights(dir, &mut selection)?;
        Ok(Checkpoint { dir: dir.to_owned(), config, weights, notes: selection.notes })
    }

    /// Opens the checkpoint in the folder `dir` whose weights are yet to come: `files` are their names, headers'
    /// texts and bytes, of those that [`choose_weights`] chose.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_arriving(
        dir: &Path,
        files: &[(String, Vec<u8>, u64)],
        arrivals: Arc<dyn Arrivals>,
    ) -> Result<Checkpoint> {
        let mut names = list(dir)?;
        names.extend(files.iter().map(|(name, _, _)| name.clone()));
        let config = if names.contains(CONFIG_NAME) { config(&dir.join(CONFIG_NAME))? } else { Value::Null };
        let mut selection = select(dir, &names)?;
        // What else is in the folder is of another use of it.
        selection.notes.clear();
        let weights = weights(dir, &mut selection, |name| {
            let file = files.iter().find(|(file, _, _)| file == name);
            let (_, text, bytes) = file.ok_or_else(|| missing_file(dir, name, 0))?;
            Ok(WeightsFile::to_come(dir, name, Header::parse(&dir.join(name), text, *bytes)?))
        })?;
        let weights = weights.arriving(arrivals);
        Ok(Checkpoint { dir: dir.to_owned(), config, weights, notes: selection.notes })
    }

    /// Its folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its `config.json`, or null where it has none.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Its weights.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// What was left alone, and what else a user should know.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Its tensors, as [`plan`](crate::plan::plan) takes them.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        let entry = |name: &str| {
            let tensor = self.weights.tensor(self.weights.find(name)?);
            Some((name.to_owned(), TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone() }))
        };
        self.weights.names().filter_map(entry).collect()
    }
}

fn config(path: &Path) -> Result<Value> {
    let text = read_small(path, CONFIG_BYTES_MAX)?;
    let invalid = |found| Invalid {
        file: Some(path.to_owned()),
        expected: "a JSON object".to_owned(),
        found,
        hint: Some("fetch the file again, or mend it".to_owned()),
        ..Invalid::default()
    };
    if text.starts_with(BYTE_ORDER_MARK) {
        return Err(invalid("a byte order mark before the JSON".to_owned()).into());
    }
    match read_config(&text) {
        Ok(value) if value.is_object() => Ok(value),
        Ok(_) => Err(invalid("another value".to_owned()).into()),
        Err(error) => Err(invalid(found(&error)).into()),
    }
}

/// The names in a folder that are UTF-8; no file that is looked for has another.
fn list(dir: &Path) -> Result<BTreeSet<String>> {
    let io = |source| Error::Io { action: "list", path: dir.to_owned(), source };
    let entries = fs::read_dir(dir).map_err(io)?;
    let names = entries.map(|entry| Ok(entry.map_err(io)?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

/// Which files hold the checkpoint: an index's shards, or `model.safetensors`, or all there are.
fn select(dir: &Path, names: &BTreeSet<String>) -> Result<Selection> {
    let index = if names.contains(INDEX_NAME) { Some(Index::read(&dir.join(INDEX_NAME))?) } else { None };
    let chosen = choose_weights(dir, names, index.as_ref())?;
    let weights: Vec<&String> = names.iter().filter(|name| is_weights(name)).collect();
    let notes = ignored(dir, &weights, &chosen, index.is_some()).into_iter().collect();
    let declared_bytes = index.as_ref().and_then(|index| index.total_bytes);
    let index = index.map(|index| index.weight_map.into_iter().collect());
    Ok(Selection { names: chosen, index, declared_bytes, notes })
}

/// The files that hold the checkpoint in `dir`, of which `names` are all the files at its top and
/// `index` is its index: whether they are there is not looked at.
///
/// # Errors
/// Where there are none, or it can be told that some are missing.
pub fn choose_weights(dir: &Path, names: &BTreeSet<String>, index: Option<&Index>) -> Result<Vec<String>> {
    let chosen: Vec<String> = if let Some(index) = index {
        let files: BTreeSet<&String> = index.weight_map.iter().map(|(_, file)| file).collect();
        files.into_iter().cloned().collect()
    } else if names.contains(SINGLE_NAME) {
        vec![SINGLE_NAME.to_owned()]
    } else {
        let weights: Vec<&String> = names.iter().filter(|name| is_weights(name)).collect();
        let main: Vec<&String> =
            weights.iter().filter(|name| !name.starts_with("consolidated")).copied().collect();
        let chosen = if main.is_empty() { weights } else { main };
        chosen.into_iter().cloned().collect()
    };
    if chosen.is_empty() {
        return Err(no_weights(dir, names, index.is_some()));
    }
    if index.is_none() {
        check_counts(dir, &chosen)?;
    }
    Ok(chosen)
}

fn is_weights(name: &str) -> bool {
    name.ends_with(EXTENSION) && !name.starts_with('.')
}

/// Names the files of weights that are not read.
fn ignored(dir: &Path, weights: &[&String], chosen: &[String], by_index: bool) -> Option<String> {
    let read: HashSet<&String> = chosen.iter().collect();
    let bytes = |name: &str| fs::metadata(dir.join(name)).map_or(0, |metadata| metadata.len());
    let ignored = weights.iter().filter(|name| !read.contains(**name));
    let named: Vec<String> = ignored.map(|name| format!("`{name}` ({} bytes)", bytes(name))).collect();
    let by = match chosen {
        _ if by_index => format!("the index `{INDEX_NAME}` does not name them"),
        [name, ..] => format!("`{name}` holds the checkpoint"),
        [] => return None,
    };
    (!named.is_empty()).then(|| format!("not read, since {by}: {}", named.join(", ")))
}

fn no_weights(dir: &Path, names: &BTreeSet<String>, empty_index: bool) -> Error {
    let other =
        |name: &&String| OTHER_WEIGHTS.iter().any(|ending| name.to_ascii_lowercase().ends_with(ending));
    let other: Vec<String> = names.iter().filter(other).map(|name| format!("`{name}`")).collect();
    let (found, hint) = if empty_index {
        (format!("an index `{INDEX_NAME}` that names none"), "fetch the checkpoint again")
    } else if !other.is_empty() {
        (format!("no safetensors weights, but {}", other.join(", ")), "convert them to safetensors first")
    } else if names.is_empty() {
        ("an empty folder".to_owned(), "name the folder that holds the model")
    } else {
        (
            "no weights".to_owned(),
            "name the folder that holds `model.safetensors` or its shards and their index",
        )
    };
    Invalid {
        file: Some(dir.to_owned()),
        expected: format!("`{SINGLE_NAME}`, `{INDEX_NAME}` or other safetensors files"),
        found,
        hint: Some(hint.to_owned()),
        ..Invalid::default()
    }
    .into()
}

/// Shards named `-00001-of-000NN` are all there.
fn check_counts(dir: &Path, names: &[String]) -> Result<()> {
    let mut series: BTreeMap<(&str, &str), BTreeSet<u64>> = BTreeMap::new();
    for name in names {
        let parts = name.strip_suffix(EXTENSION).and_then(|stem| stem.rsplit_once("-of-"));
        let parts = parts.and_then(|(stem, count)| Some((stem.rsplit_once('-')?, count)));
        if let Some(((prefix, number), count)) = parts
            && let (Ok(number), Ok(_)) = (number.parse(), count.parse::<u64>())
        {
            series.entry((prefix, count)).or_default().insert(number);
        }
    }
    let errors = series.into_iter().filter_map(|((prefix, count), numbers)| {
        let total: u64 = count.parse().unwrap_or(0);
        // Some publishers count from 0.
        let first = numbers.first().copied().unwrap_or(1).min(1);
        let missing: Vec<u64> =
            (first..first.saturating_add(total)).filter(|number| !numbers.contains(number)).take(8).collect();
        (!missing.is_empty() || numbers.len() as u64 != total).then(|| {
            Error::from(Invalid {
                file: Some(dir.to_owned()),
                expected: format!("the {total} files `{prefix}-*-of-{count}{EXTENSION}`"),
                found: format!("{} of them, without {missing:?}, and no index", numbers.len()),
                hint: Some("fetch the checkpoint again: it is incomplete".to_owned()),
                ..Invalid::default()
            })
        })
    });
    Error::all(errors.collect())
}

fn open_weights(dir: &Path, selection: &mut Selection) -> Result<Weights> {
    let root = Root::new(dir)?;
    weights(dir, selection, |name| {
        root.check(name)?;
        WeightsFile::open(dir, name).map(|(file, _)| file)
    })
}

/// The weights of the chosen files, each opened by `open`.
fn weights(
    dir: &Path,
    selection: &mut Selection,
    open: impl Fn(&str) -> Result<WeightsFile>,
) -> Result<Weights> {
    let mut errors = Vec::new();
    let mut files = Vec::new();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for file in selection.index.iter().flat_map(HashMap::values) {
        *counts.entry(file).or_default() += 1;
    }
    for name in &selection.names {
        match open(name) {
            Ok(file) => files.push(file),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                let tensors = counts.get(name.as_str()).copied().unwrap_or_default();
                errors.push(missing_file(dir, name, tensors).into());
            }
            Err(error) => errors.push(error),
        }
    }
    Error::all(errors)?;
    match &selection.index {
        Some(index) => {
            check_index(dir, index, &files)?;
            selection.notes.extend(beside_index(index, &files));
            let weights =
                Weights::new(files, |file, tensor| index.get(tensor).is_some_and(|named| named == file));
            selection.notes.extend(wrong_total(selection.declared_bytes, &weights));
            Ok(weights)
        }
        None => {
            check_twice(dir, &files)?;
            Ok(Weights::new(files, |_, _| true))
        }
    }
}

fn missing_file(dir: &Path, name: &str, tensors: usize) -> Invalid {
    Invalid {
        file: Some(dir.join(name)),
        expected: format!("a shard with {tensors} of the tensors in `{INDEX_NAME}`"),
        found: "no such file".to_owned(),
        hint: Some("fetch the checkpoint again: the download is incomplete".to_owned()),
        ..Invalid::default()
    }
}

/// Every tensor of the index is in the shard that it names.
fn check_index(dir: &Path, index: &HashMap<String, String>, files: &[WeightsFile]) -> Result<()> {
    let mut holders: HashMap<&str, Vec<&str>> = HashMap::new();
    for file in files {
        for tensor in &file.header.tensors {
            holders.entry(&tensor.name).or_default().push(&file.name);
        }
    }
    let mut errors: Vec<(&String, Error)> = Vec::new();
    for (tensor, file) in index {
        let found = holders.get(tensor.as_str()).map_or(&[][..], Vec::as_slice);
        if !found.contains(&file.as_str()) {
            let elsewhere = if found.is_empty() {
                String::new()
            } else {
                format!(", but one in `{}`", found.join("`, `"))
            };
            let invalid = Invalid {
                file: Some(dir.join(file)),
                tensor: Some(tensor.clone()),
                expected: format!("this tensor, which `{INDEX_NAME}` says is there"),
                found: format!("none of that name{elsewhere}"),
                hint: Some("fetch the checkpoint again: its files do not belong together".to_owned()),
            };
            errors.push((tensor, invalid.into()));
        }
    }
    errors.sort_by(|a, b| a.0.cmp(b.0));
    Error::all(errors.into_iter().map(|(_, error)| error).collect())
}

/// What the index's shards hold that the index does not ask of them.
fn beside_index(index: &HashMap<String, String>, files: &[WeightsFile]) -> Vec<String> {
    let mut beside: BTreeMap<(&str, Option<&String>), Vec<&str>> = BTreeMap::new();
    for file in files {
        for tensor in &file.header.tensors {
            let named = index.get(&tensor.name);
            if named != Some(&file.name) {
                beside.entry((&file.name, named)).or_default().push(&tensor.name);
            }
        }
    }
    let note = |((file, named), mut tensors): ((&str, Option<&String>), Vec<&str>)| {
        tensors.sort_unstable();
        let tensors = tensors.join("`, `");
        match named {
            Some(named) => format!("`{file}`: left alone, since the index has it in `{named}`: `{tensors}`"),
            None => format!("`{file}`: not read, since the index does not name it: `{tensors}`"),
        }
    };
    beside.into_iter().map(note).collect()
}

/// Says so where an index declares other bytes than its tensors have: the headers are believed.
fn wrong_total(declared: Option<u64>, weights: &Weights) -> Option<String> {
    let places = weights.names().filter_map(|name| weights.find(name));
    let bytes: u64 = places.map(|at| weights.tensor(at).bytes()).sum();
    let declared = declared.filter(|&declared| declared != bytes)?;
    Some(format!("`{INDEX_NAME}` declares {declared} bytes of tensors, which have {bytes}"))
}

/// No tensor is in two files.
fn check_twice(dir: &Path, files: &[WeightsFile]) -> Result<()> {
    let mut seen: HashMap<&str, &str> = HashMap::new();
    // Two splits of one model share every tensor: one error for two files, not for each tensor.
    let mut shared: BTreeMap<(&str, &str), (&str, usize)> = BTreeMap::new();
    for file in files {
        for tensor in &file.header.tensors {
            if let Some(first) = seen.insert(&tensor.name, &file.name) {
                shared.entry((first, &file.name)).or_insert((&tensor.name, 0)).1 += 1;
            }
        }
    }
    let hint =
        format!("remove the files that do not belong, or add the `{INDEX_NAME}` that names those that do");
    let errors = shared.into_iter().map(|((first, second), (tensor, count))| {
        let others = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
        Error::from(Invalid {
            file: Some(dir.to_owned()),
            tensor: Some(tensor.to_owned()),
            expected: "a tensor in one file".to_owned(),
            found: format!("one in `{first}` and one in `{second}`{others}"),
            hint: Some(hint.clone()),
        })
    });
    Error::all(errors.collect())
}
