//! A folder with a model in it, the program run in it, and what came of that.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use glyd_fixtures::{Recipe, safetensors};
use serde_json::Value;
use tempfile::TempDir;

/// A folder of a test's own.
pub(crate) struct Folder(TempDir);

/// How a run of the program ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    /// A folder with the checkpoint of a recipe in `model`.
    pub(crate) fn with_model(recipe: &str) -> Self {
        let folder = Folder::new();
        Recipe::named(recipe).make(&folder.path("model"));
        folder
    }

    /// A folder with a small packed checkpoint in `packed`, and its source in `model`.
    pub(crate) fn with_packed(arguments: &[&str]) -> Self {
        let folder = Folder::with_model("llama");
        folder.run([&["pack", "model", "packed"], arguments].concat()).ends(0);
        folder
    }

    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir().join(name)
    }

    /// The program with these arguments, in this folder, as a log would have it.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_glyd"));
        command.args(arguments).current_dir(self.dir()).stdin(Stdio::null());
        command.env_remove("CI").env_remove("NO_COLOR");
        // No test asks the real Hub, by mistake neither.
        command.env("HF_ENDPOINT", "http://127.0.0.1:9").env("HF_HUB_CACHE", self.path("no-cache"));
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        Ran::of(&self.command(arguments).output().unwrap())
    }

    /// Every file below a folder and its bytes; folders have none.
    pub(crate) fn files(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        gather(&self.path(name), Path::new(""), &mut files);
        files
    }

    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        self.files(name).into_keys().map(|path| path.to_string_lossy().into_owned()).collect()
    }

    /// Changes a JSON file, or what of it is an object.
    pub(crate) fn edit(&self, name: &str, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
        let path = self.path(name);
        let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(value.as_object_mut().unwrap());
        fs::write(path, value.to_string()).unwrap();
    }

    /// Flips a bit of a file, so many bytes from its end.
    pub(crate) fn flip(&self, name: &str, from_end: usize) {
        let path = self.path(name);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - from_end;
        bytes[at] ^= 4;
        fs::write(path, bytes).unwrap();
    }

    /// A checkpoint in `name` with a config and these tensors, all of zeros but for their first byte.
    pub(crate) fn checkpoint(&self, name: &str, config: &str, tensors: &[(&str, &str, &[u64])]) {
        let dir = self.path(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("config.json"), config).unwrap();
        let bytes = |dtype: &str, shape: &[u64]| {
            let each = if dtype == "BF16" { 2 } else { 4 };
            let mut bytes = vec![0; usize::try_from(shape.iter().product::<u64>()).unwrap() * each];
            bytes[0] = 1;
            bytes
        };
        let data: Vec<Vec<u8>> = tensors.iter().map(|(_, dtype, shape)| bytes(dtype, shape)).collect();
        let entries: Vec<safetensors::Entry<'_>> = tensors
            .iter()
            .zip(&data)
            .map(|((name, dtype, shape), data)| (*name, *dtype, *shape, data.as_slice()))
            .collect();
        safetensors::write(&dir.join("model.safetensors"), None, &entries);
    }

    /// A checkpoint in `name` that takes a while to pack, of a few kilobytes on disk: 256 MiB of zeros.
    pub(crate) fn slow_checkpoint(&self, name: &str) {
        const BYTES: u64 = 256 << 20;
        let dir = self.path(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("config.json"), r#"{"model_type": "foo_bar"}"#).unwrap();
        let header =
            format!(r#"{{"a.weight":{{"dtype":"BF16","shape":[8192,16384],"data_offsets":[0,{BYTES}]}}}}"#);
        let path = dir.join("model.safetensors");
        safetensors::write_raw(&path, &header, &[1]);
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(8 + header.len() as u64 + BYTES).unwrap();
    }
}

impl Ran {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ran {
            status: output.status.code().expect("the program was not killed"),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// Holds the run to its exit status, and to no panic.
    #[track_caller]
    pub(crate) fn ends(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    /// Holds stderr to have each of these texts.
    #[track_caller]
    pub(crate) fn says(self, texts: &[&str]) -> Self {
        texts.iter().for_each(|text| assert!(self.stderr.contains(text), "no `{text}`: {self:#?}"));
        self
    }

    /// Holds stdout to have each of these texts.
    #[track_caller]
    pub(crate) fn prints(self, texts: &[&str]) -> Self {
        texts.iter().for_each(|text| assert!(self.stdout.contains(text), "no `{text}`: {self:#?}"));
        self
    }

    /// Stdout, as the one JSON document it is.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

fn gather(dir: &Path, below: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(dir.join(below)).unwrap() {
        let path = below.join(entry.unwrap().file_name());
        if dir.join(&path).is_dir() {
            files.insert(path.clone(), Vec::new());
            gather(dir, &path, files);
        } else {
            let bytes = fs::read(dir.join(&path)).unwrap();
            files.insert(path, bytes);
        }
    }
}
