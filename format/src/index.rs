//! `model.safetensors.index.json`: which shard holds which tensor (`docs/format.md`, section 6).

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Invalid, Result};
use crate::file::read_small;
use crate::json::{Members, check_keys, found, to_python};

/// The index's name in a checkpoint.
pub const INDEX_NAME: &str = "model.safetensors.index.json";
/// Bytes of the longest index that is read.
pub const INDEX_BYTES_MAX: u64 = 1 << 30;

/// An index: tensor names and the files that hold them, in the order of its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Tensor and file names.
    pub weight_map: Vec<(String, String)>,
    /// The bytes of data that it declares, where it does: published totals are often wrong.
    pub total_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Text {
    weight_map: Members<String>,
    metadata: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Printed<'a> {
    metadata: Total,
    weight_map: Members<&'a String>,
}

#[derive(Serialize, Deserialize)]
struct Total {
    total_size: u64,
}

impl Index {
    /// Reads the index at `path`; every file it names stays inside the checkpoint's folder.
    ///
    /// # Errors
    /// Where it cannot be read, is no index, or names a file elsewhere.
    pub fn read(path: &Path) -> Result<Index> {
        Index::parse(path, &read_small(path, INDEX_BYTES_MAX)?)
    }

    /// As [`Index::read`], of a text; `path` is what errors call it.
    ///
    /// # Errors
    /// Where it is no index, or names a file elsewhere.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Index> {
        let invalid = |expected: &str, found: String| Invalid {
            file: Some(path.to_owned()),
            expected: expected.to_owned(),
            found,
            hint: Some("fetch the index again, or tell who made it".to_owned()),
            ..Invalid::default()
        };
        let text: Text = check_keys(text)
            .and_then(|()| serde_json::from_slice(text))
            .map_err(|error| invalid("an index with a `weight_map` of tensors and files", found(&error)))?;
        let total: Option<Total> = text.metadata.and_then(|text| serde_json::from_str(text.get()).ok());
        let weight_map = text.weight_map.0;
        if let Some((_, file)) = weight_map.iter().find(|(_, file)| !is_inside(file)) {
            return Err(invalid("files inside the checkpoint", format!("{file:?}")).into());
        }
        Ok(Index { weight_map, total_bytes: total.map(|total| total.total_size) })
    }

    /// The index's text.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let weight_map = self.weight_map.iter().map(|(tensor, file)| (tensor.clone(), file)).collect();
        let metadata = Total { total_size: self.total_bytes.unwrap_or(0) };
        to_python(&Printed { metadata, weight_map: Members(weight_map) }, 2)
    }
}

/// Whether a file's name, as an index has it, is a path below the index's own folder.
fn is_inside(name: &str) -> bool {
    let plain = |part| matches!(part, Component::Normal(_));
    !name.is_empty()
        && !name.ends_with('/')
        && !name.contains(['\\', '\0'])
        && Path::new(name).components().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside_the_checkpoint() {
        for inside in ["model-1.safetensors", "sub/model-1.safetensors"] {
            assert!(is_inside(inside), "{inside}");
        }
        for outside in ["", "/etc/hostname", "../a", "sub/../../a", "a/..", "..", ".", "a/", "..\\a", "a\0"] {
            assert!(!is_inside(outside), "{outside}");
        }
    }
}
