//! Query strings.

use std::borrow::Cow;

/// The decoded parameters of a request, in order. Parameters without escapes are borrowed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    /// Parses a query string. Parts with invalid percent encoding are used literally.
    #[must_use]
    pub(crate) fn new(text: &'a str) -> Self {
        let pairs = text.split('&').filter(|part| !part.is_empty()).map(|part| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(key), decode(value))
        });
        Self(pairs.collect())
    }

    /// Returns the first value of a parameter.
    #[must_use]
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_ref())
    }

    /// Returns the first value of a parameter; `None` if it is absent or empty.
    #[must_use]
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// Returns all values of a parameter.
    pub(crate) fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_ref())
    }

    /// Parses a boolean as Kubernetes does: absent, `0` and `false` are false, and any other value is true.
    #[must_use]
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.tristate(name) == Some(true)
    }

    /// Like [`Query::flag`]; `None` if the parameter is absent.
    #[must_use]
    pub(crate) fn tristate(&self, name: &str) -> Option<bool> {
        self.get(name)
            .map(|value| !(value == "0" || value.eq_ignore_ascii_case("false")))
    }
}

fn decode(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|b| b == b'%' || b == b'+') {
        percent_decode(text, true).map_or(Cow::Borrowed(text), Cow::Owned)
    } else {
        Cow::Borrowed(text)
    }
}

/// Decodes percent encoding; `None` if it is invalid or not UTF-8. With `plus`, `+` means a space.
#[must_use]
pub(crate) fn percent_decode(text: &str, plus: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                out.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'+' if plus => out.push(b' '),
            other => out.push(other),
        }
    }
    String::from_utf8(out).ok()
}

/// Returns a parameter of a query, or `None` if it is absent or empty.
pub(crate) fn query_value(query: &str, name: &str) -> Option<String> {
    Query::new(query).text(name).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_decoded() {
        let query = Query::new("a=x%3Dy&b=1+2&a=z&flag&off=False&bad=%zz&&=");
        assert_eq!(query.get("a"), Some("x=y"));
        assert_eq!(query.get("b"), Some("1 2"));
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["x=y", "z"]);
        assert!(query.flag("flag"));
        assert!(!query.flag("off"));
        assert!(!query.flag("absent"));
        assert_eq!(query.get("bad"), Some("%zz"));
        assert_eq!(query.text("flag"), None);
    }

    #[test]
    fn broken_encodings_are_refused() {
        for text in ["%", "%4", "%g0", "%ff"] {
            assert_eq!(percent_decode(text, false), None, "{text}");
        }
    }
}
