//! A folder, a mock Hub with a model on it, and the program run against it with nothing else of the
//! environment.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use glyd_fixtures::mock_hub::{MockHub, Repo, sha256};
use serde_json::Value;

use crate::util::{Folder, Ran};

pub(crate) const TOKEN: &str = "hf_secretSECRETsecret";

/// Variables that would lead a test elsewhere.
const VARIABLES: [&str; 22] = [
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "XDG_CACHE_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
];

/// A folder and a Hub.
pub(crate) struct Hub {
    pub(crate) folder: Folder,
    pub(crate) mock: MockHub,
}

impl Hub {
    /// With `org/model`, a small one that packs, which is also in the folder `model`.
    pub(crate) fn new() -> Hub {
        Hub::with("llama")
    }

    /// With the model of a recipe.
    pub(crate) fn with(recipe: &str) -> Hub {
        let folder = Folder::with_model(recipe);
        fs::write(folder.path("model/README.md"), "---\nlicense: mit\n---\n# A model\n").unwrap();
        fs::create_dir(folder.path("model/code")).unwrap();
        fs::write(folder.path("model/code/model.py"), "pass\n").unwrap();
        let mock = MockHub::start();
        mock.add("org/model", Repo::of_folder(&folder.path("model")));
        Hub { folder, mock }
    }

    /// With a model of several shards.
    pub(crate) fn sharded() -> Hub {
        Hub::with("edge-sharded")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.folder.command(arguments);
        for name in VARIABLES {
            command.env_remove(name);
        }
        command.env("HOME", self.folder.path("home")).env("HF_ENDPOINT", self.mock.endpoint());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, &[])
    }

    pub(crate) fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
        let ran = Ran::of(&self.command(arguments).envs(variables.iter().copied()).output().unwrap());
        assert!(!format!("{ran:?}").contains(TOKEN), "the token is printed: {ran:#?}");
        assert!(!format!("{ran:?}").contains("Signature"), "a storage's key is printed: {ran:#?}");
        ran
    }

    /// The repository's part of the cache.
    pub(crate) fn cached(&self, path: &str) -> PathBuf {
        self.folder.path("home/.cache/huggingface/hub/models--org--model").join(path)
    }

    /// The commit of `main`.
    pub(crate) fn commit(&self) -> String {
        self.mock.state().repos["org/model"].refs["main"].clone()
    }

    /// Changes the files at `main`.
    pub(crate) fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) {
        let mut state = self.mock.state();
        let repo = state.repos.get_mut("org/model").unwrap();
        let mut files = repo.at("main").unwrap().1.clone();
        change(&mut files);
        repo.commit("main", files);
    }

    /// Packs the folder under the repository's name, and holds what the Hub's gave to the same bytes but
    /// for the commit.
    #[track_caller]
    pub(crate) fn same_as_local(&self, out: &str) {
        self.run(&["pack", "model", "local"]).ends(0);
        let (mut local, mut found) = (self.folder.files("local"), self.folder.files(out));
        let manifest = |files: &mut BTreeMap<PathBuf, Vec<u8>>| -> Value {
            serde_json::from_slice(&files.remove(&PathBuf::from("glyd.json")).unwrap()).unwrap()
        };
        let (mut ours, theirs) = (manifest(&mut local), manifest(&mut found));
        assert_eq!(theirs["source"], serde_json::json!({ "repo": "org/model", "revision": self.commit() }));
        ours["source"] = theirs["source"].clone();
        assert_eq!(ours, theirs);
        assert!(local == found, "{:?} {:?}", local.keys(), found.keys());
        fs::remove_dir_all(self.folder.path("local")).unwrap();
    }

    /// A file's place in the storage.
    pub(crate) fn key(&self, file: &str) -> String {
        sha256(&self.mock.state().repos["org/model"].at("main").unwrap().1[file])
    }
}
