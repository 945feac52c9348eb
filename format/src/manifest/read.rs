//! `glyd.json` read strictly: every key named, every value of its kind, no key twice.

use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde_json::value::RawValue;

use super::{ExpertsEntry, Format, Manifest, PackEntry, PackedTensor, Source, Version, WRITER_VERSION};
use crate::digest::Digest;
use crate::error::{Error, Invalid, Result};
use crate::file::read_small;
use crate::json::{Members, found, reason};
use crate::layout::{Coding, Layout, mma, mma12};

/// Bytes of the longest manifest that is read.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// A manifest, and what stands in it that no version described here has.
#[derive(Debug)]
pub struct ReadManifest {
    /// The manifest.
    pub manifest: Manifest,
    /// Keys that are not known, with the path to each.
    pub unknown_keys: Vec<String>,
}

impl ReadManifest {
    /// Reads the manifest at `path`.
    ///
    /// # Errors
    /// Where it cannot be read; [`Error::Unsupported`] where it is of a later format; else what is
    /// wrong in it.
    pub fn read(path: &Path) -> Result<ReadManifest> {
        let text = read_small(path, MANIFEST_BYTES_MAX)?;
        let mut reader = Reader { path, unknown_keys: Vec::new() };
        let manifest = reader.manifest(&text)?;
        let Reader { unknown_keys, .. } = reader;
        Ok(ReadManifest { manifest, unknown_keys })
    }
}

struct Reader<'a> {
    path: &'a Path,
    unknown_keys: Vec<String>,
}

/// An object while its members are taken, and where it stands in the manifest.
struct Object {
    at: String,
    members: Vec<(String, Box<RawValue>)>,
}

impl Reader<'_> {
    fn invalid(&self, at: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        let at = if at.is_empty() { String::new() } else { format!("`{at}` to be ") };
        Invalid {
            file: Some(self.path.to_owned()),
            expected: format!("{at}{}", expected.into()),
            found: found.into(),
            ..Invalid::default()
        }
        .into()
    }

    fn value<T: DeserializeOwned>(&self, at: &str, text: &RawValue, expected: &str) -> Result<T> {
        serde_json::from_str(text.get()).map_err(|error| self.invalid(at, expected, reason(&error)))
    }

    fn object(&self, at: String, text: &RawValue) -> Result<Object> {
        let Members(members) = self.value(&at, text, "an object with no key twice")?;
        Ok(Object { at, members })
    }

    /// The member `key`, where it is there.
    fn find<T: DeserializeOwned>(&self, object: &mut Object, key: &str, expected: &str) -> Result<Option<T>> {
        let Some(index) = object.members.iter().position(|(name, _)| name == key) else { return Ok(None) };
        let (_, text) = object.members.remove(index);
        self.value(&object.join(key), &text, expected).map(Some)
    }

    fn take<T: DeserializeOwned>(&self, object: &mut Object, key: &str, expected: &str) -> Result<T> {
        let found = self.find(object, key, expected)?;
        found.ok_or_else(|| self.invalid(&object.join(key), expected, "no such key"))
    }

    /// Notes the members that were not taken.
    fn end(&mut self, object: &Object) {
        self.unknown_keys.extend(object.members.iter().map(|(key, _)| object.join(key)));
    }

    fn manifest(&mut self, text: &[u8]) -> Result<Manifest> {
        let text: Box<RawValue> =
            serde_json::from_slice(text).map_err(|error| self.invalid("", "a JSON object", found(&error)))?;
        let mut top = self.object(String::new(), &text)?;
        let format = self.format(&mut top)?;
        let glyd: String = self.take(&mut top, "glyd", "a version")?;
        let glyd = version(&glyd)
            .ok_or_else(|| self.invalid("glyd", "a version MAJOR.MINOR.PATCH", format!("{glyd:?}")))?;
        let source: Box<RawValue> = self.take(&mut top, "source", "an object")?;
        let source = self.source(&source)?;
        let layout = self.layout(&mut top)?;
        let packs: Members<Box<RawValue>> = self.take(&mut top, "packs", "an object with no key twice")?;
        let tensors = self.find(&mut top, "tensors", "an object of sha256 with no key twice")?;
        let tensors = tensors.map(|Members(tensors)| tensors);
        self.end(&top);
        if tensors.is_none() && (format == Format::V3 || glyd >= Version([0, 25, 0])) {
            return Err(self.invalid("tensors", "there in this version", "no such key"));
        }
        let packs = self.packs(packs, layout)?;
        Ok(Manifest { format, glyd, source, layout, packs, tensors })
    }

    fn format(&self, top: &mut Object) -> Result<Format> {
        let name: String = self.take(top, "format", "a format's name")?;
        let known = [Format::V1, Format::V2, Format::V3].into_iter().find(|format| format.name() == name);
        let later = name
            .strip_prefix("glyd-v")
            .is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number > 3));
        match known {
            Some(format) => Ok(format),
            None if later => Err(Error::Unsupported {
                what: format!("`{}`: format", self.path.display()),
                found: format!("`{name}`"),
                hint: "glyd-v1, glyd-v2 and glyd-v3 are read: use a newer glyd".to_owned(),
            }),
            None => Err(self.invalid("format", "glyd-v1, glyd-v2 or glyd-v3", format!("{name:?}"))),
        }
    }

    fn layout(&self, object: &mut Object) -> Result<Layout> {
        let name: String = self.take(object, "layout", "a layout's name")?;
        name.parse()
            .map_err(|_| self.invalid(&object.join("layout"), "`mma` or `mma12`", format!("{name:?}")))
    }

    fn source(&mut self, text: &RawValue) -> Result<Source> {
        let mut object = self.object("source".to_owned(), text)?;
        let Bytes(repo) = self.take(&mut object, "repo", "a string")?;
        let revision = self.take(&mut object, "revision", "a commit or null")?;
        self.end(&object);
        Ok(Source { repo, revision })
    }

    /// The entries; the error names every one that is wrong.
    fn packs(&mut self, packs: Members<Box<RawValue>>, layout: Layout) -> Result<Vec<(String, PackEntry)>> {
        let (mut entries, mut errors) = (Vec::new(), Vec::new());
        for (name, entry) in packs.0 {
            match self.pack(&name, &entry, layout) {
                Ok(entry) => entries.push((name, entry)),
                Err(error) => errors.push(error),
            }
        }
        Error::all(errors).map(|()| entries)
    }

    fn pack(&mut self, name: &str, text: &RawValue, layout: Layout) -> Result<PackEntry> {
        let mut object = self.object(format!("packs.{name}"), text)?;
        let own = self.layout(&mut object)?;
        if own != layout {
            return Err(self.invalid(
                &object.join("layout"),
                format!("the checkpoint's, `{layout}`"),
                format!("`{own}`"),
            ));
        }
        let shape = self.take(&mut object, "shape", "two numbers")?;
        let coding = self.coding(&mut object, layout)?;
        let tensors: Vec<Box<RawValue>> = self.take(&mut object, "tensors", "a list")?;
        let experts: Option<u64> = self.find(&mut object, "experts", "a number of experts")?;
        let transposed: Option<bool> = self.find(&mut object, "transposed", "true or false")?;
        let experts = match (experts, transposed) {
            (Some(count), Some(transposed)) => Some(ExpertsEntry { count, transposed }),
            (None, None) => None,
            _ => {
                return Err(self.invalid(
                    &object.at,
                    "an entry with both `experts` and `transposed`, or none",
                    "one of them",
                ));
            }
        };
        self.end(&object);
        let tensors = tensors
            .iter()
            .enumerate()
            .map(|(at, tensor)| self.tensor(format!("packs.{name}.tensors.{at}"), tensor));
        let tensors = tensors.collect::<Result<_>>()?;
        Ok(PackEntry { shape, coding, tensors, experts })
    }

    fn coding(&self, object: &mut Object, layout: Layout) -> Result<Coding> {
        match layout {
            Layout::Mma => {
                let words: [u32; 3] = self.take(object, "tiers", "three words")?;
                let expected = "three words of 0xFF and three exponents each, all nine different";
                let found = || self.invalid(&object.join("tiers"), expected, format!("{words:#010x?}"));
                mma::Tiers::from_words(words).map(Coding::Mma).ok_or_else(found)
            }
            Layout::Mma12 => {
                let hb = self.take(object, "hb", "a number")?;
                let found =
                    || self.invalid(&object.join("hb"), format!("0 to {}", mma12::BASE_MAX), format!("{hb}"));
                mma12::Base::new(hb).map(Coding::Mma12).ok_or_else(found)
            }
        }
    }

    fn tensor(&mut self, at: String, text: &RawValue) -> Result<PackedTensor> {
        let mut object = self.object(at, text)?;
        let name = self.take(&mut object, "name", "a tensor's name")?;
        let shape = self.take(&mut object, "shape", "a list of numbers")?;
        let sha256 = self.take(&mut object, "sha256", "a sha256")?;
        self.end(&object);
        Ok(PackedTensor { name, shape, sha256 })
    }
}

impl Object {
    fn join(&self, key: &str) -> String {
        if self.at.is_empty() { key.to_owned() } else { format!("{}.{key}", self.at) }
    }
}

impl ReadManifest {
    /// Whether keys that are not known are damage: they are where the writer is no newer than the
    /// one that is described.
    #[must_use]
    pub fn unknown_keys_are_damage(&self) -> bool {
        self.manifest.glyd <= WRITER_VERSION
    }
}

fn version(text: &str) -> Option<Version> {
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = text.split('.').filter(digits).collect();
    let [major, minor, patch] = parts[..] else { return None };
    let version = Version([major.parse().ok()?, minor.parse().ok()?, patch.parse().ok()?]);
    (text.matches('.').count() == 2).then_some(version)
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A JSON string's bytes, in which a lone surrogate of Python's surrogateescape stands for one that is
/// no UTF-8.
struct Bytes(Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> std::result::Result<Bytes, E> {
                Ok(Bytes(text.as_bytes().to_vec()))
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> std::result::Result<Bytes, E> {
                escaped_bytes(bytes)
                    .map(Bytes)
                    .ok_or_else(|| E::custom("a lone surrogate that stands for no byte"))
            }
        }
        // As bytes, serde_json lets lone surrogates through, in the three bytes that UTF-8 would give them.
        deserializer.deserialize_bytes(Text)
    }
}

fn escaped_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(chunk) = rest.utf8_chunks().next() {
        out.extend_from_slice(chunk.valid().as_bytes());
        rest = &rest[chunk.valid().len()..];
        if chunk.invalid().is_empty() {
            continue;
        }
        // U+DC80 to U+DCFF: ED B2 80 to ED B3 BF.
        let [0xED, second @ (0xB2 | 0xB3), third @ 0x80..=0xBF, ..] = *rest else { return None };
        out.push((second & 1) << 6 | third & 0x3F | 0x80);
        rest = &rest[3..];
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> std::result::Result<ReadManifest, String> {
        let mut reader = Reader { path: Path::new("glyd.json"), unknown_keys: Vec::new() };
        let manifest = reader.manifest(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(ReadManifest { manifest, unknown_keys: reader.unknown_keys })
    }

    const SMALL: &str = r#"{"format": "glyd-v3", "glyd": "0.25.1", "source": {"repo": "a\udc80\udcff", "revision": null},
        "layout": "mma12", "packs": {"a": {"layout": "mma12", "shape": [64, 16], "hb": 60, "tensors": []}}, "tensors": {}}"#;

    #[test]
    fn reads_back_what_it_prints() {
        let read_once = read(SMALL).unwrap().manifest;
        assert_eq!(read_once.source.repo, b"a\x80\xff");
        let text = String::from_utf8(read_once.text()).unwrap();
        assert_eq!(read(&text).unwrap().manifest, read_once);
        assert!(text.contains(r#""repo": "a\udc80\udcff""#), "{text}");
    }

    #[test]
    fn names_what_is_wrong() {
        let cases = [
            ("\"hb\": 60", "\"hb\": 121", "expected `packs.a.hb` to be 0 to 120, found 121"),
            ("\"hb\": 60", "\"hc\": 60", "expected `packs.a.hb` to be a number, found no such key"),
            ("glyd-v3", "glyd-v5", "glyd-v1, glyd-v2 and glyd-v3 are read"),
            ("glyd-v3", "v3", "expected `format` to be glyd-v1, glyd-v2 or glyd-v3"),
            ("0.25.1", "0.25", "MAJOR.MINOR.PATCH"),
            ("\"tensors\": {}}", "\"tensors\": {}, \"tensors\": {}}", "duplicate key `tensors`"),
            (", \"tensors\": {}}", "}", "expected `tensors` to be there in this version"),
            ("[64, 16]", "[64, -16]", "`packs.a.shape`"),
            ("\"mma12\", \"shape\"", "\"mma\", \"shape\"", "the checkpoint's, `mma12`"),
        ];
        for (from, to, message) in cases {
            let error = read(&SMALL.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(message), "{to}: {error}");
        }
    }

    #[test]
    fn unknown_keys_are_told_with_their_path() {
        let text =
            SMALL.replacen("\"hb\"", "\"x\": [1], \"hb\"", 1).replacen("\"glyd\"", "\"y\": 0, \"glyd\"", 1);
        assert_eq!(read(&text).unwrap().unknown_keys, ["y", "packs.a.x"]);
    }
}
