//! Members: the requests that list, read, write and delete them.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_core::WallTime;
use tenure_lock::Class;
use tenure_lock::member::{MEMBER_ANNOTATION, Member, MemberSnapshot, Members, member_name};

use crate::api::{Exchange, Script, delete, get, post, put};
use crate::{LEASES, NOON};

fn members(script: &Script) -> Members {
    Members::open(script.client(), "foo", "web").unwrap()
}

/// Returns a member as the API server sends it.
fn stored(election: &str, identity: &str) -> Value {
    let properties = json!({ "election": election, "ready": true }).to_string();
    json!({
        "metadata": {
            "name": member_name(election, identity), "namespace": "foo", "uid": "u", "resourceVersion": "7",
            "annotations": { MEMBER_ANNOTATION: properties },
        },
        "spec": { "holderIdentity": identity, "leaseDurationSeconds": 30 },
    })
}

fn read(object: &Value) -> MemberSnapshot {
    MemberSnapshot::read(object).unwrap()
}

fn path(identity: &str) -> String {
    format!("{LEASES}/{}", member_name("web", identity))
}

#[tokio::test]
async fn list_contains_the_members_of_the_election_and_no_other_objects() {
    let list = json!({ "items": [
        stored("web", "a"), crate::lease("a", 0, "1"), stored("shop", "a"), stored("web", "b"),
    ] });
    let path = format!("{LEASES}?labelSelector=tenure.dev%2Felection%3Dweb&limit=500");
    let script = Script::new([get(&path).answers(200, &list)]);
    let found = members(&script).list().await.unwrap();
    let expected = ["a", "b"].map(|identity| read(&stored("web", identity)));
    assert_eq!(found, expected);
}

/// A server that does not support the field selector answers with all objects.
#[tokio::test]
async fn read_returns_the_member_of_that_identity_only() {
    let (a, b) = (stored("web", "a"), stored("web", "b"));
    let name = member_name("web", "a");
    let path = format!("{LEASES}?fieldSelector=metadata.name%3D{name}&limit=1");
    for (items, expected) in [
        (vec![], None),
        (vec![&b], None),
        (vec![&b, &a], Some(read(&a))),
    ] {
        let list = json!({ "items": items });
        let script = Script::new([get(&path).answers(200, &list)]);
        let found = members(&script).read("a").await.unwrap();
        assert_eq!(found, expected, "{list}");
    }
}

#[tokio::test]
async fn list_of_more_than_four_mebibytes_is_not_read_to_its_end() {
    let path = format!("{LEASES}?labelSelector=tenure.dev%2Felection%3Dweb&limit=500");
    let listed = async |bytes: usize| {
        let list = r#"{"items":[]}"#;
        let text = list.to_owned() + &" ".repeat(bytes - list.len());
        let script = Script::new([get(&path).answers_text(200, &text)]);
        members(&script).list().await
    };
    assert_eq!(listed(4 << 20).await.unwrap(), []);
    let error = listed((4 << 20) + 1).await.unwrap_err();
    assert_eq!(error.class(), Class::Unknown);
    assert!(
        error.to_string().contains("length limit exceeded"),
        "{error}"
    );
}

#[tokio::test]
async fn write_creates_a_member_and_then_replaces_its_version() {
    let object = stored("web", "a");
    let script = Script::new([
        post(LEASES).answers(201, &object),
        put(&path("a")).answers(200, &object),
    ]);
    let members = members(&script);
    let member = Member {
        identity: "a".to_owned(),
        ..Member::default()
    };
    let mut last = None;
    for _ in 0..2 {
        let version = last.as_ref().map(|last: &MemberSnapshot| &last.version);
        let written = members
            .write(
                &member,
                Duration::from_secs(30),
                WallTime::from_micros(NOON),
                version,
            )
            .await
            .unwrap();
        assert_eq!(written, read(&object));
        last = Some(written);
    }
    let versions = script.sent().into_iter().map(|body| {
        let sent: Value = serde_json::from_str(&body).unwrap();
        (
            sent["metadata"]["uid"].clone(),
            sent["metadata"]["resourceVersion"].clone(),
        )
    });
    assert_eq!(
        versions.collect::<Vec<_>>(),
        [(Value::Null, Value::Null), (json!("u"), json!("7"))]
    );
}

#[tokio::test]
async fn delete_is_complete_if_the_version_or_the_whole_object_is_gone() {
    let member = read(&stored("web", "a"));
    let run = async |exchange: Exchange| {
        let script = Script::new([exchange]);
        let deleted = members(&script).delete(&member.name, &member.version).await;
        let sent = script.sent_one();
        assert_eq!(
            sent["preconditions"],
            json!({ "uid": "u", "resourceVersion": "7" })
        );
        deleted
    };
    let request = || delete(&path("a"));
    assert!(run(request().answers(200, &json!({}))).await.unwrap());
    assert!(run(request().fails(404, "NotFound")).await.unwrap());
    assert!(!run(request().fails(409, "Conflict")).await.unwrap());
    let error = run(request().fails(503, "Down")).await.unwrap_err();
    assert_eq!(error.class(), Class::Unknown);
}
