//! Limits the connections of each address.
//!
//! The share of an address is seven times the number of free connections. A single address can therefore use seven
//! eighths of all connections. If an address exceeds its share, one of its idle connections is closed. If all of them
//! are busy, the new connection is closed.
//!
//! Connections to the owner's socket file have a separate limit, so that the administrator can act while the server is
//! overloaded.
//!
//! Invariant: the listener never waits for a client.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_host::address::network;

use super::connection::Link;
use crate::fairness::share::within;
use crate::fairness::{Gate, Rejection};

/// See [`within`].
const WEIGHT: u64 = 7;
/// Number of connections that may be closing, in addition to a quarter of the limit.
const CLOSING: usize = 64;
/// Number of connections of the socket file, in addition to the limit. Their descriptors belong to `OTHER_FILES`.
const SOCKET: usize = 64;
/// Maximum number of connections that are checked to find an idle one.
const MAX_CHECKED: usize = 64;

/// The origin of a connection; `None` for the socket file.
type Origin = Option<IpAddr>;

/// The open connections of a server.
pub(super) struct Connections {
    cap: usize,
    table: Mutex<Table>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Table {
    /// Number of open connections, including those that are being closed.
    open: usize,
    /// Connections that count against the limits, oldest first.
    all: BTreeMap<u64, Origin>,
    origins: HashMap<Origin, Links>,
    next: u64,
    /// Where the search for an idle connection continues.
    cursor: u64,
}

/// Connections of one address.
#[derive(Default)]
struct Links {
    links: BTreeMap<u64, Link>,
    /// Connections that were asked to close and are still open.
    closing: usize,
    /// Where the search for an idle connection continues.
    cursor: u64,
}

impl Connections {
    pub(super) fn new(cap: usize, gate: Arc<Gate>) -> Self {
        Self {
            cap,
            table: Mutex::default(),
            gate,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a new connection, or returns `None` if it must be closed.
    pub(super) fn admit(self: &Arc<Self>, address: Option<IpAddr>, link: &Link) -> Option<Permit> {
        let origin = address.map(network);
        let mut table = self.lock();
        // Connections that are being closed still have a descriptor.
        let most_closing = self.cap / 8 + CLOSING / 2;
        let most_open = self.cap + self.cap / 4 + CLOSING;
        let admitted = (origin.is_none() || table.open < most_open)
            && table.closing(origin) < most_closing
            && table.has_room(origin, self.cap);
        if !admitted {
            drop(table);
            self.gate.count(Rejection::Connections);
            tracing::debug!(
                ?address,
                "closed a connection above the share of its address"
            );
            return None;
        }
        let number = table.next;
        table.next += 1;
        table.open += 1;
        table.all.insert(number, origin);
        let own = table.origins.entry(origin).or_default();
        own.links.insert(number, link.clone());
        drop(table);
        Some(Permit {
            connections: Arc::clone(self),
            origin,
            number,
        })
    }

    /// Closes an idle connection, because the process has too many open files.
    pub(super) fn close_idle(&self) {
        self.lock().close_any();
    }
}

impl Table {
    /// Returns whether one more connection is within the limits, after closing an idle one if necessary.
    fn has_room(&mut self, origin: Origin, cap: usize) -> bool {
        let has = self.origins.get(&origin).map_or(0, |own| own.links.len());
        let (own, all) = (has as u64 + 1, self.all.len() as u64 + 1);
        if origin.is_some() && has > 0 && !within(own, all, cap as u64, WEIGHT) {
            return self.close_own(origin);
        }
        self.all.len() < cap
            || self.close_own(origin)
            || self.close_any()
            || (origin.is_none() && has < SOCKET)
    }

    /// Closes an idle connection of this address.
    fn close_own(&mut self, origin: Origin) -> bool {
        let Some(own) = self.origins.get_mut(&origin) else {
            return false;
        };
        let ahead = own.links.range(own.cursor..);
        let mut looked = ahead.chain(own.links.range(..own.cursor)).take(MAX_CHECKED);
        let mut last = own.cursor;
        let idle = looked.find_map(|(number, link)| {
            last = *number;
            link.busy.is_idle().then_some(*number)
        });
        own.cursor = last + 1;
        idle.is_some_and(|number| self.close(number))
    }

    /// Closes an idle connection of any address.
    fn close_any(&mut self) -> bool {
        let ahead = self.all.range(self.cursor..);
        let looked = ahead.chain(self.all.range(..self.cursor)).take(MAX_CHECKED);
        let (mut last, mut idle) = (self.cursor, None);
        for (number, origin) in looked {
            last = *number;
            let own = self.origins.get(origin);
            let link = own.and_then(|own| own.links.get(number));
            if link.is_some_and(|link| link.busy.is_idle()) {
                idle = Some(*number);
                break;
            }
        }
        self.cursor = last + 1;
        idle.is_some_and(|number| self.close(number))
    }

    /// Returns how many connections of this address are being closed.
    fn closing(&self, origin: Origin) -> usize {
        self.origins.get(&origin).map_or(0, |own| own.closing)
    }

    /// Asks a connection to close, and stops counting it.
    fn close(&mut self, number: u64) -> bool {
        let Some(origin) = self.all.remove(&number) else {
            return false;
        };
        let own = self.origins.entry(origin).or_default();
        let link = own.links.remove(&number);
        if let Some(link) = &link {
            own.closing += 1;
            link.close.notify_one();
        }
        link.is_some()
    }

    /// Removes a connection that is closed.
    fn remove(&mut self, origin: Origin, number: u64) {
        self.open -= 1;
        let counted = self.all.remove(&number).is_some();
        let Some(own) = self.origins.get_mut(&origin) else {
            return;
        };
        own.links.remove(&number);
        if !counted {
            own.closing = own.closing.saturating_sub(1);
        }
        if own.links.is_empty() && own.closing == 0 {
            self.origins.remove(&origin);
        }
    }
}

/// One open connection, until dropped.
pub(super) struct Permit {
    connections: Arc<Connections>,
    origin: Origin,
    number: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.connections.lock().remove(self.origin, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::{Fairness, Limits};

    fn connections(cap: usize) -> Arc<Connections> {
        let fairness = Fairness::new(Limits::default(), true);
        Arc::new(Connections::new(cap, Arc::clone(fairness.gate())))
    }

    fn address(last: u8) -> Origin {
        Some(IpAddr::from([127, 0, 0, last]))
    }

    /// Opens connections until one is closed. Busy connections are not closed in favour of others.
    fn open(
        connections: &Arc<Connections>,
        origin: Origin,
        busy: bool,
        most: usize,
    ) -> Vec<(Permit, Link, Option<super::super::body::BusyGuard>)> {
        let mut opened = Vec::new();
        for _ in 0..most {
            let link = Link::default();
            let Some(permit) = connections.admit(origin, &link) else {
                break;
            };
            let guard = busy.then(|| link.busy.begin());
            opened.push((permit, link, guard));
        }
        opened
    }

    #[tokio::test]
    async fn connections_of_one_address_leave_an_eighth_to_others() {
        let connections = connections(100);
        let attack = open(&connections, address(1), true, 1_000);
        assert_eq!(attack.len(), 87);
        let others = open(&connections, address(2), true, 1_000);
        assert_eq!(others.len(), 11);
        let (_, rejected) = connections.gate.rejections().last().unwrap();
        assert_eq!(rejected, 2);
        let socket = open(&connections, None, true, 1);
        assert_eq!(socket.len(), 1, "the owner is not limited by addresses");
        drop(attack);
        assert_eq!(open(&connections, address(3), true, 1_000).len(), 77);
    }

    #[tokio::test]
    async fn socket_file_has_connections_that_busy_addresses_cannot_take() {
        let connections = connections(20);
        let busy: Vec<_> = (1..=9)
            .flat_map(|last| open(&connections, address(last), true, 20))
            .collect();
        assert_eq!(connections.lock().all.len(), 20);
        assert!(open(&connections, address(10), true, 1).is_empty());
        let socket = open(&connections, None, true, 1_000);
        assert_eq!(socket.len(), SOCKET);
        drop(socket);
        assert_eq!(open(&connections, None, true, 1).len(), 1);
        drop(busy);
    }

    #[tokio::test]
    async fn connections_that_are_idle_are_closed_for_new_ones() {
        let connections = connections(10);
        let idle = open(&connections, address(1), false, 200);
        // Connections that were asked to close still have a descriptor.
        assert_eq!(idle.len(), 8 + 10 / 8 + CLOSING / 2);
        assert!(open(&connections, address(1), false, 1).is_empty());
        assert_eq!(open(&connections, address(2), false, 1).len(), 1);
        assert_eq!(connections.lock().all.len(), 8);
        assert_eq!(connections.lock().closing(address(1)), 1 + CLOSING / 2);
        let (_, first, _) = &idle[0];
        let closed = first.close.notified();
        tokio::time::timeout(std::time::Duration::from_secs(10), closed)
            .await
            .unwrap();
        drop(idle);
        assert_eq!(connections.lock().open, 0);
        assert!(connections.lock().origins.is_empty());
        connections.close_idle();
        assert_eq!(open(&connections, address(1), false, 1).len(), 1);
    }
}
