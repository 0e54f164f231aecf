//! Default content of every namespace: a `default` ServiceAccount and the certificate of the cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::json;
use tenure_manager::{Builder, Cached, Cause, Next, Request, Warm};

/// The ServiceAccount of pods that do not name one.
const DEFAULT: &str = "default";

/// The ConfigMap from which pods read the certificate.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Adds `default-service-account`.
pub(crate) fn service_accounts(manager: Builder, group: &str, client: &Client) -> Builder {
    let namespaces = Api::<Namespace>::all(client.clone());
    let accounts = Api::<ServiceAccount>::all(client.clone());
    let by_name = watcher::Config::default().fields(&format!("metadata.name={DEFAULT}"));
    let (first, second) = (client.clone(), client.clone());
    manager
        .warm(
            group,
            warm(
                "default-service-account",
                namespaces,
                watcher::Config::default(),
                move |n| service_account(first.clone(), n),
            ),
        )
        .warm(
            group,
            warm(
                "default-service-account-again",
                accounts,
                by_name,
                move |n| service_account(second.clone(), n),
            ),
        )
}

/// Adds `root-ca`.
pub(crate) fn root_ca(manager: Builder, group: &str, client: &Client, ca: &str) -> Builder {
    let namespaces = Api::<Namespace>::all(client.clone());
    let maps = Api::<ConfigMap>::all(client.clone());
    let by_name = watcher::Config::default().fields(&format!("metadata.name={ROOT_CA}"));
    let first = (client.clone(), ca.to_owned());
    let second = first.clone();
    manager
        .warm(
            group,
            warm(
                "root-ca",
                namespaces,
                watcher::Config::default(),
                move |n| certificate(first.0.clone(), n, first.1.clone()),
            ),
        )
        .warm(
            group,
            warm("root-ca-again", maps, by_name, move |n| {
                certificate(second.0.clone(), n, second.1.clone())
            }),
        )
}

/// Calls back with the namespace of each object that was created, changed or deleted.
fn warm<K, F, W>(name: &str, api: Api<K>, config: watcher::Config, call: F) -> Warm<K>
where
    K: Cached + Resource,
    F: Fn(String) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), kube::Error>> + Send + 'static,
{
    Warm::new(name, api, config, move |request: Request<K>| {
        let namespace = request.key.namespace.clone().or_else(|| {
            // A namespace that is deleted or being deleted needs nothing.
            let object = request.object.as_ref()?;
            let ends = object.meta().deletion_timestamp.is_some();
            (!ends).then(|| object.name_any())
        });
        let leads = request.scope.check();
        let work = namespace.map(&call);
        async move {
            leads?;
            if let Some(work) = work {
                work.await?;
            }
            Ok::<_, Cause>(Next::Change)
        }
    })
    .workers(4)
}

async fn service_account(client: Client, namespace: String) -> Result<(), kube::Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client, &namespace);
    if accounts.get_opt(DEFAULT).await?.is_some() {
        return Ok(());
    }
    let mut account = ServiceAccount::default();
    account.metadata.name = Some(DEFAULT.to_owned());
    ended(accounts.create(&PostParams::default(), &account).await)
}

async fn certificate(client: Client, namespace: String, ca: String) -> Result<(), kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let data = BTreeMap::from([("ca.crt".to_owned(), ca)]);
    match maps.get_opt(ROOT_CA).await? {
        Some(map) if map.data.as_ref() == Some(&data) => Ok(()),
        Some(map) => {
            // Replace the content completely: entries of other writers are removed.
            let before = map.data.unwrap_or_default();
            let mut merge: BTreeMap<String, Option<String>> =
                before.into_keys().map(|key| (key, None)).collect();
            merge.extend(data.into_iter().map(|(key, value)| (key, Some(value))));
            let patch = Patch::Merge(json!({ "data": merge }));
            ended(maps.patch(ROOT_CA, &PatchParams::default(), &patch).await)
        }
        None => {
            let mut map = ConfigMap {
                data: Some(data),
                ..ConfigMap::default()
            };
            map.metadata.name = Some(ROOT_CA.to_owned());
            let why = "Contains a CA bundle that can be used to verify the kube-apiserver when using \
                       internal endpoints such as the internal service IP or kubernetes.default.svc.";
            map.annotations_mut()
                .insert("kubernetes.io/description".to_owned(), why.to_owned());
            ended(maps.create(&PostParams::default(), &map).await)
        }
    }
}

/// Converts the result of a creation. It is a success if another writer has created the object in the meantime, or if
/// the namespace is being deleted.
fn ended<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if [403, 404, 409].contains(&status.code) => Ok(()),
        Err(error) => Err(error),
    }
}
