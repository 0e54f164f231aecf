//! The Lease of an election for life, which is an object with an owner.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::{Request, header};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tenure::Handle;
use tenure_core::Record;
use tenure_core::undertaker::{PodId, Vigil};
use tenure_lock::{LockKind, TERM_ANNOTATION};
use tokio::time::timeout;

use super::{AGAIN, LEASE_SECONDS, OwnPod, REQUEST, reference};
use crate::api;
use crate::commands::elect::outlets::{Queue, newest};
use crate::elections;

/// Number of attempts to write a Lease that others write too.
const ATTEMPTS: usize = 5;

/// Maximum delay between attempts to set the owner.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The Lease.
#[derive(Clone)]
pub(in crate::commands::elect) struct Lease {
    pub(in crate::commands::elect) client: Client,
    pub(in crate::commands::elect) namespace: String,
    pub(in crate::commands::elect) name: String,
}

/// Result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changed {
    Written,
    /// No change was needed.
    Unneeded,
    /// The Lease does not exist.
    Missing,
}

impl Lease {
    /// Keeps this candidate's pod as owner of the Lease while leading, until the queue is closed. Each item of the
    /// queue is taken immediately, even during a request, because items about a loss delay the release.
    pub(in crate::commands::elect) async fn keep_owned(
        self,
        own: OwnPod,
        handle: Handle,
        mut queue: Queue,
    ) {
        while newest(&mut queue).await.is_some() {
            loop {
                tokio::select! {
                    change = newest(&mut queue) => if change.is_none() { return },
                    () = self.own(&own.pod, &handle) => break,
                }
            }
        }
    }

    /// Sets the pod as the owner, and repeats that while it leads. Without an owner the garbage collector would not
    /// delete the Lease of a deleted pod; other candidates still free it.
    async fn own(&self, pod: &PodId, handle: &Handle) {
        let mut pause = AGAIN;
        while handle.is_leading() {
            let change = self.change(|lease| name_owner(lease, pod));
            let changed = timeout(REQUEST, change).await;
            match changed.context("no answer in time").flatten() {
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(
                        lease = self.name,
                        error = api::plain(&error),
                        "cannot name the pod as owner"
                    );
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Empties the Lease for a holder whose pod is gone. A Lease of another holder, or of a term of another mode, is
    /// not changed. If the Lease was deleted with its owner, a free one is created. Otherwise candidates that observed
    /// the old one would wait for its lease duration. Returns whether this call freed it.
    pub(super) async fn free(&self, vigil: &Vigil) -> Result<bool> {
        let now = format!("{:.6}", Timestamp::now());
        let changed = self.change(|lease| {
            if !vigil.may_empty(Some(&record(lease)), LEASE_SECONDS) {
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
            // The pod is gone, so no candidate has to wait for the term that the mark names.
            if let Some(annotations) = lease["metadata"]["annotations"].as_object_mut() {
                annotations.remove(TERM_ANNOTATION);
            }
            true
        });
        match changed.await? {
            Changed::Written => Ok(true),
            Changed::Unneeded => Ok(false),
            Changed::Missing if vigil.may_empty(None, LEASE_SECONDS) => {
                self.create_free(&now).await
            }
            Changed::Missing => Ok(false),
        }
    }

    /// Creates a Lease without a holder, unless one exists.
    async fn create_free(&self, now: &str) -> Result<bool> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": {
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        });
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            self.namespace
        );
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(lease.to_string().into_bytes())?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error).context("create leases"),
        }
    }

    /// Reads, changes and writes the Lease, and repeats this after a conflict.
    async fn change(&self, change: impl Fn(&mut Value) -> bool) -> Result<Changed> {
        let path = elections::path_of(LockKind::Leases, &self.namespace, &self.name);
        for _ in 0..ATTEMPTS {
            let mut lease = match api::get(&self.client, &path).await {
                Ok(answer) => answer.body,
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Changed::Missing),
                Err(error) => return Err(error).context("get leases"),
            };
            if !change(&mut lease) {
                return Ok(Changed::Unneeded);
            }
            let request = Request::put(&path)
                .header(header::CONTENT_TYPE, "application/json")
                .body(lease.to_string().into_bytes())?;
            match self.client.request::<Value>(request).await {
                Ok(_) => return Ok(Changed::Written),
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => return Err(error).context("update leases"),
            }
        }
        bail!("other clients changed it between every read and write")
    }
}

/// Sets the pod as the only pod among the owners of a Lease that it holds. Returns whether that changes anything.
fn name_owner(lease: &mut Value, pod: &PodId) -> bool {
    let (identity, owner) = (pod.identity(), reference(pod));
    let mut owners = owners(lease);
    if lease["spec"]["holderIdentity"] != identity || owners.contains(&owner) {
        return false;
    }
    owners.retain(|owner| owner["kind"] != "Pod");
    owners.push(owner);
    lease["metadata"]["ownerReferences"] = owners.into();
    true
}

/// Parses holder and mode of a Lease.
fn record(lease: &Value) -> Record {
    let spec = &lease["spec"];
    let seconds = spec["leaseDurationSeconds"].as_u64();
    Record {
        holder: spec["holderIdentity"].as_str().unwrap_or("").to_owned(),
        lease_duration_seconds: seconds.and_then(|s| s.try_into().ok()).unwrap_or(0),
        ..Record::default()
    }
}

fn owners(lease: &Value) -> Vec<Value> {
    let owners = lease["metadata"]["ownerReferences"].as_array();
    owners.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, StatusCode};
    use tenure::Event;
    use tenure_core::ResourceVersion;
    use tenure_core::undertaker::{PodObservation, PodStage, Rules};

    use super::*;
    use crate::commands::elect::life::scripted::{self, Act};
    use crate::commands::elect::outlets::{ElectionChange, Notice, Outlets, Share};

    /// Far longer than any operation in these tests.
    const LIMIT: Duration = Duration::from_secs(60);

    const HOLDER: &str = "web-0_0b6c";

    fn lease(client: Client) -> Lease {
        Lease {
            client,
            namespace: "ns".to_owned(),
            name: "life".to_owned(),
        }
    }

    /// Returns a vigil of the holder's pod, which exists or has ended.
    fn vigil(stage: PodStage) -> Vigil {
        let mut vigil = Vigil::new(PodId::parse(HOLDER).unwrap(), Rules::default());
        let uid = vigil.pod().uid.clone();
        vigil.observe_pod(
            &ResourceVersion::new("1"),
            Some(&PodObservation { uid, stage }),
        );
        vigil
    }

    fn held(seconds: u64) -> Value {
        let spec = json!({ "holderIdentity": HOLDER, "leaseDurationSeconds": seconds });
        let annotations = json!({ "note": "kept", TERM_ANNOTATION: "{}" });
        let metadata =
            json!({ "name": "life", "resourceVersion": "1", "annotations": annotations });
        json!({ "metadata": metadata, "spec": spec })
    }

    /// Frees this Lease. Returns whether it was freed, and the requests that were sent.
    async fn freed(stored: Option<Value>, created: StatusCode) -> (bool, Vec<(Method, Value)>) {
        freed_at(PodStage::Ended, stored, created).await
    }

    async fn freed_at(
        stage: PodStage,
        stored: Option<Value>,
        created: StatusCode,
    ) -> (bool, Vec<(Method, Value)>) {
        let writes = Arc::new(Mutex::new(Vec::new()));
        let log = writes.clone();
        let client = scripted::server(move |request, body| {
            let status = match (&request.method, &stored) {
                (&Method::GET, Some(stored)) => {
                    return Act::Answer(StatusCode::OK, stored.to_string());
                }
                (&Method::GET, None) => StatusCode::NOT_FOUND,
                (&Method::POST, _) => created,
                _ => StatusCode::OK,
            };
            if request.method != Method::GET {
                log.lock().unwrap().push((request.method.clone(), body));
            }
            scripted::status(status)
        })
        .await;
        let freed = lease(client).free(&vigil(stage)).await.unwrap();
        let writes = writes.lock().unwrap().clone();
        (freed, writes)
    }

    #[tokio::test]
    async fn only_a_term_of_this_mode_is_freed() {
        let (done, writes) = freed(Some(held(15)), StatusCode::CREATED).await;
        assert!(!done && writes.is_empty(), "{writes:?}");
        let (done, writes) = freed(Some(held(172_800)), StatusCode::CREATED).await;
        assert!(done && writes.len() == 1, "{writes:?}");
        assert_eq!(writes[0].0, Method::PUT);
        assert_eq!(writes[0].1["spec"]["holderIdentity"], "");
        let annotations = &writes[0].1["metadata"]["annotations"];
        assert_eq!(annotations, &json!({ "note": "kept" }));
    }

    #[tokio::test]
    async fn nothing_is_written_for_a_pod_that_may_be_alive() {
        for stage in [PodStage::Running, PodStage::Overdue] {
            for stored in [Some(held(172_800)), None] {
                let (done, writes) = freed_at(stage, stored, StatusCode::CREATED).await;
                assert!(!done && writes.is_empty(), "{writes:?}");
            }
        }
    }

    #[tokio::test]
    async fn lease_deleted_with_its_pod_is_created_again_without_a_holder() {
        for (created, expected) in [(StatusCode::CREATED, true), (StatusCode::CONFLICT, false)] {
            let (done, writes) = freed(None, created).await;
            assert_eq!(done, expected);
            assert_eq!(writes.len(), 1, "{writes:?}");
            let (method, lease) = &writes[0];
            assert_eq!(method, Method::POST);
            assert_eq!(lease["metadata"]["name"], "life");
            assert_eq!(lease["spec"]["holderIdentity"], "");
        }
    }

    #[tokio::test]
    async fn owner_of_the_lease_is_set_by_retries_in_the_background() {
        let (sender, mut owned) = tokio::sync::mpsc::unbounded_channel();
        let reads = Mutex::new(0);
        let client = scripted::server(move |request, body| {
            let mut reads = reads.lock().unwrap();
            if request.method == Method::PUT {
                let _ = sender.send(Some(body));
                return Act::Answer(StatusCode::OK, "{}".to_owned());
            }
            *reads += 1;
            match *reads {
                1 => scripted::status(StatusCode::INTERNAL_SERVER_ERROR),
                2 => Act::Answer(StatusCode::OK, held(172_800).to_string()),
                _ => {
                    let _ = sender.send(None);
                    Act::Hang
                }
            }
        })
        .await;
        let elector = scripted::elector();
        let view = scripted::view(&elector);
        let mut candidate = elector.start();
        let term = loop {
            match candidate.next().await {
                Some(Event::Lead(term)) => break term,
                Some(_) => {}
                None => panic!("the election has ended"),
            }
        };
        let change = |notice, term| ElectionChange {
            notice,
            answer: view.answer(),
            previous: String::new(),
            term,
        };
        let mut outlets = Outlets::default();
        let own = OwnPod::scripted("ns", HOLDER);
        let handle = view.handle.clone();
        outlets.add(|queue| lease(client).keep_owned(own, handle, queue));
        outlets.notify(&change(Notice::Elected, None));
        let written = timeout(LIMIT, owned.recv()).await.unwrap();
        let written = written.unwrap().unwrap();
        assert_eq!(written["metadata"]["ownerReferences"][0]["uid"], "0b6c");
        // The next read hangs, and the term ends.
        outlets.notify(&change(Notice::Changed, None));
        let hangs = timeout(LIMIT, owned.recv()).await.unwrap();
        assert_eq!(hangs, Some(None));
        view.handle.step_down(LIMIT);
        outlets.notify(&change(Notice::Lost, Some(Share::new(term))));
        while !matches!(
            timeout(LIMIT, candidate.next()).await.unwrap(),
            Some(Event::Released)
        ) {}
    }
}
