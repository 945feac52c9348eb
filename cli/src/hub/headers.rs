//! A shard's header by ranged requests: its first bytes, and the rest of the header where that is longer. Weights
//! are not fetched, whatever the server makes of the range.

use std::path::Path;

use glyd_format::Invalid;
use glyd_format::header::{HEADER_BYTES_MAX, LENGTH_BYTES};

use super::client::{Request, Response};
use super::fetch::Place;
use super::refusal::About;
use super::repo::Entry;
use super::url::encode_path;
use super::{HubError, Result};

/// What is asked for first: nearly every header is within.
const FIRST_BYTES: u64 = 100_000;

impl Place<'_> {
    /// The text of a file's header.
    ///
    /// # Errors
    /// Where it cannot be had, or the file is no safetensors file.
    pub(crate) fn header(&self, entry: &Entry) -> Result<Vec<u8>> {
        let mut bytes = self.start(entry, 0, FIRST_BYTES.min(entry.bytes))?;
        let length = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let end = length
            .filter(|&length| length <= HEADER_BYTES_MAX)
            .and_then(|length| length.checked_add(LENGTH_BYTES));
        let Some(end) = end.filter(|&end| end <= entry.bytes) else {
            let found =
                length.map_or_else(|| "no header".to_owned(), |length| format!("a header of {length} bytes"));
            return Err(self.no_header(entry, &found));
        };
        let have = bytes.len() as u64;
        if have < end {
            bytes.extend(self.start(entry, have, end)?);
        }
        let text = usize::try_from(end).ok().and_then(|end| bytes.get(size_of::<u64>()..end));
        text.map(<[u8]>::to_vec).ok_or_else(|| self.no_header(entry, &format!("{} bytes of it", bytes.len())))
    }

    /// The bytes of a file from `from` to before `to`, or as many of them as there are.
    fn start(&self, entry: &Entry, from: u64, to: u64) -> Result<Vec<u8>> {
        let path = format!("/{}/resolve/{}/{}", self.repo, self.commit, encode_path(&entry.path));
        let about = About::reading(self.repo.name(), self.commit, Some(&entry.path));
        let mut request = Request::get(self.client.settings.endpoint.below(&path), about);
        request.range = Some(format!("bytes={from}-{}", to.saturating_sub(1)));
        let read = |response: &mut Response| {
            // A server that sends all is cut off once there is enough.
            let skip = if response.status == 206 { 0 } else { from };
            let mut bytes = read_up_to(response, skip + to - from)?;
            Ok(bytes.split_off(usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len())))
        };
        match self.client.read(&request, read) {
            // Some servers give no range of a file that is shorter than it.
            Err(HubError::Status { status: 416, .. }) => {
                request.range = None;
                let whole = |response: &mut Response| read_up_to(response, to);
                let mut bytes = self.client.read(&request, whole)?.0;
                Ok(bytes.split_off(usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len())))
            }
            read => Ok(read?.0),
        }
    }

    fn no_header(&self, entry: &Entry, found: &str) -> HubError {
        let invalid = Invalid {
            file: Some(Path::new(self.repo.name()).join(&entry.path)),
            expected: format!("a safetensors file of {} bytes", entry.bytes),
            found: found.to_owned(),
            hint: Some("tell its owner: no program can read it".to_owned()),
            ..Invalid::default()
        };
        HubError::Checkpoint(invalid.into())
    }
}

fn read_up_to(response: &mut Response, bytes: u64) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut read = Vec::new();
    response.body.with_config().limit(u64::MAX).reader().take(bytes).read_to_end(&mut read)?;
    Ok(read)
}
