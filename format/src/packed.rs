//! A packed checkpoint opened, and held to the rules that need no weights: `docs/format.md`,
//! section 7, rules 1 to 5 and the headers' part of rule 8.

mod files;
mod membership;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::error::{Error, Invalid, Result};
use crate::finding::{Finding, Level, Rule};
use crate::layout::{Buffer, Layout};
use crate::manifest::{Format, MANIFEST_NAME, Manifest, PackEntry, ReadManifest, buffer_name};
use crate::step::Grid;
use crate::weights::{Location, Weights};

/// The name of weights that are in one file.
pub const SINGLE_NAME: &str = "model.safetensors";

/// A packed checkpoint.
#[derive(Debug)]
pub struct Packed {
    dir: PathBuf,
    manifest: Manifest,
    weights: Weights,
}

/// What opening a packed checkpoint found.
#[derive(Debug)]
pub struct Opened {
    /// The checkpoint, where there is a manifest to know it by.
    pub packed: Option<Packed>,
    /// Every rule that does not hold, in the order of the files.
    pub findings: Vec<Finding>,
}

/// The three buffers of a pack, where they are.
#[derive(Debug, Clone, Copy)]
pub struct Buffers {
    /// The data buffer.
    pub data: Location,
    /// The list.
    pub list: Location,
    /// The base buffer.
    pub base: Location,
}

impl Packed {
    /// Opens the packed checkpoint in the folder `dir`: the manifest and headers are read, no weights.
    ///
    /// # Errors
    /// Where it cannot be looked at: no `glyd.json`, a format that is not read, files that the system
    /// does not let us read. What is wrong with a checkpoint is a finding.
    pub fn open(dir: &Path) -> Result<Opened> {
        let mut findings = Vec::new();
        let Some(manifest) = open_manifest(dir, &mut findings)? else {
            return Ok(Opened { packed: None, findings });
        };
        let (files, bad) = files::open(dir, &mut findings)?;
        let weights = Weights::new(files, |_, _| true);
        let packed = Packed { dir: dir.to_owned(), manifest, weights };
        packed.check_coverage(&bad, &mut findings);
        for (name, entry) in &packed.manifest.packs {
            packed.check_pack(name, entry, &mut findings);
        }
        membership::check(&packed.dir.join(MANIFEST_NAME), &packed.manifest, &mut findings);
        Ok(Opened { packed: Some(packed), findings })
    }

    /// Its folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it says it is.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its weights: buffers, and tensors saved as they are.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The grid of a pack's matrix; `None` where no layout takes its shape.
    #[must_use]
    pub fn grid(entry: &PackEntry) -> Option<Grid> {
        Grid::new(entry.shape[0], entry.shape[1])
    }

    /// A pack's buffers, where all three are there with its layout's dtypes and its shape's sizes.
    #[must_use]
    pub fn buffers(&self, name: &str, entry: &PackEntry) -> Option<Buffers> {
        let grid = Packed::grid(entry)?;
        let layout = entry.coding.layout();
        let find = |buffer| {
            let at = self.weights.find(&buffer_name(name, entry.experts.is_some(), layout, buffer))?;
            self.buffer_problem(at, layout, buffer, grid).is_none().then_some(at)
        };
        Some(Buffers { data: find(Buffer::Data)?, list: find(Buffer::List)?, base: find(Buffer::Base)? })
    }

    /// Rule 4: every tensor is a buffer or has a sha256, and all that are named exist. Tensors that the
    /// index has in a shard that could not be read are not missed a second time.
    fn check_coverage(&self, bad: &files::Bad, findings: &mut Vec<Finding>) {
        let mut damage = |file: PathBuf, tensor: &str, expected: &str, found: &str| {
            let what = Invalid {
                file: Some(file),
                tensor: Some(tensor.to_owned()),
                expected: expected.to_owned(),
                found: found.to_owned(),
                hint: None,
            };
            findings.push(Finding::damage(Rule::Coverage, what));
        };
        let manifest_path = || self.dir.join(MANIFEST_NAME);
        let mut buffers = HashSet::new();
        for (name, entry) in &self.manifest.packs {
            for buffer in Buffer::ALL {
                let buffer = buffer_name(name, entry.experts.is_some(), entry.coding.layout(), buffer);
                if self.weights.find(&buffer).is_none() && !bad.excuses(&buffer) {
                    damage(manifest_path(), &buffer, "the buffer of a pack", "no such tensor");
                }
                // No two packs' buffers can have one name.
                buffers.insert(buffer);
            }
        }
        let plain: HashSet<&str> = self.plain().map(|(name, _)| name.as_str()).collect();
        for (name, _) in self.plain() {
            if buffers.contains(name) {
                damage(
                    manifest_path(),
                    name,
                    "a pack's buffer or a tensor with a sha256",
                    "a name that is both",
                );
            } else if self.weights.find(name).is_none() && !bad.excuses(name) {
                damage(manifest_path(), name, "the tensor that `tensors` has a sha256 of", "no such tensor");
            }
        }
        for file in self.weights.files().iter().filter(|_| self.manifest.tensors.is_some()) {
            for tensor in &file.header.tensors {
                if !buffers.contains(&tensor.name) && !plain.contains(tensor.name.as_str()) {
                    let expected = "a pack's buffer or a tensor that `tensors` has a sha256 of";
                    damage(
                        file.path().to_owned(),
                        &tensor.name,
                        expected,
                        "a tensor that `glyd.json` does not name",
                    );
                }
            }
        }
    }

    /// The tensors saved as they are that the manifest has a sha256 of.
    fn plain(&self) -> impl Iterator<Item = &(String, crate::Digest)> {
        self.manifest.tensors.iter().flatten()
    }

    /// The buffers' part of rule 4.
    fn check_pack(&self, name: &str, entry: &PackEntry, findings: &mut Vec<Finding>) {
        let layout = entry.coding.layout();
        let Some(grid) = Packed::grid(entry) else {
            let what = Invalid {
                file: Some(self.dir.join(MANIFEST_NAME)),
                tensor: Some(name.to_owned()),
                expected: "rows of a multiple of 64 and columns of a multiple of 16".to_owned(),
                found: format!("shape {:?}", entry.shape),
                hint: None,
            };
            findings.push(Finding::damage(Rule::Buffers, what));
            return;
        };
        for buffer in Buffer::ALL {
            let at = self.weights.find(&buffer_name(name, entry.experts.is_some(), layout, buffer));
            let problem = at.and_then(|at| self.buffer_problem(at, layout, buffer, grid));
            findings.extend(problem.map(|problem| Finding::damage(Rule::Buffers, problem)));
        }
    }

    fn buffer_problem(&self, at: Location, layout: Layout, buffer: Buffer, grid: Grid) -> Option<Invalid> {
        let tensor = self.weights.tensor(at);
        let dtype = layout.dtype(buffer);
        let entries = match buffer {
            Buffer::Data => Some(layout.data_bytes(grid)),
            Buffer::Base => Some(layout.base_entries(grid)),
            Buffer::List => None,
        };
        let fits = match (entries, &tensor.shape[..]) {
            (Some(entries), [found]) => entries == *found,
            (None, [found]) => {
                *found >= layout.list_units(layout.list_head_units()) && *found <= layout.list_units_max()
            }
            _ => false,
        };
        let expected = entries.map_or("a list's length".to_owned(), |entries| entries.to_string());
        (tensor.dtype != dtype || !fits).then(|| Invalid {
            file: Some(self.weights.file(at).path().to_owned()),
            tensor: Some(tensor.name.clone()),
            expected: format!("{dtype} [{expected}], for a matrix of {} x {}", grid.rows(), grid.columns()),
            found: format!("{} {:?}", tensor.dtype, tensor.shape),
            hint: None,
        })
    }
}

fn open_manifest(dir: &Path, findings: &mut Vec<Finding>) -> Result<Option<Manifest>> {
    let io = |source| Error::Io { action: "open", path: dir.to_owned(), source };
    let path = dir.join(MANIFEST_NAME);
    if !std::fs::metadata(dir).map_err(io)?.is_dir() {
        return Err(Invalid {
            file: Some(dir.to_owned()),
            expected: "the folder of a packed checkpoint".to_owned(),
            found: "a file".to_owned(),
            ..Invalid::default()
        }
        .into());
    }
    // A link that dangles is there, and is damage.
    if std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Err(Invalid {
            file: Some(dir.to_owned()),
            expected: "a packed checkpoint".to_owned(),
            found: format!("no `{MANIFEST_NAME}`"),
            hint: Some("name the folder that `glyd pack` wrote; it writes that file last".to_owned()),
            ..Invalid::default()
        }
        .into());
    }
    let read = match ReadManifest::read(&path) {
        Ok(read) => read,
        Err(error) => return gather(error, Rule::Manifest, findings).map(|()| None),
    };
    let level = if read.unknown_keys_are_damage() { Level::Damage } else { Level::Warning };
    for key in &read.unknown_keys {
        let what = Invalid {
            file: Some(path.clone()),
            expected: "the keys of docs/format.md, section 5".to_owned(),
            found: format!("`{key}`"),
            ..Invalid::default()
        };
        findings.push(Finding { level, rule: Rule::Manifest, what });
    }
    findings.extend(check_format(&path, &read.manifest));
    Ok(Some(read.manifest))
}

/// Section 1: the format's name follows from what is inside.
fn check_format(path: &Path, manifest: &Manifest) -> Option<Finding> {
    let experts = manifest.packs.iter().any(|(_, entry)| entry.experts.is_some());
    let format = Format::of(manifest.layout, experts);
    let inside = if experts { "with experts' weights" } else { "without experts' weights" };
    (manifest.format != format).then(|| {
        let what = Invalid {
            file: Some(path.to_owned()),
            expected: format!("`format` to be {}, of packs in `{}` {inside}", format.name(), manifest.layout),
            found: manifest.format.name().to_owned(),
            ..Invalid::default()
        };
        Finding::damage(Rule::Manifest, what)
    })
}

/// Turns what is wrong with a file into findings; what could not be looked at stays an error.
fn gather(error: Error, rule: Rule, findings: &mut Vec<Finding>) -> Result<()> {
    match error {
        Error::Invalid(what) => findings.push(Finding::damage(rule, *what)),
        Error::Several(errors) => errors.into_iter().try_for_each(|error| gather(error, rule, findings))?,
        Error::Io { source, path, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            let what = Invalid {
                file: Some(path),
                expected: "a file of the checkpoint".to_owned(),
                found: "no such file".to_owned(),
                ..Invalid::default()
            };
            findings.push(Finding::damage(Rule::Files, what));
        }
        other => return Err(other),
    }
    Ok(())
}
