//! Fencing tokens: increasing numbers with which a resource can reject requests of a former leader.
//!
//! The token of a term is the resourceVersion of the write that won the term. Unlike the number of transitions, it
//! still increases after the lock object was deleted, and it differs when the same identity wins twice. Since
//! Kubernetes 1.35, resourceVersions are specified to be ordered, as decimal numbers of any length.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A resourceVersion exactly as the API server wrote it. Only equality is guaranteed to be meaningful.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceVersion(Arc<str>);

impl ResourceVersion {
    /// Creates a version from its text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the order of two versions if both are decimal numbers. Returns `None` otherwise, because then the server
    /// guarantees no order.
    pub fn order(&self, other: &Self) -> Option<Ordering> {
        (is_decimal(&self.0) && is_decimal(&other.0)).then(|| compare(&self.0, &other.0))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of a term. A later term of the same election has a strictly greater token (S2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FencingToken(Arc<str>);

/// Error: the text is not a decimal number without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a fencing token: expected a decimal number without leading zeros")]
pub struct NotAToken(String);

impl FencingToken {
    /// Returns the decimal text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the decimal number padded with zeros to twenty digits, for stores that compare strings.
    pub fn sortable(&self) -> String {
        format!("{:0>20}", self.0)
    }
}

impl FromStr for FencingToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        if is_decimal(text) {
            Ok(Self(text.into()))
        } else {
            Err(NotAToken(text.into()))
        }
    }
}

impl From<u64> for FencingToken {
    fn from(value: u64) -> Self {
        Self(value.to_string().into())
    }
}

impl Ord for FencingToken {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.0, &other.0)
    }
}

impl PartialOrd for FencingToken {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_decimal(text: &str) -> bool {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits && (text == "0" || !text.starts_with('0'))
}

/// Compares two decimal numbers without leading zeros: the longer one is the greater one.
fn compare(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimals_of_any_length_are_ordered() {
        let token = |text: &str| text.parse::<FencingToken>().unwrap();
        assert!(token("9") < token("10"));
        assert!(token("18446744073709551615") < token("18446744073709551616"));
        assert!(token("99999999999999999999999") < token("100000000000000000000000"));
        assert_eq!(token("42").as_str(), "42");
        assert_eq!(token("42").sortable(), "00000000000000000042");
    }

    #[test]
    fn texts_that_are_not_decimal_numbers_are_rejected() {
        for text in ["", "007", "-1", "1.5", "0x10", "１"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text:?}");
        }
        assert_eq!(
            ResourceVersion::new("a").order(&ResourceVersion::new("1")),
            None
        );
    }

    proptest! {
        #[test]
        fn tokens_are_ordered_as_numbers(a: u64, b: u64) {
            prop_assert_eq!(FencingToken::from(a).cmp(&FencingToken::from(b)), a.cmp(&b));
        }
    }
}
