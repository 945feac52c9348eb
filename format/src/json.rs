//! JSON as checkpoints have it: read strictly where we answer for it, with Python's `Infinity` and
//! `NaN` where a model's config has them, and written as Python writes it (`docs/format.md`,
//! sections 5 and 6).

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter};

/// What some editors put before UTF-8 text, and no JSON reader takes.
pub const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The members of a JSON object in their order; reading one with a key twice is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members<V>(pub Vec<(String, V)>);

impl<V> Default for Members<V> {
    fn default() -> Self {
        Members(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Members<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Object<V> {
            type Value = Members<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                let mut seen = HashSet::new();
                while let Some(key) = map.next_key::<String>()? {
                    if !seen.insert(key.clone()) {
                        return Err(serde::de::Error::custom(format_args!("duplicate key `{key}`")));
                    }
                    members.push((key, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object(PhantomData))
    }
}

impl<V: Serialize> Serialize for Members<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// What is wrong with a text, in words and with its line and column.
pub(crate) fn found(error: &serde_json::Error) -> String {
    if error.is_data() { error.to_string() } else { format!("invalid JSON: {error}") }
}

/// As [`found`], without the place: for callers who name a better one.
pub(crate) fn reason(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let found = found(error);
    found.strip_suffix(&place).unwrap_or(&found).to_owned()
}

/// Holds every object of a JSON text to have no key twice (`docs/format.md`, section 7, rule 8).
///
/// # Errors
/// The first key that is there twice, or what else `serde_json` says of the text.
pub fn check_keys(text: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<OnceEach>(text).map(drop)
}

/// Any JSON value whose objects have no key twice.
struct OnceEach;

impl<'de> Deserialize<'de> for OnceEach {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = OnceEach;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_bool<E>(self, _: bool) -> Result<OnceEach, E> {
                Ok(OnceEach)
            }

            fn visit_i64<E>(self, _: i64) -> Result<OnceEach, E> {
                Ok(OnceEach)
            }

            fn visit_u64<E>(self, _: u64) -> Result<OnceEach, E> {
                Ok(OnceEach)
            }

            fn visit_f64<E>(self, _: f64) -> Result<OnceEach, E> {
                Ok(OnceEach)
            }

            fn visit_str<E>(self, _: &str) -> Result<OnceEach, E> {
                Ok(OnceEach)
            }

            fn visit_unit<E>(self) -> Result<OnceEach, E> {
                Ok(OnceEach)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OnceEach, A::Error> {
                while items.next_element::<OnceEach>()?.is_some() {}
                Ok(OnceEach)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OnceEach, A::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                Members::<OnceEach>::deserialize(map).map(|_| OnceEach)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Reads a JSON text in which Python's bare `NaN`, `Infinity` and `-Infinity` stand for null: no
/// field that anything here depends on holds them.
///
/// # Errors
/// What `serde_json` says of the text, with line and column.
pub fn read_config(text: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(&without_python_numbers(text))
}

fn without_python_numbers(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    let mut in_string = false;
    while let Some(&byte) = text.get(at) {
        let number = [&b"-Infinity"[..], b"Infinity", b"NaN"].into_iter();
        let number = number.filter(|_| !in_string).find(|number| text[at..].starts_with(number));
        if let Some(number) = number {
            // As wide as what it stands for where that is possible, so that errors keep their columns.
            out.extend_from_slice(b"null");
            out.resize(out.len() + number.len().saturating_sub(4), b' ');
            at += number.len();
            continue;
        }
        out.push(byte);
        at += 1;
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => {
                out.extend(text.get(at));
                at += 1;
            }
            _ => {}
        }
    }
    out
}

/// `value` as Python's `json.dump(value, file, indent=indent)` prints it: ASCII alone, no newline at
/// the end.
#[must_use]
pub fn to_python(value: &impl Serialize, indent: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let indent = vec![b' '; indent];
    let formatter = Python(PrettyFormatter::with_indent(&indent));
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    let printed = value.serialize(&mut serializer);
    debug_assert!(printed.is_ok(), "a Vec takes every byte, and our keys are strings");
    out
}

struct Python<'a>(PrettyFormatter<'a>);

impl Formatter for Python<'_> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut plain = 0;
        for (at, char) in fragment.char_indices().filter(|(_, char)| !matches!(char, ' '..='~')) {
            writer.write_all(&fragment.as_bytes()[plain..at])?;
            for unit in char.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain = at + char.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[plain..])
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_python_numbers_outside_strings() {
        let text =
            br#"{"a": [0.0, Infinity], "b": NaN, "c": -Infinity, "Infinity \" NaN": "Infinity and beyond"}"#;
        let read = read_config(text).unwrap();
        assert_eq!(
            read,
            json!({"a": [0.0, null], "b": null, "c": null, "Infinity \" NaN": "Infinity and beyond"})
        );
    }

    #[test]
    fn a_broken_config_has_its_line_and_column() {
        let error = read_config(b"{\n \"a\": Infinity,\n \"b\": }\n").unwrap_err();
        assert_eq!((error.line(), error.column()), (3, 7));
        assert!(read_config(b"{\"a\": \"\\").is_err());
    }

    #[test]
    fn prints_as_python_does() {
        let value = json!({"é\u{7f}🦀\n\"\\\u{1}": [], "b": {}, "c": [1, {"d": true}]});
        let expected = "{\n \"\\u00e9\\u007f\\ud83e\\udd80\\n\\\"\\\\\\u0001\": [],\n \"b\": {},\n \"c\": [\n  1,\n  {\n   \"d\": true\n  }\n ]\n}";
        assert_eq!(String::from_utf8(to_python(&value, 1)).unwrap(), expected);
    }

    #[test]
    fn a_key_twice_at_any_depth_is_an_error() {
        assert!(check_keys(br#"{"a": [1, -1, 1.5, "b", true, null, {"a": {"a": 1}}]}"#).is_ok());
        let error = check_keys(br#"{"a": [{"b": {"c": 1, "c": 1}}]}"#).unwrap_err();
        assert!(error.to_string().contains("duplicate key `c`"), "{error}");
    }

    #[test]
    fn a_key_twice_is_an_error() {
        let error = serde_json::from_str::<Members<u8>>(r#"{"a": 1, "a": 2}"#).unwrap_err();
        assert!(error.to_string().contains("duplicate key `a`"), "{error}");
    }
}
