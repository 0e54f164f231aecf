//! Calls to the connected member of etcd. An error of a call states whether the call may have changed data.
//!
//! Invariant: a call that may have reached etcd is never sent again from here. The error says whether nothing was
//! changed or the outcome is unknown.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use rustls::ClientConfig;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::config::Endpoint;
use super::link::Link;
use super::wire::{
    COMPACT, CompactionRequest, Done, Header, PUT, PutRequest, RANGE, RangeRequest, RangeResponse,
    TXN, TxnRequest, TxnResponse,
};
use crate::store::WriteError;

/// Timeout of a call.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_secs(3);
/// Time that a call waits for a new connection. A restart of etcd or a change of the member therefore delays a call and
/// does not fail it.
const RECONNECT: Duration = Duration::from_secs(2);

/// Error of a call.
#[derive(Clone, Debug)]
pub(super) enum CallError {
    /// The call was not sent; nothing was changed.
    NotSent(String),
    /// etcd rejected the call; nothing was changed.
    Refused(Status),
    /// etcd has no space. etcd reports this both instead of a transaction and after an applied one.
    Full(String),
    /// The call was sent, and its outcome is unknown.
    Unknown(String),
}

/// The members of etcd and the current connection to one of them.
#[derive(Debug)]
pub(super) struct Client {
    endpoints: Vec<Endpoint>,
    tls: Option<Arc<ClientConfig>>,
    /// Key that is read to learn the revision of etcd. It is below the prefix, where reading is allowed.
    asked: Bytes,
    state: watch::Sender<Connection>,
}

#[derive(Clone, Debug)]
enum Connection {
    Up(Link),
    Down(String),
}

impl Client {
    pub(super) fn new(
        endpoints: Vec<Endpoint>,
        tls: Option<Arc<ClientConfig>>,
        asked: Bytes,
    ) -> Self {
        let why = "not connected yet".to_owned();
        Self {
            endpoints,
            tls,
            asked,
            state: watch::Sender::new(Connection::Down(why)),
        }
    }

    /// Connects to the first member, starting with number `first`, that answers a linearizable read. A member that is
    /// cut off from the others does not answer one. Also returns the number of the member.
    pub(super) async fn connect(&self, first: usize) -> Result<(usize, Link, Header), String> {
        let mut reasons = Vec::new();
        for offset in 0..self.endpoints.len() {
            let number = (first + offset) % self.endpoints.len();
            let endpoint = &self.endpoints[number];
            let open = async {
                let link = within(CONNECT, Link::open(endpoint, self.tls.as_ref())).await??;
                let header = self.now(&link).await?;
                Ok::<_, String>((number, link, header))
            };
            match open.await {
                Ok(open) => return Ok(open),
                Err(why) => reasons.push(format!("{}: {why}", self.name(number))),
            }
        }
        Err(reasons.join("; "))
    }

    /// Reads the revision of etcd with a linearizable read.
    pub(super) async fn now(&self, link: &Link) -> Result<Header, String> {
        let answer: RangeResponse = within(ANSWER, link.call(RANGE, &self.question()))
            .await?
            .map_err(|status| message(&status))?;
        answer
            .header
            .ok_or_else(|| "the response has no revision".to_owned())
    }

    /// Like [`Client::now`], on the current connection.
    pub(super) async fn revision(&self) -> Result<i64, CallError> {
        let answer: RangeResponse = self.call(RANGE, &self.question()).await?;
        Ok(answer.header.unwrap_or_default().revision)
    }

    fn question(&self) -> RangeRequest {
        RangeRequest {
            key: self.asked.clone(),
            count_only: true,
            ..RangeRequest::default()
        }
    }

    /// Returns the name of a member for messages.
    pub(super) fn name(&self, number: usize) -> String {
        let Endpoint {
            tls, host, port, ..
        } = &self.endpoints[number];
        let scheme = if *tls { "https" } else { "http" };
        format!("{scheme}://{host}:{port}")
    }

    /// Sets the connection for later calls.
    pub(super) fn up(&self, link: Link) {
        self.state.send_replace(Connection::Up(link));
    }

    /// Removes the connection, with the reason.
    pub(super) fn down(&self, why: String) {
        self.state.send_replace(Connection::Down(why));
    }

    /// Returns the reason if there is no connection.
    pub(super) fn trouble(&self) -> Option<String> {
        match &*self.state.borrow() {
            Connection::Up(_) => None,
            Connection::Down(why) => Some(why.clone()),
        }
    }

    async fn link(&self) -> Result<Link, CallError> {
        let up = |state: &Connection| matches!(state, Connection::Up(_));
        if !up(&self.state.borrow()) {
            let mut state = self.state.subscribe();
            let _ = timeout(RECONNECT, state.wait_for(up)).await;
        }
        match &*self.state.borrow() {
            Connection::Up(link) if !link.is_closed() => Ok(link.clone()),
            Connection::Up(_) => Err(CallError::NotSent("the connection was lost".to_owned())),
            Connection::Down(why) => Err(CallError::NotSent(why.clone())),
        }
    }

    async fn call<Q, A>(&self, path: &'static str, message: &Q) -> Result<A, CallError>
    where
        Q: Message,
        A: Message + Default,
    {
        let link = self.link().await?;
        match timeout(ANSWER, link.call(path, message)).await {
            Err(_) => Err(CallError::Unknown(silence())),
            Ok(Err(status)) => Err(CallError::of(status)),
            Ok(Ok(answer)) => Ok(answer),
        }
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, CallError> {
        self.call(RANGE, &request).await
    }

    pub(super) async fn put(&self, request: PutRequest) -> Result<Done, CallError> {
        self.call(PUT, &request).await
    }

    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, CallError> {
        self.call(TXN, &request).await
    }

    /// Compacts the history below a revision. Succeeds if another client already did.
    pub(super) async fn compact(&self, revision: i64) -> Result<(), CallError> {
        let done: Result<Done, _> = self.call(COMPACT, &CompactionRequest { revision }).await;
        match done {
            Err(CallError::Refused(status)) if status.code() == Code::OutOfRange => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, String> {
    timeout(limit, work)
        .await
        .map_err(|_| format!("no answer within {} s", limit.as_secs()))
}

fn silence() -> String {
    format!("no answer within {} s", ANSWER.as_secs())
}

/// Returns etcd's message, or the name of the code if the message is empty.
pub(super) fn message(status: &Status) -> String {
    if status.message().is_empty() {
        format!("{:?}", status.code())
    } else {
        status.message().to_owned()
    }
}

impl CallError {
    pub(super) fn of(status: Status) -> Self {
        match status.code() {
            Code::ResourceExhausted if status.message().contains("database space exceeded") => {
                Self::Full(message(&status))
            }
            // etcd returns these before it makes a proposal, or instead of applying one.
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => Self::Refused(status),
            _ => Self::Unknown(message(&status)),
        }
    }

    /// Converts the error to that of a write.
    pub(super) fn into_write_error(self) -> WriteError {
        match self {
            Self::NotSent(why) => WriteError::Unavailable(format!("etcd: {why}")),
            Self::Unknown(why) | Self::Full(why) => WriteError::Unknown(format!("etcd: {why}")),
            Self::Refused(status) => {
                let why = message(&status);
                match status.code() {
                    _ if why.contains("request is too large")
                        || why.contains("larger than max") =>
                    {
                        WriteError::TooLarge(format!("etcd: {why}"))
                    }
                    Code::ResourceExhausted if why.contains("too many requests") => {
                        WriteError::Busy
                    }
                    Code::InvalidArgument => WriteError::Invalid(format!("etcd: {why}")),
                    _ => WriteError::Unavailable(format!("etcd rejected the request: {why}")),
                }
            }
        }
    }

    /// Converts the error to the reason of a failed read.
    pub(super) fn reason(self) -> String {
        match self {
            Self::NotSent(why) | Self::Unknown(why) | Self::Full(why) => format!("etcd: {why}"),
            Self::Refused(status) => format!("etcd rejected the request: {}", message(&status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_errors_map_to_write_errors_of_the_same_certainty() {
        let error = |code, why: &str| CallError::of(Status::new(code, why)).into_write_error();
        let full = "etcdserver: mvcc: database space exceeded";
        let large = "etcdserver: request is too large";
        let larger = "grpc: received message larger than max (2500000 vs. 2097152)";
        let many = "etcdserver: too many requests";
        let exhausted = Code::ResourceExhausted;
        assert!(matches!(error(exhausted, full), WriteError::Unknown(_)));
        assert!(matches!(error(exhausted, larger), WriteError::TooLarge(_)));
        assert!(matches!(error(exhausted, many), WriteError::Busy));
        let large = error(Code::InvalidArgument, large);
        assert!(matches!(large, WriteError::TooLarge(_)));
        let down = error(Code::Unavailable, "etcdserver: leader changed");
        assert!(matches!(down, WriteError::Unknown(_)));
    }
}
