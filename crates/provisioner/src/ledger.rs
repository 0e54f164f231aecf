//! The state of each claim that a leader keeps in memory, in addition to the objects in the API server.
//!
//! One entry per claim, by uid, because a re-created claim is another claim. An entry without content does not exist.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use crate::controller::lock;
use crate::objects::Claim;
use crate::topology::Memory;

/// The entries of all claims.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: Mutex<HashMap<String, ClaimEntry>>,
}

/// The state of one claim.
#[derive(Default)]
struct ClaimEntry {
    /// The claim, while the driver may be creating its volume. It is retried even if it is deleted.
    in_progress: Option<Arc<Claim>>,
    /// Whether the driver certainly creates nothing.
    settled: bool,
    /// Set after the driver rejected the claim.
    rejection: Option<Rejection>,
    /// The topology that was chosen, which every attempt must repeat.
    topology: Option<Memory>,
}

/// A rejection counts until the next attempt is due, or until the claim has another class.
struct Rejection {
    class_uid: Option<String>,
    retry_at: Instant,
}

impl ClaimEntry {
    fn is_empty(&self) -> bool {
        let Self {
            in_progress,
            settled,
            rejection,
            topology,
        } = self;
        in_progress.is_none() && !settled && rejection.is_none() && topology.is_none()
    }
}

impl Ledger {
    /// Returns the claim if the driver may be creating its volume.
    pub(crate) fn in_progress(&self, uid: &str) -> Option<Arc<Claim>> {
        self.read(uid, |entry| entry.in_progress.clone()).flatten()
    }

    /// Returns whether the driver may be creating the volume of this claim.
    pub(crate) fn is_in_progress(&self, uid: &str) -> bool {
        self.in_progress(uid).is_some()
    }

    /// Returns the first result for a claim whose volume the driver may be creating.
    pub(crate) fn find_in_progress<T>(
        &self,
        find: impl FnMut(&Arc<Claim>) -> Option<T>,
    ) -> Option<T> {
        let entries = lock(&self.entries);
        let claims = entries
            .values()
            .filter_map(|entry| entry.in_progress.as_ref());
        claims.into_iter().find_map(find)
    }

    /// Returns whether the driver certainly creates nothing for this claim.
    pub(crate) fn is_settled(&self, uid: &str) -> bool {
        self.read(uid, |entry| entry.settled) == Some(true)
    }

    /// Records that the driver may be creating the volume of this claim, even if the claim is deleted during that time.
    pub(crate) fn pursue(&self, claim: &Arc<Claim>) {
        self.update(claim.uid(), |entry| {
            entry.settled = false;
            entry.in_progress = Some(claim.clone());
        });
    }

    /// Records that the driver need not be asked again about this claim.
    pub(crate) fn stop_pursuing(&self, uid: &str) {
        self.update(uid, |entry| entry.in_progress = None);
    }

    /// Records that the storage exists.
    pub(crate) fn created(&self, uid: &str) {
        self.update(uid, |entry| {
            entry.in_progress = None;
            entry.topology = None;
        });
    }

    /// Records that the driver certainly creates nothing.
    pub(crate) fn settle(&self, uid: &str) {
        self.update(uid, |entry| {
            entry.in_progress = None;
            entry.topology = None;
            entry.settled = true;
        });
    }

    /// Records that the driver rejected the claim with this class. An earlier rejection keeps its time.
    pub(crate) fn reject(&self, uid: &str, class_uid: Option<String>, retry_at: Instant) {
        self.update(uid, |entry| {
            entry.rejection.get_or_insert(Rejection {
                class_uid,
                retry_at,
            });
        });
    }

    /// Returns whether a rejected claim must wait for its next attempt.
    pub(crate) fn is_delayed(&self, uid: &str, class_uid: Option<&str>, now: Instant) -> bool {
        let mut delayed = false;
        self.update(uid, |entry| {
            entry.rejection.take_if(|rejection| {
                delayed = rejection.class_uid.as_deref() == class_uid && now < rejection.retry_at;
                !delayed
            });
        });
        delayed
    }

    /// Returns the topology that was chosen for this claim.
    pub(crate) fn topology(&self, uid: &str) -> Memory {
        let topology = self.read(uid, |entry| entry.topology.clone());
        topology.flatten().unwrap_or_default()
    }

    /// Records the topology that was chosen for this claim.
    pub(crate) fn choose_topology(&self, uid: &str, topology: Memory) {
        self.update(uid, |entry| entry.topology = Some(topology));
    }

    /// Removes the entry of a deleted claim, unless the driver may be creating its volume.
    pub(crate) fn forget(&self, uid: &str) {
        self.update(uid, |entry| {
            *entry = ClaimEntry {
                in_progress: entry.in_progress.take(),
                ..ClaimEntry::default()
            };
        });
    }

    fn read<T>(&self, uid: &str, read: impl FnOnce(&ClaimEntry) -> T) -> Option<T> {
        lock(&self.entries).get(uid).map(read)
    }

    fn update(&self, uid: &str, update: impl FnOnce(&mut ClaimEntry)) {
        match lock(&self.entries).entry(uid.to_owned()) {
            Entry::Occupied(mut entry) => {
                update(entry.get_mut());
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
            Entry::Vacant(vacant) => {
                let mut entry = ClaimEntry::default();
                update(&mut entry);
                if !entry.is_empty() {
                    vacant.insert(entry);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn claim(uid: &str) -> Arc<Claim> {
        let mut claim = Claim::default();
        claim.metadata.uid = Some(uid.to_owned());
        Arc::new(claim)
    }

    fn size(ledger: &Ledger) -> usize {
        lock(&ledger.entries).len()
    }

    #[test]
    fn entries_without_content_are_removed() {
        let ledger = Ledger::default();
        assert!(!ledger.is_delayed("a", None, Instant::now()));
        ledger.stop_pursuing("a");
        ledger.created("a");
        assert_eq!(size(&ledger), 0);
        ledger.pursue(&claim("a"));
        assert_eq!(size(&ledger), 1);
        ledger.stop_pursuing("a");
        assert_eq!(size(&ledger), 0);
    }

    #[test]
    fn pursued_claim_is_not_settled_and_settled_one_is_not_pursued() {
        let ledger = Ledger::default();
        ledger.settle("a");
        assert!(ledger.is_settled("a") && !ledger.is_in_progress("a"));
        ledger.pursue(&claim("a"));
        assert!(!ledger.is_settled("a") && ledger.is_in_progress("a"));
        ledger.settle("a");
        assert!(ledger.is_settled("a") && !ledger.is_in_progress("a"));
    }

    #[test]
    fn forgotten_claim_is_still_pursued() {
        let ledger = Ledger::default();
        ledger.choose_topology("a", Memory::default());
        ledger.pursue(&claim("a"));
        ledger.forget("a");
        assert!(ledger.is_in_progress("a"));
        ledger.stop_pursuing("a");
        assert_eq!(size(&ledger), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_claim_waits_until_its_time_or_another_class() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        ledger.reject("a", Some("class".to_owned()), later);
        // A second rejection does not postpone the attempt.
        ledger.reject(
            "a",
            Some("class".to_owned()),
            later + Duration::from_secs(60),
        );
        assert!(ledger.is_delayed("a", Some("class"), now));
        assert!(!ledger.is_delayed("a", Some("class"), later));
        assert_eq!(size(&ledger), 0);
        ledger.reject("a", Some("class".to_owned()), later);
        assert!(!ledger.is_delayed("a", Some("another"), now));
        assert!(!ledger.is_delayed("a", Some("class"), now));
    }
}
