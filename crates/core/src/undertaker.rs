//! Terms for life: decides whether the record of a holder whose pod has ended may be emptied.
//!
//! The identity of a holder for life consists of the name and the uid of its pod: `web-0_0b6c`. No candidate takes over
//! its record (`machine/life.rs`), so the record must be emptied once the pod is gone. This write is the most dangerous
//! one, because it frees the lock without the holder's consent. Rules:
//!
//! - An absent pod may never have existed, because a wrong name looks exactly like a dead pod. A pod therefore counts
//!   as gone only if it is confirmed: it was observed with exactly that uid.
//! - A pod of that name with another uid is a different pod. It neither confirms the holder's pod nor keeps the term
//!   alive.
//! - A view from before the confirmation proves nothing, because the pod may not have existed yet.
//! - The record is emptied only while it names that holder, for a term of this mode.
//!
//! A confirmation is an observation of the pod itself, or the mark in the lock object. A holder writes the uid of its
//! pod with every record, and starts only after it has read its own pod ([`verify_own_pod`]).

use std::cmp::Ordering;

use crate::fence::ResourceVersion;
use crate::mutant::LifeMutant;
pub use crate::mutant::LifeRules as Rules;
use crate::record::Record;

/// Identifies one pod uniquely.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodId {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

impl PodId {
    /// Returns the pod that the identity of a holder for life names, or `None` if it names none. Names of pods contain
    /// no underscore.
    pub fn parse(identity: &str) -> Option<Self> {
        let (name, uid) = identity.split_once('_')?;
        let whole = !name.is_empty() && !uid.is_empty() && !uid.contains('_');
        whole.then(|| Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
        })
    }

    /// Returns the identity of a holder for life.
    pub fn identity(&self) -> String {
        format!("{}_{}", self.name, self.uid)
    }
}

/// The pod with a given name, as the API server shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodObservation {
    /// `metadata.uid`.
    pub uid: String,
    /// Stage of the pod's life.
    pub stage: PodStage,
}

/// Stage of a pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodStage {
    /// Its processes run, or will run.
    Running,
    /// It should have ended, or its node is lost. Its processes may still run.
    Overdue,
    /// Its phase is Failed or Succeeded: its processes have ended and will not be started again.
    Ended,
}

/// The state of the pod of a holder, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing relevant was observed.
    Unknown,
    /// The pod is alive.
    Alive,
    /// The pod should have ended, and may still run.
    Overdue,
    /// The pod does not exist and was never observed. It may run under another name.
    NeverSeen,
    /// The pod existed and is gone.
    Dead,
}

/// Follows the pod of one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vigil {
    pod: PodId,
    rules: Rules,
    /// The lowest revision at which the pod is known to have existed.
    confirmed: Option<ResourceVersion>,
    verdict: Verdict,
}

impl Vigil {
    /// Starts to follow a pod about which nothing is known.
    pub fn new(pod: PodId, rules: Rules) -> Self {
        Self {
            pod,
            rules,
            confirmed: None,
            verdict: Verdict::Unknown,
        }
    }

    /// Returns the pod that is followed.
    pub fn pod(&self) -> &PodId {
        &self.pod
    }

    /// Returns what is known about the pod.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Records the uid of a pod that existed at this revision or before: from the mark in the lock object, or from the
    /// event of its deletion. Other writers keep the mark of an earlier holder, so a uid counts only for its own pod.
    pub fn observe_mark(&mut self, revision: &ResourceVersion, uid: Option<&str>) {
        if uid == Some(self.pod.uid.as_str()) || (uid.is_some() && self.is(LifeMutant::AnyUid)) {
            self.confirm(revision);
        }
    }

    /// Records what the API server shows under the name of the pod at this revision.
    pub fn observe_pod(
        &mut self,
        revision: &ResourceVersion,
        pod: Option<&PodObservation>,
    ) -> Verdict {
        let own = |pod: &&PodObservation| pod.uid == self.pod.uid || self.is(LifeMutant::AnyUid);
        if let Some(pod) = pod.filter(own) {
            self.confirm(revision);
            self.verdict = match pod.stage {
                PodStage::Running => Verdict::Alive,
                PodStage::Overdue => Verdict::Overdue,
                PodStage::Ended => Verdict::Dead,
            };
        } else if self.is_after_confirmation(revision) {
            self.verdict = Verdict::Dead;
        } else if self.confirmed.is_none() {
            self.verdict = Verdict::NeverSeen;
        }
        self.verdict
    }

    /// Returns whether a lock object with this record may be emptied, or created without a holder if it does not exist.
    /// `lease_seconds` is the duration of terms for life, which distinguishes them from other terms.
    pub fn may_empty(&self, record: Option<&Record>, lease_seconds: u32) -> bool {
        let named = record.is_none_or(|record| {
            record.holder == self.pod.identity() && record.lease_duration_seconds == lease_seconds
        });
        self.verdict == Verdict::Dead && (named || self.is(LifeMutant::AnyRecord))
    }

    /// Records that the pod existed at this revision or before. The lowest revision is kept, which is sufficient
    /// because uids are never reused.
    fn confirm(&mut self, revision: &ResourceVersion) {
        let lower = match &self.confirmed {
            None => true,
            Some(known) => revision.order(known) == Some(Ordering::Less),
        };
        if lower {
            self.confirmed = Some(revision.clone());
        }
    }

    /// Returns whether the pod was absent at a revision after it was observed.
    fn is_after_confirmation(&self, revision: &ResourceVersion) -> bool {
        match &self.confirmed {
            None => self.is(LifeMutant::AbsenceIsDeath),
            Some(known) => {
                matches!(
                    revision.order(known),
                    Some(Ordering::Equal | Ordering::Greater)
                ) || self.is(LifeMutant::StaleAbsence)
                    || self.is(LifeMutant::AbsenceIsDeath)
            }
        }
    }

    fn is(&self, mutant: LifeMutant) -> bool {
        self.rules.is(mutant)
    }
}

/// Reason why a process cannot be a candidate for life.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOwnPod {
    /// No pod with that name exists.
    #[error("there is no such pod")]
    Absent,
    /// The pod with that name has another uid.
    #[error("that pod has uid {0:?}")]
    Other(String),
}

/// Checks that the pod in which a process claims to run exists with the given uid. The process may campaign only after
/// this check, because other candidates would treat a wrong name as a deleted pod.
///
/// # Errors
///
/// Fails if the pod does not exist or has another uid.
pub fn verify_own_pod(
    own: &PodId,
    found: Option<&PodObservation>,
    rules: Rules,
) -> Result<(), NotOwnPod> {
    match found {
        _ if rules.is(LifeMutant::UnverifiedStart) => Ok(()),
        None => Err(NotOwnPod::Absent),
        Some(pod) if pod.uid != own.uid => Err(NotOwnPod::Other(pod.uid.clone())),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vigil() -> Vigil {
        Vigil::new(PodId::parse("web-0_0b6c").unwrap(), Rules::default())
    }

    fn at(revision: u64) -> ResourceVersion {
        ResourceVersion::new(revision.to_string())
    }

    fn pod(uid: &str, stage: PodStage) -> PodObservation {
        PodObservation {
            uid: uid.to_owned(),
            stage,
        }
    }

    fn held(holder: &str, seconds: u32) -> Record {
        Record {
            holder: holder.to_owned(),
            lease_duration_seconds: seconds,
            ..Record::default()
        }
    }

    #[test]
    fn identity_names_a_pod_and_its_uid() {
        let pod = PodId::parse("web-0_0b6c").unwrap();
        assert_eq!((pod.name.as_str(), pod.uid.as_str()), ("web-0", "0b6c"));
        assert_eq!(pod.identity(), "web-0_0b6c");
        for other in ["", "web-0", "_x", "web-0_", "web_0_0b6c"] {
            assert_eq!(PodId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn absence_of_a_pod_that_was_never_observed_is_not_death() {
        let mut vigil = vigil();
        for revision in [1, 5, 1_000] {
            assert_eq!(vigil.observe_pod(&at(revision), None), Verdict::NeverSeen);
            let other = pod("other", PodStage::Running);
            let verdict = vigil.observe_pod(&at(revision), Some(&other));
            assert_eq!(verdict, Verdict::NeverSeen, "another of the same name");
        }
        assert!(!vigil.may_empty(Some(&held("web-0_0b6c", 60)), 60));
        assert!(!vigil.may_empty(None, 60));
    }

    #[test]
    fn absence_after_the_pod_was_seen_with_its_uid_counts_as_death() {
        let other = pod("other", PodStage::Running);
        for after in [None, Some(&other)] {
            let mut vigil = vigil();
            let seen = pod("0b6c", PodStage::Running);
            assert_eq!(vigil.observe_pod(&at(5), Some(&seen)), Verdict::Alive);
            assert!(!vigil.may_empty(Some(&held("web-0_0b6c", 60)), 60));
            assert_eq!(vigil.observe_pod(&at(6), after), Verdict::Dead);
            assert!(vigil.may_empty(Some(&held("web-0_0b6c", 60)), 60));
            assert!(vigil.may_empty(None, 60));
        }
    }

    #[test]
    fn a_mark_counts_for_its_own_pod_only() {
        let mut vigil = vigil();
        vigil.observe_mark(&at(3), None);
        vigil.observe_mark(&at(3), Some("other"));
        assert_eq!(vigil.observe_pod(&at(6), None), Verdict::NeverSeen);
        vigil.observe_mark(&at(7), Some("0b6c"));
        assert_eq!(vigil.observe_pod(&at(8), None), Verdict::Dead);
    }

    #[test]
    fn a_view_from_before_the_confirmation_changes_nothing() {
        let mut vigil = vigil();
        vigil.observe_mark(&at(10), Some("0b6c"));
        assert_eq!(vigil.observe_pod(&at(9), None), Verdict::Unknown);
        let opaque = ResourceVersion::new("x");
        assert_eq!(vigil.observe_pod(&opaque, None), Verdict::Unknown);
        vigil.observe_mark(&at(8), Some("0b6c"));
        assert_eq!(vigil.observe_pod(&at(9), None), Verdict::Dead);
    }

    #[test]
    fn only_an_ended_pod_is_dead_while_it_is_there() {
        for (stage, expected) in [
            (PodStage::Running, Verdict::Alive),
            (PodStage::Overdue, Verdict::Overdue),
            (PodStage::Ended, Verdict::Dead),
        ] {
            let seen = pod("0b6c", stage);
            assert_eq!(vigil().observe_pod(&at(1), Some(&seen)), expected);
        }
    }

    #[test]
    fn the_record_of_another_holder_or_mode_is_never_emptied() {
        let mut vigil = vigil();
        vigil.observe_pod(&at(1), Some(&pod("0b6c", PodStage::Ended)));
        assert!(vigil.may_empty(Some(&held("web-0_0b6c", 60)), 60));
        for other in [held("web-0_0b6c", 15), held("web-0_0b6d", 60), held("", 60)] {
            assert!(!vigil.may_empty(Some(&other), 60), "{other:?}");
        }
    }

    #[test]
    fn own_pod_is_verified_by_its_uid() {
        let own = PodId::parse("web-0_0b6c").unwrap();
        let verify = |found: Option<&PodObservation>| verify_own_pod(&own, found, Rules::default());
        assert_eq!(verify(None), Err(NotOwnPod::Absent));
        let other = pod("other", PodStage::Running);
        assert_eq!(
            verify(Some(&other)),
            Err(NotOwnPod::Other("other".to_owned()))
        );
        assert_eq!(verify(Some(&pod("0b6c", PodStage::Running))), Ok(()));
    }
}
