//! Writes objects in the form that the client requested.
//!
//! In the common case, the complete object in the stored version, only `kind` and `apiVersion` are inserted into the
//! stored bytes.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::accept::Form;
use super::pieces::Pieces;
use crate::registry::columns::{CustomColumn, NAME_DESCRIPTION};
use crate::registry::{Column, Conversion, CustomVersion, Target};
use crate::request::Query;
use crate::status::Failure;

/// The form of the objects of one kind for one client.
#[derive(Clone)]
pub(super) struct View {
    kind: String,
    /// `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1",`
    prefix: Bytes,
    api_version: String,
    conversion: Option<Conversion>,
    /// Set for custom kinds, whose list items also contain `kind` and `apiVersion`.
    custom: Option<Arc<CustomVersion>>,
    columns: &'static [Column],
    form: Form,
    include: Include,
    /// Whether absent members get the defaults of the schema.
    fills: bool,
}

/// The part of an object that its Table row contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Include {
    None,
    Metadata,
    Object,
}

/// `metadata` of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct ListMeta {
    pub(super) revision: u64,
    pub(super) continue_token: Option<String>,
    pub(super) remaining: Option<usize>,
}

impl View {
    pub(super) fn new(target: &Target<'_>, form: Form, query: &Query<'_>) -> Result<Self, Failure> {
        let include = match query.get("includeObject") {
            None | Some("" | "Metadata") => Include::Metadata,
            Some("None") => Include::None,
            Some("Object") => Include::Object,
            Some(other) => {
                return Err(Failure::bad_request(format!(
                    "unrecognized includeObject value: {other:?}"
                )));
            }
        };
        let api_version = target.kind.api_version(target.version);
        let kind = target.kind.kind().to_owned();
        let prefix = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",");
        let custom = target.version.custom.clone();
        let has_own_columns = custom.as_ref().is_some_and(|own| !own.columns.is_empty());
        // Stored objects lack defaults if the definition got them after the objects were stored.
        let fills = custom.as_ref().is_some_and(|own| own.schema.has_defaults);
        Ok(Self {
            kind,
            prefix: Bytes::from(prefix),
            api_version,
            conversion: target.version.conversion,
            custom,
            columns: if has_own_columns {
                &[]
            } else {
                target.kind.columns
            },
            form,
            include,
            fills,
        })
    }

    /// Returns the same form without the defaults that stored objects lack.
    pub(super) fn without_defaults(&self) -> Self {
        Self {
            fills: false,
            ..self.clone()
        }
    }

    /// Returns whether this form requires stored objects to be parsed.
    pub(super) fn parses(&self) -> bool {
        self.conversion.is_some() || self.fills || !matches!(self.form, Form::Full)
    }

    /// Parses a stored object and fills in the defaults of its schema. Also returns their number of bytes.
    fn filled(&self, stored: &[u8]) -> Result<(Value, usize), Failure> {
        let mut value = parse(stored)?;
        let custom = self.custom.as_ref().filter(|_| self.fills);
        // `fill` stops at an object that is too large. The rest of its defaults is missing then.
        let added = custom.map_or(0, |custom| custom.schema.fill(&mut value).bytes);
        Ok((value, added))
    }

    /// Returns the response with one object.
    pub(super) fn object(&self, stored: &Bytes) -> Result<Pieces, Failure> {
        match self.form {
            Form::Full | Form::PartialList | Form::Discovery(_) => {
                let mut out = Pieces::with_capacity(self.prefix.len() + stored.len().min(1_024));
                self.write_full(&mut out, stored)?;
                Ok(out)
            }
            Form::Partial => Ok(partial(&parse(stored)?).to_string().into_bytes().into()),
            Form::Table(version) => {
                let (value, _) = self.filled(stored)?;
                let revision = value.pointer("/metadata/resourceVersion").cloned();
                let metadata = json!({"resourceVersion": revision.unwrap_or_else(|| json!(""))});
                let rows = vec![self.row(&value)?];
                Ok(self
                    .table(version, &metadata, true, &rows)
                    .to_string()
                    .into_bytes()
                    .into())
            }
        }
    }

    /// Returns the response with a list. `grow` is called with the bytes of the defaults that each object gets, and ends
    /// the list if it fails: many small objects could grow by a large default.
    pub(super) fn list<'a>(
        &self,
        meta: &ListMeta,
        items: impl ExactSizeIterator<Item = &'a Bytes>,
        mut grow: impl FnMut(usize) -> Result<(), Failure>,
    ) -> Result<Pieces, Failure> {
        let mut metadata = meta.to_value();
        if let Form::Table(version) = self.form {
            let row = |stored: &Bytes| {
                let (value, added) = self.filled(stored)?;
                grow(added)?;
                self.row(&value)
            };
            let rows = items.map(row).collect::<Result<Vec<_>, _>>()?;
            return Ok(self
                .table(version, &metadata, true, &rows)
                .to_string()
                .into_bytes()
                .into());
        }
        let (kind, api_version) = match self.form {
            Form::Partial => ("PartialObjectMetadata", "meta.k8s.io/v1"),
            _ => (self.kind.as_str(), self.api_version.as_str()),
        };
        let is_custom = self.custom.is_some();
        if is_custom && !matches!(self.form, Form::Partial) && metadata.get("continue").is_none() {
            metadata["continue"] = json!("");
        }
        let mut out = Pieces::with_capacity(256 + items.len() * 512);
        let head = format!(
            "{{\"kind\":\"{kind}List\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\
             \"items\":["
        );
        out.copy(head.as_bytes());
        for (index, stored) in items.enumerate() {
            if index > 0 {
                out.copy(b",");
            }
            match (self.form, &self.conversion) {
                (Form::Partial, _) => out.copy(partial(&parse(stored)?).to_string().as_bytes()),
                (_, Some(conversion)) => {
                    let value = (conversion.from_stored)(parse(stored)?);
                    out.copy(value.to_string().as_bytes());
                }
                (_, None) if is_custom => grow(self.write_full(&mut out, stored)?)?,
                (_, None) => out.share(stored.clone()),
            }
        }
        out.copy(b"]}\n");
        Ok(out)
    }

    /// Appends one watch event, or nothing in case of an error.
    pub(super) fn write_event(
        &self,
        out: &mut Pieces,
        kind: &str,
        stored: &Bytes,
        first: bool,
    ) -> Result<(), Failure> {
        let other = match self.form {
            Form::Full | Form::PartialList | Form::Discovery(_) if self.parses() => {
                let mut full = Pieces::default();
                self.write_full(&mut full, stored)?;
                Some(full.into_bytes())
            }
            Form::Full | Form::PartialList | Form::Discovery(_) => None,
            Form::Partial => Some(partial(&parse(stored)?).to_string().into()),
            Form::Table(version) => {
                let (value, _) = self.filled(stored)?;
                let revision = value.pointer("/metadata/resourceVersion").cloned();
                let metadata = json!({"resourceVersion": revision.unwrap_or_else(|| json!(""))});
                let rows = vec![self.row(&value)?];
                let table = self.table(version, &metadata, first, &rows);
                Some(table.to_string().into())
            }
        };
        out.copy(b"{\"type\":\"");
        out.copy(kind.as_bytes());
        out.copy(b"\",\"object\":");
        match other {
            Some(other) => out.share(other),
            None => _ = self.write_full(out, stored)?,
        }
        out.copy(b"}\n");
        Ok(())
    }

    /// Appends an object. Returns the number of bytes of its defaults.
    fn write_full(&self, out: &mut Pieces, stored: &Bytes) -> Result<usize, Failure> {
        let mut added = 0;
        let changed = match &self.conversion {
            Some(conversion) => Some((conversion.from_stored)(parse(stored)?)),
            None if self.fills => {
                let value;
                (value, added) = self.filled(stored)?;
                Some(value)
            }
            None => None,
        };
        out.copy(&self.prefix);
        match changed {
            Some(value) => out.copy(&value.to_string().as_bytes()[1..]),
            None => out.share(stored.slice(1..)),
        }
        Ok(added)
    }

    fn table(&self, version: &str, metadata: &Value, header: bool, rows: &[Value]) -> Value {
        let columns = if header { self.columns() } else { Value::Null };
        json!({
            "kind": "Table",
            "apiVersion": format!("meta.k8s.io/{version}"),
            "metadata": metadata,
            "columnDefinitions": columns,
            "rows": rows,
        })
    }

    fn columns(&self) -> Value {
        let own = self.custom.iter().flat_map(|custom| &custom.columns);
        let columns = self.columns.iter().map(Column::definition);
        let columns = columns.chain(own.map(CustomColumn::definition));
        if self.has_name_column() {
            return columns.collect();
        }
        let name = json!({"name": "Name", "type": "string", "format": "name",
            "description": NAME_DESCRIPTION.text(), "priority": 0});
        std::iter::once(name).chain(columns).collect()
    }

    /// Returns whether the columns of the kind include the name. For other kinds, the name is added as the first
    /// column.
    fn has_name_column(&self) -> bool {
        let mut own = self.custom.iter().flat_map(|custom| &custom.columns);
        self.columns.iter().any(|column| column.name == "Name")
            || own.any(|column| column.name == "Name")
    }

    fn row(&self, value: &Value) -> Result<Value, Failure> {
        let now = Timestamp::now();
        let name = value.pointer("/metadata/name").cloned().unwrap_or_default();
        let own = self.custom.iter().flat_map(|custom| &custom.columns);
        let others = self.columns.iter().map(|column| (column.cell)(value, now));
        let others = others.chain(own.map(|column| column.cell(value, now)));
        let name = (!self.has_name_column()).then_some(name);
        let cells: Vec<Value> = name.into_iter().chain(others).collect();
        // The bookmark at the end of the initial events is recognised by its annotation.
        let ends = value.pointer("/metadata/annotations/k8s.io~1initial-events-end");
        let include = match self.include {
            Include::None if ends.is_some() => Include::Metadata,
            include => include,
        };
        let object = match include {
            Include::None => Value::Null,
            Include::Metadata => {
                let mut part = partial(value);
                if let Form::Table(version) = self.form {
                    part["apiVersion"] = json!(format!("meta.k8s.io/{version}"));
                }
                part
            }
            Include::Object => {
                let mut full = Pieces::default();
                self.write_full(&mut full, &value.to_string().into())?;
                parse(&full.into_bytes())?
            }
        };
        Ok(json!({"cells": cells, "object": object}))
    }
}

impl ListMeta {
    fn to_value(&self) -> Value {
        let mut out = Map::new();
        out.insert("resourceVersion".into(), json!(self.revision.to_string()));
        if let Some(token) = &self.continue_token {
            out.insert("continue".into(), json!(token));
        }
        if let Some(remaining) = self.remaining {
            out.insert("remainingItemCount".into(), json!(remaining));
        }
        Value::Object(out)
    }
}

/// Returns the object with only its metadata.
fn partial(value: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": value.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

fn parse(stored: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(stored)
        .map_err(|error| Failure::internal(format!("stored object is not JSON: {error}")))
}
