//! `glyd.json`, the manifest of a packed checkpoint: `docs/format.md`, section 5.

mod read;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use crate::digest::Digest;
use crate::json::to_python;
use crate::layout::{Buffer, Coding, Layout};

pub use read::{MANIFEST_BYTES_MAX, ReadManifest};

/// The manifest's name in a checkpoint.
pub const MANIFEST_NAME: &str = "glyd.json";
/// The version of the format's writer whose bytes ours are.
pub const WRITER_VERSION: Version = Version([0, 25, 1]);

/// A version of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Dense models in `mma`.
    V1,
    /// With experts' weights, in `mma`.
    V2,
    /// In `mma12`.
    V3,
}

impl Format {
    /// The format of a checkpoint in this layout, with or without experts' weights (section 1).
    #[must_use]
    pub const fn of(layout: Layout, experts: bool) -> Self {
        match (layout, experts) {
            (Layout::Mma12, _) => Format::V3,
            (Layout::Mma, true) => Format::V2,
            (Layout::Mma, false) => Format::V1,
        }
    }

    /// The name in `glyd.json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::V1 => "glyd-v1",
            Format::V2 => "glyd-v2",
            Format::V3 => "glyd-v3",
        }
    }
}

/// The version of the format's writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub [u32; 3]);

/// Where a checkpoint was packed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The model as it was named on the command line: bytes, since a path may be any.
    pub repo: Vec<u8>,
    /// Its commit, where that is known.
    pub revision: Option<String>,
}

impl Source {
    /// The name, as it is shown.
    #[must_use]
    pub fn display(&self) -> std::borrow::Cow<'_, str> {
        OsStr::from_bytes(&self.repo).to_string_lossy()
    }
}

/// A packed tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedTensor {
    /// Its name in the model.
    pub name: String,
    /// Its shape, as the model holds it.
    pub shape: Vec<u64>,
    /// The sha256 of its bf16 bytes, as the model holds them.
    pub sha256: Digest,
}

/// An experts' weight: how many experts, and how each is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsEntry {
    /// How many experts.
    pub count: u64,
    /// Whether the model holds each as `[in, out]`.
    pub transposed: bool,
}

/// A packed matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackEntry {
    /// Rows and columns.
    pub shape: [u64; 2],
    /// What its weights are decoded by.
    pub coding: Coding,
    /// The tensors in it, in their order by rows.
    pub tensors: Vec<PackedTensor>,
    /// Of an experts' weight.
    pub experts: Option<ExpertsEntry>,
}

/// The name of a pack's buffer: `module.glyd_data`, or `module.glyd_weight_data` of an experts' weight.
#[must_use]
pub fn buffer_name(pack: &str, experts: bool, layout: Layout, buffer: Buffer) -> String {
    let buffer = layout.buffer_name(buffer);
    let dotted = |module: &str| if module.is_empty() { String::new() } else { format!("{module}.") };
    if experts {
        let (module, weight) = pack.rsplit_once('.').unwrap_or(("", pack));
        format!("{}glyd_{weight}_{buffer}", dotted(module))
    } else {
        format!("{}glyd_{buffer}", dotted(pack))
    }
}

/// What a packed checkpoint says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The version of the format.
    pub format: Format,
    /// The version of its writer.
    pub glyd: Version,
    /// Where it was packed from.
    pub source: Source,
    /// The layout of its packs.
    pub layout: Layout,
    /// The packs by name, in the order in which they were made.
    pub packs: Vec<(String, PackEntry)>,
    /// The sha256 of every tensor saved as it is, by name, in the order in which they were saved;
    /// `None` in checkpoints older than 0.25.
    pub tensors: Option<Vec<(String, Digest)>>,
}

impl Manifest {
    /// The text of `glyd.json`.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        to_python(self, 1)
    }
}

impl Serialize for Manifest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Version([major, minor, patch]) = self.glyd;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("format", self.format.name())?;
        map.serialize_entry("glyd", &format!("{major}.{minor}.{patch}"))?;
        map.serialize_entry("source", &self.source)?;
        map.serialize_entry("layout", self.layout.name())?;
        map.serialize_entry("packs", &Entries(&self.packs))?;
        if let Some(tensors) = &self.tensors {
            map.serialize_entry("tensors", &Entries(tensors))?;
        }
        map.end()
    }
}

struct Entries<'a, V>(&'a [(String, V)]);

impl<V: Serialize> Serialize for Entries<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        let repo = RawValue::from_string(python_string(&self.repo)).map_err(S::Error::custom)?;
        map.serialize_entry("repo", &repo)?;
        map.serialize_entry("revision", &self.revision)?;
        map.end()
    }
}

/// Bytes as a JSON string, those that are no UTF-8 as the lone surrogates that Python's
/// surrogateescape has for them: U+DC00 + the byte.
fn python_string(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        let valid = to_python(&chunk.valid(), 0);
        text.push_str(&String::from_utf8_lossy(&valid[1..valid.len() - 1]));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\udc{byte:02x}"));
        }
    }
    text.push('"');
    text
}

impl Serialize for PackEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("layout", self.coding.layout().name())?;
        map.serialize_entry("shape", &self.shape)?;
        match self.coding {
            Coding::Mma(tiers) => map.serialize_entry("tiers", &tiers.words())?,
            Coding::Mma12(base) => map.serialize_entry("hb", &base.get())?,
        }
        map.serialize_entry("tensors", &self.tensors)?;
        if let Some(experts) = self.experts {
            map.serialize_entry("experts", &experts.count)?;
            map.serialize_entry("transposed", &experts.transposed)?;
        }
        map.end()
    }
}

impl Serialize for PackedTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("shape", &self.shape)?;
        map.serialize_entry("sha256", &self.sha256)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_named_by_module_and_weight() {
        let name = |pack, experts| buffer_name(pack, experts, Layout::Mma12, Buffer::List);
        assert_eq!(name("a.b", false), "a.b.glyd_exc");
        assert_eq!(name("a.b", true), "a.glyd_b_exc");
        assert_eq!(name("b", true), "glyd_b_exc");
    }

    #[test]
    fn bytes_that_are_no_utf8_are_lone_surrogates() {
        assert_eq!(python_string("a\u{e9}\"".as_bytes()), r#""a\u00e9\"""#);
        assert_eq!(python_string(b"a\xff/\xc3"), r#""a\udcff/\udcc3""#);
    }
}
