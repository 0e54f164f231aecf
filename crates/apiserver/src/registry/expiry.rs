//! Deletes objects that expire: events, one hour after their last update.

use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::delete::DeleteOptions;
use super::engine::{Registry, Target, parsed};
use super::rules::text;
use crate::store::Range;

/// Time after its last update for which an event is kept.
const LIFETIME_SECONDS: i64 = 3_600;
/// Interval between searches for expired events.
const PERIOD: Duration = Duration::from_secs(60);

impl Registry {
    /// Deletes expired objects until the registry is dropped.
    pub(crate) fn expire_objects(self: &Arc<Self>) {
        let registry: Weak<Self> = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PERIOD).await;
                let Some(registry) = registry.upgrade() else {
                    break;
                };
                registry.remove_expired(Timestamp::now()).await;
            }
        });
    }

    async fn remove_expired(self: &Arc<Self>, now: Timestamp) {
        for kind in super::all() {
            let Some(is_expired) = kind.is_expired else {
                continue;
            };
            let range = Range {
                resource: kind.storage_key(),
                namespace: None,
                name: None,
            };
            let Ok(listing) = self.store.list(&range, None) else {
                continue;
            };
            for object in listing.objects {
                if !parsed(&object).is_ok_and(|object| is_expired(&object, now)) {
                    continue;
                }
                let target = Target {
                    kind,
                    version: &kind.versions()[0],
                    namespace: &object.key.namespace,
                    name: &object.key.name,
                };
                let unchanged = DeleteOptions {
                    resource_version: Some(object.revision.to_string()),
                    ..DeleteOptions::default()
                };
                // The version precondition keeps an object that was updated in the meantime.
                _ = self.delete(&target, &unchanged).await;
            }
        }
    }
}

/// Whether an event was last updated more than its lifetime ago.
pub(super) fn is_old(event: &Value, now: Timestamp) -> bool {
    let heard = [
        "/metadata/creationTimestamp",
        "/lastTimestamp",
        "/eventTime",
        "/series/lastObservedTime",
    ];
    let moments = heard
        .iter()
        .filter_map(|path| text(event, path).parse::<Timestamp>().ok());
    moments
        .max()
        .is_some_and(|last| now.as_second() - last.as_second() >= LIFETIME_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn event_expires_after_one_hour() {
        let access = Arc::new(crate::auth::AllowAll);
        let store = Arc::new(crate::store::MemoryStore::new());
        let registry = Arc::new(Registry::new(store, access));
        registry.open_namespaces().await.expect("namespaces");
        let kind = crate::registry::find("", "events").expect("events");
        let target = Target {
            kind,
            version: &kind.versions()[0],
            namespace: "default",
            name: "e",
        };
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
        let user = crate::auth::User::admin();
        let options = Default::default();
        let created = registry.create(&target, event, &user, &options).await;
        created.expect("it is created");
        let later = |seconds: i64| {
            Timestamp::from_second(Timestamp::now().as_second() + seconds).expect("a time")
        };
        registry.remove_expired(later(LIFETIME_SECONDS - 60)).await;
        assert!(registry.get(&target).is_ok(), "expired too early");
        registry.remove_expired(later(LIFETIME_SECONDS + 1)).await;
        assert!(registry.get(&target).is_err(), "must expire after one hour");
    }

    #[test]
    fn repeated_event_does_not_expire() {
        let at = |text: &str| text.parse::<Timestamp>().expect("time");
        let event = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "lastTimestamp": "2026-01-01T02:00:00Z", "eventTime": null});
        assert!(!is_old(&event, at("2026-01-01T02:59:59Z")));
        assert!(is_old(&event, at("2026-01-01T03:00:00Z")));
        assert!(!is_old(&json!({}), at("2026-01-01T03:00:00Z")));
    }
}
