//! Watches: a stream of events. It starts with the current state if the client requests that, and then follows the
//! history without gaps.
//!
//! Errors after the response headers are sent as ERROR events in the stream. A client that receives `410 Expired` there
//! must list again.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

use super::list::catch_up;
use super::metrics::Watching;
use super::options::{ListOptions, Selection};
use super::pieces::Pieces;
use super::render::View;
use crate::fairness::{Charge, HEAVY, Resource, Tenant};
use crate::status::Failure;
use crate::store::{self, Event, EventKind, Listing, Object, Range, Store, WatchEnd, Window};

/// Approximate size of one chunk of the response.
const CHUNK: usize = 64 * 1024;
/// Number of unread bytes that a watch may have without a charge: a few events of a Lease.
const UNCOUNTED: usize = 4 * 1024;
/// Maximum number of objects or events that are processed before the task yields; fewer if they have more than
/// [`HEAVY`] bytes.
const TURN: usize = 256;
/// Maximum number of objects that a runtime thread lists at the start of a watch.
const SHORT_LIST: usize = 4_096;
/// Interval between bookmarks.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// Time between the last bookmark and the end of the watch.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// A running watch.
pub(super) struct Feed {
    store: Arc<dyn Store>,
    range: Range,
    view: View,
    selection: Selection,
    empty: Arc<Value>,
    phase: Phase,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    shutdown: Receiver<bool>,
    sent_first: bool,
    _counted: Watching,
    /// The shares of the user, if the server limits them.
    tenant: Option<Tenant>,
    /// Bytes that were passed to the connection and are not sent yet.
    unread: Arc<AtomicUsize>,
}

enum Phase {
    /// Nothing was sent.
    Start {
        state: bool,
        after: Option<u64>,
        mark_end: bool,
        /// The minimum revision of the state. `None` requires every write that was acknowledged before.
        at_least: Option<u64>,
    },
    /// The state is being sent.
    Initial {
        objects: std::vec::IntoIter<Arc<Object>>,
        watch: Box<dyn store::Watch>,
        mark_end: bool,
        revision: u64,
    },
    /// Changes are being sent.
    Live(Box<dyn store::Watch>),
    Ended,
}

impl Feed {
    pub(super) fn new(
        store: Arc<dyn Store>,
        range: Range,
        view: View,
        empty: Arc<Value>,
        options: &ListOptions,
        shutdown: Receiver<bool>,
        counted: Watching,
    ) -> Self {
        let timeout = options.timeout_seconds.map_or_else(
            || Duration::from_secs(rand::random_range(1_800..3_600)),
            |seconds| Duration::from_secs(seconds.min(24 * 3_600)),
        );
        let now = Instant::now();
        let deadline = now + timeout;
        Self {
            store,
            range,
            view,
            selection: options.selection.clone(),
            empty,
            phase: Phase::start(options),
            bookmarks: options.bookmarks,
            next_bookmark: next_bookmark(now, deadline),
            deadline,
            shutdown,
            sent_first: false,
            _counted: counted,
            tenant: None,
            unread: Arc::default(),
        }
    }

    /// Charges large pieces to the shares of a user.
    pub(super) fn within(self, tenant: Option<Tenant>) -> Self {
        Self { tenant, ..self }
    }

    /// Returns the stream of pieces.
    pub(super) fn into_stream(
        self,
    ) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>> {
        let start = (self, VecDeque::new());
        futures_util::stream::unfold(start, |(mut feed, mut ready)| async move {
            if ready.is_empty() {
                ready = feed.next().await?;
            }
            let piece = ready.pop_front()?;
            Some((Ok(Frame::data(piece)), (feed, ready)))
        })
    }

    /// Returns the next pieces, at least one.
    async fn next(&mut self) -> Option<VecDeque<Bytes>> {
        loop {
            let mut out = Pieces::default();
            match std::mem::replace(&mut self.phase, Phase::Ended) {
                Phase::Ended => return None,
                Phase::Start {
                    state,
                    after,
                    mark_end,
                    at_least,
                } => match self.start(state, after, mark_end, at_least).await {
                    Ok(phase) => self.phase = phase,
                    Err(failure) => error(&mut out, &failure),
                },
                Phase::Initial {
                    mut objects,
                    watch,
                    mark_end,
                    revision,
                } => {
                    self.phase = if let Err(failure) = self.initial(&mut out, &mut objects).await {
                        error(&mut out, &failure);
                        Phase::Ended
                    } else if objects.len() > 0 {
                        Phase::Initial {
                            objects,
                            watch,
                            mark_end,
                            revision,
                        }
                    } else {
                        if mark_end && self.bookmarks {
                            self.bookmark(&mut out, revision, true);
                        }
                        Phase::Live(watch)
                    };
                }
                Phase::Live(mut watch) => {
                    if self.live(&mut out, watch.as_mut()).await {
                        self.phase = Phase::Live(watch);
                    }
                }
            }
            if !out.is_empty() {
                return Some(self.counted(out));
            }
            // Objects that do not match also take processor time.
            tokio::task::yield_now().await;
        }
    }

    /// Charges bytes to the share of the user until they are sent, if the watch has more than [`UNCOUNTED`] unsent
    /// bytes. Ends the watch if the share is exceeded.
    fn counted(&mut self, out: Pieces) -> VecDeque<Bytes> {
        let len = out.len();
        let Some(tenant) = &self.tenant else {
            return out.into_queue();
        };
        let charge = match self.unread.load(Ordering::Relaxed) + len {
            0..=UNCOUNTED => None,
            _ => match tenant.take(Resource::Answers, len as u64) {
                Ok(charge) => Some(charge),
                Err(failure) => {
                    self.phase = Phase::Ended;
                    let mut out = Pieces::default();
                    error(&mut out, &failure);
                    return out.into_queue();
                }
            },
        };
        let mut queue = out.into_queue();
        // The pieces are sent in order, so all of them are sent when the last one is.
        if let Some(last) = queue.pop_back() {
            self.unread.fetch_add(len, Ordering::Relaxed);
            queue.push_back(Bytes::from_owner(Unread {
                last,
                len,
                total: Arc::clone(&self.unread),
                _charge: charge,
            }));
        }
        queue
    }

    async fn start(
        &mut self,
        state: bool,
        after: Option<u64>,
        mark_end: bool,
        at_least: Option<u64>,
    ) -> Result<Phase, Failure> {
        catch_up(&self.store, at_least).await?;
        let gone = |error: store::Expired| Failure::expired(error.to_string());
        if !state {
            let after = after.unwrap_or_else(|| self.store.revision());
            return self
                .store
                .watch(self.range.clone(), after)
                .map(Phase::Live)
                .map_err(gone);
        }
        let listing = self.list().await?.map_err(gone)?;
        let watch = self
            .store
            .watch(self.range.clone(), listing.revision)
            .map_err(gone)?;
        Ok(Phase::Initial {
            objects: listing.objects.into_iter(),
            watch,
            mark_end,
            revision: listing.revision,
        })
    }

    /// Lists the state; a long list is heavy work. Takes `&mut self`, because the future must be `Send` and `Phase` is
    /// not `Sync`.
    async fn list(&mut self) -> Result<Result<Listing, store::Expired>, Failure> {
        let list = || self.store.list(&self.range, None);
        let Some(tenant) = self.tenant.as_ref().filter(|_| self.range.name.is_none()) else {
            return Ok(list());
        };
        let first = Window {
            after: None,
            limit: Some(1),
        };
        match self.store.page(&self.range, None, &first) {
            Ok(found) if found.remaining < SHORT_LIST => Ok(list()),
            Ok(_) => tenant.off_workers(async { list() }).await,
            Err(expired) => Ok(Err(expired)),
        }
    }

    /// Writes some objects of the state. The number of objects is limited by the bytes that were read, because objects
    /// that are not selected also take time.
    async fn initial(
        &mut self,
        out: &mut Pieces,
        objects: &mut std::vec::IntoIter<Arc<Object>>,
    ) -> Result<(), Failure> {
        let mut looked = 0;
        for object in objects.take(TURN) {
            looked += object.json.len();
            let tenant = self.tenant.clone().filter(|_| self.is_heavy(&object));
            let mut add = || {
                if self.selection.matches(&object) {
                    self.write(out, "ADDED", &object.json);
                }
            };
            match tenant {
                Some(tenant) => tenant.off_workers(async { add() }).await?,
                None => add(),
            }
            if looked >= HEAVY {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether an object is large and has to be parsed.
    fn is_heavy(&self, object: &Object) -> bool {
        object.json.len() > HEAVY && (self.view.parses() || self.selection.parses())
    }

    /// Waits for the next events and writes them. Returns false at the end of the watch.
    async fn live(&mut self, out: &mut Pieces, watch: &mut dyn store::Watch) -> bool {
        if *self.shutdown.borrow() {
            return false;
        }
        let mut event = {
            let mut shutdown = self.shutdown.clone();
            let stop = pin!(shutdown.changed());
            let over = tokio::time::sleep_until(self.deadline);
            let quiet = tokio::time::sleep_until(self.next_bookmark);
            tokio::select! {
                biased;
                _ = stop => return false,
                () = over => return false,
                event = watch.next() => Some(event),
                () = quiet, if self.bookmarks => None,
            }
        };
        if event.is_none() {
            self.next_bookmark = next_bookmark(Instant::now(), self.deadline);
            self.bookmark(out, watch.revision(), false);
        }
        let (mut turn, mut looked) = (0, 0);
        while let Some(result) = event {
            turn += 1;
            match result {
                Ok(event) => {
                    looked += event.object.json.len();
                    if let Err(failure) = self.event_within_share(out, &event).await {
                        error(out, &failure);
                        return false;
                    }
                }
                Err(WatchEnd::Expired(expired)) => {
                    error(out, &Failure::expired(expired.to_string()));
                    return false;
                }
                Err(_) => return false,
            }
            event = if out.len() < CHUNK && turn < TURN && looked < HEAVY {
                watch.next().now_or_never()
            } else {
                None
            };
        }
        true
    }

    /// Writes an event. A large object that has to be parsed for it is heavy work.
    async fn event_within_share(&mut self, out: &mut Pieces, event: &Event) -> Result<(), Failure> {
        let previous = event.previous.as_deref();
        let heavy =
            self.is_heavy(&event.object) || previous.is_some_and(|object| self.is_heavy(object));
        match self.tenant.clone().filter(|_| heavy) {
            Some(tenant) => tenant.off_workers(async { self.event(out, event) }).await,
            None => {
                self.event(out, event);
                Ok(())
            }
        }
    }

    /// Writes an event relative to the selection: an object that starts to match is ADDED, one that stops is DELETED.
    fn event(&mut self, out: &mut Pieces, event: &Event) {
        let selected = |object: &Object| self.selection.matches(object);
        let was = event.previous.as_deref().is_some_and(selected);
        if event.kind == EventKind::Deleted {
            if was {
                self.write(out, "DELETED", &event.object.json);
            }
            return;
        }
        match (was, selected(&event.object)) {
            (true, true) => self.write(out, "MODIFIED", &event.object.json),
            (false, true) => self.write(out, "ADDED", &event.object.json),
            (true, false) => {
                if let Some(previous) = &event.previous {
                    let last = with_revision(previous, event.revision);
                    self.write(out, "DELETED", &last);
                }
            }
            (false, false) => {}
        }
    }

    fn bookmark(&mut self, out: &mut Pieces, revision: u64, initial_end: bool) {
        let mut object = Value::clone(&self.empty);
        object["metadata"] = json!({"resourceVersion": revision.to_string()});
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        self.write(out, "BOOKMARK", &object.to_string().into());
    }

    fn write(&mut self, out: &mut Pieces, kind: &str, stored: &Bytes) {
        if let Err(failure) = self.view.write_event(out, kind, stored, !self.sent_first) {
            error(out, &failure);
        }
        self.sent_first = true;
    }
}

impl Phase {
    /// Returns the first phase of a watch.
    fn start(options: &ListOptions) -> Self {
        let revision = options.revision.filter(|revision| *revision > 0);
        let (state, mark_end) = match (options.initial_events, revision) {
            (Some(wanted), _) => (wanted, wanted),
            (None, None) => (true, true),
            (None, Some(_)) => (false, false),
        };
        let at_least = match options.revision {
            None => None,
            Some(_) if state => Some(revision.unwrap_or(0)),
            Some(_) => Some(0),
        };
        Self::Start {
            state,
            after: revision,
            mark_end,
            at_least,
        }
    }
}

fn next_bookmark(now: Instant, deadline: Instant) -> Instant {
    let regular = now + BOOKMARK_PERIOD;
    let last = deadline.checked_sub(LAST_BOOKMARK).unwrap_or(deadline);
    if now < last {
        regular.min(last)
    } else {
        deadline + BOOKMARK_PERIOD
    }
}

/// Returns an object with a later revision.
fn with_revision(object: &Object, revision: u64) -> Bytes {
    let mut value: Value = serde_json::from_slice(&object.json).unwrap_or_default();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".into(), json!(revision.to_string()));
    }
    value.to_string().into()
}

fn error(out: &mut Pieces, failure: &Failure) {
    let event = json!({"type": "ERROR", "object": failure.to_value()});
    out.copy(event.to_string().as_bytes());
    out.copy(b"\n");
}

/// The last piece of events that were passed to the connection.
struct Unread {
    last: Bytes,
    /// Bytes of all pieces of the events.
    len: usize,
    total: Arc<AtomicUsize>,
    _charge: Option<Charge>,
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        &self.last
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.total.fetch_sub(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Request};
    use http_body_util::{BodyExt as _, Full};

    use super::*;
    use crate::auth::User;
    use crate::http::{Api, Options};
    use crate::respond::Body;
    use crate::store::MemoryStore;

    async fn send(api: &Arc<Api>, method: Method, path: &str, body: &Value) -> Body {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Full::new(Bytes::from(body.to_string())));
        let answer = api.handle(request.unwrap(), &User::admin()).await;
        assert!(answer.status().is_success(), "{}", answer.status());
        answer.into_body()
    }

    fn version(object: &Value) -> Value {
        object["metadata"]["resourceVersion"].clone()
    }

    /// The paused clock advances from timer to timer, so the times are exact.
    #[tokio::test(start_paused = true)]
    async fn quiet_watch_sends_bookmarks_every_minute_and_before_its_end() {
        const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        let store = Arc::new(MemoryStore::new());
        let api = Api::open(store, Options::default()).await.unwrap();
        for (bookmarks, expected) in [(true, &[60, 120, 180, 198][..]), (false, &[])] {
            let path = format!(
                "/api/v1/configmaps?watch=true&resourceVersion={}&timeoutSeconds=200\
                 &allowWatchBookmarks={bookmarks}",
                api.registry.store.revision()
            );
            let began = Instant::now();
            let mut watch = send(&api, Method::GET, &path, &Value::Null).await;
            let (mut times, mut last) = (Vec::new(), Value::Null);
            while let Some(frame) = watch.frame().await {
                let event = frame.unwrap().into_data().unwrap();
                let event: Value = serde_json::from_slice(&event).unwrap();
                assert_eq!(event["type"], "BOOKMARK", "{event}");
                assert_eq!(event["object"]["kind"], "ConfigMap", "{event}");
                if !last.is_null() {
                    assert_eq!(
                        version(&event["object"]),
                        last,
                        "the bookmark must have the revision of the store"
                    );
                }
                times.push(began.elapsed().as_secs());
                // An object of another kind is not an event of this watch, but advances its bookmark.
                let lease = json!({"metadata": {"generateName": "l-"}});
                let made = send(&api, Method::POST, LEASES, &lease).await;
                let made = made.collect().await.unwrap().to_bytes();
                last = version(&serde_json::from_slice(&made).unwrap());
            }
            assert_eq!(times, expected);
            assert_eq!(began.elapsed().as_secs(), 200);
        }
    }
}
