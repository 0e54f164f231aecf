//! Who we are in an election.

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
