//! The objects in a file: YAML with several documents, JSON, and lists.
//!
//! One invalid document makes the whole file invalid, so that a file is never applied in part.

use std::collections::HashMap;
use std::fmt;

use serde_json::{Map, Value};

/// Maximum number of objects in one file.
const MAX_OBJECTS: usize = 2_000;

/// Maximum depth of nested lists.
const MAX_LISTS: usize = 4;

/// Members of `metadata` that the API server sets. A file that `kubectl get -o yaml` wrote contains them.
const SET_BY_SERVER: [&str; 6] = [
    "creationTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Identity of an object, as written in its file or its inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectId {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// Empty if the file does not name one.
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Identity of an object in all versions of its API.
pub(super) type Key<'a> = (&'a str, &'a str, &'a str, &'a str);

impl ObjectId {
    /// The API group; empty for the core group.
    pub(super) fn group(&self) -> &str {
        let parts = self.api_version.split_once('/');
        parts.map_or("", |(group, _)| group)
    }

    /// The namespace of the object if its kind has namespaces.
    pub(super) fn namespace(&self) -> &str {
        match self.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        }
    }

    pub(super) fn is_secret(&self) -> bool {
        self.group().is_empty() && self.kind == "Secret"
    }

    pub(super) fn key(&self) -> Key<'_> {
        (self.group(), &self.kind, self.namespace(), &self.name)
    }

    /// One line of an inventory.
    pub(super) fn to_line(&self) -> String {
        let Self {
            api_version,
            kind,
            namespace,
            name,
        } = self;
        format!("{api_version} {kind} {namespace}/{name}")
    }

    pub(super) fn from_line(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ' ');
        let (api_version, kind) = (parts.next()?, parts.next()?);
        let (namespace, name) = parts.next()?.split_once('/')?;
        Some(Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.name)?;
        if !self.namespace.is_empty() {
            write!(f, " in namespace {:?}", self.namespace)?;
        }
        Ok(())
    }
}

/// One object of a file.
#[derive(Debug)]
pub(super) struct Document {
    /// `document 2` or `document 2, item 3`.
    pub(super) place: String,
    pub(super) id: ObjectId,
    pub(super) object: Value,
}

/// Reads all objects of a file.
///
/// # Errors
/// Returns the number of the first document that is invalid, and the reason.
pub(super) fn parse(path: &str, bytes: &[u8]) -> Result<Vec<Document>, String> {
    let mut documents = Vec::new();
    if path.ends_with(".json") {
        let values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
        for (at, value) in values.enumerate() {
            let place = format!("document {}", at + 1);
            let value = value.map_err(|error| format!("{place}: {error}"))?;
            add(&mut documents, &place, value, MAX_LISTS)?;
        }
    } else {
        let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))?;
        let mut number = 0;
        for (line, text) in split(text) {
            if text.lines().all(is_blank) {
                continue;
            }
            number += 1;
            let place = format!("document {number}");
            let value: Value = serde_saphyr::from_str_with_options(text, options())
                .map_err(|error| format!("{place}, which begins in line {line}: {error}"))?;
            // The document contains only comments and directives.
            if !value.is_null() {
                add(&mut documents, &place, value, MAX_LISTS)?;
            }
        }
    }
    let mut places: HashMap<Key<'_>, &str> = HashMap::new();
    for document in &documents {
        if let Some(first) = places.insert(document.id.key(), &document.place) {
            let (place, id) = (&document.place, &document.id);
            return Err(format!("{place}: {id} is already in {first}; remove one"));
        }
    }
    Ok(documents)
}

/// Formats a YAML error without the source text, which may be a Secret.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! { with_snippet: false }
}

fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// Splits YAML at the lines `---`, as kubectl does. Each document has the number of its first line.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut first, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if let Some(rest) = line.strip_prefix("---")
            && rest.chars().next().is_none_or(char::is_whitespace)
        {
            documents.push((first, &text[start..at]));
            // An object may begin on the line of the separator.
            (start, first) = (at + 3, number + 1);
        }
        at += line.len();
    }
    documents.push((first, &text[start..]));
    documents
}

/// Adds an object, or the objects of a list.
fn add(
    documents: &mut Vec<Document>,
    place: &str,
    value: Value,
    lists: usize,
) -> Result<(), String> {
    let Value::Object(mut object) = value else {
        return Err(format!(
            "{place}: not an object; expected apiVersion and kind"
        ));
    };
    let api_version = text(&object, "apiVersion").map_err(|why| format!("{place}: {why}"))?;
    let kind = text(&object, "kind").map_err(|why| format!("{place}: {why}"))?;
    if let Some(kind) = kind.strip_suffix("List")
        && let Some(Value::Array(items)) = object.remove("items")
    {
        let Some(lists) = lists.checked_sub(1) else {
            return Err(format!("{place}: more than {MAX_LISTS} nested lists"));
        };
        for (at, mut item) in items.into_iter().enumerate() {
            // The items of a typed list do not have to repeat their type.
            if let Value::Object(item) = &mut item
                && !kind.is_empty()
            {
                let absent = |value: &str| Value::String(value.to_owned());
                item.entry("apiVersion")
                    .or_insert_with(|| absent(&api_version));
                item.entry("kind").or_insert_with(|| absent(kind));
            }
            add(documents, &format!("{place}, item {}", at + 1), item, lists)?;
        }
        return Ok(());
    }
    if documents.len() == MAX_OBJECTS {
        return Err(format!(
            "{place}: more than {MAX_OBJECTS} objects; split the file"
        ));
    }
    let id = identify(&mut object, api_version, kind).map_err(|why| format!("{place}: {why}"))?;
    documents.push(Document {
        place: place.to_owned(),
        id,
        object: Value::Object(object),
    });
    Ok(())
}

/// Checks the metadata and removes the members that the API server sets.
fn identify(
    object: &mut Map<String, Value>,
    api_version: String,
    kind: String,
) -> Result<ObjectId, String> {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else {
        return Err(format!("{kind} has no metadata"));
    };
    for member in SET_BY_SERVER {
        metadata.remove(member);
    }
    let annotations = metadata.get("annotations");
    if annotations.is_some_and(|value| !value.is_object() && !value.is_null()) {
        return Err(format!("{kind}: metadata.annotations is not an object"));
    }
    let name = text(metadata, "name").map_err(|why| format!("{kind}: metadata: {why}"))?;
    let namespace = match metadata.get("namespace") {
        None | Some(Value::Null) => String::new(),
        Some(_) => text(metadata, "namespace").map_err(|why| format!("{kind}: metadata: {why}"))?,
    };
    Ok(ObjectId {
        api_version,
        kind,
        namespace,
        name,
    })
}

/// Returns a member that is text and is safe in a path and in a line of an inventory.
fn text(object: &Map<String, Value>, member: &str) -> Result<String, String> {
    let value = match object.get(member) {
        None | Some(Value::Null) => return Err(format!("{member} is missing")),
        Some(Value::String(value)) => value,
        Some(_) => return Err(format!("{member} is not text")),
    };
    let slashes = if member == "apiVersion" { 1 } else { 0 };
    let valid = value.len() <= 253
        && value.matches('/').count() <= slashes
        && !value.contains(|c: char| !c.is_ascii_graphic() || "?#%".contains(c))
        && !value.split('/').any(|part| ["", ".", ".."].contains(&part));
    if !valid {
        return Err(format!("{member} {value:?} is invalid"));
    }
    Ok(value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<String> {
        let documents = parse(path, text.as_bytes()).unwrap();
        let line = |d: &Document| format!("{}: {}", d.place, d.id.to_line());
        documents.iter().map(line).collect()
    }

    fn error(text: &str) -> String {
        parse("x.yaml", text.as_bytes()).unwrap_err()
    }

    #[test]
    fn documents_lists_and_comments_are_read_in_order() {
        let text = "# first\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: ns, uid: u, \
            resourceVersion: '1', managedFields: []}\n--- # nothing\n# here\n---\n\
            --- {apiVersion: v1, kind: List, items: [{apiVersion: apps/v1, kind: Deployment, \
            metadata: {name: d, namespace: ns}}, {apiVersion: v1, kind: ConfigMapList, items: \
            [{metadata: {name: m}}]}]}\n";
        let read = lines("x.yaml", text);
        assert_eq!(
            read,
            [
                "document 1: v1 Namespace /ns",
                "document 2, item 1: apps/v1 Deployment ns/d",
                "document 2, item 2, item 1: v1 ConfigMap /m",
            ]
        );
        let documents = parse("x.yaml", text.as_bytes()).unwrap();
        let expected = serde_json::json!({ "name": "ns" });
        assert_eq!(documents[0].object["metadata"], expected);
        let json = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}
            {"apiVersion":"x.io/v1","kind":"AllowList","metadata":{"name":"b"},"spec":{}}"#;
        let read = lines("x.json", json);
        assert_eq!(
            read,
            [
                "document 1: v1 Secret /a",
                "document 2: x.io/v1 AllowList /b"
            ]
        );
        assert!(lines("x.yaml", "").is_empty());
    }

    #[test]
    fn errors_name_the_document_and_the_cause() {
        let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        let broken = error(&format!("{good}---\na: [secret\n---\n{good}"));
        assert!(
            broken.starts_with("document 2, which begins in line 4: "),
            "{broken}"
        );
        assert!(
            !broken.contains("secret") && !broken.contains('\n'),
            "{broken}"
        );
        let cases = [
            (
                "- a\n",
                "document 2: not an object; expected apiVersion and kind",
            ),
            ("kind: A\n", "document 2: apiVersion is missing"),
            ("apiVersion: v1\nkind: 1\n", "document 2: kind is not text"),
            ("apiVersion: v1\nkind: A\n", "document 2: A has no metadata"),
            (
                "apiVersion: v1\nkind: A\nmetadata: {generateName: x}\n",
                "document 2: A: metadata: name is missing",
            ),
            (
                "apiVersion: v1\nkind: A\nmetadata: {name: \"a\\nb\"}\n",
                "document 2: A: metadata: name \"a\\nb\" is invalid",
            ),
            (
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n",
                "document 2: ConfigMap \"a\" in namespace \"default\" is already in document 1; \
                 remove one",
            ),
        ];
        for (second, expected) in cases {
            assert_eq!(error(&format!("{good}---\n{second}")), expected);
        }
    }

    #[test]
    fn names_that_would_change_the_path_of_a_request_are_rejected() {
        for name in ["a?b", "a#b", "a%2Fb", "a b", ".", "..", "a/b", "ä", ""] {
            for (name, namespace) in [(name, "b"), ("a", name)] {
                let text = format!(
                    "apiVersion: v1\nkind: A\nmetadata: {{name: '{name}', namespace: '{namespace}'}}\n"
                );
                assert!(error(&text).ends_with(" is invalid"), "{text}");
            }
        }
        for version in ["../v1", "/v1", "a/..", "v1?"] {
            let text = format!("apiVersion: '{version}'\nkind: A\nmetadata: {{name: a}}\n");
            assert!(error(&text).ends_with(" is invalid"), "{text}");
        }
        let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: 'a:b.c'}\n";
        assert_eq!(lines("x.yaml", role).len(), 1);
    }

    #[test]
    fn aliases_that_grow_and_deep_nesting_are_rejected() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{}", level - 1);
            let line = vec![before; 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{line}]\n");
        }
        assert!(error(&bomb).starts_with("document 1"));
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(error(&deep).starts_with("document 1"));
        assert!(parse("x.json", deep.as_bytes()).is_err());
    }

    #[test]
    fn lines_of_an_inventory_are_read_back() {
        for line in [
            "v1 ConfigMap default/a",
            "rbac.authorization.k8s.io/v1 ClusterRole /a b:c",
        ] {
            assert_eq!(ObjectId::from_line(line).unwrap().to_line(), line);
        }
        assert_eq!(ObjectId::from_line("v1 ConfigMap"), None);
    }
}
