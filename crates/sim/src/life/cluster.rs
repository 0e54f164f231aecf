//! The API server with the Lease and the pods. All objects share one revision counter.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::undertaker::{PodObservation, PodStage};
use tenure_core::{Observation, Orders, Record, ResourceVersion, Version};

/// The Lease at one version.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) seen: Observation,
    /// The uid of a pod, which its process wrote with the record. Other writers keep it.
    pub(super) mark: Option<String>,
}

/// Result of a list of the pods of one name: the revision of the view, and the pod.
#[derive(Clone, Debug)]
pub(super) struct PodView {
    pub(super) revision: ResourceVersion,
    pub(super) pod: Option<PodObservation>,
}

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) lease: Option<Lease>,
    /// The pod that owns the Lease. The garbage collector deletes the Lease after that pod.
    pub(super) owner: Option<String>,
    pods: BTreeMap<String, PodObservation>,
    /// Every change of a pod, for stale views.
    log: Vec<(u64, String, Option<PodObservation>)>,
    revision: u64,
    uids: u64,
}

impl Cluster {
    /// Creates a pod and returns its uid.
    pub(super) fn create_pod(&mut self, name: &str) -> String {
        self.uids += 1;
        let uid = format!("u{}", self.uids);
        let stage = PodStage::Running;
        self.put_pod(
            name,
            Some(PodObservation {
                uid: uid.clone(),
                stage,
            }),
        );
        uid
    }

    /// Changes the stage of a pod's life, if the pod still exists.
    pub(super) fn set_stage(&mut self, name: &str, uid: &str, stage: PodStage) {
        if self.has_pod(name, uid) {
            let uid = uid.to_owned();
            self.put_pod(name, Some(PodObservation { uid, stage }));
        }
    }

    /// Removes a pod, if it still exists.
    pub(super) fn remove_pod(&mut self, name: &str, uid: &str) {
        if self.has_pod(name, uid) {
            self.put_pod(name, None);
        }
    }

    pub(super) fn has_pod(&self, name: &str, uid: &str) -> bool {
        self.pods.get(name).is_some_and(|pod| pod.uid == uid)
    }

    /// Returns the names of existing pods.
    pub(super) fn names(&self) -> Vec<String> {
        self.pods.keys().cloned().collect()
    }

    /// Returns the pods of a name, as they were `back` revisions ago.
    pub(super) fn list(&self, name: &str, back: u64) -> PodView {
        let at = self.revision.saturating_sub(back);
        let mut past = self.log.iter().rev();
        let pod = past.find(|(revision, changed, _)| *revision <= at && changed == name);
        PodView {
            revision: version(at),
            pod: pod.and_then(|(_, _, pod)| pod.clone()),
        }
    }

    /// Writes the Lease by compare-and-set: `base` is the version that it replaces. Returns `None` if the write is
    /// rejected.
    pub(super) fn write(
        &mut self,
        base: Option<&Version>,
        record: &Record,
        mark: Option<&String>,
    ) -> Option<Lease> {
        if self.lease.as_ref().map(|lease| &lease.seen.version) != base {
            return None;
        }
        self.revision += 1;
        let uid = base.map_or_else(|| self.revision.to_string().into(), |base| base.uid.clone());
        let kept = self.lease.as_ref().and_then(|lease| lease.mark.clone());
        let seen = self.observation(uid, record);
        let mark = mark.cloned().or(kept);
        self.lease = Some(Lease { seen, mark });
        self.lease.clone()
    }

    /// Deletes the Lease and returns the revision of the deletion.
    pub(super) fn delete_lease(&mut self) -> ResourceVersion {
        self.revision += 1;
        self.lease = None;
        self.owner = None;
        version(self.revision)
    }

    fn observation(&self, uid: Arc<str>, record: &Record) -> Observation {
        Observation {
            version: Version {
                uid,
                revision: version(self.revision),
            },
            record: record.clone(),
            fingerprint: self.revision,
            unreadable: false,
            mark: Some(tenure_core::Mark::of(record)),
            described: None,
            orders: Orders::default(),
        }
    }

    fn put_pod(&mut self, name: &str, pod: Option<PodObservation>) {
        self.revision += 1;
        let name = name.to_owned();
        self.log.push((self.revision, name.clone(), pod.clone()));
        match pod {
            Some(pod) => self.pods.insert(name, pod),
            None => self.pods.remove(&name),
        };
    }
}

fn version(revision: u64) -> ResourceVersion {
    ResourceVersion::new(revision.to_string())
}
