//! The form of responses: members, indentation, and the errors of unusual requests, as kube-apiserver returns them.

use serde_json::{Value, json};

use crate::support::Server;
use crate::{LEASES, MAPS, create, is, map};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// Returns the byte offsets of the names of members in a text, which must contain each of them.
fn places(text: &str, names: &[&str]) -> Vec<usize> {
    let place = |name: &&str| text.find(&format!("\"{name}\":"));
    let found = names.iter().map(place);
    found
        .map(|place| place.unwrap_or_else(|| panic!("{names:?}: {text}")))
        .collect()
}

#[tokio::test]
async fn members_of_status_and_discovery_are_in_the_order_of_their_types() {
    let server = Server::start().await;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let missing = server.call("GET", &format!("{LEASES}/none"), None).await;
    let expected = "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\
        \"message\":\"leases.coordination.k8s.io \\\"none\\\" not found\",\"reason\":\"NotFound\",\
        \"details\":{\"name\":\"none\",\"group\":\"coordination.k8s.io\",\"kind\":\"leases\"},\"code\":404}\n";
    assert_eq!(text(&missing.bytes), expected);
    let resources = server
        .call("GET", "/apis/coordination.k8s.io/v1", None)
        .await;
    let expected = "{\"kind\":\"APIResourceList\",\"apiVersion\":\"v1\",\"groupVersion\":\"coordination.k8s.io/v1\",\
        \"resources\":[{\"name\":\"leases\",\"singularName\":\"lease\",\"namespaced\":true,\"kind\":\"Lease\",\
        \"verbs\":[\"create\",\"delete\",\"deletecollection\",\"get\",\"list\",\"patch\",\"update\",\"watch\"],\
        \"storageVersionHash\":\"";
    assert!(
        text(&resources.bytes).starts_with(expected),
        "{}",
        text(&resources.bytes)
    );
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let discovery = server
        .send("GET", "/apis", &[("accept", accept)], Vec::new())
        .await;
    let names = [
        "kind",
        "apiVersion",
        "items",
        "name",
        "version",
        "resource",
        "responseKind",
        "scope",
        "singularResource",
        "verbs",
    ];
    let places = places(&text(&discovery.bytes), &names);
    assert!(places.is_sorted(), "{places:?}");
}

#[tokio::test]
async fn groups_are_sorted_by_priority_and_hashes_name_the_stored_version() {
    let server = Server::start().await;
    let groups = server.call("GET", "/apis", None).await.json();
    let groups = groups["groups"].as_array().unwrap();
    let names: Vec<&str> = groups
        .iter()
        .map(|group| group["name"].as_str().unwrap())
        .collect();
    let place = |name: &str| names.iter().position(|known| *known == name).unwrap();
    let order = [
        "apps",
        "events.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "batch",
        "policy",
        "rbac.authorization.k8s.io",
        "storage.k8s.io",
        "apiextensions.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "resource.k8s.io",
    ];
    let places: Vec<usize> = order.iter().map(|name| place(name)).collect();
    assert!(places.is_sorted(), "{names:?}");
    // The hashes of kube-apiserver 1.36.
    for (path, plural, hash) in [
        ("/api/v1", "pods", "xPOwRZ+Yhw8="),
        ("/api/v1", "configmaps", "qFsyl6wFWjQ="),
        ("/apis/apps/v1", "deployments", "8aSe+NMegvE="),
        // Both groups store the form of the core group.
        ("/apis/events.k8s.io/v1", "events", "r2yiGXH7wu8="),
    ] {
        let list = server.call("GET", path, None).await.json();
        let entries = list["resources"].as_array().unwrap();
        let entry = entries
            .iter()
            .find(|entry| entry["name"] == plural)
            .unwrap();
        assert_eq!(entry["storageVersionHash"], hash, "{plural}");
    }
}

#[tokio::test]
async fn responses_for_people_are_indented() {
    let server = Server::start().await;
    create(&server, MAPS, map("m", "1")).await;
    let path = format!("{MAPS}/m");
    let get = async |path: &str, agent: &str| {
        let answer = server
            .send("GET", path, &[("user-agent", agent)], Vec::new())
            .await;
        String::from_utf8(answer.bytes.to_vec()).unwrap()
    };
    let plain = get(&path, "kubectl/v1.36").await;
    let value: Value = serde_json::from_str(&plain).unwrap();
    let curl = get(&path, "curl/8.5.0").await;
    assert!(
        curl.starts_with("{\n  \"kind\": \"ConfigMap\",\n  \"apiVersion\": \"v1\",\n"),
        "{curl}"
    );
    assert_eq!(serde_json::from_str::<Value>(&curl).unwrap(), value);
    assert_eq!(
        get(&format!("{path}?pretty=true"), "kubectl/v1.36").await,
        curl
    );
    assert_eq!(get(&format!("{path}?pretty=0"), "curl/8.5.0").await, plain);
    let missing = get(&format!("{MAPS}/none"), "Mozilla/5.0").await;
    assert!(
        missing.starts_with("{\n  \"kind\": \"Status\",\n"),
        "{missing}"
    );
    let watch = format!("{MAPS}?watch=true&resourceVersion=0&timeoutSeconds=1");
    let events = get(&watch, "curl/8.5.0").await;
    assert_eq!(events.lines().count(), 1, "{events}");
}

#[tokio::test]
async fn invalid_timeout_is_rejected() {
    let server = Server::start().await;
    let refused = server
        .call("GET", &format!("{MAPS}?timeout=invalid"), None)
        .await;
    is(&refused, 400, "BadRequest");
    let why = "invalid timeout specified in the request URL - time: invalid duration \"invalid\"";
    assert_eq!(refused.json()["message"], why);
    assert_eq!(
        server
            .call("GET", &format!("{MAPS}?timeout=30s"), None)
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn repeated_keys_in_yaml_follow_field_validation() {
    let server = Server::start().await;
    let send = async |name: &str, query: &str| {
        let body = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  a: x\n  a: z\n"
        );
        let headers = [("content-type", "application/yaml")];
        server
            .send(
                "POST",
                &format!("{MAPS}{query}"),
                &headers,
                body.into_bytes(),
            )
            .await
    };
    let warned = send("a", "").await;
    assert_eq!(
        (warned.status, &warned.json()["data"]["a"]),
        (201, &json!("z"))
    );
    assert_eq!(
        warned.headers["warning"],
        "299 - \"line 7: key \\\"a\\\" already set in map\""
    );
    let ignored = send("b", "?fieldValidation=Ignore").await;
    assert_eq!(
        (ignored.status, ignored.headers.get("warning")),
        (201, None)
    );
    let refused = send("c", "?fieldValidation=Strict").await;
    is(&refused, 400, "BadRequest");
    let why = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: yaml: \
               unmarshal errors:\n  line 7: key \"a\" already set in map";
    assert_eq!(refused.json()["message"], why);
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: d\ndata:\n  a: x\n  a: z\n";
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{MAPS}/d?fieldManager=m");
    let applied = server.send("PATCH", &path, &headers, body.into()).await;
    assert_eq!(
        applied.headers["warning"],
        "299 - \"line 7: key \\\"a\\\" already set in map\""
    );
    let strict = format!("{path}&fieldValidation=Strict");
    let refused = server.send("PATCH", &strict, &headers, body.into()).await;
    is(&refused, 400, "BadRequest");
    let why = "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 7: key \
               \"a\" already set in map";
    assert_eq!(refused.json()["message"], why);
}

#[tokio::test]
async fn reviews_have_no_table() {
    let server = Server::start().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let body =
        json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}}}).to_string();
    let send = async |accept: &str| {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        server
            .send("POST", path, &headers, body.clone().into_bytes())
            .await
    };
    is(&send(TABLE).await, 406, "NotAcceptable");
    let either = send(&format!("{TABLE},application/json")).await;
    assert_eq!(either.json()["status"]["allowed"], true);
}

#[tokio::test]
async fn end_of_initial_events_is_marked_in_tables() {
    let server = Server::start().await;
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
                 &timeoutSeconds=1&includeObject=None";
    let headers = [("accept", TABLE)];
    let events = server
        .send("GET", &format!("{MAPS}?{query}"), &headers, Vec::new())
        .await;
    let text = String::from_utf8(events.bytes.to_vec()).unwrap();
    let last = text.lines().find(|line| line.contains("BOOKMARK")).unwrap();
    let event: Value = serde_json::from_str(last).unwrap();
    let metadata = &event["object"]["rows"][0]["object"]["metadata"];
    assert_eq!(
        metadata["annotations"],
        json!({"k8s.io/initial-events-end": "true"}),
        "{event}"
    );
}

#[tokio::test]
async fn every_error_of_list_options_is_reported() {
    let server = Server::start().await;
    let causes = async |query: &str| -> Vec<(String, String)> {
        let refused = server.call("GET", &format!("{MAPS}?{query}"), None).await;
        is(&refused, 422, "Invalid");
        let causes = refused.json()["details"]["causes"]
            .as_array()
            .cloned()
            .unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        causes
            .iter()
            .map(|cause| (text(&cause["reason"]), text(&cause["field"])))
            .collect()
    };
    let field = "resourceVersionMatch".to_owned();
    let forbidden = ("FieldValueForbidden".to_owned(), field.clone());
    let unsupported = ("FieldValueNotSupported".to_owned(), field);
    let bad = causes("watch=true&sendInitialEvents=true&resourceVersionMatch=Exact").await;
    assert_eq!(bad, [forbidden.clone(), unsupported.clone()]);
    let none = causes("watch=true&sendInitialEvents=true").await;
    assert_eq!(none, std::slice::from_ref(&forbidden));
    let unknown = causes("resourceVersionMatch=Roughly").await;
    assert_eq!(unknown, [forbidden, unsupported]);
}
