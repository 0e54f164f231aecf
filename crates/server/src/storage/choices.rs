//! How often nodes were selected for claims, and how long the claims wait for the next node.
//!
//! A provisioner that cannot create a volume for a node removes the selected node from the claim, immediately if its
//! driver is full. Without a delay, both would write the claim in turns as fast as the server responds.

use std::collections::HashMap;
use std::time::Duration;

use tenure_kinds::PersistentVolumeClaim;
use tokio::time::Instant;

use super::world::Name;

/// Delay between the first and the second selection. Each further delay is twice as long.
const FIRST: Duration = Duration::from_secs(1);
/// Maximum delay.
const MOST: Duration = Duration::from_secs(60);

/// The selections for claims that have no volume yet.
#[derive(Default)]
pub(super) struct Choices(HashMap<Name, Choice>);

struct Choice {
    /// Uid of the claim. Another claim with the same name starts again.
    uid: Option<String>,
    count: u32,
    last: Instant,
}

impl Choices {
    /// Records that a node was selected for a claim.
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

    /// Returns how long to wait before a node may be selected for a claim.
    pub(super) fn wait(&self, claim: &PersistentVolumeClaim, now: Instant) -> Duration {
        let choice = self.0.get(&Name::of(&claim.metadata));
        let choice = choice.filter(|choice| choice.uid == claim.metadata.uid);
        choice.map_or(Duration::ZERO, |choice| {
            pause(choice.count).saturating_sub(now.saturating_duration_since(choice.last))
        })
    }

    /// Forgets a claim that has a volume or is gone.
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

/// Returns the delay after a number of selections.
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
    fn delay_between_selections_doubles_up_to_a_minute() {
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
    fn forgotten_or_replaced_claim_starts_without_a_delay() {
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
