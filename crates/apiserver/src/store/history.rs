//! The recent events of one resource, and the watchers that wait for the next one.
//!
//! Watchers hold a cursor and pull, so a writer never waits for them. They are grouped by range (everything, a
//! namespace, a name, one object). Each group except the first keeps an index of its retained events. Writes of other
//! objects therefore do not wake a watch of one object, and the watch does not search through them.
//!
//! Invariants:
//! - `ring` is ordered by revision and holds every event after `floor`.
//! - A group's `index` holds exactly the revisions in `ring` that are in its range and after `since`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::{Event, Expired, Key, Range};

/// Retention of events, per resource.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Number of events that are kept regardless of age, if they are within the memory limit.
    pub min_events: usize,
    /// Maximum number of events.
    pub max_events: usize,
    /// Age up to which events are kept, within the other bounds. kube-apiserver keeps exact lists for 5 minutes and
    /// watch history for at least 75 seconds. Here, one history serves both.
    pub age: Duration,
    /// Approximate memory limit. The newest event is kept regardless of its size.
    pub max_bytes: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            min_events: 100,
            max_events: 100_000,
            age: Duration::from_secs(300),
            max_bytes: 32 << 20,
        }
    }
}

/// The retained events of one resource.
#[derive(Debug)]
pub(super) struct History {
    retention: Retention,
    ring: VecDeque<Retained>,
    bytes: usize,
    floor: u64,
    all: Arc<Notify>,
    namespaces: HashMap<String, Group>,
    names: HashMap<String, Group>,
    objects: HashMap<String, HashMap<String, Group>>,
}

#[derive(Debug)]
struct Retained {
    event: Arc<Event>,
    at: Instant,
}

/// The watchers of one range.
#[derive(Debug, Default)]
struct Group {
    watchers: usize,
    /// `index` has no events at or before this revision.
    since: u64,
    /// The newest event that was dropped from `index`.
    lost: u64,
    index: VecDeque<u64>,
    notify: Arc<Notify>,
}

impl History {
    /// Creates a history without events at or before `floor`.
    pub(super) fn new(retention: Retention, floor: u64) -> Self {
        Self {
            retention,
            ring: VecDeque::new(),
            bytes: 0,
            floor,
            all: Arc::default(),
            namespaces: HashMap::new(),
            names: HashMap::new(),
            objects: HashMap::new(),
        }
    }

    /// Rejects a revision after which events are missing.
    pub(super) fn check(&self, asked: u64) -> Result<(), Expired> {
        if asked < self.floor {
            Err(Expired {
                asked,
                oldest: self.floor,
            })
        } else {
            Ok(())
        }
    }

    /// Appends one event, drops events beyond the retention, and adds the waiting watchers to `wake`.
    pub(super) fn push(&mut self, event: Arc<Event>, now: Instant, wake: &mut Vec<Arc<Notify>>) {
        wake.push(self.all.clone());
        self.groups(&event.object.key, |group| {
            group.index.push_back(event.revision);
            wake.push(group.notify.clone());
        });
        self.bytes += weight(&event);
        self.ring.push_back(Retained { event, at: now });
        self.trim(now);
    }

    /// Drops events beyond the retention.
    pub(super) fn trim(&mut self, now: Instant) {
        let Retention {
            min_events,
            max_events,
            age,
            max_bytes,
        } = self.retention;
        while let Some(oldest) = self.ring.front() {
            let len = self.ring.len();
            let stale = now.saturating_duration_since(oldest.at) > age;
            let fits = len <= max_events && (self.bytes <= max_bytes || len == 1);
            if fits && (len <= min_events || !stale) {
                break;
            }
            self.drop_oldest();
        }
    }

    /// Drops all events up to `floor`, which is at least the revision of the newest event.
    pub(super) fn cut(&mut self, floor: u64, wake: &mut Vec<Arc<Notify>>) {
        while !self.ring.is_empty() {
            self.drop_oldest();
        }
        self.ring.shrink_to_fit();
        self.floor = floor;
        self.all_watchers(wake);
    }

    /// Adds all watchers to `wake`.
    pub(super) fn all_watchers(&self, wake: &mut Vec<Arc<Notify>>) {
        wake.push(self.all.clone());
        wake.extend(self.namespaces.values().map(|group| group.notify.clone()));
        wake.extend(self.names.values().map(|group| group.notify.clone()));
        let objects = self.objects.values().flat_map(HashMap::values);
        wake.extend(objects.map(|group| group.notify.clone()));
    }

    /// Returns the retained events after a revision that passed [`History::check`], newest first.
    pub(super) fn newest_first(&self, after: u64) -> impl Iterator<Item = &Arc<Event>> {
        let newer = move |retained: &&Retained| retained.event.revision > after;
        self.ring
            .iter()
            .rev()
            .take_while(newer)
            .map(|retained| &retained.event)
    }

    /// Registers a watcher of `range` that will ask for events after `after`.
    pub(super) fn join(&mut self, range: &Range, after: u64) -> Result<Arc<Notify>, Expired> {
        self.check(after)?;
        let ring = &self.ring;
        let group = match (&range.namespace, &range.name) {
            (None, None) => return Ok(self.all.clone()),
            (Some(namespace), None) => entry(&mut self.namespaces, namespace),
            (None, Some(name)) => entry(&mut self.names, name),
            (Some(namespace), Some(name)) => entry(entry(&mut self.objects, namespace), name),
        };
        if group.watchers == 0 || after < group.since {
            let newer = ring.iter().skip(first_after(ring, after));
            let revisions = newer.filter(|r| range.covers(&r.event.object.key));
            group.index = revisions.map(|r| r.event.revision).collect();
            group.since = after;
        }
        group.watchers += 1;
        Ok(group.notify.clone())
    }

    /// Undoes [`History::join`].
    pub(super) fn leave(&mut self, range: &Range) {
        match (&range.namespace, &range.name) {
            (None, None) => {}
            (Some(namespace), None) => release(&mut self.namespaces, namespace),
            (None, Some(name)) => release(&mut self.names, name),
            (Some(namespace), Some(name)) => {
                if let Some(names) = self.objects.get_mut(namespace) {
                    release(names, name);
                    if names.is_empty() {
                        self.objects.remove(namespace);
                    }
                }
            }
        }
    }

    /// Returns the first event of a joined range after `after`.
    pub(super) fn next(&self, range: &Range, after: u64) -> Result<Option<Arc<Event>>, Expired> {
        let group = match (&range.namespace, &range.name) {
            (None, None) => {
                self.check(after)?;
                return Ok(self
                    .ring
                    .get(first_after(&self.ring, after))
                    .map(|r| r.event.clone()));
            }
            (Some(namespace), None) => self.namespaces.get(namespace),
            (None, Some(name)) => self.names.get(name),
            (Some(namespace), Some(name)) => self.objects.get(namespace).and_then(|n| n.get(name)),
        };
        let Some(group) = group else {
            return Ok(None);
        };
        if after < group.lost {
            return Err(Expired {
                asked: after,
                oldest: self.floor,
            });
        }
        let position = group.index.partition_point(|revision| *revision <= after);
        Ok(group.index.get(position).and_then(|revision| {
            let at = self
                .ring
                .binary_search_by_key(revision, |r| r.event.revision)
                .ok()?;
            Some(self.ring[at].event.clone())
        }))
    }

    fn drop_oldest(&mut self) {
        let Some(Retained { event, .. }) = self.ring.pop_front() else {
            return;
        };
        self.floor = event.revision;
        self.bytes -= weight(&event);
        self.groups(&event.object.key, |group| {
            if group.index.front() == Some(&event.revision) {
                group.index.pop_front();
                group.lost = event.revision;
            }
        });
    }

    /// Visits every group of an object's events, except the group of all events.
    fn groups(&mut self, key: &Key, mut visit: impl FnMut(&mut Group)) {
        let object = self
            .objects
            .get_mut(&key.namespace)
            .and_then(|n| n.get_mut(&key.name));
        let namespace = self.namespaces.get_mut(&key.namespace);
        let name = self.names.get_mut(&key.name);
        [object, namespace, name]
            .into_iter()
            .flatten()
            .for_each(&mut visit);
    }
}

/// Returns the index of the first event after a revision.
fn first_after(ring: &VecDeque<Retained>, after: u64) -> usize {
    ring.partition_point(|retained| retained.event.revision <= after)
}

fn entry<'a, T: Default>(map: &'a mut HashMap<String, T>, name: &str) -> &'a mut T {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), T::default());
    }
    map.get_mut(name)
        .expect("the group exists or was just inserted")
}

fn release(groups: &mut HashMap<String, Group>, name: &str) {
    if let Some(group) = groups.get_mut(name) {
        group.watchers -= 1;
        if group.watchers == 0 {
            groups.remove(name);
        }
    }
}

/// Returns the approximate memory of an event.
fn weight(event: &Event) -> usize {
    let object = &event.object;
    let labels: usize = object
        .labels
        .iter()
        .map(|(k, v)| k.len() + v.len() + 64)
        .sum();
    300 + object.json.len() + object.key.namespace.len() + object.key.name.len() + labels
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::store::testing::key;
    use crate::store::{EventKind, Object};

    /// A history after one event per second, each of `size` bytes.
    fn after(retention: Retention, seconds: u64, size: usize) -> History {
        let start = Instant::now();
        let mut history = History::new(retention, 0);
        for second in 1..=seconds {
            let object = Arc::new(Object {
                key: key("a", "x"),
                revision: second,
                labels: BTreeMap::new(),
                json: vec![b' '; size].into(),
            });
            let kind = EventKind::Modified;
            let event = Event {
                revision: second,
                kind,
                object,
                previous: None,
            };
            let now = start + Duration::from_secs(second);
            history.push(Arc::new(event), now, &mut Vec::new());
        }
        history
    }

    #[test]
    fn young_events_are_kept_within_the_bounds() {
        let kept = |history: &History| (history.floor, history.ring.len());
        let default = Retention::default();
        assert_eq!(
            kept(&after(default, 100, 1)),
            (0, 100),
            "all events, because there are fewer than the minimum"
        );
        assert_eq!(
            kept(&after(default, 400, 1)),
            (99, 301),
            "the events of five minutes and the newest one"
        );
        let old = Retention {
            age: Duration::from_secs(10),
            ..default
        };
        assert_eq!(
            kept(&after(old, 400, 1)),
            (300, 100),
            "the minimum number, regardless of age"
        );
        let few = Retention {
            max_events: 50,
            ..default
        };
        assert_eq!(
            kept(&after(few, 400, 1)),
            (350, 50),
            "never more than the maximum"
        );
        let small = Retention {
            max_bytes: 150_000,
            ..default
        };
        let (floor, len) = kept(&after(small, 400, 700));
        assert_eq!(floor, 400 - len as u64);
        assert!(
            (140..=150).contains(&len),
            "{len} events of more than 1000 bytes each"
        );
        assert_eq!(
            kept(&after(small, 10, 60_000)),
            (8, 2),
            "a few large events exceed the memory limit"
        );
        assert_eq!(
            kept(&after(small, 10, 200_000)),
            (9, 1),
            "the newest event, regardless of its size"
        );
    }

    #[test]
    fn group_is_removed_with_its_last_watcher() {
        let mut history = after(Retention::default(), 5, 1);
        let mut ranges = Vec::new();
        for namespace in [None, Some("a".to_owned())] {
            for name in [None, Some("x".to_owned())] {
                let resource = key("a", "x").resource;
                ranges.push(Range {
                    resource,
                    namespace: namespace.clone(),
                    name,
                });
            }
        }
        for range in ranges.iter().chain(&ranges) {
            history.join(range, 2).unwrap();
            assert_eq!(history.next(range, 3).unwrap().unwrap().revision, 4);
        }
        assert_eq!(history.objects["a"]["x"].watchers, 2);
        ranges
            .iter()
            .chain(&ranges)
            .for_each(|range| history.leave(range));
        assert!(history.objects.is_empty());
        assert!(history.names.is_empty() && history.namespaces.is_empty());
    }
}
