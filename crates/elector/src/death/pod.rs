//! Evidence of the kubelet: the end of a container, or of its whole pod.
//!
//! Invariant: only the kubelet's statements about the pod with the uid of the holder count (`kubelet.rs`). The absence
//! of a pod is not evidence, because the pod may have been deleted by force while its processes run.

use std::sync::Arc;

use kube::Client;
use tenure_core::death::Evidence;
use tenure_core::{Container, Incarnation, Place};
use tenure_lock::BoxFuture;

use super::watcher::{Target, Watcher};
use super::{AccessRule, DeathProof, is_label, kubelet, variable};
use crate::identity;

/// File with the namespace of a pod's service account.
const SERVICE_ACCOUNT_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Reason why a process does not know the container that it runs in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot describe the container of this process: {0}")]
pub struct UnknownContainer(String);

/// Evidence of the kubelet about containers. Cheap to clone; elections that use clones share one watch per pod.
///
/// The work must end with its container. Do not use this proof in a sidecar whose answers other containers use. Holders
/// are identified by the uid of their pod, the name of their container, and the run in which they acquired the lock.
///
/// Every candidate needs the permissions in [`rules`](Self::rules). Without them the source logs one warning, and
/// candidates wait for the lease.
///
/// The container needs these variables, and `CONTAINER_NAME` with the name of the container if `/proc` does not show
/// it:
///
/// ```yaml
/// env:
/// - name: POD_NAME
///   valueFrom: { fieldRef: { fieldPath: metadata.name } }
/// - name: POD_NAMESPACE
///   valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
/// - name: POD_UID
///   valueFrom: { fieldRef: { fieldPath: metadata.uid } }
/// ```
///
/// ```no_run
/// # fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let pod = tenure::PodProof::from_environment(client.clone())?;
/// let elector = tenure::Elector::lease(client, "shop", "my-lease")
///     .confirm_death(pod)
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PodProof {
    container: Container,
    pods: Arc<Watcher>,
}

impl PodProof {
    /// Describes this process by its container. Set the id only if the container runtime named it to this process. A
    /// pod status that is read at the start may still show the id of the run before.
    pub fn new(client: Client, container: Container) -> Self {
        let pods = Watcher::new(client, kubelet::evidence);
        Self { container, pods }
    }

    /// Describes this process by the variables `POD_NAME` (default: the host name), `POD_NAMESPACE` (default: that of
    /// the service account), `POD_UID` and `CONTAINER_NAME`. The kubelet's mounts in `/proc/self/mountinfo` supply a
    /// missing uid or container name.
    ///
    /// # Errors
    ///
    /// Fails if a value is missing, or if the kubelet's mounts contradict it.
    pub fn from_environment(client: Client) -> Result<Self, UnknownContainer> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let given = Given {
            namespace: variable("POD_NAMESPACE").or_else(service_account_namespace),
            pod: variable("POD_NAME").unwrap_or_else(identity::hostname),
            uid: variable("POD_UID"),
            container: variable("CONTAINER_NAME"),
        };
        Ok(Self::new(client, given.container(&mounts)?))
    }

    /// Returns the permissions that every candidate needs in the namespace of the pods.
    pub const fn rules() -> &'static [AccessRule] {
        &[AccessRule {
            group: "",
            resource: "pods",
            verbs: &["list", "watch"],
            cluster: false,
        }]
    }
}

impl DeathProof for PodProof {
    fn describe(&self, place: &mut Place) {
        place.container = Some(self.container.clone());
    }

    fn watch(&self, holder: &Arc<Incarnation>) -> Option<BoxFuture<'static, Vec<Evidence>>> {
        let container = holder.place.container.as_ref()?;
        // Another process wrote the description, and it becomes part of a path.
        if container.uid.is_empty() || !is_label(&container.namespace) {
            return None;
        }
        let target = Target {
            path: format!("/api/v1/namespaces/{}/pods", container.namespace),
            name: container.pod.clone(),
        };
        let uid = Some(container.uid.clone());
        Some(Box::pin(self.pods.clone().wait(
            target,
            uid,
            holder.clone(),
        )))
    }
}

/// Values of the environment that describe the container.
struct Given {
    namespace: Option<String>,
    pod: String,
    uid: Option<String>,
    container: Option<String>,
}

impl Given {
    /// Completes and checks these values with the kubelet's mounts.
    fn container(self, mountinfo: &str) -> Result<Container, UnknownContainer> {
        let mounts = kubelet_mounts(mountinfo);
        let (mut uid, mut name) = (self.uid, self.container);
        if let [(only_uid, only_name)] = mounts[..] {
            uid.get_or_insert_with(|| only_uid.to_owned());
            name.get_or_insert_with(|| only_name.to_owned());
        }
        let needed = |value: Option<String>, variable: &str| {
            value.ok_or_else(|| UnknownContainer(format!("{variable} is not set")))
        };
        let uid = needed(uid, "POD_UID")?;
        let name = needed(name, "CONTAINER_NAME")?;
        let namespace = needed(self.namespace, "POD_NAMESPACE")?;
        let own = (uid.as_str(), name.as_str());
        if let Some((mounted_uid, mounted)) = mounts.first()
            && !mounts.contains(&own)
        {
            return Err(UnknownContainer(format!(
                "POD_UID and CONTAINER_NAME state container {name:?} of pod {uid:?}, but the kubelet has mounted the \
                 files of container {mounted:?} of pod {mounted_uid:?}"
            )));
        }
        Ok(Container {
            namespace,
            pod: self.pod,
            uid,
            name,
            id: None,
        })
    }
}

/// Returns the uid of the pod and the name of the container for which the kubelet made each mount, without repetition.
/// Its files for a container are in `/var/lib/kubelet/pods/UID/containers/NAME`, for example the termination log.
fn kubelet_mounts(mountinfo: &str) -> Vec<(&str, &str)> {
    let mut mounts = Vec::new();
    for root in mountinfo.lines().filter_map(|line| line.split(' ').nth(3)) {
        let parts: Vec<_> = root.split('/').collect();
        let own = parts.windows(4).find_map(|part| match part {
            ["pods", uid, "containers", name] => Some((*uid, *name)),
            _ => None,
        });
        mounts.extend(own.filter(|own| !mounts.contains(own)));
    }
    mounts
}

fn service_account_namespace() -> Option<String> {
    let text = std::fs::read_to_string(SERVICE_ACCOUNT_NAMESPACE).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
612 600 0:61 / /proc rw,nosuid - proc proc rw
640 600 8:1 /var/lib/kubelet/pods/u1/etc-hosts /etc/hosts rw,relatime - ext4 /dev/sda1 rw
641 600 8:1 /var/lib/kubelet/pods/u1/containers/elector/0a1b2c3d /dev/termination-log rw,relatime - ext4 /dev/sda1 rw
642 600 8:1 /var/lib/kubelet/pods/u1/volume-subpaths/conf/other/0 /conf rw - ext4 /dev/sda1 rw
";

    fn given(uid: Option<&str>, container: Option<&str>) -> Given {
        Given {
            namespace: Some("shop".to_owned()),
            pod: "web-0".to_owned(),
            uid: uid.map(str::to_owned),
            container: container.map(str::to_owned),
        }
    }

    #[test]
    fn container_is_described_by_variables_and_by_the_mounts_of_the_kubelet() {
        for (uid, name, mounts) in [
            (Some("u1"), Some("elector"), ""),
            (Some("u1"), Some("elector"), MOUNTS),
            (Some("u1"), None, MOUNTS),
            (None, None, MOUNTS),
        ] {
            let container = given(uid, name).container(mounts).unwrap();
            assert_eq!((&*container.uid, &*container.name), ("u1", "elector"));
            assert_eq!((&*container.namespace, &*container.pod), ("shop", "web-0"));
            assert_eq!(container.id, None);
        }
    }

    #[test]
    fn missing_or_contradicted_variables_are_refused() {
        let refused = |given: Given, mounts| given.container(mounts).unwrap_err().to_string();
        for (given, mounts, why) in [
            (given(None, Some("elector")), "", "POD_UID is not set"),
            (given(Some("u1"), None), "", "CONTAINER_NAME is not set"),
            (given(Some("u2"), None), MOUNTS, "of pod \"u1\""),
            (
                given(Some("u1"), Some("proxy")),
                MOUNTS,
                "files of container \"elector\"",
            ),
        ] {
            let error = refused(given, mounts);
            assert!(error.contains(why), "{error}");
        }
        let mut outside = given(Some("u1"), Some("elector"));
        outside.namespace = None;
        assert!(refused(outside, MOUNTS).contains("POD_NAMESPACE"));
    }
}
