//! Ranks of the candidates that announce themselves.

use std::time::Duration;

use tenure_core::{Failback, Preference, Rank, Standing};
use tenure_lock::member::{Announcement, Member};

/// Bounds of the time for which a leader observes a better candidate.
const TIMES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));

/// How the candidates of an election are ranked: by their announced priority, and among candidates of equal priority by
/// their zone. All candidates of an election must use the same zone and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// What this candidate does as the leader if a better candidate is ready; [`Failback::Never`] by default.
    pub failback: Failback,
    /// Time for which a leader observes a better candidate, during its own term, before it hands over; 30 s by default.
    /// It must be between one second and one day. An election has at most one such hand-over in this time.
    pub failback_after: Duration,
    /// Zone whose candidates are preferred; none by default.
    pub zone: Option<String>,
}

impl Default for Ranking {
    fn default() -> Self {
        Self {
            failback: Failback::default(),
            failback_after: Duration::from_secs(30),
            zone: None,
        }
    }
}

impl Ranking {
    /// Returns whether the time is permitted.
    pub(crate) fn is_valid(&self) -> bool {
        (TIMES.0..=TIMES.1).contains(&self.failback_after)
    }

    /// Returns the preference of a candidate that announces these properties.
    pub(crate) fn preference(&self, about: &Announcement) -> Preference {
        Preference {
            rank: self.rank(about),
            failback: self.failback,
            failback_after: self.failback_after,
        }
    }

    /// Returns the standing of each of these candidates.
    pub(crate) fn standings<'a>(&self, members: impl Iterator<Item = &'a Member>) -> Vec<Standing> {
        let standing = |member: &Member| Standing {
            identity: member.identity.clone(),
            rank: self.rank(&member.about),
            ready: member.is_ready(),
        };
        members.map(standing).collect()
    }

    fn rank(&self, about: &Announcement) -> Rank {
        Rank {
            priority: about.priority,
            in_zone: self.zone.is_some() && self.zone == about.zone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(identity: &str, priority: i32, zone: Option<&str>) -> Member {
        Member {
            identity: identity.to_owned(),
            about: Announcement {
                priority,
                zone: zone.map(str::to_owned),
                ..Announcement::default()
            },
            ..Member::default()
        }
    }

    #[test]
    fn candidates_are_ranked_by_priority_and_then_by_zone() {
        let ranking = Ranking {
            zone: Some("a".to_owned()),
            ..Ranking::default()
        };
        let mut unready = member("d", 9, None);
        unready.not_ready = Some("unhealthy".to_owned());
        let members = [
            member("a", 1, Some("b")),
            member("b", 1, Some("a")),
            member("c", 2, None),
            unready,
        ];
        let standings = ranking.standings(members.iter());
        assert!(standings.is_sorted_by_key(|standing| standing.rank));
        let ready: Vec<bool> = standings.iter().map(|standing| standing.ready).collect();
        assert_eq!(ready, [true, true, true, false]);
        assert_eq!(
            ranking.preference(&members[1].about).rank,
            standings[1].rank
        );
    }

    #[test]
    fn without_a_preferred_zone_zones_do_not_matter() {
        let members = [member("a", 1, None), member("b", 1, Some("b"))];
        let standings = Ranking::default().standings(members.iter());
        assert_eq!(standings[0].rank, standings[1].rank);
    }

    #[test]
    fn time_is_limited() {
        for (millis, valid) in [
            (999, false),
            (1_000, true),
            (86_400_000, true),
            (86_400_001, false),
        ] {
            let ranking = Ranking {
                failback_after: Duration::from_millis(millis),
                ..Ranking::default()
            };
            assert_eq!(ranking.is_valid(), valid, "{millis}");
        }
        assert!(Ranking::default().is_valid());
    }
}
