//! A network that misbehaves: waits, tries, timeouts, redirects, proxies and certificates.

use std::time::{Duration, Instant};

use glyd_fixtures::mock_hub::{Fault, MockHub, Port, Repo};

use super::util::Hub;

fn after(seconds: &str) -> Fault {
    let headers = vec![("Retry-After".to_owned(), seconds.to_owned())];
    Fault::Answer(429, headers, "{\"error\": \"slow down\"}".to_owned())
}

#[test]
fn a_rate_limit_is_waited_for_as_long_as_the_server_says() {
    let hub = Hub::new();
    hub.mock.fail("/revision/", 2, after("2"));
    let begun = Instant::now();
    hub.run(&["pack", "org/model", "out"]).ends(0);
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
    let hub = Hub::new();
    let window = vec![("RateLimit".to_owned(), "\"api\";r=0;t=1".to_owned())];
    hub.mock.fail("/tree/", 1, Fault::Answer(429, window, String::new()));
    let begun = Instant::now();
    hub.run(&["pack", "org/model", "out"]).ends(0);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn a_rate_limit_that_does_not_end_is_told_of() {
    let hub = Hub::new();
    hub.mock.fail("/revision/", usize::MAX, after("0"));
    let ran = hub.run(&["pack", "org/model", "out", "--json"]).ends(2);
    let ran = ran.says(&[
        "/api/models/org/model/revision/main`: too many requests (status 429) after 5 tries",
        "slow down",
    ]);
    assert_eq!(ran.json()["error"]["kind"], "rate-limit");
    assert_eq!(hub.mock.seen().len(), 5);
    // Nobody waits for a day.
    let hub = Hub::new();
    hub.mock.fail("/revision/", usize::MAX, after("86400"));
    hub.run(&["pack", "org/model", "out"]).ends(2).says(&["start again in 86400 seconds"]);
    assert_eq!(hub.mock.seen().len(), 1);
}

#[test]
fn what_may_pass_is_tried_again() {
    let hub = Hub::new();
    let unavailable = || Fault::Answer(503, Vec::new(), "<html>".to_owned());
    hub.mock.fail("/tree/", 2, unavailable());
    hub.mock.fail("/config.json", 2, unavailable());
    hub.mock.fail("/revision/", 1, Fault::Cut(3));
    hub.mock.fail(&hub.key("model.safetensors"), 3, Fault::Cut(20_000));
    hub.run(&["pack", "org/model", "out"]).ends(0);
    hub.same_as_local("out");
    // A break in mid-body asks for the rest alone.
    let ranges: Vec<String> = hub
        .mock
        .seen()
        .into_iter()
        .filter(|seen| seen.port == Port::Storage)
        .map(|seen| seen.headers.get("range").cloned().unwrap_or_default())
        .collect();
    assert_eq!(ranges, ["", "bytes=20000-", "bytes=40000-", "bytes=60000-"]);
}

#[test]
fn a_server_without_ranges_sends_all_again() {
    let hub = Hub::new();
    let key = hub.key("model.safetensors");
    hub.mock.fail(&key, 1, Fault::Cut(20_000));
    hub.mock.fail(&key, 1, Fault::NoRanges);
    hub.run(&["pack", "org/model", "out"]).ends(0);
    hub.same_as_local("out");
}

#[test]
fn a_server_that_stays_broken_is_told_of() {
    let hub = Hub::new();
    hub.mock.fail("/revision/", usize::MAX, Fault::Answer(503, Vec::new(), String::new()));
    let ran = hub.run(&["pack", "org/model", "out"]).ends(2);
    ran.says(&["/api/models/org/model/revision/main`: status 503 after 5 tries"]);
    assert_eq!(hub.mock.seen().len(), 5);
}

#[test]
fn a_silent_server_times_out() {
    let hub = Hub::new();
    hub.mock.fail("/revision/", usize::MAX, Fault::Silence);
    let begun = Instant::now();
    let ran = hub.run_with(&["pack", "org/model", "out"], &[("HF_HUB_DOWNLOAD_TIMEOUT", "1")]).ends(2);
    ran.says(&["no answer from `127.0.0.1` in 1 seconds after 5 tries"]);
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    // One that falls silent in mid-body is asked for the rest.
    let hub = Hub::new();
    hub.mock.fail(&hub.key("model.safetensors"), 1, Fault::Stall(10_000));
    hub.run_with(&["pack", "org/model", "out"], &[("HF_HUB_DOWNLOAD_TIMEOUT", "1")]).ends(0);
    hub.same_as_local("out");
}

#[test]
fn nobody_there_is_told_of() {
    let hub = Hub::new();
    for (endpoint, says) in
        [("http://127.0.0.1:9", "onnection"), ("http://no-such-host.invalid", "after 5 tries")]
    {
        let ran = hub.run_with(&["pack", "org/model", "out", "--json"], &[("HF_ENDPOINT", endpoint)]).ends(2);
        assert_eq!(ran.json()["error"]["kind"], "network");
        ran.says(&[endpoint, says, "after 5 tries"]);
    }
    let ran = hub.run_with(&["pack", "org/model", "out"], &[("HF_ENDPOINT", "hub.example")]).ends(2);
    ran.says(&["HF_ENDPOINT: `hub.example` is no URL"]);
}

#[test]
fn all_requests_go_to_the_endpoint_with_a_slash_or_without() {
    let hub = Hub::new();
    hub.mock.state().page = 2;
    let endpoint = format!("{}/", hub.mock.endpoint());
    hub.run_with(&["pack", "org/model", "out"], &[("HF_ENDPOINT", &endpoint)]).ends(0);
    assert!(hub.mock.seen().iter().all(|seen| !seen.path.starts_with("//")));
    hub.same_as_local("out");
}

#[test]
fn a_mirror_without_etags_is_enough() {
    let hub = Hub::new();
    let names = ["ETag", "X-Repo-Commit", "X-Linked-Etag", "X-Linked-Size", "Accept-Ranges", "Content-Range"];
    hub.mock.fail("", usize::MAX, Fault::Without(names.map(str::to_owned).to_vec()));
    hub.run(&["pack", "org/model", "out"]).ends(0);
    hub.same_as_local("out");
}

#[test]
fn a_mirror_that_moved_is_followed_without_the_token() {
    let hub = Hub::new();
    let mirror = MockHub::start();
    mirror.state().moved = Some(hub.mock.endpoint());
    let variables = [("HF_ENDPOINT", mirror.endpoint()), ("HF_TOKEN", "hf_mine".to_owned())];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    hub.run_with(&["pack", "org/model", "out"], &variables).ends(0);
    hub.same_as_local("out");
    assert!(mirror.seen().iter().all(|seen| seen.headers.contains_key("authorization")));
    assert!(hub.mock.seen().iter().all(|seen| !seen.headers.contains_key("authorization")));
    // Where it leads fails: both are named.
    let hub = Hub::new();
    hub.mock.fail("/revision/", usize::MAX, Fault::Answer(404, Vec::new(), String::new()));
    mirror.state().moved = Some(hub.mock.endpoint());
    let ran = hub.run_with(&["pack", "org/model", "out"], &variables).ends(2);
    ran.says(&[&mirror.endpoint(), "redirected with status 308 to `", &hub.mock.endpoint(), "status 404"]);
}

#[test]
fn a_redirect_in_a_circle_ends() {
    let hub = Hub::new();
    let location = vec![("Location".to_owned(), format!("{}/x/revision/y", hub.mock.endpoint()))];
    hub.mock.fail("/revision/", usize::MAX, Fault::Answer(302, location, String::new()));
    hub.run(&["pack", "org/model", "out"]).ends(2).says(&["found one in a circle"]);
}

#[test]
fn an_answer_that_is_none_of_the_hub_s_is_told_of() {
    let hub = Hub::new();
    for body in ["<html>Sign in to the WiFi</html>", "{}", "[]", r#"{"sha": "../../x"}"#] {
        hub.mock.fail("/revision/", 1, Fault::Answer(200, Vec::new(), body.to_owned()));
        let ran = hub.run(&["pack", "org/model", "out", "--json"]).ends(2);
        let ran = ran.says(&["/revision/main`: expected ", "check HF_ENDPOINT"]);
        assert_eq!(ran.json()["error"]["kind"], "network");
    }
    let huge = r#"[{"type": "file", "oid": "0123456789abcdef0123456789abcdef01234567", "path": "config.json", "size": 18446744073709551615}]"#;
    hub.mock.fail("/tree/", 1, Fault::Answer(200, Vec::new(), huge.to_owned()));
    hub.run(&["pack", "org/model", "out"]).ends(2);
}

#[test]
fn two_models_do_not_share_what_they_should_not() {
    let hub = Hub::new();
    let other = Hub::with("edge-unused");
    hub.mock.add("org/other", Repo::of_folder(&other.folder.path("model")));
    hub.run(&["pack", "org/model", "out"]).ends(0);
    hub.run(&["pack", "org/other", "other"]).ends(0);
    hub.same_as_local("out");
}
