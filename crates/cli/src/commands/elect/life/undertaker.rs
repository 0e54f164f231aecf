//! Follows the pods of leaders for life, and frees the locks of deleted pods.
//!
//! `tenure_core::undertaker` decides whether a pod is gone; this file only sends requests to the API server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use http::Request;
use jiff::Timestamp;
use kube::Client;
use kube::core::WatchEvent;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::Value;
use tenure_core::ResourceVersion;
use tenure_core::undertaker::{PodId, Rules, Verdict, Vigil};
use tokio::time::timeout;

use super::{AGAIN, LEASE_SECONDS, Lease, MARK, REQUEST, observation, pod_path, revision};
use crate::api;
use crate::commands::elect::view::View;

/// Time in seconds after which the API server ends a watch; the client times out slightly later.
const WATCH_SECONDS: u64 = 240;

/// Interval at which to check whether a pod without events is overdue.
const LOOK: Duration = Duration::from_secs(15);

/// Frees the lock of a leader whose pod is gone.
pub(in crate::commands::elect) struct Undertaker {
    pub(in crate::commands::elect) client: Client,
    pub(in crate::commands::elect) view: View,
    pub(in crate::commands::elect) lease: Lease,
    /// 1 while the leader's pod should be gone and is not, or was never observed.
    pub(in crate::commands::elect) overdue: Gauge,
}

impl Undertaker {
    /// Follows the pod of every leader. The deletion of the Lease does not stop this, because the garbage collector may
    /// delete it before this candidate frees it.
    pub(in crate::commands::elect) async fn serve(self) {
        let mut seen = self.view.seen.subscribe();
        let mut warned = String::new();
        // Observations of a pod are kept as long as it leads.
        let mut vigil: Option<Vigil> = None;
        loop {
            let leader = seen.borrow_and_update().leader.clone();
            let pod = self.charge(&leader, &mut warned);
            if vigil.as_ref().map(Vigil::pod) != pod.as_ref() {
                self.overdue.set(0);
                vigil = pod.map(|pod| Vigil::new(pod, Rules::default()));
            }
            let care = async {
                if let Some(vigil) = &mut vigil {
                    self.attend(vigil).await;
                }
                // The same identity may change to or from a term of this mode.
                tokio::time::sleep(LOOK).await;
            };
            tokio::select! {
                () = care => {}
                changed = seen.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Returns the pod of a leader, if it is not our own and the term is one of this mode.
    fn charge(&self, leader: &str, warned: &mut String) -> Option<PodId> {
        if leader.is_empty() || leader == self.view.handle.identity() {
            return None;
        }
        let held = self.view.notes.held()?;
        let held = Some(&held.observation().record).filter(|record| record.holder == leader)?;
        let pod = PodId::parse(leader).filter(|_| held.lease_duration_seconds == LEASE_SECONDS);
        if pod.is_none() && warned != leader {
            leader.clone_into(warned);
            tracing::warn!(
                leader,
                "the leader does not use --mode=for-life; waiting until its lease expires"
            );
        }
        pod
    }

    /// Waits for the end of a pod and frees its lock.
    async fn attend(&self, vigil: &mut Vigil) {
        loop {
            let begun = Instant::now();
            let freed = match self.follow(vigil).await {
                Ok(true) => self.free(vigil).await.map(Some),
                Ok(false) => Ok(None),
                Err(error) => Err(error),
            };
            let pod = &vigil.pod().name;
            match freed {
                Ok(Some(freed)) => {
                    self.overdue.set(0);
                    if freed {
                        tracing::info!(pod, "the leader's pod has ended; released its lock");
                    }
                    return;
                }
                // Wait, so that a server that ends watches immediately is not called in a tight loop.
                Ok(None) if begun.elapsed() < AGAIN => tokio::time::sleep(AGAIN).await,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        pod,
                        error = api::plain(&error),
                        "cannot observe the leader's pod"
                    );
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    async fn free(&self, vigil: &Vigil) -> Result<bool> {
        let freed = timeout(REQUEST, self.lease.free(vigil)).await;
        freed.context("free the lock: no answer in time")?
    }

    /// Reads the mark from the Lease that names the leader, as last observed.
    fn read_mark(&self, vigil: &mut Vigil) {
        let Some(held) = self.view.notes.held() else {
            return;
        };
        if held.observation().record.holder == vigil.pod().identity() {
            let lease = held.object();
            let uid = lease["metadata"]["labels"][MARK].as_str();
            vigil.observe_mark(&held.observation().version.revision, uid);
        }
    }

    /// Follows a pod until it is dead. Returns false if its watch ended regularly before.
    async fn follow(&self, vigil: &mut Vigil) -> Result<bool> {
        self.read_mark(vigil);
        let path = pod_path(&self.lease.namespace, &vigil.pod().name);
        let listed = timeout(REQUEST, api::get(&self.client, &path)).await;
        let listed = listed.context("list pods: no answer in time")?;
        let listed = listed.context("list pods")?;
        let mut object = listed.body["items"].get(0).cloned();
        let mut at = revision(&listed.body);
        if self.is_dead(vigil, &at, object.as_ref()) {
            return Ok(true);
        }
        // The watch requests bookmarks, so that the watch of a pod without events does not look like a dead connection.
        let watch = format!(
            "{path}&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={at}"
        );
        let request = Request::get(watch).body(Vec::new())?;
        let events = timeout(REQUEST, self.client.request_events::<Value>(request)).await;
        let events = events.context("watch pods: no answer in time")?;
        let mut events = std::pin::pin!(events.context("watch pods")?);
        let end = tokio::time::sleep(Duration::from_secs(WATCH_SECONDS + 10));
        tokio::pin!(end);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => {
                        at = revision(&pod);
                        object = Some(pod);
                    }
                    Some(Ok(WatchEvent::Deleted(pod))) => {
                        at = revision(&pod);
                        // The pod existed until now, which counts if it was not observed before.
                        vigil.observe_mark(&at, pod["metadata"]["uid"].as_str());
                        object = None;
                    }
                    Some(Ok(WatchEvent::Bookmark(_))) => {}
                    // The server has compacted our revision.
                    Some(Ok(WatchEvent::Error(status))) if status.code == 410 => return Ok(false),
                    Some(Ok(WatchEvent::Error(status))) => bail!("watch pods: {}", status.message),
                    Some(Err(error)) => return Err(error).context("watch pods"),
                    None => return Ok(false),
                },
                () = tokio::time::sleep(LOOK) => {}
                () = &mut end => return Ok(false),
            }
            if self.is_dead(vigil, &at, object.as_ref()) {
                return Ok(true);
            }
        }
    }

    /// Records the pod as shown by the API server. Warns once when the leader becomes overdue.
    fn is_dead(&self, vigil: &mut Vigil, at: &ResourceVersion, object: Option<&Value>) -> bool {
        let pod = object.map(|object| observation(object, Timestamp::now()));
        let verdict = vigil.observe_pod(at, pod.as_ref());
        let overdue = matches!(verdict, Verdict::Overdue | Verdict::NeverSeen);
        let overdue = i64::from(overdue);
        let pod = &vigil.pod().name;
        match verdict {
            _ if self.overdue.set(overdue) == overdue => {}
            Verdict::Overdue => tracing::warn!(
                pod,
                "the leader's pod still exists after its time to terminate; nobody leads until it is deleted"
            ),
            Verdict::NeverSeen => tracing::warn!(
                pod,
                uid = vigil.pod().uid,
                "the leader's pod was never seen, and may run under another name; nobody else leads before an \
                 operator ends it, removes the annotation tenure.dev/term of the Lease and empties holderIdentity"
            ),
            Verdict::Unknown | Verdict::Alive | Verdict::Dead => {}
        }
        verdict == Verdict::Dead
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::commands::elect::life::scripted::{self, Act};

    fn undertaker(client: Client) -> Undertaker {
        Undertaker {
            client: client.clone(),
            view: scripted::view(&scripted::elector()),
            lease: Lease {
                client,
                namespace: "ns".to_owned(),
                name: "life".to_owned(),
            },
            overdue: Gauge::default(),
        }
    }

    fn vigil() -> Vigil {
        Vigil::new(PodId::parse("web-0_0b6c").unwrap(), Rules::default())
    }

    /// Returns a client of a server that lists no pods at revision 7. Its watch delivers these events and ends.
    async fn without_pods(events: String) -> Client {
        scripted::server(move |request, _| {
            let watch = request.uri.query().unwrap_or_default().contains("watch=1");
            let list = json!({ "metadata": { "resourceVersion": "7" }, "items": [] });
            let body = if watch {
                events.clone()
            } else {
                list.to_string()
            };
            Act::Answer(StatusCode::OK, body)
        })
        .await
    }

    fn event(kind: &str, uid: &str, at: u64) -> String {
        let metadata = json!({ "name": "web-0", "uid": uid, "resourceVersion": at.to_string() });
        json!({ "type": kind, "object": { "metadata": metadata } }).to_string() + "\n"
    }

    #[tokio::test]
    async fn a_pod_that_was_never_seen_is_overdue_and_not_dead() {
        let undertaker = undertaker(without_pods(event("DELETED", "other", 8)).await);
        let mut vigil = vigil();
        assert!(!undertaker.follow(&mut vigil).await.unwrap());
        assert_eq!(vigil.verdict(), Verdict::NeverSeen);
        assert_eq!(undertaker.overdue.get(), 1);
    }

    #[tokio::test]
    async fn a_pod_whose_deletion_is_seen_is_dead() {
        let undertaker = undertaker(without_pods(event("DELETED", "0b6c", 8)).await);
        assert!(undertaker.follow(&mut vigil()).await.unwrap());
        assert_eq!(undertaker.overdue.get(), 0);
    }

    #[tokio::test]
    async fn absence_in_a_list_from_before_the_mark_waits_for_the_watch() {
        let shown = event("ADDED", "0b6c", 9) + &event("DELETED", "0b6c", 10);
        for (events, dead) in [(String::new(), false), (shown, true)] {
            let undertaker = undertaker(without_pods(events).await);
            let mut vigil = vigil();
            vigil.observe_mark(&ResourceVersion::new("9"), Some("0b6c"));
            assert_eq!(undertaker.follow(&mut vigil).await.unwrap(), dead);
        }
    }

    #[tokio::test]
    async fn watch_that_ends_regularly_is_not_a_failure_and_requests_bookmarks() {
        let lists = Mutex::new(0);
        let watches = Arc::new(Mutex::new(Vec::new()));
        let asked = watches.clone();
        let client = scripted::server(move |request, _| {
            let query = request.uri.query().unwrap_or_default().to_owned();
            if query.contains("watch=1") {
                asked.lock().unwrap().push(query);
                return Act::Answer(StatusCode::OK, String::new());
            }
            let mut lists = lists.lock().unwrap();
            *lists += 1;
            let items = if *lists == 1 {
                json!([{ "metadata": { "name": "web-0", "uid": "0b6c" } }])
            } else {
                json!([])
            };
            let list = json!({ "metadata": { "resourceVersion": "7" }, "items": items });
            Act::Answer(StatusCode::OK, list.to_string())
        })
        .await;
        let undertaker = undertaker(client);
        let mut vigil = vigil();
        assert!(!undertaker.follow(&mut vigil).await.unwrap(), "it lives");
        assert!(undertaker.follow(&mut vigil).await.unwrap(), "it is gone");
        let watches = watches.lock().unwrap();
        assert_eq!(watches.len(), 1, "{watches:?}");
        for wanted in ["allowWatchBookmarks=true", "resourceVersion=7"] {
            assert!(watches[0].contains(wanted), "{watches:?}");
        }
    }
}
