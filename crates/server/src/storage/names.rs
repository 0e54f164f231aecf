//! Names that the storage controllers of Kubernetes agreed on.

/// On both: the other end was chosen by the binder, not by a person.
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// On a claim: it was bound once.
pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// On a volume: who made it.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// On both: the driver that took over from the plugin the class names.
pub(super) const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// On a claim: who is to make its volume.
pub(super) const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// The same, as older provisioners read it.
pub(super) const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";

/// On a claim: where the first pod that uses it is to run.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// On both: the class, before there was a field for it.
pub(super) const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
pub(super) const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

/// What plugins of Kubernetes itself are called.
pub(super) const IN_TREE: &str = "kubernetes.io/";

/// Plugins that are drivers today.
const MIGRATED: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];

/// The driver that took over from a plugin.
pub(super) fn migrated(plugin: &str) -> Option<&'static str> {
    let found = MIGRATED.iter().find(|(old, _)| *old == plugin);
    found.map(|(_, driver)| *driver)
}
