//! `tenure step-down`, `pause`, `resume`: orders to an election, written to its lock object and obeyed by its holder.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use kube::Client;
use serde_json::Value;
use tenure::Member;
use tenure_lock::duration::format as span;
use tenure_lock::member::{MOST_MEMBERS, MemberSnapshot, Members};
use tenure_lock::orders;

use crate::announce::{is_recent, members_path, renews, some_of};
use crate::api;
use crate::connect::{Connect, Opened};
use crate::election_name::OneElection;
use crate::elections::{self, Seen};
use crate::output::escaped;
use crate::values::duration;
use crate::waiting;

/// Maximum time in seconds that `step-down` waits for the next leader.
const MOST_PATIENCE: u64 = 300;

/// Reason why an identity cannot take over an election whose candidates are known.
const UNKNOWN: &str = "no living candidate announces this identity";

/// Ask the leader to hand over to another candidate
///
/// The leader stops its work and releases the lock.
#[derive(Args, Debug)]
pub(crate) struct StepDown {
    #[command(flatten)]
    election: OneElection,
    /// Candidate that should lead next [default: any]
    ///
    /// Other candidates wait one retry period longer. If candidates of this election announce themselves, this one must
    /// be among them and ready; otherwise the command fails and changes nothing.
    #[arg(long, value_name = "ID")]
    to: Option<String>,
    /// Time during which the current holder does not campaign [default: 30s]
    #[arg(long = "for", value_name = "D", value_parser = duration)]
    sit_out: Option<Duration>,
    /// Return immediately instead of waiting for the next leader
    #[arg(long)]
    no_wait: bool,
}

/// Keep candidates from acquiring an election
///
/// Its holder keeps its term.
#[derive(Args, Debug)]
pub(crate) struct Pause {
    #[command(flatten)]
    election: OneElection,
}

/// Resume a paused election
#[derive(Args, Debug)]
pub(crate) struct Resume {
    #[command(flatten)]
    election: OneElection,
}

/// Writes an order to the lock of an election.
async fn order(election: &OneElection, connect: &Connect, patch: &Value) -> Result<()> {
    let opened = connect.open(election.namespace.as_deref()).await?;
    let OneElection { name, lock, .. } = election;
    let order = elections::order(&opened.client, *lock, &opened.namespace, name, patch);
    waiting::on(opened.server, order).await
}

impl StepDown {
    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        let OneElection {
            name,
            namespace,
            lock,
        } = &self.election;
        let Opened {
            client,
            namespace,
            server,
        } = connect.open(namespace.as_deref()).await?;
        let look = elections::get(&client, *lock, &namespace, name);
        let Some(before) = waiting::on(&server, look).await? else {
            let missing = elections::missing(*lock, &namespace, name);
            bail!("{missing}; {}", elections::LIST_THEM);
        };
        if before.holder.is_empty() {
            bail!("nobody holds election {namespace}/{name}, so there is no leader to step down");
        }
        if let Some(to) = &self.to {
            let check = refusal(&client, &namespace, &before, to);
            if let Some(why) = waiting::on(&server, check).await {
                bail!("{why}");
            }
        }
        let patch = before.step_down_patch(self.to.as_deref(), self.sit_out);
        let order = elections::order(&client, *lock, &namespace, name, &patch);
        waiting::on(&server, order).await?;
        if self.no_wait {
            return Ok(0);
        }
        // Leaders for life have leases of days, but obey equally fast.
        let patience = (u64::from(before.lease_duration_seconds) * 2 + 5).min(MOST_PATIENCE);
        let mut vacant = 0;
        for turn in 0..patience * 20 {
            if turn == 20 {
                eprintln!(
                    "tenure: waiting up to {patience} s for {} to hand over",
                    escaped(&before.holder)
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            let look = elections::get(&client, *lock, &namespace, name);
            let now = waiting::on(&server, look).await?;
            let Some(now) = now else { continue };
            if now.transitions != before.transitions && !now.holder.is_empty() {
                println!("{} -> {}", escaped(&before.holder), escaped(&now.holder));
                return Ok(0);
            }
            vacant = if now.holder.is_empty() { vacant + 1 } else { 0 };
            // A candidate that watches acquires the lock within milliseconds. Other candidates need up to a retry
            // period.
            if vacant > 0 && (now.paused || vacant > most_vacant(&before)) {
                println!("{}", self.nobody_follows(&before, now.paused));
                return Ok(0);
            }
        }
        bail!(
            "{} still holds {namespace}/{name} {patience} s after the order to step down; only holders \
             that run tenure obey such orders",
            escaped(&before.holder)
        );
    }
}

impl StepDown {
    /// Returns the report that a holder stepped down and nobody took over.
    fn nobody_follows(&self, before: &Seen, paused: bool) -> String {
        let (holder, name) = (escaped(&before.holder), &self.election.name);
        if paused {
            return format!(
                "{holder} stepped down; nobody can take over while the election is paused; run \
                 `tenure resume {name}`"
            );
        }
        let away = self.sit_out.unwrap_or(orders::DEFAULT_SIT_OUT);
        format!(
            "{holder} stepped down; nobody took over, because there is no other candidate; {holder} \
             may campaign again {} after the order",
            span(away)
        )
    }
}

impl Pause {
    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        order(&self.election, connect, &orders::pause_patch()).await?;
        println!(
            "paused {name}: nobody can acquire it until `tenure resume {name}`",
            name = self.election.name
        );
        Ok(0)
    }
}

impl Resume {
    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        order(&self.election, connect, &orders::resume_patch()).await?;
        println!("resumed {}", self.election.name);
        Ok(0)
    }
}

/// Returns why this candidate cannot take over. Returns nothing if it can, or if its election has no living member,
/// because other candidates, for example of client-go, do not announce themselves.
pub(crate) async fn refusal(
    client: &Client,
    namespace: &str,
    before: &Seen,
    to: &str,
) -> Option<String> {
    // Without the permission to list, the order works as before.
    let path = members_path(Some(namespace), &before.name);
    let answer = api::get(client, &format!("{path}&limit={MOST_MEMBERS}"))
        .await
        .ok()?;
    let items = answer.body["items"].as_array()?;
    let now = answer.clock.now();
    let members: Vec<MemberSnapshot> = items
        .iter()
        .filter_map(MemberSnapshot::read)
        .filter(|found| found.election == before.name)
        .collect();
    // The list has a limit, so a candidate that is missing from it may still exist.
    let named = match members.iter().find(|found| found.member.identity == to) {
        Some(found) => Some(found.clone()),
        None => read(client, namespace, &before.name, to).await.ok()?,
    };
    let living = members.iter().filter(|found| is_recent(found, now));
    let living: Vec<&Member> = living.map(|found| &found.member).collect();
    let why = match named {
        Some(found) => match &found.member.not_ready {
            Some(why) if why.is_empty() => "it is not ready".to_owned(),
            Some(why) => format!("it is not ready: {}", escaped(why)),
            None if is_recent(&found, now) => return None,
            // The clock of the candidate may be wrong. If that cannot be found out, the order is sent.
            None if renews(client, namespace, &found).await.unwrap_or(true) => return None,
            None => UNKNOWN.to_owned(),
        },
        None if living.is_empty() => return None,
        None => UNKNOWN.to_owned(),
    };
    let ready = living
        .iter()
        .filter(|member| member.is_ready() && member.identity != before.holder)
        .map(|member| escaped(&member.identity))
        .collect();
    let ready = some_of(ready).unwrap_or_else(|| "none".to_owned());
    let (to, name) = (escaped(to), &before.name);
    Some(format!(
        "candidate {to} cannot take over {namespace}/{name}: {why}; nothing was changed; ready candidates: {ready}"
    ))
}

/// Reads the member of one candidate.
async fn read(
    client: &Client,
    namespace: &str,
    election: &str,
    identity: &str,
) -> Result<Option<MemberSnapshot>, tenure_lock::Error> {
    let members = Members::open(client.clone(), namespace, election)?;
    members.read(identity).await
}

/// Returns the number of consecutive reads of a free lock, over a third of the lease duration, after which no candidate
/// is expected to acquire it.
fn most_vacant(before: &Seen) -> u64 {
    let third = u64::from(before.lease_duration_seconds).div_ceil(3);
    third.clamp(1, 10) * 20
}

#[cfg(test)]
mod tests {
    use tenure::WallTime;
    use tenure_apiserver::TestServer;
    use tenure_lock::LockKind;

    use super::*;

    /// Writes a member with a renew time that is this many seconds ago.
    async fn announce(client: &Client, identity: &str, not_ready: Option<&str>, ago: i64) {
        let member = Member {
            identity: identity.to_owned(),
            not_ready: not_ready.map(str::to_owned),
            ..Member::default()
        };
        let renewed = jiff::Timestamp::now().as_microsecond() - ago * 1_000_000;
        let renewed = WallTime::from_micros(renewed);
        let members = Members::open(client.clone(), "default", "web").unwrap();
        // The duration is long enough for `b` to stay alive, although no candidate renews it.
        let duration = Duration::from_secs(if ago == 0 { 300 } else { 4 });
        members
            .write(&member, duration, renewed, None)
            .await
            .unwrap();
    }

    fn web(client: &Client) -> Seen {
        let lease = serde_json::json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "1" },
            "spec": { "holderIdentity": "a", "leaseDurationSeconds": 15 },
        });
        elections::see(client, LockKind::Leases, lease, jiff::Timestamp::now()).unwrap()
    }

    #[tokio::test]
    async fn orders_for_candidates_that_are_dead_or_not_ready_are_refused() {
        let server = TestServer::start().await.unwrap();
        let client = server.client().unwrap();
        let web = web(&client);
        assert_eq!(
            refusal(&client, "default", &web, "x").await,
            None,
            "nobody announces itself"
        );
        announce(&client, "late", Some("unhealthy"), 3_600).await;
        announce(&client, "dead", None, 3_600).await;
        announce(&client, "dead-with-fast-clock", None, -3_600).await;
        announce(&client, "b", None, 0).await;
        for (to, why) in [
            ("x", UNKNOWN),
            ("dead", UNKNOWN),
            ("dead-with-fast-clock", UNKNOWN),
            ("late", "it is not ready: unhealthy"),
        ] {
            let expected = format!(
                "candidate {to} cannot take over default/web: {why}; nothing was changed; ready candidates: b"
            );
            assert_eq!(refusal(&client, "default", &web, to).await, Some(expected));
        }
        assert_eq!(refusal(&client, "default", &web, "b").await, None);
    }
}
