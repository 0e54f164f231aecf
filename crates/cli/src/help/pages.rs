//! The layout of the help of each command. `services` has the commands that run a server.
//!
//! Flags are named by their long name, arguments by their identifier.

use clap::{Arg, Command};

use super::services;

/// Flags with a common heading.
pub(super) struct Group {
    pub(super) heading: &'static str,
    /// Flags that `-h` and `--help` show.
    pub(super) shown: &'static [&'static str],
    /// Flags that only `--help` shows.
    pub(super) more: &'static [&'static str],
}

impl Group {
    /// Returns the position of a flag in this group, and whether `-h` shows it.
    pub(super) fn place(&self, flag: &str) -> Option<(usize, bool)> {
        let place = self.flags().position(|known| known == flag)?;
        Some((place, place < self.shown.len()))
    }

    pub(super) fn flags(&self) -> impl Iterator<Item = &'static str> {
        self.shown.iter().chain(self.more).copied()
    }
}

/// The help of one command.
pub(super) struct Page {
    /// The command, for example `server stop`; empty for the program.
    pub(super) path: &'static str,
    pub(super) groups: &'static [Group],
    /// Global flags that `-h` shows.
    pub(super) summary_globals: &'static [&'static str],
    /// Global flags that have no effect on this command. They are accepted, but not shown.
    pub(super) without: &'static [&'static str],
    /// Command lines and comments.
    pub(super) examples: &'static [(&'static str, &'static str)],
}

impl Page {
    /// Returns the page of a command. A command without a page gets an empty one, which a test rejects.
    pub(super) fn of(path: &str) -> &'static Self {
        let mut pages = PAGES.iter().chain(services::PAGES);
        let found = pages.find(|page| page.path == path);
        found.unwrap_or(&EMPTY)
    }

    /// Sorts the flags of a command by group, because clap shows groups in the order of their first flags.
    pub(super) fn sort(&self, mut command: Command) -> Command {
        for flag in self.groups.iter().flat_map(Group::flags) {
            let found = command
                .get_arguments()
                .find(|arg| name_of(arg) == flag && !arg.is_global_set())
                .map(|arg| arg.get_id().clone());
            if let Some(id) = found {
                // This moves the flag to the end.
                command = command.mut_arg(id, |arg| arg);
            }
        }
        command
    }
}

/// Returns the long name of a flag, or the identifier of an argument.
pub(super) fn name_of(arg: &Arg) -> &str {
    arg.get_long().unwrap_or(arg.get_id().as_str())
}

/// The flags of all commands.
pub(super) const GLOBALS: &[Group] = &[
    Group {
        heading: "Connection",
        shown: &["kubeconfig", "context", "local", "require-cluster"],
        more: &[],
    },
    Group {
        heading: "Logging",
        shown: &["verbose", "log-format", "log-file"],
        more: &["quiet"],
    },
];

pub(super) const CONNECTION: &[&str] = &["kubeconfig", "context", "local", "require-cluster"];

const CONNECTION_AND_LOGGING: &[&str] = &[
    "kubeconfig",
    "context",
    "local",
    "require-cluster",
    "verbose",
    "log-format",
    "log-file",
    "quiet",
];

const USUAL: &[&str] = &["kubeconfig", "context", "local", "verbose"];

const EMPTY: Page = Page {
    path: "",
    groups: &[],
    summary_globals: &[],
    without: &[],
    examples: &[],
};

/// The flags of commands that read one election or write orders to it.
const NAMED: Group = Group {
    heading: "Election",
    shown: &["name", "election", "namespace", "lock"],
    more: &[],
};

const PAGES: &[Page] = &[
    Page {
        path: "",
        groups: &[],
        summary_globals: USUAL,
        without: &[],
        examples: &[
            (
                "tenure run --election backup -- ./backup.sh",
                "run on one machine at a time",
            ),
            ("tenure elect web --http :4040", "sidecar of a pod"),
            ("tenure status -A", "show who leads"),
            ("tenure demo", "see hand-overs"),
        ],
    },
    Page {
        path: "run",
        groups: &[
            Group {
                heading: "Election",
                shown: &["election", "namespace", "slots", "once"],
                more: &[
                    "resize",
                    "lock",
                    "id",
                    "delete-on-exit",
                    "announce",
                    "zone",
                    "priority",
                    "prefer-zone",
                    "failback",
                    "failback-after",
                    "without-election",
                    "print-rbac",
                ],
            },
            Group {
                heading: "Timing",
                shown: &["nonblock", "wait", "ttl", "max-hold"],
                more: &[
                    "lease-duration",
                    "renew-deadline",
                    "retry-period",
                    "lock-delay",
                    "confirm-death",
                    "startup-timeout",
                    "min-validity",
                ],
            },
            Group {
                heading: "Command",
                shown: &["command", "on-exit", "on-lost", "shell"],
                more: &[
                    "on-exit-failure",
                    "max-restarts",
                    "conflict-exit-code",
                    "lost-exit-code",
                    "foreground",
                    "stdin",
                    "keep-fd",
                    "env-prefix",
                ],
            },
            Group {
                heading: "Signals",
                shown: &["stop-signal"],
                more: &["step-down-signal", "forward-signal"],
            },
            Group {
                heading: "Outputs",
                shown: &[],
                more: &["output-events"],
            },
        ],
        summary_globals: &["kubeconfig", "local"],
        without: &[],
        examples: &[
            (
                "tenure run --election backup -- ./backup.sh",
                "wait to lead",
            ),
            (
                "tenure run --election backup --nonblock -- ./backup.sh",
                "or exit with 75",
            ),
            (
                "tenure run --election report --once -- ./report.sh",
                "cron on all hosts",
            ),
            (
                "tenure run --election build --slots 4 -n ci -- make",
                "at most four",
            ),
        ],
    },
    Page {
        path: "elect",
        groups: &[
            Group {
                heading: "Election",
                shown: &["name", "election", "namespace", "id"],
                more: &[
                    "lock",
                    "announce",
                    "zone",
                    "priority",
                    "prefer-zone",
                    "failback",
                    "failback-after",
                    "mode",
                    "dry-run",
                    "preflight",
                    "print-rbac",
                    "name-format",
                    "compat",
                ],
            },
            Group {
                heading: "Timing",
                shown: &["ttl"],
                more: &[
                    "lease-duration",
                    "renew-deadline",
                    "retry-period",
                    "lock-delay",
                    "confirm-death",
                    "release-on-exit",
                    "release-delay",
                    "wait-pid",
                    "startup-timeout",
                ],
            },
            Group {
                heading: "Health",
                shown: &["health-url", "health-cmd"],
                more: &[
                    "health-file",
                    "health-file-max-age",
                    "wait-ready",
                    "health-interval",
                    "health-failures",
                    "health-backoff",
                    "deadlock-grace",
                ],
            },
            Group {
                heading: "HTTP",
                shown: &["http"],
                more: &[
                    "http-socket-mode",
                    "probe-address",
                    "metrics-address",
                    "allowed-host",
                    "step-down-token-file",
                ],
            },
            Group {
                heading: "Outputs",
                shown: &["on-elected", "on-lost", "state-file"],
                more: &["on-change", "webhook", "signal-process", "events"],
            },
            Group {
                heading: "Routing",
                shown: &["label", "service"],
                more: &[
                    "label-values",
                    "label-required",
                    "endpointslice",
                    "readiness-gate",
                ],
            },
            Group {
                heading: "Connection",
                shown: &[],
                more: &["use-cluster-credentials"],
            },
        ],
        summary_globals: &["kubeconfig"],
        without: &[],
        examples: &[
            ("tenure elect web --http :4040", "answer who leads"),
            (
                "tenure elect web --label --state-file /run/leader.json",
                "route traffic",
            ),
            ("tenure elect web --label --print-rbac", "print the Role"),
        ],
    },
    Page {
        path: "status",
        groups: &[
            Group {
                heading: "Election",
                shown: &["name", "election", "namespace", "all-namespaces"],
                more: &[],
            },
            Group {
                heading: "Outputs",
                shown: &["watch", "output"],
                more: &[],
            },
        ],
        summary_globals: USUAL,
        without: &[],
        examples: &[
            ("tenure status -A", "all elections of the cluster"),
            ("tenure status web -n shop -w", "follow one election"),
            ("tenure status -o json", "for programs"),
        ],
    },
    Page {
        path: "top",
        groups: &[Group {
            heading: "Election",
            shown: &["namespace"],
            more: &[],
        }],
        summary_globals: USUAL,
        without: &[],
        examples: &[
            ("tenure top", "all elections; ? shows the keys"),
            ("tenure top -n shop", "those of one namespace"),
        ],
    },
    Page {
        path: "ui",
        groups: &[
            Group {
                heading: "Election",
                shown: &["namespace"],
                more: &[],
            },
            Group {
                heading: "HTTP",
                shown: &["listen"],
                more: &["allowed-host"],
            },
        ],
        summary_globals: USUAL,
        without: &[],
        examples: &[
            ("tenure ui", "print the address of the page"),
            (
                "tenure ui -n shop --listen 127.0.0.1:8080",
                "one namespace, fixed port",
            ),
        ],
    },
    Page {
        path: "history",
        groups: &[
            NAMED,
            Group {
                heading: "Outputs",
                shown: &["output"],
                more: &[],
            },
        ],
        summary_globals: USUAL,
        without: &[],
        examples: &[
            ("tenure history web", "terms, and why each ended"),
            (
                "tenure history web -n shop -o wide",
                "with the time without a leader",
            ),
            ("tenure history kube-scheduler -n kube-system", ""),
        ],
    },
    Page {
        path: "step-down",
        groups: &[
            NAMED,
            Group {
                heading: "Timing",
                shown: &["to", "for", "no-wait"],
                more: &[],
            },
        ],
        summary_globals: USUAL,
        without: &[],
        examples: &[
            ("tenure step-down web -n shop", "wait for the next leader"),
            ("tenure step-down web --to web-1", "choose the next leader"),
            ("tenure step-down web --for 5m --no-wait", ""),
        ],
    },
    Page {
        path: "pause",
        groups: &[NAMED],
        summary_globals: USUAL,
        without: &[],
        examples: &[
            ("tenure pause web", "the holder keeps its term"),
            ("tenure pause web -n shop", ""),
        ],
    },
    Page {
        path: "resume",
        groups: &[NAMED],
        summary_globals: USUAL,
        without: &[],
        examples: &[
            ("tenure resume web", "candidates may acquire it again"),
            ("tenure resume web -n shop", ""),
        ],
    },
    Page {
        path: "doctor",
        groups: &[
            NAMED,
            Group {
                heading: "Timing",
                shown: &[
                    "lease-duration",
                    "renew-deadline",
                    "retry-period",
                    "samples",
                    "observe",
                ],
                more: &[],
            },
            Group {
                heading: "Outputs",
                shown: &["output"],
                more: &[],
            },
        ],
        summary_globals: USUAL,
        without: &[],
        examples: &[
            ("tenure doctor", "check this cluster and machine"),
            ("tenure doctor web -n shop", "check one election"),
            (
                "tenure doctor --lease-duration 6s --renew-deadline 4s --retry-period 1s",
                "",
            ),
        ],
    },
    Page {
        path: "demo",
        groups: &[
            Group {
                heading: "Timing",
                shown: &["rounds", "pause"],
                more: &[],
            },
            Group {
                heading: "Outputs",
                shown: &["no-page"],
                more: &[],
            },
        ],
        summary_globals: &["verbose"],
        without: CONNECTION,
        examples: &[
            ("tenure demo", "until Ctrl-C"),
            ("tenure demo --rounds 5 --no-page", "five hand-overs"),
        ],
    },
    Page {
        path: "completions",
        groups: &[Group {
            heading: "Outputs",
            shown: &["shell"],
            more: &[],
        }],
        summary_globals: &[],
        without: CONNECTION_AND_LOGGING,
        examples: &[
            (
                "tenure completions bash > /etc/bash_completion.d/tenure",
                "",
            ),
            ("tenure completions zsh > ~/.zfunc/_tenure", ""),
            (
                "tenure completions fish > ~/.config/fish/completions/tenure.fish",
                "",
            ),
        ],
    },
    Page {
        path: "man",
        groups: &[Group {
            heading: "Outputs",
            shown: &["dir"],
            more: &[],
        }],
        summary_globals: &[],
        without: CONNECTION_AND_LOGGING,
        examples: &[
            ("tenure man --dir ~/.local/share/man/man1", "for this user"),
            ("tenure man --dir ./man", ""),
        ],
    },
];
