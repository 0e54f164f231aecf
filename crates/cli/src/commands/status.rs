//! `tenure status`: shows elections, their holders and the remaining lease.

use anyhow::Result;
use clap::Args;
use kube::Client;

use crate::announce::{Candidate, some_of};
use crate::board::{Board, Scope};
use crate::connect::{Connect, Opened};
use crate::election_name::OptionalElectionName;
use crate::elections::{self, Seen};
use crate::output::{self, Format, Paint};
use crate::signals::Signals;
use crate::terms;
use crate::waiting;

/// Show elections and their leaders
#[derive(Args, Debug)]
pub(crate) struct Status {
    #[command(flatten)]
    name: OptionalElectionName,
    /// Namespace [default: of the kubeconfig's context]
    #[arg(short, long, value_name = "NS", env = "TENURE_NAMESPACE")]
    namespace: Option<String>,
    /// Show all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Follow changes until interrupted
    ///
    /// A terminal is redrawn; otherwise every change of leader is printed.
    #[arg(short, long)]
    watch: bool,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Format,
}

impl Status {
    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        let Opened {
            client,
            namespace,
            server,
        } = connect.open(self.namespace.as_deref()).await?;
        let namespace = (!self.all_namespaces).then_some(namespace);
        if self.watch {
            return self.follow(&client, namespace, &server).await;
        }
        let rows = waiting::on(&server, self.read(&client, namespace.as_deref())).await?;
        if rows.is_empty() && self.output.is_table() {
            let place = namespace.map_or("any namespace".into(), |n| format!("namespace {n}"));
            match &*self.name {
                Some(name) => {
                    let list = elections::LIST_THEM;
                    eprintln!("tenure: election {name} does not exist in {place}; {list}");
                }
                None => eprintln!("no elections in {place}"),
            }
        } else {
            self.print(&rows, namespace.is_none())?;
        }
        Ok(u8::from(rows.is_empty() && self.name.is_some()))
    }

    async fn read(&self, client: &Client, namespace: Option<&str>) -> Result<Vec<Seen>> {
        let (listing, changes) = futures_util::future::join(
            elections::list(client, namespace),
            terms::read_changes(client, namespace),
        )
        .await;
        let listing = listing?;
        let now = listing.clock.now();
        let mut rows = listing.elections;
        rows.retain(|row| self.name.as_ref().is_none_or(|name| row.name == *name));
        if let Ok(changes) = changes {
            for row in &mut rows {
                let own =
                    |w: &&terms::TermChange| w.namespace == row.namespace && w.name == row.name;
                let terms = terms::of_changes(changes.iter().filter(own));
                row.count_terms(&terms, now);
            }
        }
        let ahead = listing.clock.ahead();
        if ahead.abs() > jiff::SignedDuration::from_secs(2) {
            let word = if ahead.is_positive() {
                "ahead of"
            } else {
                "behind"
            };
            let by = output::span(ahead.unsigned_abs().as_secs_f64());
            eprintln!("tenure: the API server's clock is {by} {word} this machine's");
        }
        Ok(rows)
    }

    /// Shows a board until a signal arrives.
    async fn follow(self, client: &Client, namespace: Option<String>, server: &str) -> Result<u8> {
        let mut signals = Signals::listen()?;
        let all = namespace.is_none();
        let scope = Scope {
            namespace,
            name: self.name.clone(),
            kind: None,
            members: true,
        };
        let mut board = Board::open(client, &scope);
        let redraw = output::is_terminal() && self.output.is_table();
        let mut shown = Vec::new();
        let mut told = None;
        // Before the first list, an empty table would be wrong.
        let ready = async {
            while !board.is_ready() && board.trouble().is_none() {
                board.changed().await;
            }
        };
        tokio::select! {
            () = waiting::on(server, ready) => {}
            _ = signals.end() => return Ok(0),
        }
        loop {
            let rows: Vec<Seen> = board.rows().map(|row| row.seen_now()).collect();
            // If the output is not a terminal, print a row only when its leader changes, not when its times do.
            let news: Vec<_> = rows
                .iter()
                .map(|row| {
                    (
                        row.namespace.clone(),
                        row.name.clone(),
                        row.holder.clone(),
                        row.state,
                    )
                })
                .collect();
            let trouble = board.trouble();
            if redraw {
                print!("\x1b[H\x1b[2J");
            } else if trouble != told {
                if let Some(trouble) = &trouble {
                    let trouble = output::escaped(trouble);
                    eprintln!("tenure: out of date: {trouble}");
                }
                told.clone_from(&trouble);
            }
            if redraw || (board.is_ready() && news != shown) {
                if let Some(trouble) = trouble.filter(|_| redraw) {
                    println!("out of date: {}", output::escaped(&trouble));
                }
                self.print(&rows, all)?;
                shown = news;
            }
            let tick = async {
                if redraw {
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = board.changed() => {}
                () = tick => {}
                _ = signals.end() => return Ok(0),
            }
        }
    }

    fn print(&self, rows: &[Seen], all: bool) -> Result<()> {
        let wide = self.output == Format::Wide;
        let mut header = vec![
            "NAME",
            "HOLDER",
            "STATE",
            "AGE",
            "RENEWED",
            "LEFT",
            "TRANSITIONS",
            "NOTES",
        ];
        let twice = !wide && has_two_locks_of_one_name(rows);
        if twice {
            header.insert(1, "LOCK");
        }
        if all {
            header.insert(0, "NAMESPACE");
        }
        if wide {
            header.extend(["LOCK", "LEASE", "ACQUIRED", "VERSION", "CANDIDATES"]);
        }
        output::print(self.output, rows, &header, |row| {
            let dash = || "-".to_owned();
            let renewed = match row.renewed_ago_seconds {
                _ if row.skewed => "in the future?".to_owned(),
                Some(ago) => format!("{} ago", output::span(ago)),
                None => dash(),
            };
            let left = row.valid_for_seconds.map_or_else(dash, |left| {
                if left < 0.0 {
                    "none".into()
                } else {
                    output::span(left)
                }
            });
            let holder = Some(output::escaped(&row.holder)).filter(|holder| !holder.is_empty());
            let mut cells = vec![
                output::escaped(&row.name),
                holder.unwrap_or_else(dash),
                output::paint(state_colour(row.state), row.state),
                row.held_for_seconds.map_or_else(dash, output::span),
                renewed,
                left,
                row.transitions.to_string(),
                notes(row),
            ];
            if twice {
                cells.insert(1, row.lock.to_owned());
            }
            if all {
                cells.insert(0, output::escaped(&row.namespace));
            }
            if wide {
                cells.extend([
                    row.lock.to_owned(),
                    format!("{}s", row.lease_duration_seconds),
                    row.acquire_time.clone().unwrap_or_else(dash),
                    output::escaped(&row.resource_version),
                    candidates(row),
                ]);
            }
            cells
        })
    }
}

/// Formats the candidates that announce themselves: `a (priority 5), b (not ready: unhealthy)`. Most have no priority.
fn candidates(row: &Seen) -> String {
    let cell = |candidate: &Candidate| {
        let identity = output::escaped(&candidate.identity);
        let priority = match candidate.priority {
            0 => None,
            priority => Some(format!("priority {priority}")),
        };
        let reason = candidate.reason.as_ref().map(|why| match &**why {
            "" => "not ready".to_owned(),
            why => format!("not ready: {}", output::escaped(why)),
        });
        let notes: Vec<String> = [priority, reason].into_iter().flatten().collect();
        match &*notes {
            [] => identity,
            notes => format!("{identity} ({})", notes.join("; ")),
        }
    };
    let cells = row.candidates.iter().map(cell).collect();
    some_of(cells).unwrap_or_else(|| "-".to_owned())
}

impl Seen {
    /// Computes from the known terms whether the election is flapping.
    pub(crate) fn count_terms(&mut self, terms: &[terms::Term], now: jiff::Timestamp) {
        let recent = terms::recent(terms, now);
        self.recent_terms = Some(recent);
        // The terms of a `tenure run --once` job are short on purpose.
        self.flapping = recent >= terms::FLAPPING && self.completed_time.is_none();
    }
}

/// Returns whether two rows differ only in the kind of lock. The rows are sorted by namespace and name.
fn has_two_locks_of_one_name(rows: &[Seen]) -> bool {
    let place = |row: &Seen| (row.namespace.clone(), row.name.clone());
    rows.windows(2)
        .any(|pair| place(&pair[0]) == place(&pair[1]))
}

/// Returns the colour of a state: green for normal, yellow for a warning, red for no leader.
pub(crate) fn state_colour(state: &str) -> Paint {
    match state {
        "held" => Paint::Green,
        "expired" => Paint::Red,
        "paused" => Paint::Yellow,
        _ => Paint::Plain,
    }
}

/// Returns warnings about an election.
fn notes(row: &Seen) -> String {
    let mut notes = Vec::new();
    if row.flapping {
        let recent = row.recent_terms.unwrap_or_default();
        notes.push(output::paint(
            Paint::Yellow,
            &format!("flapping ({recent} terms in 10 min)"),
        ));
    }
    if row.skewed {
        notes.push(output::paint(Paint::Yellow, "clock skew?"));
    }
    if row.has_no_standby() {
        notes.push(output::paint(Paint::Yellow, "no standby"));
    }
    if notes.is_empty() {
        "-".to_owned()
    } else {
        notes.join(", ")
    }
}
