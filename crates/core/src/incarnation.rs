//! Description of the incarnation that holds the lock: an annotation of the lock object, next to the mark.
//!
//! The description names processes, a pod and a node, so that another candidate can find out whether the holder has
//! ended (`death.rs`). Other writers keep annotations that they do not know. A description therefore counts only for the
//! record that it names by identity, acquire time and number of transitions.

use crate::record::Record;
use crate::time::WallTime;

/// One incarnation of an elector, and the term for which it wrote its description.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation {
    /// Identity in the record of the term.
    pub identity: String,
    /// Time at which the term was acquired.
    pub acquire_time: Option<WallTime>,
    /// Number of transitions in the record of the term.
    pub transitions: u32,
    /// Where the incarnation runs.
    pub place: Place,
}

impl Incarnation {
    /// Returns the incarnation of a term with this record.
    pub fn of(record: &Record, place: Place) -> Self {
        Self {
            identity: record.holder.clone(),
            acquire_time: record.acquire_time,
            transitions: record.transitions,
            place,
        }
    }

    /// Returns whether a record shows the term for which this description was written.
    pub fn holds(&self, record: &Record) -> bool {
        !record.is_free()
            && self.identity == record.holder
            && self.acquire_time == record.acquire_time
            && self.transitions == record.transitions
    }
}

/// Where an incarnation runs, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The machine; `None` if it has no name that is known to be unique.
    pub machine: Option<String>,
    /// Every process that must have ended before the work of the incarnation has ended; empty if unknown.
    pub processes: Vec<Process>,
    /// The container, if the incarnation runs in a pod.
    pub container: Option<Container>,
    /// Name of the Kubernetes node.
    pub node: Option<String>,
}

/// One process. A pid is reused; a pid with a start time is not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Id of the boot of the kernel.
    pub boot: String,
    /// Number of the pid namespace.
    pub pid_namespace: u64,
    /// Number of the time namespace, in which the start time is expressed; 0 if the kernel has none.
    pub time_namespace: u64,
    /// The pid in that pid namespace.
    pub pid: u32,
    /// Start time, in clock ticks since the boot.
    pub started: u64,
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Container {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// `metadata.uid` of the pod.
    pub uid: String,
    /// Name of the container.
    pub name: String,
    /// Id of this run of the container, if the incarnation knows it. A container that starts again has another id.
    pub id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_counts_for_the_term_that_it_names_only() {
        let record = Record {
            holder: "a".to_owned(),
            lease_duration_seconds: 15,
            acquire_time: Some(WallTime::from_micros(1)),
            renew_time: Some(WallTime::from_micros(2)),
            transitions: 3,
            ..Record::default()
        };
        let incarnation = Incarnation::of(&record, Place::default());
        assert!(incarnation.holds(&record));
        let renewed = Record {
            renew_time: Some(WallTime::from_micros(9)),
            ..record.clone()
        };
        assert!(incarnation.holds(&renewed), "a renewal");
        let changed: [fn(&mut Record); 4] = [
            |record| record.holder = "b".to_owned(),
            |record| record.holder.clear(),
            |record| record.acquire_time = None,
            |record| record.transitions = 4,
        ];
        for (number, change) in changed.iter().enumerate() {
            let mut other = record.clone();
            change(&mut other);
            assert!(!incarnation.holds(&other), "change {number}");
        }
        let free = Record::default();
        assert!(!Incarnation::of(&free, Place::default()).holds(&free));
    }
}
