//! One watch of the API server, as an endless stream of events.
//!
//! The feed lists, watches from the revision of the list, and starts again when the server has dropped that revision
//! (410). Without the name of an object it covers a whole kind in a namespace. With a name it requests only that
//! object, which permissions limited to `resourceNames` allow.
//!
//! A process that leads thousands of elections receives each of its renewals again through the watch. Such an event is
//! recognized by its version, so that only the version is read, in place ([`ChangeLines`]).

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
use tenure_core::{Random, ResourceVersion, Version};
use tenure_lock::Lean;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::event::{WatchEvent, WatchedObject};
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
pub(crate) enum FeedEvent {
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
    /// Changes may be missed from now on, until `Synced`.
    Down { error: kube::Error },
}

/// A running feed. Dropping it ends its task and its connection.
pub(crate) struct Feed {
    pub(super) id: u64,
    task: JoinHandle<()>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Feed {
    /// Starts to watch the kind with this path, or one object of it.
    pub(crate) fn start(
        id: u64,
        client: Client,
        (path, name): (String, Option<&str>),
        events: UnboundedSender<(u64, FeedEvent)>,
        seed: u64,
    ) -> Self {
        let selector = name.map(|name| format!("metadata.name={name}"));
        let source = Source {
            id,
            client,
            path,
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

    /// Passes on the events of a watch until it ends, and returns whether there was any. Changes that have already
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

/// Lines of changes, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct ChangeLines(String);

/// A change whose line begins in the format of servers written in Go, so that its beginning is sufficient to identify
/// the version.
#[derive(Debug)]
pub(crate) struct ChangeLine<'a> {
    pub(in crate::hub) name: &'a str,
    uid: &'a str,
    pub(in crate::hub) revision: &'a str,
    /// The object as text.
    pub(in crate::hub) object: &'a str,
}

impl ChangeLines {
    /// Number of bytes after which changes are passed on, even if more have arrived.
    const MANY: usize = 32 * 1024;

    /// Adds a line in this format; returns `None` if it must be parsed.
    pub(in crate::hub) fn take_in(&mut self, line: &[u8]) -> Option<ChangeLine<'_>> {
        let line = str::from_utf8(line).ok()?;
        head(line)?;
        let start = self.0.len();
        self.0.push_str(line);
        head(&self.0[start..])
    }

    pub(in crate::hub) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::hub) fn is_many(&self) -> bool {
        self.0.len() >= Self::MANY
    }

    /// Returns the changes in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ChangeLine<'_>> {
        self.0.lines().filter_map(head)
    }
}

impl ChangeLine<'_> {
    /// Returns whether this change created this version.
    pub(in crate::hub) fn is(&self, version: &Version) -> bool {
        self.revision == version.revision.as_str() && *self.uid == *version.uid
    }

    /// Returns a copy of the object.
    pub(crate) fn shown(&self) -> WatchedObject {
        WatchedObject::from_text(self.name, self.uid, self.revision, self.object)
    }
}

fn head(line: &str) -> Option<ChangeLine<'_>> {
    let object = line.strip_prefix(r#"{"type":"MODIFIED","object":"#)?;
    let object = object.trim_ascii_end().strip_suffix('}')?;
    let (_, rest) = plain_text(object.strip_prefix(r#"{"kind":"#)?)?;
    let (_, rest) = plain_text(rest.strip_prefix(r#","apiVersion":"#)?)?;
    let (name, rest) = plain_text(rest.strip_prefix(r#","metadata":{"name":"#)?)?;
    let (_, rest) = plain_text(rest.strip_prefix(r#","namespace":"#)?)?;
    let (uid, rest) = plain_text(rest.strip_prefix(r#","uid":"#)?)?;
    let (revision, _) = plain_text(rest.strip_prefix(r#","resourceVersion":"#)?)?;
    Some(ChangeLine {
        name,
        uid,
        revision,
        object,
    })
}

/// Returns a string without escapes, and the text after it.
fn plain_text(json: &str) -> Option<(&str, &str)> {
    let (text, rest) = json.strip_prefix('"')?.split_once('"')?;
    (!text.contains('\\')).then_some((text, rest))
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
pub(crate) fn is_forbidden(error: &kube::Error) -> bool {
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
    use super::*;

    #[test]
    fn watch_whose_revision_goes_back_is_listed_again() {
        for (place, next) in [("100", "100"), ("99", "100"), ("100", "abc")] {
            assert!(check_order(place, next).is_ok(), "{place} {next}");
        }
        let error = check_order("100", "99").expect_err("it went back");
        assert!(is_gone(&error), "{error}");
    }

    #[test]
    fn line_in_the_format_of_go_servers_is_parsed_only_as_far_as_needed() {
        let line = r#"{"type":"MODIFIED","object":{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"x","namespace":"ns","uid":"u","resourceVersion":"7","creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{"holderIdentity":"a"}}}"#;
        let quick = head(line).expect("it is such a line");
        let Ok(WatchEvent::Changed(thorough)) = WatchEvent::parse(line.as_bytes()) else {
            panic!("{line}");
        };
        assert_eq!((quick.name, quick.revision), ("x", &*thorough.revision));
        assert!(thorough.is(&Version {
            uid: quick.uid.into(),
            revision: ResourceVersion::new(quick.revision),
        }));
        let object = quick.shown().into_object().expect("it is whole");
        assert_eq!(object["spec"]["holderIdentity"], "a");
        for other in [
            line.replace("MODIFIED", "DELETED"),
            line.replace("MODIFIED", "ERROR"),
            line.replace("\"u\"", r#""\u0075""#),
            line.replace("\"namespace\":\"ns\",", ""),
            line.replace("\"u\"", "7"),
        ] {
            assert!(head(&other).is_none(), "{other}");
        }
    }

    #[test]
    fn changes_keep_their_order_and_other_lines_are_not_taken() {
        let line = |name: &str, revision: &str| {
            format!(
                r#"{{"type":"MODIFIED","object":{{"kind":"Lease","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"ns","uid":"u","resourceVersion":"{revision}"}}}}}}"#
            ) + "\n"
        };
        let mut changes = ChangeLines::default();
        assert!(changes.is_empty() && changes.take_in(b"\xff\n").is_none());
        for (name, revision) in [("x", "7"), ("y", "8"), ("x", "9")] {
            let change = changes.take_in(line(name, revision).as_bytes()).unwrap();
            assert_eq!((change.name, change.revision), (name, revision));
        }
        let deleted = line("x", "10").replace("MODIFIED", "DELETED");
        assert!(changes.take_in(deleted.as_bytes()).is_none());
        let seen: Vec<_> = changes.iter().map(|c| (c.name, c.revision)).collect();
        assert_eq!(seen, [("x", "7"), ("y", "8"), ("x", "9")]);
        let version = Version {
            uid: "u".into(),
            revision: ResourceVersion::new("8"),
        };
        let known: Vec<_> = changes.iter().map(|change| change.is(&version)).collect();
        assert_eq!(known, [false, true, false]);
        assert!(!changes.is_many());
    }
}
