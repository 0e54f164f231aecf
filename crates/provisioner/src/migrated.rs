//! Uses CSI migration: a driver that replaced an in-tree plugin serves the plugin's classes and volumes too.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::cluster::ClusterError;
use crate::controller::Controller;
use crate::migration::{self, ClassFields, Plugin, TopologyTerm, TranslationError};
use crate::objects::{AllowedExpression, AllowedTerm, Class, Volume};

/// A volume as the API server has it, except that an in-tree source and its topology are translated to CSI.
#[derive(Clone, Debug)]
pub(crate) struct ReadVolume {
    pub(crate) volume: Volume,
    /// Whether the source was translated.
    pub(crate) migrated: bool,
    /// Set if the volume could not be translated. It then has no CSI source.
    pub(crate) error: Option<TranslationError>,
}

impl Controller {
    /// Returns the class as the driver gets it. The provisioner of a translated class is the driver.
    pub(crate) fn translated<'a>(
        &self,
        class: &'a Class,
    ) -> Result<Cow<'a, Class>, TranslationError> {
        match self.plugin_of(class) {
            Some(plugin) => translate(plugin, class).map(Cow::Owned),
            None => Ok(Cow::Borrowed(class)),
        }
    }

    /// Returns whether a class is one of the in-tree plugin that our driver replaced.
    pub(crate) fn is_migrated(&self, class: &Class) -> bool {
        self.plugin_of(class).is_some()
    }

    /// Returns the in-tree plugin of a class, if our driver replaced it.
    fn plugin_of(&self, class: &Class) -> Option<&'static dyn Plugin> {
        let plugin = migration::replaced_by(&self.facts.name);
        plugin.filter(|plugin| plugin.in_tree_name() == class.provisioner)
    }

    /// Gives a volume of an in-tree class an in-tree source.
    ///
    /// An object that cannot be translated when it is read is an error too, because nobody could delete its storage.
    pub(crate) fn with_source_of(
        &self,
        class: &Class,
        object: PersistentVolume,
    ) -> Result<PersistentVolume, TranslationError> {
        if self.plugin_of(class).is_none() {
            return Ok(object);
        }
        let object = migration::volume_to_in_tree(&object)?;
        let read = migration::volume_to_csi(&object)?;
        let csi = read.spec.and_then(|spec| spec.csi).unwrap_or_default();
        if csi.volume_handle.is_empty() {
            return Err(TranslationError::NoHandle);
        }
        Ok(object)
    }

    /// Reads a volume from the API server.
    pub(crate) async fn read_volume(&self, name: &str) -> Result<ReadVolume, ClusterError> {
        if migration::replaced_by(&self.facts.name).is_none() {
            let volume = self.cluster.get::<Volume>(name).await?;
            return Ok(ReadVolume {
                volume,
                migrated: false,
                error: None,
            });
        }
        let object = self.cluster.get::<PersistentVolume>(name).await?;
        Ok(read(&self.facts.name, &object))
    }
}

fn translate(plugin: &dyn Plugin, class: &Class) -> Result<Class, TranslationError> {
    let terms = class.allowed_topologies.iter();
    let plain = |term: &AllowedTerm| -> TopologyTerm {
        let expressions = term.match_label_expressions.iter();
        expressions
            .map(|expression| (expression.key.clone(), expression.values.clone()))
            .collect()
    };
    let fields = plugin.translate_class(ClassFields {
        provisioner: class.provisioner.clone(),
        parameters: class.parameters.clone(),
        allowed_topologies: terms.map(plain).collect(),
    })?;
    let allowed = |term: TopologyTerm| {
        let expressions = term.into_iter();
        AllowedTerm {
            match_label_expressions: expressions
                .map(|(key, values)| AllowedExpression { key, values })
                .collect(),
        }
    };
    let terms = fields.allowed_topologies.into_iter();
    Ok(Class {
        // Snapshots and clones are compared with the driver that serves the class.
        provisioner: plugin.driver().to_owned(),
        parameters: fields.parameters,
        allowed_topologies: terms.map(allowed).collect(),
        ..class.clone()
    })
}

/// Translates an in-tree volume of our driver. Volumes of other plugins stay without a CSI source.
fn read(driver: &str, object: &PersistentVolume) -> ReadVolume {
    let translated = migration::is_in_tree(object).then(|| migration::volume_to_csi(object));
    let (object, error) = match translated {
        Some(Ok(translated)) if driver_of(&translated) == driver => (Cow::Owned(translated), None),
        Some(Err(error)) => (Cow::Borrowed(object), Some(error)),
        _ => (Cow::Borrowed(object), None),
    };
    let volume = serde_json::to_value(&*object).and_then(serde_json::from_value);
    ReadVolume {
        migrated: matches!(object, Cow::Owned(_)),
        volume: volume.expect("a volume has the fields of its partial type"),
        error,
    }
}

fn driver_of(object: &PersistentVolume) -> &str {
    let spec = object.spec.as_ref();
    let csi = spec.and_then(|spec| spec.csi.as_ref());
    csi.map_or("", |csi| &csi.driver)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn translated_class_is_of_the_driver() {
        let class = json!({
            "provisioner": "kubernetes.io/aws-ebs",
            "parameters": { "zone": "us-east-1a", "type": "gp3" },
            "mountOptions": ["noatime"],
        });
        let class: Class = serde_json::from_value(class).unwrap();
        let plugin = migration::replaced_by("ebs.csi.aws.com").unwrap();
        let found = translate(plugin, &class).unwrap();
        assert_eq!(found.provisioner, "ebs.csi.aws.com");
        assert_eq!(found.mount_options, class.mount_options);
        let parameters: Vec<_> = found.parameters.keys().collect();
        assert_eq!(parameters, ["type"]);
        let expression = &found.allowed_topologies[0].match_label_expressions[0];
        assert_eq!(expression.key, "topology.ebs.csi.aws.com/zone");
        assert_eq!(expression.values, ["us-east-1a"]);
    }

    #[test]
    fn volume_is_read_as_one_of_the_driver() {
        let read_of = |driver: &str, id: &str| {
            let spec = json!({ "awsElasticBlockStore": { "volumeID": id } });
            let object = json!({ "metadata": { "name": "v", "uid": "u" }, "spec": spec });
            read(driver, &serde_json::from_value(object).unwrap())
        };
        let found = read_of("ebs.csi.aws.com", "aws://us-east-1a/vol-1");
        let csi = found.volume.spec.csi.unwrap();
        assert_eq!(
            (&*csi.driver, &*csi.volume_handle),
            ("ebs.csi.aws.com", "vol-1")
        );
        assert_eq!(found.volume.metadata.uid.as_deref(), Some("u"));
        let other = read_of("pd.csi.storage.gke.io", "vol-1");
        assert!(other.volume.spec.csi.is_none() && other.error.is_none());
        let invalid = read_of("ebs.csi.aws.com", "aws://us-east-1a/i-1");
        assert!(invalid.volume.spec.csi.is_none() && invalid.error.is_some());
    }
}
