//! Names that the storage controllers of Kubernetes use.

/// On claims and volumes: the binder chose the other object, not a person.
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// On a claim: it was bound once.
pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// On a volume: the provisioner that created it.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// On claims and volumes: the driver that replaces the plugin named by the class.
pub(super) const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// On a claim: the provisioner that should create its volume.
pub(super) const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// The same for older provisioners.
pub(super) const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";

/// On a claim: the node on which the first pod that uses it should run.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// On claims and volumes: the class, from before there was a field for it.
pub(super) const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
pub(super) const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

/// Name prefix of the plugins that are part of Kubernetes.
pub(super) const IN_TREE: &str = "kubernetes.io/";

/// Plugins that were replaced by drivers.
const MIGRATED: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];

/// Returns the driver that replaces a plugin.
pub(super) fn migrated(plugin: &str) -> Option<&'static str> {
    let found = MIGRATED.iter().find(|(old, _)| *old == plugin);
    found.map(|(_, driver)| *driver)
}
