//! The object in the API server: one compare-and-set register with revisions and a uid.

use std::rc::Rc;
use std::sync::Arc;

use tenure_core::{
    Incarnation, LocalTime, Mark, Observation, Orders, Place, Record, ResourceVersion, Version,
    WriteKind,
};

/// One version of the object.
#[derive(Clone, Debug)]
pub struct Object {
    /// The object as an elector observes it.
    pub seen: Observation,
    /// The revision as a number.
    pub revision: u64,
    /// The incarnation that wrote the record; `None` for a person.
    pub author: Option<u64>,
    /// The incarnation of the write that the mark names.
    pub marked_by: Option<u64>,
    /// The author's local time when the write was sent.
    pub sent: LocalTime,
    /// Number of writes so far that won a term, in the order of the store.
    pub term: u64,
}

/// Result of a write.
#[derive(Clone, Debug)]
pub enum Applied {
    /// The write created this version.
    Yes(Rc<Object>),
    /// The precondition failed.
    No,
}

/// The object and its history.
#[derive(Debug, Default)]
pub struct Register {
    current: Option<Rc<Object>>,
    revision: u64,
    uids: u64,
    records: u64,
    terms: u64,
    history: Vec<Rc<Object>>,
    /// Orders of operators, in annotations that every write keeps.
    orders: Orders,
    /// The mark of the last write of an elector that writes marks. Other writers keep it.
    mark: Option<Mark>,
    /// The incarnation of that write.
    marked_by: Option<u64>,
    /// The description of the last holder that wrote one. Other writers keep it.
    described: Option<Arc<Incarnation>>,
    /// A write is applied regardless of the version that it names, as without compare-and-set.
    pub blind: bool,
}

impl Register {
    /// Returns the current version.
    pub fn current(&self) -> Option<&Rc<Object>> {
        self.current.as_ref()
    }

    /// Returns the store's revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the latest object with this version, current or past.
    pub fn find(&self, version: &Version) -> Option<&Rc<Object>> {
        self.history
            .iter()
            .rev()
            .find(|o| o.seen.version == *version)
    }

    /// Returns the version from `back` versions ago.
    pub fn past(&self, back: usize) -> Option<&Rc<Object>> {
        self.history.iter().rev().nth(back)
    }

    /// Returns how many versions ago the store was at this revision.
    pub fn back_to(&self, revision: u64) -> Option<usize> {
        self.history
            .iter()
            .rev()
            .position(|object| object.revision == revision)
    }

    /// Executes a write of an elector, with or without a mark and a description of the holder.
    pub fn write(
        &mut self,
        (author, sent): (u64, LocalTime),
        kind: &WriteKind,
        record: &Record,
        marks: bool,
        place: Option<&Place>,
    ) -> Applied {
        let fits = match (kind.base(), &self.current) {
            (None, None) => true,
            (Some(base), Some(current)) => self.blind || current.seen.version == *base,
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !fits {
            return Applied::No;
        }
        let uid = self.current.as_ref().map(|c| c.seen.version.uid.clone());
        if marks {
            self.mark = Some(Mark::of(record));
            self.marked_by = Some(author);
        }
        if let Some(place) = place {
            let described = Incarnation::of(record, place.clone());
            self.described = (!record.is_free()).then(|| described.into());
        }
        if let Some(order) = kind.order() {
            self.orders.step_down = Some(Box::new(order.clone()));
        }
        let wins = matches!(kind, WriteKind::Create | WriteKind::Acquire(_));
        self.terms += u64::from(wins);
        self.records += 1;
        let uid = uid.unwrap_or_else(|| self.next_uid());
        Applied::Yes(self.put(
            uid,
            record.clone(),
            self.records,
            false,
            Some((author, sent)),
        ))
    }

    /// Writes a record as a person would. A record with the content of an earlier version equals that version's record.
    pub fn edit(&mut self, record: Record, unreadable: bool) -> Rc<Object> {
        let uid = self.current.as_ref().map(|c| c.seen.version.uid.clone());
        let same = self.history.iter().rev().take(100).find(|old| {
            uid.as_ref() == Some(&old.seen.version.uid)
                && old.seen.record == record
                && old.seen.unreadable == unreadable
        });
        let same = same.map(|old| (old.seen.fingerprint, old.author.map(|a| (a, old.sent))));
        let uid = uid.unwrap_or_else(|| self.next_uid());
        let (fingerprint, author) = same.unwrap_or_else(|| {
            self.records += 1;
            (self.records, None)
        });
        self.put(uid, record, fingerprint, unreadable, author)
    }

    /// Edits labels, which creates another version with the same record.
    pub fn touch(&mut self) -> Option<Rc<Object>> {
        let object = self.current.clone()?;
        Some(self.put(
            object.seen.version.uid.clone(),
            object.seen.record.clone(),
            object.seen.fingerprint,
            object.seen.unreadable,
            object.author.map(|author| (author, object.sent)),
        ))
    }

    /// Changes the orders of operators, which creates another version with the same record.
    pub fn order(&mut self, orders: Orders) -> Option<Rc<Object>> {
        self.orders = orders;
        self.touch()
    }

    /// Deletes the object. The store's revision continues to increase.
    pub fn delete(&mut self) -> u64 {
        self.current = None;
        self.orders = Orders::default();
        self.mark = None;
        self.marked_by = None;
        self.described = None;
        self.revision += 1;
        self.revision
    }

    /// Restores the store from a backup of `back` versions ago, and adds `bump` to its revision.
    pub fn restore(&mut self, back: usize, bump: u64) -> Option<Rc<Object>> {
        let old = self.past(back)?.clone();
        self.orders = old.seen.orders.clone();
        self.mark = old.seen.mark;
        self.marked_by = old.marked_by;
        self.described = old.seen.described.clone();
        if bump == 0 {
            self.revision = old.revision;
            self.current = Some(old.clone());
            return Some(old);
        }
        self.revision += bump;
        Some(self.put(
            old.seen.version.uid.clone(),
            old.seen.record.clone(),
            old.seen.fingerprint,
            old.seen.unreadable,
            old.author.map(|author| (author, old.sent)),
        ))
    }

    fn next_uid(&mut self) -> Arc<str> {
        self.uids += 1;
        format!("u{}", self.uids).into()
    }

    fn put(
        &mut self,
        uid: Arc<str>,
        record: Record,
        fingerprint: u64,
        unreadable: bool,
        author: Option<(u64, LocalTime)>,
    ) -> Rc<Object> {
        // Other objects of the store use revisions, too.
        self.revision += 1 + (self.records & 3);
        let object = Rc::new(Object {
            seen: Observation {
                version: Version {
                    uid,
                    revision: ResourceVersion::new(self.revision.to_string()),
                },
                record,
                fingerprint,
                unreadable,
                mark: self.mark,
                described: self.described.clone(),
                orders: self.orders.clone(),
            },
            revision: self.revision,
            marked_by: self.marked_by,
            author: author.map(|(author, _)| author),
            sent: author.map(|(_, sent)| sent).unwrap_or_default(),
            term: self.terms,
        });
        self.history.push(object.clone());
        self.current = Some(object.clone());
        object
    }
}
