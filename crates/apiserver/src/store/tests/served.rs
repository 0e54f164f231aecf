//! Responses of a server whose disk fails.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::super::RedbStore;
use super::medium::{Faults, Medium, small};
use crate::TestServer;
use crate::server::tests::{Answer, get, post};
use crate::server::{Engine, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn serve(medium: &Medium) -> TestServer {
    let store = RedbStore::on(medium.media(), small()).unwrap();
    let engine = Engine::Custom(Arc::new(store));
    let builder = Server::builder().no_tls().engine(engine);
    TestServer::start_with(builder).await.unwrap()
}

async fn create(server: &TestServer, name: &str) -> Answer {
    let map = json!({"metadata": {"name": name}});
    post(server.url(), MAPS, server.token(), &map).await
}

async fn read(server: &TestServer, name: &str) -> u16 {
    let path = format!("{MAPS}/{name}");
    let answer = get(server.url(), &path, server.token()).await;
    answer.code.as_u16()
}

/// Returns the status code of a health path and its line about the store.
async fn health(server: &TestServer, path: &str) -> (u16, String) {
    let answer = get(server.url(), path, "").await;
    let text = answer.body.as_str().unwrap_or_default();
    let store = text.lines().find(|line| line.contains("]etcd "));
    (answer.code.as_u16(), store.unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_failed_sync_fails_readyz_and_every_later_write() {
    let medium = Medium::default();
    let server = serve(&medium).await;
    assert_eq!(create(&server, "kept").await.code, 201);
    assert_eq!(health(&server, "/readyz").await.0, 200);
    let sync = Faults {
        sync: true,
        ..Faults::default()
    };
    // The second write is rejected although the disk works again.
    for (name, faults) in [("first", sync), ("second", Faults::default())] {
        medium.fault(faults);
        let refused = create(&server, name).await;
        assert_eq!(refused.code, 500, "{}", refused.body);
        assert_eq!(refused.body["reason"], "InternalError");
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains("the sync failed"), "{message}");
        let (code, store) = health(&server, "/readyz").await;
        assert_eq!(code, 500);
        let why = "[-]etcd failed: ";
        assert!(
            store.starts_with(why) && store.contains("the sync failed"),
            "{store}"
        );
        assert_eq!(read(&server, name).await, 404);
    }
    assert_eq!(health(&server, "/livez").await.0, 200);
    assert_eq!(read(&server, "kept").await, 200);
}

#[tokio::test]
async fn full_disk_is_507_until_there_is_space() {
    let medium = Medium::default();
    let server = serve(&medium).await;
    assert_eq!(create(&server, "kept").await.code, 201);
    medium.fault(Faults {
        writes: Some(0),
        ..Faults::default()
    });
    let refused = create(&server, "refused").await;
    assert_eq!(refused.code, 507, "{}", refused.body);
    assert_eq!(refused.body["reason"], "InsufficientStorage");
    let message = refused.body["message"].as_str().unwrap();
    let why = "nothing was changed: no space left for writes";
    assert!(message.starts_with(why), "{message}");
    assert_eq!(health(&server, "/readyz").await.0, 500);
    assert_eq!(health(&server, "/livez").await.0, 200);
    assert_eq!(read(&server, "kept").await, 200);
    assert_eq!(read(&server, "refused").await, 404);

    medium.fault(Faults::default());
    for _ in 0..1200 {
        if health(&server, "/readyz").await.0 == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(create(&server, "refused").await.code, 201);
}
