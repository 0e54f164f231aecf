//! Tests of the manifests controller.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_apiserver::TestServer;
use tenure_apiserver::server::{Engine, Fault, Faults, Server as ApiServer};
use tenure_server::{CONTROLLERS, Server};

use super::{Running, config, embedded, until};

const INVENTORIES: &str = "tenure.dev/component=manifests";

pub(super) fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        put(&folder, name, text);
    }
    folder
}

/// Replaces a file in one step.
pub(super) fn put(folder: &TempDir, name: &str, text: &str) {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let new = folder.path().join(".new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

pub(super) fn map(name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: '{value}'}}\n---\n"
    )
}

pub(super) fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "default")
}

pub(super) async fn value(client: &Client, name: &str) -> Option<String> {
    let map = maps(client).get_opt(name).await.unwrap()?;
    map.data?.remove("k")
}

pub(super) async fn inventories(client: &Client) -> Vec<ConfigMap> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let selected = ListParams::default().labels(INVENTORIES);
    maps.list(&selected).await.unwrap().items
}

/// Runs only the manifests controller, so that it sends every request.
pub(super) fn alone(folder: &Path) -> Server {
    let others = CONTROLLERS.iter().filter(|name| **name != "manifests");
    let server = others.fold(embedded(), |server, name| server.disable(name));
    server.manifests(folder)
}

async fn get(client: &Client, path: &str) -> Result<String, kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    client.request_text(request).await
}

pub(super) async fn ready(client: &Client) {
    until("ready", async || get(client, "/readyz").await.is_ok()).await;
}

const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.x.io}
spec:
  group: x.io
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object,
      x-kubernetes-preserve-unknown-fields: true}}}
";

const INSTANCE: &str = "
apiVersion: x.io/v1
kind: Thing
metadata: {name: a, namespace: new}
spec: {size: 1}
";

const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: new}}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_in_any_order_are_applied_before_the_server_is_ready() {
    let together = format!("{INSTANCE}---{DEFINITION}---\n{NAMESPACE}\n");
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "listed" } }] });
    let early = map("early", "1").replace("{name: early}", "{name: early, namespace: late}");
    let folder = folder(&[
        ("b/together.yaml", &together),
        ("a.yaml", &early),
        ("list.json", &list.to_string()),
        ("z.yml", &NAMESPACE.replace("new", "late")),
    ]);
    let started = embedded().manifests(folder.path()).start().await.unwrap();
    let kubeconfig = started.api().unwrap().kubeconfig().to_owned();
    let client = Client::try_from(config(&kubeconfig).await).unwrap();
    let unready = get(&client, "/readyz?verbose")
        .await
        .unwrap_err()
        .to_string();
    assert!(unready.contains("[-]manifests failed: "), "{unready}");
    assert!(get(&client, "/livez").await.is_ok());

    let pass = started.first_pass();
    let (stop, asked) = tokio::sync::oneshot::channel::<()>();
    let task = tokio::spawn(started.run(asked));
    ready(&client).await;
    let pass = pass.await.unwrap();
    assert_eq!((pass.files, pass.failed), (4, 0));
    let thing: Value = {
        let path = "/apis/x.io/v1/namespaces/new/things/a";
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        client.request(request).await.unwrap()
    };
    assert_eq!(thing["spec"]["size"], 1);
    let file = format!("{}/b/together.yaml", folder.path().display());
    assert_eq!(
        thing["metadata"]["annotations"]["tenure.dev/manifest"],
        file
    );
    let manager = &thing["metadata"]["managedFields"][0];
    assert_eq!(manager["manager"], "tenure-manifests", "{manager}");
    assert_eq!(manager["operation"], "Apply");
    let late: Api<ConfigMap> = Api::namespaced(client.clone(), "late");
    assert!(late.get_opt("early").await.unwrap().is_some());
    assert!(maps(&client).get_opt("listed").await.unwrap().is_some());

    // The definition is deleted after its objects, and nothing is left.
    fs::remove_file(folder.path().join("b/together.yaml")).unwrap();
    until("the definition is gone", async || {
        get(&client, "/apis/x.io/v1").await.is_err()
    })
    .await;
    until("the inventory is gone", async || {
        inventories(&client).await.len() == 3
    })
    .await;
    drop(stop);
    task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_manifests_cause_no_requests() {
    let folder = folder(&[("a.yaml", &map("a", "1")), ("broken.yaml", "a: [")]);
    let server = Running::start(alone(folder.path())).await;
    ready(&server.client).await;
    let answered = async || {
        let text = get(&server.client, "/metrics").await.unwrap();
        let counts = text
            .lines()
            .filter(|line| line.starts_with("apiserver_request_total"));
        let count = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
        counts.filter_map(count).sum::<u64>()
    };
    // Wait for the last requests of the first pass.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = answered().await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    // The same content in another file.
    put(&folder, "a.yaml", &map("a", "1"));
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(answered().await - before, 1, "the question itself");

    put(&folder, "a.yaml", &map("a", "2"));
    until("changed", async || {
        value(&server.client, "a").await.as_deref() == Some("2")
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_move_or_are_taken_over_are_not_deleted() {
    let all = map("moves", "1") + &map("taken", "1") + &map("goes", "1") + &map("renamed", "1");
    let folder = folder(&[("b.yaml", &all)]);
    let server = Running::start(alone(folder.path())).await;
    let client = &server.client;
    ready(client).await;
    let uid = async |name: &str| maps(client).get(name).await.unwrap().uid().unwrap();
    let (moves, renamed) = (uid("moves").await, uid("renamed").await);
    let taken = json!({ "metadata": { "annotations": { "tenure.dev/manifest": null } } });
    let parameters = PatchParams::default();
    let patched = maps(client)
        .patch("taken", &parameters, &Patch::Merge(taken))
        .await;
    patched.unwrap();

    // The objects move to a file before and a file after the old one, and to an explicit namespace.
    put(&folder, "a.yaml", &map("moves", "2"));
    let explicit =
        map("renamed", "2").replace("{name: renamed}", "{name: renamed, namespace: default}");
    put(&folder, "b.yaml", &explicit);
    until("deleted", async || value(client, "goes").await.is_none()).await;
    until("settled", async || {
        let mut lines: Vec<String> = Vec::new();
        for inventory in inventories(client).await {
            let objects = &inventory.data.unwrap()["objects"];
            lines.extend(objects.lines().map(str::to_owned));
        }
        lines == ["v1 ConfigMap /moves", "v1 ConfigMap default/renamed"]
    })
    .await;
    assert_eq!(uid("moves").await, moves);
    assert_eq!(uid("renamed").await, renamed);
    assert_eq!(value(client, "moves").await.as_deref(), Some("2"));
    assert_eq!(value(client, "renamed").await.as_deref(), Some("2"));
    assert_eq!(value(client, "taken").await.as_deref(), Some("1"));

    // The whole file is renamed.
    fs::rename(folder.path().join("a.yaml"), folder.path().join("c.yaml")).unwrap();
    until("the old inventory is gone", async || {
        let files: Vec<String> = inventories(client)
            .await
            .into_iter()
            .map(|inventory| inventory.data.unwrap()["file"].clone())
            .collect();
        files == ["b.yaml", "c.yaml"]
    })
    .await;
    assert_eq!(uid("moves").await, moves);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_file_is_reported_once_and_keeps_what_it_applied() {
    let folder = folder(&[("a.yaml", &map("a", "1")), ("z.yaml", &map("z", "1"))]);
    let server = Running::start(alone(folder.path())).await;
    let client = &server.client;
    ready(client).await;
    put(&folder, "a.yaml", &(map("a", "2") + "kind: Nothing\n"));
    let failed = async || {
        let events: Api<Event> = Api::namespaced(client.clone(), "kube-system");
        let events = events.list(&ListParams::default()).await.unwrap();
        let failed = events
            .items
            .into_iter()
            .filter(|e| e.reason.as_deref() == Some("Failed"));
        failed.collect::<Vec<_>>()
    };
    until("an event", async || !failed().await.is_empty()).await;
    let event = failed().await.remove(0);
    let message = event.message.unwrap();
    let expected = format!(
        "{}/a.yaml: document 2: apiVersion is missing",
        folder.path().display()
    );
    assert_eq!(message, expected);
    assert_eq!(event.involved_object.kind.as_deref(), Some("ConfigMap"));
    assert_eq!(value(client, "a").await.as_deref(), Some("1"));

    // An object that the API server rejects does not block the other objects of its file.
    let rejected = map("a", "3") + &map("Not_Valid", "3") + &map("b", "3");
    put(&folder, "a.yaml", &rejected);
    until("the valid ones", async || {
        value(client, "b").await.as_deref() == Some("3")
    })
    .await;
    assert_eq!(value(client, "a").await.as_deref(), Some("3"));
    until("the reason", async || {
        let inventories = inventories(client).await;
        let errors = inventories
            .iter()
            .filter_map(|map| map.data.as_ref()?.get("error"));
        errors.into_iter().any(|error| {
            error.starts_with("document 2 (ConfigMap \"Not_Valid\"): ") && error.contains("Invalid")
        })
    })
    .await;
    assert!(failed().await.len() <= 2, "bounded");
    // The object is deleted with its file, although the file was never applied completely.
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    until("deleted", async || {
        value(client, "a").await.is_none() && value(client, "b").await.is_none()
    })
    .await;
    assert_eq!(value(client, "z").await.as_deref(), Some("1"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kind_that_is_never_served_delays_readiness_for_a_few_seconds_only() {
    let folder = folder(&[("a.yaml", INSTANCE), ("b.yaml", &map("b", "1"))]);
    let server = Running::start(alone(folder.path())).await;
    ready(&server.client).await;
    assert_eq!(value(&server.client, "b").await.as_deref(), Some("1"));
    put(
        &folder,
        "c.yaml",
        &format!("{DEFINITION}---\n{NAMESPACE}\n"),
    );
    until("applied when its kind is served", async || {
        get(&server.client, "/apis/x.io/v1/namespaces/new/things/a")
            .await
            .is_ok()
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_requests_and_lost_answers_are_retried_until_nothing_is_left() {
    let faults = Arc::new(Faults::default());
    let api = ApiServer::builder()
        .engine(Engine::Memory)
        .faults(faults.clone());
    let names: Vec<String> = (0..20).map(|n| format!("m{n}")).collect();
    let text: String = names.iter().map(|name| map(name, "1")).collect();
    let folder = folder(&[("a.yaml", &text), (".keep", "")]);
    let maps_path = "/api/v1/namespaces/default/configmaps";
    let lost = faults.add(Fault::drop_answer().path(maps_path).verb("patch").times(5));
    let failed = faults.add(Fault::answer(503).path(maps_path).verb("patch").times(7));
    let server = Running::start(Server::embedded(api).manifests(folder.path())).await;
    let client = &server.client;
    until("all applied", async || {
        let mut applied = 0;
        for name in &names {
            applied += usize::from(value(client, name).await.is_some());
        }
        applied == names.len()
    })
    .await;
    assert_eq!((lost.hits(), failed.hits()), (5, 7));
    let lost = faults.add(Fault::drop_answer().path(maps_path).verb("delete").times(3));
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    until("all deleted", async || inventories(client).await.is_empty()).await;
    assert_eq!(lost.hits(), 3);
    for name in &names {
        assert_eq!(value(client, name).await, None, "{name}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_servers_applies_and_deletes_only_its_own_objects() {
    let api = TestServer::start().await.unwrap();
    let client = api.client().unwrap();
    let (a, b) = (
        folder(&[("x.yaml", &map("a", "1"))]),
        folder(&[("x.yaml", &map("b", "1"))]),
    );
    let start = async |folder: &TempDir| {
        let server = Server::remote(config(api.kubeconfig()).await);
        Running::start(server.manifests(folder.path())).await
    };
    let first = start(&a).await;
    until("the first one acts", async || {
        value(&client, "a").await.is_some()
    })
    .await;
    // Another host with the same folder has other inventories.
    let host = tenure::identity::hostname();
    let source = format!("{host}:{}", a.path().display());
    let inventory = inventories(&client).await.remove(0);
    assert_eq!(inventory.data.unwrap()["source"], source);
    let second = start(&b).await;
    put(&a, "x.yaml", &map("a", "2"));
    until("the first one acts", async || {
        value(&client, "a").await.as_deref() == Some("2")
    })
    .await;
    assert_eq!(
        value(&client, "b").await,
        None,
        "the second one does not act"
    );
    first.stop().await;
    until("the second one takes over", async || {
        value(&client, "b").await.is_some()
    })
    .await;
    put(&b, "x.yaml", &map("c", "1"));
    until("the second one deletes", async || {
        value(&client, "b").await.is_none()
    })
    .await;
    assert_eq!(
        value(&client, "a").await.as_deref(),
        Some("2"),
        "of the other server"
    );
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folder_that_is_missing_deletes_nothing_and_skipped_files_stay() {
    let folder = folder(&[("a.yaml", &map("a", "1")), ("b.yaml", &map("b", "1"))]);
    put(&folder, "b.yaml.skip", "");
    let server = Running::start(alone(folder.path())).await;
    let client = &server.client;
    ready(client).await;
    assert_eq!(value(client, "b").await, None);
    fs::remove_file(folder.path().join("b.yaml.skip")).unwrap();
    until("applied without the skip file", async || {
        value(client, "b").await.is_some()
    })
    .await;
    put(&folder, "b.yaml.skip", "");
    put(&folder, "b.yaml", &map("b", "2"));
    let away = folder.path().with_extension("away");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(value(client, "b").await.as_deref(), Some("1"), "skipped");
    fs::remove_file(folder.path().join("b.yaml")).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(value(client, "b").await.as_deref(), Some("1"), "skipped");

    fs::rename(folder.path(), &away).unwrap();
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(value(client, "a").await.as_deref(), Some("1"), "no folder");
    fs::rename(&away, folder.path()).unwrap();
    fs::remove_file(folder.path().join("b.yaml.skip")).unwrap();
    until("deleted with its file", async || {
        value(client, "b").await.is_none()
    })
    .await;
    assert_eq!(value(client, "a").await.as_deref(), Some("1"));
    server.stop().await;
}
