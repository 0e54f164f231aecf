//! IP addresses and address ranges in fields of objects, with the errors of the real server.

use std::net::{IpAddr, Ipv6Addr};

use serde_json::json;

use crate::status::Cause;

/// A range of addresses such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    address: IpAddr,
    prefix: u32,
}

impl Cidr {
    /// Parses a range. Leading zeros are rejected.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let padded = prefix.len() > 1 && prefix.starts_with('0');
        let prefix = prefix.parse().ok().filter(|_| digits && !padded)?;
        let range = Self { address, prefix };
        (prefix <= range.width()).then_some(range)
    }

    /// Returns the number of bits of an address.
    fn width(self) -> u32 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Returns the bits of the address that the prefix covers.
    fn covered(self, address: IpAddr) -> u128 {
        let bits = match address {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        bits.checked_shr(self.width() - self.prefix).unwrap_or(0)
    }

    /// Whether no bit beyond the prefix is set.
    fn is_masked(self) -> bool {
        let shift = self.width() - self.prefix;
        let bits = match self.address {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        self.covered(self.address).checked_shl(shift).unwrap_or(0) == bits
    }

    /// Whether the other range is a part of this one, and smaller.
    pub(super) fn strictly_contains(self, other: Self) -> bool {
        self.address.is_ipv4() == other.address.is_ipv4()
            && self.prefix < other.prefix
            && self.covered(self.address) == self.covered(other.address)
    }
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if Ipv6Addr::to_ipv4_mapped(&v6).is_some())
}

/// Checks an address range.
pub(super) fn check_cidr(text: &str, field: &str, causes: &mut Vec<Cause>) -> Option<Cidr> {
    let why = match Cidr::parse(text) {
        None => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        Some(range) if is_mapped(range.address) => "must not have an IPv4-mapped IPv6 address",
        Some(range) if !range.is_masked() => "must not have bits set beyond the prefix length",
        range => return range,
    };
    causes.push(Cause::invalid(field, &json!(text), why));
    Cidr::parse(text)
}

/// Checks an address.
pub(super) fn check_ip(text: &str, field: &str, causes: &mut Vec<Cause>) {
    let why = match text.parse::<IpAddr>() {
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        Ok(address) if is_mapped(address) => "must not be an IPv4-mapped IPv6 address",
        Ok(_) => return,
    };
    causes.push(Cause::invalid(field, &json!(text), why));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_contains_only_smaller_ranges_of_its_family() {
        let range = |text: &str| Cidr::parse(text).expect("a range");
        assert!(range("10.0.0.0/8").strictly_contains(range("10.1.0.0/16")));
        assert!(range("0.0.0.0/0").strictly_contains(range("10.1.0.0/16")));
        assert!(range("::/0").strictly_contains(range("fd00::/8")));
        assert!(!range("10.0.0.0/8").strictly_contains(range("10.0.0.0/8")));
        assert!(!range("10.0.0.0/8").strictly_contains(range("11.0.0.0/16")));
        assert!(!range("0.0.0.0/0").strictly_contains(range("fd00::/8")));
    }

    #[test]
    fn malformed_ranges_are_rejected() {
        let broken = [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/08",
            "x/8",
            "10.0.0.1/8",
            "::ffff:1.2.3.4/128",
        ];
        for text in broken {
            let mut causes = Vec::new();
            check_cidr(text, "f", &mut causes);
            assert_eq!(causes.len(), 1, "{text}");
        }
        let mut causes = Vec::new();
        for text in ["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::1/128"] {
            check_cidr(text, "f", &mut causes);
        }
        assert_eq!(causes, []);
    }
}
