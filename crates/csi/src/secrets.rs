//! Formats requests for logs without their secrets.

use std::collections::BTreeMap;
use std::fmt;

use crate::v1::{
    CreateVolumeRequest, DeleteVolumeRequest, NodePublishVolumeRequest,
    ValidateVolumeCapabilitiesRequest,
};

/// Replacement for secrets in logs.
pub const STRIPPED: &str = "***stripped***";

impl fmt::Debug for CreateVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateVolumeRequest")
            .field("name", &self.name)
            .field("capacity_range", &self.capacity_range)
            .field("volume_capabilities", &self.volume_capabilities)
            .field("parameters", &self.parameters)
            .field("secrets", &Stripped(&self.secrets))
            .field("volume_content_source", &self.volume_content_source)
            .field(
                "accessibility_requirements",
                &self.accessibility_requirements,
            )
            .field("mutable_parameters", &self.mutable_parameters)
            .finish()
    }
}

impl fmt::Debug for DeleteVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeleteVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("secrets", &Stripped(&self.secrets))
            .finish()
    }
}

impl fmt::Debug for ValidateVolumeCapabilitiesRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValidateVolumeCapabilitiesRequest")
            .field("volume_id", &self.volume_id)
            .field("volume_context", &self.volume_context)
            .field("volume_capabilities", &self.volume_capabilities)
            .field("parameters", &self.parameters)
            .field("secrets", &Stripped(&self.secrets))
            .field("mutable_parameters", &self.mutable_parameters)
            .finish()
    }
}

impl fmt::Debug for NodePublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &self.publish_context)
            .field("staging_target_path", &self.staging_target_path)
            .field("target_path", &self.target_path)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("secrets", &Stripped(&self.secrets))
            .field("volume_context", &self.volume_context)
            .finish()
    }
}

/// Formats a map of secrets without names and values; only shows whether it is empty.
struct Stripped<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for Stripped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "{}" } else { STRIPPED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_logged() {
        let secrets = BTreeMap::from([("user".to_owned(), "hunter2".to_owned())]);
        let create = CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            secrets: secrets.clone(),
            ..Default::default()
        };
        let delete = DeleteVolumeRequest {
            volume_id: "vol-1".to_owned(),
            secrets: secrets.clone(),
        };
        let validate = ValidateVolumeCapabilitiesRequest {
            secrets: secrets.clone(),
            ..Default::default()
        };
        let publish = NodePublishVolumeRequest {
            secrets,
            ..Default::default()
        };
        for text in [
            format!("{create:?}"),
            format!("{delete:#?}"),
            format!("{validate:?}"),
            format!("{publish:?}"),
        ] {
            assert!(text.contains(STRIPPED), "{text}");
            assert!(
                !text.contains("hunter2") && !text.contains("user"),
                "{text}"
            );
        }
        assert!(format!("{create:?}").contains("pvc-1"));
    }
}
