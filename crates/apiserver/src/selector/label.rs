//! Label selectors: `a=b,c!=d,e in (x,y),!f,g notin (z),h>1`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::Error;
use super::lexer::{self, Kind, Token};
use crate::names;

/// The relation of a label to the values of a [`Requirement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operator {
    /// The label has one of the values; `=` and `==` are this with one value.
    In,
    /// The label is absent or has another value; `!=` is this with one value.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label is a greater whole number.
    GreaterThan,
    /// The label is a smaller whole number.
    LessThan,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// The relation between the label and the values.
    pub operator: Operator,
    /// The values, sorted and without duplicates.
    pub values: Vec<String>,
}

impl Requirement {
    /// Whether the labels match this requirement.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key).map(String::as_str);
        let listed = |value: &str| self.values.iter().any(|v| v == value);
        let number = |text: &str| text.parse::<i64>().ok();
        let wanted = || self.values.first().and_then(|text| number(text));
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => value
                .and_then(number)
                .zip(wanted())
                .is_some_and(|(is, than)| is > than),
            Operator::LessThan => value
                .and_then(number)
                .zip(wanted())
                .is_some_and(|(is, than)| is < than),
        }
    }
}

/// A label selector: all its requirements must hold. The empty selector matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// Whether the selector has no requirements.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether the labels match every requirement.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|r| r.matches(labels))
    }
}

impl FromStr for LabelSelector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parser = Parser { rest: text };
        let mut requirements = parser.selector()?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements })
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, r) in self.requirements.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let (key, values) = (&r.key, r.values.join(","));
            match r.operator {
                Operator::In if r.values.len() == 1 => write!(f, "{comma}{key}={values}")?,
                Operator::In => write!(f, "{comma}{key} in ({values})")?,
                Operator::NotIn if r.values.len() == 1 => write!(f, "{comma}{key}!={values}")?,
                Operator::NotIn => write!(f, "{comma}{key} notin ({values})")?,
                Operator::Exists => write!(f, "{comma}{key}")?,
                Operator::DoesNotExist => write!(f, "{comma}!{key}")?,
                Operator::GreaterThan => write!(f, "{comma}{key}>{values}")?,
                Operator::LessThan => write!(f, "{comma}{key}<{values}")?,
            }
        }
        Ok(())
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn consume(&mut self) -> Token<'a> {
        lexer::next(&mut self.rest)
    }

    fn peek(&self) -> Token<'a> {
        lexer::next(&mut &*self.rest)
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, Error> {
        let mut requirements = Vec::new();
        loop {
            let token = self.peek();
            match token.kind {
                Kind::Identifier | Kind::In | Kind::NotIn | Kind::Not => {}
                Kind::End => return Ok(requirements),
                _ => {
                    return Err(found(
                        token,
                        ", expected: !, identifier, or 'end of string'",
                    ));
                }
            }
            let requirement = self.requirement();
            requirements
                .push(requirement.map_err(|e| Error(format!("unable to parse requirement: {e}")))?);
            let token = self.consume();
            match token.kind {
                Kind::End => return Ok(requirements),
                Kind::Comma => {
                    let next = self.peek();
                    if !is_word(next.kind) && next.kind != Kind::Not {
                        return Err(found(next, ", expected: identifier after ','"));
                    }
                }
                _ => return Err(found(token, ", expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, Error> {
        let mut token = self.consume();
        let negated = token.kind == Kind::Not;
        if negated {
            token = self.consume();
        }
        if !is_word(token.kind) {
            return Err(found(token, ", expected: identifier"));
        }
        let key = token.text;
        let complaints = names::qualified_name(key);
        if !complaints.is_empty() {
            return Err(invalid("<nil>", key, &complaints));
        }
        if negated {
            return new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().kind, Kind::End | Kind::Comma) {
            return new(key, Operator::Exists, Vec::new());
        }
        let token = self.consume();
        let operator = match token.kind {
            Kind::In | Kind::Equals | Kind::DoubleEquals => Operator::In,
            Kind::NotIn | Kind::NotEquals => Operator::NotIn,
            Kind::Greater => Operator::GreaterThan,
            Kind::Less => Operator::LessThan,
            _ => return Err(found(token, ", expected: in, notin, =, ==, !=, gt, lt")),
        };
        let values = match token.kind {
            Kind::In | Kind::NotIn => self.values()?,
            _ => self.exact_value()?,
        };
        new(key, operator, values)
    }

    fn exact_value(&mut self) -> Result<Vec<String>, Error> {
        if matches!(self.peek().kind, Kind::End | Kind::Comma) {
            return Ok(vec![String::new()]);
        }
        let token = self.consume();
        if is_word(token.kind) {
            return Ok(vec![token.text.to_owned()]);
        }
        Err(found(token, ", expected: identifier"))
    }

    /// Parses `(x,,y)`. A missing value is the empty text, so `()` contains one empty value.
    fn values(&mut self) -> Result<Vec<String>, Error> {
        let token = self.consume();
        if token.kind != Kind::Open {
            return Err(found(token, " expected: '('"));
        }
        let mut values = Vec::new();
        let mut after_value = false;
        loop {
            let token = self.consume();
            match token.kind {
                kind if is_word(kind) && !after_value => {
                    values.push(token.text.to_owned());
                    after_value = true;
                }
                Kind::Comma => {
                    if !after_value {
                        values.push(String::new());
                    }
                    after_value = false;
                }
                Kind::Close => {
                    if !after_value {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                _ if after_value => return Err(found(token, ", expected: ',' or ')'")),
                _ => return Err(found(token, ", expected: ',', ')' or identifier")),
            }
        }
    }
}

/// Whether a token is a word. `in` and `notin` are words where no operator is expected.
fn is_word(kind: Kind) -> bool {
    matches!(kind, Kind::Identifier | Kind::In | Kind::NotIn)
}

fn new(key: &str, operator: Operator, mut values: Vec<String>) -> Result<Requirement, Error> {
    values.sort();
    values.dedup();
    let numeric = matches!(operator, Operator::GreaterThan | Operator::LessThan);
    let mut errors = Vec::new();
    for (at, value) in values.iter().enumerate() {
        if numeric && value.parse::<i64>().is_err() {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer".to_owned();
            errors.push(invalid(&format!("values[{at}]"), value, &[why]));
        }
    }
    for (at, value) in values.iter().enumerate() {
        let complaints = names::label_value(value);
        if !complaints.is_empty() {
            errors.push(invalid(&format!("values[{at}][{key}]"), value, &complaints));
        }
    }
    if errors.len() > 1 {
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        return Err(Error(format!("[{}]", texts.join(", "))));
    }
    if let Some(error) = errors.pop() {
        return Err(error);
    }
    Ok(Requirement {
        key: key.to_owned(),
        operator,
        values,
    })
}

fn found(token: Token<'_>, expected: &str) -> Error {
    Error(format!("found '{}'{expected}", token.text))
}

fn invalid(path: &str, value: &str, complaints: &[String]) -> Error {
    Error(format!(
        "{path}: Invalid value: {value:?}: {}",
        complaints.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        selector.parse::<LabelSelector>().unwrap().matches(&labels)
    }

    fn error(selector: &str) -> String {
        selector.parse::<LabelSelector>().unwrap_err().to_string()
    }

    #[test]
    fn recorded_label_selectors_select_the_recorded_objects() {
        let objects: [&[(&str, &str)]; 3] = [
            &[("app", "x"), ("tier", "1")],
            &[("app", "x"), ("tier", "2")],
            &[("app", "y"), ("tier", "1")],
        ];
        for (selector, expected) in [
            ("app=x", [true, true, false]),
            ("app!=x", [false, false, true]),
            ("app in (x,y),tier=1", [true, false, true]),
            ("app notin (y)", [true, true, false]),
            ("tier", [true, true, true]),
            ("!tier", [false, false, false]),
            ("app==x,tier in (2)", [false, true, false]),
            ("tier>1", [false, true, false]),
            ("tier<2", [true, false, true]),
            ("", [true, true, true]),
        ] {
            assert_eq!(
                objects.map(|labels| matches(selector, labels)),
                expected,
                "{selector}"
            );
        }
    }

    #[test]
    fn label_selector_handles_absent_labels_and_empty_values() {
        assert!(matches("a!=b", &[]) && matches("a notin (b)", &[]) && !matches("a", &[]));
        assert!(matches("a=", &[("a", "")]) && matches("a in ()", &[("a", "")]));
        assert!(matches("a in (,x)", &[("a", "")]) && matches("a in (x,)", &[("a", "x")]));
        assert!(!matches("a>1", &[("a", "x")]) && !matches("a>1", &[]));
        assert!(matches("in in (in,notin)", &[("in", "notin")]));
        assert!(matches("x.io/a = b , c", &[("x.io/a", "b"), ("c", "")]));
    }

    #[test]
    fn the_text_form_parses_to_the_same() {
        for text in [
            "a=b,c!=d,e in (x,y),!f,g notin (u,z),h>1,i<2,j",
            "",
            "a in (,b)",
        ] {
            let selector: LabelSelector = text.parse().unwrap();
            assert_eq!(
                selector.to_string().parse::<LabelSelector>().unwrap(),
                selector,
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_label_selectors_give_the_recorded_errors() {
        assert_eq!(error("a,"), "found '', expected: identifier after ','");
        assert_eq!(
            error(",a"),
            "found ',', expected: !, identifier, or 'end of string'"
        );
        assert_eq!(
            error("a=b=c"),
            "found '=', expected: ',' or 'end of string'"
        );
        assert_eq!(
            error("a in b"),
            "unable to parse requirement: found 'b' expected: '('"
        );
        assert_eq!(
            error("a in (b"),
            "unable to parse requirement: found '', expected: ',' or ')'"
        );
        assert_eq!(
            error("a b"),
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"
        );
        assert_eq!(
            error("a>x"),
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer"
        );
        assert!(
            error("-a").starts_with(
                "unable to parse requirement: <nil>: Invalid value: \"-a\": name part"
            )
        );
        assert!(error("a=-").starts_with(
            "unable to parse requirement: values[0][a]: Invalid value: \"-\": a valid label"
        ));
    }
}
