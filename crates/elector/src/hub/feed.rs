//! One watch of the API server, as an endless stream of events.
//!
//! The feed lists, watches from the revision of the list, and starts again when the server has dropped that revision
//! (410). Without the name of an object it covers a whole kind in a namespace. With a name it requests only that
//! object, which permissions limited to `resourceNames` allow.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncBufReadExt as _, FutureExt as _};
use http::header::{ACCEPT_ENCODING, HeaderValue};
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::Status;
use kube::core::request::Request;
use serde::Deserialize;
use serde_json::Value;
use tenure_core::{Random, ResourceVersion};
use tenure_lock::{Lean, Resource};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::event::{ChangeLines, WatchEvent, WatchedObject};
use crate::clock::pause as rest;

/// Timeout for a list, and for the beginning of a watch.
const ANSWER: Duration = Duration::from_secs(10);

/// A watch without any message for this long counts as dead. Servers send bookmarks every minute.
const SILENCE: Duration = Duration::from_secs(90);

/// The server ends each watch after about this long, so that watches spread over its replicas.
const WATCH_SECONDS: u32 = 240;

/// Lists are read in pages, so that a large namespace does not need much memory.
const PAGE: u32 = 200;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// An event of a feed.
#[derive(Debug)]
pub(super) enum FeedEvent {
    /// An object is in this state.
    Object(WatchedObject),
    /// Objects changed, one after the other.
    ChangeLines(ChangeLines),
    /// An object was deleted.
    Deleted { name: String, revision: String },
    /// All existing objects were delivered as of this revision, and changes will be delivered.
    Synced {
        revision: ResourceVersion,
        names: HashSet<String>,
    },
    /// ChangeLines may be missed from now on, until `Synced`.
    Down { error: kube::Error },
}

/// A running feed. Dropping it ends its task and its connection.
pub(super) struct Feed {
    pub(super) id: u64,
    task: JoinHandle<()>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Feed {
    pub(super) fn start(
        id: u64,
        client: Client,
        (resource, namespace, name): (Resource, &str, Option<&str>),
        events: UnboundedSender<(u64, FeedEvent)>,
        seed: u64,
    ) -> Self {
        let selector = name.map(|name| format!("metadata.name={name}"));
        let source = Source {
            id,
            client,
            path: resource.path(namespace),
            selector,
            events,
            random: Mutex::new(Random::new(seed)),
        };
        let task = tokio::spawn(source.run());
        Self { id, task }
    }
}

struct Source {
    id: u64,
    client: Client,
    path: String,
    selector: Option<String>,
    events: UnboundedSender<(u64, FeedEvent)>,
    random: Mutex<Random>,
}

impl Source {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.list_and_watch(&mut pause).await {
                // The server dropped our revision, or ended the watch: list again soon.
                Err(error) if is_gone(&error) => {
                    tracing::debug!(path = %self.path, "the watch is too old; listing again");
                    rest(self.below(FIRST_PAUSE)).await;
                }
                Err(error) => {
                    self.send(FeedEvent::Down { error });
                    rest(pause + self.below(pause / 2)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Ok(never) => match never {},
            }
        }
    }

    /// Runs until a request fails.
    async fn list_and_watch(
        &self,
        pause: &mut Duration,
    ) -> Result<std::convert::Infallible, kube::Error> {
        let (mut revision, names) = self.list().await?;
        let mut names = Some(names);
        loop {
            let mut params = WatchParams::default().timeout(self.watch_seconds());
            params.field_selector.clone_from(&self.selector);
            let request = Request::new(&self.path).watch(&params, &revision);
            let mut request = request.map_err(kube::Error::BuildRequest)?;
            // Servers compress each event separately, which the client does not support.
            let plain = HeaderValue::from_static("identity");
            request.headers_mut().insert(ACCEPT_ENCODING, plain);
            let opened = within(ANSWER, self.client.request_stream(request)).await?;
            let mut lines = std::pin::pin!(opened);
            if let Some(names) = names.take() {
                self.send(FeedEvent::Synced {
                    revision: ResourceVersion::new(revision.as_str()),
                    names,
                });
                *pause = FIRST_PAUSE;
            }
            let mut changes = ChangeLines::default();
            let ended = self.read(&mut lines, &mut changes, &mut revision).await;
            self.send_changes(&mut changes);
            if !ended? {
                // Wait, so that a server that ends watches immediately is not called in a tight loop.
                rest(FIRST_PAUSE).await;
            }
        }
    }

    /// Passes on the events of a watch until it ends, and returns whether there was any. ChangeLines that have already
    /// arrived are passed on together. The caller must pass on those after the last batch.
    async fn read(
        &self,
        lines: &mut (impl AsyncBufRead + Unpin),
        changes: &mut ChangeLines,
        revision: &mut String,
    ) -> Result<bool, kube::Error> {
        let mut heard = false;
        // If waiting for the rest of a line is cancelled, the part that was read stays in the buffer.
        let mut line = Vec::new();
        loop {
            let next = lines.read_until(b'\n', &mut line);
            let read = if changes.is_empty() {
                timeout(SILENCE, next).await
            } else {
                let Some(read) = next.now_or_never() else {
                    self.send_changes(changes);
                    continue;
                };
                Ok(read)
            };
            let Ok(read) = read else {
                tracing::debug!(path = %self.path, "the watch is silent; reopening it");
                break;
            };
            match read {
                Ok(0) => break,
                Err(error) if is_cut_off(&error) => break,
                Err(error) => return Err(kube::Error::ReadEvents(error)),
                // The server may end the stream in the middle of a line.
                Ok(_) if line.last() != Some(&b'\n') => break,
                // A proxy sends empty lines to keep the connection open.
                Ok(_) if line.trim_ascii().is_empty() => {}
                Ok(_) => {
                    if let Some(change) = changes.take_in(&line) {
                        check_order(revision, change.revision)?;
                        change.revision.clone_into(revision);
                    } else {
                        let event = WatchEvent::parse(&line)?;
                        self.send_changes(changes);
                        check_order(revision, event.revision())?;
                        self.pass_on(event, revision);
                    }
                }
            }
            line.clear();
            heard = true;
            if changes.is_many() {
                self.send_changes(changes);
            }
        }
        Ok(heard)
    }

    fn send_changes(&self, changes: &mut ChangeLines) {
        if !changes.is_empty() {
            self.send(FeedEvent::ChangeLines(std::mem::take(changes)));
        }
    }

    /// Delivers all existing objects, and returns the revision of the list and the names in it.
    async fn list(&self) -> Result<(String, HashSet<String>), kube::Error> {
        let mut names = HashSet::new();
        let mut params = ListParams::default().limit(PAGE);
        params.field_selector.clone_from(&self.selector);
        loop {
            let request = Request::new(&self.path).list(&params);
            let request = request.map_err(kube::Error::BuildRequest)?;
            let page = within(ANSWER, self.client.request::<Page>(request)).await?;
            // Items of a list have no kind; `LeaseList` is a list of `Lease`.
            let kind = page.kind.strip_suffix("List").unwrap_or(&page.kind);
            for Lean(mut item) in page.items {
                names.insert(text(&item["metadata"]["name"]));
                item["kind"] = kind.into();
                item["apiVersion"] = page.api_version.as_str().into();
                self.send(FeedEvent::Object(WatchedObject::listed(item)));
            }
            if page.metadata.next.is_empty() {
                return Ok((page.metadata.resource_version, names));
            }
            params = params.continue_token(&page.metadata.next);
        }
    }

    fn pass_on(&self, event: WatchEvent, revision: &mut String) {
        match event {
            WatchEvent::Changed(shown) => {
                revision.clone_from(&shown.revision);
                self.send(FeedEvent::Object(shown));
            }
            WatchEvent::Deleted(shown) => {
                revision.clone_from(&shown.revision);
                self.send(FeedEvent::Deleted {
                    name: shown.name,
                    revision: shown.revision,
                });
            }
            WatchEvent::Bookmark(at) => *revision = at,
        }
    }

    fn send(&self, event: FeedEvent) {
        // If the hub has ended, this task ends with it.
        let _ = self.events.send((self.id, event));
    }

    /// Returns a random duration below `limit`, so that requests do not coincide.
    fn below(&self, limit: Duration) -> Duration {
        let random = self.random.lock();
        random.unwrap_or_else(PoisonError::into_inner).below(limit)
    }

    /// Returns the maximum duration of the next watch, in seconds.
    fn watch_seconds(&self) -> u32 {
        let more = self.below(Duration::from_secs(50)).as_secs();
        WATCH_SECONDS + u32::try_from(more).unwrap_or_default()
    }
}

/// A page of a list.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Page {
    kind: String,
    api_version: String,
    metadata: PageMetadata,
    items: Vec<Lean>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns whether a watch ended without an error message, as proxies and servers end long requests. Such a watch is
/// reopened at the same revision.
fn is_cut_off(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{TimedOut, UnexpectedEof};
    let Some(io) = error.downcast_ref::<std::io::Error>() else {
        return error.source().is_some_and(is_cut_off);
    };
    matches!(io.kind(), TimedOut | UnexpectedEof)
        || io.get_ref().is_some_and(|inner| is_cut_off(inner))
}

/// Rejects an event or a bookmark below the previous one. In that case the store was restored with its revision moved
/// back, so that only a list shows the current state.
fn check_order(place: &str, next: &str) -> Result<(), kube::Error> {
    let order = ResourceVersion::new(next).order(&ResourceVersion::new(place));
    if order.is_some_and(|order| order.is_lt()) {
        let text = format!("revision {next} of the watch is below {place}: the store was restored");
        let status = Status::failure(&text, "Expired").with_code(410);
        return Err(kube::Error::Api(Box::new(status)));
    }
    Ok(())
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

/// Returns whether the error lasts until permissions change. An expired token does not count.
pub(super) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    timeout(limit, request).await.unwrap_or_else(|_| {
        let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time");
        Err(kube::Error::Service(error.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::{check_order, is_gone};

    #[test]
    fn watch_whose_revision_goes_back_is_listed_again() {
        for (place, next) in [("100", "100"), ("99", "100"), ("100", "abc")] {
            assert!(check_order(place, next).is_ok(), "{place} {next}");
        }
        let error = check_order("100", "99").expect_err("it went back");
        assert!(is_gone(&error), "{error}");
    }
}
