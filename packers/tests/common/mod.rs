//! Checkpoints made in a folder of their own, packed, and held to what they were.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use glyd_fixtures::{Recipe, safetensors};
use glyd_format::header::Header;
use glyd_format::index::Index;
use glyd_format::manifest::{MANIFEST_NAME, ReadManifest, Source};
use glyd_format::{Checkpoint, Digest, Layout, Manifest};
use glyd_packers::{Options, Result, SHARD_BYTES, Summary};
use glyd_verify::{Report, Verdict};

/// A tensor of a model.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// A model, before it is written.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) config: String,
    pub(crate) tensors: Vec<Tensor>,
}

/// Weights as bytes.
pub(crate) fn bytes_of(weights: &[u16]) -> Vec<u8> {
    weights.iter().flat_map(|weight| weight.to_le_bytes()).collect()
}

impl Model {
    /// A model of a type that is not known.
    pub(crate) fn unknown() -> Model {
        Model { config: r#"{"model_type": "foo_bar"}"#.to_owned(), tensors: Vec::new() }
    }

    pub(crate) fn recipe(name: &str) -> Model {
        let recipe = Recipe::named(name);
        let tensors = recipe.tensors.iter().map(|tensor| Tensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype.clone(),
            shape: tensor.shape.clone(),
            bytes: tensor.bytes(),
        });
        Model { tensors: tensors.collect(), config: recipe.config.clone() }
    }

    pub(crate) fn with(mut self, name: &str, dtype: &str, shape: &[u64], bytes: Vec<u8>) -> Model {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            bytes,
        });
        self
    }

    /// With a bf16 tensor of these weights.
    pub(crate) fn with_weights(self, name: &str, shape: &[u64], weights: &[u16]) -> Model {
        assert_eq!(shape.iter().product::<u64>(), weights.len() as u64);
        self.with(name, "BF16", shape, bytes_of(weights))
    }

    /// Gives a tensor other weights, of the same shape or another.
    pub(crate) fn set(&mut self, name: &str, shape: &[u64], weights: &[u16]) {
        assert_eq!(shape.iter().product::<u64>(), weights.len() as u64);
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
        tensor.shape = shape.to_vec();
        tensor.bytes = bytes_of(weights);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    /// Writes it as one file.
    pub(crate) fn write(&self, dir: &Path) {
        self.start(dir);
        write_file(&dir.join("model.safetensors"), self.tensors.iter(), 0);
    }

    /// Writes it as one file, last tensor first, with all data at odd offsets.
    pub(crate) fn write_odd(&self, dir: &Path) {
        self.start(dir);
        write_file(&dir.join("model.safetensors"), self.tensors.iter().rev(), 1);
    }

    /// Deals it over `count` files, tensor by tensor.
    pub(crate) fn write_dealt(&self, dir: &Path, count: usize) {
        self.start(dir);
        let name = |number: usize| format!("model-{:05}-of-{count:05}.safetensors", number + 1);
        let mut weight_map = Vec::new();
        for number in 0..count {
            let own: Vec<&Tensor> = self.tensors.iter().skip(number).step_by(count).collect();
            weight_map.extend(own.iter().map(|tensor| (tensor.name.clone(), name(number))));
            write_file(&dir.join(name(number)), own.into_iter(), number % 3);
        }
        let index = Index { weight_map, total_bytes: None };
        fs::write(dir.join("model.safetensors.index.json"), index.text()).unwrap();
    }

    fn start(&self, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("config.json"), &self.config).unwrap();
    }
}

fn write_file<'a>(path: &Path, tensors: impl Iterator<Item = &'a Tensor>, spaces: usize) {
    let tensors: Vec<safetensors::Entry<'_>> = tensors
        .map(|tensor| {
            (tensor.name.as_str(), tensor.dtype.as_str(), tensor.shape.as_slice(), tensor.bytes.as_slice())
        })
        .collect();
    let header = safetensors::header(Some(&[("format", "pt")]), &tensors);
    let data: Vec<u8> = tensors.iter().flat_map(|tensor| tensor.3).copied().collect();
    safetensors::write_raw(path, &format!("{header}{}", " ".repeat(spaces)), &data);
}

pub(crate) fn options(layout: Layout) -> Options {
    Options {
        layout,
        merge: true,
        cast: false,
        shard_bytes: SHARD_BYTES,
        threads: Some(2),
        source: Source { repo: b"a/b".to_vec(), revision: None },
    }
}

pub(crate) fn pack(source: &Path, out: &Path, options: &Options) -> Result<Summary> {
    glyd_packers::pack(&Checkpoint::open(source)?, out, options, &())
}

/// Packs a model in a folder that is made for it, and holds what comes of it to the model.
pub(crate) fn packs(model: &Model, options: &Options) -> (Summary, Manifest) {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("in"), dir.path().join("out"));
    model.write(&source);
    let summary = pack(&source, &out, options).unwrap();
    let manifest = holds(&out, model);
    (summary, manifest)
}

pub(crate) fn verify(out: &Path) -> Report {
    glyd_verify::verify(out, &glyd_verify::Options { threads: Some(2) }, &()).unwrap()
}

pub(crate) fn manifest(out: &Path) -> Manifest {
    ReadManifest::read(&out.join(MANIFEST_NAME)).unwrap().manifest
}

/// The tensors in the files of a packed checkpoint: dtype and shape, by name.
pub(crate) fn saved(out: &Path) -> BTreeMap<String, (String, Vec<u64>)> {
    let mut saved = BTreeMap::new();
    for name in files(out).into_keys().filter(|name| name.ends_with(".safetensors")) {
        let file = glyd_format::file::File::open(&out.join(name)).unwrap();
        let (header, _) = Header::read(&file).unwrap();
        for tensor in header.tensors {
            saved.insert(tensor.name, (tensor.dtype.to_string(), tensor.shape));
        }
    }
    saved
}

/// Holds a packed checkpoint to verify, and to hold every tensor of the model with its bytes.
pub(crate) fn holds(out: &Path, model: &Model) -> Manifest {
    let report = verify(out);
    assert_eq!(report.verdict(), Verdict::Good, "{:#?}", report.findings);
    let manifest = manifest(out);
    let saved = saved(out);
    let mut found: BTreeMap<&str, Digest> = BTreeMap::new();
    let mut shapes: BTreeMap<&str, (String, Vec<u64>)> = BTreeMap::new();
    for tensor in manifest.packs.iter().flat_map(|(_, entry)| &entry.tensors) {
        found.insert(&tensor.name, tensor.sha256);
        shapes.insert(&tensor.name, ("BF16".to_owned(), tensor.shape.clone()));
    }
    for (name, sha256) in manifest.tensors.as_ref().unwrap() {
        found.insert(name, *sha256);
        shapes.insert(name, saved[name].clone());
    }
    let wanted: BTreeMap<&str, Digest> =
        model.tensors.iter().map(|tensor| (tensor.name.as_str(), Digest::of(&tensor.bytes))).collect();
    assert_eq!(found, wanted);
    for tensor in &model.tensors {
        let wanted = (tensor.dtype.clone(), tensor.shape.clone());
        assert_eq!(shapes[tensor.name.as_str()], wanted, "{}", tensor.name);
    }
    manifest
}

/// Every file below a folder, by its path, with its bytes.
pub(crate) fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}
