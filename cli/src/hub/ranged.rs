//! A safetensors file's header by ranged requests: its first bytes, and the rest of the header where
//! that is longer.

use std::path::Path;

use glyd_format::header::{HEADER_BYTES_MAX, Header, LENGTH_BYTES};

use super::request::{Hub, HubError};
use crate::output::Failure;

/// What is asked for first: nearly every header is within.
const FIRST_BYTES: u64 = 100_000;

/// The header of the file at `path` of the Hub, called `name`.
pub(super) fn header(hub: &Hub, path: &str, name: &Path) -> Result<Header, Failure> {
    let first = hub.range(path, 0, FIRST_BYTES)?;
    let length = first.bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let file = format!("a safetensors file of {} bytes", first.file_bytes);
    let Some(length) = length else {
        return Err(hub.unexpected(path, "a safetensors file", file).into());
    };
    let end =
        length.checked_add(LENGTH_BYTES).filter(|&end| end <= first.file_bytes && length <= HEADER_BYTES_MAX);
    let Some(end) = end else {
        return Err(hub.unexpected(path, &file, format!("a header of {length} bytes")).into());
    };
    let mut bytes = first.bytes;
    let have = bytes.len() as u64;
    if have < end {
        bytes.extend(hub.range(path, have, end)?.bytes);
    }
    let text = usize::try_from(end).ok().and_then(|end| bytes.get(size_of::<u64>()..end));
    match text {
        Some(text) => Ok(Header::parse(name, text, first.file_bytes)?),
        None => Err(HubError::Unexpected {
            url: hub.url(path),
            expected: format!("the {end} bytes of the header"),
            found: format!("{} bytes", bytes.len()),
        }
        .into()),
    }
}
