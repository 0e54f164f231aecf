//! Credentials that change, expire or are missing while a server runs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tenure_apiserver::pki::Pki;
use tenure_apiserver::server::{Builder, Engine, Handle, Server};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{Answer, Stream, request};
use crate::{MAPS, map};

const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/app";
/// Upper limit of all waits, for a busy machine. Each change takes a few seconds.
const SOON: Duration = Duration::from_secs(60);

fn builder() -> Builder {
    let address = "127.0.0.1:0".parse().unwrap();
    Server::builder().no_tls().insecure_listen(address)
}

fn address(server: &Handle) -> std::net::SocketAddr {
    let (_, address) = server.insecure_url().unwrap().split_once("://").unwrap();
    address.parse().unwrap()
}

async fn send(server: &Handle, token: &str, line: (&str, &str), body: &Value) -> Answer {
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("content-type", "application/json")];
    if !token.is_empty() {
        headers.push(("authorization", &bearer));
    }
    let body = match body {
        Value::Null => Vec::new(),
        body => body.to_string().into_bytes(),
    };
    Answer::of(request(address(server), line.0, line.1, &headers, body).await).await
}

async fn code(server: &Handle, token: &str) -> u16 {
    send(server, token, ("GET", MAPS), &Value::Null)
        .await
        .status
}

/// Waits until requests with a token get this status code.
async fn expect_code(server: &Handle, token: &str, wanted: u16) {
    let end = Instant::now() + SOON;
    while code(server, token).await != wanted {
        assert!(Instant::now() < end, "{token} does not get {wanted}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn replace(path: &Path, text: &str) {
    tenure_host::files::replace(path, text.as_bytes(), 0o600).unwrap();
}

async fn watch(server: &Handle, token: &str) -> Stream {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let path = format!("{MAPS}?watch=1&allowWatchBookmarks=true");
    let mut watch = Stream::of(request(address(server), "GET", &path, &headers, vec![]).await);
    assert_eq!(watch.status, 200);
    watch.expect().await;
    watch
}

async fn expect_end(mut watch: Stream) {
    let ended = async { while watch.next().await.is_some() {} };
    let ended = tokio::time::timeout(SOON, ended).await;
    ended.expect("the watch did not end");
}

/// Creates a ServiceAccount with all rights, and a token of it.
async fn account(server: &Handle, admin: &str) -> String {
    let accounts = ACCOUNT.strip_suffix("/app").unwrap();
    let object = json!({ "metadata": { "name": "app" } });
    let made = send(server, admin, ("POST", accounts), &object).await;
    assert_eq!(made.status, 201, "{}", made.json());
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let binding = json!({ "metadata": { "name": "app" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": "app", "namespace": "default" }] });
    let made = send(server, admin, ("POST", bindings), &binding).await;
    assert_eq!(made.status, 201, "{}", made.json());
    token(&issue(server, admin, json!({})).await)
}

async fn issue(server: &Handle, admin: &str, spec: Value) -> Answer {
    let body = json!({ "spec": spec });
    let path = format!("{ACCOUNT}/token");
    let issued = send(server, admin, ("POST", &path), &body).await;
    assert_eq!(issued.status, 201, "{}", issued.json());
    issued
}

fn token(issued: &Answer) -> String {
    issued.json()["status"]["token"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_token_files_take_effect_while_the_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens.csv");
    replace(
        &file,
        "old,anna,1,system:masters\nkept,bert,2,system:masters\n",
    );
    let data = dir.path().join("data");
    let server = builder()
        .data_dir(&data)
        .token_file(&file)
        .start()
        .await
        .unwrap();
    let first = server.admin_token().unwrap().to_owned();
    assert_eq!(code(&server, &first).await, 200);
    assert_eq!(code(&server, "new").await, 401);
    let (old, mut kept) = (watch(&server, "old").await, watch(&server, "kept").await);

    replace(
        &file,
        "new,carl,3,system:masters\nkept,bert,2,system:masters\n",
    );
    expect_code(&server, "new", 200).await;
    assert_eq!(code(&server, "old").await, 401);
    expect_end(old).await;

    // An invalid or missing file changes nothing, and other files still take effect.
    replace(&file, "new\n");
    replace(&data.join("token"), "second-admin-token\n");
    expect_code(&server, "second-admin-token", 200).await;
    assert_eq!(code(&server, &first).await, 401);
    assert_eq!(code(&server, "new").await, 200);
    std::fs::remove_file(&file).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(code(&server, "new").await, 200);
    replace(&data.join("token"), "");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(code(&server, "second-admin-token").await, 200);

    replace(&file, "kept,bert,2,system:masters\n");
    expect_code(&server, "new", 401).await;
    let made = send(&server, "kept", ("POST", MAPS), &map("m", "1")).await;
    assert_eq!(made.status, 201);
    assert_eq!(kept.expect().await["object"]["metadata"]["name"], "m");
}

#[tokio::test]
async fn without_anonymous_access_every_path_needs_credentials() {
    let server = builder().anonymous(false).start().await.unwrap();
    let admin = server.admin_token().unwrap();
    for path in ["/readyz", "/livez", "/version", "/api", MAPS] {
        let get = ("GET", path);
        assert_eq!(
            send(&server, "", get, &Value::Null).await.status,
            401,
            "{path}"
        );
        assert_eq!(
            send(&server, admin, get, &Value::Null).await.status,
            200,
            "{path}"
        );
    }
}

#[tokio::test]
async fn life_of_tokens_is_limited_to_a_year_by_default() {
    let server = builder().start().await.unwrap();
    let admin = server.admin_token().unwrap();
    account(&server, admin).await;
    const YEAR: i64 = 365 * 24 * 3600;
    let issued = issue(&server, admin, json!({ "expirationSeconds": 10 * YEAR })).await;
    assert_eq!(issued.json()["spec"]["expirationSeconds"], YEAR);
    let warning = issued.headers["warning"].to_str().unwrap();
    assert!(
        warning.contains("shortened to 31536000 seconds"),
        "{warning}"
    );
    let issued = issue(&server, admin, json!({ "expirationSeconds": YEAR })).await;
    assert!(!issued.headers.contains_key("warning"));
    let expires = issued.json()["status"]["expirationTimestamp"].clone();
    let expires: jiff::Timestamp = expires.as_str().unwrap().parse().unwrap();
    let left = expires.as_second() - jiff::Timestamp::now().as_second();
    assert!((YEAR - 60..=YEAR).contains(&left), "{left}");

    let free = builder().max_token_life(None).start().await.unwrap();
    let admin = free.admin_token().unwrap();
    account(&free, admin).await;
    let issued = issue(&free, admin, json!({ "expirationSeconds": 10 * YEAR })).await;
    assert_eq!(issued.json()["spec"]["expirationSeconds"], 10 * YEAR);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_ends_after_its_token_has_expired() {
    let life = Some(Duration::from_secs(5));
    let server = builder().max_token_life(life).start().await.unwrap();
    let token = account(&server, server.admin_token().unwrap()).await;
    let watch = watch(&server, &token).await;
    expect_end(watch).await;
    assert_eq!(code(&server, &token).await, 401);
}

#[tokio::test]
async fn tokens_survive_a_new_signing_key_if_the_old_one_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let start = async |keys: Option<&Path>| {
        let builder = builder().data_dir(&data).engine(Engine::Redb);
        let builder = keys
            .into_iter()
            .fold(builder, Builder::service_account_keys);
        builder.start().await.unwrap()
    };
    let server = start(None).await;
    let old = account(&server, server.admin_token().unwrap()).await;
    server.shutdown().await;
    let kept = dir.path().join("old.key");
    std::fs::rename(data.join("sa.key"), &kept).unwrap();

    let server = start(None).await;
    assert_eq!(code(&server, &old).await, 401);
    server.shutdown().await;
    let server = start(Some(&kept)).await;
    assert_eq!(code(&server, &old).await, 200);
    let admin = server.admin_token().unwrap();
    let new = token(&issue(&server, admin, json!({})).await);
    assert_eq!(code(&server, &new).await, 200);
    let keys = send(&server, admin, ("GET", "/openid/v1/jwks"), &Value::Null).await;
    assert_eq!(keys.json()["keys"].as_array().unwrap().len(), 2);
    server.shutdown().await;
    let server = start(None).await;
    assert_eq!(code(&server, &new).await, 200);
    assert_eq!(code(&server, &old).await, 401);
}

/// Connects with TLS and returns the certificate of the server.
async fn shown(server: &Handle) -> Vec<u8> {
    let mut roots = rustls::RootCertStore::empty();
    let ca = server.pki().unwrap().ca.as_bytes();
    roots
        .add(CertificateDer::from_pem_slice(ca).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address = server.url().strip_prefix("https://").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test]
async fn replaced_serving_certificate_is_used_for_new_connections() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::builder().data_dir(&data).start().await.unwrap();
    let before = shown(&server).await;

    // Another certificate of the same authority.
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for name in ["ca.crt", "ca.key"] {
        std::fs::copy(data.join("pki").join(name), other.join(name)).unwrap();
    }
    let new = Pki::load_or_generate(&other, &[]).unwrap();
    let certificate = CertificateDer::from_pem_slice(new.server.certificate.as_bytes()).unwrap();
    assert_ne!(certificate.as_ref(), before);

    // A certificate without its key cannot be used.
    replace(&data.join("pki/server.crt"), &new.server.certificate);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(shown(&server).await, before);
    replace(&data.join("pki/server.key"), &new.server.key);
    let end = Instant::now() + SOON;
    while shown(&server).await != certificate.as_ref() {
        assert!(Instant::now() < end, "the old certificate is still in use");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
