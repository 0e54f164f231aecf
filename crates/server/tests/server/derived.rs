//! A kind that is derived from a Rust type, as in operators based on kube: defined and written by server-side apply.
#![allow(missing_docs, reason = "the derive makes items without")]

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{CustomResource, CustomResourceExt as _, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Running, embedded};

/// A document to be printed.
#[derive(CustomResource, Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(group = "t.example", version = "v1", kind = "Document", namespaced)]
#[kube(status = "DocumentStatus", shortname = "doc")]
#[kube(printcolumn = r#"{"name":"Title","type":"string","jsonPath":".spec.title"}"#)]
struct DocumentSpec {
    /// Title of the document.
    title: String,
    /// Number of copies.
    #[serde(default = "once")]
    #[schemars(range(min = 1, max = 5))]
    copies: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paper: Option<Paper>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
enum Paper {
    A4,
    Letter,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
struct DocumentStatus {
    #[serde(default)]
    printed: u8,
}

fn once() -> u8 {
    1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_derived_kind_is_defined_applied_validated_and_defaulted() {
    let server = Running::start(embedded()).await;
    let client = server.client.clone();
    let apply = PatchParams::apply("operator");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let (name, definition) = (Document::crd_name(), Document::crd());
    for _ in 0..2 {
        // Operators do this at each start.
        let patch = Patch::Apply(&definition);
        definitions.patch(name, &apply, &patch).await.unwrap();
    }
    let established = await_condition(definitions, name, conditions::is_crd_established());
    let established = tokio::time::timeout(Duration::from_secs(60), established).await;
    established.unwrap().unwrap();

    let documents: Api<Document> = Api::namespaced(client, "default");
    let spec = |spec: serde_json::Value| {
        Patch::Apply(json!({ "apiVersion": "t.example/v1", "kind": "Document", "spec": spec }))
    };
    let first = spec(json!({ "title": "one", "paper": "A4" }));
    let made = documents.patch("d", &apply, &first).await.unwrap();
    assert_eq!((made.spec.title.as_str(), made.spec.copies), ("one", 1));
    assert_eq!(made.spec.paper, Some(Paper::A4));
    let managers = made
        .managed_fields()
        .iter()
        .map(|entry| entry.manager.as_deref());
    assert_eq!(managers.collect::<Vec<_>>(), [Some("operator")]);

    // Another manager may not take over a field, but may add one. Fields that are no longer applied are removed.
    let other = PatchParams::apply("other");
    let refused = documents
        .patch("d", &other, &spec(json!({ "title": "two" })))
        .await;
    let Err(kube::Error::Api(status)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    documents
        .patch("d", &other, &spec(json!({ "copies": 3 })))
        .await
        .unwrap();
    let last = spec(json!({ "title": "one" }));
    let now = documents.patch("d", &apply, &last).await.unwrap();
    assert_eq!((now.spec.copies, now.spec.paper), (3, None));

    // The derived schema is enforced.
    for (bad, field) in [
        (json!({ "title": "x", "copies": 6 }), "spec.copies"),
        (json!({ "title": "x", "paper": "A3" }), "spec.paper"),
        (json!({ "copies": 1 }), "spec.title"),
    ] {
        let refused = documents.patch("bad", &apply, &spec(bad)).await;
        let Err(kube::Error::Api(status)) = refused else {
            panic!("{field}: {refused:?}");
        };
        assert_eq!(status.code, 422, "{field}: {status:?}");
        assert!(
            status.message.contains(field),
            "{field}: {}",
            status.message
        );
    }

    // The status is a separate subresource.
    let printed = json!({
        "apiVersion": "t.example/v1", "kind": "Document", "status": { "printed": 2 },
    });
    let through = Patch::Apply(printed);
    let now = documents.patch_status("d", &apply, &through).await.unwrap();
    assert_eq!(now.status.unwrap().printed, 2);
    server.stop().await;
}
