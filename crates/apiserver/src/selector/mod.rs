//! Label and field selectors: parsing and matching.
//!
//! Both parsers accept and reject the same texts as the real server, with the same error texts. The response to an
//! invalid selector is 400 with [`Error`]'s text as message.

mod field;
mod label;
mod lexer;

pub use field::{FieldSelector, FieldTerm};
pub use label::{LabelSelector, Operator, Requirement};

/// An invalid selector. The text is the message of the 400 response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);
