//! The section on elections in docs/book/explanation/benchmarks.md.

use std::fmt::Write;
use std::time::Duration;

/// Measurements of one kind of candidate on one server.
#[derive(Clone, Debug)]
pub struct Column {
    /// The kind of candidate.
    pub make: &'static str,
    /// The server.
    pub server: &'static str,
    /// The figures.
    pub figures: Figures,
}

/// Measurements of one kind with 15, 10 and 2 seconds.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Times from SIGTERM of the leader to the next term, with three replicas.
    pub hand_overs: Vec<Duration>,
    /// Times from the end of a killed leader's lease to the next term, with three replicas.
    pub take_overs: Vec<Duration>,
    /// Requests per second of a follower.
    pub follower_requests: Option<f64>,
    /// Requests per second of a leader.
    pub leader_requests: Option<f64>,
    /// CPU usage of a leader of one election, as a fraction of one core.
    pub leader_cpu: f64,
    /// CPU usage of a follower, as a fraction of one core.
    pub follower_cpu: f64,
    /// Resident memory of a process with one election, in bytes.
    pub one_resident: u64,
    /// The program that was measured, if it differs from the other rows.
    pub one_program: Option<&'static str>,
    /// Number of elections that one process leads, out of two thousand.
    pub many_led: Option<usize>,
    /// Resident memory of that process, in bytes.
    pub many_resident: Option<u64>,
    /// The program of that process, if it is not the library in this build.
    pub many_program: Option<&'static str>,
    /// CPU usage of that process, as a fraction of one core.
    pub many_cpu: Option<f64>,
    /// Resources of that process after all its elections have ended.
    pub left: Option<Left>,
}

/// Resources of a process after its elections have ended.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Number of live tasks.
    pub tasks: u64,
    /// Resident memory, in bytes.
    pub resident: u64,
}

impl Column {
    /// Returns the kind and the server.
    pub fn title(&self) -> String {
        format!("{} on {}", self.make, self.server)
    }
}

type Row = (
    &'static str,
    fn(&Figures) -> String,
    Option<fn(&Figures) -> Option<f64>>,
);

const ROWS: &[Row] = &[
    (
        "hand-over after SIGTERM, mean",
        |f| time(mean(&f.hand_overs)),
        Some(|f| mean(&f.hand_overs)),
    ),
    (
        "hand-over after SIGTERM, longest",
        |f| time(max(&f.hand_overs)),
        Some(|f| max(&f.hand_overs)),
    ),
    (
        "take-over after kill -9, from the end of the lease, mean",
        |f| time(mean(&f.take_overs)),
        Some(|f| mean(&f.take_overs)),
    ),
    (
        "take-over after kill -9, from the end of the lease, longest",
        |f| time(max(&f.take_overs)),
        Some(|f| max(&f.take_overs)),
    ),
    (
        "requests of a follower",
        |f| rate(f.follower_requests),
        None,
    ),
    (
        "requests of a leader",
        |f| rate(f.leader_requests),
        Some(|f| f.leader_requests),
    ),
    (
        "memory of a process with one election",
        |f| {
            let program = f.one_program.map(|program| format!(" ({program})"));
            megabytes(Some(f.one_resident)) + &program.unwrap_or_default()
        },
        Some(|f| number(Some(f.one_resident))),
    ),
    (
        "CPU of a leader with one election",
        |f| permille(f.leader_cpu),
        Some(|f| Some(f.leader_cpu)),
    ),
    (
        "CPU of a follower with one election",
        |f| permille(f.follower_cpu),
        Some(|f| Some(f.follower_cpu)),
    ),
    (
        "elections that one process leads, of 2,000",
        |f| f.many_led.map_or_else(none, |led| led.to_string()),
        None,
    ),
    (
        "memory of the process with 2,000 elections",
        |f| {
            let program = f.many_program.map(|program| format!(" ({program})"));
            megabytes(f.many_resident) + &program.unwrap_or_default()
        },
        Some(|f| number(f.many_resident)),
    ),
    (
        "CPU of the process with 2,000 elections",
        |f| {
            f.many_cpu
                .map_or_else(none, |share| format!("{:.0} % of a core", share * 100.0))
        },
        Some(|f| f.many_cpu),
    ),
    (
        "tasks and memory of that process after its elections have ended",
        |f| {
            f.left.map_or_else(none, |left| {
                format!("{} tasks, {}", left.tasks, megabytes(Some(left.resident)))
            })
        },
        None,
    ),
];

/// Returns the section: the machine, the table, and the ratios of every column to the first.
pub fn section(columns: &[Column]) -> String {
    let mut out = format!("{}\n\n", super::machine());
    let counts: Vec<String> = columns
        .iter()
        .map(|column| {
            let (figures, title) = (&column.figures, column.title());
            format!(
                "{title}: {} and {}",
                figures.hand_overs.len(),
                figures.take_overs.len()
            )
        })
        .collect();
    _ = writeln!(
        out,
        "Lease duration 15 s, renew deadline 10 s, retry period 2 s; three replicas. Number of hand-overs and take-overs: {}.\n",
        counts.join("; ")
    );
    line(&mut out, "", columns.iter().map(Column::title));
    line(&mut out, "---", columns.iter().map(|_| "---".to_owned()));
    for (title, cell, _) in ROWS {
        line(
            &mut out,
            title,
            columns.iter().map(|column| cell(&column.figures)),
        );
    }
    if let Some((first, others)) = columns
        .split_first()
        .filter(|(_, others)| !others.is_empty())
    {
        _ = writeln!(
            out,
            "\nRatio to {} (`1/3` is a third of its figure):\n",
            first.title()
        );
        line(&mut out, "", others.iter().map(Column::title));
        line(&mut out, "---", others.iter().map(|_| "---".to_owned()));
        for (title, _, value) in ROWS {
            let Some(value) = value else { continue };
            let cells =
                others.iter().map(
                    |other| match (value(&other.figures), value(&first.figures)) {
                        (Some(own), Some(base)) if own > 0.0 && base > 0.0 => share(own / base),
                        _ => none(),
                    },
                );
            line(&mut out, title, cells);
        }
    }
    out
}

fn line(out: &mut String, title: &str, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.collect();
    _ = writeln!(out, "| {title} | {} |", cells.join(" | "));
}

fn none() -> String {
    "-".to_owned()
}

fn mean(times: &[Duration]) -> Option<f64> {
    let count = u32::try_from(times.len()).ok().filter(|count| *count > 0)?;
    Some((times.iter().sum::<Duration>() / count).as_secs_f64())
}

fn max(times: &[Duration]) -> Option<f64> {
    times.iter().max().map(Duration::as_secs_f64)
}

fn number(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64)
}

fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => none(),
        Some(seconds) if seconds < 0.1 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.2} s"),
    }
}

fn rate(per_second: Option<f64>) -> String {
    per_second.map_or_else(none, |rate| format!("{rate:.2}/s"))
}

/// Formats a fraction of a core that is far below one percent.
fn permille(share: f64) -> String {
    format!("{:.2} ‰ of a core", share * 1000.0)
}

fn megabytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(none, |bytes| format!("{:.1} MB", bytes as f64 / 1e6))
}

fn share(ratio: f64) -> String {
    if ratio < 0.95 {
        format!("1/{:.1}", 1.0 / ratio)
    } else {
        format!("{ratio:.1} times")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_first_column() {
        let column = |make, seconds| Column {
            make,
            server: "s",
            figures: Figures {
                hand_overs: vec![Duration::from_secs_f64(seconds)],
                leader_cpu: seconds / 1000.0,
                one_resident: 7_700_000,
                one_program: Some("small"),
                many_resident: Some(21_000_000),
                many_program: Some("shipped"),
                ..Figures::default()
            },
        };
        let text = section(&[column("slow", 1.0), column("quick", 0.02)]);
        assert!(
            text.contains("| hand-over after SIGTERM, mean | 1.00 s | 20.0 ms |"),
            "{text}"
        );
        assert!(
            text.contains("| hand-over after SIGTERM, mean | 1/50.0 |"),
            "{text}"
        );
        assert!(
            text.contains(
                "| CPU of a leader with one election | 1.00 ‰ of a core | 0.02 ‰ of a core |"
            ),
            "{text}"
        );
        assert!(
            text.contains("| CPU of the process with 2,000 elections | - | - |"),
            "{text}"
        );
        assert!(
            text.contains("| 7.7 MB (small) | 7.7 MB (small) |"),
            "{text}"
        );
        assert!(
            text.contains("| 21.0 MB (shipped) | 21.0 MB (shipped) |"),
            "{text}"
        );
    }
}
