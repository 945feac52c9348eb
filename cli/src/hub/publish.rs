//! A folder's files put into a repository: only those that it does not have, in one commit, so that the
//! repository never holds a mixture of two checkpoints.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glyd_format::Progress;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Client, Request};
use super::error::io_error;
use super::folder::{Local, files, sample, superfluous};
use super::hash::of_file;
use super::listing;
use super::refusal::About;
use super::repo::{Entry, Hash, RepoId, check_revision};
use super::settings::Settings;
use super::upload::Upload;
use super::url::encode;
use super::{HubError, Result, Stop};

const JSON: &str = "application/json";
/// The branch that a repository begins with.
const MAIN: &str = "main";
/// Files of one question after how they are to be uploaded.
const ASK_FILES: usize = 256;

/// Where files go.
pub(crate) struct Target<'a> {
    pub(crate) repo: &'a RepoId,
    pub(crate) revision: &'a str,
    /// Whether the repository is private where it is made.
    pub(crate) private: bool,
}

/// What was done.
#[derive(Debug)]
pub(crate) struct Published {
    /// The commit; none where nothing had changed.
    pub(crate) commit: Option<String>,
    /// Where people see it.
    pub(crate) url: String,
    pub(crate) uploaded: Vec<(String, u64)>,
    pub(crate) unchanged: Vec<(String, u64)>,
    /// Weights of an older checkpoint, taken away.
    pub(crate) removed: Vec<String>,
}

#[derive(Deserialize)]
struct Modes {
    files: Vec<Mode>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mode {
    path: String,
    upload_mode: String,
    #[serde(default)]
    should_ignore: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Committed {
    commit_oid: String,
}

/// Publishes the files of a folder.
///
/// # Errors
/// Where the Hub does not take them; its repository is then as it was.
pub(crate) fn publish(
    dir: &Path,
    target: &Target<'_>,
    settings: Settings,
    stop: Stop,
    progress: &dyn Progress,
) -> Result<Published> {
    check_revision(target.revision)?;
    if let Some(why) = settings.offline {
        return Err(HubError::Usage(format!("{why} is set: publishing takes requests")));
    }
    if settings.token.is_none() {
        let page = settings.endpoint.below("/settings/tokens");
        return Err(HubError::NoWriteToken { repo: target.repo.to_string(), page: page.to_string() });
    }
    let files = files(dir)?;
    let client = Client::new(settings, stop)?;
    let publisher = Publisher { client: &client, target };
    publisher.make()?;
    let head = listing::commit(&client, target.repo, target.revision)?;
    let there = listing::list(&client, target.repo, &head)?;
    let (changed, unchanged) = publisher.compare(&files, &there)?;
    let removed = superfluous(&files, &there);
    let url = client.settings.endpoint.below(&format!("/{}/tree/{}", target.repo, encode(target.revision)));
    let named = |files: &[&Local]| files.iter().map(|file| (file.path.clone(), file.bytes)).collect();
    let mut published = Published {
        commit: None,
        url: url.to_string(),
        uploaded: named(&changed),
        unchanged: named(&unchanged),
        removed,
    };
    if !changed.is_empty() || !published.removed.is_empty() {
        progress.start(changed.iter().map(|file| file.bytes).sum());
        let lines = publisher.upload(&changed, progress)?;
        published.commit = Some(publisher.commit(&head, lines, &published.removed)?);
    }
    Ok(published)
}

struct Publisher<'a> {
    client: &'a Client,
    target: &'a Target<'a>,
}

impl Publisher<'_> {
    fn about(&self) -> About<'_> {
        About { repo: self.target.repo.name(), revision: self.target.revision, file: None, writes: true }
    }

    fn post(&self, path: &str, body: &Value) -> Result<super::client::Response> {
        let url = self.client.settings.endpoint.below(path);
        self.client.send(&Request::post(url, JSON, body.to_string().as_bytes(), self.about()))
    }

    /// Makes the repository, and the branch, where they are not there.
    fn make(&self) -> Result<()> {
        let repo = self.target.repo;
        let (owner, name) = repo.name().split_once('/').unwrap_or_default();
        let mut body = json!({ "type": "model", "organization": owner, "name": name });
        if self.target.private {
            body["visibility"] = json!("private");
        }
        match self.post("/api/repos/create", &body) {
            Ok(_) | Err(HubError::Status { status: 409, .. }) => {}
            // Who may write to a repository need not be one who may make others.
            Err(error) => drop(listing::commit(self.client, repo, MAIN).map_err(|_| error)?),
        }
        if self.target.revision == MAIN {
            return Ok(());
        }
        match self.post(&format!("/api/models/{repo}/branch/{}", encode(self.target.revision)), &json!({})) {
            Ok(_) | Err(HubError::Status { status: 409, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The files that the repository has not, and those that it has.
    fn compare<'f>(&self, files: &'f [Local], there: &[Entry]) -> Result<(Vec<&'f Local>, Vec<&'f Local>)> {
        let there: HashMap<&str, &Entry> = there.iter().map(|entry| (entry.path.as_str(), entry)).collect();
        let (mut changed, mut unchanged) = (Vec::new(), Vec::new());
        for file in files {
            let same = match there.get(file.path.as_str()) {
                Some(entry) if entry.bytes == file.bytes => {
                    of_file(&file.file, &entry.hash, &self.client.stop)? == entry.hash
                }
                _ => false,
            };
            if same { unchanged.push(file) } else { changed.push(file) }
        }
        Ok((changed, unchanged))
    }

    /// Uploads what is large; returns the commit's lines for all.
    fn upload(&self, files: &[&Local], progress: &dyn Progress) -> Result<Vec<Value>> {
        let large = self.large(files)?;
        let mut lines = Vec::new();
        let upload = Upload { client: self.client, about: self.about(), progress };
        for file in files {
            if !large.contains(&file.path) {
                let content = fs::read(&file.file).map_err(io_error("read", &file.file))?;
                let content = STANDARD.encode(content);
                lines.push(json!({ "key": "file", "value": { "path": file.path, "content": content, "encoding": "base64" } }));
                continue;
            }
            let like = Hash::Sha256(glyd_format::Digest::of(b""));
            let oid = of_file(&file.file, &like, &self.client.stop)?.name();
            upload.large(file, &oid)?;
            lines.push(json!({
                "key": "lfsFile",
                "value": { "path": file.path, "algo": "sha256", "oid": oid, "size": file.bytes },
            }));
        }
        Ok(lines)
    }

    /// Which of the files the Hub keeps as large ones.
    fn large(&self, files: &[&Local]) -> Result<BTreeSet<String>> {
        const SAMPLE_BYTES: usize = 512;
        let path = format!("/api/models/{}/preupload/{}", self.target.repo, encode(self.target.revision));
        let url = self.client.settings.endpoint.below(&path);
        let mut large = BTreeSet::new();
        for files in files.chunks(ASK_FILES) {
            let mut asked = Vec::new();
            for file in files {
                let sample = sample(&file.file, SAMPLE_BYTES)?;
                asked.push(
                    json!({ "path": file.path, "size": file.bytes, "sample": STANDARD.encode(sample) }),
                );
            }
            let body = json!({ "files": asked }).to_string();
            let request = Request::post(url.clone(), JSON, body.as_bytes(), self.about());
            let (modes, _): (Modes, _) = self.client.json(&request, "how each file is to be uploaded")?;
            for file in files {
                let mode = modes.files.iter().find(|mode| mode.path == file.path);
                if mode.is_some_and(|mode| mode.should_ignore) {
                    return Err(ignored(self.target.repo, &file.path));
                }
                // An empty file cannot be a large one.
                if mode.is_some_and(|mode| mode.upload_mode == "lfs" && file.bytes > 0) {
                    large.insert(file.path.clone());
                }
            }
        }
        Ok(large)
    }

    fn commit(&self, head: &str, lines: Vec<Value>, removed: &[String]) -> Result<String> {
        let summary = concat!("Packed with glyd ", env!("CARGO_PKG_VERSION"));
        // Who committed in between is not overwritten.
        let head = json!({ "key": "header", "value": { "summary": summary, "description": "", "parentCommit": head } });
        let removed = removed.iter().map(|path| json!({ "key": "deletedFile", "value": { "path": path } }));
        let lines = std::iter::once(head).chain(lines).chain(removed);
        let body: String = lines.map(|line| format!("{line}\n")).collect();
        let path = format!("/api/models/{}/commit/{}", self.target.repo, encode(self.target.revision));
        let url = self.client.settings.endpoint.below(&path);
        let request = Request::post(url, "application/x-ndjson", body.as_bytes(), self.about());
        let (committed, _): (Committed, _) = self.client.json(&request, "the commit that was made")?;
        Ok(committed.commit_oid)
    }
}

fn ignored(repo: &RepoId, path: &str) -> HubError {
    HubError::Usage(format!(
        "`{path}`: the `.gitignore` of `{repo}` would leave it out; take that line away first"
    ))
}
