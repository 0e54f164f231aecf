//! Deletion of namespaces with a failing store or concurrent writers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tenure_apiserver::store::{
    BoxFuture, Change, Expected, Expired, Fence, Key, Listing, MemoryStore, Object, Range, Store,
    Watch, Window, Write, WriteError,
};

use crate::support::Server;
use crate::{create, map};

const MAPS: &str = "/api/v1/namespaces/n/configmaps";

/// A store that rejects removals for a while, and that injects writes of another client at defined points.
struct FaultyStore {
    inner: MemoryStore,
    /// Number of removals of ConfigMaps that fail because the disk is full.
    refusals: AtomicUsize,
    /// Replaces the namespace by a successor with its own content as soon as its content is listed.
    succeed: AtomicBool,
    /// Changes the namespace just before the next ConfigMap is created: sets this member of its metadata.
    before: Mutex<Option<&'static str>>,
}

impl FaultyStore {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::new(),
            refusals: AtomicUsize::new(0),
            succeed: AtomicBool::new(false),
            before: Mutex::default(),
        })
    }

    fn write_now(&self, key: Key, expected: Expected, change: Change) {
        let done = self.inner.write(Write::new(key, expected, change));
        let done = done
            .now_or_never()
            .expect("the memory store returns immediately");
        done.expect("the write failed");
    }

    fn replace_namespace(&self) {
        let write = |key, expected, change| self.write_now(key, expected, change);
        let namespace = key("/namespaces", "", "n");
        let old = self
            .inner
            .get(&namespace)
            .expect("the old namespace exists")
            .revision;
        write(namespace.clone(), Expected::Revision(old), Change::Delete);
        let new = json!({"metadata": {"name": "n", "uid": "new"},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        write(namespace, Expected::Absent, Change::Put(new.into()));
        let content = json!({"metadata": {"name": "new", "namespace": "n", "uid": "content"}});
        let content_key = key("/configmaps", "n", "new");
        write(content_key, Expected::Absent, Change::Put(content.into()));
    }

    fn set_on_namespace(&self, member: &str) {
        let stored = self.inner.get(&key("/namespaces", "", "n")).expect("there");
        let mut namespace: Value = serde_json::from_slice(&stored.json).expect("JSON");
        namespace["metadata"][member] = json!("2026-01-01T00:00:00Z");
        let (expected, change) = (
            Expected::Revision(stored.revision),
            Change::Put(namespace.into()),
        );
        self.write_now(stored.key.clone(), expected, change);
    }
}

fn key(resource: &str, namespace: &str, name: &str) -> Key {
    Key {
        resource: resource.into(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

impl Store for FaultyStore {
    fn revision(&self) -> u64 {
        self.inner.revision()
    }

    fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.inner.get(key)
    }

    fn page(
        &self,
        range: &Range,
        at: Option<u64>,
        window: &Window<'_>,
    ) -> Result<Listing, Expired> {
        let looked_at =
            &*range.resource == "/configmaps" && range.namespace.as_deref() == Some("n");
        if looked_at && self.succeed.swap(false, Ordering::SeqCst) {
            self.replace_namespace();
        }
        self.inner.page(range, at, window)
    }

    fn check_fence(&self, fence: &Fence) -> Result<(), WriteError> {
        self.inner.check_fence(fence)
    }

    fn reached(&self, revision: u64) -> BoxFuture<'_, ()> {
        self.inner.reached(revision)
    }

    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Object>, WriteError>> {
        let removal = matches!(write.change, Change::Delete);
        let less = |left: usize| left.checked_sub(1);
        if removal
            && &*write.key.resource == "/configmaps"
            && self
                .refusals
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok()
        {
            return Box::pin(async { Err(WriteError::Full("no room in this test".into())) });
        }
        if !removal && &*write.key.resource == "/configmaps" {
            let member = self.before.lock().expect("not poisoned").take();
            if let Some(member) = member {
                self.set_on_namespace(member);
            }
        }
        self.inner.write(write)
    }

    fn watch(&self, range: Range, after: u64) -> Result<Box<dyn Watch>, Expired> {
        self.inner.watch(range, after)
    }

    fn jump(&self, by: u64) -> BoxFuture<'_, Result<u64, WriteError>> {
        self.inner.jump(by)
    }

    fn failure(&self) -> Option<String> {
        self.inner.failure()
    }
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn namespace_with_content(server: &Server) {
    let namespace = json!({"metadata": {"name": "n"}});
    create(server, "/api/v1/namespaces", namespace).await;
    create(server, MAPS, map("a", "1")).await;
}

#[tokio::test]
async fn failed_purge_is_retried() {
    let store = FaultyStore::new();
    let server = Server::start_on(store.clone()).await;
    namespace_with_content(&server).await;
    store.refusals.store(3, Ordering::SeqCst);
    server.call("DELETE", "/api/v1/namespaces/n", None).await;
    eventually("the namespace goes when there is room", async || {
        let answer = server.call("GET", "/api/v1/namespaces/n", None).await;
        answer.status == 404
    })
    .await;
    assert_eq!(store.refusals.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn purge_keeps_content_of_successor_namespace() {
    let store = FaultyStore::new();
    let server = Server::start_on(store.clone()).await;
    namespace_with_content(&server).await;
    store.succeed.store(true, Ordering::SeqCst);
    server.call("DELETE", "/api/v1/namespaces/n", None).await;
    eventually("the purge looks at the content", async || {
        !store.succeed.load(Ordering::SeqCst)
    })
    .await;
    // This pause is long enough for the next step of the purge, which is immediate.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let content = server.call("GET", &format!("{MAPS}/new"), None).await;
    assert_eq!(content.status, 200, "the successor keeps its content");
    let namespace = server.call("GET", "/api/v1/namespaces/n", None).await;
    assert_eq!(namespace.json()["metadata"]["uid"], "new");
}

#[tokio::test]
async fn create_fails_if_deletion_of_its_namespace_starts_concurrently() {
    let store = FaultyStore::new();
    let server = Server::start_on(store.clone()).await;
    namespace_with_content(&server).await;
    let before = |member| *store.before.lock().expect("not poisoned") = Some(member);
    before("selfLink");
    let made = server.call("POST", MAPS, Some(map("b", "1"))).await;
    assert_eq!(
        made.status, 201,
        "the successor of the namespace must accept the object"
    );
    before("deletionTimestamp");
    let refused = server.call("POST", MAPS, Some(map("c", "1"))).await;
    assert_eq!(refused.status, 403, "{}", refused.json());
    let cause = &refused.json()["details"]["causes"][0]["reason"];
    assert_eq!(*cause, "NamespaceTerminating");
    assert!(store.get(&key("/configmaps", "n", "c")).is_none());
}

#[tokio::test]
async fn namespace_deletes_pods_first_and_shows_conditions() {
    let server = Server::start().await;
    create(
        &server,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "n"}}),
    )
    .await;
    let held = |name: &str| json!({"name": name, "finalizers": ["example.com/hold"]});
    let pods = "/api/v1/namespaces/n/pods";
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    create(&server, pods, json!({"metadata": held("p"), "spec": spec})).await;
    create(&server, MAPS, json!({"metadata": held("m")})).await;
    create(&server, MAPS, json!({"metadata": {"name": "free"}})).await;
    server.call("DELETE", "/api/v1/namespaces/n", None).await;
    let conditions = async || -> Vec<Value> {
        let namespace = server
            .call("GET", "/api/v1/namespaces/n", None)
            .await
            .json();
        namespace["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let with = async |status: &str| -> Vec<(String, String)> {
        let all = conditions().await.into_iter();
        let all = all.filter(|condition| condition["status"] == status);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        all.map(|it| (text(&it["type"]), text(&it["message"])))
            .collect()
    };
    eventually("the conditions are shown", async || {
        conditions().await.len() == 5
    })
    .await;
    assert_eq!(with("True").await, []);
    // The ConfigMaps stay while a pod is left.
    let is_deleting = async |path: &str| {
        let object = server.call("GET", path, None).await.json();
        object["metadata"]["deletionTimestamp"].is_string()
    };
    assert!(is_deleting(&format!("{pods}/p")).await);
    assert!(!is_deleting(&format!("{MAPS}/m")).await);
    assert_eq!(
        server
            .call("GET", &format!("{MAPS}/free"), None)
            .await
            .status,
        200
    );
    let release = json!({"metadata": {"finalizers": null}});
    server
        .call("PATCH", &format!("{pods}/p"), Some(release.clone()))
        .await;
    eventually("the ConfigMap is reported", async || {
        with("True").await.len() == 2
    })
    .await;
    let expected = [
        (
            "NamespaceContentRemaining",
            "Some resources are remaining: configmaps. has 1 resource instances",
        ),
        (
            "NamespaceFinalizersRemaining",
            "Some content in the namespace has finalizers remaining: \
          example.com/hold in 1 resource instances",
        ),
    ];
    assert_eq!(
        with("True").await,
        expected.map(|(a, b)| (a.to_owned(), b.to_owned()))
    );
    assert_eq!(with("False").await.len(), 3);
    assert_eq!(
        server
            .call("GET", &format!("{MAPS}/free"), None)
            .await
            .status,
        404
    );
    server
        .call("PATCH", &format!("{MAPS}/m"), Some(release))
        .await;
    eventually("the namespace goes", async || {
        server
            .call("GET", "/api/v1/namespaces/n", None)
            .await
            .status
            == 404
    })
    .await;
}
