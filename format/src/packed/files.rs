//! A packed checkpoint's files: which they are, their headers, and their index.
//! `docs/format.md`, section 7, rules 1 and 3, and the headers' part of rule 8.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::{SINGLE_NAME, gather};
use crate::checkpoint::Root;
use crate::error::{Invalid, Result};
use crate::finding::{Finding, Level, Rule};
use crate::header::Header;
use crate::index::{INDEX_NAME, Index};
use crate::weights::WeightsFile;

/// Files that could not be read as weights, and the tensors that an index has in them.
#[derive(Debug, Default)]
pub(super) struct Bad {
    all: bool,
    tensors: HashSet<String>,
}

impl Bad {
    /// Whether a tensor may be in a file that could not be read.
    pub(super) fn excuses(&self, tensor: &str) -> bool {
        self.all || self.tensors.contains(tensor)
    }
}

/// Opens `model.safetensors`, or the shards that the index names: rules 1 and 3.
pub(super) fn open(dir: &Path, findings: &mut Vec<Finding>) -> Result<(Vec<WeightsFile>, Bad)> {
    let index = match find_index(dir, findings)? {
        Source::Unknown => return Ok((Vec::new(), Bad { all: true, tensors: HashSet::new() })),
        Source::Single => None,
        Source::Shards(index) => Some(index),
    };
    let names: BTreeSet<&str> = match &index {
        Some(index) => index.weight_map.iter().map(|(_, file)| file.as_str()).collect(),
        None => BTreeSet::from([SINGLE_NAME]),
    };
    let mut files = Vec::new();
    let mut unread = HashSet::new();
    let root = Root::new(dir)?;
    for name in names {
        if name.contains('/') {
            findings.push(damage(dir, "shards in the folder itself", &format!("`{name}`")));
        }
        let opened = root.check(name).map_err(|error| (error, Rule::Files));
        match opened.and_then(|()| WeightsFile::open(dir, name).map_err(|error| (error, Rule::Header))) {
            Ok((file, text)) => {
                check_canonical(&file, &text, findings);
                files.push(file);
            }
            Err((error, rule)) => {
                gather(error, rule, findings)?;
                unread.insert(name);
            }
        }
    }
    let Some(index) = &index else {
        return Ok((files, Bad { all: !unread.is_empty(), tensors: HashSet::new() }));
    };
    check_index(dir, index, &files, &unread, findings);
    let in_unread = index.weight_map.iter().filter(|(_, file)| unread.contains(file.as_str()));
    let tensors = in_unread.map(|(tensor, _)| tensor.clone()).collect();
    Ok((files, Bad { all: false, tensors }))
}

/// Which files hold the weights.
enum Source {
    Single,
    Shards(Index),
    Unknown,
}

/// Rule 1: one file or an index, not both.
fn find_index(dir: &Path, findings: &mut Vec<Finding>) -> Result<Source> {
    let there = |name: &str| std::fs::symlink_metadata(dir.join(name)).is_ok();
    match (there(SINGLE_NAME), there(INDEX_NAME)) {
        (true, false) => Ok(Source::Single),
        (true, true) => {
            let found = format!("both `{SINGLE_NAME}` and `{INDEX_NAME}`");
            findings.push(damage(dir, "weights in one file, or in shards", &found));
            Ok(Source::Single)
        }
        (false, true) => match Index::read(&dir.join(INDEX_NAME)) {
            Ok(index) => Ok(Source::Shards(index)),
            Err(error) => gather(error, Rule::Index, findings).map(|()| Source::Unknown),
        },
        (false, false) => {
            findings.push(damage(dir, &format!("`{SINGLE_NAME}` or `{INDEX_NAME}`"), "neither"));
            Ok(Source::Unknown)
        }
    }
}

fn damage(dir: &Path, expected: &str, found: &str) -> Finding {
    let what = Invalid {
        file: Some(dir.to_owned()),
        expected: expected.to_owned(),
        found: found.to_owned(),
        ..Invalid::default()
    };
    Finding::damage(Rule::Files, what)
}

/// Rule 8: a header is, byte for byte, what is written for its tensors.
fn check_canonical(file: &WeightsFile, text: &[u8], findings: &mut Vec<Finding>) {
    let tensors =
        file.header.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone()));
    let expected = Header::arrange(tensors.collect()).map(|header| header.text()).unwrap_or_default();
    if expected == text {
        return;
    }
    let same = expected.iter().zip(text).take_while(|(expected, found)| expected == found).count();
    let what = Invalid {
        file: Some(file.path().to_owned()),
        expected: format!("the header that is written for its tensors, {} bytes", expected.len()),
        found: format!("another, {} bytes, from byte {same} on", text.len()),
        ..Invalid::default()
    };
    findings.push(Finding::damage(Rule::Canonical, what));
}

/// Rule 3: each tensor is in exactly the shard that the index names.
fn check_index(
    dir: &Path,
    index: &Index,
    files: &[WeightsFile],
    unread: &HashSet<&str>,
    findings: &mut Vec<Finding>,
) {
    let mut damage = |file: PathBuf, tensor: Option<&str>, expected: String, found: String, level| {
        let what =
            Invalid { file: Some(file), tensor: tensor.map(str::to_owned), expected, found, hint: None };
        findings.push(Finding { level, rule: Rule::Index, what });
    };
    let named: HashMap<&str, &str> =
        index.weight_map.iter().map(|(tensor, file)| (tensor.as_str(), file.as_str())).collect();
    let mut holders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        for tensor in &file.header.tensors {
            holders.entry(&tensor.name).or_default().push(&file.name);
            if named.get(tensor.name.as_str()) != Some(&file.name.as_str()) {
                let found = named
                    .get(tensor.name.as_str())
                    .map_or("it in none".to_owned(), |named| format!("it in `{named}`"));
                let expected = format!("`{INDEX_NAME}` to have it in this shard");
                damage(file.path().to_owned(), Some(&tensor.name), expected, found, Level::Damage);
            }
        }
    }
    for (tensor, file) in index.weight_map.iter().filter(|(_, file)| !unread.contains(file.as_str())) {
        let found = holders.get(tensor.as_str()).map_or(&[][..], Vec::as_slice);
        if !found.contains(&file.as_str()) {
            let expected = format!("it in `{file}`");
            let found = match found {
                [] => "it in no shard".to_owned(),
                _ => format!("it in `{}`", found.join("`, `")),
            };
            damage(dir.join(INDEX_NAME), Some(tensor), expected, found, Level::Damage);
        }
    }
    let total: u64 = files.iter().map(|file| file.header.data_bytes()).sum();
    if unread.is_empty() && index.total_bytes != Some(total) {
        let found = index.total_bytes.map_or("none".to_owned(), |bytes| bytes.to_string());
        damage(dir.join(INDEX_NAME), None, format!("a total_size of {total} bytes"), found, Level::Warning);
    }
}
