//! What manifests must not delete.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use kube::{Client, ResourceExt as _};

use super::manifests::{alone, folder, inventories, map, maps, put, ready, value};
use super::{Running, until};

/// More than the two looks after which a missing file counts as removed.
const LOOKS: Duration = Duration::from_secs(8);

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
    // Folders of temporary files are on one file system.
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
    // With all files it is the folder from now on.
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
