//! `tenure history`: lists past terms and why each ended.

use anyhow::{Result, bail};
use clap::Args;
use jiff::Timestamp;
use kube::Client;
use serde::Serialize;

use crate::api;
use crate::connect::Connect;
use crate::election_name::OneElection;
use crate::elections;
use crate::output::{self, Format, Paint};
use crate::terms::{self, Term, TermChange};
use crate::waiting;

/// Show the past terms of an election and why each ended
#[derive(Args, Debug)]
pub(crate) struct History {
    #[command(flatten)]
    election: OneElection,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Format,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    namespace: String,
    name: String,
    /// Terms, oldest first.
    terms: Vec<Term>,
    /// Number of transitions in the lock object, if it exists.
    transitions: Option<u32>,
    /// Number of earlier terms without Events.
    earlier_terms: u32,
    /// Reasons why the report is incomplete.
    limits: Vec<String>,
}

impl History {
    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        let opened = connect.open(self.election.namespace.as_deref()).await?;
        let gather = self.gather(&opened.client, opened.namespace);
        let report = waiting::on(opened.server, gather).await?;
        if !self.output.is_table() {
            output::print_value(self.output, &report)?;
            return Ok(0);
        }
        let now = Timestamp::now();
        let wide = self.output == Format::Wide;
        let mut header = vec!["FROM", "TO", "FOR", "HOLDER", "TOKEN", "ENDED"];
        if wide {
            header.insert(3, "VACANT");
        }
        let rows: Vec<Row> = report.rows().collect();
        output::print(self.output, &rows, &header, |row| match row {
            Row::Term(term, before) => cells(term, *before, now, wide),
            Row::Gap(from, to) => gap_cells(*from, *to, wide),
        })?;
        for limit in &report.limits {
            output::write(
                &(output::paint(Paint::Faint, &format!("# {}", output::escaped(limit))) + "\n"),
            )?;
        }
        Ok(0)
    }

    async fn gather(&self, client: &Client, namespace: String) -> Result<Report> {
        let seen =
            elections::get(client, self.election.lock, &namespace, &self.election.name).await?;
        let changes = terms::read_changes(client, Some(&namespace)).await;
        let mut limits = Vec::new();
        let changes = changes.unwrap_or_else(|error| {
            limits.push(format!(
                "cannot read Events, so only the current term is known: {}",
                api::plain(&error)
            ));
            Vec::new()
        });
        let own: Vec<&TermChange> = changes
            .iter()
            .filter(|w| w.name == *self.election.name)
            .collect();
        if seen.is_none() && own.is_empty() {
            let missing = elections::missing(self.election.lock, &namespace, &self.election.name);
            bail!(
                "{missing}, and no Event is about it; {}",
                elections::LIST_THEM
            );
        }
        let mut terms = terms::of_changes(own);
        let transitions = seen.as_ref().map(|seen| seen.transitions);
        match &seen {
            Some(seen) => terms::settle(&mut terms, seen),
            None => {
                limits
                    .push("the lock object was deleted; these terms are known from Events".into());
            }
        }
        // The first term is not a transition, so there is one more term than transitions.
        let count = u32::try_from(terms.len()).unwrap_or(u32::MAX);
        let earlier = transitions.map_or(0, |n| n.saturating_add(1).saturating_sub(count));
        if earlier > 0 {
            limits.push(format!(
                "{earlier} earlier term{} not listed: {} no Events (API servers delete Events after \
                 about an hour, and not every candidate writes them)",
                if earlier == 1 { " is" } else { "s are" },
                if earlier == 1 { "it has" } else { "they have" }
            ));
        }
        Ok(Report {
            namespace,
            name: self.election.name.to_string(),
            terms,
            transitions,
            earlier_terms: earlier,
            limits,
        })
    }
}

impl Report {
    /// Returns the terms, and the times without a leader between them.
    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let before = std::iter::once(None).chain(self.terms.iter().map(Some));
        let rows = self.terms.iter().zip(before);
        rows.flat_map(|(term, before)| {
            let gap = before.and_then(|before| terms::gap(before, term));
            let gap = gap.map(|(from, to)| Row::Gap(from, to));
            gap.into_iter().chain([Row::Term(term, before)])
        })
    }
}

/// A line of the table.
#[derive(Serialize)]
enum Row<'a> {
    /// A term and the previous one.
    Term(&'a Term, Option<&'a Term>),
    /// A time without a leader.
    #[serde(skip)]
    Gap(Timestamp, Timestamp),
}

/// Number of digits of fractional seconds.
fn digits(wide: bool) -> usize {
    if wide { 6 } else { 3 }
}

fn cells(term: &Term, before: Option<&Term>, now: Timestamp, wide: bool) -> Vec<String> {
    let digits = digits(wide);
    let time = |time: Option<Timestamp>| time.map(|t| format!("{t:.digits$}"));
    let unknown = || "-".to_owned();
    let length = term.from.map(|from| {
        let span = term.to.unwrap_or(now).duration_since(from);
        output::span(span.as_secs_f64())
    });
    let mut cells = vec![
        time(term.from).unwrap_or_else(|| "unknown".into()),
        time(term.to).unwrap_or_else(|| output::paint(Paint::Green, "now")),
        length.unwrap_or_else(unknown),
        output::escaped(&term.holder),
        term.token.as_deref().map_or_else(unknown, output::escaped),
        term.ended.as_deref().map_or_else(unknown, output::escaped),
    ];
    if wide {
        // The time without a leader before this term, if both ends are known.
        let vacant = before.and_then(|before| before.to).zip(term.from);
        let vacant = vacant.map(|(since, from)| from.duration_since(since).as_secs_f64());
        cells.insert(3, vacant.map_or_else(unknown, output::span));
    }
    cells
}

fn gap_cells(from: Timestamp, to: Timestamp, wide: bool) -> Vec<String> {
    let digits = digits(wide);
    let dash = || "-".to_owned();
    let mut cells = vec![
        format!("{from:.digits$}"),
        format!("{to:.digits$}"),
        output::span(to.duration_since(from).as_secs_f64()),
        dash(),
        dash(),
        output::paint(Paint::Yellow, "no leader"),
    ];
    if wide {
        cells.insert(3, dash());
    }
    cells
}
