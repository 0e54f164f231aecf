//! The default storage class of claims that name none.

use serde_json::{Value, json};
use tenure_apiserver::store::{Change, Expected, Key, Write};

use crate::create;
use crate::support::Server;

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
const DEFAULT_BETA: &str = "storageclass.beta.kubernetes.io/is-default-class";
const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";

fn class(name: &str, annotations: &Value) -> Value {
    json!({"metadata": {"name": name, "annotations": annotations}, "provisioner": "p.example"})
}

/// Returns the class that a new claim gets, using a dry run.
async fn class_of(server: &Server, annotations: Value, spec: Value) -> Value {
    let mut claim = json!({"metadata": {"name": "c", "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    for (member, value) in spec.as_object().expect("members") {
        claim["spec"][member] = value.clone();
    }
    let path = format!("{CLAIMS}?dryRun=All");
    let made = create(server, &path, claim).await.json();
    made["spec"]["storageClassName"].clone()
}

#[tokio::test]
async fn claim_without_class_gets_the_default_class() {
    let server = Server::start().await;
    let plain = async || class_of(&server, json!({}), json!({})).await;
    assert_eq!(plain().await, Value::Null);
    create(&server, CLASSES, class("other", &json!({DEFAULT: "false"}))).await;
    assert_eq!(plain().await, Value::Null, "there is no default class");
    create(&server, CLASSES, class("one", &json!({DEFAULT: "true"}))).await;
    assert_eq!(plain().await, "one");

    // The class of a claim is preserved, even if it is empty.
    let named = class_of(&server, json!({}), json!({"storageClassName": "other"})).await;
    assert_eq!(named, "other");
    let none = class_of(&server, json!({}), json!({"storageClassName": ""})).await;
    assert_eq!(none, "");
    let annotated = class_of(&server, json!({CLASS_BETA: "other"}), json!({})).await;
    assert_eq!(annotated, Value::Null, "the annotation names a class");

    // A creating apply or PUT also sets the default class. An update of an existing claim does not.
    let apply = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let kind = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{CLAIMS}/a?fieldManager=t");
    let applied = server
        .send("PATCH", &path, &kind, apply.to_string().into_bytes())
        .await;
    assert_eq!(applied.json()["spec"]["storageClassName"], "one");
    server.call("DELETE", &format!("{CLASSES}/one"), None).await;
    assert_eq!(plain().await, Value::Null);
}

#[tokio::test]
async fn of_several_default_classes_the_newest_is_taken() {
    let server = Server::start().await;
    // The server sets the creation time with a resolution of one second. These times are older by more than that.
    let put = async |name: &str, since: &str, annotation: &str| {
        let mut class = class(name, &json!({annotation: "true"}));
        class["metadata"]["creationTimestamp"] = json!(since);
        class["metadata"]["uid"] = json!(name);
        let key = Key {
            resource: "storage.k8s.io/storageclasses".into(),
            namespace: String::new(),
            name: name.to_owned(),
        };
        let write = Write::new(key, Expected::Absent, Change::Put(class.into()));
        server.store.write(write).await.expect("written");
    };
    let plain = async || class_of(&server, json!({}), json!({})).await;
    put("b", "2020-01-01T00:00:02Z", DEFAULT_BETA).await;
    assert_eq!(
        plain().await,
        "b",
        "the deprecated annotation marks the default"
    );
    put("a", "2020-01-01T00:00:01Z", DEFAULT).await;
    assert_eq!(plain().await, "b", "the other class is older");
    put("c", "2020-01-01T00:00:03Z", DEFAULT).await;
    assert_eq!(plain().await, "c", "the class is the newest default");
    put("bb", "2020-01-01T00:00:03Z", DEFAULT).await;
    assert_eq!(
        plain().await,
        "bb",
        "of two classes with the same age, the first by name"
    );
}
