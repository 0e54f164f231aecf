//! Splits the parameters of a class into those of the provisioner and those of the driver.

use std::collections::BTreeMap;

use crate::names::RESERVED_PREFIX;
use crate::secrets::KINDS;

/// Returns the parameters for the driver. An unknown key with the reserved prefix is an error in the class.
pub(crate) fn for_driver(
    parameters: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut left = BTreeMap::new();
    for (key, value) in parameters {
        match key.strip_prefix(RESERVED_PREFIX) {
            None => drop(left.insert(key.clone(), value.clone())),
            Some(ours) if is_known(ours) => {}
            Some(_) => {
                return Err(format!(
                    "found unknown parameter key {key:?} with reserved namespace {RESERVED_PREFIX}"
                ));
            }
        }
    }
    Ok(left)
}

/// Returns the file system of the class, or the default.
pub(crate) fn fs_type(
    parameters: &BTreeMap<String, String>,
    default: &str,
) -> Result<String, String> {
    let ours = format!("{RESERVED_PREFIX}fstype");
    let is_fs = |key: &str| key.eq_ignore_ascii_case("fstype") || key == ours;
    let mut found = parameters.iter().filter(|(key, _)| is_fs(key));
    let first = found.next();
    if found.next().is_some() {
        return Err(format!(
            "the class sets the file system twice: set only {ours}"
        ));
    }
    Ok(first
        .map(|(_, value)| value.as_str())
        .filter(|value| !value.is_empty())
        .unwrap_or(default)
        .to_owned())
}

fn is_known(key: &str) -> bool {
    key == "fstype"
        || key.strip_suffix("-name").is_some_and(is_secret)
        || key.strip_suffix("-namespace").is_some_and(is_secret)
}

fn is_secret(prefix: &str) -> bool {
    prefix == "secret" || KINDS.iter().any(|kind| kind.prefix == prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn reserved_parameters_are_removed_and_unknown_ones_rejected() {
        let kept = map(&[
            ("a", "1"),
            ("fstype", "xfs"),
            ("csiNodeStageSecretName", "s"),
        ]);
        let mut all = kept.clone();
        for key in [
            "fstype",
            "secret-name",
            "secret-namespace",
            "provisioner-secret-name",
            "controller-publish-secret-namespace",
            "node-stage-secret-name",
            "node-publish-secret-name",
            "controller-expand-secret-name",
            "node-expand-secret-name",
            "controller-modify-secret-namespace",
        ] {
            all.insert(format!("{RESERVED_PREFIX}{key}"), "x".to_owned());
        }
        assert_eq!(for_driver(&all), Ok(kept));
        for key in ["pv/name", "-name", "bogus", "bogus-secret-name"] {
            let key = format!("{RESERVED_PREFIX}{key}");
            let error = for_driver(&map(&[(&key, "x")])).unwrap_err();
            assert!(error.contains(&key), "{error}");
        }
    }

    #[test]
    fn file_system_named_twice_is_rejected() {
        let ours = "csi.storage.k8s.io/fstype";
        assert_eq!(fs_type(&map(&[]), "ext4").as_deref(), Ok("ext4"));
        assert_eq!(
            fs_type(&map(&[("FSType", "xfs")]), "ext4").as_deref(),
            Ok("xfs")
        );
        assert_eq!(fs_type(&map(&[(ours, "xfs")]), "").as_deref(), Ok("xfs"));
        assert!(fs_type(&map(&[(ours, "xfs"), ("fstype", "xfs")]), "").is_err());
        assert!(fs_type(&map(&[("fsType", "xfs"), ("fstype", "xfs")]), "").is_err());
    }
}
