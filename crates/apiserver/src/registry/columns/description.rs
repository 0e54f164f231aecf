//! Descriptions of columns. Most columns show a field and have the description of that field.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::schema::Descriptions;

/// The source of the description of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Description {
    /// The text itself.
    Text(&'static str),
    /// The description of a field: the message of the table of fields, and the name of the field in JSON.
    Field(&'static str, &'static str),
}

/// Description of the column `Name`, which all kinds have.
pub(crate) const NAME_DESCRIPTION: Description = Description::Field("meta/v1.ObjectMeta", "name");

impl Description {
    /// Returns the text for clients.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Text(text) => text,
            Self::Field(message, field) => field_texts()
                .get(&(message, field))
                .map_or("", String::as_str),
        }
    }
}

/// Returns the descriptions of all fields that columns show. They take about 30 kB and are cached after the first
/// request for a Table.
fn field_texts() -> &'static HashMap<(&'static str, &'static str), String> {
    static TEXTS: OnceLock<HashMap<(&'static str, &'static str), String>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let all = Descriptions::read();
        let columns = crate::registry::all().iter().flat_map(|kind| kind.columns);
        let used = columns.map(|column| column.description);
        let texts = used.chain([NAME_DESCRIPTION]).filter_map(|description| {
            let Description::Field(message, field) = description else {
                return None;
            };
            Some(((message, field), all.of_field(message, field)?))
        });
        texts.collect()
    })
}
