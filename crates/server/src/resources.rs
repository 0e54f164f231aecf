//! The kinds that the API server serves.

use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};
use kube::{Api, Client};

/// A kind that can be listed, watched and deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) api: ApiResource,
    pub(crate) namespaced: bool,
}

impl Resource {
    /// Returns `apps/deployments`, without a version, because an object has one identity in all versions.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.api.group, self.api.plural)
    }

    /// Returns an API for the metadata of all objects.
    pub(crate) fn metadata(&self, client: &Client) -> Api<PartialObjectMeta<DynamicObject>> {
        Api::all_with(client.clone(), &self.api)
    }

    /// Returns an API for the objects of one namespace, or of the cluster.
    pub(crate) fn objects(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        if self.namespaced && !namespace.is_empty() {
            Api::namespaced_with(client.clone(), namespace, &self.api)
        } else {
            Api::all_with(client.clone(), &self.api)
        }
    }
}

/// Returns all kinds, each once in its preferred version.
pub(crate) async fn discover(client: &Client) -> Result<Vec<Resource>, kube::Error> {
    let discovery = Discovery::new(client.clone()).run().await?;
    let usable = |capabilities: &ApiCapabilities| {
        [verbs::LIST, verbs::WATCH, verbs::DELETE]
            .iter()
            .all(|verb| capabilities.supports_operation(verb))
    };
    let mut resources = Vec::new();
    for group in discovery.groups() {
        // These are the same Events under another group.
        if group.name() == "events.k8s.io" {
            continue;
        }
        for (api, capabilities) in group.recommended_resources() {
            if usable(&capabilities) {
                let namespaced = capabilities.scope == Scope::Namespaced;
                resources.push(Resource { api, namespaced });
            }
        }
    }
    Ok(resources)
}
