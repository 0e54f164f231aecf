//! Annotation, finalizer and parameter names that the provisioner shares with drivers and the snapshotter. Names that
//! it shares with the volume binder are in `tenure_kinds::names`.

pub(crate) use tenure_kinds::names::{
    ALPHA_SELECTED_NODE, MIGRATED_TO, PROVISIONED_BY, SELECTED_NODE,
};

/// On a volume: the name of the secret for its deletion.
pub(crate) const DELETION_SECRET_NAME: &str =
    "volume.kubernetes.io/provisioner-deletion-secret-name";
/// The namespace of that secret.
pub(crate) const DELETION_SECRET_NAMESPACE: &str =
    "volume.kubernetes.io/provisioner-deletion-secret-namespace";
/// On a volume: the name of the secret for its modification.
pub(crate) const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
/// The namespace of that secret.
pub(crate) const MODIFY_SECRET_NAMESPACE: &str =
    "volume.kubernetes.io/controller-modify-secret-namespace";
/// On a VolumeSnapshotContent: allows a restore to change the volume mode.
pub(crate) const ALLOW_MODE_CHANGE: &str =
    "snapshot.storage.kubernetes.io/allow-volume-mode-change";
/// On a volume, with `--fencing-token-annotation`: the fencing token of the term that created it.
pub(crate) const FENCING_TOKEN: &str = "tenure.dev/fencing-token";

/// Keeps a volume object until its storage is deleted.
pub(crate) const VOLUME_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Keeps a claim while another is cloned from it.
pub(crate) const CLONE_FINALIZER: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// Keeps a snapshot while a claim is restored from it.
pub(crate) const SNAPSHOT_FINALIZER: &str =
    "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// Keeps a claim whose volume may exist without a volume object (`--provision-journal`).
pub(crate) const JOURNAL_FINALIZER: &str = "tenure.dev/provisioning";

/// Prefix of class parameters that the provisioner reads and does not pass to the driver.
pub(crate) const RESERVED_PREFIX: &str = "csi.storage.k8s.io/";
/// In the attributes of a volume: the run of the provisioner that created it. For information only.
pub(crate) const IDENTITY_ATTRIBUTE: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// Returns the name of the lock, derived from the driver's name as csi-lib-utils does.
pub(crate) fn lock_name(driver: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let mut name: String = driver.chars().map(keep).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}

/// Returns `<milliseconds>-<random>-<driver>`, followed by the node with `--node-deployment`.
pub(crate) fn run_identity(driver: &str, node: Option<&str>, now: jiff::Timestamp) -> String {
    let random = uuid::Uuid::new_v4().as_u64_pair().0 % 10_000;
    let node = node.map(|node| format!("-{node}")).unwrap_or_default();
    format!("{}-{random}-{driver}{node}", now.as_millisecond())
}

/// Returns the name of a claim's volume: the prefix, followed by the uid or its first `length` characters.
pub(crate) fn volume_name(
    prefix: &str,
    length: Option<usize>,
    uid: &str,
) -> Result<String, String> {
    if prefix.is_empty() {
        return Err("volume name prefix cannot be of length 0".to_owned());
    }
    if uid.is_empty() {
        return Err("the claim has no uid".to_owned());
    }
    Ok(match length {
        None => format!("{prefix}-{uid}"),
        Some(length) => {
            let short: String = uid.chars().filter(|c| *c != '-').take(length).collect();
            format!("{prefix}-{short}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_named_as_by_csi_lib_utils() {
        assert_eq!(lock_name("hostpath.csi.k8s.io"), "hostpath-csi-k8s-io");
        assert_eq!(lock_name("example.com/nfs"), "example-com-nfs");
        assert_eq!(lock_name("a.b."), "a-b-X");
    }

    #[test]
    fn volumes_are_named_by_their_claims() {
        let uid = "0a1b2c3d-0000-4000-8000-123456789abc";
        assert_eq!(volume_name("pvc", None, uid), Ok(format!("pvc-{uid}")));
        let short = volume_name("vol", Some(10), uid);
        assert_eq!(short.as_deref(), Ok("vol-0a1b2c3d00"));
        assert!(volume_name("", None, uid).is_err());
        assert!(volume_name("pvc", None, "").is_err());
    }
}
