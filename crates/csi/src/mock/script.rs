//! Scripts of a scripted driver.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

/// The calls that can be scripted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Method {
    /// `Identity/GetPluginInfo`
    GetPluginInfo,
    /// `Identity/GetPluginCapabilities`
    GetPluginCapabilities,
    /// `Identity/Probe`
    Probe,
    /// `Controller/CreateVolume`
    CreateVolume,
    /// `Controller/DeleteVolume`
    DeleteVolume,
    /// `Controller/ValidateVolumeCapabilities`
    ValidateVolumeCapabilities,
    /// `Controller/GetCapacity`
    GetCapacity,
    /// `Controller/ControllerGetCapabilities`
    ControllerGetCapabilities,
    /// `Node/NodePublishVolume`
    NodePublishVolume,
    /// `Node/NodeUnpublishVolume`
    NodeUnpublishVolume,
    /// `Node/NodeGetCapabilities`
    NodeGetCapabilities,
    /// `Node/NodeGetInfo`
    NodeGetInfo,
}

/// One step. Omitted fields mean the behaviour of a correct driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Fail with this code, for example `RESOURCE_EXHAUSTED`.
    pub code: Option<String>,
    /// Number of failures before calls succeed; without it, calls always fail.
    pub times: Option<u32>,
    /// Delay before the call is processed.
    pub delay_ms: u64,
    /// Delay between processing and responding, so that the caller may time out.
    pub answer_after_ms: u64,
    /// Create the volume and then fail with `code`, so that the caller cannot know the outcome.
    pub applied_despite_code: bool,
    /// Respond with this size instead of the requested one.
    pub capacity: Option<i64>,
    /// Maximum volume size in the capacity response.
    pub largest: Option<i64>,
    /// Volume context of the response.
    pub context: BTreeMap<String, String>,
    /// Topology of the response.
    pub topology: Option<Vec<BTreeMap<String, String>>>,
    /// Respond with this volume id.
    pub volume_id: Option<String>,
    /// Omit the content source in the response.
    pub omit_content_source: bool,
    /// Omit the volume in the response.
    pub omit_volume: bool,
}

impl Script {
    /// Creates a script that fails `times` times with a code.
    #[must_use]
    pub fn fail(code: &str, times: u32) -> Self {
        Self {
            code: Some(code.to_owned()),
            times: Some(times),
            ..Self::default()
        }
    }

    pub(crate) fn failure(&self) -> Option<Status> {
        let code = self.code.as_deref()?;
        Some(Status::new(code_of(code), "scripted"))
    }

    pub(crate) async fn delay(&self) {
        pause(self.delay_ms).await;
    }

    pub(crate) async fn before_answer(&self) {
        pause(self.answer_after_ms).await;
    }
}

async fn pause(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

/// Parses an upper-case code name; unknown names are `Unknown`.
fn code_of(name: &str) -> Code {
    match name {
        "CANCELLED" | "CANCELED" => Code::Cancelled,
        "INVALID_ARGUMENT" => Code::InvalidArgument,
        "DEADLINE_EXCEEDED" => Code::DeadlineExceeded,
        "NOT_FOUND" => Code::NotFound,
        "ALREADY_EXISTS" => Code::AlreadyExists,
        "PERMISSION_DENIED" => Code::PermissionDenied,
        "RESOURCE_EXHAUSTED" => Code::ResourceExhausted,
        "FAILED_PRECONDITION" => Code::FailedPrecondition,
        "ABORTED" => Code::Aborted,
        "OUT_OF_RANGE" => Code::OutOfRange,
        "UNIMPLEMENTED" => Code::Unimplemented,
        "INTERNAL" => Code::Internal,
        "UNAVAILABLE" => Code::Unavailable,
        "DATA_LOSS" => Code::DataLoss,
        "UNAUTHENTICATED" => Code::Unauthenticated,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_parsed_from_class_parameters() {
        let text = r#"{"code": "INVALID_ARGUMENT", "times": 1}"#;
        let script: Script = serde_json::from_str(text).unwrap();
        assert_eq!(script, Script::fail("INVALID_ARGUMENT", 1));
        let status = script.failure().unwrap();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(serde_json::from_str::<Script>(r#"{"cod": "X"}"#).is_err());
    }
}
