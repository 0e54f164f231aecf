//! Files in the data directory, and their use by the next server.

use std::os::unix::fs::PermissionsExt as _;

use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use serde_json::json;

use super::{LEASES, connect, get, post, request};
use crate::TestServer;
use crate::server::{Engine, Instance, Server};

#[tokio::test]
async fn a_second_server_on_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = Server::builder()
        .data_dir(dir.path())
        .start()
        .await
        .unwrap();
    let error = Server::builder()
        .data_dir(dir.path())
        .start()
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("in use by the server with pid"), "{error}");
    assert!(error.contains(&std::process::id().to_string()), "{error}");

    let instance = Instance::read(dir.path()).unwrap().unwrap();
    assert!(instance.is_alive());
    assert_eq!(instance.url, first.url());
    assert_eq!(instance.kubeconfig, first.kubeconfig_path().unwrap());
    first.shutdown().await;
    assert_eq!(Instance::read(dir.path()).unwrap(), None);
    Server::builder()
        .data_dir(dir.path())
        .start()
        .await
        .unwrap()
        .shutdown()
        .await;
}

#[tokio::test]
async fn certificates_and_keys_last_and_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let extra = dir.path().join("copy/kubeconfig");
    let state = dir.path().join("state");
    let start = || {
        Server::builder()
            .data_dir(&state)
            .write_kubeconfig(&extra)
            .server_names(["api.example"])
    };
    let first = start().start().await.unwrap();
    let (ca, keys) = (
        first.pki().unwrap().ca.clone(),
        first.auth().issuer().key_set(),
    );
    assert_eq!(std::fs::read_to_string(&extra).unwrap(), first.kubeconfig());
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for path in [
        &extra,
        &state.join("kubeconfig"),
        &state.join("sa.key"),
        &state.join("pki/ca.key"),
    ] {
        assert_eq!(mode(path), 0o600, "{}", path.display());
    }
    assert_eq!(mode(&state), 0o700);
    first.shutdown().await;
    let second = start().start().await.unwrap();
    assert_eq!(second.pki().unwrap().ca, ca);
    assert_eq!(second.auth().issuer().key_set(), keys);
}

#[tokio::test]
async fn the_administrators_token_lasts_until_its_file_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let start = async || {
        let plain = "127.0.0.1:0".parse().unwrap();
        let builder = Server::builder().data_dir(dir.path());
        let server = builder.insecure_listen(plain).start().await.unwrap();
        let token = std::fs::read_to_string(&file).unwrap();
        (server, token.trim().to_owned())
    };
    let (server, first) = start().await;
    let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(server.admin_token(), Some(first.as_str()));
    let url = server.insecure_url().unwrap();
    assert_eq!(get(url, LEASES, &first).await.code, 200);
    assert_eq!(
        get(url, LEASES, "").await.code,
        403,
        "anonymous requests must be denied"
    );
    server.shutdown().await;

    let (server, second) = start().await;
    assert_eq!(second, first);
    server.shutdown().await;

    std::fs::remove_file(&file).unwrap();
    let (server, third) = start().await;
    let url = server.insecure_url().unwrap();
    assert_eq!(get(url, LEASES, &third).await.code, 200);
    assert_eq!(
        get(url, LEASES, &first).await.code,
        401,
        "the old token must be invalid"
    );
}

#[tokio::test]
async fn objects_outlive_the_server_with_redb() {
    let dir = tempfile::tempdir().unwrap();
    let start = async || {
        let builder = Server::builder()
            .no_tls()
            .engine(Engine::Redb)
            .data_dir(dir.path());
        TestServer::start_with(builder).await.unwrap()
    };
    let lease = format!("{LEASES}/l");
    let first = start().await;
    let object = json!({ "metadata": { "name": "l" } });
    let created = post(first.url(), LEASES, first.token(), &object).await;
    assert_eq!(created.code, 201);
    first.shutdown().await;
    let second = start().await;
    let read = get(second.url(), &lease, second.token()).await;
    assert_eq!(read.body["metadata"], created.body["metadata"]);
    let engine = Instance::read(dir.path()).unwrap().unwrap().engine;
    assert_eq!(engine, "redb");
    let nowhere = Server::builder().engine(Engine::Redb).start().await;
    assert!(
        nowhere
            .err()
            .unwrap()
            .to_string()
            .contains("data directory")
    );
}

#[tokio::test]
async fn a_running_server_gives_its_backup_to_the_administrator_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start().await.unwrap();
    let object = json!({ "metadata": { "name": "l" } });
    let created = post(server.url(), LEASES, server.token(), &object).await;
    assert_eq!(created.code, 201);

    let file = dir.path().join("one");
    let report = server.handle().backup(&file).await.unwrap().unwrap();
    assert!(report.objects > 1);
    assert_eq!(get(server.url(), "/tenure/backup", "").await.code, 403);
    let bearer = format!("Bearer {}", server.token());
    let headers = [("authorization", bearer.as_str())];
    let ask = request(http::Method::GET, "/tenure/backup", &headers, "");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(connect(server.url()).await))
            .await
            .unwrap();
    tokio::spawn(connection);
    let answer = sender.send_request(ask).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(bytes, std::fs::read(&file).unwrap());

    let state = dir.path().join("state");
    crate::store::backup::restore(&file, &state, &crate::store::Encryption::OFF).unwrap();
    let builder = Server::builder()
        .no_tls()
        .engine(Engine::Redb)
        .data_dir(&state);
    let restored = TestServer::start_with(builder).await.unwrap();
    let read = get(restored.url(), &format!("{LEASES}/l"), restored.token()).await;
    assert_eq!(
        read.body["metadata"]["uid"],
        created.body["metadata"]["uid"]
    );
}
