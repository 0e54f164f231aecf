//! Watches: order, completeness, selection, bookmarks, end of streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::Server;
use crate::{LEASES, MAPS, create, map};
use tenure_apiserver::store::{MemoryStore, Retention};

fn version(event: &Value) -> u64 {
    let text = event["object"]["metadata"]["resourceVersion"]
        .as_str()
        .expect("version");
    text.parse().expect("number")
}

#[tokio::test]
async fn a_watch_from_a_list_misses_nothing_and_repeats_nothing() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "0")).await;
    let list = server.call("GET", MAPS, None).await;
    let mut watch = server
        .watch(&format!(
            "{MAPS}?watch=1&resourceVersion={}",
            list.version()
        ))
        .await;
    let mut want = Vec::new();
    for round in 1..=20 {
        let change = json!({"data": {"k": round.to_string()}});
        want.push(
            server
                .call("PATCH", &format!("{MAPS}/a"), Some(change))
                .await
                .version(),
        );
    }
    for revision in want {
        let event = watch.expect().await;
        assert_eq!(event["type"], "MODIFIED");
        assert_eq!(version(&event), revision);
    }
}

#[tokio::test]
async fn watch_list_sends_the_state_and_an_initial_events_end_bookmark() {
    let server = Server::start().await;
    for name in ["a", "b", "c"] {
        create(&server, MAPS, map(name, "1")).await;
    }
    let options =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = server.watch(&format!("{MAPS}?watch=1&{options}")).await;
    for name in ["a", "b", "c"] {
        let event = watch.expect().await;
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&json!("ADDED"), &json!(name))
        );
    }
    let mark = watch.expect().await;
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["kind"], "ConfigMap");
    assert_eq!(
        mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    let next = create(&server, MAPS, map("d", "1")).await;
    let event = watch.expect().await;
    assert_eq!(version(&event), next.version());
    assert!(version(&mark) < next.version());
}

#[tokio::test]
async fn watch_list_without_bookmarks_or_without_initial_events() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    let only_changes = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut changes = server
        .watch(&format!("{MAPS}?watch=1&{only_changes}"))
        .await;
    let state = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0";
    let mut state = server.watch(&format!("{MAPS}?watch=1&{state}")).await;
    assert_eq!(state.expect().await["object"]["metadata"]["name"], "a");
    create(&server, MAPS, map("b", "1")).await;
    assert_eq!(state.expect().await["object"]["metadata"]["name"], "b");
    assert_eq!(changes.expect().await["object"]["metadata"]["name"], "b");
}

#[tokio::test]
async fn watch_from_expired_version_sends_410_in_the_stream() {
    let retention = Retention {
        min_events: 2,
        max_events: 4,
        ..Retention::default()
    };
    let server = Server::start_on(Arc::new(MemoryStore::with(retention))).await;
    let first = create(&server, MAPS, map("a", "0")).await.version();
    for round in 0..60 {
        let change = json!({"data": {"k": format!("x{round}")}});
        server
            .call("PATCH", &format!("{MAPS}/a"), Some(change))
            .await;
    }
    let mut watch = server
        .watch(&format!("{MAPS}?watch=1&resourceVersion={first}"))
        .await;
    assert_eq!(watch.status, 200);
    let event = watch.expect().await;
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(watch.next().await, None);
    let list = server
        .call(
            "GET",
            &format!("{MAPS}?resourceVersion={first}&resourceVersionMatch=Exact"),
            None,
        )
        .await;
    crate::is(&list, 410, "Expired");
}

#[tokio::test]
async fn field_selector_watch_reports_objects_that_start_and_stop_matching() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let from = create(&server, pods, pod).await.version();
    let query = format!("watch=1&resourceVersion={from}&fieldSelector=status.phase%3DRunning");
    let mut watch = server.watch(&format!("{pods}?{query}")).await;
    for phase in ["Running", "Running", "Failed"] {
        let status = json!({"status": {"phase": phase, "message": phase}});
        let answer = server
            .call("PATCH", &format!("{pods}/p/status"), Some(status))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.json());
    }
    let added = watch.expect().await;
    assert_eq!(
        (&added["type"], &added["object"]["status"]["phase"]),
        (&json!("ADDED"), &json!("Running"))
    );
    let gone = watch.expect().await;
    assert_eq!(
        (&gone["type"], &gone["object"]["status"]["phase"]),
        (&json!("DELETED"), &json!("Running"))
    );
    assert!(version(&gone) > version(&added));
}

#[tokio::test]
async fn shutting_down_ends_watches_cleanly() {
    let server = Server::start().await;
    let mut watch = server.watch(&format!("{LEASES}?watch=1")).await;
    server.api.shutdown();
    assert_eq!(watch.next().await, None);
    let mut late = server.watch(&format!("{LEASES}?watch=1")).await;
    assert_eq!(late.next().await, None);
}

#[tokio::test]
async fn the_last_bookmark_comes_before_the_end() {
    let server = Server::start().await;
    let query = "watch=1&allowWatchBookmarks=1&timeoutSeconds=3";
    let mut watch = server.watch(&format!("{LEASES}?{query}")).await;
    let mut seen = Vec::new();
    while let Some(event) = watch.next().await {
        seen.push(event);
    }
    let kinds: Vec<_> = seen
        .iter()
        .map(|event| event["type"].as_str().expect("type"))
        .collect();
    assert_eq!(kinds, ["BOOKMARK", "BOOKMARK"]);
    assert!(seen[1]["object"]["metadata"].get("annotations").is_none());
}

#[tokio::test]
async fn future_resource_version_is_awaited_and_then_rejected() {
    let server = Server::start().await;
    let now = server.call("GET", LEASES, None).await.version();
    let future = now + 1;
    let path = format!("{MAPS}?resourceVersion={future}");
    let (list, _) = tokio::join!(
        server.call("GET", &path, None),
        create(&server, MAPS, map("a", "1"))
    );
    assert_eq!(list.status, 200);
    assert!(list.version() >= future);
    let late = server
        .call(
            "GET",
            &format!("{LEASES}?resourceVersion={}", now + 1_000),
            None,
        )
        .await;
    crate::is(&late, 504, "Timeout");
    assert_eq!(
        late.json()["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    assert_eq!(late.headers["retry-after"], "1");
    let watch_list = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let path = format!("{LEASES}?{watch_list}&resourceVersion={}", now + 1_000);
    let mut watch = server.watch(&path).await;
    let event = watch.expect().await;
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(504))
    );
}

#[tokio::test]
async fn tables_and_metadata_stream_too() {
    let server = Server::start().await;
    let from = server.call("GET", MAPS, None).await.version();
    let accept = |shape: &str| format!("application/json;as={shape};v=v1;g=meta.k8s.io");
    let path = format!("{MAPS}?watch=1&resourceVersion={from}");
    let open = async |shape: &str| {
        let accept = accept(shape);
        let headers = [
            ("authorization", "Bearer admintoken"),
            ("accept", accept.as_str()),
        ];
        let response =
            crate::support::request(server.address, "GET", &path, &headers, Vec::new()).await;
        crate::support::Stream::of(response)
    };
    let mut tables = open("Table").await;
    let mut parts = open("PartialObjectMetadata").await;
    create(&server, MAPS, map("a", "1")).await;
    create(&server, MAPS, map("b", "1")).await;
    let first = tables.expect().await;
    assert_eq!(first["object"]["kind"], "Table");
    assert_eq!(first["object"]["rows"][0]["cells"][0], "a");
    assert!(first["object"]["columnDefinitions"].is_array());
    assert!(tables.expect().await["object"]["columnDefinitions"].is_null());
    let part = parts.expect().await;
    assert_eq!(part["object"]["kind"], "PartialObjectMetadata");
    assert!(part["object"].get("data").is_none());
}

/// Many writers, and several watchers that start at different revisions: each watcher receives all events in order, and
/// they result in the final state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_watchers_receive_the_same_events_under_load() {
    let server = Arc::new(Server::start().await);
    let start = server.call("GET", MAPS, None).await.version();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let server = Arc::clone(&server);
        writers.spawn(async move {
            for round in 1..=15 {
                let name = format!("m{writer}");
                create(&server, MAPS, map(&name, "0")).await;
                let change = json!({"data": {"k": round.to_string()}});
                server
                    .call("PATCH", &format!("{MAPS}/{name}"), Some(change))
                    .await;
                server.call("DELETE", &format!("{MAPS}/{name}"), None).await;
            }
            create(&server, MAPS, map(&format!("end{writer}"), "0")).await;
        });
    }
    let mut watchers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let server = Arc::clone(&server);
        watchers.spawn(async move {
            let mut watch = server
                .watch(&format!("{MAPS}?watch=1&resourceVersion={start}"))
                .await;
            let mut state: BTreeMap<String, u64> = BTreeMap::new();
            let (mut last, mut ends, mut count) = (start, 0, 0);
            while ends < 4 {
                let event = watch.expect().await;
                let name = event["object"]["metadata"]["name"]
                    .as_str()
                    .expect("name")
                    .to_owned();
                assert!(version(&event) > last, "{event}");
                last = version(&event);
                count += 1;
                ends += u32::from(name.starts_with("end"));
                match event["type"].as_str().expect("type") {
                    "ADDED" => assert!(state.insert(name, last).is_none()),
                    "MODIFIED" => assert!(state.insert(name, last).is_some()),
                    "DELETED" => assert!(state.remove(&name).is_some()),
                    other => panic!("{other}"),
                }
            }
            (state.into_keys().collect::<Vec<_>>(), count)
        });
    }
    while let Some(done) = writers.join_next().await {
        done.expect("writer");
    }
    while let Some(seen) = watchers.join_next().await {
        let (names, count) = seen.expect("watcher");
        assert_eq!(names, ["end0", "end1", "end2", "end3"]);
        assert_eq!(count, 4 * (15 * 3 + 1));
    }
}
