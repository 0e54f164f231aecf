//! Names of annotations and finalizers that the volume binder, provisioners and drivers share.

/// On a claim: the provisioner, written by the volume binder.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// On a claim: the provisioner, in the form that older provisioners read.
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On a claim: the node of its first pod.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a claim: the node of its first pod, in the form that older schedulers write.
pub const ALPHA_SELECTED_NODE: &str = "volume.alpha.kubernetes.io/selected-node";
/// On claims and volumes: the class, as it was set before the field existed.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On claims and volumes of an in-tree plugin: the CSI driver that replaced the plugin.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// On a volume: the provisioner that created it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On claims and volumes: the volume binder, not a user, chose the object to which this one is bound.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a claim: it was bound once.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// kubectl's last-applied annotation, a copy of the object.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Finalizer that keeps a claim while a pod uses it.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Finalizer that keeps a volume while it is bound.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

/// Name prefix of the plugins that are part of Kubernetes.
pub const IN_TREE: &str = "kubernetes.io/";
