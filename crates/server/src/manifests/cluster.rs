//! Requests for the objects of manifests: kinds, server-side apply and deletion.

use std::collections::HashMap;

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use super::MANAGER;
use super::document::ObjectId;
use crate::resources::Resource;

/// Annotation of an applied object: the file that applied it last.
const ANNOTATION: &str = "tenure.dev/manifest";

/// The API server, with the kinds that were used.
pub(super) struct Cluster {
    client: Client,
    kinds: HashMap<(String, String), Resource>,
}

impl Cluster {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            kinds: HashMap::new(),
        }
    }

    /// Returns the kind of an object, or `None` if the API server does not serve it.
    pub(super) async fn resource(
        &mut self,
        id: &ObjectId,
    ) -> Result<Option<Resource>, kube::Error> {
        let kind = (id.api_version.clone(), id.kind.clone());
        if let Some(resource) = self.kinds.get(&kind) {
            return Ok(Some(resource.clone()));
        }
        let (group, version) = id
            .api_version
            .split_once('/')
            .unwrap_or(("", &id.api_version));
        let gvk = GroupVersionKind::gvk(group, version, &id.kind);
        let (api, capabilities) = match pinned_kind(&self.client, &gvk).await {
            Ok(found) => found,
            Err(kube::Error::Discovery(_)) => return Ok(None),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(error) => return Err(error),
        };
        let namespaced = capabilities.scope == Scope::Namespaced;
        let resource = Resource { api, namespaced };
        self.kinds.insert(kind, resource.clone());
        Ok(Some(resource))
    }

    /// Applies an object in the name of a file.
    ///
    /// # Errors
    /// Returns the reason as text.
    pub(super) async fn apply(
        &mut self,
        id: &ObjectId,
        mut object: Value,
        file: &str,
    ) -> Result<(), String> {
        let found = self.resource(id).await.map_err(|error| describe(&error))?;
        let Some(resource) = found else {
            let (version, kind) = (&id.api_version, &id.kind);
            return Err(format!(
                "the API server does not serve {kind} in {version}; waiting for its definition"
            ));
        };
        let metadata = &mut object["metadata"];
        if metadata["annotations"].is_null() {
            metadata["annotations"] = json!({});
        }
        metadata["annotations"][ANNOTATION] = json!(file);
        if resource.namespaced {
            metadata["namespace"] = json!(id.namespace());
        } else if let Some(metadata) = metadata.as_object_mut() {
            metadata.remove("namespace");
        }
        let objects = resource.objects(&self.client, id.namespace());
        let parameters = PatchParams::apply(MANAGER).force();
        let applied = objects
            .patch(&id.name, &parameters, &Patch::Apply(object))
            .await;
        match applied {
            // The object is being deleted, so it has to be applied again later.
            Ok(applied) if applied.metadata.deletion_timestamp.is_some() => {
                Err("it is being deleted; waiting until it is gone".to_owned())
            }
            Ok(_) => Ok(()),
            Err(error) => {
                if matches!(&error, kube::Error::Api(status) if status.code == 404) {
                    // The definition may have been replaced by another one.
                    self.kinds
                        .remove(&(id.api_version.clone(), id.kind.clone()));
                }
                Err(if id.is_secret() {
                    describe_secret(&error)
                } else {
                    describe(&error)
                })
            }
        }
    }

    /// Deletes an object unless another file or another client has taken it over. Returns whether a deletion was
    /// requested.
    pub(super) async fn delete(
        &self,
        id: &ObjectId,
        resource: &Resource,
        file: &str,
    ) -> Result<bool, kube::Error> {
        let objects = resource.objects(&self.client, id.namespace());
        let found = match objects.get_metadata(&id.name).await {
            Ok(found) => found,
            // The object or its kind is gone. If the kind is gone, the body is not a Status.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
            Err(error) => return Err(error),
        };
        let owned = found
            .annotations()
            .get(ANNOTATION)
            .is_some_and(|owner| owner == file);
        let same = found.metadata.name.as_ref() == Some(&id.name);
        if !owned || !same || found.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions {
                uid: found.metadata.uid,
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match objects.delete(&id.name, &parameters).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error),
            Ok(_) => Ok(true),
        }
    }
}

/// Returns the message of the API server, or the error itself if the server sent none.
pub(super) fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}

/// Returns an error about a Secret without the message of the API server, because the message can quote values.
fn describe_secret(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            let (code, reason) = (status.code, &status.reason);
            format!(
                "{code} {reason}; the message is omitted because it can contain values of the Secret"
            )
        }
        kube::Error::SerdeError(_) => "the response of the API server is invalid".to_owned(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn errors_about_a_secret_do_not_contain_its_values() {
        let message = ".data.k: expected string, got &value.valueUnstructured{Value:hunter2}";
        let status = Status::failure(message, "Invalid").with_code(422);
        let error = kube::Error::Api(status.boxed());
        assert_eq!(describe(&error), message);
        let described = describe_secret(&error);
        assert!(described.starts_with("422 Invalid; "), "{described}");
        assert!(!described.contains("hunter2"), "{described}");
        let invalid = serde_json::from_str::<u8>("\"hunter2\"").unwrap_err();
        let described = describe_secret(&kube::Error::SerdeError(invalid));
        assert!(!described.contains("hunter2"), "{described}");
    }
}
