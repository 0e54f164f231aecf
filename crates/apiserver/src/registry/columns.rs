//! Columns of the Table form that kubectl prints.

pub(super) mod autoscaling;
mod custom;
mod description;
pub(super) mod networking;
pub(super) mod storage;
pub(super) mod workloads;

use jiff::Timestamp;
use serde_json::{Value, json};

pub(crate) use custom::CustomColumn;
pub(crate) use description::{Description, NAME_DESCRIPTION};

/// One column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Heading.
    pub(crate) name: &'static str,
    /// JSON type of the column; `string` also for numbers.
    pub(crate) kind: &'static str,
    /// Description, in the words of Kubernetes.
    pub(crate) description: Description,
    /// Priority: 0 is always shown, 1 only with `-o wide`.
    pub(crate) priority: i32,
    /// Format hint for clients; `name` for names.
    pub(crate) format: &'static str,
    /// Computes the cell of an object at a given time.
    pub(crate) cell: fn(&Value, Timestamp) -> Value,
}

impl Column {
    /// Sets the description to a text.
    const fn described(self, text: &'static str) -> Self {
        Self {
            description: Description::Text(text),
            ..self
        }
    }

    /// Sets the description to that of a field.
    const fn field(self, message: &'static str, field: &'static str) -> Self {
        Self {
            description: Description::Field(message, field),
            ..self
        }
    }

    /// Returns the header of the column.
    pub(crate) fn definition(&self) -> Value {
        let texts = [self.name, self.kind, self.format, self.description.text()];
        definition(texts, self.priority)
    }
}

/// Returns the header of a column. All kinds mark the column `Name` in the same way.
fn definition([name, kind, format, description]: [&str; 4], priority: i32) -> Value {
    let format = if name == "Name" { "name" } else { format };
    json!({"name": name, "type": kind, "format": format, "description": description,
        "priority": priority})
}

const fn text(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    Column {
        name,
        kind: "string",
        description: Description::Text(""),
        priority: 0,
        format: "",
        cell,
    }
}

const fn wide(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    Column {
        priority: 1,
        ..text(name, cell)
    }
}

const AGE_COLUMN: Column = text("Age", age).field("meta/v1.ObjectMeta", "creationTimestamp");

pub(crate) const AGE: &[Column] = &[AGE_COLUMN];

pub(super) const PRIORITY_CLASS: &[Column] = &[
    Column {
        kind: "integer",
        ..text("Value", |o, _| {
            json!(o.get("value").and_then(Value::as_i64).unwrap_or(0))
        })
    }
    .field("scheduling/v1.PriorityClass", "value"),
    Column {
        kind: "boolean",
        ..text("Global-Default", |o, _| {
            json!(o.get("globalDefault") == Some(&json!(true)))
        })
    }
    .field("scheduling/v1.PriorityClass", "globalDefault"),
    AGE_COLUMN,
    text("PreemptionPolicy", |o, _| string(o, "/preemptionPolicy"))
        .field("scheduling/v1.PriorityClass", "preemptionPolicy"),
];

pub(super) const RESOURCE_QUOTA: &[Column] = &[
    text("Request", |o, _| json!(usage(o, false))).described(
        "Request represents a minimum amount of cpu/memory that a container may consume.",
    ),
    text("Limit", |o, _| json!(usage(o, true))).described(
        "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
    ),
    AGE_COLUMN,
];

pub(super) const RUNTIME_CLASS: &[Column] = &[
    text("Handler", |o, _| string(o, "/handler")).field("node/v1.RuntimeClass", "handler"),
    AGE_COLUMN,
];

/// Columns of kinds for which Kubernetes defines none.
pub(super) const CREATED_AT: &[Column] = DEFINITION;

pub(super) const DEFINITION: &[Column] = &[text("Created At", |o, _| {
    string(o, "/metadata/creationTimestamp")
})
.field("meta/v1.ObjectMeta", "creationTimestamp")];

pub(super) const LEASE: &[Column] = &[
    text("Holder", |o, _| string(o, "/spec/holderIdentity"))
        .field("coordination/v1.LeaseSpec", "holderIdentity"),
    AGE_COLUMN,
];

pub(super) const LEASE_CANDIDATE: &[Column] = &[
    text("LeaseName", |o, _| string(o, "/spec/leaseName"))
        .field("coordination/v1alpha2.LeaseCandidateSpec", "leaseName"),
    text("BinaryVersion", |o, _| string(o, "/spec/binaryVersion")),
    text("EmulationVersion", |o, _| {
        string(o, "/spec/emulationVersion")
    }),
    AGE_COLUMN,
];

pub(super) const CONFIG_MAP: &[Column] = &[
    text("Data", |o, _| {
        json!(size(o, "/data") + size(o, "/binaryData"))
    })
    .field("core/v1.ConfigMap", "data"),
    AGE_COLUMN,
];

pub(super) const SECRET: &[Column] = &[
    text("Type", |o, _| string(o, "/type")).field("core/v1.Secret", "type"),
    text("Data", |o, _| json!(size(o, "/data"))).field("core/v1.Secret", "data"),
    AGE_COLUMN,
];

pub(super) const NAMESPACE: &[Column] = &[
    text("Status", |o, _| string(o, "/status/phase")).described("The status of the namespace"),
    AGE_COLUMN,
];

pub(super) const ENDPOINTS: &[Column] = &[
    text("Endpoints", endpoints).field("core/v1.Endpoints", "subsets"),
    AGE_COLUMN,
];

pub(super) const ENDPOINT_SLICE: &[Column] = &[
    text("AddressType", |o, _| string(o, "/addressType"))
        .field("discovery/v1.EndpointSlice", "addressType"),
    text("Ports", |o, _| {
        or_unset(list(o, "/ports", |p| scalar(p.get("port"))))
    })
    .field("discovery/v1.EndpointSlice", "ports"),
    text("Endpoints", |o, _| {
        or_unset(list(o, "/endpoints", |e| {
            e.get("addresses")
                .and_then(|a| a.get(0))
                .map_or_else(String::new, |a| scalar(Some(a)))
        }))
    })
    .field("discovery/v1.EndpointSlice", "endpoints"),
    AGE_COLUMN,
];

pub(super) const EVENT: &[Column] = &[
    text("Last Seen", |o, now| {
        let last = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime"];
        json!(since(first(o, &last), now))
    })
    .field("core/v1.Event", "lastTimestamp"),
    text("Type", |o, _| string(o, "/type")).field("core/v1.Event", "type"),
    text("Reason", |o, _| string(o, "/reason")).field("core/v1.Event", "reason"),
    text("Object", |o, _| {
        let kind = o
            .pointer("/involvedObject/kind")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let name = o
            .pointer("/involvedObject/name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        json!(format!("{}/{name}", kind.to_lowercase()))
    })
    .field("core/v1.Event", "involvedObject"),
    wide("Subobject", |o, _| string(o, "/involvedObject/fieldPath"))
        .field("core/v1.ObjectReference", "fieldPath"),
    wide("Source", |o, _| {
        json!(first(o, &["/source/component", "/reportingComponent"]).unwrap_or_default())
    })
    .field("core/v1.Event", "source"),
    text("Message", |o, _| {
        json!(scalar(o.pointer("/message")).trim())
    })
    .field("core/v1.Event", "message"),
    wide("First Seen", |o, now| {
        json!(since(first(o, &["/firstTimestamp", "/eventTime"]), now))
    })
    .field("core/v1.Event", "firstTimestamp"),
    wide("Count", |o, _| {
        let count = ["/series/count", "/count"]
            .iter()
            .find_map(|p| o.pointer(p));
        json!(count.and_then(Value::as_i64).unwrap_or(1).max(1))
    })
    .field("core/v1.Event", "count"),
    wide("Name", |o, _| string(o, "/metadata/name")).field("meta/v1.ObjectMeta", "name"),
];

pub(super) const NODE: &[Column] = &[
    text("Status", node_status).described("The status of the node"),
    text("Roles", node_roles).described("The roles of the node"),
    AGE_COLUMN,
    text("Version", |o, _| {
        string(o, "/status/nodeInfo/kubeletVersion")
    })
    .field("core/v1.NodeSystemInfo", "kubeletVersion"),
    wide("Internal-IP", |o, _| json!(node_address(o, "InternalIP")))
        .field("core/v1.NodeStatus", "addresses"),
    wide("External-IP", |o, _| json!(node_address(o, "ExternalIP")))
        .field("core/v1.NodeStatus", "addresses"),
    wide("OS-Image", |o, _| {
        json!(or_unknown(o, "/status/nodeInfo/osImage"))
    })
    .field("core/v1.NodeSystemInfo", "osImage"),
    wide("Kernel-Version", |o, _| {
        json!(or_unknown(o, "/status/nodeInfo/kernelVersion"))
    })
    .field("core/v1.NodeSystemInfo", "kernelVersion"),
    wide("Container-Runtime", |o, _| {
        json!(or_unknown(o, "/status/nodeInfo/containerRuntimeVersion"))
    })
    .field("core/v1.NodeSystemInfo", "containerRuntimeVersion"),
];

pub(super) const POD: &[Column] = &[
    text("Ready", |o, _| {
        let ready = count(o, "/status/containerStatuses", |s| {
            s.get("ready") == Some(&json!(true))
        });
        json!(format!("{ready}/{}", size(o, "/spec/containers")))
    }).described("The aggregate readiness state of this pod for accepting traffic."),
    text("Status", pod_status).described("The aggregate status of the containers in this pod."),
    text("Restarts", |o, _| {
        let statuses = o
            .pointer("/status/containerStatuses")
            .and_then(Value::as_array);
        let restarts = statuses
            .into_iter()
            .flatten()
            .filter_map(|s| s.get("restartCount")?.as_i64());
        json!(restarts.sum::<i64>().to_string())
    }).described("The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
    AGE_COLUMN,
    wide("IP", |o, _| or_none(o, "/status/podIP")).field("core/v1.PodStatus", "podIP"),
    wide("Node", |o, _| or_none(o, "/spec/nodeName")).field("core/v1.PodSpec", "nodeName"),
    wide("Nominated Node", |o, _| {
        or_none(o, "/status/nominatedNodeName")
    }).field("core/v1.PodStatus", "nominatedNodeName"),
    wide("Readiness Gates", |_, _| json!("<none>")).field("core/v1.PodSpec", "readinessGates"),
];

pub(super) const SERVICE: &[Column] = &[
    text("Type", |o, _| string(o, "/spec/type")).field("core/v1.ServiceSpec", "type"),
    text("Cluster-IP", |o, _| or_none(o, "/spec/clusterIP"))
        .field("core/v1.ServiceSpec", "clusterIP"),
    text("External-IP", |o, _| {
        let ips = list(o, "/spec/externalIPs", |ip| scalar(Some(ip)));
        json!(if ips.is_empty() {
            "<none>".to_owned()
        } else {
            ips
        })
    })
    .field("core/v1.ServiceSpec", "externalIPs"),
    text("Port(s)", |o, _| {
        let ports = list(o, "/spec/ports", |p| {
            let protocol = p.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
            let node = p
                .get("nodePort")
                .and_then(Value::as_i64)
                .filter(|port| *port != 0);
            let node = node.map_or_else(String::new, |port| format!(":{port}"));
            format!("{}{node}/{protocol}", scalar(p.get("port")))
        });
        json!(if ports.is_empty() {
            "<none>".to_owned()
        } else {
            ports
        })
    })
    .field("core/v1.ServiceSpec", "ports"),
    AGE_COLUMN,
    wide("Selector", |o, _| {
        let selector = o.pointer("/spec/selector").and_then(Value::as_object);
        let terms: Vec<String> = selector
            .into_iter()
            .flatten()
            .map(|(k, v)| format!("{k}={}", scalar(Some(v))))
            .collect();
        json!(if terms.is_empty() {
            "<none>".to_owned()
        } else {
            terms.join(",")
        })
    })
    .field("core/v1.ServiceSpec", "selector"),
];

pub(super) const ROLE: &[Column] = &[text("Created At", |o, _| {
    string(o, "/metadata/creationTimestamp")
})
.field("meta/v1.ObjectMeta", "creationTimestamp")];

pub(super) const ROLE_BINDING: &[Column] = &binding(
    "rbac/v1.RoleBinding",
    [
        "Users in the roleBinding",
        "Groups in the roleBinding",
        "ServiceAccounts in the roleBinding",
    ],
);

pub(super) const CLUSTER_ROLE_BINDING: &[Column] = &binding(
    "rbac/v1.ClusterRoleBinding",
    [
        "Users in the clusterRoleBinding",
        "Groups in the clusterRoleBinding",
        "ServiceAccounts in the clusterRoleBinding",
    ],
);

const fn binding(message: &'static str, subjects_are: [&'static str; 3]) -> [Column; 5] {
    let [users, groups, accounts] = subjects_are;
    [
        text("Role", |o, _| {
            let kind = scalar(o.pointer("/roleRef/kind"));
            json!(format!("{kind}/{}", scalar(o.pointer("/roleRef/name"))))
        })
        .field(message, "roleRef"),
        AGE_COLUMN,
        wide("Users", |o, _| json!(subjects(o, "User"))).described(users),
        wide("Groups", |o, _| json!(subjects(o, "Group"))).described(groups),
        wide("ServiceAccounts", |o, _| {
            json!(subjects(o, "ServiceAccount"))
        })
        .described(accounts),
    ]
}

fn age(object: &Value, now: Timestamp) -> Value {
    json!(since(first(object, &["/metadata/creationTimestamp"]), now))
}

fn string(object: &Value, pointer: &str) -> Value {
    json!(scalar(object.pointer(pointer)))
}

fn scalar(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}

fn first<'a>(object: &'a Value, pointers: &[&str]) -> Option<&'a str> {
    pointers
        .iter()
        .find_map(|p| object.pointer(p)?.as_str().filter(|text| !text.is_empty()))
}

fn size(object: &Value, pointer: &str) -> usize {
    match object.pointer(pointer) {
        Some(Value::Object(map)) => map.len(),
        Some(Value::Array(list)) => list.len(),
        _ => 0,
    }
}

fn count(object: &Value, pointer: &str, wanted: fn(&Value) -> bool) -> usize {
    let items = object.pointer(pointer).and_then(Value::as_array);
    items
        .into_iter()
        .flatten()
        .filter(|item| wanted(item))
        .count()
}

fn list(object: &Value, pointer: &str, item: fn(&Value) -> String) -> String {
    let items = object.pointer(pointer).and_then(Value::as_array);
    let all: Vec<String> = items.into_iter().flatten().map(item).collect();
    if all.len() > 3 {
        format!("{} + {} more...", all[..3].join(","), all.len() - 3)
    } else {
        all.join(",")
    }
}

/// Returns a label selector in the form of a query.
fn selector_text(selector: Option<&Value>) -> String {
    let member = |name: &str| selector.and_then(|selector| selector.get(name));
    let labels = member("matchLabels").and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    let mut terms: Vec<(String, String)> = labels
        .map(|(key, value)| (key.clone(), format!("{key}={}", scalar(Some(value)))))
        .collect();
    let expressions = member("matchExpressions").and_then(Value::as_array);
    for expression in expressions.into_iter().flatten() {
        let key = scalar(expression.get("key"));
        let values = expression.get("values").and_then(Value::as_array);
        let values = values.into_iter().flatten();
        let mut values: Vec<String> = values.map(|value| scalar(Some(value))).collect();
        values.sort();
        let values = values.join(",");
        let term = match scalar(expression.get("operator")).as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        };
        terms.push((key, term));
    }
    terms.sort_by(|one, other| one.0.cmp(&other.0));
    let terms: Vec<String> = terms.into_iter().map(|(_, term)| term).collect();
    if terms.is_empty() {
        "<none>".to_owned()
    } else {
        terms.join(",")
    }
}

fn or_unset(text: String) -> Value {
    json!(if text.is_empty() {
        "<unset>".to_owned()
    } else {
        text
    })
}

fn or_none(object: &Value, pointer: &str) -> Value {
    json!(first(object, &[pointer]).unwrap_or("<none>"))
}

fn or_unknown(object: &Value, pointer: &str) -> String {
    first(object, &[pointer]).unwrap_or("<unknown>").to_owned()
}

fn subjects(object: &Value, kind: &str) -> String {
    let all = object.get("subjects").and_then(Value::as_array);
    let names = all
        .into_iter()
        .flatten()
        .filter(|s| s.get("kind") == Some(&json!(kind)));
    let names: Vec<String> = names
        .map(|s| match s.get("namespace").and_then(Value::as_str) {
            Some(namespace) => format!("{namespace}/{}", scalar(s.get("name"))),
            None => scalar(s.get("name")),
        })
        .collect();
    names.join(", ")
}

fn endpoints(object: &Value, _: Timestamp) -> Value {
    let mut all = Vec::new();
    for subset in object
        .get("subsets")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        for address in subset
            .get("addresses")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let ip = scalar(address.get("ip"));
            let ports = subset.get("ports").and_then(Value::as_array);
            let ports = ports.map(Vec::as_slice).unwrap_or_default();
            if ports.is_empty() {
                all.push(ip);
            } else {
                all.extend(
                    ports
                        .iter()
                        .map(|p| format!("{ip}:{}", scalar(p.get("port")))),
                );
            }
        }
    }
    json!(match all.len() {
        0 => "<none>".to_owned(),
        1..=3 => all.join(","),
        n => format!("{} + {} more...", all[..3].join(","), n - 3),
    })
}

/// Returns the used and the hard amounts of a quota, of limits or of everything else.
fn usage(quota: &Value, limits: bool) -> String {
    let hard = quota.pointer("/status/hard").and_then(Value::as_object);
    let hard = hard.into_iter().flatten();
    let used = quota.pointer("/status/used");
    let parts = hard.filter(|(name, _)| name.starts_with("limits.") == limits);
    let parts = parts.map(|(name, hard)| {
        let used = used.and_then(|used| used.get(name)).and_then(Value::as_str);
        format!("{name}: {}/{}", used.unwrap_or("0"), scalar(Some(hard)))
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn node_status(object: &Value, _: Timestamp) -> Value {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|c| c.get("type") == Some(&json!("Ready")));
    let mut text = match ready.and_then(|c| c.get("status")).and_then(Value::as_str) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if object.pointer("/spec/unschedulable") == Some(&json!(true)) {
        text.push_str(",SchedulingDisabled");
    }
    json!(text)
}

fn node_roles(object: &Value, _: Timestamp) -> Value {
    let labels = object
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .filter(|role| !role.is_empty())
        .collect();
    json!(if roles.is_empty() {
        "<none>".to_owned()
    } else {
        roles.join(",")
    })
}

fn node_address(object: &Value, kind: &str) -> String {
    let all = object
        .pointer("/status/addresses")
        .and_then(Value::as_array);
    let found = all
        .into_iter()
        .flatten()
        .find(|a| a.get("type") == Some(&json!(kind)));
    found.map_or_else(|| "<none>".to_owned(), |a| scalar(a.get("address")))
}

fn pod_status(object: &Value, _: Timestamp) -> Value {
    if object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|t| !t.is_null())
    {
        return json!("Terminating");
    }
    let statuses = object
        .pointer("/status/containerStatuses")
        .and_then(Value::as_array);
    let reasons = ["/state/waiting/reason", "/state/terminated/reason"];
    let container = statuses
        .into_iter()
        .flatten()
        .find_map(|s| first(s, &reasons));
    let text = container.or_else(|| first(object, &["/status/reason", "/status/phase"]));
    json!(text.unwrap_or_default())
}

/// Returns the time elapsed since `moment`, in the short form that kubectl prints.
fn since(moment: Option<&str>, now: Timestamp) -> String {
    match moment.and_then(|text| text.parse::<Timestamp>().ok()) {
        Some(then) => human(now.as_second() - then.as_second()),
        None => "<unknown>".to_owned(),
    }
}

/// Formats seconds with about two significant digits (apimachinery duration.go, HumanDuration).
fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, "d", hours % 24, "h"),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_at_most_two_figures() {
        let cases = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (86_400 * 400, "400d"),
            (86_400 * 366 * 3, "3y3d"),
            (86_400 * 365 * 9, "9y"),
        ];
        for (seconds, want) in cases {
            assert_eq!(human(seconds), want);
        }
    }

    /// A field that is renamed upstream would lose its description without notice.
    #[test]
    fn every_column_is_described() {
        // The real server describes these with fields that do not exist.
        let empty = ["BinaryVersion", "EmulationVersion"];
        for kind in super::super::all() {
            for column in kind.columns {
                let text = column.description.text();
                let name = column.name;
                assert_eq!(
                    text.is_empty(),
                    empty.contains(&name),
                    "{} {name}",
                    kind.kind()
                );
            }
        }
        assert!(NAME_DESCRIPTION.text().starts_with("Name must be unique"));
    }

    #[test]
    fn cells_of_empty_objects_do_not_panic() {
        let now = Timestamp::UNIX_EPOCH;
        for kind in super::super::all() {
            for column in kind.columns {
                (column.cell)(&json!({}), now);
            }
        }
    }

    #[test]
    fn long_endpoint_lists_are_truncated() {
        let addresses: Vec<Value> = (1..6)
            .map(|i| json!({"ip": format!("10.0.0.{i}")}))
            .collect();
        let object = json!({"subsets": [{"addresses": addresses, "ports": [{"port": 80}]}]});
        assert_eq!(
            endpoints(&object, Timestamp::UNIX_EPOCH),
            json!("10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more...")
        );
    }
}
