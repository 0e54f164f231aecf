//! `--slots N`: a semaphore. It consists of N ordinary leases `<election>-0` to `<election>-<N-1>`, of which a
//! candidate holds at most one.
//!
//! All candidates must use the same N. It is written to the lease of slot 0, and a candidate with another number is
//! rejected unless it uses `--resize`. After N was reduced, holders of removed slots finish their command and start
//! nothing else.
//!
//! An election is used with slots or without. Both kinds of candidates read what the other kind writes, at the start and
//! again after each term was won. [`tenure_core::slots`] decides; this module reads and writes.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use tenure::clock::{Clock as _, SystemClock};
use tenure_core::slots::{Decision, Lead, Led, Rules, Start, Whole};
use tenure_lock::{LockKind, Resource, WatchOutcome};

use super::args::Run;
use super::{FAILED, USAGE};
use crate::output::escaped;
use crate::say;

/// The label of every slot's lease.
pub(super) const LABEL: &str = "tenure.dev/semaphore";

/// The annotation with N on the lease of slot 0.
const SLOTS: &str = "tenure.dev/slots";

/// Number of reads of the number of slots before a slot that was won is given up.
const ASKS: u32 = 5;

/// Interval at which the lease of an election without slots is read while its holder may be alive.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Returns the name of a slot's lease.
pub(super) fn name_of(election: &str, slot: u32) -> String {
    format!("{election}-{slot}")
}

/// Returns the labels of every slot's lease.
pub(super) fn labels(election: &str) -> BTreeMap<String, String> {
    [(LABEL.to_owned(), election.to_owned())].into()
}

/// Returns the order in which a candidate tries the slots: its previous slot, then the others in order from a random
/// one on. Candidates that start together therefore do not all try the first.
pub(super) fn order(slots: u32, last: Option<u32>, random: u64) -> Vec<u32> {
    let start = u32::try_from(random % u64::from(slots.max(1))).unwrap_or(0);
    let others = (0..slots).map(|step| (start + step) % slots);
    let last = last.filter(|last| *last < slots);
    last.into_iter()
        .chain(others.filter(|slot| Some(*slot) != last))
        .collect()
}

/// An election and the leases that its candidates read, with slots or without.
#[derive(Clone)]
pub(super) struct Place {
    client: Client,
    namespace: String,
    election: String,
}

impl Place {
    pub(super) fn new(client: Client, namespace: &str, election: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            election: election.to_owned(),
        }
    }

    /// Returns the path of the lease with the number of slots.
    fn first(&self) -> String {
        self.path_of(&name_of(&self.election, 0))
    }

    fn path_of(&self, lease: &str) -> String {
        format!("{}/{lease}", Resource::LEASE.path(&self.namespace))
    }

    /// Reads a lease of the other kind of candidates; `None` if it does not exist or may not be read. A missing
    /// permission is reported once.
    async fn read_if_allowed(&self, name: &str) -> Result<Option<Value>> {
        static REPORTED: Once = Once::new();
        let path = self.path_of(name);
        let get = Request::get(&path).body(Vec::new())?;
        match self.client.request::<Value>(get).await {
            Ok(lease) => Ok(Some(lease)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                REPORTED.call_once(|| say::slots_unchecked(&self.namespace, name));
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {path}")),
        }
    }

    /// Returns the number of slots for a candidate without slots, which may lack the permission to read it.
    async fn number(&self) -> Result<Option<u32>> {
        let first = name_of(&self.election, 0);
        let Some(lease) = self.read_if_allowed(&first).await? else {
            return Ok(None);
        };
        let ours = lease["metadata"]["labels"][LABEL] == self.election;
        Ok(agreed(&lease).filter(|_| ours))
    }

    /// Returns why this election cannot be joined without `--slots`: other candidates use it with slots, so this one
    /// would run alongside them. After a failed read the election can be joined, because candidates without slots start
    /// without an API server.
    pub(super) async fn refuse_without_slots(&self) -> Option<String> {
        match Rules::default().may_lead(self.number().await.ok()) {
            Lead::Slots(slots) => Some(self.has_slots(slots)),
            Lead::Yes | Lead::Unknown => None,
        }
    }

    /// Returns why a term without slots, which was just won, may not be used. Repeats failed reads, so the caller stops
    /// waiting when the term ends. Each read takes at most `limit`.
    pub(super) async fn refuse_term(&self, limit: Duration) -> Option<String> {
        let mut pause = limit / 64;
        loop {
            let read = tokio::time::timeout(limit, self.number()).await;
            match Rules::default().may_lead(read.ok().and_then(Result::ok)) {
                Lead::Yes => return None,
                Lead::Slots(slots) => return Some(self.has_slots(slots)),
                Lead::Unknown => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(limit);
                }
            }
        }
    }

    fn has_slots(&self, slots: u32) -> String {
        let Self {
            namespace,
            election,
            ..
        } = self;
        let first = name_of(election, 0);
        format!(
            "election {namespace}/{election} has {slots} slots: pass --slots {slots}, or delete the lease {first} if no \
             candidate uses slots any more"
        )
    }

    /// Reads the lease of the election without slots. Returns whether a candidate leads it, and its name.
    async fn look_for_whole(&self, whole: &mut Whole, own: Duration) -> Result<(Led, String)> {
        let asked = SystemClock.now().local;
        let lease = self.read_if_allowed(&self.election).await?;
        let kind = LockKind::Leases;
        let none = BTreeMap::new();
        let lock = kind.open(self.client.clone(), &self.namespace, &self.election, &none)?;
        let seen = match lock.apply_watch_event(0, lease, None) {
            WatchOutcome::Present(seen) => Some(seen),
            WatchOutcome::Absent => None,
            WatchOutcome::ReadNeeded => bail!("{} is not a Lease", self.path_of(&self.election)),
        };
        let lease = seen.as_ref().map(|seen| seen.observation());
        let times = (asked, SystemClock.now());
        let led = whole.observe(times, lease, own);
        let holder = lease.map(|lease| lease.record.holder.clone());
        Ok((led, holder.unwrap_or_default()))
    }

    /// Returns why this election cannot be joined with `--slots`: a candidate without slots leads it.
    async fn refuse_with_slots(&self, own: Duration) -> Result<Option<String>> {
        let (led, holder) = self.look_for_whole(&mut Whole::default(), own).await?;
        Ok((led == Led::Yes).then(|| self.is_led(&holder)))
    }

    fn is_led(&self, holder: &str) -> String {
        let (holder, election) = (escaped(holder), &self.election);
        let namespace = &self.namespace;
        format!(
            "{holder} leads the election {namespace}/{election} without slots: remove --slots, or choose another election"
        )
    }
}

/// A slot that is held.
#[derive(Clone)]
pub(super) struct Slot {
    place: Place,
    slot: u32,
    /// Lease duration of this candidate.
    lease: Duration,
}

impl Slot {
    pub(super) fn new(place: Place, slot: u32, lease: Duration) -> Self {
        Self { place, slot, lease }
    }

    /// Returns a message if the number of slots was reduced so that this one is removed. A failed read changes nothing.
    pub(super) async fn gone(&self, limit: Duration) -> Option<String> {
        match Rules::default().may_start(self.slot, self.read(limit).await) {
            Start::Gone(left) => Some(self.has(left)),
            _ => None,
        }
    }

    /// Returns why this slot, which was just won, may not be used, with the exit code. Each read takes at most `limit`.
    /// Without a response the slot is not used. The number may have changed while this candidate waited for it, and a
    /// candidate without slots may have become the leader.
    pub(super) async fn refusal(&self, limit: Duration) -> Option<(u8, String)> {
        let mut whole = Whole::default();
        let mut ask = 0;
        while ask < ASKS {
            let look = self.place.look_for_whole(&mut whole, self.lease);
            let look = tokio::time::timeout(limit, look).await;
            let (led, holder) = look.ok().and_then(Result::ok).unzip();
            match Rules::default().may_use(self.slot, self.read(limit).await, led) {
                Start::Yes => return None,
                Start::Gone(left) => {
                    let why = format!("{}; restart with this number", self.has(left));
                    return Some((USAGE, why));
                }
                Start::Led => return Some((USAGE, self.place.is_led(&holder.unwrap_or_default()))),
                // A live leader renews in the meantime, so look again soon.
                Start::Wait(until) => {
                    let left = until.since(SystemClock.now().local);
                    tokio::time::sleep(left.min(LOOK_AGAIN)).await;
                }
                Start::Unknown => {
                    tokio::time::sleep(limit / 8 * ask).await;
                    ask += 1;
                }
            }
        }
        Some((FAILED, self.unknown()))
    }

    /// Returns the message for the case that the number of slots cannot be read.
    pub(super) fn unknown(&self) -> String {
        let (election, path) = (&self.place.election, self.place.first());
        format!(
            "cannot read the number of slots of {election} from {path}: nothing was started; try again"
        )
    }

    fn has(&self, left: u32) -> String {
        let election = &self.place.election;
        format!("the number of slots of election {election} was changed to {left}")
    }

    /// Returns the number of slots, if there is one; the outer `None` means that there was no response.
    async fn read(&self, limit: Duration) -> Option<Option<u32>> {
        let get = Request::get(self.place.first()).body(Vec::new()).ok()?;
        match tokio::time::timeout(limit, self.place.client.request::<Value>(get)).await {
            Ok(Ok(lease)) => Some(agreed(&lease)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Some(None),
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

fn agreed(lease: &Value) -> Option<u32> {
    let text = lease["metadata"]["annotations"][SLOTS].as_str()?;
    text.parse().ok()
}

/// Makes sure that all candidates use the same number of slots. The inner error is for the user.
pub(super) async fn agree(
    client: &Client,
    run: &Run,
    namespace: &str,
    slots: u32,
    lease: Duration,
) -> Result<Result<(), String>> {
    let election = &run.election.election;
    if run.election.lock != LockKind::Leases {
        return Ok(Err("--slots works with --lock=leases only".to_owned()));
    }
    let place = Place::new(client.clone(), namespace, election);
    if let Some(why) = place.refuse_with_slots(lease).await? {
        return Ok(Err(why));
    }
    let all = Resource::LEASE.path(namespace);
    let path = format!("{all}/{}", name_of(election, 0));
    // Several attempts, because the lease may be created or deleted between our requests.
    for _ in 0..5 {
        let get = Request::get(&path).body(Vec::new())?;
        let lease = match client.request::<Value>(get).await {
            Ok(lease) => lease,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let blank = json!({
                    "apiVersion": Resource::LEASE.api_version(),
                    "kind": Resource::LEASE.kind,
                    "metadata": {
                        "name": name_of(election, 0),
                        "namespace": namespace,
                        "labels": labels(election),
                        "annotations": { SLOTS: slots.to_string() },
                    },
                });
                let create = Request::post(&all)
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(blank.to_string().into_bytes())?;
                match client.request::<Value>(create).await {
                    Ok(_) => return Ok(Ok(())),
                    Err(kube::Error::Api(status)) if status.code == 409 => continue,
                    Err(error) => {
                        return Err(error).with_context(|| format!("cannot create {path}"));
                    }
                }
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        };
        match Rules::default().decide(agreed(&lease), slots, run.resize) {
            Decision::Join => return Ok(Ok(())),
            Decision::Refuse(agreed) => {
                return Ok(Err(format!(
                    "election {namespace}/{election} has {agreed} slots, not {slots}: use --slots \
                     {agreed}, or --resize to change it for everybody"
                )));
            }
            Decision::Write => {}
        }
        let version = &lease["metadata"]["resourceVersion"];
        let patch = json!({
            "metadata": { "resourceVersion": version, "annotations": { SLOTS: slots.to_string() } },
        });
        let patch = Request::patch(&path)
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(patch.to_string().into_bytes())?;
        match client.request::<Value>(patch).await {
            Ok(_) => return Ok(Ok(())),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot patch {path}")),
        }
    }
    Ok(Err(format!(
        "the slots of {namespace}/{election} change too fast; try again"
    )))
}

#[cfg(test)]
mod tests {
    use tenure_apiserver::TestServer;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    async fn put(client: &Client, name: &str, annotations: Value, spec: Value) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "labels": labels("e"), "annotations": annotations },
            "spec": spec,
        });
        let post = Request::post(Resource::LEASE.path("default"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(lease.to_string().into_bytes());
        client.request::<Value>(post.unwrap()).await.unwrap();
    }

    /// Writes the number of slots of the election "e", as a candidate with slots does before it campaigns.
    async fn put_number(client: &Client, number: &str) {
        put(client, "e-0", json!({ SLOTS: number }), json!({})).await;
    }

    fn held(by: &str, renewed: jiff::Timestamp, seconds: u32) -> Value {
        let time = format!("{renewed:.6}");
        json!({
            "holderIdentity": by, "leaseDurationSeconds": seconds, "renewTime": time, "acquireTime": time,
        })
    }

    #[tokio::test]
    async fn term_without_slots_is_refused_once_the_election_has_slots() {
        let server = TestServer::start().await.unwrap();
        let client = server.client().unwrap();
        let place = Place::new(client.clone(), "default", "e");
        assert_eq!(place.refuse_without_slots().await, None);
        assert_eq!(place.refuse_term(LIMIT).await, None);
        put_number(&client, "2").await;
        let why = "election default/e has 2 slots: pass --slots 2, or delete the lease e-0 if no candidate uses slots \
                   any more";
        assert_eq!(place.refuse_without_slots().await.as_deref(), Some(why));
        assert_eq!(place.refuse_term(LIMIT).await.as_deref(), Some(why));
        // Another election may have the name of a slot.
        let other = Place::new(client.clone(), "default", "other");
        put(&client, "other-0", json!({ SLOTS: "2" }), json!({})).await;
        assert_eq!(other.refuse_term(LIMIT).await, None);
    }

    #[tokio::test]
    async fn slot_is_refused_while_a_candidate_without_slots_leads() {
        let server = TestServer::start().await.unwrap();
        let client = server.client().unwrap();
        let place = Place::new(client.clone(), "default", "e");
        let slot = Slot::new(place.clone(), 1, LIMIT);
        put_number(&client, "2").await;
        assert_eq!(slot.refusal(LIMIT).await, None);
        put(
            &client,
            "e",
            json!({}),
            held("u\n", jiff::Timestamp::now(), 60),
        )
        .await;
        let why = "u\\n leads the election default/e without slots: remove --slots, or choose another election";
        assert_eq!(
            place.refuse_with_slots(LIMIT).await.unwrap().as_deref(),
            Some(why)
        );
        assert_eq!(slot.refusal(LIMIT).await, Some((USAGE, why.to_owned())));
        let removed = Slot::new(place, 2, LIMIT);
        let why = "the number of slots of election e was changed to 2";
        assert_eq!(removed.gone(LIMIT).await.as_deref(), Some(why));
        let why = format!("{why}; restart with this number");
        assert_eq!(removed.refusal(LIMIT).await, Some((USAGE, why)));
    }

    /// The holder has crashed long ago. Its lease does not change, so that it counts as gone after one lease duration.
    #[tokio::test]
    async fn slot_is_used_after_the_lease_of_a_dead_leader_without_slots() {
        let server = TestServer::start().await.unwrap();
        let client = server.client().unwrap();
        let place = Place::new(client.clone(), "default", "e");
        put_number(&client, "1").await;
        put(
            &client,
            "e",
            json!({}),
            held("u", jiff::Timestamp::UNIX_EPOCH, 2),
        )
        .await;
        assert_eq!(place.refuse_with_slots(LIMIT).await.unwrap(), None);
        let began = std::time::Instant::now();
        assert_eq!(Slot::new(place, 0, LIMIT).refusal(LIMIT).await, None);
        assert!(began.elapsed() >= Duration::from_secs(2));
    }

    #[test]
    fn every_slot_is_tried_once_and_the_last_one_first() {
        assert_eq!(order(3, None, 4), [1, 2, 0]);
        assert_eq!(order(3, Some(2), 0), [2, 0, 1]);
        assert_eq!(order(2, Some(7), 0), [0, 1], "a slot that is gone");
    }
}
