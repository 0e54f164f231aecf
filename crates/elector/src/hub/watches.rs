//! Which feeds there are, and who hears of them.
//!
//! One election of a kind in a namespace watches its object by name; from the second on they share
//! one watch of the whole kind there. If that is forbidden, each gets its own again.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kube::Client;
use tenure_core::ResourceVersion;
use tenure_lock::{ObjectName, Resource};
use tokio::sync::mpsc;

use super::event::Shown;
use super::feed::{Feed, News, is_forbidden};
use crate::plain::plain;

/// Who hears of an object: an election, and which of its objects it is.
pub(super) type Member = (u64, usize);

/// What a member has to be told.
#[derive(Debug)]
pub(super) enum Told {
    /// The object is in this state.
    Object(Shown),
    /// The object does not exist, as of this revision.
    Absent(ResourceVersion),
    /// Changes are shown from now on; what exists was shown before, as of this revision.
    Up(ResourceVersion),
    /// Changes are not shown. Without a reason that is worth a warning if they are not allowed to be: a
    /// candidate that may get, create and update polls.
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
    sender: mpsc::UnboundedSender<(u64, News)>,
    receiver: mpsc::UnboundedReceiver<(u64, News)>,
}

/// The members of one kind in one namespace.
#[derive(Default)]
struct Group {
    members: HashMap<Name, Vec<Member>>,
    /// By name, or of all.
    feeds: HashMap<Option<String>, Running>,
    /// The whole kind may not be watched.
    narrow_only: bool,
}

/// An object by its name, which its election keeps: thousands of them are not kept twice.
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
    /// It is not allowed, and that was logged.
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

    /// Adds a member; true if its object is being watched already. Without a client nothing ever is.
    pub(super) fn join(&mut self, object: &ObjectName, member: Member) -> Option<bool> {
        self.client.as_ref()?;
        let place = (*object.resource(), object.namespace().to_owned());
        let group = self.groups.entry(place.clone()).or_default();
        let up = [Some(object.name().to_owned()), None]
            .iter()
            .any(|key| group.feeds.get(key).is_some_and(|running| running.up));
        // Nearly always one.
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
                    let target = (place.0, place.1.as_str(), key.as_deref());
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

    /// The next news of any feed.
    pub(super) async fn next(&mut self) -> (u64, News) {
        match self.receiver.recv().await {
            Some(news) => news,
            // Cannot be: we hold a sender. Waiting is the harmless answer.
            None => std::future::pending().await,
        }
    }

    /// The same without waiting.
    pub(super) fn next_now(&mut self) -> Option<(u64, News)> {
        self.receiver.try_recv().ok()
    }

    /// Who hears of this object from this feed.
    pub(super) fn members(&self, feed: u64, name: &str) -> &[Member] {
        let group = self.places.get(&feed).and_then(|at| self.groups.get(at));
        group
            .and_then(|group| group.members.get(name))
            .map_or(&[], Vec::as_slice)
    }

    /// Whom to tell what because of news of a feed.
    pub(super) fn sort(&mut self, feed: u64, news: News) -> Vec<(Member, Told)> {
        let mut told = Vec::new();
        let Some(place) = self.places.get(&feed) else {
            return told;
        };
        let Some(group) = self.groups.get_mut(place) else {
            return told;
        };
        let Some((key, running)) = group.feeds.iter_mut().find(|(_, r)| r.feed.id == feed) else {
            return told;
        };
        match news {
            News::Object(shown) => {
                if let Some(members) = group.members.get(shown.name.as_str()) {
                    // Nearly always for one, who gets it without a copy.
                    let copies = std::iter::repeat_n(shown, members.len());
                    told.extend(members.iter().copied().zip(copies.map(Told::Object)));
                }
            }
            News::Changes(changes) => {
                for change in changes.iter() {
                    let members = group.members.get(change.name).into_iter().flatten();
                    told.extend(members.map(|member| (*member, Told::Object(change.shown()))));
                }
            }
            News::Deleted { name, revision } => {
                let revision = ResourceVersion::new(revision);
                let members = group.members.get(name.as_str()).into_iter().flatten();
                told.extend(members.map(|member| (*member, Told::Absent(revision.clone()))));
            }
            News::Synced { revision, names } => {
                running.up = true;
                running.forbidden = false;
                for (name, members) in &group.members {
                    let name = name.0.name();
                    if key.as_deref().is_some_and(|only| only != name) {
                        continue;
                    }
                    for member in members {
                        if !names.contains(name) {
                            told.push((*member, Told::Absent(revision.clone())));
                        }
                        told.push((*member, Told::Up(revision.clone())));
                    }
                }
            }
            News::Down { error } if key.is_none() && is_forbidden(&error) => {
                // Each gets its own watch instead; nobody has to poll in between.
                tracing::debug!(%error, "watching one by one");
                group.narrow_only = true;
                self.changed.push(place.clone());
            }
            News::Down { error } => {
                running.up = false;
                let what = format!("cannot watch {} in namespace {}", place.0.plural, place.1);
                let forbidden = is_forbidden(&error);
                let said = std::mem::replace(&mut running.forbidden, forbidden);
                let error = plain(&error);
                match (forbidden, said) {
                    (true, true) => tracing::debug!(error, "{what}, still polling"),
                    (true, false) => tracing::warn!(error, "{what}, polling instead"),
                    (false, _) => tracing::warn!(error, "{what}, polling meanwhile"),
                }
                let text: Option<Arc<str>> =
                    (!forbidden).then(|| format!("{what}: {error}").into());
                for (name, members) in &group.members {
                    if key.as_deref().is_none_or(|only| only == name.0.name()) {
                        let each = |member: &Member| (*member, Told::Down(text.clone()));
                        told.extend(members.iter().map(each));
                    }
                }
            }
        }
        told
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
            // Whoever shares a watch keeps it, so that coming and going of others does not matter.
            1 if !self.feeds.contains_key(&None) => names(),
            _ => vec![None],
        }
    }
}
