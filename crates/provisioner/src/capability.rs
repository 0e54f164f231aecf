//! Converts the access modes of a claim to CSI volume capabilities.

use tenure_csi::v1::VolumeCapability;
use tenure_csi::v1::volume_capability::access_mode::Mode;
use tenure_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::objects::Claim;

/// Returns one capability for each access mode, in the order of the claim.
pub(crate) fn of_claim(
    claim: &Claim,
    fs_type: &str,
    mount_options: &[String],
    knows_multi_writer: bool,
) -> Result<Vec<VolumeCapability>, String> {
    let access_type = || {
        if claim.is_block() {
            return AccessType::Block(BlockVolume {});
        }
        AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: mount_options.to_vec(),
            ..MountVolume::default()
        })
    };
    let capability = |name: &String| {
        let mode = mode(name, knows_multi_writer)
            .ok_or_else(|| format!("access mode {name:?} of the claim is unknown"))?;
        Ok(VolumeCapability {
            access_type: Some(access_type()),
            access_mode: Some(AccessMode { mode: mode.into() }),
        })
    };
    claim.spec.access_modes.iter().map(capability).collect()
}

/// Converts one access mode. Only drivers with SINGLE_NODE_MULTI_WRITER distinguish one node from one pod.
fn mode(name: &str, knows_multi_writer: bool) -> Option<Mode> {
    Some(match (name, knows_multi_writer) {
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_become_csi_capabilities() {
        for (name, without, with) in [
            ("ReadWriteOnce", 1, 7),
            ("ReadWriteOncePod", 1, 6),
            ("ReadOnlyMany", 3, 3),
            ("ReadWriteMany", 5, 5),
        ] {
            for (knows, expected) in [(false, without), (true, with)] {
                assert_eq!(mode(name, knows).map(i32::from), Some(expected), "{name}");
            }
        }
        let mut claim = Claim::default();
        claim.spec.access_modes = vec!["ReadSometimes".to_owned()];
        let error = of_claim(&claim, "", &[], false).unwrap_err();
        assert!(error.contains("ReadSometimes"), "{error}");
    }
}
