//! Events are deleted one hour after their last update.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_apiserver::store::{Change, Expected, Key, Write};

use crate::create;
use crate::support::Server;

const EVENTS: &str = "/api/v1/namespaces/default/events";

#[tokio::test]
async fn a_running_server_removes_an_old_event_and_keeps_a_young_one() {
    let server = Server::start().await;
    for name in ["old", "young"] {
        let event = json!({"metadata": {"name": name},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
        create(&server, EVENTS, event).await;
    }
    // The event is written to the store directly, because a request cannot set an old time.
    let key = Key {
        resource: "/events".into(),
        namespace: "default".to_owned(),
        name: "old".to_owned(),
    };
    let stored = server.store.get(&key).expect("the event does not exist");
    let mut event: Value = serde_json::from_slice(&stored.json).expect("JSON");
    event["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    let expected = Expected::Revision(stored.revision);
    let write = Write::new(key.clone(), expected, Change::Put(event.into()));
    server
        .store
        .write(write)
        .await
        .expect("the event was not stored");

    // A paused clock advances immediately to the next search of the server.
    tokio::time::pause();
    let gone = async {
        while server.store.get(&key).is_some() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(600), gone).await;
    assert!(gone.is_ok(), "the old event is still there");
    tokio::time::resume();
    let status = async |name| {
        let path = format!("{EVENTS}/{name}");
        server.call("GET", &path, None).await.status
    };
    assert_eq!(status("old").await, 404);
    assert_eq!(status("young").await, 200);
}
