//! Clients of other projects, configured only with the kubeconfig.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind};
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{EventType, Recorder, Reporter};
use kube::runtime::finalizer::{self, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Resource as _, ResourceExt as _};

use crate::TestServer;

async fn client(kubeconfig: &str) -> kube::Client {
    let read = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(read, &options)
        .await
        .unwrap();
    kube::Client::try_from(config).unwrap()
}

#[tokio::test]
async fn kube_connects_with_the_kubeconfig_over_tls_and_without() {
    for server in [
        TestServer::start_tls().await.unwrap(),
        TestServer::start().await.unwrap(),
    ] {
        let client = client(server.kubeconfig()).await;
        assert!(
            client
                .apiserver_version()
                .await
                .unwrap()
                .git_version
                .starts_with('v')
        );
        let maps: Api<ConfigMap> = Api::namespaced(client, "default");
        let map: ConfigMap =
            serde_json::from_value(serde_json::json!({ "metadata": { "name": "m" } })).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
        assert_eq!(maps.list(&Default::default()).await.unwrap().items.len(), 1);
    }
}

#[tokio::test]
async fn a_reflector_follows_over_tls() {
    let server = TestServer::start_tls().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client(server.kubeconfig()).await, "default");
    let (store, writer) = reflector::store();
    let stream = watcher(maps.clone(), watcher::Config::default())
        .reflect(writer)
        .applied_objects();
    let following = tokio::spawn(stream.for_each(async |_| ()));
    store.wait_until_ready().await.unwrap();
    let map: ConfigMap =
        serde_json::from_value(serde_json::json!({ "metadata": { "name": "m" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let name = reflector::ObjectRef::new("m").within("default");
    let found = async {
        loop {
            if let Some(found) = store.get(&name) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(20);
    let found: Arc<ConfigMap> = tokio::time::timeout(limit, found).await.unwrap();
    assert_eq!(found.metadata.name.as_deref(), Some("m"));
    following.abort();
}

const LIMIT: Duration = Duration::from_secs(20);

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({ "metadata": { "name": name } })).unwrap()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(LIMIT, wait).await;
    assert!(in_time.is_ok(), "{what}");
}

#[tokio::test]
async fn watcher_recovers_from_expired_revision() {
    for streaming in [false, true] {
        let server = TestServer::start().await.unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
        for name in ["a", "b"] {
            maps.create(&PostParams::default(), &map(name))
                .await
                .unwrap();
        }
        let config = if streaming {
            watcher::Config::default().streaming_lists()
        } else {
            watcher::Config::default()
        };
        let mut events = Box::pin(watcher(maps.clone(), config).default_backoff());
        let mut next = async || loop {
            let event = tokio::time::timeout(LIMIT, events.next()).await;
            // The watcher recovers from an interrupted stream.
            if let Ok(event) = event.expect("no event arrived in time").unwrap() {
                return event;
            }
        };
        let mut start = async |wanted: &[&str]| {
            assert!(matches!(next().await, watcher::Event::Init));
            for name in wanted {
                let watcher::Event::InitApply(found) = next().await else {
                    panic!("expected an object of the list");
                };
                assert_eq!(found.name_any(), *name);
            }
            assert!(matches!(next().await, watcher::Event::InitDone));
        };
        start(&["a", "b"]).await;
        server.jump_revision(1000).await.unwrap();
        start(&["a", "b"]).await;
        maps.create(&PostParams::default(), &map("c"))
            .await
            .unwrap();
        let watcher::Event::Apply(found) = next().await else {
            panic!("expected the new object");
        };
        assert_eq!(found.name_any(), "c");
        maps.delete("c", &DeleteParams::default()).await.unwrap();
        assert!(matches!(next().await, watcher::Event::Delete(_)));
    }
}

struct Context {
    client: kube::Client,
    applied: AtomicUsize,
    cleaned: AtomicUsize,
}

async fn reconcile(
    map: Arc<ConfigMap>,
    context: Arc<Context>,
) -> Result<Action, finalizer::Error<kube::Error>> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), "default");
    finalizer(&maps, "tests.tenure.dev/cleanup", map, async |event| {
        match event {
            finalizer::Event::Apply(map) => {
                context.applied.fetch_add(1, Ordering::SeqCst);
                let patch = serde_json::json!({ "data": { "seen": "yes" } });
                let (name, params) = (map.name_any(), PatchParams::default());
                maps.patch(&name, &params, &Patch::Merge(patch)).await?;
            }
            finalizer::Event::Cleanup(_) => {
                context.cleaned.fetch_add(1, Ordering::SeqCst);
            }
        }
        Ok(Action::await_change())
    })
    .await
}

#[tokio::test]
async fn controller_with_finalizer_observes_every_deletion() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let context = Arc::new(Context {
        client,
        applied: AtomicUsize::new(0),
        cleaned: AtomicUsize::new(0),
    });
    let retry = |_: Arc<ConfigMap>, _: &finalizer::Error<kube::Error>, _: Arc<Context>| {
        Action::requeue(Duration::from_millis(10))
    };
    let controller = Controller::new(maps.clone(), watcher::Config::default()).run(
        reconcile,
        retry,
        Arc::clone(&context),
    );
    let controller = tokio::spawn(controller.for_each(async |_| ()));
    maps.create(&PostParams::default(), &map("m"))
        .await
        .unwrap();
    eventually("the object is reconciled", async || {
        let found = maps.get("m").await.unwrap();
        found.data.is_some_and(|data| data.contains_key("seen"))
            && found.metadata.finalizers.is_some()
    })
    .await;
    maps.delete("m", &DeleteParams::default()).await.unwrap();
    eventually("the object is deleted", async || {
        maps.get_opt("m").await.unwrap().is_none()
    })
    .await;
    assert_eq!(context.cleaned.load(Ordering::SeqCst), 1);
    assert!(context.applied.load(Ordering::SeqCst) >= 1);
    controller.abort();
}

#[tokio::test]
async fn a_recorder_publishes_and_counts_repetitions() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let about = maps
        .create(&PostParams::default(), &map("m"))
        .await
        .unwrap();
    let reporter = Reporter {
        controller: "tests".into(),
        instance: Some("one".into()),
    };
    let recorder = Recorder::new(client.clone(), reporter);
    let event = kube::runtime::events::Event {
        type_: EventType::Normal,
        reason: "Tested".into(),
        note: Some("it works".into()),
        action: "Testing".into(),
        secondary: None,
    };
    for _ in 0..3 {
        recorder
            .publish(&event, &about.object_ref(&()))
            .await
            .unwrap();
    }
    let events: Api<Event> = Api::namespaced(client, "default");
    let found = events.list(&Default::default()).await.unwrap().items;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].reason.as_deref(), Some("Tested"));
    let series = found[0].series.as_ref().map(|series| series.count);
    assert_eq!(series, Some(3));
}

#[tokio::test]
async fn kube_applies_and_shares_what_it_owns() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client(server.kubeconfig()).await, "default");
    let of = |key: &str, value: &str| {
        serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "m"}, "data": {key: value}})
    };
    let one = PatchParams::apply("one");
    let made = maps
        .patch("m", &one, &Patch::Apply(of("a", "1")))
        .await
        .unwrap();
    assert_eq!(made.managed_fields()[0].manager.as_deref(), Some("one"));
    let two = PatchParams::apply("two");
    maps.patch("m", &two, &Patch::Apply(of("b", "2")))
        .await
        .unwrap();
    let refused = maps.patch("m", &two, &Patch::Apply(of("a", "2"))).await;
    let kube::Error::Api(status) = refused.unwrap_err() else {
        panic!("expected a response of the server")
    };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    let forced = maps
        .patch("m", &two.clone().force(), &Patch::Apply(of("a", "2")))
        .await;
    let data = forced.unwrap().data.unwrap();
    assert_eq!(data.len(), 1, "manager two no longer applies b: {data:?}");
    let same = maps
        .patch("m", &two, &Patch::Apply(of("a", "2")))
        .await
        .unwrap();
    let again = maps.get("m").await.unwrap();
    assert_eq!(same.resource_version(), again.resource_version());
}

#[tokio::test]
async fn kube_defines_a_kind_and_watches_it() {
    let server = TestServer::start().await.unwrap();
    let client = client(server.kubeconfig()).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let schema = serde_json::json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"size": {"type": "integer", "default": 3}}}}});
    let definition = serde_json::json!({"apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition", "metadata": {"name": "docs.t.example"},
        "spec": {"group": "t.example", "scope": "Namespaced",
            "names": {"plural": "docs", "kind": "Doc"}, "versions": [{"name": "v1", "served": true,
                "storage": true, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}]}});
    let apply = PatchParams::apply("t").force();
    let patch = Patch::Apply(definition);
    definitions
        .patch("docs.t.example", &apply, &patch)
        .await
        .unwrap();
    let established = await_condition(
        definitions.clone(),
        "docs.t.example",
        conditions::is_crd_established(),
    );
    tokio::time::timeout(Duration::from_secs(5), established)
        .await
        .unwrap()
        .unwrap();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("t.example", "v1", "Doc"));
    let docs: Api<DynamicObject> = Api::namespaced_with(client, "default", &kind);
    let mut seen =
        std::pin::pin!(watcher(docs.clone(), watcher::Config::default()).applied_objects());
    let doc =
        serde_json::json!({"apiVersion": "t.example/v1", "kind": "Doc", "metadata": {"name": "d"}});
    docs.patch("d", &apply, &Patch::Apply(doc)).await.unwrap();
    let found = tokio::time::timeout(Duration::from_secs(5), seen.next())
        .await
        .unwrap();
    assert_eq!(found.unwrap().unwrap().name_any(), "d");
    let status = serde_json::json!({"status": {"anything": 1}});
    let pruned = docs
        .patch_status("d", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    assert_eq!(pruned.data.get("status"), None);
    definitions
        .delete("docs.t.example", &DeleteParams::default())
        .await
        .unwrap();
}
