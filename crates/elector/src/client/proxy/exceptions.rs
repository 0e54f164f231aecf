//! `NO_PROXY`: the servers to which connections are direct.

use std::net::IpAddr;

/// A parsed `NO_PROXY`.
#[derive(Debug, Default)]
pub(super) struct Exceptions {
    everything: bool,
    entries: Vec<Entry>,
}

#[derive(Debug)]
enum Entry {
    /// `10.0.0.0/8`
    Network { address: IpAddr, bits: u32 },
    /// `10.0.0.1`, `10.0.0.1:6443`, `[::1]:6443`
    Address { address: IpAddr, port: Option<u16> },
    /// `.example.com` and `*.example.com` cover subdomains; `example.com` also covers itself.
    Domain {
        /// With a leading dot.
        suffix: String,
        itself: bool,
        port: Option<u16>,
    },
}

impl Exceptions {
    /// Parses the list. Invalid entries are ignored, as in Go.
    pub(super) fn parse(text: &str) -> Self {
        let mut parsed = Self::default();
        for entry in text.split(',').map(|entry| entry.trim().to_lowercase()) {
            if entry == "*" {
                parsed.everything = true;
            }
            parsed.entries.extend(Entry::parse(&entry));
        }
        parsed
    }

    /// Returns whether connections to this server are direct.
    pub(super) fn cover(&self, host: &str, port: u16) -> bool {
        let host = unbracketed(host).to_lowercase();
        let address = host.parse::<IpAddr>().ok().map(|a| a.to_canonical());
        let loopback = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        let covers = |entry: &Entry| entry.covers(&host, address, port);
        loopback || self.everything || self.entries.iter().any(covers)
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        if let Some((address, bits)) = text.split_once('/') {
            let address = address.parse::<IpAddr>().ok()?.to_canonical();
            let bits = bits.parse().ok().filter(|bits| *bits <= width(address))?;
            return Some(Self::Network { address, bits });
        }
        let (host, port) = split_port(text)?;
        if let Ok(address) = host.parse::<IpAddr>() {
            let address = address.to_canonical();
            return Some(Self::Address { address, port });
        }
        let host = host
            .strip_prefix('*')
            .filter(|rest| rest.starts_with('.'))
            .unwrap_or(host);
        let itself = !host.starts_with('.');
        let name = host.trim_start_matches('.');
        (!name.is_empty()).then(|| Self::Domain {
            suffix: format!(".{name}"),
            itself,
            port,
        })
    }

    fn covers(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        let same_port = |of: &Option<u16>| of.is_none_or(|of| of == port);
        match self {
            Self::Network { address: of, bits } => {
                address.is_some_and(|address| prefix(address, *bits) == prefix(*of, *bits))
            }
            Self::Address { address: of, port } => address == Some(*of) && same_port(port),
            Self::Domain {
                suffix,
                itself,
                port,
            } => {
                let covered = host.ends_with(suffix) || (*itself && host == &suffix[1..]);
                covered && same_port(port)
            }
        }
    }
}

/// Splits `host:port`. An IPv6 address contains colons, so brackets must separate it from its port.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
        _ => return Some((unbracketed(text), None)),
    };
    if port.is_empty() {
        return Some((unbracketed(host), None));
    }
    Some((unbracketed(host), Some(port.parse().ok()?)))
}

fn unbracketed(host: &str) -> &str {
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inside.unwrap_or(host)
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns the first bits of an address, and its family.
fn prefix(address: IpAddr, bits: u32) -> (bool, u128) {
    let number = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    let dropped = width(address).saturating_sub(bits);
    (address.is_ipv4(), number.checked_shr(dropped).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases from the table of Go's `golang.org/x/net/http/httpproxy`, and the forms that users of kubectl write.
    #[test]
    fn no_proxy_entries_cover_the_same_servers_as_in_go() {
        for (entry, host, port, covered) in [
            ("", "example.com", 443, false),
            (",, ,", "example.com", 443, false),
            ("*", "example.com", 443, true),
            ("a.com, *", "example.com", 443, true),
            ("example.com", "example.com", 443, true),
            ("EXAMPLE.com ", "Example.COM", 443, true),
            ("example.com", "www.example.com", 443, true),
            ("example.com", "notexample.com", 443, false),
            (".example.com", "example.com", 443, false),
            (".example.com", "www.example.com", 443, true),
            ("*.example.com", "www.example.com", 443, true),
            ("*.example.com", "example.com", 443, false),
            ("*example.com", "www.example.com", 443, false),
            ("example.com:6443", "example.com", 6443, true),
            ("example.com:6443", "example.com", 443, false),
            ("example.com:", "example.com", 443, true),
            ("example.com:x", "example.com", 443, false),
            (":443", "example.com", 443, false),
            ("10.0.0.0/8", "10.1.2.3", 443, true),
            ("10.0.0.0/8", "11.1.2.3", 443, false),
            ("10.0.0.0/33", "10.1.2.3", 443, false),
            ("0.0.0.0/0", "10.1.2.3", 443, true),
            ("0.0.0.0/0", "[fd00::1]", 443, false),
            ("10.0.0.1", "10.0.0.1", 443, true),
            ("10.0.0.1:6443", "10.0.0.1", 6443, true),
            ("10.0.0.1:6443", "10.0.0.1", 443, false),
            ("fd00::/8", "[fd12::1]", 443, true),
            ("fd00::/8", "[fe12::1]", 443, false),
            ("::/0", "[fe12::1]", 443, true),
            ("fd00::1", "[fd00::1]", 443, true),
            ("[fd00::1]:6443", "[fd00::1]", 6443, true),
            ("[fd00::1]:6443", "[fd00::1]", 443, false),
            ("10.0.0.0/8", "example.com", 443, false),
            ("svc,cluster.local", "kubernetes.default.svc", 443, true),
        ] {
            let said = Exceptions::parse(entry).cover(host, port);
            assert_eq!(said, covered, "{entry:?} and {host}:{port}");
        }
    }
}
