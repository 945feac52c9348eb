//! Requests to the Hub: redirects followed without giving the token away, and what may pass tried again.

use std::io::Read;
use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, Request as HttpRequest};
use ureq::{Agent, SendBody};

use super::proxy::{Proxies, trust};
use super::refusal::{self, About};
use super::retry;
use super::settings::Settings;
use super::url::Url;
use super::{HubError, Result, Stop};

/// Redirects that are followed for one request.
const REDIRECTS_MAX: usize = 10;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(15);
/// Bytes of the longest JSON answer that is read.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// Opens what is sent.
pub(crate) type Opens<'a> = dyn Fn() -> std::io::Result<Box<dyn Read + 'a>> + 'a;

/// What is sent.
pub(crate) enum Payload<'a> {
    Nothing,
    Bytes(&'static str, &'a [u8]),
    /// So many bytes of a reader, which is made anew for each try.
    Stream(u64, &'a Opens<'a>),
}

/// A request, and what it is about.
pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    pub(crate) url: Url,
    /// The value of a `Range` header.
    pub(crate) range: Option<String>,
    pub(crate) payload: Payload<'a>,
    pub(crate) about: About<'a>,
}

impl<'a> Request<'a> {
    pub(crate) fn get(url: Url, about: About<'a>) -> Self {
        Request { method: "GET", url, range: None, payload: Payload::Nothing, about }
    }

    pub(crate) fn post(url: Url, kind: &'static str, body: &'a [u8], about: About<'a>) -> Self {
        Request { method: "POST", url, range: None, payload: Payload::Bytes(kind, body), about }
    }
}

/// An answer whose body is yet to be read.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: ureq::Body,
    /// Where it came from: each place a redirect led to, with its status.
    pub(crate) trail: Vec<(u16, Url)>,
    pub(crate) url: Url,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// A try that had no answer.
pub(crate) struct Broken {
    pub(crate) url: Url,
    pub(crate) error: ureq::Error,
}

/// Makes requests.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    proxies: Proxies,
    pub(crate) settings: Settings,
    pub(crate) stop: Stop,
}

impl Client {
    /// # Errors
    /// Where a proxy or the certificates that the environment names are unusable.
    pub(crate) fn new(settings: Settings, stop: Stop) -> Result<Client> {
        let silence = Some(settings.silence);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("glyd/", env!("CARGO_PKG_VERSION")))
            // Sizes are those of the files themselves.
            .accept_encoding("identity")
            .tls_config(trust(settings.certificates.as_deref())?)
            .proxy(None)
            .timeout_connect(Some(CONNECT.min(settings.silence)))
            .timeout_recv_response(silence)
            .timeout_per_read(silence)
            .timeout_per_write(silence);
        Ok(Client { agent: config.build().new_agent(), proxies: Proxies::from_env()?, settings, stop })
    }

    /// Sends a request until it is answered well.
    ///
    /// # Errors
    /// Where the Hub refuses, or cannot be reached.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Response> {
        let mut tries = 0;
        self.try_again(request, &mut tries)
    }

    /// Sends a request and reads its answer; where that breaks off, again.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub(crate) fn read<T>(
        &self,
        request: &Request<'_>,
        mut read: impl FnMut(&mut Response) -> std::io::Result<T>,
    ) -> Result<(T, Response)> {
        let mut tries = 0;
        loop {
            let mut response = self.try_again(request, &mut tries)?;
            match read(&mut response) {
                Ok(read) => return Ok((read, response)),
                Err(error) => {
                    let broken = Broken { url: response.url, error: error.into() };
                    self.wait(request, &broken, tries)?;
                }
            }
        }
    }

    /// Sends a request and reads the JSON it is answered with, and that answer's headers.
    ///
    /// # Errors
    /// As [`Client::send`], and where the answer is no such JSON.
    pub(crate) fn json<T: DeserializeOwned>(
        &self,
        request: &Request<'_>,
        expected: &str,
    ) -> Result<(T, Response)> {
        let (text, response) = self.read(request, |response| read_at_most(response, JSON_BYTES_MAX))?;
        let value = serde_json::from_slice(&text).map_err(|error| HubError::Answer {
            url: self.shown(&request.url, &response.trail),
            expected: expected.to_owned(),
            found: error.to_string(),
        })?;
        Ok((value, response))
    }

    fn try_again(&self, request: &Request<'_>, tries: &mut u32) -> Result<Response> {
        loop {
            self.stop.check()?;
            *tries += 1;
            let mut response = match self.once(request) {
                Ok(response) if response.status < 400 => return Ok(response),
                Ok(response) => response,
                Err(broken) => {
                    self.wait(request, &broken, *tries)?;
                    continue;
                }
            };
            let wait = retry::asked(&response.headers).unwrap_or_else(|| retry::pause(*tries));
            let again =
                retry::may_pass(response.status) && *tries < retry::TRIES_MAX && retry::bearable(wait);
            if !again {
                return Err(refusal::of(self, request, &mut response, *tries, wait));
            }
            if !retry::sleep(wait, &self.stop) {
                return Err(HubError::Interrupted);
            }
        }
    }

    /// Waits before the next try, where there is to be one.
    ///
    /// # Errors
    /// Where there is not.
    pub(crate) fn wait(&self, request: &Request<'_>, broken: &Broken, tries: u32) -> Result<()> {
        if tries >= retry::TRIES_MAX || !refusal::is_passing(&broken.error) {
            return Err(refusal::unreachable(self, request, broken, tries));
        }
        if retry::sleep(retry::pause(tries), &self.stop) { Ok(()) } else { Err(HubError::Interrupted) }
    }

    /// One try, with the redirects it takes.
    fn once(&self, request: &Request<'_>) -> std::result::Result<Response, Box<Broken>> {
        let mut url = request.url.clone();
        let mut trail = Vec::new();
        loop {
            let response = self.exchange(request, &url);
            let response = response.map_err(|error| Box::new(Broken { url: url.clone(), error }))?;
            let status = response.status().as_u16();
            let location = response.headers().get("location").and_then(|location| location.to_str().ok());
            let next = location.filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308));
            let Some(location) = next else {
                let (parts, body) = response.into_parts();
                return Ok(Response { status, headers: parts.headers, body, trail, url });
            };
            let next = url.join(location).filter(|_| trail.len() < REDIRECTS_MAX);
            let astray = || Box::new(Broken { url: url.clone(), error: ureq::Error::RedirectFailed });
            url = next.ok_or_else(astray)?;
            trail.push((status, url.clone()));
        }
    }

    fn exchange(
        &self,
        request: &Request<'_>,
        url: &Url,
    ) -> std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let mut builder = HttpRequest::builder().method(request.method).uri(url.secret_text());
        // To the Hub alone: a storage that it redirects to has keys of its own in its URLs.
        if let Some(token) = self.token_for(url) {
            builder = builder.header("Authorization", token.header());
        }
        if let Some(range) = &request.range {
            builder = builder.header("Range", range);
        }
        match &request.payload {
            Payload::Nothing => self.run(url, builder, SendBody::none()),
            Payload::Bytes(kind, bytes) => {
                let builder = builder.header("Content-Type", *kind).header("Content-Length", bytes.len());
                self.run(url, builder, SendBody::from_reader(&mut &**bytes))
            }
            Payload::Stream(bytes, open) => {
                let builder = builder.header("Content-Length", *bytes);
                self.run(url, builder, SendBody::from_reader(&mut open()?))
            }
        }
    }

    fn run(
        &self,
        url: &Url,
        builder: ureq::http::request::Builder,
        body: SendBody<'_>,
    ) -> std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let proxy = self.proxies.find(url).map(|(proxy, _)| proxy.clone());
        let request = self.agent.configure_request(builder.body(body)?).proxy(proxy).build();
        self.agent.run(request)
    }

    /// The token, where a URL is the Hub's own.
    pub(crate) fn token_for(&self, url: &Url) -> Option<&super::settings::Token> {
        self.settings.token.as_ref().filter(|_| url.same_origin(&self.settings.endpoint))
    }

    /// The proxy that a URL is asked through, by its name.
    pub(crate) fn proxy_for(&self, url: &Url) -> Option<&str> {
        self.proxies.find(url).map(|(_, name)| name.as_str())
    }

    /// A URL and where it was redirected to, as messages have it.
    pub(crate) fn shown(&self, url: &Url, trail: &[(u16, Url)]) -> String {
        let hops = trail.iter().map(|(status, to)| format!(", redirected with status {status} to `{to}`"));
        format!("`{url}`{}", hops.collect::<String>())
    }
}

/// The body of an answer, which has at most so many bytes.
pub(crate) fn read_at_most(response: &mut Response, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut reader = response.body.with_config().limit(u64::MAX).reader().take(bytes_max.saturating_add(1));
    reader.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let message = format!("an answer of more than {bytes_max} bytes");
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}
