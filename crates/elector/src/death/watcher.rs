//! Watches single objects for evidence.
//!
//! All elections with the same source share one watch per object. The watch ends with the last future that waits for
//! it. Invariant: a future completes only with evidence that proves the death of its holder according to
//! `tenure_core::death`. It completes without evidence if this source can never obtain any.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use tenure_core::Incarnation;
use tenure_core::death::{Evidence, Inquest, Rules};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::clock::pause;
use crate::hub::{Feed, FeedEvent, is_forbidden};
use crate::identity;
use crate::plain::plain;

/// Delay before a watch whose runtime has ended is opened in another runtime.
const REOPEN: Duration = Duration::from_secs(1);

/// An object to watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Target {
    /// Path of its kind in its namespace.
    pub(super) path: String,
    pub(super) name: String,
}

/// The objects of one kind that a source watches.
pub(super) struct Watcher {
    client: Client,
    /// Returns the evidence in an object.
    read: fn(&Value) -> Vec<Evidence>,
    open: Mutex<HashMap<Target, Weak<Open>>>,
    /// Whether a missing permission was logged.
    refused: AtomicBool,
}

/// A running watch. Dropping it ends the watch.
struct Open {
    views: watch::Receiver<View>,
    task: JoinHandle<()>,
}

/// The object as last shown.
#[derive(Clone, Debug)]
enum View {
    Unknown,
    Present {
        uid: String,
        evidence: Arc<[Evidence]>,
    },
    Absent,
    /// A permission is missing.
    Refused,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// kube's client has no `Debug`.
impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}

impl Watcher {
    pub(super) fn new(client: Client, read: fn(&Value) -> Vec<Evidence>) -> Arc<Self> {
        Arc::new(Self {
            client,
            read,
            open: Mutex::default(),
            refused: AtomicBool::new(false),
        })
    }

    /// Waits until the object proves the death of the holder. With a uid, the wait ends without evidence if that object
    /// no longer exists, because a uid is never used again. It also ends if a permission is missing.
    pub(super) async fn wait(
        self: Arc<Self>,
        target: Target,
        uid: Option<String>,
        holder: Arc<Incarnation>,
    ) -> Vec<Evidence> {
        let mut inquest = Inquest::new(Incarnation::clone(&holder), Rules::default());
        loop {
            let open = self.open(&target);
            let mut views = open.views.clone();
            loop {
                let view = views.borrow_and_update().clone();
                match view {
                    View::Unknown => {}
                    View::Refused => return Vec::new(),
                    View::Absent if uid.is_some() => return Vec::new(),
                    View::Absent => {}
                    View::Present { uid: shown, .. }
                        if uid.as_ref().is_some_and(|uid| *uid != shown) =>
                    {
                        return Vec::new();
                    }
                    View::Present { evidence, .. } => {
                        if evidence.iter().any(|one| inquest.add(one)) {
                            return evidence.to_vec();
                        }
                    }
                }
                if views.changed().await.is_err() {
                    break;
                }
            }
            // The watch ran in another runtime, which has ended.
            pause(REOPEN).await;
        }
    }

    /// Returns the watch of an object, and starts it if there is none.
    fn open(self: &Arc<Self>, target: &Target) -> Arc<Open> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, watch| watch.strong_count() > 0);
        let known = open.get(target).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.views.has_changed().is_ok()) {
            return known;
        }
        let (sender, views) = watch::channel(View::Unknown);
        let observing = observe(Arc::downgrade(self), target.clone(), sender);
        let task = tokio::spawn(observing);
        let started = Arc::new(Open { views, task });
        open.insert(target.clone(), Arc::downgrade(&started));
        started
    }

    /// Returns the evidence in a known object.
    fn view(&self, object: Option<Value>) -> View {
        let Some(object) = object else {
            return View::Unknown;
        };
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        View::Present {
            uid: uid.to_owned(),
            evidence: (self.read)(&object).into(),
        }
    }

    fn refuse(&self, target: &Target, error: &kube::Error) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                path = target.path,
                verbs = "list, watch",
                error = plain(error),
                "missing permission; no death of a holder is confirmed from these objects"
            );
        }
    }
}

/// Publishes what the API server shows of an object, until a permission is missing.
async fn observe(watcher: Weak<Watcher>, target: Target, views: watch::Sender<View>) {
    let Some(client) = watcher.upgrade().map(|watcher| watcher.client.clone()) else {
        return;
    };
    let (sender, mut events) = mpsc::unbounded_channel();
    let place = (target.path.clone(), Some(target.name.as_str()));
    let _feed = Feed::start(0, client, place, sender, identity::seed());
    while let (Some((_, event)), Some(watcher)) = (events.recv().await, watcher.upgrade()) {
        let view = match event {
            FeedEvent::Object(shown) => watcher.view(shown.into_object()),
            FeedEvent::ChangeLines(lines) => {
                for line in lines.iter() {
                    views.send_replace(watcher.view(line.shown().into_object()));
                }
                continue;
            }
            FeedEvent::Synced { names, .. } if names.contains(&target.name) => continue,
            FeedEvent::Deleted { .. } | FeedEvent::Synced { .. } => View::Absent,
            FeedEvent::Down { error } if is_forbidden(&error) => {
                watcher.refuse(&target, &error);
                views.send_replace(View::Refused);
                return;
            }
            FeedEvent::Down { error } => {
                tracing::debug!(
                    path = target.path,
                    name = target.name,
                    error = plain(&error),
                    "cannot observe the object of the holder; retrying"
                );
                continue;
            }
        };
        views.send_replace(view);
    }
}
