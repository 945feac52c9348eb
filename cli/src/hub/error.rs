//! What can go wrong with the Hub, each told apart and with what to do about it.

use std::io;
use std::path::PathBuf;

/// A result whose error is [`HubError`].
pub(crate) type Result<T> = std::result::Result<T, HubError>;

/// Why something of the Hub was not had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    /// The command line or the environment makes no sense.
    #[error("{0}")]
    Usage(String),
    #[error(
        "`{repo}`: the Hub asks who you are (status {status}): the repository is private, gated, or not there; \
         check its name, or set HF_TOKEN to a token that may read it"
    )]
    NoToken { repo: String, status: u16 },
    #[error("`{repo}`: publishing takes a token: set HF_TOKEN to one that may write, of those on {page}")]
    NoWriteToken { repo: String, page: String },
    #[error(
        "`{repo}`: the Hub does not accept the token of {from} (status 401); it is mistyped, expired or \
         revoked: make another on {page}"
    )]
    BadToken { repo: String, from: String, page: String },
    #[error(
        "`{repo}` is gated: its conditions are to be accepted on {page}, {token}; then start again{message}"
    )]
    Gated { repo: String, page: String, token: String, message: String },
    #[error("`{repo}`: the token of {from} may not {what} (status {status}){message}; {hint}")]
    NoScope { repo: String, from: String, what: &'static str, status: u16, message: String, hint: String },
    #[error(
        "`{repo}` is not on the Hub, or hidden from the token of {from}: check the name (owner/name) on {page}"
    )]
    NoRepo { repo: String, from: String, page: String },
    #[error("`{repo}` has no revision `{revision}`: name a branch, a tag or a commit that {page} lists")]
    NoRevision { repo: String, revision: String, page: String },
    #[error("`{repo}` at `{revision}` has no file `{file}`; {hint}")]
    NoFile { repo: String, revision: String, file: String, hint: String },
    #[error(
        "`{repo}` is disabled by the Hub (status {status}){message}: ask its owner, or use another model"
    )]
    Disabled { repo: String, status: u16, message: String },
    #[error(
        "{url}: too many requests (status 429) after {tries} tries{message}; start again in {seconds} seconds, \
         or set HF_TOKEN: the Hub allows an account more"
    )]
    RateLimited { url: String, tries: u32, seconds: u64, message: String },
    /// Requests are forbidden, and the cache does not have it.
    #[error("`{repo}`: {found}, and {why} forbids to ask the Hub; {hint}")]
    Offline { repo: String, found: String, why: String, hint: String },
    #[error("{url}: {what} after {tries} tries; {hint}")]
    Unreachable { url: String, what: String, tries: u32, hint: String },
    #[error("{url}: no trusted connection: {what}; {hint}")]
    Tls { url: String, what: String, hint: &'static str },
    #[error(
        "{url}: the proxy {proxy} does not let it through: {what}; see HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    )]
    Proxy { url: String, proxy: String, what: String },
    #[error("{url}: status {status} after {tries} tries{message}; {hint}")]
    Status { url: String, status: u16, tries: u32, message: String, hint: &'static str },
    /// An answer that is not what the Hub answers.
    #[error("{url}: expected {expected}, found {found}; check HF_ENDPOINT, or start again later")]
    Answer { url: String, expected: String, found: String },
    #[error("`{file}`: expected {expected}, found {found}; {hint}")]
    Damaged { file: String, expected: String, found: String, hint: String },
    #[error("cannot {action} `{}`", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("`{}`: {needed} bytes are to come, and {free} are free on its disk; free some space, or set HF_HUB_CACHE to another disk", path.display())]
    Space { path: PathBuf, needed: u64, free: u64 },
    /// The files are not what a checkpoint's are.
    #[error(transparent)]
    Checkpoint(#[from] glyd_format::Error),
    #[error("interrupted: the next run goes on with what is there")]
    Interrupted,
}

impl HubError {
    /// A word for what kind of failure it is: docs/json.md lists them.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            HubError::Usage(_) => "usage",
            HubError::NoToken { .. }
            | HubError::NoWriteToken { .. }
            | HubError::BadToken { .. }
            | HubError::NoScope { .. } => "auth",
            HubError::Gated { .. } => "gated",
            HubError::NoRepo { .. } | HubError::NoRevision { .. } | HubError::NoFile { .. } => "not-found",
            HubError::Disabled { .. } => "disabled",
            HubError::RateLimited { .. } => "rate-limit",
            HubError::Offline { .. } => "offline",
            HubError::Unreachable { .. }
            | HubError::Tls { .. }
            | HubError::Proxy { .. }
            | HubError::Status { .. }
            | HubError::Answer { .. } => "network",
            HubError::Damaged { .. } | HubError::Checkpoint(_) => "invalid",
            HubError::Io { .. } | HubError::Space { .. } => "io",
            HubError::Interrupted => "interrupted",
        }
    }
}

/// What a file operation's error is.
pub(crate) fn io_error(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> HubError {
    let path = path.to_owned();
    move |source| HubError::Io { action, path, source }
}
