//! A repository described: its commit, its config.json, and its tensors by their headers alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use glyd_format::header::{Header, LENGTH_BYTES};
use glyd_format::index::{INDEX_NAME, Index};
use glyd_format::manifest::MANIFEST_NAME;
use glyd_format::plan::{Inventory, TensorInfo};
use serde_json::Value;

use super::ranged;
use super::request::Hub;
use crate::output::Failure;

const CONFIG_NAME: &str = "config.json";
const SINGLE_NAME: &str = "model.safetensors";
/// Bytes of the longest answer that is read whole.
const ANSWER_BYTES_MAX: u64 = 200_000_000;
/// Requests at once.
const AT_ONCE: usize = 8;

/// What is known of a model without its weights.
pub(crate) struct Described {
    /// The commit.
    pub(crate) revision: String,
    /// Its config.json.
    pub(crate) config: Value,
    /// Its tensors.
    pub(crate) inventory: Inventory,
}

/// A repository at a commit.
struct Repo<'a> {
    hub: Hub,
    id: &'a str,
    commit: String,
    files: BTreeSet<String>,
}

/// Describes the repository `id` at a revision: few requests, and none for weights.
pub(crate) fn describe(id: &str, revision: &str) -> Result<Described, Failure> {
    let hub = Hub::from_environment();
    let path = format!("/api/models/{id}/revision/{}", encoded(revision));
    let info: Value = json(&hub, &path, &hub.need(&path, ANSWER_BYTES_MAX)?)?;
    let commit = info.get("sha").and_then(Value::as_str).filter(|sha| is_commit(sha));
    let commit = commit.ok_or_else(|| hub.unexpected(&path, "a commit in `sha`", "none"))?.to_owned();
    let siblings = info.get("siblings").and_then(Value::as_array).into_iter().flatten();
    let files = siblings.filter_map(|file| Some(file.get("rfilename")?.as_str()?.to_owned())).collect();
    let repo = Repo { hub, id, commit, files };
    if repo.files.contains(MANIFEST_NAME) {
        return Err(glyd_format::Error::Unsupported {
            what: format!("`{id}`"),
            found: "a packed checkpoint".to_owned(),
            hint: "fetch it, with `hf download` for example, and name its folder: its sizes are exact then"
                .to_owned(),
        }
        .into());
    }
    let config = repo.config()?;
    let inventory = repo.inventory(revision == "main")?;
    Ok(Described { revision: repo.commit, config, inventory })
}

impl Repo<'_> {
    fn path(&self, file: &str) -> String {
        let file: Vec<String> = file.split('/').map(encoded).collect();
        format!("/{}/resolve/{}/{}", self.id, self.commit, file.join("/"))
    }

    fn config(&self) -> Result<Value, Failure> {
        let path = self.path(CONFIG_NAME);
        let text = self.hub.need(&path, ANSWER_BYTES_MAX)?;
        let config = glyd_format::json::read_config(&text);
        let config =
            config.map_err(|error| self.hub.unexpected(&path, "a JSON object", error.to_string()))?;
        match config.is_object() {
            true => Ok(config),
            false => Err(self.hub.unexpected(&path, "a JSON object", "another value").into()),
        }
    }

    fn inventory(&self, main: bool) -> Result<Inventory, Failure> {
        if !self.files.contains(INDEX_NAME) {
            let headers = self.headers(&self.unindexed()?)?;
            return self.gather(headers, |_, _| true);
        }
        if main && let Some(headers) = self.all_at_once()? {
            return self.gather(headers, |_, _| true);
        }
        let path = self.path(INDEX_NAME);
        let index = Index::parse(Path::new(&self.hub.url(&path)), &self.hub.need(&path, ANSWER_BYTES_MAX)?)?;
        let files: BTreeSet<&String> = index.weight_map.iter().map(|(_, file)| file).collect();
        let headers = self.headers(&files.into_iter().cloned().collect::<Vec<_>>())?;
        let places: HashMap<&str, &str> =
            index.weight_map.iter().map(|(tensor, file)| (tensor.as_str(), file.as_str())).collect();
        let inventory = self.gather(headers, |file, tensor| places.get(tensor) == Some(&file))?;
        match places.keys().find(|tensor| !inventory.contains_key(**tensor)) {
            None => Ok(inventory),
            Some(lacking) => {
                Err(self.hub.unexpected(&path, "the tensors of the index", format!("no `{lacking}`")).into())
            }
        }
    }

    /// The files of a repository without an index, as a folder's are chosen.
    fn unindexed(&self) -> Result<Vec<String>, Failure> {
        if self.files.contains(SINGLE_NAME) {
            return Ok(vec![SINGLE_NAME.to_owned()]);
        }
        let top = self.files.iter().filter(|file| file.ends_with(".safetensors") && !file.contains('/'));
        let (main, other): (Vec<&String>, Vec<&String>) =
            top.partition(|file| !file.starts_with("consolidated"));
        let chosen = if main.is_empty() { other } else { main };
        if chosen.is_empty() {
            let path = format!("/{}", self.id);
            return Err(self.hub.unexpected(&path, "safetensors files", "none").into());
        }
        Ok(chosen.into_iter().cloned().collect())
    }

    /// Every shard's header in one request, where the server has that.
    fn all_at_once(&self) -> Result<Option<Vec<(String, Header)>>, Failure> {
        let path = format!("/api/models/{}/safetensors-metadata/{INDEX_NAME}", self.id);
        let Ok(Some(answer)) = self.hub.get(&path, ANSWER_BYTES_MAX) else { return Ok(None) };
        let answer: Value = json(&self.hub, &path, &answer)?;
        let Some(shards) = answer.get("headers").and_then(Value::as_object) else { return Ok(None) };
        let header = |(name, tensors): (&String, &Value)| {
            // Held to the same rules as a header that is read from its file.
            let text = tensors.to_string().into_bytes();
            let ends = tensors.as_object().into_iter().flatten();
            let ends = ends.filter_map(|(_, tensor)| tensor.get("data_offsets")?.get(1)?.as_u64());
            let file_bytes = (text.len() as u64 + LENGTH_BYTES).checked_add(ends.max().unwrap_or(0));
            Ok((name.clone(), Header::parse(Path::new(name), &text, file_bytes.unwrap_or(0))?))
        };
        shards.iter().map(header).collect::<Result<_, Failure>>().map(Some)
    }

    /// The headers of files, some at once, in their order.
    fn headers(&self, files: &[String]) -> Result<Vec<(String, Header)>, Failure> {
        let next = AtomicUsize::new(0);
        let found: Mutex<BTreeMap<usize, Result<Header, Failure>>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(files.len()) {
                scope.spawn(|| {
                    while let Some((at, file)) = next_of(&next, files) {
                        let header = ranged::header(&self.hub, &self.path(file), Path::new(file));
                        let failed = header.is_err();
                        found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(at, header);
                        if failed {
                            next.store(files.len(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A failure leaves the rest unasked, and is in the list.
        found
            .into_iter()
            .map(|(at, header)| Ok((files.get(at).cloned().unwrap_or_default(), header?)))
            .collect()
    }

    fn gather(
        &self,
        headers: Vec<(String, Header)>,
        holds: impl Fn(&str, &str) -> bool,
    ) -> Result<Inventory, Failure> {
        let mut inventory = Inventory::new();
        for (file, header) in headers {
            for tensor in header.tensors.into_iter().filter(|tensor| holds(&file, &tensor.name)) {
                let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape };
                if inventory.insert(tensor.name.clone(), info).is_some() {
                    let found = format!("`{}` in two", tensor.name);
                    return Err(self.hub.unexpected(&self.path(&file), "a tensor in one file", found).into());
                }
            }
        }
        Ok(inventory)
    }
}

fn next_of<'a>(next: &AtomicUsize, files: &'a [String]) -> Option<(usize, &'a String)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    files.get(at).map(|file| (at, file))
}

fn json(hub: &Hub, path: &str, text: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(text).map_err(|error| hub.unexpected(path, "JSON", error.to_string()).into())
}

/// A name as a part of a path: everything else than letters, digits and a few signs is escaped.
fn encoded(name: &str) -> String {
    let byte = |byte: u8| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    name.bytes().map(byte).collect()
}

/// A commit goes into paths: it is what it looks like, or not taken.
fn is_commit(sha: &str) -> bool {
    sha.len() == 40 && sha.bytes().all(|byte| byte.is_ascii_hexdigit())
}
