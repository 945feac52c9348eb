//! Cards, and checkpoints put on the Hub.

use std::fs;

use glyd_fixtures::mock_hub::{Access, Fault, Port, Repo};

use super::util::{Hub, TOKEN};
use crate::json::Documented;
use crate::util::Ran;

const SOURCE_CARD: &str =
    "---\nlicense: llama3\nlibrary_name: transformers\ntags:\n- chat\n---\n# Model\n\nIt talks.\n";

/// With a packed checkpoint in `packed`, its card written, and a token that writes.
fn packed() -> Hub {
    let hub = Hub::new();
    hub.mock.state().token = Some(TOKEN.to_owned());
    hub.mock.state().read_token = Some("hf_reads".to_owned());
    hub.change(|files| drop(files.insert("README.md".to_owned(), SOURCE_CARD.as_bytes().to_vec())));
    hub.run(&["pack", "org/model", "packed", "--shard-size", "64KiB"]).ends(0);
    hub.run(&["card", "packed"]).ends(0);
    hub
}

fn publish(hub: &Hub, arguments: &[&str]) -> Ran {
    hub.run_with(&[&["publish", "packed"], arguments].concat(), &[("HF_TOKEN", TOKEN)])
}

#[test]
fn a_card_takes_in_the_source_s() {
    let hub = packed();
    assert_eq!(fs::read_to_string(hub.folder.path("packed/README.source.md")).unwrap(), SOURCE_CARD);
    let card = fs::read_to_string(hub.folder.path("packed/README.md")).unwrap();
    let front = "---\nlicense: llama3\nbase_model: org/model\nbase_model_relation: quantized\nlibrary_name: glyd\n\
                 tags:\n- chat\n- glyd\n---\n";
    assert!(card.starts_with(front), "{card}");
    let commit = hub.commit();
    for text in [
        &format!("[`org/model`](https://huggingface.co/org/model) at commit `{commit}`"),
        &format!("glyd pack org/model --revision {commit} out --layout mma"),
        "| in all |",
        "glyd verify OWNER/NAME",
        "\n# Model\n\nIt talks.\n",
    ] {
        assert!(card.contains(text), "no `{text}`: {card}");
    }
    // Once more is the same; after a new pack the source's new card is taken.
    hub.run(&["card", "packed"]).ends(0);
    assert_eq!(fs::read_to_string(hub.folder.path("packed/README.md")).unwrap(), card);
    assert_eq!(fs::read_to_string(hub.folder.path("packed/README.source.md")).unwrap(), SOURCE_CARD);
    fs::write(hub.folder.path("model/README.md"), "# Other\n").unwrap();
    hub.run(&["pack", "model", "packed"]).ends(0);
    hub.run(&["card", "packed"]).ends(0).says(&["the card has no `base_model`: --base-model names it"]);
    let card = fs::read_to_string(hub.folder.path("packed/README.md")).unwrap();
    assert!(card.contains("# Other") && !card.contains("base_model") && !card.contains("It talks"), "{card}");
    hub.run(&["card", "packed", "--base-model", "a/b"]).ends(0);
    assert!(fs::read_to_string(hub.folder.path("packed/README.md")).unwrap().contains("base_model: a/b\n"));
    hub.run(&["verify", "packed"]).ends(0);
    hub.run(&["card", "model"]).ends(2).says(&["no `glyd.json`"]);
    hub.run(&["card", "packed", "--base-model", "a"]).ends(2).says(&["is no model of the Hub"]);
}

#[test]
fn what_is_published_is_what_was_packed() {
    let hub = packed();
    hub.mock.state().part_bytes = 50_000;
    publish(&hub, &["org/packed"]).ends(0).prints(&["published ", "/org/packed/tree/main as commit "]);
    let files = hub.mock.state().repos["org/packed"].at("main").unwrap().1.clone();
    assert_eq!(hub.mock.state().repos["org/packed"].access, Access::Public);
    let local = hub.folder.files("packed");
    for (path, bytes) in &local {
        if hub.folder.path("packed").join(path).is_file() {
            assert_eq!(&files[path.to_str().unwrap()], bytes, "{}", path.display());
        }
    }
    assert!(!files.contains_key(".glyd-lock"));
    hub.run(&["verify", "org/packed"]).ends(0);
    // Nothing has changed: nothing is uploaded, and no commit is made.
    hub.mock.forget();
    publish(&hub, &["org/packed"]).ends(0).prints(&["has all of it already"]);
    let seen = hub.mock.seen();
    assert!(seen.iter().all(|seen| seen.method != "PUT" && !seen.path.contains("/commit/")), "{seen:?}");
    // The card alone has.
    fs::write(hub.folder.path("packed/README.md"), "# New\n").unwrap();
    publish(&hub, &["org/packed"]).ends(0).prints(&["uploaded   1 file (6 bytes)"]);
    assert!(hub.mock.seen().iter().all(|seen| seen.port != Port::Storage));
}

#[test]
fn weights_of_an_older_checkpoint_do_not_stay() {
    let hub = packed();
    publish(&hub, &["org/packed"]).ends(0);
    hub.run(&["pack", "org/model", "packed"]).ends(0);
    publish(&hub, &["org/packed"]).ends(0).prints(&["removed    `model-00001-of-"]);
    let files = hub.mock.state().repos["org/packed"].at("main").unwrap().1.clone();
    assert!(files.contains_key("model.safetensors") && !files.contains_key("model.safetensors.index.json"));
    hub.run(&["verify", "org/packed"]).ends(0);
}

#[test]
fn a_branch_and_a_private_model_are_made() {
    let hub = packed();
    publish(&hub, &["org/packed", "--private", "--revision", "v2"]).ends(0);
    let state = hub.mock.state();
    let repo = &state.repos["org/packed"];
    assert_eq!(repo.access, Access::Private);
    assert!(repo.at("v2").unwrap().1.contains_key("glyd.json"));
    assert!(repo.at("main").unwrap().1.is_empty());
}

#[test]
fn what_does_not_verify_is_not_published() {
    let hub = packed();
    let shard = "packed/model-00001-of-00002.safetensors";
    let shard = if hub.folder.path(shard).exists() { shard.to_owned() } else { first_shard(&hub) };
    hub.folder.flip(&shard, 9);
    hub.mock.forget();
    let ran = publish(&hub, &["org/packed"]).ends(1);
    ran.says(&["is damaged, and was not published"]).prints(&["damage ("]);
    assert_eq!(hub.mock.seen().len(), 0);
    hub.run_with(&["publish", "model", "org/packed"], &[("HF_TOKEN", TOKEN)])
        .ends(2)
        .says(&["no `glyd.json`"]);
}

fn first_shard(hub: &Hub) -> String {
    let shard = hub.folder.names("packed").into_iter().find(|name| name.ends_with(".safetensors")).unwrap();
    format!("packed/{shard}")
}

#[test]
fn who_may_not_write_is_told_so() {
    let hub = packed();
    let run = |token: &str, repo: &str| hub.run_with(&["publish", "packed", repo], &[("HF_TOKEN", token)]);
    run("", "org/packed").ends(2).says(&["publishing takes a token: set HF_TOKEN to one that may write"]);
    run("hf_reads", "org/packed").ends(2).says(&["the token of HF_TOKEN may not write to it (status 403)"]);
    run("hf_wrong", "org/packed").ends(2).says(&["does not accept the token of HF_TOKEN"]);
    run(TOKEN, "packed").ends(2).says(&["is no name of a model on the Hub"]);
    let ran =
        hub.run_with(&["publish", "packed", "org/packed"], &[("HF_TOKEN", TOKEN), ("HF_HUB_OFFLINE", "1")]);
    ran.ends(2).says(&["HF_HUB_OFFLINE is set: publishing takes requests"]);
    assert!(!hub.mock.state().repos.contains_key("org/packed"));
}

/// A storage that breaks off gets the file again, and no half of it is committed.
#[test]
fn an_upload_that_breaks_is_made_again() {
    let hub = packed();
    hub.mock.fail("Signature", 2, Fault::Answer(503, Vec::new(), String::new()));
    publish(&hub, &["org/packed"]).ends(0);
    hub.run(&["verify", "org/packed"]).ends(0);
    let hub = packed();
    hub.mock.fail("Signature", usize::MAX, Fault::Answer(500, Vec::new(), String::new()));
    publish(&hub, &["org/packed"]).ends(2).says(&["status 500 after 5 tries"]);
    assert!(hub.mock.state().repos["org/packed"].at("main").unwrap().1.is_empty());
}

#[test]
fn cards_and_publishing_are_as_documented() {
    let hub = packed();
    let mut card = Documented::under("card");
    card.hold(&hub.run(&["card", "packed", "--json"]).ends(0).json());
    card.all_printed();
    let mut documented = Documented::under("publish");
    documented.hold(&publish(&hub, &["org/packed", "--json"]).ends(0).json());
    documented.hold(&publish(&hub, &["org/packed", "--json"]).ends(0).json());
    let shard = first_shard(&hub);
    hub.folder.flip(&shard, 9);
    documented.hold(&publish(&hub, &["org/packed", "--json"]).ends(1).json());
    hub.mock.add("org/empty", Repo::of_files([].into()));
    documented.all_printed();
}
