//! Limits the connections of an HTTP listener, so that one client cannot exclude others. A connection occupies one
//! seat.
//!
//! | seat | for | all clients | one address |
//! |---|---|---|---|
//! | short | a connection that waits for a request or gets a response of bounded size | 128 | 32 |
//! | stream | an open event stream | 512 | 256 |
//!
//! Clients of a unix socket have no limit per address, because the mode of the socket file decides who may connect.
//!
//! Invariants:
//! - A new connection always gets a short seat. If there is none, the oldest connection of the most crowded address is closed.
//! - A stream never holds a short seat, so that streams cannot delay probes.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::address::network;

/// Maximum number of connections without a stream: of all clients, and of one address.
const SHORT: (usize, usize) = (128, 32);
/// Maximum number of streams: of all clients, and of one address.
const STREAMS: (usize, usize) = (512, 256);

/// The network of a client; `None` for a unix socket.
type Client = Option<IpAddr>;

/// Counts open streams.
#[derive(Debug)]
pub struct Streams {
    most: usize,
    most_each: usize,
    open: Mutex<HashMap<Client, usize>>,
}

/// An open stream, until dropped.
#[derive(Debug)]
pub struct StreamSeat {
    streams: Arc<Streams>,
    client: Client,
}

impl Streams {
    /// Allows `most` streams, and `most_each` of one address.
    #[must_use]
    pub fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_each,
            open: Mutex::default(),
        })
    }

    /// Counts a stream, or returns `None` if the client must try later.
    pub fn take(self: &Arc<Self>, address: Option<IpAddr>) -> Option<StreamSeat> {
        let client = address.map(network);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // One entry per address with an open stream, so at most `most`.
        let all: usize = open.values().sum();
        let own = open.get(&client).copied().unwrap_or_default();
        if all >= self.most || (client.is_some() && own >= self.most_each) {
            return None;
        }
        open.insert(client, own + 1);
        Some(StreamSeat {
            streams: Arc::clone(self),
            client,
        })
    }
}

impl Drop for StreamSeat {
    fn drop(&mut self) {
        let open = self.streams.open.lock();
        let mut open = open.unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = open.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.client);
            }
        }
    }
}

/// The seats of all listeners of a process.
#[derive(Debug)]
pub struct Seats {
    streams: Arc<Streams>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Connections without a stream, oldest first.
    short: BTreeMap<u64, (Client, Arc<Notify>)>,
}

impl Seats {
    /// Returns the seats of a process, all free.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            streams: Streams::new(STREAMS.0, STREAMS.1),
            table: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seats a new connection. Closes another connection if too many are open.
    #[must_use]
    pub fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Arc<Seat> {
        let client = address.map(network);
        let close = Arc::new(Notify::new());
        let mut table = self.lock();
        let surplus = table.surplus(client);
        if let Some((_, close)) = surplus.and_then(|number| table.short.remove(&number)) {
            close.notify_one();
        }
        let number = table.next;
        table.next += 1;
        table.short.insert(number, (client, Arc::clone(&close)));
        drop(table);
        Arc::new(Seat {
            seats: Arc::clone(self),
            address,
            number,
            close,
        })
    }
}

impl Table {
    /// Returns the connection that a new connection of this client replaces.
    fn surplus(&self, client: Client) -> Option<u64> {
        // At most `SHORT.0` entries.
        let mut crowds: HashMap<Client, (usize, u64)> = HashMap::new();
        for (number, (client, _)) in &self.short {
            crowds.entry(*client).or_insert((0, *number)).0 += 1;
        }
        let own = crowds.get(&client);
        if let Some((_, oldest)) = own.filter(|(count, _)| client.is_some() && *count >= SHORT.1) {
            return Some(*oldest);
        }
        if self.short.len() < SHORT.0 {
            return None;
        }
        let crowded = crowds.into_values().max_by_key(|(count, _)| *count);
        crowded.map(|(_, oldest)| oldest)
    }
}

/// One open connection, until dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    address: Option<IpAddr>,
    number: u64,
    close: Arc<Notify>,
}

impl Seat {
    /// Returns the address of the client; `None` for a client of a unix socket.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Resolves when the connection must end in favour of another one.
    pub async fn replaced(&self) {
        self.close.notified().await;
    }

    /// Exchanges the short seat for that of a stream, or returns `None` if the client must try later. The connection must
    /// end with the stream.
    pub fn stream(&self) -> Option<StreamSeat> {
        let stream = self.seats.streams.take(self.address)?;
        self.leave();
        Some(stream)
    }

    fn leave(&self) {
        self.seats.lock().short.remove(&self.number);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([127, 0, 0, last]))
    }

    async fn is_replaced(seat: &Seat) -> bool {
        let moment = Duration::from_millis(10);
        tokio::time::timeout(moment, seat.replaced()).await.is_ok()
    }

    #[tokio::test]
    async fn new_connection_replaces_the_oldest_of_its_address() {
        let seats = Seats::new();
        let other = seats.admit(address(2));
        let own: Vec<_> = (0..=SHORT.1).map(|_| seats.admit(address(1))).collect();
        assert!(is_replaced(&own[0]).await);
        assert!(!is_replaced(&own[1]).await && !is_replaced(&other).await);
        drop(own);
        assert_eq!(seats.lock().short.len(), 1);
    }

    #[tokio::test]
    async fn new_connection_replaces_one_of_the_most_crowded_address() {
        let seats = Seats::new();
        let socket: Vec<_> = (0..SHORT.0 - 1).map(|_| seats.admit(None)).collect();
        let first = seats.admit(address(1));
        let second = seats.admit(address(2));
        assert!(is_replaced(&socket[0]).await, "the socket has the most");
        assert!(!is_replaced(&first).await && !is_replaced(&second).await);
        assert_eq!(seats.lock().short.len(), SHORT.0);
    }

    #[tokio::test]
    async fn streams_hold_no_short_seat_and_leave_half_to_other_addresses() {
        let seats = Seats::new();
        let open = |client, count: usize| -> Vec<_> {
            let opened = (0..count).map(|_| seats.admit(client));
            opened
                .filter_map(|seat| Some((seat.stream()?, seat)))
                .collect()
        };
        let first = open(address(1), 600);
        assert_eq!(first.len(), STREAMS.1);
        let second = open(address(2), 600);
        assert_eq!(second.len(), STREAMS.0 - STREAMS.1);
        assert!(open(address(3), 1).is_empty());
        assert!(seats.lock().short.is_empty());
        drop(first);
        assert_eq!(open(None, 600).len(), STREAMS.0 - second.len());
        drop(second);
        assert!(seats.streams.open.lock().unwrap().is_empty());
    }
}
