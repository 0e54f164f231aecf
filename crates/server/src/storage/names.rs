//! The plugins of Kubernetes that drivers replaced.

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
