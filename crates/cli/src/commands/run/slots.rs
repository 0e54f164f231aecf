//! `--slots N`: a semaphore. It consists of N ordinary leases `<election>-0` to `<election>-<N-1>`, of which a
//! candidate holds at most one.
//!
//! All candidates must use the same N. It is written to the lease of slot 0, and a candidate with another number is
//! rejected unless it uses `--resize`. After N was reduced, holders of removed slots finish their command and start
//! nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use tenure::core::slots::{Decision, Rules, Start};
use tenure::lock::{LockKind, Resource};

use super::args::Run;
use super::{FAILED, USAGE};
use crate::output::escaped;

/// The label of every slot's lease.
pub(super) const LABEL: &str = "tenure.dev/semaphore";

/// The annotation with N on the lease of slot 0.
const SLOTS: &str = "tenure.dev/slots";

/// Number of reads of the number of slots before a slot that was won is given up.
const ASKS: u32 = 5;

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

/// A slot that is held.
#[derive(Clone)]
pub(super) struct Slot {
    client: Client,
    /// Path of the lease with the number of slots.
    path: String,
    election: String,
    slot: u32,
}

impl Slot {
    pub(super) fn new(client: Client, namespace: &str, election: &str, slot: u32) -> Self {
        let all = Resource::LEASE.path(namespace);
        let path = format!("{all}/{}", name_of(election, 0));
        let election = election.to_owned();
        Self {
            client,
            path,
            election,
            slot,
        }
    }

    /// Returns a message if the number of slots was reduced so that this one is removed. A failed read changes nothing.
    pub(super) async fn gone(&self, limit: Duration) -> Option<String> {
        match Rules::default().may_start(self.slot, self.read(limit).await) {
            Start::Gone(left) => Some(self.has(left)),
            Start::Yes | Start::Unknown => None,
        }
    }

    /// Returns why this slot, which was just won, may not be used, with the exit code. Each read takes at most `limit`.
    /// Without a response the slot is not used, because the number may have changed while this candidate waited for it.
    pub(super) async fn refusal(&self, limit: Duration) -> Option<(u8, String)> {
        for ask in 0..ASKS {
            match Rules::default().may_start(self.slot, self.read(limit).await) {
                Start::Yes => return None,
                Start::Gone(left) => {
                    let why = format!("{}: start it again with that", self.has(left));
                    return Some((USAGE, why));
                }
                Start::Unknown => tokio::time::sleep(limit / 8 * ask).await,
            }
        }
        Some((FAILED, self.unknown()))
    }

    /// Returns the message for the case that the number of slots cannot be read.
    pub(super) fn unknown(&self) -> String {
        let Self { election, path, .. } = self;
        format!(
            "cannot read the number of slots of {election} from {path}: nothing was started; try again"
        )
    }

    fn has(&self, left: u32) -> String {
        format!("the election {} has --slots {left} by now", self.election)
    }

    /// Returns the number of slots, if there is one; the outer `None` means that there was no response.
    async fn read(&self, limit: Duration) -> Option<Option<u32>> {
        let get = Request::get(&self.path).body(Vec::new()).ok()?;
        match tokio::time::timeout(limit, self.client.request::<Value>(get)).await {
            Ok(Ok(lease)) => Some(agreed(&lease)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Some(None),
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

/// Why this election cannot be joined without `--slots`: other candidates use it with slots, so that this one would
/// run alongside them. `None` also if the lease of slot 0 cannot be read: candidates without slots need no permission
/// for it, and start without an API server.
pub(super) async fn refuse_without_slots(
    client: &Client,
    namespace: &str,
    election: &str,
) -> Option<String> {
    let path = format!(
        "{}/{}",
        Resource::LEASE.path(namespace),
        name_of(election, 0)
    );
    let lease = read_if_allowed(client, &path).await.ok().flatten()?;
    if lease["metadata"]["labels"][LABEL] != election {
        return None;
    }
    let slots = agreed(&lease)?;
    let first = name_of(election, 0);
    Some(format!(
        "election {namespace}/{election} has {slots} slots: pass --slots {slots}, or delete the lease {first} if no \
         candidate uses slots any more"
    ))
}

/// Why this election cannot be joined with `--slots`: a candidate without slots leads it.
async fn refuse_with_slots(
    client: &Client,
    namespace: &str,
    election: &str,
) -> Result<Option<String>> {
    let path = format!("{}/{election}", Resource::LEASE.path(namespace));
    let Some(lease) = read_if_allowed(client, &path).await? else {
        return Ok(None);
    };
    let spec = &lease["spec"];
    let holder = spec["holderIdentity"].as_str().unwrap_or_default();
    if holder.is_empty() || has_expired(spec) {
        return Ok(None);
    }
    let holder = escaped(holder);
    Ok(Some(format!(
        "{holder} leads the election {namespace}/{election} without slots: remove --slots, or choose another election"
    )))
}

/// The lease at this path, if it exists and may be read.
async fn read_if_allowed(client: &Client, path: &str) -> Result<Option<Value>> {
    let get = Request::get(path).body(Vec::new())?;
    match client.request::<Value>(get).await {
        Ok(lease) => Ok(Some(lease)),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {path}")),
    }
}

/// Whether a lease has expired by the clock of this machine. That is exact enough for a refusal, which decides no
/// election.
fn has_expired(spec: &Value) -> bool {
    let renewed = spec["renewTime"]
        .as_str()
        .and_then(|time| time.parse().ok());
    let renewed: Option<jiff::Timestamp> = renewed;
    let lasts = spec["leaseDurationSeconds"].as_i64().unwrap_or_default();
    renewed.is_none_or(|renewed| jiff::Timestamp::now().duration_since(renewed).as_secs() > lasts)
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
) -> Result<Result<(), String>> {
    let election = &run.election.election;
    if run.election.lock != LockKind::Leases {
        return Ok(Err("--slots works with --lock=leases only".to_owned()));
    }
    if let Some(why) = refuse_with_slots(client, namespace, election).await? {
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
    use super::*;

    #[test]
    fn every_slot_is_tried_once_and_the_last_one_first() {
        assert_eq!(order(3, None, 4), [1, 2, 0]);
        assert_eq!(order(3, Some(2), 0), [2, 0, 1]);
        assert_eq!(order(2, Some(7), 0), [0, 1], "a slot that is gone");
    }
}
