//! What an answer that is no good means, and a connection that breaks.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::Value;
use ureq::Error as Broke;

use super::HubError;
use super::client::{Broken, Client, Request, Response, read_at_most};

/// What a request is about: what its error names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) repo: &'a str,
    pub(crate) revision: &'a str,
    pub(crate) file: Option<&'a str>,
    /// Whether it changes the repository.
    pub(crate) writes: bool,
}

impl<'a> About<'a> {
    /// To read of a repository at a revision.
    pub(crate) fn reading(repo: &'a str, revision: &'a str, file: Option<&'a str>) -> Self {
        About { repo, revision, file, writes: false }
    }
}

/// The error that an answer is.
pub(crate) fn of(
    client: &Client,
    request: &Request<'_>,
    response: &mut Response,
    tries: u32,
    wait: Duration,
) -> HubError {
    let About { repo, revision, file, .. } = request.about;
    let repo = repo.to_owned();
    let status = response.status;
    let said = message(response);
    let said_after = said.as_ref().map(|said| format!(", which says `{said}`")).unwrap_or_default();
    let code = response.header("x-error-code").unwrap_or_default().to_owned();
    let token = client.settings.token.as_ref();
    let from = token.map(|token| token.from.clone());
    let page = client.settings.endpoint.below(&format!("/{repo}")).to_string();
    // The answer of a storage, or of a mirror's mirror, says nothing of the repository.
    let own = response.url.same_origin(&client.settings.endpoint);
    match (code.as_str(), status) {
        ("GatedRepo", _) => HubError::Gated { token: gated_token(from), repo, page, message: said_after },
        _ if said.as_deref() == Some("Access to this resource is disabled.") => {
            HubError::Disabled { repo, status, message: String::new() }
        }
        ("RevisionNotFound", _) => {
            HubError::NoRevision { page: format!("{page}/tree/main"), repo, revision: revision.to_owned() }
        }
        ("EntryNotFound", _) => no_file(&repo, revision, file.unwrap_or("?"), &page),
        ("RepoNotFound", _) => no_repo(repo, status, from, &page),
        (_, 401) if own => unauthorized(client, repo, status, from),
        (_, 403) if own => no_scope(client, request, status, from, said_after),
        (_, 404) if own => match file {
            Some(file) => no_file(&repo, revision, file, &page),
            None => no_repo(repo, status, from, &page),
        },
        (_, 429) => HubError::RateLimited {
            url: client.shown(&request.url, &response.trail),
            tries,
            seconds: wait.as_secs(),
            message: said_after,
        },
        _ => HubError::Status {
            url: client.shown(&request.url, &response.trail),
            status,
            tries,
            message: said_after,
            hint: if status >= 500 { "start again later" } else { "check HF_ENDPOINT and the name" },
        },
    }
}

/// What an answer says of itself: a header's text, or the `error` of a JSON body.
fn message(response: &mut Response) -> Option<String> {
    const MESSAGE_BYTES_MAX: u64 = 64 << 10;
    const SHOWN: usize = 300;
    let header = response.header("x-error-message").map(str::to_owned);
    let body = |response: &mut Response| {
        let text = read_at_most(response, MESSAGE_BYTES_MAX).ok()?;
        let value: Value = serde_json::from_slice(&text).ok()?;
        value.get("error")?.as_str().map(str::to_owned)
    };
    let message = header.or_else(|| body(response))?;
    Some(message.trim().chars().take(SHOWN).collect()).filter(|message: &String| !message.is_empty())
}

fn gated_token(from: Option<String>) -> String {
    match from {
        Some(from) => format!("with the account of the token of {from}"),
        None => "and HF_TOKEN to be set to a token of the account that accepted them".to_owned(),
    }
}

fn unauthorized(client: &Client, repo: String, status: u16, from: Option<String>) -> HubError {
    match from {
        Some(from) => HubError::BadToken { repo, from, page: tokens_page(client) },
        None => HubError::NoToken { repo, status },
    }
}

fn no_repo(repo: String, status: u16, from: Option<String>, page: &str) -> HubError {
    match from {
        Some(from) => HubError::NoRepo { repo, from, page: page.to_owned() },
        None => HubError::NoToken { repo, status },
    }
}

fn no_file(repo: &str, revision: &str, file: &str, page: &str) -> HubError {
    HubError::NoFile {
        repo: repo.to_owned(),
        revision: revision.to_owned(),
        file: file.to_owned(),
        hint: format!("what it has is on {page}/tree/{revision}"),
    }
}

fn no_scope(
    client: &Client,
    request: &Request<'_>,
    status: u16,
    from: Option<String>,
    message: String,
) -> HubError {
    let (what, scope) = match request.about.writes {
        true => ("write to it", "write"),
        false => ("read it", "read"),
    };
    let page = tokens_page(client);
    HubError::NoScope {
        repo: request.about.repo.to_owned(),
        from: from.unwrap_or_else(|| "nobody: none is set".to_owned()),
        what,
        status,
        message,
        hint: format!("give it {scope} access to the contents of this repository on {page}, or use another"),
    }
}

fn tokens_page(client: &Client) -> String {
    client.settings.endpoint.below("/settings/tokens").to_string()
}

/// Whether a connection that broke so may hold the next time.
pub(crate) fn is_passing(error: &Broke) -> bool {
    match error {
        Broke::Io(error) => !matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::FileTooLarge),
        Broke::Timeout(_) | Broke::HostNotFound | Broke::ConnectionFailed | Broke::BodyStalled => true,
        Broke::Protocol(_) => true,
        _ => false,
    }
}

/// The error that a connection that breaks is.
pub(crate) fn unreachable(client: &Client, request: &Request<'_>, broken: &Broken, tries: u32) -> HubError {
    let url = match broken.url == request.url {
        true => format!("`{}`", request.url),
        false => format!("`{}`, redirected to `{}`", request.url, broken.url),
    };
    let what = broken.error.to_string();
    let proxy = client.proxy_for(&broken.url);
    let https = broken.url.scheme() == "https";
    match &broken.error {
        Broke::ConnectProxyFailed(_) | Broke::InvalidProxyUrl => {
            let proxy = proxy.map_or_else(|| "`?`".to_owned(), |proxy| format!("`{proxy}`"));
            HubError::Proxy { url, proxy, what }
        }
        Broke::Tls(_) | Broke::Rustls(_) | Broke::Pem(_) => HubError::Tls { url, what, hint: TLS },
        Broke::Io(error) if https && error.kind() == ErrorKind::InvalidData => {
            HubError::Tls { url, what: error.to_string(), hint: TLS }
        }
        Broke::RedirectFailed => HubError::Answer {
            url,
            expected: "a redirect to another place".to_owned(),
            found: "one in a circle, or to no URL".to_owned(),
        },
        error => {
            let what = match error {
                Broke::Timeout(_) => {
                    format!(
                        "no answer from `{}` in {} seconds",
                        broken.url.host_name(),
                        client.settings.silence.as_secs()
                    )
                }
                Broke::HostNotFound => format!("no host `{}`", broken.url.host_name()),
                Broke::Io(error) => error.to_string(),
                error => error.to_string(),
            };
            let hint = match proxy {
                Some(proxy) => {
                    format!("look after the network, and the proxy `{proxy}` that it goes through")
                }
                None => {
                    "look after the network, and HF_ENDPOINT and HTTPS_PROXY where they are set; a model \
                         that is in the cache needs none"
                        .to_owned()
                }
            };
            HubError::Unreachable { url, what, tries, hint }
        }
    }
}

const TLS: &str = "set SSL_CERT_FILE to a file with the certificates to trust, a company's for example";
