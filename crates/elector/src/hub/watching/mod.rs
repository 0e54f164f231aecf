//! The feeds of a hub and their subscribers.
//!
//! A single election of a kind in a namespace watches its object by name. From the second election on, they share one
//! watch of the whole kind in that namespace. If that is forbidden, each election gets its own watch again.
//!
//! | file | content |
//! |---|---|
//! | `feed.rs` | one watch of the API server, and the changes that it receives |
//! | `event.rs` | one line of a watch, and the object in it |

mod event;
mod feed;

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kube::Client;
use tenure_core::ResourceVersion;
use tenure_lock::{ObjectName, Resource};
use tokio::sync::mpsc;

pub(super) use self::event::WatchedObject;
pub(super) use self::feed::{ChangeLine, ChangeLines};
pub(crate) use self::feed::{Feed, FeedEvent, is_forbidden};
use crate::plain::plain;

/// A subscriber of an object: an election, and the index of the object in it.
pub(super) type Member = (u64, usize);

/// An event for a subscriber.
#[derive(Debug)]
pub(super) enum Delivery {
    /// The object is in this state.
    Object(WatchedObject),
    /// The object does not exist, as of this revision.
    Absent(ResourceVersion),
    /// Changes are delivered from now on. The existing state was delivered before, as of this revision.
    Up(ResourceVersion),
    /// Changes are not delivered. A warning reports the reason, if there is one. The reason is absent if watching is
    /// not permitted, because a candidate with only get, create and update permissions is expected to poll.
    Down(Option<Arc<str>>),
}

type Place = (Resource, String);

/// All feeds of a hub.
pub(super) struct Watches {
    client: Option<Client>,
    groups: HashMap<Place, Group>,
    /// Groups whose members changed.
    changed: Vec<Place>,
    places: HashMap<u64, Place>,
    next: u64,
    seed: u64,
    sender: mpsc::UnboundedSender<(u64, FeedEvent)>,
    receiver: mpsc::UnboundedReceiver<(u64, FeedEvent)>,
}

/// The subscribers of one kind in one namespace, and their feeds.
#[derive(Default)]
struct Group {
    members: HashMap<Name, Vec<Member>>,
    /// Feeds by object name; `None` for the whole kind.
    feeds: HashMap<Option<String>, Running>,
    /// Watching the whole kind is forbidden.
    narrow_only: bool,
}

/// An object name whose text is shared with its election, so that thousands of names are not stored twice.
struct Name(ObjectName);

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        self.0.name()
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name().hash(state);
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for Name {}

struct Running {
    feed: Feed,
    up: bool,
    /// Whether the last attempt to watch was forbidden. Only the first of several such attempts is logged.
    forbidden: bool,
}

impl Watches {
    pub(super) fn new(client: Option<Client>, seed: u64) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self {
            client,
            groups: HashMap::new(),
            changed: Vec::new(),
            places: HashMap::new(),
            next: 1,
            seed,
            sender,
            receiver,
        }
    }

    /// Adds a member. Returns true if its object is already being watched. Without a client no object is watched.
    pub(super) fn join(&mut self, object: &ObjectName, member: Member) -> Option<bool> {
        self.client.as_ref()?;
        let place = (*object.resource(), object.namespace().to_owned());
        let group = self.groups.entry(place.clone()).or_default();
        let up = [Some(object.name().to_owned()), None]
            .iter()
            .any(|key| group.feeds.get(key).is_some_and(|running| running.up));
        // There is almost always exactly one member.
        let members = group.members.entry(Name(object.clone())).or_default();
        members.reserve_exact(1);
        members.push(member);
        self.changed.push(place);
        Some(up)
    }

    /// Removes a member.
    pub(super) fn leave(&mut self, object: &ObjectName, member: Member) {
        let place = (*object.resource(), object.namespace().to_owned());
        let Some(group) = self.groups.get_mut(&place) else {
            return;
        };
        if let Some(members) = group.members.get_mut(object.name()) {
            members.retain(|other| *other != member);
            if members.is_empty() {
                group.members.remove(object.name());
            }
        }
        self.changed.push(place);
    }

    /// Starts and ends feeds after members have joined or left.
    pub(super) fn settle(&mut self) {
        let Some(client) = &self.client else { return };
        for place in std::mem::take(&mut self.changed) {
            let Some(group) = self.groups.get_mut(&place) else {
                continue;
            };
            let wanted = group.wanted();
            let places = &mut self.places;
            group.feeds.retain(|key, running| {
                let keep = wanted.contains(key);
                if !keep {
                    places.remove(&running.feed.id);
                }
                keep
            });
            for key in wanted {
                group.feeds.entry(key).or_insert_with_key(|key| {
                    let id = self.next;
                    self.next += 1;
                    places.insert(id, place.clone());
                    let target = (place.0.path(&place.1), key.as_deref());
                    let feed = Feed::start(
                        id,
                        client.clone(),
                        target,
                        self.sender.clone(),
                        self.seed ^ id,
                    );
                    Running {
                        feed,
                        up: false,
                        forbidden: false,
                    }
                });
            }
            if group.members.is_empty() {
                self.groups.remove(&place);
            }
        }
    }

    /// Returns the next event of any feed.
    pub(super) async fn next(&mut self) -> (u64, FeedEvent) {
        match self.receiver.recv().await {
            Some(event) => event,
            // This cannot happen because we hold a sender. Waiting is the harmless reaction.
            None => std::future::pending().await,
        }
    }

    /// Same as [`next`](Self::next) without waiting.
    pub(super) fn next_now(&mut self) -> Option<(u64, FeedEvent)> {
        self.receiver.try_recv().ok()
    }

    /// Returns the subscribers of this object in this feed.
    pub(super) fn members(&self, feed: u64, name: &str) -> &[Member] {
        let group = self.places.get(&feed).and_then(|at| self.groups.get(at));
        group
            .and_then(|group| group.members.get(name))
            .map_or(&[], Vec::as_slice)
    }

    /// Maps a feed event to its subscribers. Changes are looked up one by one instead; see [`members`](Self::members).
    pub(super) fn sort(&mut self, feed: u64, event: FeedEvent) -> Vec<(Member, Delivery)> {
        let mut deliveries = Vec::new();
        let Some(place) = self.places.get(&feed) else {
            return deliveries;
        };
        let Some(group) = self.groups.get_mut(place) else {
            return deliveries;
        };
        let Some((key, running)) = group.feeds.iter_mut().find(|(_, r)| r.feed.id == feed) else {
            return deliveries;
        };
        match event {
            FeedEvent::Object(shown) => {
                if let Some(members) = group.members.get(shown.name.as_str()) {
                    // There is almost always one subscriber, which gets the object without a copy.
                    let copies = std::iter::repeat_n(shown, members.len());
                    deliveries.extend(members.iter().copied().zip(copies.map(Delivery::Object)));
                }
            }
            FeedEvent::ChangeLines(_) => {}
            FeedEvent::Deleted { name, revision } => {
                let revision = ResourceVersion::new(revision);
                let members = group.members.get(name.as_str()).into_iter().flatten();
                deliveries
                    .extend(members.map(|member| (*member, Delivery::Absent(revision.clone()))));
            }
            FeedEvent::Synced { revision, names } => {
                running.up = true;
                running.forbidden = false;
                for (name, members) in &group.members {
                    let name = name.0.name();
                    if key.as_deref().is_some_and(|only| only != name) {
                        continue;
                    }
                    for member in members {
                        if !names.contains(name) {
                            deliveries.push((*member, Delivery::Absent(revision.clone())));
                        }
                        deliveries.push((*member, Delivery::Up(revision.clone())));
                    }
                }
            }
            FeedEvent::Down { error } if key.is_none() && is_forbidden(&error) => {
                // Each election gets its own watch instead, so nobody has to poll.
                tracing::debug!(
                    error = plain(&error),
                    "not allowed to watch all locks; watching each one"
                );
                group.narrow_only = true;
                self.changed.push(place.clone());
            }
            FeedEvent::Down { error } => {
                running.up = false;
                let what = format!("cannot watch {} in namespace {}", place.0.plural, place.1);
                let forbidden = is_forbidden(&error);
                let said = std::mem::replace(&mut running.forbidden, forbidden);
                let error = plain(&error);
                match (forbidden, said) {
                    (true, true) => tracing::debug!(error, "{what}; still polling"),
                    (true, false) => tracing::warn!(error, "{what}; polling instead"),
                    // Each election logs the failure itself.
                    (false, _) => tracing::debug!(error, "{what}; polling until the watch works"),
                }
                let text: Option<Arc<str>> =
                    (!forbidden).then(|| format!("{what}: {error}").into());
                for (name, members) in &group.members {
                    if key.as_deref().is_none_or(|only| only == name.0.name()) {
                        let each = |member: &Member| (*member, Delivery::Down(text.clone()));
                        deliveries.extend(members.iter().map(each));
                    }
                }
            }
        }
        deliveries
    }
}

impl Group {
    fn wanted(&self) -> Vec<Option<String>> {
        let names = || {
            let names = self.members.keys().map(|name| name.0.name().to_owned());
            names.map(Some).collect()
        };
        match self.members.len() {
            0 => Vec::new(),
            _ if self.narrow_only => names(),
            // Elections that share a watch keep it, so that other elections can come and go without effect.
            1 if !self.feeds.contains_key(&None) => names(),
            _ => vec![None],
        }
    }
}
