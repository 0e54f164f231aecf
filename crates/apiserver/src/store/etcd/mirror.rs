//! The task that keeps the published state equal to the content of etcd.
//!
//! It reads everything once, at one revision, and then follows with one watch. If the connection breaks, it connects to
//! the next member. The watch continues after the last observed revision, so no event is missed or repeated.
//!
//! Everything is read again in two cases: etcd compacted the missing events, or one foreign transaction changed several
//! objects at one revision. All running watches of clients then expire, because they missed events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::NUDGE;
use super::client::{ANSWER, CallError, Client, message, within};
use super::format::{Layout, Names, decode, removed};
use super::link::Link;
use super::own::Own;
use super::wire::{
    DELETED, Done, Header, KeyValue, PUT, PutRequest, RANGE, RangeRequest, RangeResponse,
    WatchCreate, WatchEvent, WatchResponse,
};
use crate::store::durable::format::Unreadable;
use crate::store::encryption::Encryption;
use crate::store::mvcc::{Followed, Mvcc};

/// Page size of the first read. It is small, because values may be large and a page has a time limit.
const PAGE: i64 = 100;
/// Interval of probes on a quiet connection.
const PROBE: Duration = Duration::from_secs(3);
/// First pause between connection attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Feeds the published state.
#[derive(Debug)]
pub(super) struct Mirror {
    client: Arc<Client>,
    mvcc: Arc<Mvcc>,
    own: Arc<Own>,
    layout: Layout,
    encryption: Encryption,
    names: Names,
    /// Cluster id of the etcd that was read first. Another cluster has another history.
    cluster: Option<u64>,
    loaded: watch::Sender<Loaded>,
}

/// Progress of the first read.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    /// Largest number of pages of one attempt.
    pages: usize,
    /// Whether everything was read.
    pub(super) whole: bool,
    /// An object whose key is missing.
    pub(super) locked: Option<String>,
}

/// Marks the connection as lost when the mirror task ends for any reason, so that a stale mirror is never used.
struct Ended(Arc<Client>);

impl Drop for Ended {
    fn drop(&mut self) {
        if self.0.trouble().is_none() {
            self.0
                .down("the watch of etcd has stopped; restart this server".to_owned());
        }
    }
}

/// The reason why following ended.
enum End {
    /// The connection was lost; following can resume.
    Lost(String),
    /// The history has a gap; everything must be read again.
    Gap(String),
}

impl Mirror {
    pub(super) fn new(
        client: &Arc<Client>,
        mvcc: &Arc<Mvcc>,
        own: &Arc<Own>,
        layout: Layout,
        encryption: Encryption,
    ) -> Self {
        Self {
            client: Arc::clone(client),
            mvcc: Arc::clone(mvcc),
            own: Arc::clone(own),
            layout,
            encryption,
            names: Names::default(),
            cluster: None,
            loaded: watch::Sender::default(),
        }
    }

    /// Subscribes to the progress of the first read.
    pub(super) fn loaded(&self) -> watch::Receiver<Loaded> {
        self.loaded.subscribe()
    }

    /// Follows etcd until dropped.
    pub(super) async fn run(mut self) {
        let _ended = Ended(Arc::clone(&self.client));
        let (mut whole, mut first, mut pause) = (false, 0, FIRST_PAUSE);
        loop {
            let why = match self.client.connect(first).await {
                Err(why) => why,
                Ok((number, link, header)) => {
                    let before = self.mvcc.revision();
                    let end = self.follow(&link, &header, &mut whole).await;
                    if self.mvcc.revision() > before {
                        pause = FIRST_PAUSE;
                    }
                    first = number + 1;
                    let (End::Lost(why) | End::Gap(why)) = &end;
                    if matches!(end, End::Gap(_)) {
                        tracing::warn!(why, "reading everything from etcd again");
                        (whole, first) = (false, number);
                    }
                    format!("{}: {why}", self.client.name(number))
                }
            };
            tracing::debug!(why, "not connected to etcd");
            self.client.down(why);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Follows over one connection. `whole` says that nothing is missing before the published revision.
    async fn follow(&mut self, link: &Link, header: &Header, whole: &mut bool) -> End {
        if let Err(why) = self.check_history(header) {
            return End::Lost(why);
        }
        if !*whole {
            if let Err(why) = self.load(link).await {
                return End::Lost(why);
            }
            *whole = true;
            self.loaded.send_modify(|loaded| loaded.whole = true);
        }
        let (key, range_end) = self.layout.everything();
        let create = WatchCreate {
            key,
            range_end,
            start_revision: signed(self.mvcc.revision()).saturating_add(1),
        };
        let mut watch = match timeout(ANSWER, link.watch(create)).await {
            Err(_) => return End::Lost("the watch did not start in time".to_owned()),
            Ok(Err(status)) => return End::Lost(message(&status)),
            Ok(Ok(watch)) => watch,
        };
        let monitor = monitor(
            Arc::clone(&self.client),
            Arc::clone(&self.mvcc),
            link,
            unsigned(header.revision),
            self.layout.nudge(),
        );
        let follow = async {
            loop {
                let news = watch.next().await;
                // Lets pending responses of own writes be published first, so that these events need no decoding.
                tokio::task::yield_now().await;
                let end = match news {
                    Ok(Some(news)) => self.take(news).err(),
                    Ok(None) => Some(End::Lost("etcd ended the watch".to_owned())),
                    Err(status) => Some(End::Lost(message(&status))),
                };
                if let Some(end) = end {
                    return end;
                }
            }
        };
        tokio::select! {
            end = follow => end,
            why = monitor => End::Lost(why),
        }
    }

    /// Checks that this is the same etcd and that its revision did not go back.
    fn check_history(&mut self, header: &Header) -> Result<(), String> {
        let cluster = *self.cluster.get_or_insert(header.cluster_id);
        if cluster != header.cluster_id {
            return Err(format!(
                "the cluster id changed from {cluster:x} to {:x}; restart this server",
                header.cluster_id
            ));
        }
        let (there, here) = (unsigned(header.revision), self.mvcc.revision());
        if there < here {
            return Err(format!(
                "the revision of etcd went back from {here} to {there}: etcd lost data or was restored; \
                 restart this server"
            ));
        }
        Ok(())
    }

    /// Reads everything at one revision.
    async fn load(&mut self, link: &Link) -> Result<(), String> {
        let (mut key, range_end) = self.layout.objects();
        let (mut revision, mut entries) = (0, Vec::new());
        for pages in 1.. {
            let request = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                limit: PAGE,
                revision,
                ..RangeRequest::default()
            };
            let page: Result<RangeResponse, Status> =
                match timeout(ANSWER, link.call(RANGE, &request)).await {
                    Err(_) => return Err("no answer to the first read".to_owned()),
                    Ok(page) => page,
                };
            let page = match page {
                Err(status) if status.code() == Code::OutOfRange && revision > 0 => {
                    // etcd compacted the revision between two pages; start again.
                    (revision, key) = (0, self.layout.objects().0);
                    entries.clear();
                    continue;
                }
                other => other.map_err(|status| message(&status))?,
            };
            self.loaded.send_if_modified(|loaded| {
                let more = pages > loaded.pages;
                loaded.pages = loaded.pages.max(pages);
                more
            });
            if revision == 0 {
                revision = page.header.as_ref().map_or(0, |header| header.revision);
            }
            if let Some(last) = page.kvs.last() {
                let mut after = last.key.to_vec();
                after.push(0);
                key = Bytes::from(after);
            }
            for found in &page.kvs {
                if let Some(object) = self.layout.key(&found.key, &mut self.names) {
                    let revision = unsigned(found.mod_revision);
                    let entry = decode(object?, revision, &found.value, &self.encryption);
                    entries.push(entry.map_err(|error| self.unreadable(error))?);
                }
            }
            if !page.more {
                break;
            }
        }
        self.mvcc.replace(entries, unsigned(revision));
        Ok(())
    }

    /// Returns the reason why a value cannot be read. A missing key ends the first read, because a retry cannot
    /// succeed.
    fn unreadable(&self, error: Unreadable) -> String {
        let why = error.to_string();
        if let Unreadable::Locked(what) = error {
            self.loaded.send_modify(|loaded| loaded.locked = Some(what));
        }
        why
    }

    /// Publishes the events of a watch response.
    fn take(&mut self, news: WatchResponse) -> Result<(), End> {
        if news.canceled {
            return Err(if news.compact_revision > 0 {
                let compacted = news.compact_revision;
                End::Gap(format!(
                    "etcd has compacted its history up to revision {compacted}"
                ))
            } else {
                End::Lost(format!("etcd ended the watch: {}", news.cancel_reason))
            });
        }
        let (mut changes, mut revision) = (Vec::<Followed>::new(), 0);
        let published = self.mvcc.revision();
        for event in news.events {
            let WatchEvent { kind, kv: Some(kv) } = event else {
                continue;
            };
            let at = unsigned(kv.mod_revision);
            revision = at.max(revision);
            let own = self.own.take(at);
            if at <= published {
                continue;
            }
            let change = match own {
                Some(own) => Some(own),
                None => self.change(kind, &kv).map_err(End::Gap)?,
            };
            let Some(change) = change else {
                continue;
            };
            if changes
                .last()
                .is_some_and(|last| last.revision == change.revision)
            {
                return Err(End::Gap(format!(
                    "one transaction at revision {revision} changed several objects"
                )));
            }
            changes.push(change);
        }
        self.mvcc.follow(changes, revision, removed);
        Ok(())
    }

    fn change(&mut self, kind: i32, kv: &KeyValue) -> Result<Option<Followed>, String> {
        let Some(key) = self.layout.key(&kv.key, &mut self.names) else {
            return Ok(None);
        };
        let (key, revision) = (key?, unsigned(kv.mod_revision));
        let entry = if kind == DELETED {
            None
        } else {
            let entry = decode(key.clone(), revision, &kv.value, &self.encryption);
            Some(entry.map_err(|error| error.to_string())?)
        };
        Ok(Some(Followed {
            key,
            revision,
            entry,
        }))
    }
}

/// Enables the connection for calls when the mirror has reached etcd's revision. Returns the reason when etcd loses
/// its majority or the watch stalls, even if there are no requests.
async fn monitor(
    client: Arc<Client>,
    mvcc: Arc<Mvcc>,
    link: &Link,
    mut revision: u64,
    nudge: Bytes,
) -> String {
    let mut up = false;
    loop {
        if let Err(why) = reach(&mvcc, link, revision, &nudge).await {
            return why;
        }
        if !up {
            client.up(link.clone());
            up = true;
        }
        tokio::time::sleep(PROBE).await;
        match client.now(link).await {
            Ok(header) => revision = unsigned(header.revision),
            Err(why) => return why,
        }
    }
}

/// Waits until the watch brings the mirror to a revision. A revision of another prefix is reached by a write of the
/// nudge key.
async fn reach(mvcc: &Mvcc, link: &Link, revision: u64, nudge: &Bytes) -> Result<(), String> {
    if timeout(NUDGE, mvcc.reached(revision)).await.is_ok() {
        return Ok(());
    }
    let request = PutRequest {
        key: nudge.clone(),
        value: Bytes::new(),
    };
    let nudged: Result<Done, Status> = within(ANSWER, link.call(PUT, &request)).await?;
    match nudged.map_err(CallError::of) {
        Ok(_) => {}
        // If the write fails, for example because etcd is full, a stalled watch looks like a quiet one.
        Err(CallError::Refused(_) | CallError::Full(_)) => return Ok(()),
        Err(error) => return Err(error.reason()),
    }
    loop {
        let before = mvcc.revision();
        if timeout(ANSWER, mvcc.reached(revision)).await.is_ok() {
            return Ok(());
        }
        if mvcc.revision() == before {
            return Err("its watch delivers no events".to_owned());
        }
    }
}

/// Converts a revision of etcd, which is never negative.
pub(super) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

pub(super) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}
