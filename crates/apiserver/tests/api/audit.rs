//! The audit log of a server that clients use over sockets.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_apiserver::TestServer;
use tenure_apiserver::audit::{Options, Policy};
use tenure_apiserver::auth::User;
use tenure_apiserver::server::Server;

use crate::support::{Answer, Stream, request};
use crate::{LEASES, MAPS, map};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

struct Audited {
    server: TestServer,
    dir: tempfile::TempDir,
}

impl Audited {
    async fn start(change: impl FnOnce(&mut Options)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::new(dir.path().join("audit.log"));
        change(&mut options);
        let builder = Server::builder()
            .no_tls()
            .token("annatoken", User::new("anna", ["devs".to_owned()]))
            .audit(options);
        let server = TestServer::start_with(builder).await.unwrap();
        Self { server, dir }
    }

    async fn open(
        &self,
        token: &str,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> http::Response<hyper::body::Incoming> {
        let (_, address) = self.server.url().split_once("://").unwrap();
        let bearer = format!("Bearer {token}");
        let mut all = vec![("user-agent", "audit-test/1")];
        if !token.is_empty() {
            all.push(("authorization", &bearer));
        }
        if body.is_some() {
            all.push(("content-type", "application/json"));
        }
        all.extend_from_slice(headers);
        let body = body.map(|body| body.to_string().into_bytes());
        let address = address.parse().unwrap();
        request(address, method, path, &all, body.unwrap_or_default()).await
    }

    async fn send(&self, token: &str, line: (&str, &str), body: Option<&Value>) -> Answer {
        Answer::of(self.open(token, line, &[], body).await).await
    }

    async fn admin(&self, line: (&str, &str), body: Option<&Value>) -> Answer {
        self.send(self.server.token(), line, body).await
    }

    /// Waits for the first event for which `fits` returns true.
    async fn event(&self, fits: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let events = events(&self.dir.path().join("audit.log"));
            if let Some(event) = events.iter().find(|event| fits(event)) {
                return event.clone();
            }
            assert!(Instant::now() < end, "no such event in {events:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

fn complete(event: &Value, verb: &str, path: &str) -> bool {
    event["stage"] == "ResponseComplete" && event["verb"] == verb && event["requestURI"] == path
}

#[tokio::test]
async fn default_policy_records_who_did_what_with_which_result() {
    let server = Audited::start(|_| {}).await;
    let probe = server.admin(("GET", "/readyz"), None).await;
    assert_eq!(probe.status, 200);
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "k": "hidden-value" } });
    let made = server.admin(("POST", secrets), Some(&secret)).await;
    assert_eq!(made.status, 201);
    let made = made.json();
    assert_eq!(made["data"]["k"], "aGlkZGVuLXZhbHVl", "incomplete response");

    let event = server
        .event(|event| complete(event, "create", secrets))
        .await;
    assert_eq!(event["kind"], "Event");
    assert_eq!(event["apiVersion"], "audit.k8s.io/v1");
    assert_eq!(event["level"], "Metadata");
    assert_eq!(event["user"]["username"], "kubernetes-admin");
    let groups = json!(["system:masters", "system:authenticated"]);
    assert_eq!(event["user"]["groups"], groups);
    assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]));
    assert_eq!(event["userAgent"], "audit-test/1");
    assert_eq!(event["responseStatus"]["code"], 201);
    let reference = json!({ "resource": "secrets", "namespace": "default", "name": "s",
        "apiVersion": "v1", "uid": made["metadata"]["uid"],
        "resourceVersion": made["metadata"]["resourceVersion"] });
    assert_eq!(event["objectRef"], reference);
    let annotations = &event["annotations"];
    assert_eq!(annotations["authorization.k8s.io/decision"], "allow");
    assert!(event.get("requestObject").is_none());
    let received = event["requestReceivedTimestamp"].as_str().unwrap();
    assert!(
        received <= event["stageTimestamp"].as_str().unwrap(),
        "{event}"
    );
    assert_eq!(received.len(), "2026-01-01T00:00:00.000000Z".len());

    // The first request is denied, because a rule is missing. The next one is allowed by a binding.
    let denied = server.send("annatoken", ("GET", MAPS), None).await;
    assert_eq!(denied.status, 403);
    let event = server.event(|event| complete(event, "list", MAPS)).await;
    assert_eq!(event["user"]["username"], "anna");
    assert_eq!(event["responseStatus"]["code"], 403);
    assert_eq!(event["responseStatus"]["reason"], "Forbidden");
    assert_eq!(event["responseStatus"]["message"], denied.json()["message"]);
    let decision = &event["annotations"]["authorization.k8s.io/decision"];
    assert_eq!(decision, "forbid");
    let binding = json!({ "metadata": { "name": "anna-view" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "anna" }] });
    let bindings = format!("{RBAC}/clusterrolebindings");
    assert_eq!(
        server
            .admin(("POST", &bindings), Some(&binding))
            .await
            .status,
        201
    );
    let pods = "/api/v1/namespaces/default/pods?limit=5";
    assert_eq!(
        server.send("annatoken", ("GET", pods), None).await.status,
        200
    );
    let event = server.event(|event| complete(event, "list", pods)).await;
    let reason = event["annotations"]["authorization.k8s.io/reason"]
        .as_str()
        .unwrap();
    assert!(reason.contains("anna-view"), "{reason}");

    // The event of a failed authentication has no user, but names the attempted method.
    assert_eq!(server.send("guess", ("GET", MAPS), None).await.status, 401);
    let event = server
        .event(|event| event["responseStatus"]["code"] == 401)
        .await;
    assert_eq!(event["stage"], "ResponseComplete");
    assert_eq!(event["user"], json!({}));
    let message = event["responseStatus"]["message"].as_str().unwrap();
    assert!(message.contains("bearer"), "{message}");

    let text = std::fs::read_to_string(server.dir.path().join("audit.log")).unwrap();
    for hidden in [
        "hidden-value",
        "aGlkZGVuLXZhbHVl",
        "annatoken",
        "guess",
        "/readyz",
    ] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
    let metrics = server.admin(("GET", "/metrics"), None).await;
    let metrics = String::from_utf8(metrics.bytes.to_vec()).unwrap();
    assert!(
        metrics.contains("apiserver_audit_event_total "),
        "{metrics}"
    );
    let errors = "apiserver_audit_error_total{plugin=\"log\"} 0";
    assert!(metrics.contains(errors), "{metrics}");
}

#[tokio::test]
async fn impersonation_and_audit_ids_are_recorded() {
    let server = Audited::start(|_| {}).await;
    let headers = [
        ("impersonate-user", "jane"),
        ("impersonate-group", "devs"),
        ("audit-id", "chosen-by-the-client"),
        ("x-forwarded-for", "192.0.2.7, junk"),
    ];
    let token = server.server.token().to_owned();
    let answer = server.open(&token, ("GET", MAPS), &headers, None).await;
    assert_eq!(answer.status(), 403);
    assert_eq!(answer.headers()["audit-id"], "chosen-by-the-client");
    let event = server
        .event(|event| event["auditID"] == "chosen-by-the-client")
        .await;
    assert_eq!(event["user"]["username"], "kubernetes-admin");
    assert_eq!(event["impersonatedUser"]["username"], "jane");
    let groups = json!(["devs", "system:authenticated"]);
    assert_eq!(event["impersonatedUser"]["groups"], groups);
    assert_eq!(event["sourceIPs"], json!(["192.0.2.7", "127.0.0.1"]));
    let other = server.open(&token, ("GET", MAPS), &[], None).await;
    let id = other.headers()["audit-id"].to_str().unwrap().to_owned();
    let event = server.event(|event| event["auditID"] == id.as_str()).await;
    assert!(event.get("impersonatedUser").is_none());
}

#[tokio::test]
async fn watch_is_recorded_when_it_starts_and_when_it_ends() {
    let server = Audited::start(|_| {}).await;
    let path = format!("{MAPS}?watch=1&allowWatchBookmarks=true");
    let token = server.server.token().to_owned();
    let watch = server.open(&token, ("GET", &path), &[], None).await;
    let mut watch = Stream::of(watch);
    let started = server
        .event(|event| event["stage"] == "ResponseStarted")
        .await;
    assert_eq!(started["verb"], "watch");
    assert_eq!(started["responseStatus"]["code"], 200);
    watch.expect().await;
    let path = server.dir.path().join("audit.log");
    assert!(
        !events(&path)
            .iter()
            .any(|event| event["stage"] == "ResponseComplete")
    );
    drop(watch);
    let ended = server
        .event(|event| event["stage"] == "ResponseComplete")
        .await;
    assert_eq!(ended["auditID"], started["auditID"]);
    assert_eq!(ended["responseStatus"]["code"], 200);
}

#[tokio::test]
async fn policy_chooses_bodies_and_stages() {
    let policy = "
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  verbs: [get, list, watch]
- level: Request
  resources: [{ group: '', resources: [configmaps] }]
  omitManagedFields: true
- level: Metadata
  omitStages: [RequestReceived]
";
    let policy = Policy::parse(policy).unwrap();
    let server = Audited::start(|options| options.policy = policy).await;
    let mut small = map("small", "1");
    small["metadata"]["managedFields"] = json!([]);
    assert_eq!(server.admin(("POST", MAPS), Some(&small)).await.status, 201);
    let event = server.event(|event| complete(event, "create", MAPS)).await;
    assert_eq!(event["level"], "Request");
    assert_eq!(event["requestObject"], map("small", "1"));
    let received = server
        .event(|event| event["stage"] == "RequestReceived")
        .await;
    assert_eq!(received["auditID"], event["auditID"]);
    assert!(received.get("responseStatus").is_none());

    let path = format!("{MAPS}/small");
    let large = map("small", &"x".repeat(400_000));
    assert_eq!(server.admin(("PUT", &path), Some(&large)).await.status, 200);
    let event = server.event(|event| complete(event, "update", &path)).await;
    assert!(event.get("requestObject").is_none());
    assert_eq!(event["annotations"]["audit.k8s.io/truncated"], "true");

    assert_eq!(server.admin(("GET", &path), None).await.status, 200);
    let lease = json!({ "metadata": { "name": "l" } });
    assert_eq!(
        server.admin(("POST", LEASES), Some(&lease)).await.status,
        201
    );
    let event = server
        .event(|event| complete(event, "create", LEASES))
        .await;
    assert_eq!(event["level"], "Metadata");
    let all = events(&server.dir.path().join("audit.log"));
    assert!(!all.iter().any(|event| event["verb"] == "get"), "{all:#?}");
    let leases = all.iter().filter(|event| event["requestURI"] == LEASES);
    assert_eq!(leases.count(), 1);
}

#[tokio::test]
async fn abandoned_request_is_recorded() {
    use tokio::io::AsyncWriteExt as _;
    let server = Audited::start(|_| {}).await;
    let (_, address) = server.server.url().split_once("://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let token = server.server.token();
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: 1000\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The client disconnects while the server waits for the request body.
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(stream);
    let event = server.event(|event| complete(event, "create", MAPS)).await;
    assert_eq!(event["user"]["username"], "kubernetes-admin");
    assert_ne!(event["responseStatus"]["status"], "Success", "{event}");
}

#[tokio::test]
async fn events_are_on_disk_after_a_clean_shutdown() {
    let server = Audited::start(|options| {
        options.max_bytes = 20_000;
        options.max_backups = 100;
    })
    .await;
    for number in 0..200 {
        let lease = json!({ "metadata": { "name": format!("l{number}") } });
        assert_eq!(
            server.admin(("POST", LEASES), Some(&lease)).await.status,
            201
        );
    }
    server.server.shutdown().await;
    let mut names: Vec<String> = Vec::new();
    let mut files = 0;
    for entry in std::fs::read_dir(server.dir.path()).unwrap() {
        files += 1;
        for event in events(&entry.unwrap().path()) {
            names.push(event["objectRef"]["name"].as_str().unwrap().to_owned());
        }
    }
    assert!(files > 2, "{files}");
    names.sort();
    let mut expected: Vec<String> = (0..200).map(|number| format!("l{number}")).collect();
    expected.sort();
    assert_eq!(names, expected);
}
