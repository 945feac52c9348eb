//! A safetensors file's header: read strictly, and written as the format has it
//! (`docs/format.md`, sections 6 and 7, rules 3 and 8).

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::error::{Error, Invalid, Result};
use crate::file::File;
use crate::json::{BYTE_ORDER_MARK, Members, reason};

/// Bytes of the longest header that is read: the limit of the safetensors library.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes of the header's length, at the start of the file.
pub const LENGTH_BYTES: u64 = 8;
/// Headers are padded with spaces to a multiple of this.
const ALIGNMENT: usize = 8;
const METADATA_KEY: &str = "__metadata__";

/// A tensor as a header has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Where its bytes start, from the start of the file's data.
    pub begin: u64,
    /// Where they end.
    pub end: u64,
}

impl Tensor {
    /// Bytes of its data.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end - self.begin
    }
}

/// Bytes of a tensor of this dtype and shape; `None` where they are more than 64 bits count, or no
/// whole number.
#[must_use]
pub fn tensor_bytes(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    let bits = shape.iter().try_fold(dtype.bitsize() as u64, |bits, &dim| {
        // A dimension of 0 makes the tensor empty only where the others are no lie.
        bits.checked_mul(dim.max(1))
    })?;
    let bits = if shape.contains(&0) { 0 } else { bits };
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// A safetensors file's tensors, and where its data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The tensors in the order of their data.
    pub tensors: Vec<Tensor>,
    /// Bytes of the file before its data.
    pub data_offset: u64,
}

impl Header {
    /// Reads the header of `file`, and the text it was read from.
    ///
    /// # Errors
    /// All that is wrong with the header; every message names the file.
    pub fn read(file: &File) -> Result<(Header, Vec<u8>)> {
        let path = file.path();
        let found = file.bytes();
        let mut start = vec![0; usize::try_from(found.min(4096)).unwrap_or(4096)];
        file.read_at(&mut start, 0)?;
        if let Some((what, hint)) = placeholder(&start) {
            return Err(invalid(path, "a safetensors file", what, hint));
        }
        let Some(Ok(length)) = start.get(..8).map(<[u8; 8]>::try_from) else {
            return Err(invalid(path, "a safetensors file", format!("{found} bytes"), INCOMPLETE));
        };
        let length = u64::from_le_bytes(length);
        if length > found - LENGTH_BYTES {
            let expected = format!("a header no longer than the file of {found} bytes");
            return Err(invalid(
                path,
                expected,
                format!("header length {length} exceeds file size"),
                INCOMPLETE,
            ));
        }
        if length > HEADER_BYTES_MAX {
            let expected = format!("a header of at most {HEADER_BYTES_MAX} bytes");
            return Err(invalid(path, expected, format!("{length} bytes"), "split the file into shards"));
        }
        let mut text = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        file.read_at(&mut text, LENGTH_BYTES)?;
        Ok((Header::parse(path, &text, found)?, text))
    }

    /// The header with this text, of a file of so many bytes; `path` is what errors call it.
    ///
    /// # Errors
    /// All that is wrong with the header.
    pub fn parse(path: &Path, text: &[u8], file_bytes: u64) -> Result<Header> {
        let data_offset = LENGTH_BYTES + text.len() as u64;
        let Some(data_bytes) = file_bytes.checked_sub(data_offset) else {
            let expected = format!("a file of at least {data_offset} bytes");
            return Err(invalid(path, expected, format!("{file_bytes} bytes"), INCOMPLETE));
        };
        parse(text, data_offset, data_bytes).map_err(|problems| {
            let errors = problems.into_iter().map(|problem| Invalid {
                file: Some(path.to_owned()),
                hint: problem.hint.or_else(|| Some(WRONG.to_owned())),
                ..problem
            });
            Error::several(errors.map(Error::from).collect())
        })
    }

    /// The header of a file that holds these tensors (name, dtype, shape), in the order in which
    /// they are written: by dtype, the widest first, then by name. `None` where a tensor's bytes, or
    /// all of them, are more than 64 bits count.
    #[must_use]
    pub fn arrange(mut tensors: Vec<(String, Dtype, Vec<u64>)>) -> Option<Header> {
        tensors.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
        let mut end = 0_u64;
        let tensors = tensors.into_iter().map(|(name, dtype, shape)| {
            let begin = end;
            end = begin.checked_add(tensor_bytes(dtype, &shape)?)?;
            Some(Tensor { name, dtype, shape, begin, end })
        });
        let tensors: Vec<Tensor> = tensors.collect::<Option<_>>()?;
        let mut header = Header { tensors, data_offset: 0 };
        header.data_offset = LENGTH_BYTES + header.text().len() as u64;
        Some(header)
    }

    /// The header's text as it is written for its tensors in their order, padding included.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let mut text = br#"{"__metadata__":{"format":"pt"}"#.to_vec();
        for tensor in &self.tensors {
            let name = serde_json::Value::from(tensor.name.as_str());
            let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
            let Tensor { dtype, begin, end, .. } = tensor;
            let shape = shape.join(",");
            text.extend_from_slice(
                format!(r#",{name}:{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#)
                    .as_bytes(),
            );
        }
        text.push(b'}');
        text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
        text
    }

    /// The bytes before the data: the text's length, and the text.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let text = self.text();
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&text);
        bytes
    }

    /// Bytes of the data.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.tensors.last().map_or(0, |tensor| tensor.end)
    }
}

const WRONG: &str = "the file is damaged or was written wrongly: fetch it again, or tell who made it";
const INCOMPLETE: &str = "fetch the file again: it is incomplete or no safetensors file";

fn invalid(path: &Path, expected: impl Into<String>, found: impl Into<String>, hint: &str) -> Error {
    Invalid {
        file: Some(path.to_owned()),
        expected: expected.into(),
        found: found.into(),
        hint: Some(hint.to_owned()),
        ..Invalid::default()
    }
    .into()
}

/// What a file that starts so is, where it stands in a safetensors file's place; and what to do.
fn placeholder(start: &[u8]) -> Option<(String, &'static str)> {
    const PAGE: &str = "fetch the file again: a login or error page was saved in its place";
    let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start).trim_ascii_start();
    let starts = |tag: &[u8]| text.get(..tag.len()).is_some_and(|text| text.eq_ignore_ascii_case(tag));
    let length = &start[..start.len().min(8)];
    let (what, hint) = if start.is_empty() {
        ("an empty file", "fetch the file again")
    } else if starts(b"version https://git-lfs") {
        ("a Git LFS pointer", "fetch the file itself with `git lfs pull` or `hf download`")
    } else if starts(b"<!doctype") || starts(b"<html") {
        ("an HTML page", PAGE)
    } else if length.iter().all(|&byte| byte == 0) {
        ("zeros", "fetch the file again: space was set aside for it, and never filled")
    } else if length.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        // Read as a header's length, eight such bytes are 10^17 and more: no file is so long.
        let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(&line[..line.len().min(60)]);
        return Some((format!("text that starts with `{}`", line.trim_end().escape_debug()), PAGE));
    } else {
        return None;
    };
    Some((what.to_owned(), hint))
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The tensors of a header in the order of its text.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
                use serde::de::Error;
                let (mut entries, mut seen) = (Vec::new(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    let named = |error: A::Error| Error::custom(format_args!("`{name}`: {error}"));
                    if !seen.insert(name.clone()) {
                        return Err(Error::custom(format_args!("duplicate tensor name `{name}`")));
                    }
                    if name == METADATA_KEY {
                        map.next_value::<Option<Members<String>>>().map_err(named)?;
                    } else {
                        let entry = map.next_value().map_err(named)?;
                        entries.push((name, entry));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Reads a header's text, and holds its tensors to the `data_bytes` of the file.
fn parse(text: &[u8], data_offset: u64, data_bytes: u64) -> std::result::Result<Header, Vec<Invalid>> {
    let wrong = |reason: String, offset: usize| {
        vec![Invalid {
            expected: "a JSON object of tensors".to_owned(),
            found: format!("{reason}, at byte {offset} of the header"),
            ..Invalid::default()
        }]
    };
    if text.starts_with(BYTE_ORDER_MARK) {
        return Err(wrong("a byte order mark before the JSON".to_owned(), 0));
    }
    // The JSON reader skips strings that nobody asks for without looking at them.
    let text = std::str::from_utf8(text)
        .map_err(|error| wrong("bytes that are no UTF-8".to_owned(), error.valid_up_to()))?;
    let Entries(entries) = serde_json::from_str(text).map_err(|error| {
        // The whole header is one line as a rule: say where in it, in bytes.
        let lines = text.split_inclusive('\n');
        let before: usize = lines.take(error.line().saturating_sub(1)).map(str::len).sum();
        wrong(reason(&error), before + error.column().saturating_sub(1))
    })?;
    let mut problems = Vec::new();
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        match tensor(name, entry) {
            Ok(tensor) => tensors.push(tensor),
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.end));
    match check_ranges(&tensors, data_bytes) {
        Some(problem) => Err(vec![problem]),
        None => Ok(Header { tensors, data_offset }),
    }
}

fn tensor(name: String, entry: Entry) -> std::result::Result<Tensor, Invalid> {
    let Entry { dtype, shape, data_offsets: (begin, end) } = entry;
    let problem = |expected: String, found: String| {
        Err(Invalid { tensor: Some(name.clone()), expected, found, ..Invalid::default() })
    };
    let Ok(dtype) = serde_json::from_value::<Dtype>(dtype.as_str().into()) else {
        return problem("a dtype of the safetensors library".to_owned(), format!("`{dtype}`"));
    };
    let Some(bytes) = tensor_bytes(dtype, &shape) else {
        let expected = "a shape of whole bytes that 64 bits count".to_owned();
        return problem(expected, format!("{dtype} {shape:?}: shape overflows, or ends within a byte"));
    };
    if end.checked_sub(begin) != Some(bytes) {
        let expected = format!("{bytes} bytes for {dtype} {shape:?}");
        return problem(expected, format!("data_offsets [{begin}, {end}]"));
    }
    Ok(Tensor { name, dtype, shape, begin, end })
}

/// The first place where tensors, in the order of their data, do not stand back to back.
fn check_ranges(tensors: &[Tensor], data_bytes: u64) -> Option<Invalid> {
    let mut last: Option<&Tensor> = None;
    for tensor in tensors {
        let end = last.map_or(0, |last| last.end);
        let before = || {
            last.map_or("the start of the data".to_owned(), |last| {
                format!("`{}` [{}, {})", last.name, last.begin, last.end)
            })
        };
        let here = || format!("[{}, {})", tensor.begin, tensor.end);
        let problem = |expected: String, found: String, hint: Option<&str>| {
            let (tensor, hint) = (Some(tensor.name.clone()), hint.map(str::to_owned));
            Some(Invalid { file: None, tensor, expected, found, hint })
        };
        if tensor.end > data_bytes {
            let found = format!("{data_bytes} bytes on disk: {} is the first tensor past the end", here());
            let declared = tensors.iter().map(|tensor| tensor.end).max().unwrap_or(0);
            let hint = Some("fetch the file again: it is incomplete");
            return problem(format!("the {declared} bytes of data that the header declares"), found, hint);
        }
        if last.is_some_and(|last| (last.begin, last.end) == (tensor.begin, tensor.end) && tensor.bytes() > 0)
        {
            return problem(
                "bytes of its own".to_owned(),
                format!("{}, the same range as {}", here(), before()),
                None,
            );
        }
        if tensor.begin < end {
            return problem(
                format!("bytes from {end} on"),
                format!("{}, an overlap with {}", here(), before()),
                None,
            );
        }
        if tensor.begin > end {
            let gap = tensor.begin - end;
            let found = format!("{}, an unused gap of {gap} bytes after {}", here(), before());
            return problem(format!("bytes from {end} on"), found, None);
        }
        last = Some(tensor);
    }
    let end = last.map_or(0, |last| last.end);
    (end != data_bytes).then(|| Invalid {
        tensor: last.map(|last| last.name.clone()),
        expected: format!("the data to end at {end}, with the last tensor"),
        found: format!("{} more bytes in the file", data_bytes - end),
        ..Invalid::default()
    })
}
