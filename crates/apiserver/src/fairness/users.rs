//! The users that the server currently knows, as small numbers.
//!
//! A user keeps its place while something counts against it, and afterwards until another user needs the place. The
//! number of remembered users is bounded. If all of them are active, further users share one place.

use std::collections::{HashMap, VecDeque};

/// The place that users share when the table is full.
pub(super) const OTHERS: u32 = 0;

#[derive(Debug)]
struct Entry {
    name: Box<str>,
    /// Handles of this user.
    holds: u32,
    /// Whether the place is in the list of idle places.
    listed: bool,
}

/// A bounded table of users.
#[derive(Debug)]
pub(super) struct Users {
    places: HashMap<Box<str>, u32>,
    entries: Vec<Entry>,
    /// Places without holds, oldest first. Some of them may be in use again.
    idle: VecDeque<u32>,
    most: usize,
}

impl Users {
    /// Creates a table of at most this many users.
    pub(super) fn new(most: usize) -> Self {
        let others = Entry {
            name: "(other users)".into(),
            holds: 0,
            listed: true,
        };
        Self {
            places: HashMap::new(),
            entries: vec![others],
            idle: VecDeque::new(),
            most: most.max(1),
        }
    }

    /// Returns the place of a user and keeps it until [`Self::release`].
    pub(super) fn hold(&mut self, name: &str) -> u32 {
        let place = match self.places.get(name) {
            Some(place) => *place,
            None => self.add(name),
        };
        self.entries[place as usize].holds += 1;
        place
    }

    /// Ends one hold.
    pub(super) fn release(&mut self, place: u32) {
        let entry = &mut self.entries[place as usize];
        entry.holds = entry.holds.saturating_sub(1);
        if entry.holds == 0 && !entry.listed {
            entry.listed = true;
            self.idle.push_back(place);
        }
    }

    /// Returns the name of the user at a place.
    pub(super) fn name(&self, place: u32) -> &str {
        &self.entries[place as usize].name
    }

    fn add(&mut self, name: &str) -> u32 {
        let entry = Entry {
            name: name.into(),
            holds: 0,
            listed: false,
        };
        let place = if self.entries.len() <= self.most {
            let place = u32::try_from(self.entries.len()).unwrap_or(OTHERS);
            self.entries.push(entry);
            place
        } else {
            let Some(place) = self.idle_place() else {
                return OTHERS;
            };
            let old = std::mem::replace(&mut self.entries[place as usize], entry);
            self.places.remove(&old.name);
            place
        };
        self.places.insert(name.into(), place);
        place
    }

    /// Takes the place that has been idle for longest.
    fn idle_place(&mut self) -> Option<u32> {
        while let Some(place) = self.idle.pop_front() {
            let entry = &mut self.entries[place as usize];
            entry.listed = false;
            if entry.holds == 0 {
                return Some(place);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_table_is_bounded_and_reuses_idle_places() {
        let mut users = Users::new(2);
        let a = users.hold("a");
        let b = users.hold("b");
        assert_ne!(a, b);
        assert_eq!(users.hold("a"), a);
        assert_eq!(users.hold("c"), OTHERS, "both places are in use");
        assert_eq!(users.hold("d"), OTHERS);
        users.release(a);
        assert_eq!(users.hold("e"), OTHERS, "one hold is left");
        users.release(a);
        let c = users.hold("c");
        assert_eq!(c, a);
        assert_eq!((users.name(b), users.name(c)), ("b", "c"));
        assert_eq!(users.hold("a"), OTHERS, "a was forgotten");
        // A user that became active again keeps its place.
        users.release(b);
        assert_eq!(users.hold("b"), b);
        assert_eq!(users.hold("f"), OTHERS);
        users.release(b);
        assert_eq!(users.hold("f"), b);
    }

    #[test]
    fn users_table_stays_small_while_names_change() {
        let mut users = Users::new(100);
        for number in 0..10_000 {
            let place = users.hold(&format!("user-{number}"));
            assert_ne!(place, OTHERS);
            users.release(place);
        }
        assert_eq!(users.entries.len(), 101);
        assert_eq!(users.places.len(), 100);
        assert!(users.idle.len() <= 101);
    }
}
