//! Every way in which a request can fail, its class, and its error text.

use serde_json::json;
use tenure_core::{Outcome, WriteKind};
use tenure_lock::{Class, Error, Lock, LockKind, ObjectLock};

use crate::api::{Asked, Exchange, Script, get, post, put};
use crate::{LEASE, LEASES, lease, record};

async fn read_error(exchange: Exchange) -> Error {
    let script = Script::new([exchange]);
    let lock = ObjectLock::lease(script.client(), "foo", "bar").unwrap();
    lock.read().await.unwrap_err()
}

async fn create_error(answer: impl Fn(Asked) -> Exchange) -> Error {
    let script = Script::new([answer(post(LEASES))]);
    let lock = ObjectLock::lease(script.client(), "foo", "bar").unwrap();
    lock.write(&WriteKind::Create, &record("baz", 0), None)
        .await
        .unwrap_err()
}

async fn update_error(answer: impl Fn(Asked) -> Exchange) -> Error {
    let script = Script::new([
        get(LEASE).answers(200, &lease("a", 0, "7")),
        answer(put(LEASE)),
    ]);
    let lock = ObjectLock::lease(script.client(), "foo", "bar").unwrap();
    let seen = lock.read().await.unwrap().unwrap();
    let renew = WriteKind::Renew(seen.observation().version.clone());
    lock.write(&renew, &record("baz", 0), Some(&seen))
        .await
        .unwrap_err()
}

#[tokio::test]
async fn every_status_code_has_its_class() {
    for (code, reason, class) in [
        (409, "Conflict", Class::Refused),
        (404, "NotFound", Class::Refused),
        (400, "BadRequest", Class::Unusable),
        (401, "Unauthorized", Class::Unusable),
        (403, "Forbidden", Class::Unusable),
        (405, "MethodNotAllowed", Class::Unusable),
        (413, "RequestEntityTooLarge", Class::Unusable),
        (415, "UnsupportedMediaType", Class::Unusable),
        (422, "Invalid", Class::Unusable),
        (408, "Timeout", Class::Unknown),
        (410, "Gone", Class::Unknown),
        (429, "TooManyRequests", Class::Unknown),
        (500, "InternalError", Class::Unknown),
        (502, "BadGateway", Class::Unknown),
        (503, "ServiceUnavailable", Class::Unknown),
        (504, "Timeout", Class::Unknown),
    ] {
        let error = update_error(|asked| asked.fails(code, reason)).await;
        assert_eq!(error.class(), class, "{code} {reason}");
        assert_eq!(error.outcome(), Outcome::from(class));
        let text = error.to_string();
        assert!(text.contains("update lease foo/bar"), "{text}");
    }
}

#[tokio::test]
async fn error_names_the_missing_permission() {
    let error = read_error(get(LEASE).fails(403, "Forbidden")).await;
    assert_eq!(
        error.to_string(),
        "cannot get lease foo/bar: the permission to get leases.coordination.k8s.io in namespace foo \
         is missing: Forbidden by script"
    );
    let error = create_error(|asked| asked.fails(401, "Unauthorized")).await;
    assert_eq!(
        error.to_string(),
        "cannot create lease foo/bar: the credentials are not accepted; they must grant the permission to \
         create leases.coordination.k8s.io in namespace foo: Unauthorized by script"
    );
}

#[tokio::test]
async fn a_missing_namespace_is_unusable() {
    let error = create_error(|asked| asked.fails(404, "NotFound")).await;
    assert_eq!(error.class(), Class::Unusable);
    assert_eq!(
        error.to_string(),
        "cannot create lease foo/bar: namespace foo does not exist; create it first"
    );
}

#[tokio::test]
async fn a_namespace_that_is_being_deleted_is_not_a_missing_permission() {
    let status = json!({
        "kind": "Status", "reason": "Forbidden", "code": 403, "message": "unable to create",
        "details": { "causes": [{ "reason": "NamespaceTerminating", "field": "metadata.namespace" }] },
    });
    let error = create_error(|asked| asked.answers(403, &status)).await;
    assert_eq!(
        error.to_string(),
        "cannot create lease foo/bar: namespace foo is being deleted"
    );
}

#[tokio::test]
async fn not_found_from_a_proxy_does_not_mean_that_the_lease_is_absent() {
    let error = read_error(get(LEASE).answers_text(404, "<html>default backend</html>")).await;
    assert_eq!(error.class(), Class::Unknown);
    assert_eq!(
        error.to_string(),
        "cannot get lease foo/bar: the server answered 404: <html>default backend</html>"
    );
    let error = update_error(|asked| asked.answers(502, &json!({ "error": "upstream" }))).await;
    assert_eq!(error.class(), Class::Unknown);
}

#[tokio::test]
async fn missing_response_is_unknown_and_the_error_has_the_cause() {
    let error = update_error(Asked::breaks).await;
    assert_eq!(error.class(), Class::Unknown);
    let text = error.to_string();
    assert!(
        text.starts_with("the request to update lease foo/bar may or may not have been applied")
    );
    assert!(text.contains("connection reset by script"), "{text}");
    let text = read_error(get(LEASE).breaks()).await.to_string();
    assert!(
        text.starts_with("cannot get lease foo/bar: no answer"),
        "{text}"
    );
}

#[tokio::test]
async fn success_without_an_object_is_unknown() {
    for body in [
        "",
        "[]",
        "{}",
        "null",
        r#"{"kind":"Status","status":"Success"}"#,
        "\u{feff}",
    ] {
        let error = update_error(|asked| asked.answers_text(200, body)).await;
        assert_eq!(error.class(), Class::Unknown, "{body:?}");
        assert!(
            error
                .to_string()
                .contains("the response is not a valid object")
        );
    }
    let error = update_error(|asked| asked.answers_text(302, "elsewhere")).await;
    assert_eq!(error.class(), Class::Unknown);
}

#[tokio::test]
async fn invalid_names_are_rejected_without_a_request() {
    let client = Script::new([]).client();
    for kind in LockKind::ALL {
        let error = kind
            .open(client.clone(), "foo", "../secrets/x", &[].into())
            .unwrap_err();
        assert_eq!(error.class(), Class::Unusable);
        assert!(
            error.to_string().contains("name \"../secrets/x\" must be"),
            "{error}"
        );
        assert_eq!(kind.as_str().parse(), Ok(kind));
    }
    let error = LockKind::Leases
        .open(client, "Foo", "x", &[].into())
        .unwrap_err();
    assert!(
        error.to_string().contains("namespace \"Foo\" must be"),
        "{error}"
    );
    assert_eq!(
        "lease".parse::<LockKind>().unwrap_err().to_string(),
        "\"lease\" is not a kind of lock: expected one of leases, configmaps, endpoints, \
         configmapsleases, endpointsleases"
    );
}
