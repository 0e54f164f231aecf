//! One line of a watch, and the object in it. The object is parsed only when it is needed.

use std::borrow::Cow;

use kube::core::Status;
use serde::Deserialize;
use serde_json::Value;
use tenure_core::Version;
use tenure_lock::Lean;

/// Content of a line.
#[derive(Debug)]
pub(super) enum WatchEvent {
    /// An object was created or changed.
    Changed(WatchedObject),
    /// An object was deleted. Its revision is that of the deletion.
    Deleted(WatchedObject),
    /// All events up to this revision were delivered.
    Bookmark(String),
}

/// An object as delivered by the server.
#[derive(Clone, Debug)]
pub(crate) struct WatchedObject {
    pub(super) name: String,
    uid: String,
    pub(super) revision: String,
    object: Object,
}

#[derive(Clone, Debug)]
enum Object {
    /// A line of a watch that contains the object.
    Line(Box<str>),
    /// The object itself.
    Text(Box<str>),
    Whole(Value),
}

impl WatchedObject {
    /// Creates the object from an item of a list.
    pub(super) fn listed(item: Value) -> Self {
        let text = |key: &str| {
            item["metadata"][key]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        Self {
            name: text("name"),
            uid: text("uid"),
            revision: text("resourceVersion"),
            object: Object::Whole(item),
        }
    }

    /// Creates the object from its text.
    pub(super) fn from_text(name: &str, uid: &str, revision: &str, text: &str) -> Self {
        Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
            revision: revision.to_owned(),
            object: Object::Text(text.into()),
        }
    }

    /// Returns whether it comes from a list. A restored store may list a revision that was observed before, with a
    /// different content.
    pub(in crate::hub) fn is_listed(&self) -> bool {
        matches!(self.object, Object::Whole(_))
    }

    /// Returns whether it has this version.
    pub(in crate::hub) fn is(&self, version: &Version) -> bool {
        self.revision == version.revision.as_str() && *self.uid == *version.uid
    }

    /// Returns the object; `None` if it cannot be parsed.
    pub(crate) fn into_object(self) -> Option<Value> {
        match self.object {
            Object::Whole(object) => Some(object),
            Object::Text(text) => {
                let object: Lean = serde_json::from_str(&text).ok()?;
                Some(object.0)
            }
            Object::Line(line) => {
                let line: WholeLine = serde_json::from_str(&line).ok()?;
                Some(line.object.0)
            }
        }
    }
}

impl WatchEvent {
    /// Returns the revision of the event.
    pub(super) fn revision(&self) -> &str {
        match self {
            Self::Changed(shown) | Self::Deleted(shown) => &shown.revision,
            Self::Bookmark(revision) => revision,
        }
    }

    /// Parses a line.
    ///
    /// # Errors
    ///
    /// Returns the error that the server sent instead of an event, or a parse error.
    pub(super) fn parse(line: &[u8]) -> Result<Self, kube::Error> {
        let text = str::from_utf8(line).map_err(|_| {
            let error = std::io::Error::other("a watch event that is not UTF-8");
            kube::Error::ReadEvents(error)
        })?;
        let sketch: Sketch<'_> = match serde_json::from_str(text) {
            Ok(sketch) => sketch,
            Err(error) => {
                return Err(match serde_json::from_str::<Status>(text) {
                    Ok(status) => kube::Error::Api(Box::new(status)),
                    Err(_) => kube::Error::SerdeError(error),
                });
            }
        };
        let metadata = sketch.object.metadata;
        Ok(match sketch.kind {
            Kind::Added | Kind::Modified => Self::Changed(metadata.shown(text)),
            Kind::Deleted => Self::Deleted(metadata.shown(text)),
            Kind::Bookmark => Self::Bookmark(metadata.resource_version.into_owned()),
            Kind::Error => {
                let line = serde_json::from_str::<ErrorLine>(text);
                let status = line.map_err(kube::Error::SerdeError)?.object;
                return Err(kube::Error::Api(Box::new(status)));
            }
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// The part of a line that is always needed.
#[derive(Deserialize)]
struct Sketch<'a> {
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(borrow)]
    object: ObjectSketch<'a>,
}

#[derive(Deserialize)]
struct ObjectSketch<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
}

impl Metadata<'_> {
    fn shown(self, line: &str) -> WatchedObject {
        WatchedObject {
            name: self.name.into_owned(),
            uid: self.uid.into_owned(),
            revision: self.resource_version.into_owned(),
            object: Object::Line(line.into()),
        }
    }
}

#[derive(Deserialize)]
struct WholeLine {
    object: Lean,
}

#[derive(Deserialize)]
struct ErrorLine {
    object: Status,
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tenure_core::ResourceVersion;

    use super::*;

    fn parse(line: &Value) -> Result<WatchEvent, kube::Error> {
        WatchEvent::parse(format!("{line}\n").as_bytes())
    }

    #[test]
    fn changed_object_is_identified_by_version_and_parsed_on_demand() {
        let object = json!({
            "kind": "Lease", "spec": { "holderIdentity": "a\n" },
            "metadata": { "name": "x", "uid": "u", "resourceVersion": "7" },
        });
        for kind in ["ADDED", "MODIFIED"] {
            // Servers put the kind first, but a JSON map has no order.
            let line = json!({ "type": kind, "object": object });
            let Ok(WatchEvent::Changed(shown)) = parse(&line) else {
                panic!("{line}");
            };
            let version = |uid: &str, revision: &str| Version {
                uid: uid.into(),
                revision: ResourceVersion::new(revision),
            };
            assert_eq!(shown.name, "x");
            assert!(!shown.is_listed() && shown.is(&version("u", "7")));
            assert!(!shown.is(&version("u", "8")));
            assert!(!shown.is(&version("v", "7")));
            assert_eq!(shown.into_object(), Some(object.clone()));
        }
        let listed = WatchedObject::listed(object.clone());
        assert_eq!((listed.name.as_str(), listed.revision.as_str()), ("x", "7"));
        assert!(listed.is_listed());
        assert_eq!(listed.into_object(), Some(object));
    }

    #[test]
    fn removals_and_bookmarks_have_a_revision() {
        let metadata = json!({ "name": "x", "uid": "u", "resourceVersion": "9" });
        let object = json!({ "metadata": metadata });
        let deleted = parse(&json!({ "type": "DELETED", "object": object }));
        let Ok(WatchEvent::Deleted(shown)) = deleted else {
            panic!("{deleted:?}");
        };
        assert_eq!((shown.name.as_str(), shown.revision.as_str()), ("x", "9"));
        let bookmark = parse(&json!({ "type": "BOOKMARK", "object": object }));
        assert!(matches!(bookmark, Ok(WatchEvent::Bookmark(at)) if at == "9"));
    }

    #[test]
    fn error_line_of_a_watch_is_an_error() {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "too old", "reason": "Expired", "code": 410,
        });
        for line in [json!({ "type": "ERROR", "object": status }), status] {
            let error = parse(&line).unwrap_err();
            assert!(
                matches!(&error, kube::Error::Api(status) if status.code == 410),
                "{error}"
            );
        }
        for line in [
            "",
            "[]",
            "{\"type\":\"ADDED\"",
            "{\"type\":\"MOVED\",\"object\":{}}",
        ] {
            assert!(WatchEvent::parse(line.as_bytes()).is_err(), "{line}");
        }
        assert!(WatchEvent::parse(b"\xff").is_err());
    }
}
