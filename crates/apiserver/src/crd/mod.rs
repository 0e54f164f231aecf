//! Custom resources: kinds that clients define.
//!
//! A definition is compiled into an entry of the table that also contains the built-in kinds, so that all verbs, lists
//! and watches share one implementation. A compiled entry is freed when its definition was replaced or deleted and the
//! last request with it has ended.

mod approval;
pub(crate) mod definition;
mod format;
mod path;
mod pattern;
mod schema;
mod structural;
mod value;

pub(crate) use path::Path;
pub(crate) use schema::{Kind as ValueKind, ListKind, Structural};
pub(crate) use value::keyed;

use serde_json::Value;

use crate::canonical;
use crate::limits::MAX_STORED_BYTES;
use crate::schema::message_by_name;
use crate::status::Cause;

/// The group of definitions.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// Plural name of definitions.
pub(crate) const PLURAL: &str = "customresourcedefinitions";
/// The finalizer that keeps a definition until its objects are deleted.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

impl Structural {
    /// Returns the stored form of an object, and the paths of unknown fields that were removed.
    pub(crate) fn canonical(
        &self,
        mut object: Value,
    ) -> Result<(Value, Vec<String>), canonical::Error> {
        let mut unknown = Vec::new();
        self.prune(&mut object, "", &mut unknown);
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
        if !self.fill(&mut object).complete {
            return Err(canonical::Error::Text(format!(
                "with its defaults it is larger than {MAX_STORED_BYTES} bytes"
            )));
        }
        Ok((object, unknown))
    }

    /// Validates an object.
    pub(crate) fn validate(&self, object: &Value, causes: &mut Vec<Cause>) {
        value::check(self, object, causes);
    }

    /// Validates an updated object. Errors in unchanged parts are ignored, so that objects that are older than a rule
    /// can still be changed.
    pub(crate) fn validate_update(&self, old: &Value, new: &Value, causes: &mut Vec<Cause>) {
        value::check_change(self, old, new, causes);
    }
}
