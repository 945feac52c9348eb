//! Who may read what: tokens, refusals, and names.

use std::collections::BTreeMap;
use std::fs;

use glyd_fixtures::mock_hub::{Access, Fault, Port, Repo};

use super::util::{Hub, TOKEN};

type Files = BTreeMap<String, Vec<u8>>;

fn private() -> Hub {
    let hub = Hub::new();
    let mut state = hub.mock.state();
    state.token = Some(TOKEN.to_owned());
    state.repos.get_mut("org/model").unwrap().access = Access::Private;
    drop(state);
    hub
}

/// The token is found wherever it is kept, and goes to the Hub alone.
#[test]
fn a_token_is_found_in_variables_and_files() {
    let hub = private();
    fs::create_dir(hub.folder.path("hf")).unwrap();
    fs::write(hub.folder.path("hf/token"), format!("{TOKEN}\n")).unwrap();
    fs::write(hub.folder.path("elsewhere"), format!(" {TOKEN}\r\n")).unwrap();
    let home = hub.folder.path("hf").display().to_string();
    let elsewhere = hub.folder.path("elsewhere").display().to_string();
    let line = format!("{TOKEN}\n");
    let cases: [&[(&str, &str)]; 7] = [
        &[("HF_TOKEN", TOKEN)],
        &[("HF_TOKEN", &line)],
        &[("HF_HOME", &home)],
        &[("HF_HOME", &home), ("HF_TOKEN", "")],
        &[("HF_HOME", &home), ("HF_TOKEN", "\n")],
        &[("HF_TOKEN_PATH", &elsewhere)],
        &[("HUGGING_FACE_HUB_TOKEN", TOKEN)],
    ];
    for (number, variables) in cases.into_iter().enumerate() {
        let cache = hub.folder.path(format!("cache-{number}")).display().to_string();
        let variables = [variables, &[("HF_HUB_CACHE", &cache)]].concat();
        hub.run_with(&["pack", "org/model", "out"], &variables).ends(0);
    }
    for seen in hub.mock.seen() {
        let sent = seen.headers.get("authorization").cloned();
        let expected = (seen.port == Port::Hub).then(|| format!("Bearer {TOKEN}"));
        assert_eq!(sent, expected, "{} {}", seen.method, seen.path);
    }
}

/// What a user must do differs, and so does what is said.
#[test]
fn refusals_are_told_apart() {
    let hub = private();
    let mut state = hub.mock.state();
    for (name, access) in [("gated", Access::Gated), ("off", Access::Disabled), ("scope", Access::Forbidden)]
    {
        let repo = Repo { access, ..state.repos["org/model"].clone() };
        state.repos.insert(format!("org/{name}"), repo);
    }
    drop(state);
    let good = &[("HF_TOKEN", TOKEN)][..];
    let bad = &[("HF_TOKEN", "hf_wrong")][..];
    let endpoint = hub.mock.endpoint();
    let gated = format!("are to be accepted on {endpoint}/org/gated");
    for (arguments, variables, kind, says) in [
        (&["org/model"][..], &[][..], "auth", "set HF_TOKEN to a token that may read it"),
        (&["org/none"], &[], "auth", "private, gated, or not there"),
        (
            &["org/none"],
            good,
            "not-found",
            "`org/none` is not on the Hub, or hidden from the token of HF_TOKEN",
        ),
        (&["org/model"], bad, "auth", "does not accept the token of HF_TOKEN (status 401)"),
        (&["org/gated"], good, "gated", &gated),
        (&["org/gated"], &[], "gated", "HF_TOKEN to be set to a token of the account that accepted them"),
        (&["org/scope"], good, "auth", "the token of HF_TOKEN may not read it (status 403)"),
        (&["org/off"], good, "disabled", "is disabled by the Hub"),
        (&["org/model", "--revision", "v9"], good, "not-found", "`org/model` has no revision `v9`"),
    ] {
        let arguments = [&["pack", "--json", "--quiet"], arguments, &["out"]].concat();
        hub.mock.forget();
        let ran = hub.run_with(&arguments, variables).ends(2).says(&[says]);
        assert_eq!(ran.json()["error"]["kind"], kind, "{arguments:?}");
        assert!(!ran.stderr.contains("hf_wrong"));
        assert_eq!(hub.mock.seen().len(), 1, "no second try helps: {arguments:?}");
    }
    // A file that is listed and not there.
    let missing = vec![("X-Error-Code".to_owned(), "EntryNotFound".to_owned())];
    hub.mock.fail("/config.json", usize::MAX, Fault::Answer(404, missing, String::new()));
    let ran = hub.run_with(&["pack", "org/model", "out", "--json"], good).ends(2);
    let ran = ran.says(&["has no file `config.json`"]);
    assert_eq!(ran.json()["error"]["kind"], "not-found");
}

#[test]
fn a_renamed_model_is_followed() {
    let hub = Hub::new();
    hub.mock.state().renamed.insert("old/name".to_owned(), "org/model".to_owned());
    hub.run(&["pack", "old/name", "out"]).ends(0);
    assert!(hub.folder.path("home/.cache/huggingface/hub/models--old--name/refs/main").exists());
    let manifest = fs::read_to_string(hub.folder.path("out/glyd.json")).unwrap();
    assert!(manifest.contains(&hub.commit()) && manifest.contains("\"old/name\""));
    let queries = hub.mock.seen().into_iter().filter(|seen| seen.path.contains("/models/org/model/tree/"));
    assert!(queries.into_iter().all(|seen| seen.path.ends_with("?recursive=true")), "the query is kept");
}

/// Six ways to name what is no model; none is silently taken for another.
#[test]
fn a_name_that_is_neither_a_folder_nor_on_the_hub_says_what_it_was_taken_for() {
    let hub = Hub::new();
    for name in ["modle", "./org/model", "a/b/c", "gpt2"] {
        let ran = hub.run(&["pack", name, "out"]).ends(2);
        ran.says(&[
            "expected the folder of a checkpoint, found none of that name",
            "a model of the Hub as owner/name",
        ]);
    }
    assert_eq!(hub.mock.seen().len(), 0);
    hub.run(&["pack", "org/modle", "out"])
        .ends(2)
        .says(&["no folder is named `org/modle`: it is taken as a model of the Hub"]);
    // A folder of that name wins, one that holds nothing too.
    fs::create_dir_all(hub.folder.path("org/model")).unwrap();
    hub.mock.forget();
    hub.run(&["pack", "org/model", "out"]).ends(2).says(&["`org/model`", "an empty folder"]);
    assert_eq!(hub.mock.seen().len(), 0);
}

/// What a repository lacks is said before anything of it is fetched.
#[test]
fn a_model_without_safetensors_says_what_it_has() {
    let hub = Hub::new();
    let without = |name: &str, change: &dyn Fn(&mut Files)| {
        let mut files = hub.mock.state().repos["org/model"].at("main").unwrap().1.clone();
        change(&mut files);
        hub.mock.add(name, Repo::of_files(files));
    };
    for name in ["pytorch_model.bin", "x.gguf"] {
        without("org/other", &|files| {
            files.remove("model.safetensors");
            files.insert(name.to_owned(), vec![0; 100]);
        });
        let ran = hub.run(&["pack", "org/other", "out"]).ends(2);
        ran.says(&["no safetensors weights, but `", name, "convert them to safetensors first"]);
        let _ = fs::remove_dir_all(hub.folder.path("home"));
    }
    without("org/bare", &|files| drop(files.remove("config.json")));
    hub.run(&["pack", "org/bare", "out"]).ends(2).says(&["expected `config.json`", "none in the repository"]);
    assert!(hub.mock.seen().iter().all(|seen| !seen.path.contains("/resolve/")), "nothing was fetched");
    without("org/named", &|files| {
        let weights = files.remove("model.safetensors").unwrap();
        files.insert("llama3.safetensors".to_owned(), weights);
    });
    hub.run(&["pack", "org/named", "out"]).ends(0);
}

/// An index is not to be trusted, and less so with a token at hand.
#[test]
fn an_index_that_names_files_elsewhere_is_refused() {
    let elsewhere = "../../../../org/private/resolve/main/model.safetensors";
    for value in [elsewhere, "/etc/hostname", "sub/../../x.safetensors", "..\\x"] {
        let hub = private();
        let index = serde_json::json!({ "metadata": {}, "weight_map": { "a": value } });
        hub.change(|files| {
            drop(files.insert("model.safetensors.index.json".to_owned(), index.to_string().into_bytes()));
        });
        let ran = hub.run_with(&["pack", "org/model", "out"], &[("HF_TOKEN", TOKEN)]).ends(2);
        ran.says(&[
            "model.safetensors.index.json`: expected files inside the checkpoint",
            &format!("{value:?}"),
        ]);
        for seen in hub.mock.seen() {
            assert!(
                seen.path.starts_with("/api/models/org/model/") || seen.path.starts_with("/org/model/"),
                "{seen:?}"
            );
        }
    }
}

/// A listing that would have files written elsewhere.
#[test]
fn a_listing_that_names_files_elsewhere_is_refused() {
    for path in ["../../escape", "/tmp/escape", "a/../../escape", "a\\b"] {
        let hub = Hub::new();
        hub.change(|files| drop(files.insert(path.to_owned(), b"x".to_vec())));
        let ran = hub.run(&["pack", "org/model", "out"]).ends(2);
        ran.says(&["expected files inside the repository", &format!("{path:?}").replace("\\\\", "\\")[..3]]);
        assert!(!hub.folder.path("home/.cache").exists(), "nothing was written");
    }
}
