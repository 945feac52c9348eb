//! `glyd fit` of a repository: against a server of the test's own, never a real one.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::util::{Folder, Ran};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Bytes of the data behind a header: more than may be served of it.
const DATA_BYTES: usize = 8 << 20;

/// How a server treats ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ranges {
    Served,
    Ignored,
    /// Refused where the file is shorter than what is asked for.
    Strict,
}

/// What a server has, and what was asked of it.
struct State {
    files: BTreeMap<String, Vec<u8>>,
    ranges: Ranges,
    /// Statuses to answer with before anything else.
    first: Mutex<Vec<(u16, &'static str)>>,
    /// Paths and headers.
    requests: Mutex<Vec<(String, String)>>,
    served: Mutex<usize>,
}

struct Server {
    endpoint: String,
    state: Arc<State>,
}

impl Server {
    fn start(files: BTreeMap<String, Vec<u8>>, ranges: Ranges, first: &[(u16, &'static str)]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let first = Mutex::new(first.iter().rev().copied().collect());
        let state =
            Arc::new(State { files, ranges, first, requests: Mutex::default(), served: Mutex::default() });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A client that has what it wants goes away: that is no failure.
                std::thread::spawn(move || state.answer(stream).ok());
            }
        });
        Server { endpoint, state }
    }

    fn fit(&self, arguments: &[&str]) -> Ran {
        let folder = Folder::new();
        let mut command = folder.command([&["fit", "some/model", "--context", "10"], arguments].concat());
        command.env("HF_ENDPOINT", &self.endpoint).env("HF_TOKEN", "secret").env("NO_PROXY", "127.0.0.1");
        Ran::of(&command.output().unwrap())
    }

    fn paths(&self) -> Vec<String> {
        self.state.requests.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
    }

    fn served(&self) -> usize {
        *self.state.served.lock().unwrap()
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = String::new();
        while reader.read_line(&mut headers)? > 2 {}
        self.requests.lock().unwrap().push((path.clone(), headers.clone()));
        if let Some((status, extra)) = self.first.lock().unwrap().pop() {
            return write!(
                stream,
                "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n{extra}Connection: close\r\n\r\n"
            );
        }
        let Some(file) = self.files.get(&path) else {
            return write!(
                stream,
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        };
        let asked = headers
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
        let asked = asked.and_then(|range| {
            let (from, to) = range.split_once('-')?;
            Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok()?))
        });
        let (status, body, extra) = match asked {
            Some((_, to)) if self.ranges == Ranges::Strict && to >= file.len() => {
                (416, &[][..], String::new())
            }
            Some((from, to)) if self.ranges != Ranges::Ignored => {
                let to = to.min(file.len() - 1);
                let range = format!("Content-Range: bytes {from}-{to}/{}\r\n", file.len());
                (206, &file[from..=to], range)
            }
            _ => (200, file.as_slice(), String::new()),
        };
        write!(
            stream,
            "HTTP/1.1 {status} OK\r\nContent-Length: {}\r\n{extra}Connection: close\r\n\r\n",
            body.len()
        )?;
        for chunk in body.chunks(64 << 10) {
            stream.write_all(chunk)?;
            *self.served.lock().unwrap() += chunk.len();
            if body.len() > 1 << 20 {
                // So that what lies in the system's buffers is not taken for what was read.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let mut rest = [0; 1];
        stream.read(&mut rest).map(drop)
    }
}

/// A safetensors file whose header's text is this long, with or without data behind it.
fn shard(name: &str, header_bytes: usize, data_bytes: usize) -> Vec<u8> {
    let columns = data_bytes / 128;
    let entry = json!({"dtype": "BF16", "shape": [64, columns], "data_offsets": [0, data_bytes]});
    let mut text = json!({ name: entry }).to_string().into_bytes();
    text.resize(header_bytes.max(text.len()), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.resize(file.len() + data_bytes, 0);
    file
}

fn config() -> Vec<u8> {
    br#"{"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 64, "limit": Infinity}"#.to_vec()
}

fn resolve(file: &str) -> String {
    format!("/some/model/resolve/{COMMIT}/{file}")
}

/// A repository with these files; `info` is what is known of it at `main` and at a branch.
fn repository(files: &[(&str, Vec<u8>)]) -> BTreeMap<String, Vec<u8>> {
    let names: Vec<Value> = files.iter().map(|(name, _)| json!({ "rfilename": name })).collect();
    let info = json!({"sha": COMMIT, "siblings": names}).to_string().into_bytes();
    let mut all: BTreeMap<String, Vec<u8>> =
        files.iter().map(|(name, bytes)| (resolve(name), bytes.clone())).collect();
    for revision in ["main", "dev%2Fx"] {
        all.insert(format!("/api/models/some/model/revision/{revision}"), info.clone());
    }
    all
}

fn sharded() -> BTreeMap<String, Vec<u8>> {
    let index = json!({"weight_map": {"a.weight": "one.safetensors", "b.weight": "two.safetensors"}});
    repository(&[
        ("config.json", config()),
        ("model.safetensors.index.json", index.to_string().into_bytes()),
        ("one.safetensors", shard("a.weight", 0, DATA_BYTES)),
        ("two.safetensors", shard("b.weight", 0, DATA_BYTES)),
        ("consolidated.safetensors", shard("c.weight", 0, 128)),
    ])
}

#[test]
fn all_headers_come_in_one_request_where_there_is_one() {
    let mut files = sharded();
    let tensor =
        |name: &str| json!({ name: {"dtype": "BF16", "shape": [64, 16], "data_offsets": [0, 2048]} });
    let headers = json!({"index": {}, "headers": {"one.safetensors": tensor("a.weight"), "two.safetensors": tensor("b.weight")}});
    let path = "/api/models/some/model/safetensors-metadata/model.safetensors.index.json";
    files.insert(path.to_owned(), headers.to_string().into_bytes());
    let server = Server::start(files, Ranges::Served, &[]);
    let document = server.fit(&["--json"]).ends(0).json();
    assert_eq!(document["revision"], COMMIT);
    assert_eq!(document["weights"]["bf16_bytes"], 4096);
    assert_eq!(document["model"], "some/model");
    assert_eq!(
        server.paths(),
        ["/api/models/some/model/revision/main".to_owned(), resolve("config.json"), path.to_owned()]
    );
    let requests = server.state.requests.lock().unwrap();
    let bearer = |headers: &str| headers.to_ascii_lowercase().contains("authorization: bearer secret");
    assert!(requests.iter().all(|(_, headers)| bearer(headers)), "{requests:?}");
}

#[test]
fn headers_are_read_by_ranges_at_the_commit_and_weights_never() {
    let server = Server::start(sharded(), Ranges::Served, &[]);
    let ran = server.fit(&["--json", "--revision", "dev/x"]).ends(0);
    assert_eq!(ran.stderr, "");
    let document = ran.json();
    assert_eq!(
        (&document["revision"], &document["weights"]["bf16_bytes"]),
        (&COMMIT.into(), &(2 * DATA_BYTES).into())
    );
    assert_eq!(server.paths().len(), 5, "{:?}", server.paths());
    assert!(server.served() < 210_000, "{}", server.served());
}

#[test]
fn headers_of_every_length_about_the_first_range_are_whole() {
    let lengths = (99_983..=100_001).chain([200, 1_000_000]);
    for length in lengths {
        for ranges in [Ranges::Served, Ranges::Ignored] {
            if ranges == Ranges::Ignored && length % 6 != 0 && length != 200 {
                continue;
            }
            let file = shard("a.weight", length, DATA_BYTES);
            let server = Server::start(
                repository(&[("config.json", config()), ("model.safetensors", file)]),
                ranges,
                &[],
            );
            let document = server.fit(&["--json"]).ends(0).json();
            assert_eq!(document["weights"]["bf16_bytes"], DATA_BYTES, "{length} {ranges:?}");
            assert!(server.served() < 2 * length + 1_000_000, "{length} {ranges:?}: {}", server.served());
        }
    }
}

#[test]
fn a_file_shorter_than_the_first_range_is_read_whatever_the_server_says() {
    for ranges in [Ranges::Served, Ranges::Ignored, Ranges::Strict] {
        let file = shard("a.weight", 0, 128);
        let server =
            Server::start(repository(&[("config.json", config()), ("model.safetensors", file)]), ranges, &[]);
        let document = server.fit(&["--json"]).ends(0).json();
        assert_eq!(document["weights"]["bf16_bytes"], 128, "{ranges:?}");
    }
}

#[test]
fn what_passes_is_waited_for_as_long_as_the_hub_asks() {
    let first =
        [(429, "Retry-After: 1\r\n"), (503, "Retry-After: 0\r\n"), (429, "RateLimit: \"api\";r=0;t=0\r\n")];
    let server = Server::start(sharded(), Ranges::Served, &first);
    let start = std::time::Instant::now();
    server.fit(&[]).ends(0).prints(&[&format!("`some/model` at {COMMIT}")]);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn what_does_not_pass_is_told_apart_and_without_the_token() {
    for (status, extra, kind, said) in [
        (401, "X-Error-Code: GatedRepo\r\n", "gated", "its conditions are to be accepted on http://"),
        (
            403,
            "X-Error-Message: Access is restricted\r\n",
            "auth",
            "(status 403), which says `Access is restricted`",
        ),
        (404, "", "not-found", "is not on the Hub, or hidden from the token of HF_TOKEN"),
    ] {
        let server = Server::start(sharded(), Ranges::Served, &[(status, extra)]);
        let ran = server.fit(&["--json"]).ends(2);
        assert_eq!(ran.json()["error"]["kind"], kind);
        assert!(!format!("{ran:?}").contains("secret"), "{ran:?}");
        ran.says(&["`some/model`", said]);
    }
    let first = [(503, "Retry-After: 0\r\n"); 5];
    let server = Server::start(sharded(), Ranges::Served, &first);
    server.fit(&[]).ends(2).says(&["status 503 after 5 tries", "/api/models/some/model/revision/main"]);
}

#[test]
fn a_header_that_lies_is_refused() {
    let mut long = shard("a.weight", 0, 128);
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut gap = shard("a.weight", 0, 128);
    gap.push(0);
    for file in [long, gap, b"<html>a page</html>".to_vec(), vec![1, 2, 3]] {
        let server = Server::start(
            repository(&[("config.json", config()), ("model.safetensors", file)]),
            Ranges::Served,
            &[],
        );
        server.fit(&[]).ends(2).says(&["model.safetensors"]);
    }
    let packed = repository(&[("config.json", config()), ("glyd.json", Vec::new())]);
    Server::start(packed, Ranges::Served, &[])
        .fit(&[])
        .ends(2)
        .says(&["a packed checkpoint", "name its folder"]);
}
