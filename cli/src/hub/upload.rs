//! A large file put into the Hub's storage: whole, or in parts where the storage asks for them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};

use glyd_format::Progress;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Client, Payload, Request, Response};
use super::folder::Local;
use super::refusal::About;
use super::url::Url;
use super::{HubError, Result};

const LFS: &str = "application/vnd.git-lfs+json";
/// Where the Hub's own answers say it is, whatever mirror was asked.
const HUB: &str = "https://huggingface.co";

/// How large files are uploaded.
pub(super) struct Upload<'a> {
    pub(super) client: &'a Client,
    pub(super) about: About<'a>,
    pub(super) progress: &'a dyn Progress,
}

#[derive(Deserialize)]
struct Batch {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    #[serde(default)]
    actions: Option<Actions>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Actions {
    #[serde(default)]
    upload: Option<Action>,
    #[serde(default)]
    verify: Option<Action>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: BTreeMap<String, Value>,
}

impl Upload<'_> {
    /// Uploads a file whose sha256 is `oid`; one that the storage has already is not sent.
    pub(super) fn large(&self, file: &Local, oid: &str) -> Result<()> {
        let Some(actions) = self.ask(file, oid)? else {
            self.progress.advance(file.bytes);
            return Ok(());
        };
        if let Some(upload) = actions.upload {
            match upload.header.get("chunk_size") {
                Some(chunk) => self.in_parts(file, oid, &upload, chunk)?,
                None => drop(self.put(file, &upload.href, 0, file.bytes)?),
            }
        }
        if let Some(verify) = actions.verify {
            let body = json!({ "oid": oid, "size": file.bytes }).to_string();
            let url = self.own(&verify.href)?;
            self.client.send(&Request::post(url, "application/json", body.as_bytes(), self.about))?;
        }
        Ok(())
    }

    /// What the storage asks to be done.
    fn ask(&self, file: &Local, oid: &str) -> Result<Option<Actions>> {
        let body = json!({
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "objects": [{ "oid": oid, "size": file.bytes }],
            "hash_algo": "sha256",
        });
        let url =
            self.client.settings.endpoint.below(&format!("/{}.git/info/lfs/objects/batch", self.about.repo));
        let body = body.to_string();
        let request = Request::post(url, LFS, body.as_bytes(), self.about);
        let (batch, response): (Batch, _) = self.client.json(&request, "where large files go")?;
        let wrong = |found: String| HubError::Answer {
            url: self.client.shown(&request.url, &response.trail),
            expected: format!("what to do with `{}`", file.path),
            found,
        };
        let object = batch.objects.into_iter().find(|object| object.oid == oid);
        let object = object.ok_or_else(|| wrong("nothing of it".to_owned()))?;
        match object.error {
            Some(error) => Err(wrong(format!("an error: {error}"))),
            None => Ok(object.actions),
        }
    }

    fn in_parts(&self, file: &Local, oid: &str, upload: &Action, chunk: &Value) -> Result<()> {
        let wrong = |found: String| HubError::Answer {
            url: self.own(&upload.href).map_or_else(|_| "`?`".to_owned(), |url| format!("`{url}`")),
            expected: format!("parts that are together the {} bytes of `{}`", file.bytes, file.path),
            found,
        };
        let number = chunk.as_u64().or_else(|| chunk.as_str()?.parse().ok()).filter(|&bytes| bytes > 0);
        let chunk = number.ok_or_else(|| wrong(format!("parts of {chunk} bytes")))?;
        let part =
            |(name, href): (&String, &Value)| Some((name.parse::<u64>().ok()?, href.as_str()?.to_owned()));
        let parts: BTreeMap<u64, String> = upload.header.iter().filter_map(part).collect();
        let count = parts.len() as u64;
        if count != file.bytes.div_ceil(chunk) || !parts.keys().copied().eq(1..=count) {
            return Err(wrong(format!("{count} parts of {chunk} bytes")));
        }
        let mut done = Vec::new();
        for (number, href) in &parts {
            let start = (number - 1) * chunk;
            let response = self.put(file, href, start, chunk.min(file.bytes - start))?;
            let etag = response.header("etag").ok_or_else(|| wrong(format!("no ETag of part {number}")))?;
            done.push(json!({ "partNumber": number, "etag": etag }));
        }
        let body = json!({ "oid": oid, "parts": done }).to_string();
        let url = self.own(&upload.href)?;
        self.client.send(&Request::post(url, LFS, body.as_bytes(), self.about)).map(drop)
    }

    /// Sends a part of a file.
    fn put(&self, file: &Local, href: &str, start: u64, bytes: u64) -> Result<Response> {
        let url = Url::parse(href).ok_or_else(|| self.no_url(href))?;
        let told = AtomicU64::new(0);
        let open = || -> io::Result<Box<dyn Read + '_>> {
            let mut source = File::open(&file.file)?;
            source.seek(SeekFrom::Start(start))?;
            Ok(Box::new(Part { upload: self, file: source.take(bytes), read: 0, told: &told }))
        };
        let payload = Payload::Stream(bytes, &open);
        let about = About { file: Some(&file.path), ..self.about };
        self.client.send(&Request { method: "PUT", url, range: None, payload, about })
    }

    /// A URL of the Hub's own, on the endpoint that is asked.
    fn own(&self, href: &str) -> Result<Url> {
        let endpoint = &self.client.settings.endpoint;
        if let Some(path) = href.strip_prefix(HUB).filter(|path| path.starts_with('/')) {
            return Ok(endpoint.below(path));
        }
        endpoint.join(href).ok_or_else(|| self.no_url(href))
    }

    fn no_url(&self, href: &str) -> HubError {
        HubError::Answer {
            url: format!("`{}`", self.client.settings.endpoint),
            expected: "the URL of a storage".to_owned(),
            found: format!("{:?}", href.split('?').next().unwrap_or_default()),
        }
    }
}

/// A part of a file while it is sent.
struct Part<'a> {
    upload: &'a Upload<'a>,
    file: io::Take<File>,
    read: u64,
    /// The most that was told of: what is sent a second time is not told of again.
    told: &'a AtomicU64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.upload.client.stop.asked() {
            return Err(io::Error::other("stopped"));
        }
        let bytes = self.file.read(buffer)?;
        self.read += bytes as u64;
        let before = self.told.fetch_max(self.read, Ordering::Relaxed);
        self.upload.progress.advance(self.read.saturating_sub(before));
        Ok(bytes)
    }
}
