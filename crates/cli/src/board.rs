//! Live state of all elections, for the live views.
//!
//! A board lists once and then watches, so an idle cluster costs nothing. Validity is counted from the moment a renewal
//! was *observed*, as candidates count it, so that skewed clocks do not change it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use jiff::Timestamp;
use kube::Client;
use kube::core::WatchEvent;
use serde::Serialize;
use serde_json::Value;
use tenure_core::Version;
use tenure_lock::LockKind;
use tenure_lock::member::{MOST_MEMBERS, MemberSnapshot};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::announce::{Candidate, is_recent, members_path};
use crate::api::{self, Clock};
use crate::elections::{self, KINDS, Seen};
use crate::terms::{self, Term, TermChange};

/// Time after which the API server ends a watch; the client times out slightly later.
const WATCH_SECONDS: u64 = 240;

/// Delay after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Delay after a missing permission, which seldom changes.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// Difference between the time of a renewal and its observation that counts as clock skew.
const SKEW_SECONDS: f64 = 3.0;

/// Selection of elections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// One namespace, or all.
    pub(crate) namespace: Option<String>,
    /// One name, or all.
    pub(crate) name: Option<String>,
    /// The only lock kind to read; `None` for all kinds and their Events. With one kind no Events are read, because
    /// candidates of one election usually lack the permission.
    pub(crate) kind: Option<LockKind>,
    /// Also reads the members of an election that is selected by its name. Without a name, the members are among the
    /// Leases.
    pub(crate) members: bool,
}

/// Key of an election: namespace, name and lock kind.
pub(crate) type Key = (String, String, &'static str);

/// One election on the board.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    seen: Seen,
    /// When `seen` was observed.
    at: Instant,
    /// Terms, oldest first.
    pub(crate) terms: Vec<Term>,
}

/// An election as shown to programs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ElectionJson {
    #[serde(flatten)]
    pub(crate) seen: Seen,
    pub(crate) terms: Vec<Term>,
}

/// Live state of elections. Dropping it ends the watches.
pub(crate) struct Board {
    updates: mpsc::Receiver<Update>,
    rows: BTreeMap<Key, Arc<Row>>,
    changes: BTreeMap<(String, String), Vec<TermChange>>,
    /// By the place of their election, then by the name of their object.
    members: BTreeMap<(String, String), BTreeMap<String, Known>>,
    /// The election of each member, by the namespace and the name of its object.
    elections: BTreeMap<(String, String), String>,
    /// Places of elections whose candidates changed and are not counted yet.
    uncounted: BTreeSet<(String, String)>,
    waiting: BTreeSet<&'static str>,
    refused: BTreeMap<&'static str, String>,
    troubled: BTreeMap<&'static str, String>,
    _tasks: JoinSet<()>,
}

/// A member, as observed.
struct Known {
    candidate: Candidate,
    version: Version,
    /// Instant at which the candidate counts as dead without a renewal, by the local clock.
    alive_until: Instant,
}

/// A member of a namespace, and whether its renew time says that it is alive.
struct Found {
    namespace: String,
    snapshot: MemberSnapshot,
    recent: bool,
}

enum Update {
    /// A complete list of one kind.
    All(LockKind, Vec<Seen>),
    Put(Box<Seen>),
    Gone(Key),
    /// A complete list of members.
    AllMembers(Vec<Found>),
    Member(Box<Found>),
    TermChanges(Vec<TermChange>),
    Working(&'static str),
    Refused(&'static str, String),
    Trouble(&'static str, String),
}

/// Subject of one watch.
#[derive(Clone, Copy)]
enum Source {
    Locks(LockKind),
    Members,
    Events,
}

impl Board {
    /// Starts to list and watch.
    pub(crate) fn open(client: &Client, scope: &Scope) -> Self {
        let (send, updates) = mpsc::channel(256);
        let mut tasks = JoinSet::new();
        let mut sources: Vec<Source> = match scope.kind {
            Some(kind) => vec![Source::Locks(kind)],
            None => KINDS
                .into_iter()
                .map(Source::Locks)
                .chain([Source::Events])
                .collect(),
        };
        if scope.members && scope.name.is_some() {
            sources.push(Source::Members);
        }
        let waiting = sources.iter().map(|source| source.word()).collect();
        for source in sources {
            let follower = Follower {
                client: client.clone(),
                scope: scope.clone(),
                source,
                updates: send.clone(),
            };
            tasks.spawn(follower.follow());
        }
        Self {
            updates,
            rows: BTreeMap::new(),
            changes: BTreeMap::new(),
            members: BTreeMap::new(),
            elections: BTreeMap::new(),
            uncounted: BTreeSet::new(),
            waiting,
            refused: BTreeMap::new(),
            troubled: BTreeMap::new(),
            _tasks: tasks,
        }
    }

    /// Waits for changes and applies all pending ones. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        match self.updates.recv().await {
            Some(update) => self.take(update),
            None => std::future::pending().await,
        }
        while let Ok(update) = self.updates.try_recv() {
            self.take(update);
        }
        // The candidates are counted once for all changes, because each count reads all members of an election.
        for place in std::mem::take(&mut self.uncounted) {
            self.recount(&place);
        }
    }

    /// Returns whether every kind was listed once.
    pub(crate) fn is_ready(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the elections, ordered by namespace and name.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Arc<Row>> {
        self.rows.values()
    }

    /// Returns the reason why the board is out of date or empty.
    pub(crate) fn trouble(&self) -> Option<String> {
        let words = |map: &BTreeMap<&str, String>| {
            // Most elections use leases.
            let leases = map.get_key_value("leases");
            let (kind, why) = leases.or_else(|| map.iter().next())?;
            Some(format!("cannot read {kind}: {why}"))
        };
        let locks = |map: &BTreeMap<&str, String>| {
            map.keys()
                .filter(|k| !["events", "members"].contains(k))
                .count()
        };
        let blind = self.rows.is_empty() && locks(&self.refused) > 0 && self.is_ready();
        words(&self.troubled).or_else(|| words(&self.refused).filter(|_| blind))
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::All(kind, elections) => {
                let lock = kind.as_str();
                let keys: BTreeSet<Key> = elections.iter().map(key).collect();
                self.rows.retain(|k, _| k.2 != lock || keys.contains(k));
                for seen in elections {
                    self.put(seen, false);
                }
            }
            Update::Put(seen) => self.put(*seen, true),
            Update::Gone(key) => {
                self.rows.remove(&key);
                let (namespace, name, lock) = key;
                if lock == LockKind::Leases.as_str() {
                    self.remove_member(&(namespace, name));
                }
            }
            Update::AllMembers(found) => {
                let object = |found: &Found| (found.namespace.clone(), found.snapshot.name.clone());
                let kept: BTreeSet<_> = found.iter().map(object).collect();
                let known = self.elections.keys();
                let removed: Vec<_> = known
                    .filter(|known| !kept.contains(known))
                    .cloned()
                    .collect();
                for object in removed {
                    self.remove_member(&object);
                }
                for found in found {
                    self.put_member(found);
                }
            }
            Update::Member(found) => self.put_member(*found),
            Update::TermChanges(changes) => {
                for change in changes {
                    let place = (change.namespace.clone(), change.name.clone());
                    change.join(self.changes.entry(place.clone()).or_default());
                    self.retell(&place);
                }
            }
            Update::Working(kind) => {
                self.waiting.remove(kind);
                self.troubled.remove(kind);
                self.refused.remove(kind);
            }
            Update::Refused(kind, why) => {
                self.waiting.remove(kind);
                self.troubled.remove(kind);
                self.refused.insert(kind, why);
            }
            Update::Trouble(kind, why) => drop(self.troubled.insert(kind, why)),
        }
    }

    /// Stores an observation. `live` is true for a change and false for an item of a list.
    fn put(&mut self, mut seen: Seen, live: bool) {
        let key = key(&seen);
        let before = self.rows.get(&key);
        let renewed = before.is_some_and(|row| row.seen.renew_time != seen.renew_time);
        if live && renewed && !seen.holder.is_empty() {
            seen.skewed = seen
                .renewed_ago_seconds
                .is_some_and(|ago| ago.abs() > SKEW_SECONDS);
            seen.renewed_ago_seconds = Some(0.0);
            seen.valid_for_seconds = Some(f64::from(seen.lease_duration_seconds));
            if !seen.paused {
                seen.state = "held";
            }
        }
        let place = (seen.namespace.clone(), seen.name.clone());
        // The candidates are also counted after each renewal of the leader, so that dead candidates disappear.
        seen.candidates = self.candidates(&place);
        if let Some(change) = TermChange::of_change(before.map(|row| &row.seen), &seen) {
            change.join(self.changes.entry(place.clone()).or_default());
        }
        let row = Row {
            seen,
            at: Instant::now(),
            terms: Vec::new(),
        };
        self.rows.insert(key, Arc::new(row));
        self.retell(&place);
    }

    /// Stores a member, unless its election has [`MOST_MEMBERS`] already. It is alive if its renew time or a change of its
    /// object says so.
    fn put_member(&mut self, found: Found) {
        let Found {
            namespace,
            snapshot,
            recent,
        } = found;
        let object = (namespace, snapshot.name);
        if (self.elections.get(&object)).is_some_and(|election| *election != snapshot.election) {
            self.remove_member(&object);
        }
        let place = (object.0.clone(), snapshot.election);
        let known = self.members.entry(place.clone()).or_default();
        if known.len() >= MOST_MEMBERS && !known.contains_key(&object.1) {
            return;
        }
        let before = known.get(&object.1);
        if before.is_some_and(|known| known.version == snapshot.version) {
            return;
        }
        let now = Instant::now();
        let is_alive = recent || before.is_some();
        let member = Known {
            candidate: snapshot.member.into(),
            version: snapshot.version,
            alive_until: if is_alive {
                now + snapshot.duration
            } else {
                now
            },
        };
        known.insert(object.1.clone(), member);
        self.elections.insert(object, place.1.clone());
        self.uncounted.insert(place);
    }

    /// Removes the member with this namespace and object name, if there is one.
    fn remove_member(&mut self, object: &(String, String)) {
        let Some(election) = self.elections.remove(object) else {
            return;
        };
        let place = (object.0.clone(), election);
        if let Some(known) = self.members.get_mut(&place) {
            known.remove(&object.1);
            if known.is_empty() {
                self.members.remove(&place);
            }
        }
        self.uncounted.insert(place);
    }

    /// Returns the living candidates of an election, in the order of their identities.
    fn candidates(&self, place: &(String, String)) -> Vec<Candidate> {
        let now = Instant::now();
        let known = self.members.get(place).into_iter().flatten();
        let living = known.filter(|(_, known)| known.alive_until > now);
        let mut living: Vec<Candidate> = living.map(|(_, known)| known.candidate.clone()).collect();
        living.sort_by(|a, b| a.identity.cmp(&b.identity));
        living
    }

    /// Updates the candidates of an election.
    fn recount(&mut self, place: &(String, String)) {
        let candidates = self.candidates(place);
        for kind in KINDS {
            let key = (place.0.clone(), place.1.clone(), kind.as_str());
            if let Some(row) = self.rows.get_mut(&key)
                && row.seen.candidates != candidates
            {
                Arc::make_mut(row).seen.candidates.clone_from(&candidates);
            }
        }
    }

    /// Computes the terms of an election again.
    fn retell(&mut self, place: &(String, String)) {
        let changes = self
            .changes
            .get(place)
            .map(Vec::as_slice)
            .unwrap_or_default();
        for kind in KINDS {
            let key = (place.0.clone(), place.1.clone(), kind.as_str());
            let Some(row) = self.rows.get_mut(&key) else {
                continue;
            };
            let mut terms = terms::of_changes(changes);
            terms::settle(&mut terms, &row.seen);
            let row = Arc::make_mut(row);
            row.seen.count_terms(&terms, Timestamp::now());
            row.terms = terms;
        }
    }
}

impl Row {
    /// Returns the observation with times as of now.
    pub(crate) fn seen_now(&self) -> Seen {
        let passed = self.at.elapsed().as_secs_f64();
        let mut seen = self.seen.clone();
        let later = |time: Option<f64>| time.map(|time| time + passed);
        seen.held_for_seconds = later(seen.held_for_seconds);
        seen.renewed_ago_seconds = later(seen.renewed_ago_seconds);
        seen.valid_for_seconds = seen.valid_for_seconds.map(|left| left - passed);
        if seen.state == "held" && seen.valid_for_seconds.is_some_and(|left| left < 0.0) {
            seen.state = "expired";
        }
        seen
    }

    /// Returns the election with its last terms, for programs.
    pub(crate) fn to_json(&self, terms: usize) -> ElectionJson {
        let skip = self.terms.len().saturating_sub(terms);
        ElectionJson {
            seen: self.seen_now(),
            terms: self.terms[skip..].to_vec(),
        }
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> Key {
        key(&self.seen)
    }
}

fn key(seen: &Seen) -> Key {
    (seen.namespace.clone(), seen.name.clone(), seen.lock)
}

impl Source {
    fn word(self) -> &'static str {
        match self {
            Self::Locks(kind) => elections::resource_of(kind).plural,
            Self::Members => "members",
            Self::Events => "events",
        }
    }
}

/// Lists and watches one kind of objects.
struct Follower {
    client: Client,
    scope: Scope,
    source: Source,
    updates: mpsc::Sender<Update>,
}

impl Follower {
    async fn follow(self) {
        loop {
            let pause = match self.list_and_watch().await {
                Ok(()) => Duration::ZERO,
                Err(error) => {
                    let refused = matches!(&error, kube::Error::Api(status)
                        if [401, 403, 404, 405].contains(&status.code));
                    let (word, why) = (self.source.word(), shorten(&error));
                    let (update, pause) = if refused {
                        (Update::Refused(word, why), REFUSED_RETRY)
                    } else {
                        (Update::Trouble(word, why), RETRY)
                    };
                    self.send(update).await;
                    pause
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Lists and watches. Returns without an error when a new list is needed.
    async fn list_and_watch(&self) -> Result<(), kube::Error> {
        let (path, (listed, watched)) = self.path();
        let answer = api::get_as(&self.client, &path, listed).await?;
        let clock = answer.clock;
        let mut version = text(&answer.body["metadata"]["resourceVersion"]);
        let items = answer.body["items"].as_array().cloned().unwrap_or_default();
        if self.reads_members() {
            let found = items.iter().filter_map(|item| Found::read(item, clock));
            self.send(Update::AllMembers(found.collect())).await;
        }
        self.send(match self.source {
            Source::Members => Update::TermChanges(Vec::new()),
            Source::Locks(kind) => {
                let see = |item| elections::see(&self.client, kind, item, clock.now());
                Update::All(kind, items.into_iter().filter_map(see).collect())
            }
            Source::Events => {
                Update::TermChanges(items.iter().filter_map(TermChange::read).collect())
            }
        })
        .await;
        self.send(Update::Working(self.source.word())).await;
        let join = if path.contains('?') { '&' } else { '?' };
        loop {
            let uri = format!(
                "{path}{join}watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}\
                 &resourceVersion={version}"
            );
            let request = http::Request::get(uri)
                .header(http::header::ACCEPT, watched)
                .body(Vec::new())
                .map_err(kube::Error::HttpError)?;
            let events = self.client.request_events::<Value>(request).await?;
            let mut events = std::pin::pin!(events);
            let patience = Duration::from_secs(WATCH_SECONDS + 10);
            while let Ok(Some(event)) = tokio::time::timeout(patience, events.next()).await {
                match event? {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        version = text(&object["metadata"]["resourceVersion"]);
                        self.put(object, clock).await;
                    }
                    WatchEvent::Deleted(object) => {
                        version = text(&object["metadata"]["resourceVersion"]);
                        self.gone(&object).await;
                    }
                    WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                    WatchEvent::Error(_) => return Ok(()),
                }
            }
        }
    }

    /// Returns whether the objects of this source contain members.
    fn reads_members(&self) -> bool {
        match self.source {
            Source::Members => true,
            Source::Locks(LockKind::Leases) => self.scope.name.is_none(),
            Source::Locks(_) | Source::Events => false,
        }
    }

    async fn put(&self, object: Value, clock: Clock) {
        if self.reads_members()
            && let Some(found) = Found::read(&object, clock)
        {
            return self.send(Update::Member(Box::new(found))).await;
        }
        let update = match self.source {
            Source::Members => None,
            Source::Locks(kind) => elections::see(&self.client, kind, object, clock.now())
                .map(|seen| Update::Put(Box::new(seen))),
            Source::Events => {
                TermChange::read(&object).map(|change| Update::TermChanges(vec![change]))
            }
        };
        if let Some(update) = update {
            self.send(update).await;
        }
    }

    async fn gone(&self, object: &Value) {
        // The deletion of an old Event does not change the history.
        let kind = match self.source {
            Source::Locks(kind) => Some(kind),
            Source::Members => Some(LockKind::Leases),
            Source::Events => None,
        };
        if let Some(kind) = kind {
            let metadata = &object["metadata"];
            let key = (
                text(&metadata["namespace"]),
                text(&metadata["name"]),
                kind.as_str(),
            );
            self.send(Update::Gone(key)).await;
        }
    }

    async fn send(&self, update: Update) {
        // The receiver is gone only when this task is about to end.
        let _ = self.updates.send(update).await;
    }

    /// Returns the path and the queries for list and watch.
    fn path(&self) -> (String, (&'static str, &'static str)) {
        let Scope {
            namespace, name, ..
        } = &self.scope;
        match self.source {
            Source::Events => {
                let whole = (api::WHOLE, api::WHOLE);
                (terms::path(namespace.as_deref()), whole)
            }
            Source::Members => {
                let election = name.as_deref().unwrap_or_default();
                let path = members_path(namespace.as_deref(), election);
                (path, elections::forms(LockKind::Leases))
            }
            Source::Locks(kind) => {
                let path = elections::collection(kind, namespace.as_deref());
                let only = name.as_ref().map_or(String::new(), |n| {
                    format!("?fieldSelector=metadata.name%3D{n}")
                });
                (path + &only, elections::forms(kind))
            }
        }
    }
}

impl Found {
    /// Parses a member; `None` for any other object.
    fn read(object: &Value, clock: Clock) -> Option<Self> {
        let snapshot = MemberSnapshot::read(object)?;
        Some(Self {
            namespace: text(&object["metadata"]["namespace"]),
            recent: is_recent(&snapshot, clock.now()),
            snapshot,
        })
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the part of an error that is useful to a person.
fn shorten(error: &kube::Error) -> String {
    tenure::plain(error)
}

#[cfg(test)]
mod tests {
    use tenure::Member;
    use tenure_core::ResourceVersion;

    use super::*;

    fn board() -> Board {
        Board {
            updates: mpsc::channel(1).1,
            rows: BTreeMap::new(),
            changes: BTreeMap::new(),
            members: BTreeMap::new(),
            elections: BTreeMap::new(),
            uncounted: BTreeSet::new(),
            waiting: BTreeSet::new(),
            refused: BTreeMap::new(),
            troubled: BTreeMap::new(),
            _tasks: JoinSet::new(),
        }
    }

    fn found(election: &str, identity: &str) -> Found {
        let revision = ResourceVersion::new("1");
        let identity = identity.to_owned();
        let snapshot = MemberSnapshot {
            election: election.to_owned(),
            name: format!("web.member.{identity}"),
            version: Version {
                uid: "u".into(),
                revision,
            },
            renew_time: None,
            duration: Duration::from_secs(30),
            member: Member {
                identity,
                ..Member::default()
            },
        };
        Found {
            namespace: "shop".to_owned(),
            snapshot,
            recent: true,
        }
    }

    fn shown(board: &Board, election: &str) -> Vec<String> {
        let place = ("shop".to_owned(), election.to_owned());
        let candidates = board.candidates(&place).into_iter();
        candidates.map(|candidate| candidate.identity).collect()
    }

    #[test]
    fn members_of_an_election_have_a_limit() {
        let mut board = board();
        let members = (0..=MOST_MEMBERS).map(|n| found("web", &n.to_string()));
        board.take(Update::AllMembers(members.collect()));
        board.take(Update::Member(Box::new(found("web", "x"))));
        assert_eq!(shown(&board, "web").len(), MOST_MEMBERS);
        assert_eq!(board.elections.len(), MOST_MEMBERS);
    }

    #[test]
    fn members_are_removed_with_their_objects() {
        let mut board = board();
        let members = ["a", "b", "c"].map(|identity| found("web", identity));
        board.take(Update::AllMembers(members.into()));
        let gone = |lock| Update::Gone(("shop".to_owned(), "web.member.a".to_owned(), lock));
        board.take(gone("configmaps"));
        assert_eq!(shown(&board, "web"), ["a", "b", "c"]);
        board.take(gone(LockKind::Leases.as_str()));
        assert_eq!(shown(&board, "web"), ["b", "c"]);
        board.take(Update::Member(Box::new(found("other", "b"))));
        assert_eq!(
            (shown(&board, "web"), shown(&board, "other")),
            (vec!["c".to_owned()], vec!["b".to_owned()])
        );
        board.take(Update::AllMembers(vec![found("web", "d")]));
        assert_eq!(shown(&board, "web"), ["d"]);
        assert_eq!((board.members.len(), board.elections.len()), (1, 1));
    }
}
