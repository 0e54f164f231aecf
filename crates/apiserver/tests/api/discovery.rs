//! Discovery, OpenAPI, version, health, metrics.

use serde_json::{Value, json};

use crate::support::Server;
use crate::{MAPS, create, map};

#[tokio::test]
async fn both_forms_of_discovery_are_equal() {
    let server = Server::start().await;
    let groups = server.call("GET", "/apis", None).await.json();
    let mut legacy: Vec<String> = Vec::new();
    let mut paths = vec!["/api/v1".to_owned()];
    for group in groups["groups"].as_array().expect("groups") {
        let name = group["name"].as_str().expect("name");
        let own = server
            .call("GET", &format!("/apis/{name}/"), None)
            .await
            .json();
        assert_eq!(own["preferredVersion"], group["preferredVersion"]);
        for version in group["versions"].as_array().expect("versions") {
            paths.push(format!(
                "/apis/{}",
                version["groupVersion"].as_str().expect("text")
            ));
        }
    }
    for path in paths {
        let list = server.call("GET", &path, None).await.json();
        let version = list["groupVersion"].as_str().expect("text").to_owned();
        for resource in list["resources"].as_array().expect("resources") {
            legacy.push(format!(
                "{version} {}",
                resource["name"].as_str().expect("name")
            ));
        }
    }
    let accept =
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let mut aggregated: Vec<String> = Vec::new();
    for path in ["/api", "/apis"] {
        let answer = server
            .send("GET", path, &[("accept", accept)], Vec::new())
            .await;
        assert_eq!(
            answer.headers["content-type"],
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        );
        let tag = answer.headers["etag"].to_str().expect("text");
        let headers = [("accept", accept), ("if-none-match", tag)];
        assert_eq!(
            server.send("GET", path, &headers, Vec::new()).await.status,
            304
        );
        for group in answer.json()["items"].as_array().expect("items") {
            let name = group["metadata"]
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            for version in group["versions"].as_array().expect("versions") {
                let text = version["version"].as_str().expect("text");
                let gv = if name.is_empty() {
                    text.to_owned()
                } else {
                    format!("{name}/{text}")
                };
                for resource in version["resources"].as_array().expect("resources") {
                    let plural = resource["resource"].as_str().expect("text");
                    aggregated.push(format!("{gv} {plural}"));
                    let subs = resource.get("subresources").and_then(Value::as_array);
                    for sub in subs.into_iter().flatten() {
                        let sub = sub["subresource"].as_str().expect("text");
                        aggregated.push(format!("{gv} {plural}/{sub}"));
                    }
                }
            }
        }
    }
    legacy.sort();
    aggregated.sort();
    assert_eq!(legacy, aggregated);
    assert!(legacy.contains(&"coordination.k8s.io/v1 leases".to_owned()));
}

#[tokio::test]
async fn version_health_and_openapi_paths_respond() {
    let server = Server::start().await;
    let version = server.call("GET", "/version", None).await.json();
    assert!(
        version["gitVersion"]
            .as_str()
            .expect("text")
            .starts_with("v1.37.")
    );
    assert!(
        version
            .as_object()
            .expect("map")
            .values()
            .all(Value::is_string)
    );
    let verbose = server.call("GET", "/readyz?verbose", None).await;
    let text = String::from_utf8_lossy(&verbose.bytes);
    assert!(
        text.starts_with("[+]ping ok\n[+]log ok\n[+]etcd ok\n"),
        "{text}"
    );
    assert!(
        text.ends_with("\n[+]shutdown ok\nreadyz check passed\n"),
        "{text}"
    );
    for check in [
        "[+]informer-sync ok",
        "[+]poststarthook/bootstrap-controller ok",
    ] {
        assert!(text.lines().any(|line| line == check), "{check}: {text}");
    }
    let one = server
        .call("GET", "/livez/poststarthook/rbac/bootstrap-roles", None)
        .await;
    assert_eq!((one.status, one.bytes.as_ref()), (200, b"ok".as_slice()));
    let accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let v2 = server
        .send("GET", "/openapi/v2", &[("accept", accept)], Vec::new())
        .await;
    assert_eq!(
        v2.headers["content-type"],
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    assert!(v2.bytes.starts_with(b"\x0a\x032.0\x42"));
    let index = server.call("GET", "/openapi/v3", None).await.json();
    for (path, entry) in index["paths"].as_object().expect("map") {
        let url = entry["serverRelativeURL"].as_str().expect("text");
        let document = server.call("GET", url, None).await.json();
        assert_eq!(document["openapi"], "3.0.0", "{path}");
    }
}

#[tokio::test]
async fn requests_are_counted() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    server.call("GET", &format!("{MAPS}/absent"), None).await;
    let _watch = server.watch(&format!("{MAPS}?watch=1")).await;
    let answer = server.call("GET", "/metrics", None).await;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(answer.headers["content-type"], kind);
    let text = String::from_utf8_lossy(&answer.bytes).into_owned();
    let created = "apiserver_request_total{verb=\"POST\",group=\"\",resource=\"configmaps\",\
                   subresource=\"\",scope=\"namespace\",code=\"201\"} 1";
    assert!(text.contains(created), "{text}");
    assert!(text.contains("code=\"404\"} 1"));
    assert!(text.contains("apiserver_longrunning_requests 1"));
    assert!(text.contains("apiserver_request_duration_seconds_bucket"));
    assert!(
        text.contains("# TYPE apiserver_request_total counter\n"),
        "{text}"
    );
    let asked = [(
        "accept",
        "application/openmetrics-text;version=1.0.0,*/*;q=0.1",
    )];
    let answer = server.send("GET", "/metrics", &asked, Vec::new()).await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.headers["content-type"], kind);
    assert!(answer.bytes.ends_with(b"# EOF\n"));
}

#[tokio::test]
async fn all_kinds_print_as_tables() {
    let server = Server::start().await;
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for path in [
        "/api/v1/namespaces",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    ] {
        let table = server.send("GET", path, &accept, Vec::new()).await.json();
        let columns = table["columnDefinitions"]
            .as_array()
            .expect("columns")
            .len();
        for column in table["columnDefinitions"].as_array().expect("columns") {
            assert_ne!(column["description"], "", "{path} {column}");
        }
        let rows = table["rows"].as_array().expect("rows");
        assert!(!rows.is_empty());
        for row in rows {
            assert_eq!(row["cells"].as_array().map(Vec::len), Some(columns));
        }
    }
    let one = server
        .send("GET", "/api/v1/namespaces/default", &accept, Vec::new())
        .await
        .json();
    assert_eq!(one["rows"][0]["cells"][1], json!("Active"));
}
