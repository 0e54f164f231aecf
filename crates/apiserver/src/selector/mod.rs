//! Label and field selectors: their text forms and what they match.
//!
//! Both parsers accept and refuse what the real server does and word their complaints alike; the
//! answer to a bad selector is 400 with [`Error`]'s text as message.

mod field;
mod label;
mod lexer;

pub use field::{FieldSelector, FieldTerm};
pub use label::{LabelSelector, Operator, Requirement};

/// A selector that cannot be understood; the text is the message of a 400 answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);
