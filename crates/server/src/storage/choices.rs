//! How often claims were given a node, and how long they wait for the next one.
//!
//! A provisioner that cannot make a volume for a node gives the node back, at once if its driver is full. Without
//! a pause the two would write the claim in turns as fast as the server answers.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::objects::PersistentVolumeClaim;
use super::world::Name;

/// From the first choice to the second; each further one is twice as far away.
const FIRST: Duration = Duration::from_secs(1);
/// Never longer than this.
const MOST: Duration = Duration::from_secs(60);

/// The choices for claims that have no volume yet.
#[derive(Default)]
pub(super) struct Choices(HashMap<Name, Choice>);

struct Choice {
    /// Of the claim: another one under its name begins anew.
    uid: Option<String>,
    count: u32,
    last: Instant,
}

impl Choices {
    /// A node was chosen for a claim.
    pub(super) fn made(&mut self, claim: &PersistentVolumeClaim, now: Instant) {
        let uid = &claim.metadata.uid;
        let choice = self.0.entry(Name::of(&claim.metadata));
        let choice = choice.or_insert_with(|| Choice::none(uid, now));
        if choice.uid != *uid {
            *choice = Choice::none(uid, now);
        }
        choice.count = choice.count.saturating_add(1);
        choice.last = now;
    }

    /// How long it is until a claim may be given a node.
    pub(super) fn wait(&self, claim: &PersistentVolumeClaim, now: Instant) -> Duration {
        let choice = self.0.get(&Name::of(&claim.metadata));
        let choice = choice.filter(|choice| choice.uid == claim.metadata.uid);
        choice.map_or(Duration::ZERO, |choice| {
            pause(choice.count).saturating_sub(now.saturating_duration_since(choice.last))
        })
    }

    /// The claim has a volume, or is gone.
    pub(super) fn forget(&mut self, claim: &Name) {
        self.0.remove(claim);
    }
}

impl Choice {
    fn none(uid: &Option<String>, now: Instant) -> Self {
        Self {
            uid: uid.clone(),
            count: 0,
            last: now,
        }
    }
}

/// The time after a number of choices.
fn pause(count: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(count.saturating_sub(1));
    FIRST.saturating_mul(doubled).min(MOST)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(uid: &str) -> PersistentVolumeClaim {
        let meta = json!({ "namespace": "ns", "name": "c", "uid": uid });
        serde_json::from_value(json!({ "metadata": meta })).unwrap()
    }

    #[test]
    fn each_choice_is_further_away_up_to_a_minute() {
        let (claim, mut now) = (claim("a"), Instant::now());
        let mut choices = Choices::default();
        assert_eq!(choices.wait(&claim, now), Duration::ZERO);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            choices.made(&claim, now);
            let wait = choices.wait(&claim, now);
            assert_eq!(wait, Duration::from_secs(seconds));
            now += wait / 2;
            assert_eq!(choices.wait(&claim, now), wait / 2, "time counts");
            now += wait;
            assert_eq!(choices.wait(&claim, now), Duration::ZERO);
        }
        assert_eq!(pause(u32::MAX), MOST);
    }

    #[test]
    fn a_claim_that_is_forgotten_or_another_begins_anew() {
        let now = Instant::now();
        let mut choices = Choices::default();
        choices.made(&claim("a"), now);
        choices.made(&claim("a"), now);
        assert_eq!(choices.wait(&claim("b"), now), Duration::ZERO);
        choices.made(&claim("b"), now);
        assert_eq!(choices.wait(&claim("b"), now), FIRST);
        choices.forget(&Name::new("ns", "c"));
        assert_eq!(choices.wait(&claim("b"), now), Duration::ZERO);
    }
}
