//! Translations of class parameters and allowed topologies that several plugins share.

use std::collections::BTreeMap;

use super::TranslationError;
use super::topology::{BETA_ZONE, ZONE};

/// Class parameter for the file system, as CSI names it.
const CSI_FS_TYPE: &str = "csi.storage.k8s.io/fstype";

/// Keys of a topology, with the allowed values of each. All of them must hold.
pub type TopologyTerm = Vec<(String, Vec<String>)>;

/// The fields of a StorageClass that are translated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassFields {
    /// The provisioner. Only the plugin for Portworx changes it.
    pub provisioner: String,
    /// The parameters for the driver.
    pub parameters: BTreeMap<String, String>,
    /// The topologies in which volumes may be created. One of them must hold.
    pub allowed_topologies: Vec<TopologyTerm>,
}

impl ClassFields {
    /// Renames a parameter. The old name is compared without case. A parameter with several new names is repeated.
    pub(super) fn rename_parameter(&mut self, lower_case: &str, names: &[&str]) {
        for value in self.take_parameter(lower_case) {
            for name in names {
                self.parameters.insert((*name).to_owned(), value.clone());
            }
        }
    }

    /// Renames the in-tree parameter for the file system.
    pub(super) fn rename_fs_type(&mut self) {
        self.rename_parameter("fstype", &[CSI_FS_TYPE]);
    }

    /// Removes a parameter, whose name is compared without case.
    fn take_parameter(&mut self, lower_case: &str) -> Vec<String> {
        let same = |name: &String, _: &mut String| name.to_lowercase() == lower_case;
        let taken = self.parameters.extract_if(.., same);
        taken.map(|(_, value)| value).collect()
    }

    /// Turns the parameters `zone` and `zones` into an allowed topology, or translates the allowed topologies.
    pub(super) fn translate_zones(&mut self, key: &str) -> Result<(), TranslationError> {
        let zone = self.take_parameter("zone").pop().map(|zone| vec![zone]);
        let list = |zones: String| zones.split(',').map(str::to_owned).collect();
        let zones = self.take_parameter("zones").pop().map(list);
        match zones.or(zone) {
            Some(_) if !self.allowed_topologies.is_empty() => {
                return Err(TranslationError::ZonesAndTopologies);
            }
            Some(zones) => self.allowed_topologies = vec![vec![(key.to_owned(), zones)]],
            None => self.rename_zone_keys(key),
        }
        Ok(())
    }

    /// Replaces the keys of Kubernetes for zones with the key of the driver.
    pub(super) fn rename_zone_keys(&mut self, key: &str) {
        for (name, _) in self.allowed_topologies.iter_mut().flatten() {
            if name == ZONE || name == BETA_ZONE {
                key.clone_into(name);
            }
        }
    }
}
