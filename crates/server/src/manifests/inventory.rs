//! Inventories: one ConfigMap in `kube-system` for each file, with the objects that were applied from it.
//!
//! An inventory lists an object before the object is applied, and until the object is deleted. Therefore every object
//! that a file created is in an inventory, even if the server is killed at any moment.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use ring::digest::{SHA256, digest};
use serde_json::json;

use super::document::ObjectId;
use super::folder::Folder;
use super::{FileId, MANAGER};

const NAMESPACE: &str = "kube-system";

/// Label of every inventory.
const LABEL: (&str, &str) = ("tenure.dev/component", "manifests");

/// Maximum size of the list of objects in bytes. The API limits an object to about 1 MiB.
const MAX_LIST: usize = 900 << 10;

/// Maximum number of characters of a message, as in an Event.
const MAX_MESSAGE: usize = 1_000;

/// The objects that were applied from one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    pub(super) objects: Vec<ObjectId>,
    /// Checksum of the content that was applied completely. Empty if the file contains a Secret, because short values
    /// can be guessed from a checksum.
    pub(super) checksum: String,
    /// Reason why the current content is not applied completely.
    pub(super) error: Option<String>,
    /// Uid of the ConfigMap, for Events.
    pub(super) uid: String,
}

/// All inventories of the folders of this server.
pub(super) struct Inventories {
    client: Client,
    maps: Api<ConfigMap>,
    known: BTreeMap<FileId, Inventory>,
}

/// Type of an Event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tone {
    Normal,
    Warning,
}

impl Tone {
    /// Returns the type as the API writes it.
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl Inventories {
    pub(super) fn new(client: Client) -> Self {
        Self {
            maps: Api::namespaced(client.clone(), NAMESPACE),
            client,
            known: BTreeMap::new(),
        }
    }

    /// Reads the inventories of these folders. Other inventories belong to other servers or to folders that are no
    /// longer used; they stay.
    pub(super) async fn load(&mut self, folders: &[Folder]) -> Result<(), kube::Error> {
        let selector = format!("{}={}", LABEL.0, LABEL.1);
        let listed = self
            .maps
            .list(&ListParams::default().labels(&selector))
            .await?;
        for map in listed.items {
            let mut data = map.data.unwrap_or_default();
            let source = data.remove("source").unwrap_or_default();
            let path = data.remove("file").unwrap_or_default();
            let Some(folder) = folders.iter().position(|folder| folder.source == source) else {
                continue;
            };
            // A copy under another name is not an inventory.
            if map.metadata.name != Some(object_name(&source, &path)) {
                continue;
            }
            let objects = data.remove("objects").unwrap_or_default();
            let inventory = Inventory {
                objects: objects.lines().filter_map(ObjectId::from_line).collect(),
                checksum: data.remove("checksum").unwrap_or_default(),
                error: data.remove("error"),
                uid: map.metadata.uid.unwrap_or_default(),
            };
            self.known.insert(FileId { folder, path }, inventory);
        }
        Ok(())
    }

    pub(super) fn get(&self, id: &FileId) -> Option<&Inventory> {
        self.known.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&FileId, &Inventory)> {
        self.known.iter()
    }

    /// Writes an inventory if it is different from the stored one.
    pub(super) async fn write(
        &mut self,
        folders: &[Folder],
        id: &FileId,
        next: Inventory,
    ) -> Result<(), String> {
        if self.known.get(id) == Some(&next) {
            return Ok(());
        }
        let source = &folders[id.folder].source;
        let name = object_name(source, &id.path);
        let lines: Vec<String> = next.objects.iter().map(ObjectId::to_line).collect();
        let objects = lines.join("\n");
        if objects.len() > MAX_LIST {
            return Err(format!(
                "the list of objects is larger than {MAX_LIST} bytes; split the file"
            ));
        }
        let status = if next.error.is_some() {
            "Failed"
        } else {
            "Applied"
        };
        let mut data = json!({ "source": source, "file": id.path, "objects": objects,
            "status": status });
        if !next.checksum.is_empty() {
            data["checksum"] = json!(next.checksum);
        }
        if let Some(error) = &next.error {
            data["error"] = json!(error);
        }
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "labels": { LABEL.0: LABEL.1 } }, "data": data });
        let parameters = PatchParams::apply(MANAGER).force();
        let written = self
            .maps
            .patch(&name, &parameters, &Patch::Apply(map))
            .await;
        let written = written.map_err(|error| {
            let error = super::cluster::describe(&error);
            format!("cannot write ConfigMap {name:?} in namespace {NAMESPACE:?}: {error}")
        })?;
        let uid = written.metadata.uid.unwrap_or_default();
        self.known.insert(id.clone(), Inventory { uid, ..next });
        Ok(())
    }

    /// Deletes the inventory of a file that no longer exists.
    pub(super) async fn remove(
        &mut self,
        folders: &[Folder],
        id: &FileId,
    ) -> Result<(), kube::Error> {
        let name = object_name(&folders[id.folder].source, &id.path);
        match self.maps.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        self.known.remove(id);
        Ok(())
    }

    /// Creates an Event about an inventory. A failure is only logged, because nothing depends on the Event.
    pub(super) async fn event(
        &self,
        folders: &[Folder],
        id: &FileId,
        tone: Tone,
        reason: &str,
        message: &str,
    ) {
        let name = object_name(&folders[id.folder].source, &id.path);
        let Some(inventory) = self.known.get(id) else {
            return;
        };
        let now = Timestamp::now();
        let mut event = Event {
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            message: Some(shortened(message)),
            reason: Some(reason.to_owned()),
            source: Some(EventSource {
                component: Some(MANAGER.to_owned()),
                ..EventSource::default()
            }),
            reporting_component: Some(MANAGER.to_owned()),
            type_: Some(tone.name().to_owned()),
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("ConfigMap".to_owned()),
                namespace: Some(NAMESPACE.to_owned()),
                name: Some(name.clone()),
                uid: Some(inventory.uid.clone()),
                ..ObjectReference::default()
            },
            ..Event::default()
        };
        event.metadata.name = Some(format!("{name}.{:x}", now.as_nanosecond()));
        event.metadata.namespace = Some(NAMESPACE.to_owned());
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(
                reason,
                error = tenure::plain(&error),
                "cannot create an event"
            );
        }
    }
}

/// Shortens a message to the limit of an Event.
pub(super) fn shortened(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

/// Returns a checksum as hexadecimal text.
pub(super) fn checksum(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the name of the inventory of a file. It is readable, valid and unique.
fn object_name(source: &str, path: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let stem = path.rsplit_once('.').map_or(path, |(stem, _)| stem);
    let readable: String = stem.chars().map(plain).take(60).collect();
    let unique = checksum(format!("{source}\0{path}").as_bytes());
    format!("manifest-{}-{}", readable.trim_matches('-'), &unique[..10])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_inventories_are_valid_and_unique() {
        let name = object_name("data", "Sub dir/10_crds.yaml");
        assert!(name.starts_with("manifest-sub-dir-10-crds-"), "{name}");
        assert_ne!(name, object_name("other", "Sub dir/10_crds.yaml"));
        assert_ne!(name, object_name("data", "Sub dir/10_crds.json"));
        let long = object_name("data", &"ä/".repeat(2_000));
        assert!(long.len() < 253 && long.is_ascii(), "{long}");
    }

    #[test]
    fn messages_are_shortened_between_characters() {
        assert_eq!(shortened(&"ä".repeat(2_000)).chars().count(), MAX_MESSAGE);
    }
}
