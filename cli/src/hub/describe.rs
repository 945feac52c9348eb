//! A repository described: its commit, its config.json, and its tensors by their headers alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use glyd_format::checkpoint::{CONFIG_NAME, choose_weights};
use glyd_format::header::{Header, LENGTH_BYTES};
use glyd_format::index::{INDEX_NAME, Index};
use glyd_format::manifest::MANIFEST_NAME;
use glyd_format::plan::{Inventory, TensorInfo};
use serde_json::Value;

use super::client::{Client, Request, read_at_most};
use super::download::Ask;
use super::headers::Remote;
use super::listing::{self, Info};
use super::refusal::About;
use super::repo::{RepoId, check_revision};
use super::settings::Settings;
use super::{HubError, Result, Stop};

/// Bytes of the longest file that is read whole.
const FILE_BYTES_MAX: u64 = 200_000_000;
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
    client: Client,
    id: &'a RepoId,
    commit: String,
    /// The files at its top.
    files: BTreeSet<String>,
}

/// Describes a repository at a revision: few requests, and none for weights.
///
/// # Errors
/// Where the Hub does not tell, or it is no checkpoint.
pub(crate) fn describe(ask: &Ask<'_>, settings: Settings, stop: Stop) -> Result<Described> {
    check_revision(ask.revision)?;
    let client = Client::new(settings, stop)?;
    let Info { sha, files, .. } = listing::info(&client, ask.repo, ask.revision)?;
    let repo = Repo { client, id: ask.repo, commit: sha, files: files.into_iter().collect() };
    if repo.files.contains(MANIFEST_NAME) {
        return Err(HubError::Checkpoint(glyd_format::Error::Unsupported {
            what: format!("`{}`", ask.repo),
            found: "a packed checkpoint".to_owned(),
            hint: "fetch it, with `glyd verify` for example, and name it again, or name its folder: its sizes are \
                   exact then"
                .to_owned(),
        }));
    }
    let config = repo.config()?;
    let inventory = repo.inventory(ask.revision == "main")?;
    Ok(Described { revision: repo.commit, config, inventory })
}

impl Repo<'_> {
    fn remote<'a>(&'a self, path: &'a str) -> Remote<'a> {
        Remote { client: &self.client, repo: self.id.name(), commit: &self.commit, path }
    }

    fn file(&self, path: &str) -> Result<Vec<u8>> {
        let remote = self.remote(path);
        let request = remote.request();
        let read = self.client.read(&request, |response| read_at_most(response, FILE_BYTES_MAX));
        read.map(|(bytes, _)| bytes)
    }

    fn unexpected(&self, path: &str, expected: &str, found: impl Into<String>) -> HubError {
        let url = format!("`{}`", self.remote(path).request().url);
        HubError::Answer { url, expected: expected.to_owned(), found: found.into() }
    }

    fn config(&self) -> Result<Value> {
        let config = glyd_format::json::read_config(&self.file(CONFIG_NAME)?);
        let wrong = |found: String| self.unexpected(CONFIG_NAME, "a JSON object", found);
        let config = config.map_err(|error| wrong(error.to_string()))?;
        if config.is_object() { Ok(config) } else { Err(wrong("another value".to_owned())) }
    }

    fn inventory(&self, main: bool) -> Result<Inventory> {
        let dir = Path::new(self.id.name());
        if !self.files.contains(INDEX_NAME) {
            let headers = self.headers(&choose_weights(dir, &self.files, None)?)?;
            return self.gather(headers, |_, _| true);
        }
        if main && let Some(headers) = self.all_at_once()? {
            return self.gather(headers, |_, _| true);
        }
        let index = Index::parse(&dir.join(INDEX_NAME), &self.file(INDEX_NAME)?)?;
        let headers = self.headers(&choose_weights(dir, &self.files, Some(&index))?)?;
        let places: HashMap<&str, &str> =
            index.weight_map.iter().map(|(tensor, file)| (tensor.as_str(), file.as_str())).collect();
        let inventory = self.gather(headers, |file, tensor| places.get(tensor) == Some(&file))?;
        match places.keys().find(|tensor| !inventory.contains_key(**tensor)) {
            None => Ok(inventory),
            Some(lacking) => {
                Err(self.unexpected(INDEX_NAME, "the tensors of the index", format!("no `{lacking}`")))
            }
        }
    }

    /// Every shard's header in one request, where the server has that.
    fn all_at_once(&self) -> Result<Option<Vec<(String, Header)>>> {
        let path = format!("/api/models/{}/safetensors-metadata/{INDEX_NAME}", self.id);
        let about = About::reading(self.id.name(), &self.commit, None);
        let request = Request::get(self.client.settings.endpoint.below(&path), about);
        let Ok((answer, _)) = self.client.json::<Value>(&request, "JSON") else { return Ok(None) };
        let Some(shards) = answer.get("headers").and_then(Value::as_object) else { return Ok(None) };
        let header = |(name, tensors): (&String, &Value)| {
            // Held to the same rules as a header that is read from its file.
            let text = tensors.to_string().into_bytes();
            let ends = tensors.as_object().into_iter().flatten();
            let ends = ends.filter_map(|(_, tensor)| tensor.get("data_offsets")?.get(1)?.as_u64());
            let file_bytes = (text.len() as u64 + LENGTH_BYTES).checked_add(ends.max().unwrap_or(0));
            Ok((name.clone(), Header::parse(Path::new(name), &text, file_bytes.unwrap_or(0))?))
        };
        shards.iter().map(header).collect::<Result<_>>().map(Some)
    }

    /// The headers of files, some at once, in their order.
    fn headers(&self, files: &[String]) -> Result<Vec<(String, Header)>> {
        let next = AtomicUsize::new(0);
        let found: Mutex<BTreeMap<usize, Result<Header>>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(files.len()) {
                scope.spawn(|| {
                    while let Some((at, file)) = next_of(&next, files) {
                        let header = self.header(file);
                        let failed = header.is_err();
                        found.lock().unwrap_or_else(PoisonError::into_inner).insert(at, header);
                        if failed {
                            next.store(files.len(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A failure leaves the rest unasked, and is in the list.
        let named =
            |(at, header): (usize, Result<Header>)| Ok((files.get(at).cloned().unwrap_or_default(), header?));
        found.into_iter().map(named).collect()
    }

    fn header(&self, file: &str) -> Result<Header> {
        let (text, file_bytes) = self.remote(file).header(None)?;
        Ok(Header::parse(&Path::new(self.id.name()).join(file), &text, file_bytes)?)
    }

    fn gather(
        &self,
        headers: Vec<(String, Header)>,
        holds: impl Fn(&str, &str) -> bool,
    ) -> Result<Inventory> {
        let mut inventory = Inventory::new();
        for (file, header) in headers {
            for tensor in header.tensors.into_iter().filter(|tensor| holds(&file, &tensor.name)) {
                let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape };
                if inventory.insert(tensor.name.clone(), info).is_some() {
                    let found = format!("`{}` in two", tensor.name);
                    return Err(self.unexpected(&file, "a tensor in one file", found));
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
