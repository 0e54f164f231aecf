//! The flags by which a candidate announces itself, and the candidates as commands show them.
//!
//! A process that campaigns observes the changes of members ([`tenure::Membership`]). A command that reads once cannot.
//! It compares renew times with the clock of the API server instead, so that a candidate with a wrong clock may be shown
//! as dead. Before such a command acts on it, it observes the candidate ([`renews`]).

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde::Serialize;
use tenure::{Announcement, Builder, Member, Ranking, WallTime};
use tenure_lock::LockKind;
use tenure_lock::member::{MemberSnapshot, Members, election_label};

use crate::election::variable;
use crate::elections;
use crate::rbac::{self, Rule};
use crate::values::{duration, name};

/// Limit of the candidates that are shown in one line.
const MOST_SHOWN: usize = 10;

/// Longest observation of a member. Members of Tenure have durations of at most 30 s, but another writer may state any
/// duration.
const LONGEST_OBSERVATION: Duration = Duration::from_secs(15);

/// The flags.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Announce {
    /// Announce this candidate, so that others see it
    ///
    /// It keeps a second Lease, ELECTION.member.HASH, and deletes it at the end. `tenure status -o wide` and
    /// `/v1/candidates` show it.
    #[arg(long, env = "TENURE_ANNOUNCE")]
    pub(crate) announce: bool,
    /// Failure zone to announce [default: none]
    #[arg(long, value_name = "ZONE", env = "TENURE_ZONE", value_parser = name)]
    pub(crate) zone: Option<String>,
    /// Priority among the candidates; a greater one is preferred [default: 0]
    ///
    /// Implies --announce. Candidates of lower priority let better ones acquire a free lease first. --failback=auto also
    /// makes them hand over.
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_PRIORITY",
        allow_negative_numbers = true
    )]
    pub(crate) priority: Option<i32>,
    /// Zone preferred among candidates of equal priority [default: none]
    ///
    /// Implies --announce. All candidates must use the same value.
    #[arg(long, value_name = "ZONE", env = "TENURE_PREFER_ZONE", value_parser = name)]
    pub(crate) prefer_zone: Option<String>,
    /// What a leader does if a better candidate is ready
    ///
    /// Implies --announce, unless it is `never`.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        env = "TENURE_FAILBACK",
        default_value_t
    )]
    pub(crate) failback: Failback,
    /// Time for which a leader observes a better candidate before it hands over
    ///
    /// It counts from the beginning of the term. An election therefore has at most one such hand-over in this time.
    #[arg(long, value_name = "D", env = "TENURE_FAILBACK_AFTER", default_value = "30s", value_parser = duration)]
    pub(crate) failback_after: Option<Duration>,
}

/// What a leader does if a better candidate is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Failback {
    /// Keep leading
    #[default]
    Never,
    /// Keep leading, and log which candidate could take over
    Manual,
    /// End the work, and hand over to that candidate
    Auto,
}

impl From<Failback> for tenure::Failback {
    fn from(failback: Failback) -> Self {
        match failback {
            Failback::Never => Self::Never,
            Failback::Manual => Self::Manual,
            Failback::Auto => Self::Auto,
        }
    }
}

impl Announce {
    /// Returns whether this candidate announces itself.
    pub(crate) fn is_announced(&self) -> bool {
        self.announce || self.is_ranked()
    }

    fn is_ranked(&self) -> bool {
        self.priority.is_some() || self.prefer_zone.is_some() || self.failback != Failback::Never
    }

    /// Announces and ranks the candidate of this builder if the flags ask for it.
    pub(crate) fn apply(&self, builder: Builder, address: Option<String>) -> Builder {
        if !self.is_announced() {
            return builder;
        }
        let builder = builder.announce(Announcement {
            priority: self.priority.unwrap_or_default(),
            zone: self.zone.clone(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            address,
        });
        if !self.is_ranked() {
            return builder;
        }
        let default = Ranking::default();
        builder.rank(Ranking {
            failback: self.failback.into(),
            failback_after: self.failback_after.unwrap_or(default.failback_after),
            zone: self.prefer_zone.clone(),
        })
    }

    /// Adds the permissions that it needs in the namespace of the lock. Names of members contain a hash, so they cannot
    /// be listed in a Role.
    pub(crate) fn add_rules(&self, mut rules: Vec<Rule>) -> Vec<Rule> {
        if !self.is_announced() {
            return rules;
        }
        let verbs = vec!["create", "delete", "list", "update"];
        rules.push(Rule::any("coordination.k8s.io", "leases", verbs));
        rbac::merged(rules)
    }
}

/// Returns the URL of this pod for a TCP listener, as far as it is known.
pub(crate) fn url_of(listener: &str) -> Option<String> {
    let (host, port) = listener.rsplit_once(':')?;
    let host = match host {
        "0.0.0.0" | "[::]" => variable("POD_IP")?,
        host => host.to_owned(),
    };
    let host = match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]"),
        false => host,
    };
    (port != "0").then(|| format!("http://{host}:{port}/"))
}

/// A living candidate, for display and for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Candidate {
    pub(crate) identity: String,
    pub(crate) ready: bool,
    pub(crate) reason: Option<String>,
    pub(crate) since: Option<String>,
    pub(crate) priority: i32,
    pub(crate) zone: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) address: Option<String>,
}

impl From<Member> for Candidate {
    fn from(member: Member) -> Self {
        let ready = member.is_ready();
        let text = |time: WallTime| Timestamp::from_microsecond(time.as_micros()).ok();
        Self {
            identity: member.identity,
            ready,
            reason: member.not_ready,
            since: member.since.and_then(text).map(|time| time.to_string()),
            priority: member.about.priority,
            zone: member.about.zone,
            version: member.about.version,
            address: member.about.address,
        }
    }
}

/// Returns whether the renew time of a member says that it is alive, given the time of the API server. A time far in the
/// future says nothing, because a dead member would keep it.
pub(crate) fn is_recent(member: &MemberSnapshot, now: Timestamp) -> bool {
    let renewed = member.renew_time.map(WallTime::as_micros);
    let renewed = renewed.and_then(|time| Timestamp::from_microsecond(time).ok());
    let duration = SignedDuration::try_from(member.duration).unwrap_or(SignedDuration::MAX);
    renewed.is_some_and(|renewed| now.duration_since(renewed).abs() < duration)
}

/// Joins texts about candidates, at most [`MOST_SHOWN`]; `None` if there are none.
pub(crate) fn some_of(mut candidates: Vec<String>) -> Option<String> {
    let more = candidates.len().saturating_sub(MOST_SHOWN);
    candidates.truncate(MOST_SHOWN);
    let shown = candidates.join(", ");
    match more {
        0 => (!shown.is_empty()).then_some(shown),
        more => Some(format!("{shown} and {more} more")),
    }
}

/// Returns the path of the members of an election, in one namespace or in all.
pub(crate) fn members_path(namespace: Option<&str>, election: &str) -> String {
    let leases = elections::collection(LockKind::Leases, namespace);
    let label = election_label(election);
    format!("{leases}?labelSelector=tenure.dev%2Felection%3D{label}")
}

/// Observes a member whose renew time is old, because its clock may be wrong. Returns whether it renews.
pub(crate) async fn renews(
    client: &Client,
    namespace: &str,
    member: &MemberSnapshot,
) -> Result<bool> {
    let members = Members::open(client.clone(), namespace, &member.election)?;
    // A member renews three times within its duration, and at most an eighth later.
    let longest = (member.duration / 2).min(LONGEST_OBSERVATION);
    let step = Duration::from_millis(250);
    let mut waited = Duration::ZERO;
    while waited < longest {
        tokio::time::sleep(step).await;
        waited += step;
        match members.read(&member.member.identity).await? {
            Some(now) if now.version != member.version => return Ok(true),
            Some(_) => {}
            None => return Ok(false),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use tenure_core::{ResourceVersion, Version};

    use super::*;

    #[test]
    fn address_is_announced_only_if_others_can_use_it() {
        assert_eq!(
            url_of("10.0.0.7:4040").as_deref(),
            Some("http://10.0.0.7:4040/")
        );
        assert_eq!(url_of("localhost:0"), None);
        assert_eq!(url_of("0.0.0.0:4040"), None, "without POD_IP");
        assert_eq!(url_of("nonsense"), None);
    }

    #[test]
    fn only_some_of_many_candidates_are_shown() {
        let names = |count: u32| (0..count).map(|n| n.to_string()).collect();
        assert_eq!(some_of(names(0)), None);
        assert_eq!(some_of(names(2)).as_deref(), Some("0, 1"));
        let many = some_of(names(12)).unwrap();
        assert_eq!(many, "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }

    #[test]
    fn member_is_recent_until_its_duration_has_passed_by_the_servers_clock() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut member = MemberSnapshot {
            name: "web.member.x".to_owned(),
            election: "web".to_owned(),
            member: Member::default(),
            duration: Duration::from_secs(30),
            renew_time: Some(WallTime::from_micros(1_000_000_000)),
            version: Version {
                uid: "u".into(),
                revision: ResourceVersion::new("1"),
            },
        };
        assert!(is_recent(&member, at(1029)) && is_recent(&member, at(971)));
        assert!(!is_recent(&member, at(1030)));
        assert!(!is_recent(&member, at(970)), "its clock is far ahead");
        member.renew_time = None;
        assert!(!is_recent(&member, at(1029)), "it never renewed");
    }
}
