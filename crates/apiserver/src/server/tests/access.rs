//! Authentication and authorization over real connections.

use http::{Method, Version};
use serde_json::{Value, json};

use super::{LEASES, address, connect, connect_tls, get, post, request, send, send_h2};
use crate::TestServer;
use crate::auth::{Mode, User};
use crate::server::Server;

const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const SELF: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

#[tokio::test]
async fn refusals_have_the_texts_of_kubernetes() {
    let builder = Server::builder()
        .no_tls()
        .token("alicetoken", User::new("alice", []));
    let server = TestServer::start_with(builder).await.unwrap();
    let wrong = get(server.url(), LEASES, "wrong").await;
    assert_eq!(wrong.code, 401);
    assert_eq!(
        wrong.body,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
        })
    );
    let anonymous = get(server.url(), LEASES, "").await;
    assert_eq!(
        anonymous.body,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "leases.coordination.k8s.io is forbidden: User \"system:anonymous\" cannot \
                        list resource \"leases\" in API group \"coordination.k8s.io\" in the \
                        namespace \"default\"",
            "reason": "Forbidden",
            "details": { "group": "coordination.k8s.io", "kind": "leases" },
            "code": 403,
        })
    );
    let alice = get(server.url(), &format!("{LEASES}/l"), "alicetoken").await;
    assert_eq!(
        alice.body["message"],
        "leases.coordination.k8s.io \"l\" is forbidden: User \"alice\" cannot get resource \
         \"leases\" in API group \"coordination.k8s.io\" in the namespace \"default\""
    );
    let path = get(server.url(), "/metrics", "").await;
    assert_eq!(
        path.body["message"],
        "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
    );
    assert_eq!(path.body["details"], json!({}));
    assert_eq!(get(server.url(), LEASES, server.token()).await.code, 200);
}

#[tokio::test]
async fn a_client_certificate_is_a_user_over_both_protocols() {
    let server = TestServer::start_tls().await.unwrap();
    let pki = server.handle().pki().unwrap();
    let ask = || {
        request(
            Method::POST,
            WHO,
            &[("content-type", "application/json")],
            SELF,
        )
    };

    let io = connect_tls(server.url(), pki, Some(&pki.admin), &["http/1.1"]).await;
    let answer = send(io, ask()).await;
    assert_eq!(
        (answer.code.as_u16(), answer.version),
        (201, Version::HTTP_11)
    );
    let who = &answer.body["status"]["userInfo"];
    assert_eq!(who["username"], "kubernetes-admin");
    assert_eq!(
        who["groups"],
        json!(["system:masters", "system:authenticated"])
    );

    let io = connect_tls(server.url(), pki, Some(&pki.admin), &["h2", "http/1.1"]).await;
    let answer = send_h2(io, ask()).await;
    assert_eq!(
        (answer.code.as_u16(), answer.version),
        (201, Version::HTTP_2)
    );
    assert_eq!(
        answer.body["status"]["userInfo"]["username"],
        "kubernetes-admin"
    );

    let io = connect_tls(server.url(), pki, None, &["http/1.1"]).await;
    let answer = send(io, request(Method::GET, LEASES, &[], "")).await;
    assert_eq!(answer.code, 403);
}

#[tokio::test]
async fn certificate_of_another_authority_is_rejected() {
    let server = TestServer::start_tls().await.unwrap();
    let pki = server.handle().pki().unwrap();
    let stranger = crate::pki::Pki::ephemeral(&[]).unwrap();
    let mut io = connect_tls(server.url(), pki, Some(&stranger.admin), &["http/1.1"]).await;
    // A TLS 1.3 client receives the rejection of its certificate with the first read.
    let mut byte = [0];
    let outcome = tokio::io::AsyncReadExt::read(&mut io, &mut byte).await;
    assert!(outcome.is_err() || outcome.unwrap() == 0);
}

#[tokio::test]
async fn administrator_can_impersonate_users() {
    let server = TestServer::start().await.unwrap();
    let bearer = format!("Bearer {}", server.token());
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("impersonate-user", "jane"),
        ("impersonate-group", "devs"),
    ];
    let io = connect(server.url()).await;
    let answer = send(io, request(Method::POST, WHO, &headers, SELF)).await;
    let who = &answer.body["status"]["userInfo"];
    assert_eq!(who["username"], "jane");
    assert_eq!(who["groups"], json!(["devs", "system:authenticated"]));
    let io = connect(server.url()).await;
    let answer = send(io, request(Method::GET, LEASES, &headers, "")).await;
    assert!(
        answer.body["message"]
            .as_str()
            .unwrap()
            .contains("User \"jane\" cannot list")
    );
}

#[tokio::test]
async fn roles_and_service_account_tokens_work_end_to_end() {
    let server = TestServer::start().await.unwrap();
    let admin = server.token();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({ "metadata": { "name": "sa" } });
    assert_eq!(
        post(server.url(), accounts, admin, &account).await.code,
        201
    );
    let token = post(
        server.url(),
        &format!("{accounts}/sa/token"),
        admin,
        &json!({ "spec": {} }),
    )
    .await;
    assert_eq!(token.code, 201, "{}", token.body);
    let token = token.body["status"]["token"].as_str().unwrap().to_owned();
    let denied = get(server.url(), LEASES, &token).await;
    assert!(
        denied.body["message"]
            .as_str()
            .unwrap()
            .contains("User \"system:serviceaccount:default:sa\" cannot list resource \"leases\"")
    );

    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({
        "metadata": { "name": "r" },
        "rules": [{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"] }],
    });
    assert_eq!(
        post(server.url(), &format!("{rbac}/roles"), admin, &role)
            .await
            .code,
        201
    );
    let binding = json!({
        "metadata": { "name": "b" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r" },
        "subjects": [{ "kind": "ServiceAccount", "name": "sa", "namespace": "default" }],
    });
    assert_eq!(
        post(
            server.url(),
            &format!("{rbac}/rolebindings"),
            admin,
            &binding
        )
        .await
        .code,
        201
    );
    // A role is in force as soon as its write is acknowledged, so the test does not poll.
    assert_eq!(get(server.url(), LEASES, &token).await.code, 200);

    let bearer = format!("Bearer {admin}");
    let headers = [("authorization", bearer.as_str())];
    let io = connect(server.url()).await;
    send(
        io,
        request(Method::DELETE, &format!("{accounts}/sa"), &headers, ""),
    )
    .await;
    assert_eq!(get(server.url(), LEASES, &token).await.code, 401);
}

#[tokio::test]
async fn always_allow_permits_anonymous_and_disabled_anonymous_is_401() {
    let open = Server::builder().no_tls().authorization(Mode::AlwaysAllow);
    let server = TestServer::start_with(open).await.unwrap();
    assert_eq!(get(server.url(), LEASES, "").await.code, 200);
    assert_eq!(get(server.url(), LEASES, "wrong").await.code, 401);
    let closed = Server::builder().no_tls().anonymous(false);
    let server = TestServer::start_with(closed).await.unwrap();
    assert_eq!(get(server.url(), "/version", "").await.code, 401);
}

#[tokio::test]
async fn the_owner_of_the_socket_is_the_administrator() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let server = Server::builder()
        .no_tls()
        .unix_socket(&path)
        .start()
        .await
        .unwrap();
    let io = tokio::net::UnixStream::connect(&path).await.unwrap();
    assert_eq!(
        send(io, request(Method::GET, LEASES, &[], "")).await.code,
        200
    );
    let io = tokio::net::UnixStream::connect(&path).await.unwrap();
    let wrong = request(Method::GET, LEASES, &[("authorization", "Bearer x")], "");
    assert_eq!(send(io, wrong).await.code, 401);
    assert!(
        Server::builder()
            .no_tls()
            .unix_socket(&path)
            .start()
            .await
            .is_err()
    );
    server.shutdown().await;
    assert!(!path.exists());
}

/// Other users cannot connect, not even between the creation of the file and its first use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn socket_is_private_from_its_creation() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let done = std::sync::Arc::new(AtomicBool::new(false));
    let watcher = {
        let (path, done) = (path.clone(), done.clone());
        std::thread::spawn(move || {
            let mut modes = std::collections::BTreeSet::new();
            while !done.load(Ordering::Relaxed) {
                if let Ok(found) = std::fs::symlink_metadata(&path) {
                    modes.insert(found.permissions().mode() & 0o777);
                }
            }
            modes
        })
    };
    for _ in 0..100 {
        let server = Server::builder().no_tls().unix_socket(&path).start().await;
        server.unwrap().shutdown().await;
    }
    done.store(true, Ordering::Relaxed);
    let modes: Vec<u32> = watcher.join().unwrap().into_iter().collect();
    assert_eq!(modes, [0o600]);
}

/// A stale socket is replaced. A regular file and the target of a symbolic link are not.
#[tokio::test]
async fn socket_replaces_only_a_stale_socket() {
    let dir = tempfile::tempdir().unwrap();
    let start = async |path: &std::path::Path| {
        let server = Server::builder().no_tls().unix_socket(path).start().await;
        server.map_err(|error| error.to_string())
    };
    let dead = dir.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    start(&dead).await.unwrap().shutdown().await;

    let file = dir.path().join("notes");
    std::fs::write(&file, "mine").unwrap();
    let link = dir.path().join("link.sock");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let error = start(path).await.err().unwrap();
        let why = "the file exists and is not a socket";
        assert!(error.contains(why) && error.contains(path.to_str().unwrap()));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert!(link.is_symlink());
}

#[tokio::test]
async fn recorded_traffic_becomes_the_least_role() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("roles.yaml");
    let builder = Server::builder()
        .no_tls()
        .record_rbac(&path)
        .token("bobtoken", User::new("bob", ["system:masters".to_owned()]));
    let server = TestServer::start_with(builder).await.unwrap();
    get(server.url(), &format!("{LEASES}/lock"), "bobtoken").await;
    get(server.url(), "/api", "bobtoken").await;
    server.shutdown().await;
    let yaml = std::fs::read_to_string(&path).unwrap();
    let role = yaml.split("---\n").nth(1).unwrap();
    assert!(role.contains("kind: Role\n"), "{yaml}");
    assert!(
        role.ends_with(
            "rules:\n- apiGroups: [\"coordination.k8s.io\"]\n  resources: [\"leases\"]\n  \
         resourceNames: [\"lock\"]\n  verbs: [\"get\"]\n"
        ),
        "{yaml}"
    );
    assert!(yaml.contains("name: \"bob\"\n"), "{yaml}");
}

/// Sends requests that need more permissions than that of their method and path.
async fn run_session(url: &str, token: &str) {
    let bearer = format!("Bearer {token}");
    let ask = async |method: Method, path: &str, header: (&str, &str), body: &Value| {
        let kind = match method {
            Method::PATCH => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", kind),
            header,
        ];
        let wanted = if method == Method::GET { 200 } else { 201 };
        let sent = request(method, path, &headers, &body.to_string());
        let answer = send(connect(url).await, sent).await;
        assert_eq!(answer.code, wanted, "{path}: {}", answer.body);
    };
    let plain = ("accept", "application/json");
    let lease = |name: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name }, "spec": { "holderIdentity": "bob" },
        })
    };
    let path = format!("{LEASES}/put");
    ask(Method::PUT, &path, plain, &lease("put")).await;
    let other = format!("{LEASES}/applied?fieldManager=bob");
    ask(Method::PATCH, &other, plain, &lease("applied")).await;
    let jane = ("impersonate-user", "jane");
    ask(Method::GET, "/version", jane, &Value::Null).await;

    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({
        "metadata": { "name": "reader" },
        "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }],
    });
    ask(Method::POST, &format!("{rbac}/roles"), plain, &role).await;
    for (kind, name) in [("Role", "reader"), ("ClusterRole", "view")] {
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": kind, "name": name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": "eve" }],
        });
        ask(
            Method::POST,
            &format!("{rbac}/rolebindings"),
            plain,
            &binding,
        )
        .await;
    }
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let delete = json!({ "verb": "delete", "resource": "nodes" });
    let review = json!({ "spec": { "resourceAttributes": delete } });
    ask(Method::POST, reviews, plain, &review).await;
}

#[tokio::test]
async fn a_recorded_session_runs_under_its_own_roles() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("roles.yaml");
    for mode in [Mode::Rbac, Mode::AlwaysAllow] {
        let builder = Server::builder()
            .no_tls()
            .record_rbac(&path)
            .authorization(mode)
            .token("bobtoken", User::new("bob", ["system:masters".to_owned()]));
        let server = TestServer::start_with(builder).await.unwrap();
        run_session(server.url(), "bobtoken").await;
        server.shutdown().await;
        let yaml = std::fs::read_to_string(&path).unwrap();
        assert!(
            !yaml.contains("nodes"),
            "a review must not be recorded as a request: {yaml}"
        );

        let builder = Server::builder()
            .no_tls()
            .token("bobtoken", User::new("bob", []));
        let server = TestServer::start_with(builder).await.unwrap();
        for document in yaml.split("---\n").skip(1) {
            let object: Value = serde_saphyr::from_str(document).unwrap();
            let kind = object["kind"].as_str().unwrap().to_lowercase();
            let path = match object["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("namespaces/{namespace}/{kind}s"),
                None => format!("{kind}s"),
            };
            let path = format!("/apis/rbac.authorization.k8s.io/v1/{path}");
            let made = post(server.url(), &path, server.token(), &object).await;
            assert_eq!(made.code, 201, "{}", made.body);
        }
        run_session(server.url(), "bobtoken").await;
    }
}

#[tokio::test]
async fn plain_http_stays_on_loopback() {
    let error = Server::builder()
        .insecure_listen("0.0.0.0:0".parse().unwrap())
        .start()
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("loopback"), "{error}");
    assert!(Server::builder().no_tls().start().await.is_err());
    let taken = TestServer::start().await.unwrap();
    let again = Server::builder()
        .listen(address(taken.url()).parse().unwrap())
        .start()
        .await;
    let error = again.err().unwrap().to_string();
    assert!(error.starts_with("cannot listen on 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn public_route_needs_no_credentials() {
    use http_body_util::{BodyExt as _, Full};
    let builder = Server::builder().no_tls().public_route("/ui", |parts| {
        let body = Full::new(parts.uri.path().to_owned().into()).map_err(|e| match e {});
        std::future::ready(http::Response::new(body.boxed_unsync()))
    });
    let server = TestServer::start_with(builder).await.unwrap();
    for path in ["/ui", "/ui/", "/ui/app.js"] {
        let answer = get(server.url(), path, "wrong").await;
        assert_eq!((answer.code.as_u16(), answer.body), (200, path.into()));
    }
    assert_eq!(get(server.url(), "/uix", "").await.code, 403);
}
