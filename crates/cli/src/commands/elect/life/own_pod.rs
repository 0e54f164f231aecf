//! The pod of this process, verified before the first write.
//!
//! The uid from the downward API is the proof. A pod that is read with exactly that uid is this pod, regardless of the
//! source of its name. A host name without that proof may be the name of a node, or of another pod.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use kube::Client;
use tenure_core::undertaker::{NotOwnPod, PodId, Rules, verify_own_pod};
use tokio::time::timeout;

use super::{AGAIN, MARK, REQUEST, observation, pod_path};
use crate::api;
use crate::election::{pod_name, pod_namespace, variable};

/// The variables that identify the pod of a process.
const DOWNWARD_API: &str = "\
env:
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid";

/// The pod in which this process claims to run.
#[derive(Clone, Debug)]
pub(in crate::commands::elect) struct OwnPod {
    pub(super) namespace: String,
    pub(super) pod: PodId,
    /// Whether the name is the host name, because no variable contains it.
    guessed: bool,
}

/// Reason why this process cannot prove which pod it runs in, and what to do about it.
#[derive(Debug)]
pub(in crate::commands::elect) struct NotProven {
    why: String,
}

impl fmt::Display for NotProven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = &self.why;
        write!(
            f,
            "--mode=for-life {why}; set these variables in the container of the pod:\n{DOWNWARD_API}"
        )
    }
}

impl NotProven {
    fn new(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}

impl OwnPod {
    /// Returns the pod according to the environment. The uid and the namespace are required. The name may be the host
    /// name, because the uid shows whether it is correct.
    pub(in crate::commands::elect) fn from_environment() -> Result<Self, NotProven> {
        let uid = variable("POD_UID")
            .ok_or_else(|| NotProven::new("needs the pod's uid, and POD_UID is not set"))?;
        let namespace = pod_namespace().ok_or_else(|| {
            NotProven::new("needs the pod's namespace, and POD_NAMESPACE is not set")
        })?;
        let pod = PodId {
            name: pod_name(),
            uid,
        };
        if PodId::parse(&pod.identity()).as_ref() != Some(&pod) {
            let PodId { name, uid } = &pod;
            let why =
                format!("cannot use pod {name:?} with uid {uid:?}: underscores are not allowed");
            return Err(NotProven::new(why));
        }
        Ok(Self {
            namespace,
            pod,
            guessed: variable("POD_NAME").is_none(),
        })
    }

    /// Creates a pod for tests.
    #[cfg(test)]
    pub(super) fn scripted(namespace: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            pod: PodId::parse(identity).unwrap(),
            guessed: false,
        }
    }

    /// Returns the labels that every write of this candidate sets on the Lease.
    pub(in crate::commands::elect) fn labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(MARK.to_owned(), self.pod.uid.clone())])
    }

    /// Reads the pod of this process, with retries, and checks its uid.
    pub(in crate::commands::elect) async fn prove(&self, client: &Client) -> Result<(), NotProven> {
        let path = pod_path(&self.namespace, &self.pod.name);
        loop {
            // Listing the pod needs no other permission than following the pods of leaders.
            let failed = match timeout(REQUEST, api::get(client, &path)).await {
                Ok(Ok(listed)) => {
                    let found = listed.body["items"].get(0);
                    let found = found.map(|object| observation(object, Timestamp::now()));
                    let verified = verify_own_pod(&self.pod, found.as_ref(), Rules::default());
                    return verified.map_err(|why| self.not_proven(&why));
                }
                Ok(Err(error)) => tenure::plain(&error),
                Err(_) => "no answer in time".to_owned(),
            };
            tracing::warn!(
                pod = self.pod.name,
                namespace = self.namespace,
                error = failed,
                "cannot read this pod; not campaigning until it can be read"
            );
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn not_proven(&self, why: &NotOwnPod) -> NotProven {
        let Self { namespace, pod, .. } = self;
        let PodId { name, uid } = pod;
        let source = if self.guessed {
            ", which is the host name because POD_NAME is not set"
        } else {
            ""
        };
        NotProven::new(format!(
            "needs the pod that it runs in, and cannot find uid {uid:?} (POD_UID) under pod {name:?} in \
             namespace {namespace:?}{source}: {why}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::commands::elect::life::scripted::{self, Act};

    fn own(guessed: bool) -> OwnPod {
        OwnPod {
            guessed,
            ..OwnPod::scripted("ns", "web-0_0b6c")
        }
    }

    async fn proven(own: OwnPod, uid: Option<&'static str>) -> Result<(), String> {
        let asked = std::sync::Mutex::new(0);
        let client = scripted::server(move |request, _| {
            let uri = request.uri.to_string();
            assert!(
                uri.ends_with("/ns/pods?fieldSelector=metadata.name%3Dweb-0"),
                "{uri}"
            );
            let mut asked = asked.lock().unwrap();
            *asked += 1;
            if *asked == 1 {
                return scripted::status(StatusCode::SERVICE_UNAVAILABLE);
            }
            let items: Vec<_> = uid
                .iter()
                .map(|uid| json!({ "metadata": { "name": "web-0", "uid": uid } }))
                .collect();
            let list = json!({ "metadata": { "resourceVersion": "7" }, "items": items });
            Act::Answer(StatusCode::OK, list.to_string())
        })
        .await;
        own.prove(&client).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn own_pod_is_proven_by_its_uid_after_a_failed_read() {
        assert_eq!(proven(own(true), Some("0b6c")).await, Ok(()));
    }

    #[tokio::test]
    async fn own_pod_without_proof_is_refused_with_the_variables_to_set() {
        for (guessed, uid, why) in [
            (true, None, "POD_NAME is not set: there is no such pod"),
            (false, Some("other"), "that pod has uid \"other\""),
        ] {
            let error = proven(own(guessed), uid).await.unwrap_err();
            assert!(error.contains(why), "{error}");
            assert!(error.ends_with(DOWNWARD_API), "{error}");
        }
    }
}
