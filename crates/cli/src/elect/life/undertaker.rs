//! Looks after the pods of leaders for life, and frees the locks of those that are no more.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use http::Request;
use jiff::Timestamp;
use kube::Client;
use kube::core::WatchEvent;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::Value;
use tokio::time::timeout;

use super::{AGAIN, LEASE_SECONDS, Lease, Pod, REQUEST, State};
use crate::api;
use crate::elect::view::View;

/// The API server ends a watch after this many seconds; we give it up a little later.
const WATCH_SECONDS: u64 = 240;

/// How often to look whether a pod is overdue, of which nothing is heard.
const LOOK: Duration = Duration::from_secs(15);

/// Frees the lock of a leader whose pod is no more.
pub(in crate::elect) struct Undertaker {
    pub(in crate::elect) client: Client,
    pub(in crate::elect) view: View,
    pub(in crate::elect) lease: Lease,
    /// 1 while the leader's pod should be gone and is not.
    pub(in crate::elect) overdue: Gauge,
}

impl Undertaker {
    /// Looks after every leader that there is. A Lease that is gone does not end that: the garbage
    /// collector may be faster than we are.
    pub(in crate::elect) async fn serve(self) {
        let mut seen = self.view.seen.subscribe();
        let mut warned = String::new();
        loop {
            let leader = seen.borrow_and_update().leader.clone();
            let pod = self.charge(&leader, &mut warned);
            if pod.is_none() {
                self.overdue.set(0);
            }
            let care = async {
                if let Some(pod) = &pod {
                    self.attend(pod).await;
                }
                // The same name may come to stand for a term of this mode, or for one no more.
                tokio::time::sleep(LOOK).await;
            };
            tokio::select! {
                () = care => {}
                changed = seen.changed() => if changed.is_err() { return },
            }
        }
    }

    /// The pod of a leader, if it is another's and the term is one of this mode.
    fn charge(&self, leader: &str, warned: &mut String) -> Option<Pod> {
        if leader.is_empty() || leader == self.view.handle.identity() {
            return None;
        }
        let held = self.view.notes.held();
        let held = held.filter(|record| record.holder == leader)?;
        let pod = Pod::of(&self.lease.namespace, leader)
            .filter(|_| u64::from(held.lease_duration_seconds) == LEASE_SECONDS);
        if pod.is_none() && warned != leader {
            leader.clone_into(warned);
            tracing::warn!(
                leader,
                "the leader is no pod of this mode: it is waited for until its lease runs out"
            );
        }
        pod
    }

    /// Waits for the end of a pod and frees its lock.
    async fn attend(&self, pod: &Pod) {
        loop {
            let begun = Instant::now();
            let freed = match self.follow(pod).await {
                Ok(true) => self.free(pod).await.map(Some),
                Ok(false) => Ok(None),
                Err(error) => Err(error),
            };
            match freed {
                Ok(Some(freed)) => {
                    self.overdue.set(0);
                    if freed {
                        tracing::info!(
                            pod = pod.name,
                            "the leader's pod is no more: its lock is free"
                        );
                    }
                    return;
                }
                // A server that ends watches at once must not be asked in a tight loop.
                Ok(None) if begun.elapsed() < AGAIN => tokio::time::sleep(AGAIN).await,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        pod = pod.name,
                        "cannot look after the leader's pod: {error:#}"
                    );
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    async fn free(&self, pod: &Pod) -> Result<bool> {
        let freed = timeout(REQUEST, self.lease.free(&pod.identity())).await;
        freed.context("free the lock: no answer in time")?
    }

    /// Follows a pod until it is over; false if its watch has come to a regular end before.
    async fn follow(&self, pod: &Pod) -> Result<bool> {
        let (namespace, name) = (&pod.namespace, &pod.name);
        let path =
            format!("/api/v1/namespaces/{namespace}/pods?fieldSelector=metadata.name%3D{name}");
        let listed = timeout(REQUEST, api::get(&self.client, &path)).await;
        let listed = listed.context("list pods: no answer in time")?;
        let listed = listed.context("list pods")?;
        let mut object = listed.body["items"].get(0).cloned();
        if self.is_over(pod, object.as_ref()) {
            return Ok(true);
        }
        let version = listed.body["metadata"]["resourceVersion"].as_str();
        // With bookmarks, so that the watch of a quiet pod is not taken for a dead connection.
        let watch = format!(
            "{path}&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            version.unwrap_or_default()
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
                    Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => object = Some(pod),
                    Some(Ok(WatchEvent::Deleted(_))) => object = None,
                    Some(Ok(WatchEvent::Bookmark(_))) => {}
                    // The server has forgotten where we were.
                    Some(Ok(WatchEvent::Error(status))) if status.code == 410 => return Ok(false),
                    Some(Ok(WatchEvent::Error(status))) => bail!("watch pods: {}", status.message),
                    Some(Err(error)) => return Err(error).context("watch pods"),
                    None => return Ok(false),
                },
                () = tokio::time::sleep(LOOK) => {}
                () = &mut end => return Ok(false),
            }
            if self.is_over(pod, object.as_ref()) {
                return Ok(true);
            }
        }
    }

    fn is_over(&self, pod: &Pod, object: Option<&Value>) -> bool {
        let state = pod.state(object, Timestamp::now());
        let overdue = i64::from(state == State::Overdue);
        if self.overdue.set(overdue) != overdue && overdue == 1 {
            tracing::warn!(
                pod = pod.name,
                "the leader's pod should be gone and is not: nobody leads until it is deleted"
            );
        }
        state == State::Over
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::elect::life::scripted::{self, Act};

    #[tokio::test]
    async fn a_watch_that_ends_is_no_trouble_and_asks_for_bookmarks() {
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
        let view = scripted::view(&scripted::elector());
        let undertaker = Undertaker {
            client: client.clone(),
            view,
            lease: Lease {
                client,
                namespace: "ns".to_owned(),
                name: "life".to_owned(),
            },
            overdue: Gauge::default(),
        };
        let pod = Pod::of("ns", "web-0_0b6c").unwrap();
        assert!(!undertaker.follow(&pod).await.unwrap(), "it lives");
        assert!(undertaker.follow(&pod).await.unwrap(), "it is gone");
        let watches = watches.lock().unwrap();
        assert_eq!(watches.len(), 1, "{watches:?}");
        for wanted in ["allowWatchBookmarks=true", "resourceVersion=7"] {
            assert!(watches[0].contains(wanted), "{watches:?}");
        }
    }
}
