//! Identities of candidates.

use uuid::Uuid;

/// Returns the name of this host and a random part: `web-7d9f_0b0c...`, like the core components of Kubernetes. Unique
/// per call, because the identity in a lock must distinguish incarnations (A4).
pub fn host_uuid() -> String {
    format!("{}_{}", hostname(), Uuid::new_v4())
}

/// Returns the name of this host; in a pod, the name of the pod.
pub fn hostname() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy().into_owned();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}

/// Returns a number that differs between incarnations.
pub(crate) fn seed() -> u64 {
    Uuid::new_v4().as_u64_pair().0
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
}
