//! Field selectors: `metadata.name=x,status.phase!=Running`, with `\` before `,`, `=` and `\`.

use std::fmt;
use std::str::FromStr;

use super::Error;

/// One comparison of a field selector.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldTerm {
    /// The field's path, such as `metadata.name`.
    pub field: String,
    /// The value to compare with, unescaped.
    pub value: String,
    /// `=` (or `==`) when true, `!=` when false.
    pub equal: bool,
}

/// A field selector: all its terms must hold. The empty selector matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

impl FieldSelector {
    /// Whether the selector has no terms.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The terms, in the order of the text.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// Returns the value that this field must have, if a term requires one.
    pub fn required(&self, field: &str) -> Option<&str> {
        let found = self
            .terms
            .iter()
            .find(|term| term.equal && term.field == field);
        found.map(|term| term.value.as_str())
    }

    /// Rejects fields that the kind does not support. Every kind supports `metadata.name`. `with_namespace` states
    /// whether it supports `metadata.namespace`, and `extra` names the other fields.
    ///
    /// # Errors
    /// Returns the first field that is not supported.
    pub fn check(&self, extra: &[&str], with_namespace: bool) -> Result<(), Error> {
        let known = |field: &str| match field {
            "metadata.name" => true,
            "metadata.namespace" => with_namespace,
            _ => extra.contains(&field),
        };
        match self.terms.iter().find(|term| !known(&term.field)) {
            None => Ok(()),
            Some(FieldTerm { field, .. }) if extra.is_empty() && with_namespace => {
                Err(Error(format!(
                    "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )))
            }
            Some(FieldTerm { field, .. }) => {
                Err(Error(format!("field label not supported: {field}")))
            }
        }
    }

    /// Whether an object matches every term. `value` returns the text of a field, empty if it is absent.
    pub fn matches<S: AsRef<str>>(&self, value: impl Fn(&str) -> S) -> bool {
        let holds = |term: &FieldTerm| (value(&term.field).as_ref() == term.value) == term.equal;
        self.terms.iter().all(holds)
    }
}

impl FromStr for FieldSelector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let terms = parts.map(|part| term(text, part));
        let mut terms = terms.collect::<Result<Vec<_>, _>>()?;
        // A term with an empty field and an empty value matches everything, with any operator.
        terms.retain(|term| !(term.field.is_empty() && term.value.is_empty()));
        Ok(Self { terms })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, term) in self.terms.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let operator = if term.equal { "=" } else { "!=" };
            write!(f, "{comma}{}{operator}", term.field)?;
            for c in term.value.chars() {
                let escape = if matches!(c, '\\' | ',' | '=') {
                    "\\"
                } else {
                    ""
                };
                write!(f, "{escape}{c}")?;
            }
        }
        Ok(())
    }
}

/// Splits at commas that are not escaped by a backslash.
fn split_terms(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn term(whole: &str, part: &str) -> Result<FieldTerm, Error> {
    let not_understood = || {
        Error(format!(
            "invalid selector: '{whole}'; can't understand '{part}'"
        ))
    };
    // The first operator splits the term, and "!=" starts one character earlier than its "=".
    let at = part.find('=').ok_or_else(not_understood)?;
    let (field, equal) = match part[..at].strip_suffix('!') {
        Some(field) => (field, false),
        None => (&part[..at], true),
    };
    let value = &part[at + 1..];
    let value = if equal {
        value.strip_prefix('=').unwrap_or(value)
    } else {
        value
    };
    Ok(FieldTerm {
        field: field.to_owned(),
        value: unescape(value)?,
        equal,
    })
}

fn unescape(text: &str) -> Result<String, Error> {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => value.push(c),
                other => {
                    let sequence: String = ['\\'].into_iter().chain(other).collect();
                    return Err(Error(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    )));
                }
            },
            ',' | '=' => {
                return Err(Error(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(c)
                )));
            }
            c => value.push(c),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> FieldSelector {
        text.parse().unwrap()
    }

    fn error(text: &str) -> String {
        text.parse::<FieldSelector>().unwrap_err().to_string()
    }

    #[test]
    fn field_selector_compares_fields() {
        let value = |field: &str| if field == "metadata.name" { "b" } else { "" };
        assert!(parse("metadata.name=b").matches(value));
        assert!(parse("metadata.name==b").matches(value));
        assert!(!parse("metadata.name!=b").matches(value));
        assert!(parse("spec.nodeName=").matches(value));
        assert!(parse("").matches(value) && parse(",").is_empty());
        assert_eq!(
            parse("a!=b,metadata.name=x").required("metadata.name"),
            Some("x")
        );
        assert_eq!(parse("metadata.name!=x").required("metadata.name"), None);
    }

    #[test]
    fn field_selector_escapes_are_resolved() {
        let selector = parse(r"a=x\,y\=z\\,b!=c");
        assert_eq!(selector.required("a"), Some(r"x,y=z\"));
        assert_eq!(parse(&selector.to_string()), selector);
        assert_eq!(
            error(r"a=\x"),
            r"invalid field selector: invalid escape sequence: \x"
        );
        assert_eq!(
            error(r"a=\"),
            r"invalid field selector: invalid escape sequence: \"
        );
        assert_eq!(
            error("a=b=c"),
            "invalid field selector: unescaped character in value: 61"
        );
        assert_eq!(
            error("abc"),
            "invalid selector: 'abc'; can't understand 'abc'"
        );
    }

    #[test]
    fn unknown_fields_give_the_recorded_errors() {
        let selector = parse("spec.holderIdentity=a");
        assert_eq!(
            selector.check(&[], true).unwrap_err().to_string(),
            "\"spec.holderIdentity\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
        assert_eq!(
            selector.check(&["type"], true).unwrap_err().to_string(),
            "field label not supported: spec.holderIdentity"
        );
        assert!(
            parse("metadata.namespace=a,type=b")
                .check(&["type"], true)
                .is_ok()
        );
        assert!(
            parse("metadata.namespace=a")
                .check(&["type"], false)
                .is_err()
        );
    }
}
