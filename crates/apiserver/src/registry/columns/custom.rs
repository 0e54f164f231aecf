//! Columns that a definition adds to the Table form.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{definition, scalar, since};
use crate::crd::Path;
use crate::registry::rules::text;

/// One column of a custom kind.
#[derive(Debug)]
pub(crate) struct CustomColumn {
    /// Heading.
    pub(crate) name: String,
    kind: String,
    format: String,
    description: String,
    priority: i32,
    path: Path,
}

impl CustomColumn {
    /// Parses an entry of `additionalPrinterColumns`.
    pub(crate) fn parse(column: &Value) -> Option<Self> {
        let path = text(column, "/jsonPath");
        Some(Self {
            name: text(column, "/name").to_owned(),
            kind: text(column, "/type").to_owned(),
            format: text(column, "/format").to_owned(),
            description: match text(column, "/description") {
                "" => format!("Custom resource definition column (in JSONPath format): {path}"),
                own => own.to_owned(),
            },
            priority: column
                .get("priority")
                .and_then(Value::as_i64)
                .and_then(|priority| i32::try_from(priority).ok())
                .unwrap_or(0),
            path: Path::parse(path)?,
        })
    }

    /// Returns the header of the column.
    pub(crate) fn definition(&self) -> Value {
        let texts = [&self.name, &self.kind, &self.format, &self.description];
        definition(texts.map(String::as_str), self.priority)
    }

    /// Returns the cell of an object at a given time.
    pub(crate) fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = self.path.find(object);
        let Some(value) = found.first().filter(|value| !value.is_null()) else {
            return Value::Null;
        };
        match self.kind.as_str() {
            "date" => json!(since(value.as_str(), now)),
            "string" => {
                let texts: Vec<String> = found.iter().map(|value| scalar(Some(value))).collect();
                json!(texts.join(" "))
            }
            "integer" => value.as_i64().map_or(Value::Null, Value::from),
            "number" => value.as_f64().map_or(Value::Null, |_| (*value).clone()),
            "boolean" => value.as_bool().map_or(Value::Null, Value::from),
            _ => Value::Null,
        }
    }
}
