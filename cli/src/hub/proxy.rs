//! Which proxy a request goes through, and which certificates are trusted.

use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ureq::Proxy;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::error::io_error;
use super::url::Url;
use super::{HubError, Result};

/// The proxies that the environment names.
#[derive(Debug, Default)]
pub(crate) struct Proxies {
    http: Option<(Proxy, String)>,
    https: Option<(Proxy, String)>,
    /// Hosts that are asked directly.
    direct: Vec<String>,
}

impl Proxies {
    /// Those of `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, in small letters too.
    ///
    /// # Errors
    /// Where one is no URL.
    pub(crate) fn from_env() -> Result<Proxies> {
        let variable = |name: &str| {
            let small = env::var(name.to_ascii_lowercase()).ok().filter(|value| !value.is_empty());
            small.or_else(|| env::var(name).ok()).filter(|value| !value.trim().is_empty())
        };
        let proxy = |name: &str| {
            let named = variable(name).or_else(|| variable("ALL_PROXY"));
            named.map(|text| read(name, text.trim())).transpose()
        };
        let direct = variable("NO_PROXY").unwrap_or_default();
        let direct = direct.split(',').map(|host| host.trim().to_ascii_lowercase());
        Ok(Proxies {
            http: proxy("HTTP_PROXY")?,
            https: proxy("HTTPS_PROXY")?,
            direct: direct.filter(|host| !host.is_empty()).collect(),
        })
    }

    /// The proxy for a URL, and its name without a password.
    pub(crate) fn find(&self, url: &Url) -> Option<&(Proxy, String)> {
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.is_direct(url.host_name()))
    }

    fn is_direct(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.direct.iter().any(|direct| {
            // A port is not looked at: other programs differ over it.
            let direct = match direct.rsplit_once(':') {
                Some((name, port)) if !name.contains(':') && port.parse::<u16>().is_ok() => name,
                _ => direct,
            };
            let domain = direct.trim_start_matches('*').trim_start_matches('.');
            let below = || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
            direct == "*" || host == domain || !domain.is_empty() && below() || in_network(&host, direct)
        })
    }
}

/// Whether a host is an address of a network, as `10.0.0.0/8` names one.
fn in_network(host: &str, network: &str) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let parsed = || {
        let (network, length) = network.split_once('/')?;
        let ((host, width), (network, of)) = (bits(host.parse().ok()?), bits(network.parse().ok()?));
        let length = length.parse::<u32>().ok().filter(|&length| length <= width)?;
        let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
        Some(width == of && host & mask == network & mask)
    };
    parsed().unwrap_or(false)
}

fn read(name: &str, text: &str) -> Result<(Proxy, String)> {
    let shown = Url::parse(text)
        .map_or_else(|| text.rsplit('@').next().unwrap_or_default().to_owned(), |url| url.to_string());
    let proxy = Proxy::new(text);
    let proxy = proxy.map_err(|error| HubError::Usage(format!("{name}: `{shown}` is no proxy: {error}")))?;
    Ok((proxy, shown))
}

/// Trust in the certificates of a file and in no others, or in the usual ones.
///
/// # Errors
/// Where the file cannot be read, or holds none.
pub(crate) fn trust(certificates: Option<&Path>) -> Result<TlsConfig> {
    let Some(path) = certificates else {
        return Ok(TlsConfig::builder().root_certs(RootCerts::WebPki).build());
    };
    let pem = fs::read(path).map_err(io_error("read the certificates of", path))?;
    let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        let path = path.display();
        return Err(HubError::Usage(format!(
            "`{path}` (SSL_CERT_FILE or REQUESTS_CA_BUNDLE) holds no certificate in PEM"
        )));
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::new_with_certs(&certificates)).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_asked_directly() {
        let direct = |list: &[&str], host: &str| {
            Proxies { direct: list.iter().map(|&host| host.to_owned()).collect(), ..Proxies::default() }
                .is_direct(host)
        };
        for (list, host) in [
            ("localhost", "localhost"),
            ("Hub.example".to_ascii_lowercase().as_str(), "HUB.example"),
            (".example", "hub.example"),
            ("example", "hub.example"),
            ("*.example", "hub.example"),
            ("*", "anything"),
            ("127.0.0.1:8080", "127.0.0.1"),
            ("10.0.0.0/8", "10.1.2.3"),
            ("::1", "::1"),
        ] {
            assert!(direct(&[list], host), "{list} {host}");
        }
        for (list, host) in [("example", "badexample"), ("10.0.0.0/8", "11.1.2.3"), (".", "hub"), ("", "hub")]
        {
            assert!(!direct(&[list], host), "{list} {host}");
        }
    }
}
