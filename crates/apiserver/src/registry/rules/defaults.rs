//! Defaults of the structs of pods and volumes, as one table.
//!
//! An entry names members of a struct with their defaults, and the structs below it. [`fill`] applies an entry to a JSON
//! object. The canonical form omits zero values of plain fields, so that an absent member is the only case. The tests
//! compare the table with the schema table.

use serde_json::{Map, Value, json};

use super::image;
use crate::quantity::Quantity;

type Struct = Map<String, Value>;

/// The defaults of one struct.
pub(super) struct Defaults {
    /// Members that get a value if they are absent.
    members: &'static [(&'static str, Given)],
    /// Maps of quantities. The server rounds them up to a thousandth.
    amounts: &'static [&'static str],
    /// Members that are structs with defaults, or lists of them.
    inner: &'static [(&'static str, &'static Defaults)],
    /// Sets the defaults that depend on other members.
    dependent: fn(&mut Struct),
}

/// The value of an absent member.
#[derive(Clone, Copy, Debug)]
enum Given {
    Text(&'static str),
    Number(i64),
    No,
    Struct,
}

impl From<Given> for Value {
    fn from(given: Given) -> Self {
        match given {
            Given::Text(text) => json!(text),
            Given::Number(number) => json!(number),
            Given::No => json!(false),
            Given::Struct => json!({}),
        }
    }
}

/// Sets the absent members of a struct, and of the structs below it.
pub(super) fn fill(defaults: &Defaults, object: &mut Struct) {
    (defaults.dependent)(object);
    for (member, given) in defaults.members {
        super::set_default(object, member, *given);
    }
    for member in defaults.amounts {
        round_up(object.get_mut(*member));
    }
    for (member, inner) in defaults.inner {
        match object.get_mut(*member) {
            Some(Value::Object(one)) => fill(inner, one),
            Some(Value::Array(list)) => {
                let structs = list.iter_mut().filter_map(Value::as_object_mut);
                structs.for_each(|one| fill(inner, one));
            }
            _ => {}
        }
    }
}

fn round_up(amounts: Option<&mut Value>) {
    let amounts = amounts.and_then(Value::as_object_mut);
    for amount in amounts.into_iter().flat_map(Map::values_mut) {
        let parsed = amount
            .as_str()
            .and_then(|text| text.parse::<Quantity>().ok());
        if let Some(rounded) = parsed.and_then(|parsed| parsed.rounded_up_to_milli()) {
            *amount = json!(rounded.to_string());
        }
    }
}

const NONE: Defaults = Defaults {
    members: &[],
    amounts: &[],
    inner: &[],
    dependent: |_| {},
};

/// `defaultMode` of files in volumes: 0644.
const MODE: (&str, Given) = ("defaultMode", Given::Number(0o644));

pub(super) static POD_SPEC: Defaults = Defaults {
    members: &[
        ("restartPolicy", Given::Text("Always")),
        ("dnsPolicy", Given::Text("ClusterFirst")),
        ("schedulerName", Given::Text("default-scheduler")),
        (
            "terminationGracePeriodSeconds",
            Given::Number(super::pod::DEFAULT_GRACE_SECONDS),
        ),
        ("securityContext", Given::Struct),
    ],
    amounts: &["overhead"],
    inner: &[
        ("volumes", &VOLUME),
        ("initContainers", &CONTAINER),
        ("containers", &CONTAINER),
        ("ephemeralContainers", &CONTAINER),
        ("resources", &RESOURCES),
    ],
    ..NONE
};

static RESOURCES: Defaults = Defaults {
    amounts: &["limits", "requests"],
    ..NONE
};

static CONTAINER: Defaults = Defaults {
    members: &[
        (
            "terminationMessagePath",
            Given::Text("/dev/termination-log"),
        ),
        ("terminationMessagePolicy", Given::Text("File")),
        ("resources", Given::Struct),
    ],
    inner: &[
        ("ports", &PORT),
        ("env", &VARIABLE),
        ("resources", &RESOURCES),
        ("livenessProbe", &PROBE),
        ("readinessProbe", &PROBE),
        ("startupProbe", &PROBE),
        ("lifecycle", &LIFECYCLE),
    ],
    dependent: |container| pull_policy(container, "image", "imagePullPolicy"),
    ..NONE
};

static PORT: Defaults = Defaults {
    members: &[("protocol", Given::Text("TCP"))],
    ..NONE
};

static VARIABLE: Defaults = Defaults {
    inner: &[(
        "valueFrom",
        &Defaults {
            inner: &[
                ("fieldRef", &FIELD),
                (
                    "fileKeyRef",
                    &Defaults {
                        members: &[("optional", Given::No)],
                        ..NONE
                    },
                ),
            ],
            ..NONE
        },
    )],
    ..NONE
};

/// A reference to a field of the pod.
static FIELD: Defaults = Defaults {
    members: &[("apiVersion", Given::Text("v1"))],
    ..NONE
};

static PROBE: Defaults = Defaults {
    members: &[
        ("timeoutSeconds", Given::Number(1)),
        ("periodSeconds", Given::Number(10)),
        ("successThreshold", Given::Number(1)),
        ("failureThreshold", Given::Number(3)),
    ],
    inner: &[
        ("httpGet", &HTTP_GET),
        (
            "grpc",
            &Defaults {
                members: &[("service", Given::Text(""))],
                ..NONE
            },
        ),
    ],
    ..NONE
};

static HTTP_GET: Defaults = Defaults {
    members: &[("path", Given::Text("/")), ("scheme", Given::Text("HTTP"))],
    ..NONE
};

static LIFECYCLE: Defaults = Defaults {
    inner: &[("postStart", &HOOK), ("preStop", &HOOK)],
    ..NONE
};

static HOOK: Defaults = Defaults {
    inner: &[("httpGet", &HTTP_GET)],
    ..NONE
};

static VOLUME: Defaults = Defaults {
    inner: &[
        ("hostPath", &HOST_PATH),
        ("secret", &FILES),
        ("configMap", &FILES),
        ("downwardAPI", &FIELD_FILES),
        ("projected", &PROJECTED),
        ("iscsi", &ISCSI),
        ("rbd", &RBD),
        ("azureDisk", &AZURE_DISK),
        ("scaleIO", &SCALE_IO),
        ("ephemeral", &EPHEMERAL),
        (
            "image",
            &Defaults {
                dependent: |source| pull_policy(source, "reference", "pullPolicy"),
                ..NONE
            },
        ),
    ],
    dependent: |volume| {
        // The name is the only member that is not a source.
        let sources = volume.iter().filter(|(member, _)| *member != "name");
        if sources.map(|(_, source)| source).all(Value::is_null) {
            volume.insert("emptyDir".to_owned(), json!({}));
        }
    },
    ..NONE
};

/// The spec of a PersistentVolume.
pub(super) static VOLUME_SPEC: Defaults = Defaults {
    members: &[
        ("persistentVolumeReclaimPolicy", Given::Text("Retain")),
        ("volumeMode", Given::Text("Filesystem")),
    ],
    amounts: &["capacity"],
    inner: &[
        ("hostPath", &HOST_PATH),
        ("rbd", &RBD),
        ("iscsi", &ISCSI),
        ("azureDisk", &AZURE_DISK),
        ("scaleIO", &SCALE_IO),
    ],
    ..NONE
};

/// The spec of a PersistentVolumeClaim.
pub(super) static CLAIM_SPEC: Defaults = Defaults {
    members: &[("volumeMode", Given::Text("Filesystem"))],
    inner: &[("resources", &RESOURCES)],
    ..NONE
};

static HOST_PATH: Defaults = Defaults {
    members: &[("type", Given::Text(""))],
    ..NONE
};

static FILES: Defaults = Defaults {
    members: &[MODE],
    ..NONE
};

static FIELD_FILES: Defaults = Defaults {
    members: &[MODE],
    inner: &[("items", &FIELD_FILE)],
    ..NONE
};

static FIELD_FILE: Defaults = Defaults {
    inner: &[("fieldRef", &FIELD)],
    ..NONE
};

static PROJECTED: Defaults = Defaults {
    members: &[MODE],
    inner: &[(
        "sources",
        &Defaults {
            inner: &[
                (
                    "downwardAPI",
                    &Defaults {
                        inner: &[("items", &FIELD_FILE)],
                        ..NONE
                    },
                ),
                (
                    "serviceAccountToken",
                    &Defaults {
                        members: &[("expirationSeconds", Given::Number(3600))],
                        ..NONE
                    },
                ),
            ],
            ..NONE
        },
    )],
    ..NONE
};

static ISCSI: Defaults = Defaults {
    members: &[("iscsiInterface", Given::Text("default"))],
    ..NONE
};

static RBD: Defaults = Defaults {
    members: &[
        ("pool", Given::Text("rbd")),
        ("user", Given::Text("admin")),
        ("keyring", Given::Text("/etc/ceph/keyring")),
    ],
    ..NONE
};

static AZURE_DISK: Defaults = Defaults {
    members: &[
        ("cachingMode", Given::Text("ReadWrite")),
        ("fsType", Given::Text("ext4")),
        ("readOnly", Given::No),
        ("kind", Given::Text("Shared")),
    ],
    ..NONE
};

static SCALE_IO: Defaults = Defaults {
    members: &[
        ("storageMode", Given::Text("ThinProvisioned")),
        ("fsType", Given::Text("xfs")),
    ],
    ..NONE
};

static EPHEMERAL: Defaults = Defaults {
    inner: &[(
        "volumeClaimTemplate",
        &Defaults {
            inner: &[("spec", &CLAIM_SPEC)],
            ..NONE
        },
    )],
    ..NONE
};

/// Sets the pull policy of an image by its tag.
fn pull_policy(object: &mut Struct, image: &str, policy: &str) {
    let name = object.get(image).and_then(Value::as_str);
    let is_latest = image::tag(name.unwrap_or_default()) == Some("latest");
    let default = if is_latest { "Always" } else { "IfNotPresent" };
    super::set_default_text(object, policy, default);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Message, Type, message_by_name};

    /// Asserts that every member of the table is a field of the right type, whose zero value the canonical form omits
    /// or shows as null.
    fn check(defaults: &Defaults, message: &'static Message, depth: usize) {
        assert!(depth < 10, "{message:?}");
        for (member, given) in defaults.members {
            let field = message.field(member);
            let field = field.unwrap_or_else(|| panic!("{message:?} has no {member}"));
            let fits = match given {
                Given::Text(_) => field.ty == Type::String,
                Given::Number(_) => matches!(field.ty, Type::Int32 | Type::Int64),
                Given::No => field.ty == Type::Bool,
                Given::Struct => field.ty.is_struct(),
            };
            assert!(fits, "{message:?} {member}: {given:?}");
            assert!(field.pointer || field.omitempty, "{message:?} {member}");
            // The schema table has the defaults that the types declare.
            let declared = field
                .default
                .map(|text| serde_json::from_str(text).unwrap());
            let given = Value::from(*given);
            assert_eq!(declared.unwrap_or_else(|| given.clone()), given, "{member}");
        }
        for member in defaults.amounts {
            let ty = &message.field(member).unwrap().ty;
            assert_eq!(ty.element(), Some(&Type::Quantity), "{message:?} {member}");
        }
        for (member, inner) in defaults.inner {
            let field = message.field(member);
            let ty = &field
                .unwrap_or_else(|| panic!("{message:?} has no {member}"))
                .ty;
            let ty = ty.element().unwrap_or(ty);
            check(inner, ty.as_message().unwrap(), depth + 1);
        }
    }

    #[test]
    fn table_matches_the_schema() {
        for (defaults, name) in [
            (&POD_SPEC, "core/v1.PodSpec"),
            (&VOLUME_SPEC, "core/v1.PersistentVolumeSpec"),
            (&CLAIM_SPEC, "core/v1.PersistentVolumeClaimSpec"),
        ] {
            check(defaults, message_by_name(name).unwrap(), 0);
        }
    }

    /// Every default that the types of a pod declare is in the table.
    #[test]
    fn declared_defaults_are_in_the_table() {
        fn missing(defaults: Option<&Defaults>, message: &'static Message, out: &mut Vec<String>) {
            for field in message.json_fields() {
                let given = |defaults: &Defaults| {
                    defaults.members.iter().any(|(name, _)| *name == field.json)
                };
                // An absent plain field already means its zero value.
                let is_zero = matches!(field.default, Some("\"\"" | "0")) && !field.pointer;
                if field.default.is_some() && !is_zero && !defaults.is_some_and(given) {
                    out.push(format!("{message:?} {}", field.json));
                }
                let inner = defaults.and_then(|defaults| {
                    let mut all = defaults.inner.iter();
                    all.find_map(|(name, inner)| (*name == field.json).then_some(*inner))
                });
                let ty = field.ty.element().unwrap_or(&field.ty);
                if let Some(message) = ty.as_message() {
                    missing(inner, message, out);
                }
            }
        }
        let mut out = Vec::new();
        for (defaults, name) in [
            (&POD_SPEC, "core/v1.PodSpec"),
            (&VOLUME_SPEC, "core/v1.PersistentVolumeSpec"),
        ] {
            missing(Some(defaults), message_by_name(name).unwrap(), &mut out);
        }
        // The operator of a toleration has a default only in the type. The server does not fill it in.
        out.retain(|path| !path.contains("Toleration"));
        assert_eq!(out, [""; 0]);
    }
}
