//! Who we are in an election.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use uuid::Uuid;

/// The name of this host and something random: `web-7d9f_0b0c...`, as the core components of
/// Kubernetes do it. Unique per call, because the name in a lock must tell incarnations apart (A4).
pub fn host_uuid() -> String {
    format!("{}_{}", hostname(), Uuid::new_v4())
}

/// The name of this host; in a pod, the name of the pod.
pub fn hostname() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy().into_owned();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}

/// A number that differs between incarnations.
pub(crate) fn seed() -> u64 {
    Uuid::new_v4().as_u64_pair().0
}

/// Random durations, for retries that should not come all at once: a SplitMix64 sequence, so that a
/// simulated run depends on its seed alone.
#[derive(Debug)]
pub(crate) struct Jitter(AtomicU64);

impl Jitter {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// The next duration, below `limit`.
    pub(crate) fn below(&self, limit: Duration) -> Duration {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        limit.mul_f64(((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_carry_the_host_and_differ() {
        let (a, b) = (host_uuid(), host_uuid());
        assert!(a.starts_with(&format!("{}_", hostname())), "{a}");
        assert_ne!(a, b);
    }

    #[test]
    fn jitter_is_below_its_limit_and_follows_from_its_seed() {
        let limit = Duration::from_secs(1);
        let draw = |seed| {
            let jitter = Jitter::new(seed);
            [(); 20].map(|()| jitter.below(limit))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|delay| *delay < limit));
        assert!(draw(7).iter().any(|delay| *delay > limit / 2));
    }
}
