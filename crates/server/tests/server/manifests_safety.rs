//! Tests that manifests do not delete objects wrongly and do not disclose secrets.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::manifests::{alone, folder, inventories, map, maps, put, ready, value};
use super::{Running, until};

/// More than the two scans after which a missing file counts as removed.
const LOOKS: Duration = Duration::from_secs(8);

async fn errors(client: &Client) -> Vec<String> {
    let inventories = inventories(client).await;
    let error = |map: ConfigMap| map.data?.remove("error");
    inventories.into_iter().filter_map(error).collect()
}

async fn uid(client: &Client, name: &str) -> String {
    maps(client).get(name).await.unwrap().uid().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_whose_file_moves_to_a_later_folder_is_not_deleted() {
    let (first, second) = (folder(&[("a.yaml", &map("a", "1"))]), folder(&[]));
    for folder in [&first, &second] {
        put(folder, ".keep", "");
    }
    let server = alone(first.path()).manifests(second.path());
    let server = Running::start(server).await;
    let client = &server.client;
    ready(client).await;
    let before = uid(client, "a").await;
    let (from, to) = (first.path().join("a.yaml"), second.path().join("a.yaml"));
    // Temporary folders are on the same file system.
    fs::rename(from, to).unwrap();
    let source = second.path().display().to_string();
    until("only the new file has an inventory", async || {
        let inventories = inventories(client).await;
        let sources = inventories
            .iter()
            .map(|map| &map.data.as_ref().unwrap()["source"]);
        sources.eq([&source])
    })
    .await;
    assert_eq!(uid(client, "a").await, before);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folder_without_entries_deletes_nothing_until_it_says_that_it_is_empty() {
    let folder = folder(&[("a.yaml", &map("a", "1"))]);
    let server = Running::start(alone(folder.path())).await;
    let client = &server.client;
    ready(client).await;
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    tokio::time::sleep(LOOKS).await;
    assert_eq!(value(client, "a").await.as_deref(), Some("1"));
    put(&folder, ".keep", "");
    until("deleted", async || value(client, "a").await.is_none()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folder_that_is_replaced_deletes_nothing_while_files_are_missing() {
    let folder = folder(&[("a.yaml", &map("a", "1")), ("b.yaml", &map("b", "1"))]);
    let server = Running::start(alone(folder.path())).await;
    let client = &server.client;
    ready(client).await;
    let away = folder.path().with_extension("away");
    fs::rename(folder.path(), &away).unwrap();
    fs::create_dir(folder.path()).unwrap();
    put(&folder, "a.yaml", &map("a", "2"));
    until("applied from the new folder", async || {
        value(client, "a").await.as_deref() == Some("2")
    })
    .await;
    tokio::time::sleep(LOOKS).await;
    assert_eq!(value(client, "b").await.as_deref(), Some("1"));
    // With all files present, the new folder replaces the old one.
    put(&folder, "b.yaml", &map("b", "2"));
    until("applied", async || {
        value(client, "b").await.as_deref() == Some("2")
    })
    .await;
    fs::remove_file(folder.path().join("b.yaml")).unwrap();
    until("deleted", async || value(client, "b").await.is_none()).await;
    fs::remove_dir_all(away).unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_becomes_unusable_keeps_its_objects() {
    let outside = folder(&[("a.yaml", &map("a", "2"))]);
    let folder = folder(&[
        ("a.yaml", &map("a", "1")),
        ("sub/b.yaml", &map("b", "1")),
        ("c.yaml", &map("c", "1")),
    ]);
    let server = Running::start(alone(folder.path())).await;
    let client = &server.client;
    ready(client).await;
    let replace = |name: &str, target: &Path| {
        let link = folder.path().join(".link");
        symlink(target, &link).unwrap();
        fs::rename(link, folder.path().join(name)).unwrap();
    };
    replace("a.yaml", &outside.path().join("a.yaml"));
    fs::remove_dir_all(folder.path().join("sub")).unwrap();
    replace("sub", outside.path());
    fs::remove_file(folder.path().join("c.yaml")).unwrap();
    until("removed", async || value(client, "c").await.is_none()).await;
    tokio::time::sleep(LOOKS).await;
    assert_eq!(value(client, "a").await.as_deref(), Some("1"));
    assert_eq!(value(client, "b").await.as_deref(), Some("1"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_that_is_being_deleted_is_applied_again_when_it_is_gone() {
    let folder = folder(&[("z.yaml", &map("z", "1"))]);
    let server = Running::start(alone(folder.path())).await;
    let client = &server.client;
    ready(client).await;
    let held = json!({ "metadata": { "name": "a", "finalizers": ["example.com/hold"] } });
    let held = serde_json::from_value(held).unwrap();
    maps(client)
        .create(&PostParams::default(), &held)
        .await
        .unwrap();
    maps(client)
        .delete("a", &DeleteParams::default())
        .await
        .unwrap();
    let old = uid(client, "a").await;
    put(&folder, "a.yaml", &map("a", "1"));
    until("the reason", async || {
        let errors = errors(client).await;
        errors.iter().any(|error| error.contains("being deleted"))
    })
    .await;
    let free = json!({ "metadata": { "finalizers": null } });
    let parameters = PatchParams::default();
    let patched = maps(client)
        .patch("a", &parameters, &Patch::Merge(free))
        .await;
    patched.unwrap();
    until("created again", async || {
        let found = maps(client).get_opt("a").await.unwrap();
        found.is_some_and(|map| map.uid().unwrap() != old)
    })
    .await;
    until("no error", async || errors(client).await.is_empty()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_and_checksum_of_a_secret_are_not_disclosed() {
    let secret = |data: &str| {
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{k: {data}}}\n")
    };
    let folder = folder(&[("s.yaml", &secret("[hunter2]")), ("a.yaml", &map("a", "1"))]);
    let server = Running::start(alone(folder.path())).await;
    let client = &server.client;
    until("the reason", async || !errors(client).await.is_empty()).await;
    let reason = errors(client).await.remove(0);
    assert!(
        reason.starts_with("document 1 (Secret \"s\"): "),
        "{reason}"
    );
    assert!(reason.contains("omitted"), "{reason}");
    put(&folder, "s.yaml", &secret("hunter2"));
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    until("applied", async || {
        secrets.get_opt("s").await.unwrap().is_some() && errors(client).await.is_empty()
    })
    .await;
    let inventories = inventories(client).await;
    for inventory in &inventories {
        let data = inventory.data.as_ref().unwrap();
        assert_eq!(data.contains_key("checksum"), data["file"] == "a.yaml");
    }
    let events: Api<Event> = Api::namespaced(client.clone(), "kube-system");
    let events = events.list(&ListParams::default()).await.unwrap();
    let text = serde_json::to_string(&(inventories, events)).unwrap();
    assert!(
        text.contains("Failed") && !text.contains("hunter2"),
        "{text}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_error_of_a_file_is_reported_soon_after_the_first() {
    let folder = folder(&[("a.yaml", "kind: A\n"), ("z.yaml", &map("z", "1"))]);
    let server = Running::start(alone(folder.path())).await;
    let client = &server.client;
    let reported = async |expected: &str| {
        let errors = errors(client).await;
        errors.iter().any(|error| error.contains(expected))
    };
    until("first", async || reported("apiVersion is missing").await).await;
    put(&folder, "a.yaml", "apiVersion: v1\n");
    until("second", async || reported("kind is missing").await).await;
    server.stop().await;
}
