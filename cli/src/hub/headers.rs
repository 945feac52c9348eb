//! A shard's header by ranged requests: its first bytes, and the rest of the header where that is longer. Weights
//! are not fetched, whatever the server makes of the range.

use std::io::Read;
use std::path::Path;

use glyd_format::Invalid;
use glyd_format::header::{HEADER_BYTES_MAX, LENGTH_BYTES};

use super::client::{Client, Request, Response};
use super::refusal::About;
use super::url::encode_path;
use super::{HubError, Result};

/// What is asked for first: nearly every header is within.
const FIRST_BYTES: u64 = 100_000;

/// A file of a repository.
pub(super) struct Remote<'a> {
    pub(super) client: &'a Client,
    pub(super) repo: &'a str,
    pub(super) commit: &'a str,
    pub(super) path: &'a str,
}

/// What was given of a file, and the bytes of the whole, where that is said.
struct Given {
    bytes: Vec<u8>,
    file_bytes: Option<u64>,
}

impl Remote<'_> {
    /// The request for the file.
    pub(super) fn request(&self) -> Request<'_> {
        let path = format!("/{}/resolve/{}/{}", self.repo, self.commit, encode_path(self.path));
        let about = About::reading(self.repo, self.commit, Some(self.path));
        Request::get(self.client.settings.endpoint.below(&path), about)
    }

    /// The text of the file's header, and the bytes of the file: those that are known, or that the server says.
    ///
    /// # Errors
    /// Where it cannot be had, or the file is no safetensors file.
    pub(super) fn header(&self, known: Option<u64>) -> Result<(Vec<u8>, u64)> {
        let Given { mut bytes, file_bytes } =
            self.range(0, known.map_or(FIRST_BYTES, |known| known.min(FIRST_BYTES)))?;
        let file_bytes = known.or(file_bytes).ok_or_else(|| self.no_header(None, "one of unknown length"))?;
        let wrong = |found: &str| self.no_header(Some(file_bytes), found);
        let length = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let length = length.ok_or_else(|| wrong("no header"))?;
        let end =
            length.checked_add(LENGTH_BYTES).filter(|&end| end <= file_bytes && length <= HEADER_BYTES_MAX);
        let end = end.ok_or_else(|| wrong(&format!("a header of {length} bytes")))?;
        let have = bytes.len() as u64;
        if have < end {
            bytes.extend(self.range(have, end)?.bytes);
        }
        let text = usize::try_from(end).ok().and_then(|end| bytes.get(size_of::<u64>()..end));
        let text = text.ok_or_else(|| wrong(&format!("{} bytes of it", bytes.len())))?;
        Ok((text.to_vec(), file_bytes))
    }

    /// The bytes of the file from `from` to before `to`, or as many of them as there are.
    fn range(&self, from: u64, to: u64) -> Result<Given> {
        let mut request = self.request();
        request.range = Some(format!("bytes={from}-{}", to.saturating_sub(1)));
        let given = self.client.read(&request, |response| give(response, from, to));
        match given {
            // Some servers give no range of a file that is shorter than it.
            Err(HubError::Status { status: 416, .. }) => {
                request.range = None;
                Ok(self.client.read(&request, |response| give(response, from, to))?.0)
            }
            given => Ok(given?.0),
        }
    }

    fn no_header(&self, file_bytes: Option<u64>, found: &str) -> HubError {
        let of = file_bytes.map(|bytes| format!(" of {bytes} bytes")).unwrap_or_default();
        let invalid = Invalid {
            file: Some(Path::new(self.repo).join(self.path)),
            expected: format!("a safetensors file{of}"),
            found: found.to_owned(),
            hint: Some("tell its owner: no program can read it".to_owned()),
            ..Invalid::default()
        };
        HubError::Checkpoint(invalid.into())
    }
}

/// Reads what is asked for, and no further: a server that sends all is cut off once there is enough.
fn give(response: &mut Response, from: u64, to: u64) -> std::io::Result<Given> {
    let (skip, file_bytes) = match response.status {
        206 => (
            0,
            response.header("content-range").and_then(|range| range.rsplit('/').next()?.trim().parse().ok()),
        ),
        _ => (from, response.header("content-length").and_then(|length| length.trim().parse().ok())),
    };
    let mut bytes = Vec::new();
    let reader = response.body.with_config().limit(u64::MAX).reader();
    reader.take(skip + (to - from)).read_to_end(&mut bytes)?;
    // What could be read of a file of unknown length is all of it, where that is less than was asked for.
    let whole = (bytes.len() as u64) < skip + (to - from);
    let file_bytes = file_bytes.or_else(|| whole.then_some(from - skip + bytes.len() as u64));
    let bytes = bytes.split_off(usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len()));
    Ok(Given { bytes, file_bytes })
}
