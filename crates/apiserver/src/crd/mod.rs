//! Custom resources: kinds that clients define.
//!
//! A definition is compiled into an entry of the same table that the built-in kinds are in, so that
//! all verbs, lists and watches are the same code. A compiled entry lives as long as the process: the
//! table hands out plain references. Definitions with the same spec share one, so what is kept is
//! bounded by the number of different definitions seen.

mod approval;
mod compile;
pub(crate) mod definition;
mod format;
mod path;
mod pattern;
mod schema;
mod structural;
mod value;

pub(crate) use compile::{CustomVersion, Scale, compile};
pub(crate) use path::Path;
pub(crate) use schema::{Kind as ValueKind, ListKind, Structural};

use serde_json::Value;

use crate::canonical;
use crate::limits::MAX_STORED_BYTES;
use crate::schema::message_by_name;
use crate::status::Cause;

/// The group of definitions.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// Their plural name.
pub(crate) const PLURAL: &str = "customresourcedefinitions";
/// The finalizer that holds a definition until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

impl CustomVersion {
    /// The stored form of an object, and the paths that were not known and went.
    pub(crate) fn canonical(
        &self,
        mut object: Value,
    ) -> Result<(Value, Vec<String>), canonical::Error> {
        let mut unknown = Vec::new();
        self.schema.prune(&mut object, "", &mut unknown);
        if let Some(map) = object.as_object_mut() {
            map.remove("apiVersion");
            map.remove("kind");
            let metadata = map.remove("metadata").unwrap_or_default();
            let message = message_by_name("meta/v1.ObjectMeta").expect("the table has metadata");
            map.insert(
                "metadata".into(),
                canonical::canonicalise(message, metadata)?,
            );
        }
        if !self.schema.fill(&mut object) {
            return Err(canonical::Error::Text(format!(
                "with its defaults it is larger than {MAX_STORED_BYTES} bytes"
            )));
        }
        Ok((object, unknown))
    }

    /// Checks an object on its own.
    pub(crate) fn validate(&self, object: &Value, causes: &mut Vec<Cause>) {
        value::check(&self.schema, object, causes);
    }

    /// Checks an object that was changed: what is wrong in parts that are as they were is let be, so that
    /// objects from before a rule can still be changed.
    pub(crate) fn validate_update(&self, old: &Value, new: &Value, causes: &mut Vec<Cause>) {
        value::check_change(&self.schema, old, new, causes);
    }
}
