//! CSI migration: translates classes and volumes of in-tree plugins to the CSI drivers that replaced the plugins, and
//! translates volumes back.
//!
//! The functions are pure. They translate as Kubernetes' library csi-translation-lib does, with these exceptions,
//! which concern only invalid input:
//!
//! - The library depends on the order of a Go map if a class or a volume has several keys with the same meaning, for
//!   example `zone` and `zones`. Here the last key in alphabetical order wins.
//! - A partition that does not fit into 32 bits is rejected instead of truncated.
//! - The zone of an `aws://` URL must be a plain host name, without user, brackets and escapes.

mod aws_ebs;
mod azure_disk;
mod azure_file;
mod cinder;
mod class;
mod gce_pd;
mod portworx;
mod topology;
mod vsphere;

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference,
    TopologySelectorLabelRequirement, TopologySelectorTerm,
};
use k8s_openapi::api::storage::v1::StorageClass;

pub use class::{ClassFields, TopologyTerm};

/// The in-tree plugins that CSI drivers replaced.
static PLUGINS: [&dyn Plugin; 7] = [
    &aws_ebs::AwsEbs,
    &azure_disk::AzureDisk,
    &azure_file::AzureFile,
    &cinder::Cinder,
    &gce_pd::GcePd,
    &portworx::Portworx,
    &vsphere::Vsphere,
];

/// An in-tree plugin and the CSI driver that replaced it.
pub trait Plugin: Debug + Sync {
    /// Returns the name of the plugin, which is the provisioner of its classes.
    fn in_tree_name(&self) -> &'static str;

    /// Returns the name of the CSI driver.
    fn driver(&self) -> &'static str;

    /// Translates a class of the plugin for the driver.
    ///
    /// # Errors
    /// The class contradicts itself.
    fn translate_class(&self, class: ClassFields) -> Result<ClassFields, TranslationError>;

    /// Returns whether a volume has a source of this plugin.
    fn has_source(&self, spec: &PersistentVolumeSpec) -> bool;

    /// Removes the plugin's source from a volume, translates the topology of the volume, and returns the CSI source.
    ///
    /// # Errors
    /// The volume has no source of this plugin, or the driver cannot serve the source.
    fn take_source(
        &self,
        volume: &mut PersistentVolume,
    ) -> Result<CSIPersistentVolumeSource, TranslationError>;

    /// Gives a volume the plugin's source instead of a CSI source, and translates the topology of the volume.
    ///
    /// # Errors
    /// The plugin has no form for the CSI source or for the topology.
    fn put_source(
        &self,
        volume: &mut PersistentVolume,
        csi: CSIPersistentVolumeSource,
    ) -> Result<(), TranslationError>;
}

/// An object that cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TranslationError {
    /// A class of another provisioner.
    #[error("{0:?} is not an in-tree plugin that a CSI driver replaced")]
    UnknownPlugin(String),
    /// A volume of another kind.
    #[error("the volume has no source of an in-tree plugin that a CSI driver replaced")]
    UnknownSource,
    /// A volume that is not of CSI, or of another driver.
    #[error("CSI driver {0:?} did not replace an in-tree plugin")]
    UnknownDriver(String),
    /// A volume whose in-tree form does not name its storage.
    #[error(
        "the in-tree form of the volume does not name its storage; the driver must return the attribute for it"
    )]
    NoHandle,
    /// A class that names its zones twice.
    #[error(
        "the parameters zone and zones exclude allowedTopologies; remove one of them from the class"
    )]
    ZonesAndTopologies,
    /// A value that the other side has no form for.
    #[error("invalid {what} {value:?}: {why}")]
    Invalid {
        /// The kind of the value.
        what: &'static str,
        /// The value.
        value: String,
        /// The problem with the value.
        why: &'static str,
    },
}

impl TranslationError {
    fn invalid(what: &'static str, value: impl Into<String>, why: &'static str) -> Self {
        Self::Invalid {
            what,
            value: value.into(),
            why,
        }
    }
}

/// Returns the plugin that a driver replaced.
pub fn replaced_by(driver: &str) -> Option<&'static dyn Plugin> {
    let mut plugins = PLUGINS.iter().copied();
    plugins.find(|plugin| plugin.driver() == driver)
}

/// Translates a class of an in-tree plugin for the driver that replaced the plugin.
///
/// # Errors
/// The plugin is unknown, or the class contradicts itself.
pub fn class_to_csi(plugin: &str, class: &StorageClass) -> Result<StorageClass, TranslationError> {
    let mut plugins = PLUGINS.iter();
    let plugin = plugins
        .find(|known| known.in_tree_name() == plugin)
        .ok_or_else(|| TranslationError::UnknownPlugin(plugin.to_owned()))?;
    let terms = class.allowed_topologies.iter().flatten();
    let fields = plugin.translate_class(ClassFields {
        provisioner: class.provisioner.clone(),
        parameters: class.parameters.clone().unwrap_or_default(),
        allowed_topologies: terms.map(plain_term).collect(),
    })?;
    let terms = fields.allowed_topologies.into_iter().map(selector_term);
    Ok(StorageClass {
        provisioner: fields.provisioner,
        parameters: Some(fields.parameters),
        allowed_topologies: Some(terms.collect()),
        ..class.clone()
    })
}

fn plain_term(term: &TopologySelectorTerm) -> TopologyTerm {
    let expressions = term.match_label_expressions.iter().flatten();
    expressions
        .map(|expression| (expression.key.clone(), expression.values.clone()))
        .collect()
}

fn selector_term(term: TopologyTerm) -> TopologySelectorTerm {
    let expressions = term.into_iter();
    let expression = |(key, values)| TopologySelectorLabelRequirement { key, values };
    TopologySelectorTerm {
        match_label_expressions: Some(expressions.map(expression).collect()),
    }
}

/// Returns whether a volume has a source that can be translated to CSI.
pub fn is_in_tree(volume: &PersistentVolume) -> bool {
    plugin_of(volume).is_some()
}

fn plugin_of(volume: &PersistentVolume) -> Option<&'static dyn Plugin> {
    let spec = volume.spec.as_ref()?;
    let mut plugins = PLUGINS.iter().copied();
    plugins.find(|plugin| plugin.has_source(spec))
}

/// Translates a volume of an in-tree plugin to CSI.
///
/// # Errors
/// The volume is not of such a plugin, or its source is invalid.
pub fn volume_to_csi(volume: &PersistentVolume) -> Result<PersistentVolume, TranslationError> {
    let plugin = plugin_of(volume).ok_or(TranslationError::UnknownSource)?;
    let mut volume = volume.clone();
    let csi = plugin.take_source(&mut volume)?;
    volume.spec.get_or_insert_default().csi = Some(csi);
    Ok(volume)
}

/// Translates a CSI volume to the in-tree plugin that its driver replaced.
///
/// # Errors
/// The volume is not of such a driver, or the plugin has no form for it.
pub fn volume_to_in_tree(volume: &PersistentVolume) -> Result<PersistentVolume, TranslationError> {
    let mut volume = volume.clone();
    let csi = volume.spec.as_mut().and_then(|spec| spec.csi.take());
    let csi = csi.ok_or_else(|| TranslationError::UnknownDriver(String::new()))?;
    let plugin = replaced_by(&csi.driver)
        .ok_or_else(|| TranslationError::UnknownDriver(csi.driver.clone()))?;
    plugin.put_source(&mut volume, csi)?;
    Ok(volume)
}

/// Returns a text unless it is empty. The API server omits empty texts.
fn non_empty(text: impl Into<String>) -> Option<String> {
    Some(text.into()).filter(|text: &String| !text.is_empty())
}

/// Returns the flag if it is set. The API server omits flags that are not set.
fn set(flag: Option<bool>) -> Option<bool> {
    flag.filter(|flag| *flag)
}

/// Returns the attribute `partition` as a number.
fn partition(text: &str) -> Result<Option<i32>, TranslationError> {
    let number = text.parse::<i32>().map_err(|_| {
        TranslationError::invalid("partition", text, "it is not a number of 32 bits")
    })?;
    Ok(Some(number).filter(|number| *number != 0))
}

fn secret(name: &str, namespace: &str) -> SecretReference {
    SecretReference {
        name: non_empty(name),
        namespace: non_empty(namespace),
    }
}

#[cfg(test)]
mod tests;
