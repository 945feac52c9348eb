//! URLs of http and https: as much of them as following a redirect takes.

use std::fmt;

/// An absolute URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    scheme: &'static str,
    /// A user and a password before the host, where there are any.
    user: Option<String>,
    /// Host and port, as they were written.
    host: String,
    /// Path and query; empty, or from the slash on.
    path: String,
}

impl Url {
    /// Reads an absolute URL.
    pub(crate) fn parse(text: &str) -> Option<Url> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = ["http", "https"].into_iter().find(|known| known.eq_ignore_ascii_case(scheme))?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, authority),
        };
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        let url = Url { scheme, user, host: host.to_owned(), path: path.to_owned() };
        (!host.is_empty() && plain(text)).then_some(url)
    }

    /// This URL with a path, and a query, below it.
    pub(crate) fn below(&self, path: &str) -> Url {
        Url { path: format!("{}{path}", self.path), ..self.clone() }
    }

    /// Where a `Location` leads from here.
    pub(crate) fn join(&self, location: &str) -> Option<Url> {
        if location.contains("://") && !location.starts_with(['/', '?']) {
            return Url::parse(location);
        }
        let origin = match &self.user {
            Some(user) => format!("{}://{user}@{}", self.scheme, self.host),
            None => format!("{}://{}", self.scheme, self.host),
        };
        if let Some(rest) = location.strip_prefix("//") {
            return Url::parse(&format!("{}://{rest}", self.scheme));
        }
        let path = self.path.split('?').next().unwrap_or_default();
        match location.as_bytes().first()? {
            b'/' => Url::parse(&format!("{origin}{location}")),
            b'?' => Url::parse(&format!("{origin}{path}{location}")),
            _ => {
                let folder = &path[..path.rfind('/').map_or(0, |slash| slash + 1)];
                Url::parse(&format!("{origin}{folder}{location}"))
            }
        }
    }

    /// Whether both are of one scheme, host and port.
    pub(crate) fn same_origin(&self, other: &Url) -> bool {
        self.origin() == other.origin()
    }

    fn origin(&self) -> (&'static str, String) {
        let default = if self.scheme == "https" { ":443" } else { ":80" };
        let host = self.host.to_ascii_lowercase();
        (self.scheme, host.strip_suffix(default).unwrap_or(&host).to_owned())
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The host's name, without its port.
    pub(crate) fn host_name(&self) -> &str {
        let name = match self.host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &self.host,
        };
        name.trim_start_matches('[').trim_end_matches(']')
    }

    /// The query, with its question mark.
    pub(crate) fn query(&self) -> Option<&str> {
        self.path.find('?').map(|at| &self.path[at..])
    }

    /// The path, without a query.
    pub(crate) fn path(&self) -> &str {
        self.path.split('?').next().unwrap_or_default()
    }

    /// The whole URL, with what must not be shown: for a request alone.
    pub(crate) fn secret_text(&self) -> String {
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        format!("{}://{user}{}{}", self.scheme, self.host, self.path)
    }
}

/// Without user, password and query: those of a storage's URLs are keys.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.host, self.path())
    }
}

/// A path's parts percent-encoded, its slashes kept.
pub(crate) fn encode_path(path: &str) -> String {
    path.split('/').map(encode).collect::<Vec<_>>().join("/")
}

/// A text percent-encoded, slashes too.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn what_must_not_be_shown_is_not() {
        let url = url("https://me:secret@Host.example:8443/a/b?X-Amz-Signature=key#part");
        assert_eq!(url.to_string(), "https://Host.example:8443/a/b");
        assert_eq!(url.secret_text(), "https://me:secret@Host.example:8443/a/b?X-Amz-Signature=key");
        assert_eq!(url.host_name(), "Host.example");
    }

    #[test]
    fn locations_lead_where_a_browser_goes() {
        let base = url("http://hub.example/old/name/resolve/main/a.json?x=1");
        for (location, expected) in [
            ("/new/name/a.json?x=1", "http://hub.example/new/name/a.json?x=1"),
            ("https://cdn.example/key?s=t", "https://cdn.example/key?s=t"),
            ("//cdn.example/key", "http://cdn.example/key"),
            ("b.json", "http://hub.example/old/name/resolve/main/b.json"),
            ("?y=2", "http://hub.example/old/name/resolve/main/a.json?y=2"),
        ] {
            assert_eq!(base.join(location).unwrap().secret_text(), expected, "{location}");
        }
        for location in ["", "ftp://x/y", "http://", "http://a b/"] {
            assert!(base.join(location).is_none(), "{location}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let base = url("https://hub.example/a");
        for same in ["https://HUB.example/b", "https://hub.example:443/"] {
            assert!(base.same_origin(&url(same)), "{same}");
        }
        for other in ["http://hub.example/a", "https://hub.example:444/a", "https://cdn.hub.example/a"] {
            assert!(!base.same_origin(&url(other)), "{other}");
        }
    }

    #[test]
    fn revisions_and_paths_are_encoded() {
        assert_eq!(encode("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(encode_path("sub dir/ü?.json"), "sub%20dir/%C3%BC%3F.json");
    }
}
