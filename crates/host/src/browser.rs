//! Rejects requests that a web page causes a browser to send to a listener of this host.
//!
//! A browser can reach listeners on loopback, and so can every page that it shows:
//!
//! - A page whose domain name resolves to this host (DNS rebinding) has the same origin as the listener and reads its
//!   responses. Its requests contain that name in the header `Host`. An IP address cannot be rebound.
//! - A page of another origin cannot read responses, but can send requests that change something. Browsers mark them with the
//!   headers `Sec-Fetch-Site` and `Origin`.
//!
//! Programs like kubectl and curl send neither of these two headers. Their header `Host` contains the name of the server
//! that they were given.

use std::fmt;
use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Method, Uri};

/// The names of a listener.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// In lower case. A name that starts with `*.` stands for all names with one more label.
    names: Vec<String>,
    /// The flag that adds a name.
    flag: &'static str,
}

/// A rejected request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The host is not a name of the listener.
    Host {
        /// The name, as sent.
        name: String,
        /// The flag that adds a name.
        flag: &'static str,
    },
    /// A page of another origin requests a change.
    Origin(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { name, flag } => write!(
                f,
                "{name:?} is not a name of this server; use its IP address or localhost, or add the name with {flag}"
            ),
            Self::Origin(origin) => write!(
                f,
                "a web page of another origin ({origin}) cannot change anything here; send the request without a browser, \
                 or with a bearer token"
            ),
        }
    }
}

impl std::error::Error for Refused {}

impl Hosts {
    /// Accepts IP addresses, `localhost`, names below it, and these names. `flag` is the flag that adds a name.
    pub fn new(names: impl IntoIterator<Item = String>, flag: &'static str) -> Self {
        let names = names.into_iter().map(|name| name.to_ascii_lowercase());
        Self {
            names: names.collect(),
            flag,
        }
    }

    /// Checks the host and the origin of a request. A request with an `Authorization` header may have any origin, because a
    /// browser sends that header to another origin only if the listener allows it, and no listener of Tenure does.
    ///
    /// # Errors
    /// Returns the reason to answer the request with 403.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
        let named = uri
            .authority()
            .map(|authority| authority.as_str().to_owned());
        let sent = headers.get_all(HOST).iter();
        let sent = sent.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let hosts: Vec<String> = named.into_iter().chain(sent).collect();
        if let Some(name) = hosts.iter().find(|host| !self.accepts(host)) {
            let (name, flag) = (name.chars().take(256).collect(), self.flag);
            return Err(Refused::Host { name, flag });
        }
        let reads = [Method::GET, Method::HEAD, Method::OPTIONS];
        if reads.contains(method) || headers.contains_key(AUTHORIZATION) {
            return Ok(());
        }
        check_origin(headers, &hosts)
    }

    fn accepts(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let name = authority.host().to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        let address = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        if address.unwrap_or(name).parse::<IpAddr>().is_ok() {
            return true;
        }
        let above = name.split_once('.').map(|(_, above)| above);
        name == "localhost"
            || name.ends_with(".localhost")
            || self.names.iter().any(|own| match own.strip_prefix("*.") {
                Some(own) => above == Some(own),
                None => own == name,
            })
    }
}

/// Rejects a change that a browser requests for a page of another origin.
fn check_origin(headers: &HeaderMap, hosts: &[String]) -> Result<(), Refused> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let origin = headers.get(ORIGIN).map(text);
    let refused = || Refused::Origin(shown(origin.as_deref()));
    if let Some(site) = headers.get("sec-fetch-site") {
        let own = ["same-origin", "none"].iter().any(|own| site == own);
        return if own { Ok(()) } else { Err(refused()) };
    }
    let Some(origin) = &origin else {
        return Ok(());
    };
    let own = origin.parse::<Uri>().ok().is_some_and(|origin| {
        let default = match origin.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            _ => return false,
        };
        let place = |authority: &Authority| {
            let port = authority.port_u16().unwrap_or(default);
            (authority.host().to_ascii_lowercase(), port)
        };
        let Some(origin) = origin.authority().map(place) else {
            return false;
        };
        let mut hosts = hosts.iter().filter_map(|host| host.parse().ok());
        hosts.any(|host: Authority| place(&host) == origin)
    });
    if own { Ok(()) } else { Err(refused()) }
}

fn shown(origin: Option<&str>) -> String {
    let origin = origin.unwrap_or("unknown").chars();
    origin.filter(|c| !c.is_control()).take(256).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn check(method: &str, sent: &[(&'static str, &str)]) -> Result<(), Refused> {
        let hosts = Hosts::new(
            ["Kubernetes.default".to_owned(), "*.example.com".to_owned()],
            "--tls-san",
        );
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let method = method.parse().unwrap();
        hosts.check(&method, &Uri::from_static("/version"), &headers)
    }

    #[test]
    fn host_is_an_address_or_a_known_name() {
        for host in [
            "127.0.0.1:6443",
            "10.1.2.3",
            "[::1]:80",
            "[2001:db8::1]",
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "web.localhost",
            "kubernetes.default:443",
            "a.example.com",
        ] {
            assert_eq!(check("GET", &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evillocalhost",
            "kubernetes",
            "example.com",
            "a.b.example.com",
            "",
            "a b",
        ] {
            let refused = check("GET", &[("host", host)]).unwrap_err().to_string();
            assert!(refused.contains("--tls-san"), "{refused}");
        }
        assert_eq!(check("GET", &[]), Ok(()), "HTTP/1.0");
        let both = [("host", "localhost"), ("host", "evil.example")];
        assert!(check("GET", &both).is_err());
        let hosts = Hosts::new([], "--tls-san");
        let absolute = Uri::from_static("http://evil.example/");
        let none = HeaderMap::new();
        assert!(hosts.check(&Method::GET, &absolute, &none).is_err());
    }

    #[test]
    fn change_is_accepted_from_the_same_origin_or_without_browser_headers() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:8080");
        let post = |more: &[(&'static str, &str)]| check("POST", &[&[HOST], more].concat());
        assert_eq!(post(&[]), Ok(()), "curl");
        assert_eq!(post(&[("origin", "http://127.0.0.1:8080")]), Ok(()));
        for own in ["same-origin", "none"] {
            assert_eq!(post(&[("sec-fetch-site", own)]), Ok(()));
        }
        for origin in [
            "http://evil.example",
            "http://127.0.0.1:8081",
            "http://127.0.0.1",
            "null",
            "file://",
        ] {
            let refused = post(&[("origin", origin)]).unwrap_err();
            assert_eq!(refused, Refused::Origin(origin.to_owned()));
            assert_eq!(check("GET", &[HOST, ("origin", origin)]), Ok(()));
            let known = [("origin", origin), ("authorization", "Bearer x")];
            assert_eq!(
                post(&known),
                Ok(()),
                "browsers do not send the header on their own"
            );
        }
        for site in ["cross-site", "same-site", "?"] {
            let own = ("origin", "http://127.0.0.1:8080");
            assert!(post(&[("sec-fetch-site", site), own]).is_err());
        }
        let standard = [("host", "localhost"), ("origin", "http://localhost")];
        assert_eq!(check("DELETE", &standard), Ok(()));
    }
}
