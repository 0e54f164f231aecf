//! A fenced write succeeds only in the term of its token. A write with preconditions on other objects succeeds only if
//! those objects have not changed.

use super::super::testing::{delete, key, lease, put, set};
use super::super::{Expected, Fence, Given, MemoryStore, Store, Write, WriteError};

async fn fenced(store: &dyn Store, holder: &str, token: u64) -> Result<u64, String> {
    let target = key("ns", "target");
    let expected = store.get(&target).map_or(Expected::Absent, |object| {
        Expected::Revision(object.revision)
    });
    let fence = Some(Fence {
        lease: key("ns", "lock"),
        token,
        holder: holder.to_owned(),
    });
    let write = Write {
        fence,
        ..put(&target, expected, serde_json::json!({}))
    };
    match store.write(write).await {
        Ok(object) => Ok(object.revision),
        Err(WriteError::Fenced(reason)) => Err(reason),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn the_token_is_the_revision_that_won_the_term() {
    let store = MemoryStore::new();
    let lock = key("ns", "lock");
    assert!(
        fenced(&store, "a", 1)
            .await
            .unwrap_err()
            .contains("does not exist")
    );

    let first = set(&store, &lock, lease("a", "t1", 1)).await.revision;
    fenced(&store, "a", first).await.unwrap();
    let renewed = set(&store, &lock, lease("a", "t1", 2)).await.revision;
    fenced(&store, "a", first).await.unwrap();
    let reason = fenced(&store, "a", renewed).await.unwrap_err();
    assert!(
        reason.contains(&format!("token {first}, not {renewed}")),
        "{reason}"
    );

    let second = set(&store, &lock, lease("b", "t2", 3)).await.revision;
    let reason = fenced(&store, "a", first).await.unwrap_err();
    assert!(reason.contains(r#"held by "b""#), "{reason}");
    assert!(
        fenced(&store, "b", first).await.is_err(),
        "holder b with the token of a"
    );
    fenced(&store, "b", second).await.unwrap();
}

#[tokio::test]
async fn restarted_holder_of_the_same_name_starts_a_new_term() {
    let store = MemoryStore::new();
    let lock = key("ns", "lock");
    let first = set(&store, &lock, lease("a", "t1", 1)).await.revision;
    let second = set(&store, &lock, lease("a", "t2", 2)).await.revision;
    assert!(fenced(&store, "a", first).await.is_err());
    fenced(&store, "a", second).await.unwrap();
}

#[tokio::test]
async fn release_and_removal_end_the_term() {
    let store = MemoryStore::new();
    let lock = key("ns", "lock");
    let first = set(&store, &lock, lease("a", "t1", 1)).await.revision;
    let released = set(&store, &lock, lease("", "t2", 2)).await.revision;
    assert!(
        fenced(&store, "a", first)
            .await
            .unwrap_err()
            .contains("has no holder")
    );
    assert!(
        fenced(&store, "", released).await.is_err(),
        "an empty holder cannot make a fenced write"
    );

    store.write(delete(&lock, released)).await.unwrap();
    assert!(
        fenced(&store, "a", first)
            .await
            .unwrap_err()
            .contains("does not exist")
    );
    let again = set(&store, &lock, lease("a", "t1", 1)).await.revision;
    assert!(
        fenced(&store, "a", first).await.is_err(),
        "the token of the removed lease"
    );
    fenced(&store, "a", again).await.unwrap();
}

#[tokio::test]
async fn write_fails_if_a_precondition_object_changed() {
    let store = MemoryStore::new();
    let (place, target) = (key("", "place"), key("ns", "target"));
    let value = || serde_json::json!({});
    let write = |revision| Write {
        given: vec![Given {
            key: place.clone(),
            revision,
        }],
        ..put(&target, Expected::Absent, value())
    };
    let moved = |done| matches!(done, Err(WriteError::Moved(what)) if what == place);
    assert!(
        moved(store.write(write(1)).await),
        "the other object does not exist"
    );
    let first = set(&store, &place, value()).await.revision;
    let second = set(&store, &place, value()).await.revision;
    assert!(moved(store.write(write(first)).await));
    store.write(write(second)).await.unwrap();
    let there = store.get(&target).unwrap().revision;
    store.write(delete(&target, there)).await.unwrap();
    store.write(delete(&place, second)).await.unwrap();
    assert!(
        moved(store.write(write(second)).await),
        "the other object was deleted"
    );
}
