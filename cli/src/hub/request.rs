//! Requests to the Hub: with its token, held to a size and to a time, and tried again where it says so.

use std::io::Read as _;
use std::time::Duration;

use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::{Body, RequestBuilder};

const ENDPOINT: &str = "https://huggingface.co";
const CONNECT: Duration = Duration::from_secs(10);
/// For one request and its answer.
const WHOLE: Duration = Duration::from_secs(60);
const TRIES: u32 = 5;
/// No longer than this is waited, whatever the Hub asks for.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Why the Hub did not tell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    /// No answer.
    #[error("`{url}`: no answer after {tries} tries")]
    NoAnswer {
        /// What was asked for.
        url: String,
        /// How often.
        tries: u32,
        /// What came instead.
        source: ureq::Error,
    },
    /// An answer that says no.
    #[error("`{url}`: status {status}{said}{hint}")]
    Refused {
        /// What was asked for.
        url: String,
        /// The answer's status.
        status: u16,
        /// What the Hub says of it.
        said: String,
        /// What to do.
        hint: &'static str,
    },
    /// An answer that is not what it must be.
    #[error("`{url}`: expected {expected}, found {found}")]
    Unexpected {
        /// What was asked for.
        url: String,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
}

/// The Hub, or a server that speaks as it does.
pub(crate) struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// What bytes of a file were given.
pub(super) struct Given {
    /// From the file's start, as many as were asked for or the file has.
    pub(super) bytes: Vec<u8>,
    /// Bytes of the whole file.
    pub(super) file_bytes: u64,
}

impl Hub {
    /// The Hub that the environment names.
    pub(super) fn from_environment() -> Hub {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // A file's storage is another host's: the token is not for it.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(WHOLE))
            .user_agent(concat!("glyd/", env!("CARGO_PKG_VERSION")))
            .build();
        let token = set("HF_TOKEN").map(|token| token.trim().to_owned());
        Hub { agent: agent.into(), endpoint: endpoint.trim_end_matches('/').to_owned(), token }
    }

    fn request(&self, path: &str) -> RequestBuilder<ureq::typestate::WithoutBody> {
        let request = self.agent.get(format!("{}{path}", self.endpoint));
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    pub(super) fn unexpected(&self, path: &str, expected: &str, found: impl Into<String>) -> HubError {
        HubError::Unexpected { url: self.url(path), expected: expected.to_owned(), found: found.into() }
    }

    /// Asks, and again where that may help; `good` are the statuses that are an answer.
    fn ask(&self, path: &str, range: Option<&str>, good: &[u16]) -> Result<Response<Body>, HubError> {
        for tries in 1.. {
            let mut request = self.request(path);
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            let wait = Duration::from_secs(1 << (tries - 1));
            let wait = match request.call() {
                Ok(response) if good.contains(&response.status().as_u16()) => return Ok(response),
                Ok(response) if tries < TRIES && passing(response.status().as_u16()) => {
                    retry_after(&response).unwrap_or(wait)
                }
                Ok(response) => return Err(self.refused(path, &response)),
                Err(_) if tries < TRIES => wait,
                Err(source) => return Err(HubError::NoAnswer { url: self.url(path), tries, source }),
            };
            std::thread::sleep(wait.min(WAIT_MAX));
        }
        Err(self.unexpected(path, "an answer", "none"))
    }

    fn refused(&self, path: &str, response: &Response<Body>) -> HubError {
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let said = header("X-Error-Message").or(header("X-Error-Code"));
        let said = said.map(|said| format!(" ({})", said.chars().take(200).collect::<String>()));
        let hint = match status {
            401 | 403 => ": a gated or private model takes HF_TOKEN, or there is none of that name",
            404 => ": is the name right, and the revision?",
            _ => "",
        };
        HubError::Refused { url: self.url(path), status, said: said.unwrap_or_default(), hint }
    }

    /// A whole file or answer of at most `bytes_max`; `None` where the Hub has none.
    pub(super) fn get(&self, path: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, HubError> {
        let response = self.ask(path, None, &[200, 404])?;
        if response.status() == 404 {
            return Ok(None);
        }
        self.read(path, response.into_body(), bytes_max.saturating_add(1)).and_then(|bytes| {
            match bytes.len() as u64 > bytes_max {
                true => Err(self.unexpected(path, &format!("at most {bytes_max} bytes"), "more")),
                false => Ok(Some(bytes)),
            }
        })
    }

    /// As [`Hub::get`], of what must be there.
    pub(super) fn need(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, HubError> {
        let response = self.ask(path, None, &[200])?;
        let bytes = self.read(path, response.into_body(), bytes_max.saturating_add(1))?;
        match bytes.len() as u64 > bytes_max {
            true => Err(self.unexpected(path, &format!("at most {bytes_max} bytes"), "more")),
            false => Ok(bytes),
        }
    }

    fn read(&self, path: &str, body: Body, limit: u64) -> Result<Vec<u8>, HubError> {
        let mut bytes = Vec::new();
        // What is left of a longer body is not read: the connection is dropped with it.
        let read = body.into_reader().take(limit).read_to_end(&mut bytes);
        read.map_err(|source| HubError::NoAnswer { url: self.url(path), tries: 1, source: source.into() })?;
        Ok(bytes)
    }

    /// The bytes `from..to` of a file, by a ranged request; a server without ranges is read from the
    /// start, and no further than `to`.
    pub(super) fn range(&self, path: &str, from: u64, to: u64) -> Result<Given, HubError> {
        let range = format!("bytes={from}-{}", to.saturating_sub(1));
        let response = self.ask(path, Some(&range), &[206, 200, 416])?;
        match response.status().as_u16() {
            206 => {
                let told = response.headers().get("Content-Range").and_then(|value| value.to_str().ok());
                let file_bytes = told.and_then(|told| told.rsplit('/').next()?.parse().ok());
                let starts = told.is_some_and(|told| told.starts_with(&format!("bytes {from}-")));
                let told = told.unwrap_or("none").to_owned();
                let Some(file_bytes) = file_bytes.filter(|_| starts) else {
                    return Err(self.unexpected(
                        path,
                        &format!("the range {range} and the file's length"),
                        told,
                    ));
                };
                Ok(Given { bytes: self.read(path, response.into_body(), to - from)?, file_bytes })
            }
            // A file shorter than the range, to some servers.
            416 => self.whole(path, self.ask(path, None, &[200])?, from, to),
            _ => self.whole(path, response, from, to),
        }
    }

    fn whole(&self, path: &str, response: Response<Body>, from: u64, to: u64) -> Result<Given, HubError> {
        let length =
            response.headers().get("Content-Length").and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = self.read(path, response.into_body(), to)?;
        // Without its length a file is as long as what could be read of it, where that is less than asked.
        let short = ((bytes.len() as u64) < to).then_some(bytes.len() as u64);
        let file_bytes =
            length.or(short).ok_or_else(|| self.unexpected(path, "the file's length", "none"))?;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
        Ok(Given { bytes: bytes.get(from..).unwrap_or_default().to_vec(), file_bytes })
    }
}

/// Whether a status is of the kind that passes.
fn passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let after = header("Retry-After").and_then(|value| value.trim().parse().ok());
    // `"api";r=0;t=55`: the window ends in 55 seconds.
    let window =
        || header("RateLimit")?.split(';').find_map(|part| part.trim().strip_prefix("t=")?.parse().ok());
    after.or_else(|| window().map(|seconds: u64| seconds.saturating_add(1))).map(Duration::from_secs)
}
