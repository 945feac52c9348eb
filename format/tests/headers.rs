//! Safetensors headers, malformed or odd: what is refused, in which words, and what is read all the
//! same. The safetensors library says which files are valid; where we differ, a test says how.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests' code: it panics when it fails")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use glyd_fixtures::safetensors::{self as written, Entry};
use glyd_format::file::File;
use glyd_format::header::{Header, tensor_bytes};
use glyd_format::weights::{Weights, WeightsFile};
use glyd_format::{Dtype, Result};
use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

const DTYPES: [Dtype; 22] = [
    Dtype::BOOL,
    Dtype::F4,
    Dtype::F6_E2M3,
    Dtype::F6_E3M2,
    Dtype::U8,
    Dtype::I8,
    Dtype::F8_E5M2,
    Dtype::F8_E4M3,
    Dtype::F8_E8M0,
    Dtype::F8_E4M3FNUZ,
    Dtype::F8_E5M2FNUZ,
    Dtype::I16,
    Dtype::U16,
    Dtype::F16,
    Dtype::BF16,
    Dtype::I32,
    Dtype::U32,
    Dtype::F32,
    Dtype::C64,
    Dtype::F64,
    Dtype::I64,
    Dtype::U64,
];

/// A file in a folder of its own.
struct Made {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn made(bytes: &[u8]) -> Made {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, bytes).unwrap();
    Made { _folder: folder, path }
}

/// A file of this header, verbatim, and so many bytes of data.
fn raw(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 7);
    bytes
}

fn read(path: &Path) -> Result<Header> {
    File::open(path).and_then(|file| Header::read(&file)).map(|(header, _)| header)
}

fn accepted(bytes: &[u8]) -> Header {
    read(&made(bytes).path).unwrap()
}

/// Why a file of these bytes is refused; the message names the file and has all of `parts`.
#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    refused_file(&made(bytes).path, parts);
}

#[track_caller]
fn refused_file(path: &Path, parts: &[&str]) {
    let message = read(path).unwrap_err().to_string();
    let file = format!("`{}`: ", path.display());
    assert!(message.starts_with(&file), "{message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

fn entry(dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

#[test]
fn a_header_over_the_limit_is_refused_before_it_is_read() {
    let made = made(&100_000_001_u64.to_le_bytes());
    fs::File::options().write(true).open(&made.path).unwrap().set_len(100_000_025).unwrap();
    refused_file(
        &made.path,
        &["expected a header of at most 100000000 bytes, found 100000001 bytes", "shards"],
    );
}

#[test]
fn a_header_length_past_the_end_of_the_file_is_refused() {
    for length in [57, 1 << 27, 1 << 63, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.resize(64, b' ');
        let found = format!("found header length {length} exceeds file size");
        refused(&bytes, &["a header no longer than the file of 64 bytes", &found]);
    }
}

#[test]
fn a_file_too_short_for_a_header_length_is_refused() {
    refused(&[200, 0, 0], &["expected a safetensors file, found 3 bytes", "incomplete"]);
}

#[test]
fn what_stands_in_a_files_place_is_named() {
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{:064}\nsize 7\n", 0);
    refused(pointer.as_bytes(), &["found a Git LFS pointer", "`git lfs pull` or `hf download`"]);
    refused(b"", &["found an empty file"]);
    refused(&[0; 4096], &["found zeros"]);
    refused(&[0; 3], &["found zeros"]);
    refused(&[&[0; 4096][..], &[1; 4096]].concat(), &["found zeros"]);
    refused(b"<!DOCTYPE html>\n<html lang=\"en\">", &["found an HTML page"]);
    refused(b"\xEF\xBB\xBF \n<HTML><body>", &["found an HTML page"]);
    refused(
        b"<?xml version=\"1.0\"?>\n<Error>",
        &["found text that starts with `<?xml version=", "error page"],
    );
    refused(
        b"Invalid username or password.",
        &["found text that starts with `Invalid username or password.`"],
    );
    refused(b"gone\n", &["found text that starts with `gone`"]);
}

#[test]
fn data_cut_short_names_the_first_tensor_past_the_end() {
    let header = format!(
        r#"{{"a":{},"b":{},"c":{}}}"#,
        entry("U8", "[8]", 0, 8),
        entry("BF16", "[4]", 8, 16),
        entry("U8", "[2]", 16, 18)
    );
    let found = "expected the 18 bytes of data that the header declares, found 11 bytes on disk: [8, 16) is the first tensor past the end";
    refused(&raw(&header, 11), &["`b`: ", found, "incomplete"]);
}

#[test]
fn data_past_the_last_tensor_is_refused() {
    let header = format!(r#"{{"a":{}}}"#, entry("U8", "[8]", 0, 8));
    refused(&raw(&header, 11), &["`a`: expected the data to end at 8", "found 3 more bytes in the file"]);
    refused(&raw("{}", 3), &["expected the data to end at 0", "found 3 more bytes"]);
}

#[test]
fn tensors_that_overlap_are_both_named_with_their_ranges() {
    let header = format!(r#"{{"b":{},"a":{}}}"#, entry("F32", "[4]", 8, 24), entry("F32", "[4]", 0, 16));
    refused(
        &raw(&header, 24),
        &["`b`: expected bytes from 16 on, found [8, 24), an overlap with `a` [0, 16)"],
    );
}

#[test]
fn a_gap_between_tensors_is_named_with_both() {
    let header = format!(r#"{{"a":{},"b":{}}}"#, entry("F32", "[2]", 0, 8), entry("F32", "[2]", 12, 20));
    refused(&raw(&header, 20), &["`b`: ", "[12, 20), an unused gap of 4 bytes after `a` [0, 8)"]);
    let header = format!(r#"{{"b":{}}}"#, entry("F32", "[2]", 4, 12));
    refused(&raw(&header, 12), &["`b`: ", "an unused gap of 4 bytes after the start of the data"]);
}

#[test]
fn two_tensors_of_the_same_bytes_are_both_named() {
    let own = entry("F32", "[2]", 0, 8);
    let header = format!(r#"{{"embed":{own},"lm_head":{own}}}"#);
    refused(
        &raw(&header, 8),
        &["`lm_head`: expected bytes of its own, found [0, 8), the same range as `embed` [0, 8)"],
    );
}

#[test]
fn the_order_of_the_text_need_not_be_that_of_the_data() {
    let header = format!(r#"{{"b":{},"a":{}}}"#, entry("U8", "[3]", 5, 8), entry("U8", "[5]", 0, 5));
    let header = accepted(&raw(&header, 8));
    let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn a_name_twice_is_called_that() {
    let header = format!(r#"{{"w":{},"w":{}}}"#, entry("F32", "[2]", 0, 8), entry("F32", "[2]", 8, 16));
    refused(&raw(&header, 16), &["found duplicate tensor name `w`, at byte "]);
}

#[test]
fn empty_tensors_and_scalars_keep_their_shapes() {
    let tensors: [Entry; 5] = [
        ("w", "BF16", &[2, 2], &[1; 8]),
        ("scaled_fp8", "F8_E4M3", &[0], &[]),
        ("z", "BF16", &[0, 128], &[]),
        ("s", "F32", &[], &[2; 4]),
        ("t", "BF16", &[], &[3; 2]),
    ];
    let header = accepted(&written::bytes(None, &tensors));
    let found: BTreeMap<&str, (&[u64], u64)> = header
        .tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), (tensor.shape.as_slice(), tensor.bytes())))
        .collect();
    for (name, _, shape, data) in tensors {
        assert_eq!(found[name], (shape, data.len() as u64), "{name}");
    }
}

#[test]
fn shapes_that_overflow_are_refused() {
    let most = u64::MAX;
    for (dtype, shape, begin, end) in [
        ("F32", "[4294967296,4294967296]", 0, 0),
        ("F32", "[9223372036854775810,2]", 0, 16),
        ("F8_E4M3", "[18446744073709551615,2]", 0, 8),
        ("U8", "[9223372036854775808]", 0, 8),
    ] {
        let header = format!(r#"{{"w":{}}}"#, entry(dtype, shape, begin, end));
        refused(&raw(&header, 16), &["`w`: ", "shape overflows"]);
    }
    let header = format!(r#"{{"w":{}}}"#, entry("F8_E4M3", "[7]", most - 7, most));
    refused(&raw(&header, 16), &["`w`: ", "is the first tensor past the end"]);
    let header = format!(r#"{{"w":{}}}"#, entry("F8_E4M3", "[7]", 8, 1));
    refused(&raw(&header, 16), &["`w`: expected 7 bytes for F8_E4M3 [7], found data_offsets [8, 1]"]);
}

#[test]
fn a_dimension_of_zero_does_not_hide_others_that_overflow() {
    // The library lets this one through, and refuses the same dimensions in another order.
    let header = format!(r#"{{"w":{}}}"#, entry("F32", "[0,4294967296,4294967296]", 0, 0));
    let bytes = raw(&header, 0);
    assert!(SafeTensors::deserialize(&bytes).is_ok());
    refused(&bytes, &["`w`: ", "shape overflows"]);
}

#[test]
fn a_shape_that_ends_within_a_byte_is_refused() {
    let header = format!(r#"{{"w":{}}}"#, entry("F4", "[3]", 0, 2));
    refused(&raw(&header, 2), &["`w`: ", "F4 [3]", "ends within a byte"]);
}

#[test]
fn a_size_that_is_not_the_shapes_is_refused_with_both() {
    let header = format!(
        r#"{{"v":{},"w":{},"x":{}}}"#,
        entry("U8", "[1]", 0, 1),
        entry("BF16", "[2,3]", 1, 12),
        entry("F7", "[1]", 12, 13)
    );
    // Every tensor that is wrong is named, not the first alone.
    refused(
        &raw(&header, 13),
        &[
            "`w`: expected 12 bytes for BF16 [2, 3], found data_offsets [1, 12]",
            "`x`: expected a dtype of the safetensors library, found `F7`",
        ],
    );
}

#[test]
fn metadata_holds_strings_alone() {
    refused(
        &raw(r#"{"__metadata__":{"a":1}}"#, 0),
        &["found `__metadata__`: invalid type: integer `1`, expected a string, at byte 21 of the header"],
    );
    let reserved = format!(r#"{{"__metadata__":{}}}"#, entry("U8", "[1]", 0, 1));
    refused(&raw(&reserved, 1), &["`__metadata__`: invalid type: sequence, expected a string", "at byte"]);
    refused(&raw(r#"{"__metadata__":{"a":"1","a":"1"}}"#, 0), &["duplicate key `a`"]);
    for fine in ["", r#""__metadata__":{},"#, r#""__metadata__":null,"#, r#""__metadata__":{"a":"\u00e9"},"#]
    {
        accepted(&raw(&format!(r#"{{{fine}"w":{}}}"#, entry("U8", "[1]", 0, 1)), 1));
    }
}

#[test]
fn only_spaces_follow_the_object() {
    let header = format!(r#"{{"w":{}}}"#, entry("U8", "[1]", 0, 1));
    accepted(&raw(&format!("{header}   "), 1));
    let at = format!("invalid JSON: trailing characters, at byte {} of the header", header.len());
    refused(&raw(&format!("{header}\0\0\0"), 1), &[&at]);
    refused(
        &raw(&format!("\u{FEFF}{header}"), 1),
        &["a byte order mark before the JSON, at byte 0 of the header; the file is damaged or was written"],
    );
    refused(&raw("[]", 0), &["expected a JSON object of tensors", "invalid type: sequence"]);
    refused(&raw(&header[..header.len() - 1], 1), &["invalid JSON: EOF while parsing an object"]);
}

#[test]
fn the_place_of_an_error_counts_lines() {
    refused(&raw("{\n \"w\": 1}\n", 0), &["`w`: invalid type: integer `1`", "at byte 8 of the header"]);
}

#[test]
fn a_name_that_looks_like_a_place_stays_whole() {
    refused(&raw(r#"{"a at line 7":1}"#, 0), &["found `a at line 7`: invalid type: integer `1`"]);
}

#[test]
fn keys_that_are_not_known_are_let_be() {
    let header = r#"{"w":{"dtype":"U8","shape":[1],"note":{"a":["b"]},"data_offsets":[0,1]}}"#;
    assert_eq!(accepted(&raw(header, 1)).tensors[0].name, "w");
}

#[test]
fn bytes_that_are_no_utf8_are_refused_wherever_they_are() {
    let mut bytes = raw(r#"{"w":{"dtype":"U8","shape":[1],"note":"?","data_offsets":[0,1]}}"#, 1);
    let at = bytes.iter().position(|&byte| byte == b'?').unwrap();
    bytes[at] = 0xFF;
    let place = format!("bytes that are no UTF-8, at byte {} of the header", at - 8);
    refused(&bytes, &[&place]);
}

#[test]
fn a_deep_header_is_refused_or_skipped_and_never_overflows_the_stack() {
    let deep = "[".repeat(200_000);
    refused(&raw(&deep, 0), &["expected a JSON object of tensors"]);
    refused(&raw(&format!(r#"{{"w":{{"x":{deep}"#), 0), &["EOF while parsing"]);
    refused(&raw(&format!(r#"{{"w":{}"#, r#"{"x":"#.repeat(200_000)), 0), &["EOF while parsing"]);
}

#[test]
fn tensors_at_odd_offsets_are_read_bit_for_bit() {
    let tensors: [Entry; 3] = [
        ("a", "U8", &[3], &[1, 2, 3]),
        ("b", "BF16", &[4], &[4, 5, 6, 7, 8, 9, 10, 11]),
        ("c", "F32", &[1], &[12, 13, 14, 15]),
    ];
    let padded = written::bytes(None, &tensors);
    let header = written::header(None, &tensors);
    let data = tensors.map(|(.., data)| data).concat();
    let unpadded = [&raw(header.trim_end(), 0)[..], &data].concat();
    assert_ne!(header.trim_end().len() % 8, 0);
    for bytes in [padded, unpadded] {
        assert!(SafeTensors::deserialize(&bytes).is_ok());
        let made = made(&bytes);
        let (file, _) = WeightsFile::open(made.path.parent().unwrap(), "model.safetensors").unwrap();
        let weights = Weights::new(vec![file], |_, _| true);
        for (name, _, _, data) in tensors {
            let mut found = vec![0; data.len()];
            weights.read_at(weights.find(name).unwrap(), &mut found, 0).unwrap();
            assert_eq!(found, data, "{name}");
        }
    }
}

/// A tensor of a valid header: a name, a dtype and a shape of whole bytes.
fn tensor() -> impl Strategy<Value = (String, Dtype, Vec<u64>)> {
    let name = prop_oneof!["[a-c.]{1,3}", any::<String>(), Just("\"\\\u{8}\u{1f}\u{7f}é🦀/".to_owned())];
    let dim = prop_oneof![4 => 1_u64..5, 1 => Just(0)];
    (name, prop::sample::select(&DTYPES[..]), prop::collection::vec(dim, 0..4)).prop_map(
        |(name, dtype, mut shape)| {
            // Dtypes of less than a byte come in fours.
            if dtype.bitsize() < 8 {
                shape.push(4);
            }
            (name, dtype, shape)
        },
    )
}

fn tensors(most: usize) -> impl Strategy<Value = Vec<(String, Dtype, Vec<u64>)>> {
    prop::collection::vec(tensor(), 0..most).prop_map(|mut tensors| {
        let mut seen = std::collections::BTreeSet::new();
        tensors.retain(|(name, ..)| name != "__metadata__" && seen.insert(name.clone()));
        tensors
    })
}

/// What is done to a valid file.
#[derive(Debug, Clone)]
enum Change {
    Nothing,
    Byte(prop::sample::Index, u8),
    Drop(prop::sample::Index),
    Insert(prop::sample::Index, char),
    /// One number of the text, replaced.
    Number(prop::sample::Index, u64),
    /// A tensor's entry, once more.
    Twice(prop::sample::Index),
    Metadata(&'static str),
    Extra(prop::sample::Index, &'static str),
    Data(i8),
    Length(i8),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    let numbers = vec![0, 1, 2, 8, 1 << 32, 1 << 61, (1 << 63) + 2, u64::MAX - 7, u64::MAX];
    prop_oneof![
        Just(Change::Nothing),
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        at().prop_map(Change::Drop),
        (at(), prop::sample::select("{}[]\",:01- \né".chars().collect::<Vec<_>>()))
            .prop_map(|(at, char)| Change::Insert(at, char)),
        (at(), prop::sample::select(numbers)).prop_map(|(at, number)| Change::Number(at, number)),
        at().prop_map(Change::Twice),
        prop::sample::select(vec!["{}", "null", "[]", "1", r#"{"a":"b"}"#, r#"{"a":1}"#, r#"{"a":null}"#])
            .prop_map(Change::Metadata),
        (at(), prop::sample::select(vec!["1", "null", r#""é""#, r#"{"shape":[]}"#, "[[1.5e3]]"]))
            .prop_map(|(at, value)| Change::Extra(at, value)),
        (-9_i8..10).prop_map(Change::Data),
        (-9_i8..10).prop_map(Change::Length),
    ]
}

/// The bytes of a file of these tensors after a change.
fn changed(tensors: &[(String, Dtype, Vec<u64>)], change: &Change) -> Vec<u8> {
    let header = Header::arrange(tensors.to_vec()).unwrap();
    let mut text = header.text();
    let mut data_bytes = i64::try_from(header.data_bytes()).unwrap();
    let mut length = 0;
    match change {
        Change::Nothing => {}
        Change::Byte(at, byte) => {
            let at = at.index(text.len());
            text[at] = *byte;
        }
        Change::Drop(at) => {
            text.remove(at.index(text.len()));
        }
        Change::Insert(at, char) => {
            let at = at.index(text.len());
            text.splice(at..at, char.to_string().into_bytes());
        }
        Change::Number(at, number) => {
            let starts: Vec<usize> = (1..text.len())
                .filter(|&at| text[at].is_ascii_digit() && matches!(text[at - 1], b'[' | b','))
                .collect();
            if !starts.is_empty() {
                let start = starts[at.index(starts.len())];
                let end = start + text[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                text.splice(start..end, number.to_string().into_bytes());
            }
        }
        Change::Twice(at) => {
            if !header.tensors.is_empty() {
                let tensor = &header.tensors[at.index(header.tensors.len())];
                let name = serde_json::Value::from(tensor.name.as_str());
                let shape: Vec<u64> = tensor.shape.clone();
                let entry = entry(&tensor.dtype.to_string(), &format!("{shape:?}"), tensor.begin, tensor.end);
                text.splice(1..1, format!("{name}:{entry},").into_bytes());
            }
        }
        Change::Metadata(value) => {
            text.splice(16..31, value.bytes());
        }
        Change::Extra(at, value) => {
            let starts: Vec<usize> =
                (0..text.len()).filter(|&at| text[at..].starts_with(b"{\"dtype\"")).collect();
            if !starts.is_empty() {
                let start = starts[at.index(starts.len())] + 1;
                text.splice(start..start, format!("\"x\":{value},").into_bytes());
            }
        }
        Change::Data(more) => data_bytes = (data_bytes + i64::from(*more)).max(0),
        Change::Length(more) => length = i64::from(*more),
    }
    let length = i64::try_from(text.len()).unwrap() + length;
    let mut bytes = length.cast_unsigned().to_le_bytes().to_vec();
    bytes.extend_from_slice(&text);
    bytes.resize(bytes.len() + usize::try_from(data_bytes).unwrap(), 0);
    bytes
}

proptest! {
    /// We read what the library reads, and refuse what it refuses, with two exceptions on purpose: a
    /// name twice in one object (it keeps the last), and a dimension of zero among others whose product
    /// overflows (it looks no further than the zero).
    #[test]
    fn reads_what_the_library_reads(tensors in tensors(4), change in change()) {
        let bytes = changed(&tensors, &change);
        match (SafeTensors::read_metadata(&bytes), read(&made(&bytes).path)) {
            (Ok((length, metadata)), Ok(header)) => {
                prop_assert_eq!(header.data_offset, length as u64 + 8);
                let theirs = metadata.tensors();
                prop_assert_eq!(theirs.len(), header.tensors.len());
                for tensor in &header.tensors {
                    let their = theirs[&tensor.name];
                    let shape: Vec<u64> = their.shape.iter().map(|&dim| dim as u64).collect();
                    prop_assert_eq!(&tensor.shape, &shape);
                    prop_assert_eq!(tensor.dtype, their.dtype);
                    let (begin, end) = their.data_offsets;
                    prop_assert_eq!((tensor.begin, tensor.end), (begin as u64, end as u64));
                }
            }
            (Err(_), Err(_)) => {}
            (Ok(_), Err(error)) => {
                let message = error.to_string();
                let on_purpose = message.contains("duplicate") || message.contains("shape overflows");
                prop_assert!(on_purpose, "{}", message);
            }
            (Err(error), Ok(_)) => prop_assert!(false, "the library refuses it: {}", error),
        }
    }

    #[test]
    fn writes_what_the_library_writes(tensors in tensors(8)) {
        let data: Vec<Vec<u8>> = tensors.iter().map(|(_, dtype, shape)| {
            vec![0; usize::try_from(tensor_bytes(*dtype, shape).unwrap()).unwrap()]
        }).collect();
        let views = tensors.iter().zip(&data).map(|((name, dtype, shape), data)| {
            let shape = shape.iter().map(|&dim| usize::try_from(dim).unwrap()).collect();
            (name.clone(), TensorView::new(*dtype, shape, data).unwrap())
        });
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let theirs = safetensors::serialize(views, Some(metadata)).unwrap();

        let header = Header::arrange(tensors.clone()).unwrap();
        let mut ours = header.to_bytes();
        prop_assert_eq!(ours.len() as u64, header.data_offset);
        ours.resize(ours.len() + usize::try_from(header.data_bytes()).unwrap(), 0);
        prop_assert_eq!(String::from_utf8_lossy(&ours), String::from_utf8_lossy(&theirs));

        let back = read(&made(&ours).path).unwrap();
        prop_assert_eq!(back.text(), header.text());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64), length in 0_u64..70) {
        let _ = read(&made(&bytes).path);
        let _ = read(&made(&[&length.to_le_bytes()[..], &bytes].concat()).path);
    }
}

#[test]
fn arrange_has_no_header_for_sizes_that_overflow() {
    let tensor = |name: &str, count| (name.to_owned(), Dtype::U8, vec![count]);
    assert!(Header::arrange(vec![tensor("a", u64::MAX)]).is_none());
    assert!(Header::arrange(vec![tensor("a", u64::MAX / 8), tensor("b", 1)]).is_some());
    let most = (0..9).map(|at| tensor(&at.to_string(), u64::MAX / 8)).collect();
    assert!(Header::arrange(most).is_none());
}
