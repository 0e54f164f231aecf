//! `--mode=for-life`: whoever leads does so as long as its pod lives. No leader rather than two.
//!
//! The holder is named by its pod and the pod's uid, and the Lease is owned by that pod. Nobody takes a
//! held Lease over, however old it looks. Invariant: it is freed only by its holder's order, or when the
//! API server says that the pod is gone, is another of the same name, or has ended for good; a pod whose
//! node does not answer is none of these, and waits for somebody who knows.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use http::{Request, header};
use jiff::Timestamp;
use kube::Client;
use kube::core::WatchEvent;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use tenure::Handle;
use tenure::lock::LockKind;

use super::outlets::{Queue, newest};
use super::view::View;
use crate::api;
use crate::election::{Election, pod_name, pod_namespace, variable};
use crate::elections;

/// The longest that any candidate honours, so that candidates of another kind stay away as well.
const LEASE: Duration = Duration::from_secs(48 * 3600);

/// How long a leader leads on without an API server.
const RENEW: Duration = Duration::from_secs(40 * 3600);

/// Renewals only show that the leader is there.
const RETRY: Duration = Duration::from_secs(10);

/// One request may take this long.
const REQUEST: Duration = Duration::from_secs(10);

/// The API server ends a watch after this many seconds; we give it up a little later.
const WATCH_SECONDS: u64 = 240;

/// How often to look whether a pod is overdue, of which nothing is heard.
const LOOK: Duration = Duration::from_secs(15);

/// After a failure.
const AGAIN: Duration = Duration::from_secs(2);

/// How often to try to write a Lease that others write too.
const ATTEMPTS: usize = 5;

/// A pod of which there is only ever one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    namespace: String,
    name: String,
    uid: String,
}

impl Pod {
    /// The pod that this process is in, as its environment says.
    pub(super) fn own() -> Result<Self, &'static str> {
        let uid = variable("POD_UID")
            .ok_or("--mode=for-life needs the pod's uid: set POD_UID from metadata.uid")?;
        let namespace = pod_namespace().ok_or(
            "--mode=for-life needs the pod's namespace: set POD_NAMESPACE from metadata.namespace",
        )?;
        Ok(Self {
            namespace,
            name: pod_name(),
            uid,
        })
    }

    /// The pod that an identity names. Names of pods have no underscore.
    fn of(namespace: &str, identity: &str) -> Option<Self> {
        let (name, uid) = identity.split_once('_')?;
        let whole = !name.is_empty() && !uid.is_empty() && !uid.contains('_');
        whole.then(|| Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        })
    }

    fn identity(&self) -> String {
        format!("{}_{}", self.name, self.uid)
    }

    fn reference(&self) -> Value {
        json!({ "apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid })
    }

    /// What an object of this name, or that there is none, says about the pod.
    fn state(&self, object: Option<&Value>, now: Timestamp) -> State {
        let Some(object) = object.filter(|object| object["metadata"]["uid"] == *self.uid) else {
            return State::Over;
        };
        let status = &object["status"];
        // The kubelet says these when every container has ended and none will be started again.
        if status["phase"] == "Failed" || status["phase"] == "Succeeded" {
            return State::Over;
        }
        if status["reason"] == "NodeLost" || status["phase"] == "Unknown" {
            return State::Overdue;
        }
        let by = object["metadata"]["deletionTimestamp"].as_str();
        let by = by.and_then(|by| by.parse::<Timestamp>().ok());
        if by.is_some_and(|by| now > by) {
            State::Overdue
        } else {
            State::Lives
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Lives,
    /// It should have gone, or its node is lost. It may still run.
    Overdue,
    /// Nothing of it runs, and nothing will.
    Over,
}

/// Makes an election one for life; what is wrong with the flags otherwise.
pub(super) fn prepare(election: &mut Election, pod: &Pod) -> Result<(), &'static str> {
    if election.lock != LockKind::Leases {
        return Err("--mode=for-life keeps its lock in a Lease: leave --lock out");
    }
    if election.id.is_some() {
        return Err("--mode=for-life names the leader by its pod: leave --id out");
    }
    if election.has_durations() {
        return Err("--mode=for-life has no durations: leave them out");
    }
    let namespace = &mut election.election_namespace;
    if namespace.get_or_insert_with(|| pod.namespace.clone()) != &pod.namespace {
        return Err("--mode=for-life needs its Lease in the namespace of the pod, which owns it");
    }
    election.id = Some(pod.identity());
    election.lease_duration = Some(LEASE);
    election.renew_deadline = Some(RENEW);
    election.retry_period = Some(RETRY);
    election.request_timeout = Some(REQUEST);
    election.for_life = true;
    Ok(())
}

/// Frees the lock of a leader whose pod is no more.
pub(super) struct Undertaker {
    pub(super) client: Client,
    pub(super) view: View,
    pub(super) lease: Lease,
    /// 1 while the leader's pod should be gone and is not.
    pub(super) overdue: Gauge,
}

impl Undertaker {
    /// Looks after every leader that there is.
    pub(super) async fn serve(self) {
        let mut seen = self.view.seen.subscribe();
        loop {
            let leader = seen.borrow_and_update().leader.clone();
            let own = leader == self.view.handle.identity();
            let pod = Pod::of(&self.lease.namespace, &leader).filter(|_| !own);
            if pod.is_none() {
                self.overdue.set(0);
                if !leader.is_empty() && !own {
                    tracing::warn!(
                        leader,
                        "the leader is no pod of this mode: it is waited for"
                    );
                }
            }
            let buried = async {
                match pod {
                    Some(pod) => self.attend(&pod).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = buried => {
                    if seen.changed().await.is_err() {
                        return;
                    }
                }
                changed = seen.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Waits for the end of a pod and frees its lock.
    async fn attend(&self, pod: &Pod) {
        loop {
            let freed = match self.until_over(pod).await {
                Ok(()) => self.lease.free(&pod.identity()).await,
                Err(error) => Err(error),
            };
            match freed {
                Ok(()) => {
                    self.overdue.set(0);
                    tracing::info!(
                        pod = pod.name,
                        "the leader's pod is no more: its lock is free"
                    );
                    return;
                }
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

    async fn until_over(&self, pod: &Pod) -> Result<()> {
        let (namespace, name) = (&pod.namespace, &pod.name);
        let path =
            format!("/api/v1/namespaces/{namespace}/pods?fieldSelector=metadata.name%3D{name}");
        let listed = api::get(&self.client, &path).await.context("list pods")?;
        let mut object = listed.body["items"].get(0).cloned();
        let version = listed.body["metadata"]["resourceVersion"].as_str();
        let watch = format!(
            "{path}&watch=1&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            version.unwrap_or_default()
        );
        if self.is_over(pod, object.as_ref()) {
            return Ok(());
        }
        let request = Request::get(watch).body(Vec::new())?;
        let events = self.client.request_events::<Value>(request).await;
        let mut events = std::pin::pin!(events.context("watch pods")?);
        let end = tokio::time::sleep(Duration::from_secs(WATCH_SECONDS + 10));
        tokio::pin!(end);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => object = Some(pod),
                    Some(Ok(WatchEvent::Deleted(_))) => object = None,
                    Some(Ok(WatchEvent::Bookmark(_))) => {}
                    Some(Ok(WatchEvent::Error(status))) => bail!("watch pods: {}", status.message),
                    Some(Err(error)) => return Err(error).context("watch pods"),
                    None => bail!("the watch of the pod has ended"),
                },
                () = tokio::time::sleep(LOOK) => {}
                () = &mut end => bail!("the watch of the pod has ended"),
            }
            if self.is_over(pod, object.as_ref()) {
                return Ok(());
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

/// The Lease, as an object that has an owner.
#[derive(Clone)]
pub(super) struct Lease {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Lease {
    /// Keeps the Lease in the name of the own pod while leading, until there is no more news.
    pub(super) async fn keep_owned(self, pod: Pod, handle: Handle, mut queue: Queue) {
        while newest(&mut queue).await.is_some() {
            if !handle.is_leading() {
                continue;
            }
            let own = |lease: &mut Value| {
                let (identity, owner) = (pod.identity(), pod.reference());
                if lease["spec"]["holderIdentity"] != identity || owners(lease).contains(&owner) {
                    return false;
                }
                let mut owners = owners(lease);
                owners.retain(|owner| owner["kind"] != "Pod");
                owners.push(owner);
                lease["metadata"]["ownerReferences"] = owners.into();
                true
            };
            // Without it nothing is lost but that the garbage collector clears the Lease away.
            if let Err(error) = self.change(own).await {
                tracing::warn!(lease = self.name, "cannot name the pod as owner: {error:#}");
            }
        }
    }

    /// Gives it back for a holder that cannot any more; another holder's is left alone.
    async fn free(&self, holder: &str) -> Result<()> {
        let now = Timestamp::now();
        let now = format!("{now:.6}");
        self.change(|lease| {
            if lease["spec"]["holderIdentity"] != holder {
                return false;
            }
            let spec = &mut lease["spec"];
            spec["holderIdentity"] = "".into();
            spec["leaseDurationSeconds"] = 1.into();
            spec["acquireTime"] = now.as_str().into();
            spec["renewTime"] = now.as_str().into();
            let mut owners = owners(lease);
            owners.retain(|owner| owner["kind"] != "Pod");
            lease["metadata"]["ownerReferences"] = owners.into();
            true
        })
        .await
    }

    /// Reads, changes and writes what was read, until nobody else wrote in between. A Lease that is
    /// not there needs no change.
    async fn change(&self, change: impl Fn(&mut Value) -> bool) -> Result<()> {
        let path = elections::path_of(LockKind::Leases, &self.namespace, &self.name);
        for _ in 0..ATTEMPTS {
            let mut lease = match api::get(&self.client, &path).await {
                Ok(answer) => answer.body,
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                Err(error) => return Err(error).context("get leases"),
            };
            if !change(&mut lease) {
                return Ok(());
            }
            let request = Request::put(&path)
                .header(header::CONTENT_TYPE, "application/json")
                .body(lease.to_string().into_bytes())?;
            match self.client.request::<Value>(request).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => return Err(error).context("update leases"),
            }
        }
        bail!("others kept writing it")
    }
}

fn owners(lease: &Value) -> Vec<Value> {
    let owners = lease["metadata"]["ownerReferences"].as_array();
    owners.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        Pod::of("ns", "web-0_0b6c").unwrap()
    }

    #[test]
    fn an_identity_names_a_pod() {
        assert_eq!(pod().identity(), "web-0_0b6c");
        for other in ["", "web-0", "_x", "web-0_", "web_0_0b6c"] {
            assert_eq!(Pod::of("ns", other), None, "{other}");
        }
    }

    #[test]
    fn a_pod_is_over_only_when_nothing_of_it_runs() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let state = |object: Value| pod().state(Some(&object), now);
        let meta = json!({ "uid": "0b6c" });
        assert_eq!(pod().state(None, now), State::Over);
        assert_eq!(
            state(json!({ "metadata": { "uid": "other" } })),
            State::Over
        );
        for (phase, expected) in [
            ("Running", State::Lives),
            ("Pending", State::Lives),
            ("Failed", State::Over),
            ("Succeeded", State::Over),
            ("Unknown", State::Overdue),
        ] {
            let object = json!({ "metadata": meta, "status": { "phase": phase } });
            assert_eq!(state(object), expected, "{phase}");
        }
        let lost =
            json!({ "metadata": meta, "status": { "phase": "Running", "reason": "NodeLost" } });
        assert_eq!(state(lost), State::Overdue);
        for (by, expected) in [
            ("2026-01-01T00:00:30Z", State::Lives),
            ("2025-12-31T23:59:59Z", State::Overdue),
        ] {
            let leaving = json!({ "metadata": { "uid": "0b6c", "deletionTimestamp": by } });
            assert_eq!(state(leaving), expected, "{by}");
        }
    }
}
