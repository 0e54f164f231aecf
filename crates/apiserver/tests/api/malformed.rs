//! Malformed requests get a valid Status.

use serde_json::json;

use crate::support::Server;
use crate::{LEASES, MAPS, create, failure, is, map};

#[tokio::test]
async fn unknown_paths_are_rejected_with_a_status() {
    let server = Server::start().await;
    for (path, code) in [
        ("/api/v1/namespaces/default/pods/%2e%2e%2fx", 404),
        ("/api/v1/namespaces/default/configmaps/a/b/c/d", 404),
        ("/api/v1/namespaces/default/configmaps/%ff", 404),
        ("/api/v1//configmaps", 404),
        ("/api/v2/configmaps", 404),
        ("/apis//v1/x", 404),
        ("/apis/coordination.k8s.io/v1/leases/x", 404),
        ("/api/v1/namespaces/default/nodes", 404),
        ("/api/v1/nodes/n/nope", 404),
        ("/apis/coordination.k8s.io/v2/leases", 404),
        ("/%", 404),
        ("//", 404),
        ("/openapi/v3/apis/nope", 404),
        ("/healthz/nope", 404),
        ("/api/v1/watch", 404),
    ] {
        let answer = server.call("GET", path, None).await;
        assert_eq!(answer.status, code, "{path}");
    }
    let long = format!("{MAPS}/{}", "x".repeat(20_000));
    assert_eq!(server.call("GET", &long, None).await.status, 404);
}

#[tokio::test]
async fn invalid_queries_are_rejected_with_a_status() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    for (query, code) in [
        ("labelSelector=a%20in%20(", 400),
        ("labelSelector=%3D%3D", 400),
        ("labelSelector=-bad-%3Dx", 400),
        ("labelSelector=a%3D!!!", 400),
        ("fieldSelector=metadata.name", 400),
        ("fieldSelector=metadata.nope%3Dx", 400),
        ("continue=%00%00", 400),
        ("continue=e30", 400),
        ("limit=9999999999999999999999", 400),
        ("limit=-5", 200),
        ("resourceVersion=18446744073709551616", 400),
        ("resourceVersion=-1", 400),
        ("watch=1&resourceVersion=abc", 400),
        ("watch=1&timeoutSeconds=abc", 400),
        ("includeObject=Some", 400),
        ("unknown=1&&&=&%zz=%zz", 200),
    ] {
        let answer = server.call("GET", &format!("{MAPS}?{query}"), None).await;
        assert_eq!(answer.status, code, "{query}");
        if code != 200 {
            failure(&answer);
        }
    }
}

#[tokio::test]
async fn invalid_bodies_are_rejected_with_a_status() {
    let server = Server::start().await;
    let deep = "[".repeat(100_000);
    let wide = format!(
        "{{\"metadata\":{{\"name\":\"w\"}},\"data\":{}1{}}}",
        "{\"a\":".repeat(500),
        "}".repeat(500)
    );
    for body in [
        "",
        "null",
        "1",
        "\"x\"",
        "[]",
        "{",
        "{\"metadata\":",
        "{\"metadata\":[]}",
        "{\"metadata\":\"x\"}",
        "{\"metadata\":{\"name\":5}}",
        "{\"metadata\":{\"name\":null}}",
        "{\"data\":[]}",
        "{} {}",
        "{\"metadata\":{\"name\":\"a\",\"labels\":{\"a\":1}}}",
        "{\"metadata\":{\"name\":\"a\",\"creationTimestamp\":\"yesterday\"}}",
        "{\"metadata\":{\"name\":\"a\",\"finalizers\":\"x\"}}",
        "{\"kind\":5,\"metadata\":{}}",
        "\u{feff}{}",
        &deep,
        &wide,
    ] {
        for kind in [
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf",
        ] {
            let headers = [("content-type", kind)];
            let answer = server
                .send("POST", MAPS, &headers, body.as_bytes().to_vec())
                .await;
            let (code, _) = failure(&answer);
            assert!(
                matches!(code, 400 | 422),
                "{kind} {body:.60}: {}",
                answer.json()
            );
        }
        let answer = server
            .send("PUT", &format!("{MAPS}/a"), &[], body.as_bytes().to_vec())
            .await;
        assert!(matches!(failure(&answer).0, 400 | 422), "{body:.60}");
    }
    for body in [
        b"k8s\0".as_slice(),
        b"k8s\0\xff\xff\xff\xff",
        b"k8s\0\x0a\xff\xff\xff\xff\x0f",
    ] {
        let kind = [("content-type", "application/vnd.kubernetes.protobuf")];
        let answer = server.send("POST", MAPS, &kind, body.to_vec()).await;
        assert!(matches!(failure(&answer).0, 400 | 422), "{body:?}");
    }
    for body in [
        "[]",
        "1",
        "{\"gracePeriodSeconds\":",
        "{\"preconditions\":5}",
    ] {
        let path = format!("{MAPS}/absent");
        let answer = server
            .send("DELETE", &path, &[], body.as_bytes().to_vec())
            .await;
        assert!(matches!(failure(&answer).0, 400 | 404), "{body}");
    }
}

#[tokio::test]
async fn large_body_is_rejected_and_the_server_continues() {
    let server = Server::start().await;
    let large = map("a", &"x".repeat(10 * 1024 * 1024))
        .to_string()
        .into_bytes();
    for (method, path) in [
        ("POST", MAPS.to_owned()),
        ("PUT", format!("{MAPS}/a")),
        ("DELETE", format!("{MAPS}/a")),
    ] {
        let answer = server.send(method, &path, &[], large.clone()).await;
        is(&answer, 413, "RequestEntityTooLarge");
    }
    let kind = [("content-type", "application/merge-patch+json")];
    is(
        &server
            .send("PATCH", &format!("{MAPS}/a"), &kind, large)
            .await,
        413,
        "RequestEntityTooLarge",
    );
    // Without a Content-Length, the server detects the size only while it reads the body.
    let pieces = large_pieces();
    is(
        &server.send_pieces("POST", MAPS, pieces).await,
        413,
        "RequestEntityTooLarge",
    );
    let just_too_much = map("a", &"x".repeat(1024 * 1024 + 1));
    let answer = server.call("POST", MAPS, Some(just_too_much)).await;
    is(&answer, 422, "Invalid");
    assert_eq!(
        answer.json()["details"]["causes"][0]["reason"],
        "FieldValueTooLong"
    );
    create(&server, MAPS, map("a", "fits")).await;
}

/// Ten megabytes of JSON in pieces.
fn large_pieces() -> Vec<Vec<u8>> {
    let start = br#"{"metadata":{"name":"a"},"data":{"k":""#.to_vec();
    let middle = std::iter::repeat_n(vec![b'x'; 64 * 1024], 160);
    let end = br#""}}"#.to_vec();
    std::iter::once(start).chain(middle).chain([end]).collect()
}

/// The size limit equals that of a request to etcd, so that a store can be moved to etcd.
#[tokio::test]
async fn objects_are_stored_up_to_a_size() {
    let server = Server::start().await;
    let lease = |bytes: usize| json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x".repeat(bytes)}});
    let large = server.call("POST", LEASES, Some(lease(1600 << 10))).await;
    is(&large, 413, "RequestEntityTooLarge");
    let stored = create(&server, LEASES, lease(1500 << 10)).await;
    let path = format!("{LEASES}/l");
    let mut larger = stored.json();
    larger["spec"]["holderIdentity"] = json!("x".repeat(1600 << 10));
    let larger = server.call("PUT", &path, Some(larger)).await;
    is(&larger, 413, "RequestEntityTooLarge");
    let message = larger.json()["message"].to_string();
    assert!(message.contains("1572864"), "{message}");
    let present = server.call("GET", &path, None).await;
    assert_eq!(present.version(), stored.version());
}

/// The default of an element has thousands of bytes, and the element itself only a few.
#[tokio::test]
async fn defaults_that_make_an_object_too_large_are_refused() {
    let server = Server::start().await;
    let schema = json!({"type": "object", "properties": {"list": {"type": "array", "items": {
        "type": "object", "properties": {"text": {"type": "string", "default": "x".repeat(10_000)}}}}}});
    let definition = json!({"metadata": {"name": "longs.t.example"},
        "spec": {"group": "t.example", "scope": "Namespaced",
            "names": {"plural": "longs", "kind": "Long"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    create(&server, definitions, definition).await;
    let longs = "/apis/t.example/v1/namespaces/default/longs";
    let long = |name: &str, count: usize| {
        json!({"apiVersion": "t.example/v1", "kind": "Long", "metadata": {"name": name},
            "list": vec![json!({}); count]})
    };
    let made = create(&server, longs, long("some", 100)).await.json();
    assert_eq!(
        made["list"][99]["text"].as_str().map(str::len),
        Some(10_000)
    );
    let refused = server
        .call("POST", longs, Some(long("many", 100_000)))
        .await;
    is(&refused, 400, "BadRequest");
    let message = refused.json()["message"].to_string();
    assert!(message.contains("larger than 1572864 bytes"), "{message}");
    let one = format!("{longs}/some");
    let refused = server.call("PUT", &one, Some(long("some", 100_000))).await;
    is(&refused, 400, "BadRequest");
    let change = json!({ "list": vec![json!({}); 100_000] });
    let refused = server.call("PATCH", &one, Some(change)).await;
    assert!((400..500).contains(&refused.status), "{}", refused.json());
    assert_eq!(server.call("GET", &one, None).await.json(), made);
}

#[tokio::test]
async fn unsupported_methods_are_rejected_with_a_status() {
    let server = Server::start().await;
    for (method, path) in [
        ("POST", "/version"),
        ("PUT", "/api"),
        ("OPTIONS", LEASES),
        ("TRACE", LEASES),
        ("POST", "/api/v1/configmaps"),
        ("PUT", MAPS),
        ("GET", "/apis/authentication.k8s.io/v1/tokenreviews"),
        ("GET", "/api/v1/namespaces/default/finalize"),
        ("DELETE", "/api/v1/nodes/n/status"),
    ] {
        is(
            &server.call(method, path, Some(json!({}))).await,
            405,
            "MethodNotAllowed",
        );
    }
}

#[tokio::test]
async fn namespace_is_not_served_inside_another_namespace() {
    let server = Server::start().await;
    let json = [("content-type", "application/json")];
    let other = "/api/v1/namespaces/default/namespaces";
    for (method, path) in [
        ("GET", other.to_owned()),
        ("GET", format!("{other}/kube-system")),
        ("DELETE", format!("{other}/kube-system")),
        ("POST", other.to_owned()),
        ("GET", format!("{other}?watch=true&timeoutSeconds=1")),
    ] {
        let body = br#"{"metadata":{"name":"x"}}"#.to_vec();
        let answer = server.send(method, &path, &json, body).await;
        assert_eq!(answer.status, 404, "{method} {path}");
    }
    let own = server
        .send("GET", "/api/v1/namespaces/default", &[], Vec::new())
        .await;
    assert_eq!(own.status, 200);
}

#[tokio::test]
async fn delete_options_of_a_wrong_type_delete_nothing() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    let json = [("content-type", "application/json")];
    let path = format!("{MAPS}/a");
    for body in [
        r#"{"dryRun":"All"}"#,
        r#"{"preconditions":{"resourceVersion":5}}"#,
        "[]",
    ] {
        let answer = server.send("DELETE", &path, &json, body.into()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.json());
    }
    // Typed clients send DeleteOptions with the API version of the object that they delete.
    let body = r#"{"kind":"DeleteOptions","apiVersion":"coordination.k8s.io/v1"}"#;
    assert_eq!(
        server
            .send("DELETE", &path, &json, body.into())
            .await
            .status,
        200
    );
}
