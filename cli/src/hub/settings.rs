//! What the environment says of the Hub: the variables that the ecosystem's other programs read.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::url::Url;
use super::{HubError, Result};

/// The Hub, where `HF_ENDPOINT` names no other.
const ENDPOINT: &str = "https://huggingface.co";
/// How long a server may be silent.
const SILENCE: Duration = Duration::from_secs(30);

/// A token: it has no text but where a request is made.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    secret: String,
    /// Where it was found: a variable, or a file.
    pub(crate) from: String,
}

impl Token {
    /// The value of an `Authorization` header.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.secret)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(from {})", self.from)
    }
}

/// What requests and the cache go by.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Where the Hub is, without a slash at the end.
    pub(crate) endpoint: Url,
    pub(crate) token: Option<Token>,
    /// The folder with a folder for each repository.
    pub(crate) cache: PathBuf,
    /// The variable that forbids requests, where one does.
    pub(crate) offline: Option<&'static str>,
    pub(crate) silence: Duration,
    /// A file of certificates that are trusted, and none but these.
    pub(crate) certificates: Option<PathBuf>,
}

/// Variables by name: the process's own, or a test's.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

impl Settings {
    /// The settings that this process's environment has.
    ///
    /// # Errors
    /// Where the endpoint is no URL.
    pub(crate) fn from_env() -> Result<Settings> {
        Settings::read(&|name| env::var_os(name))
    }

    fn read(variables: Variables<'_>) -> Result<Settings> {
        let text = |name: &str| text(variables, name);
        let named = text("HF_ENDPOINT");
        let endpoint = named.as_deref().unwrap_or(ENDPOINT).trim_end_matches('/');
        let wrong = || HubError::Usage(format!("HF_ENDPOINT: `{endpoint}` is no URL of http or https"));
        let endpoint = Url::parse(endpoint).ok_or_else(wrong)?;
        let home = home(variables);
        let path = |name: &str| variables(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.map_or_else(|| home.join("hub"), |cache| expand(&cache, variables));
        let seconds = text("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse::<u64>().ok());
        let certificates =
            ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"].into_iter().find_map(path);
        Ok(Settings {
            endpoint,
            token: token(variables, &home),
            // A relative one would make links that lead nowhere from another folder.
            cache: std::path::absolute(&cache).unwrap_or(cache),
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
                .into_iter()
                .find(|name| is_true(variables, name)),
            silence: seconds.filter(|&seconds| seconds > 0).map_or(SILENCE, Duration::from_secs),
            certificates,
        })
    }
}

/// A variable's text without spaces around it; nothing where that is empty.
fn text(variables: Variables<'_>, name: &str) -> Option<String> {
    let text = variables(name)?.to_string_lossy().trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn is_true(variables: Variables<'_>, name: &str) -> bool {
    let text = text(variables, name).unwrap_or_default().to_ascii_uppercase();
    ["1", "ON", "YES", "TRUE"].contains(&text.as_str())
}

/// The folder of Hugging Face's programs: `HF_HOME`.
fn home(variables: Variables<'_>) -> PathBuf {
    let path = |name: &str| variables(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(home) = path("HF_HOME") {
        return expand(&home, variables);
    }
    let cache = path("XDG_CACHE_HOME").unwrap_or_else(|| user(variables).join(".cache"));
    expand(&cache, variables).join("huggingface")
}

fn user(variables: Variables<'_>) -> PathBuf {
    variables("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from)
}

/// A path that begins with `~/` in the user's folder.
fn expand(path: &Path, variables: Variables<'_>) -> PathBuf {
    path.strip_prefix("~").map_or_else(|_| path.to_owned(), |rest| user(variables).join(rest))
}

/// The first token that is not empty: a variable's before a file's.
fn token(variables: Variables<'_>, home: &Path) -> Option<Token> {
    let clean = |text: &str, from: String| {
        let secret: String = text.chars().filter(|char| !char.is_whitespace()).collect();
        // What no header can hold is no token.
        let plain = secret.bytes().all(|byte| byte.is_ascii_graphic());
        (!secret.is_empty() && plain).then_some(Token { secret, from })
    };
    if is_true(variables, "HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return None;
    }
    let variable = |name: &&str| clean(&text(variables, name)?, (*name).to_owned());
    if let Some(token) = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].iter().find_map(variable) {
        return Some(token);
    }
    let named = variables("HF_TOKEN_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
    let named = named.map(|path| expand(&path, variables));
    let old = user(variables).join(".huggingface/token");
    let files = [named.unwrap_or_else(|| home.join("token")), old];
    files
        .iter()
        .find_map(|path| clean(&fs::read_to_string(path).ok()?, format!("the file `{}`", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings that these variables make, with `HOME` in a folder of the test's own.
    fn settings(dir: &Path, variables: &[(&str, &str)]) -> Settings {
        let find = |name: &str| match name {
            "HOME" => Some(dir.as_os_str().to_owned()),
            name => {
                variables.iter().find(|(given, _)| *given == name).map(|(_, value)| OsString::from(value))
            }
        };
        Settings::read(&find).unwrap()
    }

    #[test]
    fn tokens_are_found_where_the_ecosystem_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("hf");
        fs::create_dir(&home).unwrap();
        fs::write(home.join("token"), "hf_file\n").unwrap();
        fs::write(dir.path().join("other"), "  hf_other \n").unwrap();
        let (home, other) = (home.display().to_string(), dir.path().join("other").display().to_string());
        let home = ("HF_HOME", home.as_str());
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
        let cases: [Case<'_>; 8] = [
            (&[("HF_TOKEN", "hf_a"), home], Some("hf_a")),
            (&[home], Some("hf_file")),
            (&[("HF_TOKEN_PATH", other.as_str()), home], Some("hf_other")),
            (&[("HF_TOKEN", ""), home], Some("hf_file")),
            (&[("HF_TOKEN", " hf_a\n"), home], Some("hf_a")),
            (&[("HUGGING_FACE_HUB_TOKEN", "hf_old"), home], Some("hf_old")),
            (&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"), ("HF_TOKEN", "hf_a"), home], None),
            (&[], None),
        ];
        for (variables, expected) in cases {
            let token = settings(dir.path(), variables).token;
            assert_eq!(token.as_ref().map(|token| token.secret.as_str()), expected, "{variables:?}");
            assert!(!format!("{token:?}").contains("hf_"), "a token has no text");
        }
    }

    #[test]
    fn endpoint_and_cache_are_as_they_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let cache = |variables: &[(&str, &str)]| settings(dir.path(), variables).cache;
        assert_eq!(cache(&[]), dir.path().join(".cache/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("HF_HOME", "~/h")]), dir.path().join("h/hub"));
        assert_eq!(cache(&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HOME", "/h")]), Path::new("/old"));
        assert_eq!(cache(&[("HF_HUB_CACHE", "/new"), ("HUGGINGFACE_HUB_CACHE", "/old")]), Path::new("/new"));
        assert!(cache(&[("HF_HUB_CACHE", "relative")]).is_absolute());
        for endpoint in ["https://mirror.example", "https://mirror.example/"] {
            let endpoint = settings(dir.path(), &[("HF_ENDPOINT", endpoint)]).endpoint;
            assert_eq!(endpoint.to_string(), "https://mirror.example");
        }
        assert_eq!(settings(dir.path(), &[]).endpoint.to_string(), ENDPOINT);
        assert!(Settings::read(&|name| (name == "HF_ENDPOINT").then(|| "mirror".into())).is_err());
    }

    #[test]
    fn offline_is_what_python_takes_for_true() {
        let dir = tempfile::tempdir().unwrap();
        for value in ["1", "on", "YES", "True"] {
            assert_eq!(settings(dir.path(), &[("HF_HUB_OFFLINE", value)]).offline, Some("HF_HUB_OFFLINE"));
        }
        for value in ["", "0", "no", "off"] {
            assert_eq!(settings(dir.path(), &[("HF_HUB_OFFLINE", value)]).offline, None, "{value}");
        }
    }
}
