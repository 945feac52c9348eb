//! TLS with a company's certificates, and proxies.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use glyd_fixtures::mock_hub::{Accept, MockHub, Repo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::util::{Hub, TOKEN};

fn tls(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tls").join(name).display().to_string()
}

/// A Hub with `org/model` over TLS, as `localhost`.
fn secure() -> Hub {
    let certificates =
        CertificateDer::pem_file_iter(tls("localhost.pem")).unwrap().collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(tls("localhost.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(certificates, key).unwrap());
    let accept: Accept = Arc::new(move |stream| {
        let connection = rustls::ServerConnection::new(Arc::clone(&config)).ok()?;
        Some(Box::new(rustls::StreamOwned::new(connection, stream)))
    });
    let hub = Hub::new();
    let mock = MockHub::start_with("https", &accept);
    mock.add("org/model", Repo::of_folder(&hub.folder.path("model")));
    Hub { mock, ..hub }
}

/// A proxy that tunnels, or refuses; every request's first line and credentials.
struct Proxy {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start(refuses: bool) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || drop(tunnel(stream, refuses, &seen)));
            }
        });
        Proxy { address, asked }
    }

    fn targets(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn tunnel(mut client: TcpStream, refuses: bool, seen: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    seen.lock().unwrap().push(target.clone());
    if refuses {
        return client.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    }
    let mut server = TcpStream::connect(target.replace("localhost", "127.0.0.1"))?;
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n")?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut server, &mut client)?;
    client.shutdown(std::net::Shutdown::Both)
}

#[test]
fn a_company_s_certificates_are_trusted_where_they_are_named() {
    let hub = secure();
    for name in ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"] {
        hub.run_with(&["pack", "org/model", "out"], &[(name, &tls("ca.pem"))]).ends(0);
        std::fs::remove_dir_all(hub.cached("")).unwrap();
    }
    let ran = hub.run_with(&["pack", "org/model", "out", "--json"], &[("HF_TOKEN", TOKEN)]).ends(2);
    let ran = ran.says(&["no trusted connection: ", "ertificate", "set SSL_CERT_FILE to a file"]);
    assert_eq!(ran.json()["error"]["kind"], "network");
    let key = tls("localhost.key");
    for (file, says) in
        [(key.as_str(), "holds no certificate"), ("no-such.pem", "cannot read the certificates of")]
    {
        hub.run_with(&["pack", "org/model", "out"], &[("SSL_CERT_FILE", file)]).ends(2).says(&[says]);
    }
}

#[test]
fn proxies_are_gone_through_as_the_environment_says() {
    let hub = secure();
    let proxy = Proxy::start(false);
    let (address, certificate) = (format!("http://me:hf_pass@{}", proxy.address), tls("ca.pem"));
    let pack = |hub: &Hub, variables: &[(&str, &str)]| {
        let _ = std::fs::remove_dir_all(hub.cached(""));
        hub.run_with(&["pack", "org/model", "out"], &[variables, &[("SSL_CERT_FILE", &certificate)]].concat())
    };
    let target = hub.mock.endpoint().replace("https://", "");
    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        pack(&hub, &[(name, &address)]).ends(0);
        let targets = proxy.targets();
        assert!(!targets.is_empty() && targets.contains(&target), "{name}: {targets:?}");
    }
    for variables in [
        &[("HTTPS_PROXY", address.as_str()), ("NO_PROXY", "localhost")][..],
        &[("HTTPS_PROXY", &address), ("no_proxy", "example, .localhost")],
        &[("HTTP_PROXY", &address)],
    ] {
        pack(&hub, variables).ends(0);
        assert_eq!(proxy.targets(), Vec::<String>::new(), "{variables:?}");
    }
    let plain = Hub::new();
    pack(&plain, &[("HTTP_PROXY", &address)]).ends(0);
    assert!(!proxy.targets().is_empty());
    let refusing = Proxy::start(true);
    let address = format!("http://me:hf_pass@{}", refusing.address);
    let ran = pack(&hub, &[("HTTPS_PROXY", &address)]).ends(2);
    let ran = ran.says(&["the proxy `http://127.0.0.1:", "does not let it through", "NO_PROXY"]);
    assert!(!ran.stderr.contains("hf_pass"), "{ran:?}");
    assert_eq!(refusing.targets().len(), 1);
}
