//! The layout of the help of `tenure server` and `tenure provision`.

use super::pages::{CONNECTION, Group, Page};

const SERVER: &[Group] = &[
    Group {
        heading: "Server",
        shown: &["listen", "data-dir"],
        more: &[
            "ephemeral",
            "until-stdin-closes",
            "write-kubeconfig",
            "insecure-listen",
            "unix-socket",
            "tls-san",
        ],
    },
    Group {
        heading: "Security",
        shown: &[],
        more: &[
            "audit-log",
            "authorization-mode",
            "token-auth-file",
            "anonymous-auth",
            "record-rbac",
            "service-account-max-token-expiration",
            "service-account-key-file",
            "audit-policy",
            "audit-log-maxsize",
            "audit-log-maxbackup",
        ],
    },
    Group {
        heading: "Storage",
        shown: &["store"],
        more: &[
            "encryption-key-file",
            "encrypt",
            "etcd-cafile",
            "etcd-certfile",
            "etcd-keyfile",
            "etcd-prefix",
            "etcd-compaction-interval",
        ],
    },
    Group {
        heading: "Controllers",
        shown: &["manifests"],
        more: &[
            "disable",
            "no-leader-elect",
            "probe-address",
            "metrics-address",
        ],
    },
    Group {
        heading: "Timing",
        shown: &[],
        more: &["lease-duration", "renew-deadline", "retry-period"],
    },
    Group {
        heading: "Limits",
        shown: &[],
        more: &["max-requests-inflight", "max-watches", "max-connections"],
    },
];

const SERVER_FLAGS: Group = Group {
    heading: "Server",
    shown: &["data-dir"],
    more: &[],
};

const SERVER_DATA: &[Group] = &[SERVER_FLAGS];

const SERVER_STOP: &[Group] = &[Group {
    heading: "Server",
    shown: &["data-dir", "timeout"],
    more: &[],
}];

/// Commands that read or write a file.
const SERVER_FILE: &[Group] = &[Group {
    heading: "Server",
    shown: &["data-dir", "file"],
    more: &[],
}];

const SERVER_BACKUP: &[Group] = &[
    Group {
        heading: "Server",
        shown: &["data-dir", "file"],
        more: &[],
    },
    Group {
        heading: "Storage",
        shown: &["encryption-key-file", "encrypt"],
        more: &[],
    },
];

const SERVER_ROTATION: &[Group] = &[
    SERVER_FLAGS,
    Group {
        heading: "Storage",
        shown: &["encryption-key-file", "encrypt", "store"],
        more: &[
            "etcd-cafile",
            "etcd-certfile",
            "etcd-keyfile",
            "etcd-prefix",
            "etcd-compaction-interval",
        ],
    },
];

/// Global flags without effect on commands that do not read the stored data.
const CONNECTION_AND_ENCRYPTION: &[&str] = &[
    "kubeconfig",
    "context",
    "local",
    "require-cluster",
    "encryption-key-file",
    "encrypt",
];

pub(super) const PAGES: &[Page] = &[
    Page {
        path: "server",
        groups: SERVER,
        summary_globals: &["kubeconfig"],
        without: &["local", "require-cluster"],
        examples: &[
            ("tenure server", "for this user"),
            (
                "tenure server --listen 0.0.0.0:6443 --tls-san api.example",
                "for others",
            ),
            (
                "tenure server --store etcd=http://127.0.0.1:2379",
                "share an etcd",
            ),
            ("tenure server stop", ""),
        ],
    },
    Page {
        path: "server run",
        groups: SERVER,
        summary_globals: &["kubeconfig", "verbose"],
        without: &["local", "require-cluster"],
        examples: &[
            (
                "tenure server run --data-dir ./data --listen 127.0.0.1:0",
                "any free port",
            ),
            (
                "tenure server run --store memory --manifests ./manifests",
                "for tests",
            ),
        ],
    },
    Page {
        path: "server status",
        groups: SERVER_DATA,
        summary_globals: &[],
        without: CONNECTION_AND_ENCRYPTION,
        examples: &[
            ("tenure server status", "exits with 1 if no server runs"),
            ("tenure server status --data-dir ./data", ""),
        ],
    },
    Page {
        path: "server token",
        groups: SERVER_DATA,
        summary_globals: &[],
        without: CONNECTION_AND_ENCRYPTION,
        examples: &[
            ("tenure server token", "the server of this user"),
            ("tenure server token --data-dir ./data", ""),
        ],
    },
    Page {
        path: "server stop",
        groups: SERVER_STOP,
        summary_globals: &[],
        without: CONNECTION_AND_ENCRYPTION,
        examples: &[
            ("tenure server stop", "the server of this user"),
            ("tenure server stop --data-dir ./data --timeout 1m", ""),
        ],
    },
    Page {
        path: "server backup",
        groups: SERVER_BACKUP,
        summary_globals: &[],
        without: CONNECTION,
        examples: &[
            (
                "tenure server backup monday.backup",
                "also while the server runs",
            ),
            ("tenure server backup monday.backup --data-dir ./data", ""),
        ],
    },
    Page {
        path: "server restore",
        groups: SERVER_BACKUP,
        summary_globals: &[],
        without: CONNECTION,
        examples: &[
            (
                "tenure server restore monday.backup",
                "after `tenure server stop`",
            ),
            ("tenure server restore monday.backup --data-dir ./data", ""),
        ],
    },
    Page {
        path: "server new-key",
        groups: SERVER_FILE,
        summary_globals: &[],
        without: CONNECTION_AND_ENCRYPTION,
        examples: &[
            ("tenure server new-key keys", "only this user can read it"),
            ("tenure server new-key /run/secrets/tenure-keys", ""),
        ],
    },
    Page {
        path: "server rotate-keys",
        groups: SERVER_ROTATION,
        summary_globals: &[],
        without: CONNECTION,
        examples: &[
            (
                "tenure server rotate-keys --encryption-key-file keys",
                "while stopped",
            ),
            (
                "tenure server rotate-keys --store etcd=http://etcd:2379",
                "while servers run",
            ),
        ],
    },
    Page {
        path: "provision",
        groups: &[
            Group {
                heading: "Driver",
                shown: &["csi-address", "timeout"],
                more: &[
                    "retry-interval-start",
                    "retry-interval-max",
                    "worker-threads",
                    "cloning-protection-threads",
                    "snapshot-orphan-sweep-interval",
                ],
            },
            Group {
                heading: "Volumes",
                shown: &["volume-name-prefix", "default-fstype"],
                more: &[
                    "volume-name-uuid-length",
                    "extra-create-metadata",
                    "controller-publish-readonly",
                    "prevent-volume-mode-conversion",
                    "provision-journal",
                    "fencing-token-annotation",
                    "feature-gates",
                ],
            },
            Group {
                heading: "Topology",
                shown: &[],
                more: &[
                    "strict-topology",
                    "immediate-topology",
                    "node-deployment",
                    "node-deployment-immediate-binding",
                    "node-deployment-base-delay",
                    "node-deployment-max-delay",
                ],
            },
            Group {
                heading: "Capacity",
                shown: &["enable-capacity"],
                more: &[
                    "capacity-threads",
                    "capacity-poll-interval",
                    "capacity-for-immediate-binding",
                    "capacity-ownerref-level",
                    "kube-api-capacity-qps",
                    "kube-api-capacity-burst",
                ],
            },
            Group {
                heading: "Election",
                shown: &["leader-election", "leader-election-namespace"],
                more: &["leader-election-labels", "warm-standby"],
            },
            Group {
                heading: "Timing",
                shown: &[],
                more: &[
                    "leader-election-lease-duration",
                    "leader-election-renew-deadline",
                    "leader-election-retry-period",
                ],
            },
            Group {
                heading: "Outputs",
                shown: &["http-endpoint"],
                more: &["metrics-path"],
            },
            Group {
                heading: "Connection",
                shown: &["master"],
                more: &["kube-api-qps", "kube-api-burst"],
            },
            Group {
                heading: "Logging",
                shown: &["v"],
                more: &["logging-format"],
            },
        ],
        summary_globals: &["kubeconfig"],
        without: &[
            "local",
            "require-cluster",
            "verbose",
            "log-format",
            "log-file",
        ],
        examples: &[
            ("tenure provision --csi-address /run/csi/socket", ""),
            (
                "tenure provision --leader-election --http-endpoint :8080",
                "several replicas",
            ),
            ("tenure provision --enable-capacity --strict-topology", ""),
        ],
    },
];
