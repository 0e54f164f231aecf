//! Lists and pages.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure_apiserver::store::{MemoryStore, Retention};

use crate::support::Server;
use crate::{MAPS, create, is, map};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().expect("items");
    items
        .iter()
        .map(|i| i["metadata"]["name"].as_str().expect("name").to_owned())
        .collect()
}

#[tokio::test]
async fn all_pages_have_the_revision_of_the_first() {
    let server = Server::start().await;
    for index in 0..25 {
        create(&server, MAPS, map(&format!("m{index:02}"), "old")).await;
    }
    let mut path = format!("{MAPS}?limit=7");
    let (mut all, mut versions, mut remaining) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let page = server.call("GET", &path, None).await.json();
        assert!(
            page["items"]
                .as_array()
                .expect("items")
                .iter()
                .all(|i| i["data"]["k"] == "old")
        );
        all.extend(names(&page));
        versions.push(page["metadata"]["resourceVersion"].clone());
        remaining.push(
            page["metadata"]
                .get("remainingItemCount")
                .and_then(Value::as_u64),
        );
        // Later pages do not show changes after the first page: one object removed, one added, one changed.
        let round = versions.len();
        server
            .call("DELETE", &format!("{MAPS}/m{:02}", 24 - round), None)
            .await;
        create(&server, MAPS, map(&format!("m{:02}x", 20 + round), "new")).await;
        let change = json!({"data": {"k": "new"}});
        server
            .call("PATCH", &format!("{MAPS}/m{:02}", 10 + round), Some(change))
            .await;
        let Some(token) = page["metadata"].get("continue").and_then(Value::as_str) else {
            break;
        };
        path = format!("{MAPS}?limit=7&continue={token}");
    }
    let want: Vec<String> = (0..25).map(|index| format!("m{index:02}")).collect();
    assert_eq!(all, want);
    assert!(versions.iter().all(|version| *version == versions[0]));
    assert_eq!(remaining, [Some(18), Some(11), Some(4), None]);
}

#[tokio::test]
async fn pages_work_with_selectors_and_over_all_namespaces() {
    let server = Server::start().await;
    for namespace in ["default", "kube-public"] {
        for index in 0..6 {
            let labels = json!({"odd": (index % 2).to_string(), "mine": "yes"});
            let body = json!({"metadata": {"name": format!("m{index}"), "labels": labels}});
            create(
                &server,
                &format!("/api/v1/namespaces/{namespace}/configmaps"),
                body,
            )
            .await;
        }
    }
    let select = "labelSelector=odd%3D1%2Cmine%3Dyes&limit=2";
    let mut path = format!("/api/v1/configmaps?{select}");
    let mut all = Vec::new();
    loop {
        let page = server.call("GET", &path, None).await.json();
        assert!(page["metadata"].get("remainingItemCount").is_none());
        all.extend(names(&page));
        let Some(token) = page["metadata"].get("continue").and_then(Value::as_str) else {
            break;
        };
        path = format!("/api/v1/configmaps?{select}&continue={token}");
    }
    assert_eq!(all, ["m1", "m3", "m5", "m1", "m3", "m5"]);
    let path =
        "/api/v1/configmaps?fieldSelector=metadata.namespace%3Dkube-public%2Cmetadata.name%3Dm1";
    let one = server.call("GET", path, None).await.json();
    assert_eq!(names(&one), ["m1"]);
}

#[tokio::test]
async fn expired_page_returns_an_inconsistent_continue_token() {
    let retention = Retention {
        min_events: 2,
        max_events: 4,
        ..Retention::default()
    };
    let server = Server::start_on(Arc::new(MemoryStore::with(retention))).await;
    for index in 0..4 {
        create(&server, MAPS, map(&format!("m{index}"), "0")).await;
    }
    let page = server
        .call("GET", &format!("{MAPS}?limit=2"), None)
        .await
        .json();
    let token = page["metadata"]["continue"]
        .as_str()
        .expect("token")
        .to_owned();
    for round in 0..60 {
        let change = json!({"data": {"k": format!("x{round}")}});
        server
            .call("PATCH", &format!("{MAPS}/m0"), Some(change))
            .await;
    }
    let late = server
        .call("GET", &format!("{MAPS}?limit=2&continue={token}"), None)
        .await;
    is(&late, 410, "Expired");
    let status = late.json();
    let token = status["metadata"]["continue"]
        .as_str()
        .expect("expected a continue token");
    let rest = server
        .call("GET", &format!("{MAPS}?limit=2&continue={token}"), None)
        .await
        .json();
    assert_eq!(names(&rest), ["m2", "m3"]);
}

#[tokio::test]
async fn resource_version_of_a_list_selects_its_state() {
    let server = Server::start().await;
    let first = create(&server, MAPS, map("a", "1")).await.version();
    create(&server, MAPS, map("b", "1")).await;
    let list = async |query: String| {
        names(
            &server
                .call("GET", &format!("{MAPS}?{query}"), None)
                .await
                .json(),
        )
    };
    assert_eq!(list(format!("resourceVersion={first}")).await, ["a", "b"]);
    assert_eq!(
        list(format!("resourceVersion={first}&limit=5")).await,
        ["a"]
    );
    assert_eq!(
        list(format!(
            "resourceVersion={first}&resourceVersionMatch=Exact"
        ))
        .await,
        ["a"]
    );
    assert_eq!(list("resourceVersion=0&limit=1".into()).await, ["a", "b"]);
    let get = server
        .call("GET", &format!("{MAPS}/a?resourceVersion={first}"), None)
        .await;
    assert_eq!(get.status, 200);
}
