//! The two tables: a log of recent batches, and the objects whose last write has left the log.
//!
//! One batch is one row at the end of the log, so a commit writes a few adjacent pages regardless of the number of
//! objects. When the log exceeds its size, its oldest batches are folded into the objects. Folding skips an object that
//! a later batch contains. Leases that are renewed continuously stay in the log and never reach the other table.
//!
//! Invariant: the content is the objects, changed by the batches of the log in order. The last batch contains the
//! number of objects and the sum of their fingerprints.

use std::collections::{HashMap, VecDeque};

use redb::{
    Database, ReadableDatabase, ReadableTable, Table, TableDefinition, TableError, WriteTransaction,
};

use super::format::{self, Change, Records, State, Summary};
use super::trouble::Trouble;
use crate::store::batch::Entry;
use crate::store::encryption::Encryption;

const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");

/// Size of the log: about twenty thousand renewals.
pub(super) const LOG_BYTES: usize = 16 << 20;
/// The log is folded when it exceeds its size by 1/`SLACK`. A smaller value folds less often, which is cheaper in
/// total but delays the folding commit for longer.
const SLACK: usize = 64;

/// Numbers and sizes of the batches in the log.
#[derive(Debug)]
pub(super) struct Journal {
    batches: VecDeque<(u64, usize)>,
    bytes: usize,
    limit: usize,
}

/// The content of a database file.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) journal: Journal,
    pub(super) state: State,
    pub(super) entries: Vec<Entry>,
    /// Number of entries that are not encrypted as configured.
    pub(super) outdated: usize,
}

/// An encoded key and its record.
pub(super) type Row = (Vec<u8>, Vec<u8>);

impl Journal {
    /// Creates an empty log with a limit of `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    /// Returns the number of the last batch.
    pub(super) fn last(&self) -> Option<u64> {
        self.batches.back().map(|(number, _)| *number)
    }

    /// Returns the number of the next batch.
    pub(super) fn next(&self) -> u64 {
        self.last().map_or(1, |last| last + 1)
    }

    /// Appends a batch in a transaction. [`Journal::committed`] records it in this journal.
    pub(super) fn append(
        &self,
        transaction: &WriteTransaction,
        batch: &[u8],
        latest: impl Fn(&[u8]) -> Option<u64>,
    ) -> Result<Appended, Trouble> {
        let mut log = transaction.open_table(LOG)?;
        let number = self.next();
        let mut appended = Appended {
            number,
            bytes: batch.len(),
            folded: 0,
        };
        log.insert(number, batch)?;
        let mut excess = (self.bytes + batch.len()).saturating_sub(self.limit);
        if excess > self.limit / SLACK {
            let mut objects = transaction.open_table(OBJECTS)?;
            for (number, bytes) in &self.batches {
                fold(&mut log, &mut objects, *number, &latest)?;
                appended.folded += 1;
                excess = excess.saturating_sub(*bytes);
                if excess == 0 {
                    break;
                }
            }
        }
        Ok(appended)
    }

    /// Records an appended batch after its transaction is durable.
    pub(super) fn committed(&mut self, appended: Appended) {
        for (_, bytes) in self.batches.drain(..appended.folded) {
            self.bytes -= bytes;
        }
        self.batches.push_back((appended.number, appended.bytes));
        self.bytes += appended.bytes;
    }
}

/// The effect of an append on the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Appended {
    number: u64,
    bytes: usize,
    folded: usize,
}

/// Moves the latest versions from the oldest batches to the objects.
fn fold(
    log: &mut Table<'_, u64, &'static [u8]>,
    objects: &mut Table<'_, &'static [u8], &'static [u8]>,
    number: u64,
    latest: impl Fn(&[u8]) -> Option<u64>,
) -> Result<(), Trouble> {
    let missing = || Trouble::Damaged(format!("batch {number} is missing"));
    let batch = log.remove(number)?.ok_or_else(missing)?;
    for change in format::changes(batch.value()) {
        let Change { key, record } = change.map_err(Trouble::Damaged)?;
        match (record, latest(key)) {
            (Some(record), Some(revision)) if format::revision(record) == Some(revision) => {
                objects.insert(key, record)?;
            }
            (None, None) => {
                objects.remove(key)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes objects of a new store.
pub(super) fn fill(transaction: &WriteTransaction, rows: &[Row]) -> Result<(), Trouble> {
    let mut objects = transaction.open_table(OBJECTS)?;
    for (key, record) in rows {
        objects.insert(key.as_slice(), record.as_slice())?;
    }
    Ok(())
}

/// Returns number and state of the last batch; `None` if nothing was ever committed.
pub(super) fn last(database: &Database) -> Result<Option<(u64, State)>, Trouble> {
    let log = match database.begin_read()?.open_table(LOG) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        log => log?,
    };
    let (number, batch) = log
        .last()?
        .ok_or_else(|| Trouble::Damaged("the log is empty".into()))?;
    Ok(Some((
        number.value(),
        format::decode_batch(number.value(), batch.value())?,
    )))
}

/// Reads and checks everything; `None` if nothing was ever committed.
pub(super) fn load(
    database: &Database,
    log_bytes: usize,
    encryption: &Encryption,
) -> Result<Option<Content>, Trouble> {
    let Some((_, state)) = last(database)? else {
        return Ok(None);
    };
    let expected = usize::try_from(state.objects.count).unwrap_or(0);
    let mut entries = Vec::with_capacity(expected.min(1 << 20));
    let mut records = Records::new(encryption);
    let (mut found, mut outdated) = (Summary::default(), 0);
    let journal = scan(database, log_bytes, |key, record| {
        let (entry, id) = records.decode(key, record)?;
        outdated += usize::from(id != encryption.key_for(&entry.object.key.resource));
        found.add(&entry.object);
        entries.push(entry);
        Ok(())
    })?;
    check_complete(found, &state)?;
    Ok(Some(Content {
        journal,
        state,
        entries,
        outdated,
    }))
}

/// Calls `each` with the encoded key and the record of every object. Checks the log and holds it in memory; objects are
/// streamed. `each` checks the records.
pub(super) fn scan(
    database: &Database,
    log_bytes: usize,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), Trouble>,
) -> Result<Journal, Trouble> {
    let transaction = database.begin_read()?;
    let mut journal = Journal::new(log_bytes);
    // Keys are encoded, as in both tables.
    let mut recent: HashMap<Vec<u8>, Option<Vec<u8>>> = HashMap::new();
    for row in transaction.open_table(LOG)?.iter()? {
        let (number, batch) = row?;
        let (number, batch) = (number.value(), batch.value());
        format::decode_batch(number, batch)?;
        if journal.last().is_some_and(|last| last + 1 != number) {
            return Err(Trouble::Damaged(format!(
                "the batch before {number} is missing"
            )));
        }
        journal.batches.push_back((number, batch.len()));
        journal.bytes += batch.len();
        for change in format::changes(batch) {
            let Change { key, record } = change.map_err(Trouble::Damaged)?;
            recent.insert(key.to_owned(), record.map(<[u8]>::to_vec));
        }
    }
    match transaction.open_table(OBJECTS) {
        Err(TableError::TableDoesNotExist(_)) => {}
        objects => {
            for row in objects?.iter()? {
                let (key, record) = row?;
                if !recent.contains_key(key.value()) {
                    each(key.value(), record.value())?;
                }
            }
        }
    }
    for (key, record) in recent {
        if let Some(record) = record {
            each(&key, &record)?;
        }
    }
    Ok(journal)
}

/// Checks that all committed objects were found.
pub(super) fn check_complete(found: Summary, state: &State) -> Result<(), Trouble> {
    if found == state.objects {
        return Ok(());
    }
    let (there, should) = (found.count, state.objects.count);
    Err(Trouble::Damaged(format!(
        "found {there} objects, which differ from the {should} committed objects"
    )))
}
