//! Name and capabilities of a driver. They are read once, because a driver restarts to change them.

use std::collections::BTreeSet;

pub use crate::v1::controller_service_capability::rpc::Type as ControllerCapability;
pub use crate::v1::plugin_capability::service::Type as PluginCapability;
use crate::v1::{
    ControllerGetCapabilitiesResponse, GetPluginCapabilitiesResponse,
    controller_service_capability, plugin_capability,
};

/// Name and capabilities of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Name in classes and volumes.
    pub name: String,
    /// Version, for logs.
    pub version: String,
    plugin: BTreeSet<i32>,
    controller: BTreeSet<i32>,
}

impl Facts {
    /// Creates facts from lists of capabilities.
    pub fn new(
        name: impl Into<String>,
        plugin: impl IntoIterator<Item = PluginCapability>,
        controller: impl IntoIterator<Item = ControllerCapability>,
    ) -> Self {
        Self {
            name: name.into(),
            version: String::new(),
            plugin: plugin.into_iter().map(i32::from).collect(),
            controller: controller.into_iter().map(i32::from).collect(),
        }
    }

    /// Returns whether the plugin has this capability.
    #[must_use]
    pub fn plugin(&self, capability: PluginCapability) -> bool {
        self.plugin.contains(&i32::from(capability))
    }

    /// Returns whether the controller service has this capability.
    #[must_use]
    pub fn controller(&self, capability: ControllerCapability) -> bool {
        self.controller.contains(&i32::from(capability))
    }

    /// Returns whether the driver restricts where its volumes are accessible.
    #[must_use]
    pub fn topology(&self) -> bool {
        self.plugin(PluginCapability::VolumeAccessibilityConstraints)
    }

    /// Stores the plugin capabilities. Uses `service` entries only, because the others do not describe calls.
    pub(crate) fn set_plugin(&mut self, answer: &GetPluginCapabilitiesResponse) {
        let types = answer.capabilities.iter().filter_map(|c| match &c.r#type {
            Some(plugin_capability::Type::Service(service)) => Some(service.r#type),
            _ => None,
        });
        self.plugin = types.collect();
    }

    pub(crate) fn set_controller(&mut self, answer: &ControllerGetCapabilitiesResponse) {
        let types = answer.capabilities.iter().filter_map(|c| c.r#type.as_ref());
        let types = types.map(|controller_service_capability::Type::Rpc(rpc)| rpc.r#type);
        self.controller = types.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn plugin_capabilities_other_than_service_are_ignored() {
        let mut facts = Facts::default();
        let expansion = plugin_capability::VolumeExpansion { r#type: 1 };
        facts.set_plugin(&GetPluginCapabilitiesResponse {
            capabilities: vec![v1::PluginCapability {
                r#type: Some(plugin_capability::Type::VolumeExpansion(expansion)),
            }],
        });
        assert!(!facts.plugin(PluginCapability::ControllerService));
        let service = plugin_capability::Service { r#type: 1 };
        facts.set_plugin(&GetPluginCapabilitiesResponse {
            capabilities: vec![v1::PluginCapability {
                r#type: Some(plugin_capability::Type::Service(service)),
            }],
        });
        assert!(facts.plugin(PluginCapability::ControllerService));
        assert!(!facts.topology());
    }
}
