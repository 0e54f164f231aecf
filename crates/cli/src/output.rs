//! Tables for people, JSON and YAML for programs.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table
    #[default]
    Table,
    /// A table with more columns
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

impl Format {
    /// Returns whether the format is a table.
    pub(crate) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// A colour for terminals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Plain,
    Green,
    Yellow,
    Red,
    Faint,
}

/// Colours a text if standard output is a terminal with colours.
pub(crate) fn paint(paint: Paint, text: &str) -> String {
    let code = match paint {
        Paint::Plain => return text.to_owned(),
        Paint::Green => 32,
        Paint::Yellow => 33,
        Paint::Red => 31,
        Paint::Faint => 2,
    };
    if has_colours() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Escapes the control characters of a text from the cluster. Every candidate can write its identity, and a terminal
/// obeys the escape sequences in it.
pub(crate) fn escaped(text: &str) -> String {
    escape(text, |_| false)
}

/// Escapes the control characters of a message, except line breaks.
pub(crate) fn escaped_lines(text: &str) -> String {
    escape(text, |c| c == '\n' || c == '\t')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> String {
    // Overrides of the text direction and characters without width can make a text look like another one.
    let misleads = |c| {
        matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if (c.is_control() && !keep(c)) || misleads(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Formats a duration: `850ms`, `12.3s`, `4m10s`, `3h5m`, `12d3h`.
pub(crate) fn span(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    let millis = (seconds.abs() * 1000.0).round().min(1e15);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is rounded, positive and bounded"
    )]
    let millis = millis as u64;
    let whole = millis / 1000;
    let two = |big: u64, unit: &str, small: u64, sub: &str| match small {
        0 => format!("{sign}{big}{unit}"),
        small => format!("{sign}{big}{unit}{small}{sub}"),
    };
    match whole {
        0 => format!("{sign}{millis}ms"),
        1..60 => format!("{sign}{whole}.{}s", millis % 1000 / 100),
        60..3600 => two(whole / 60, "m", whole % 60, "s"),
        3600..86400 => two(whole / 3600, "h", whole % 3600 / 60, "m"),
        _ => two(whole / 86400, "d", whole % 86400 / 3600, "h"),
    }
}

/// Prints one value as JSON or YAML.
pub(crate) fn print_value<T: Serialize>(format: Format, value: &T) -> Result<()> {
    write(&match format {
        Format::Yaml => yaml(&serde_json::to_value(value)?, 0),
        _ => serde_json::to_string_pretty(value)? + "\n",
    })
}

/// Prints rows in the chosen format; `table` returns header and cells.
pub(crate) fn print<T: Serialize>(
    format: Format,
    rows: &[T],
    header: &[&str],
    table: impl Fn(&T) -> Vec<String>,
) -> Result<()> {
    let text = match format {
        Format::Json => serde_json::to_string_pretty(rows)? + "\n",
        Format::Yaml => yaml(&serde_json::to_value(rows)?, 0),
        Format::Table | Format::Wide => align(header, rows.iter().map(table).collect()),
    };
    write(&text)
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
pub(crate) fn write(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns whether colours are enabled.
pub(crate) fn has_colours() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let able = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    wanted && able && is_terminal()
}

/// Returns the width of a text in columns, without colour codes.
fn width_of(text: &str) -> usize {
    let mut width = 0;
    let mut escaped = false;
    for character in text.chars() {
        match character {
            '\x1b' => escaped = true,
            'm' if escaped => escaped = false,
            _ if !escaped => width += 1,
            _ => {}
        }
    }
    width
}

/// Aligns columns as kubectl does: as wide as the longest cell, three spaces apart.
pub(crate) fn align(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut lines = vec![header.iter().map(ToString::to_string).collect::<Vec<_>>()];
    lines.extend(rows);
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(|cell| width_of(cell))
            .max()
    };
    let widths: Vec<usize> = (0..header.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in &lines {
        let mut shown = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let pad = " ".repeat(width.saturating_sub(width_of(cell)) + 3);
            shown.push_str(cell);
            shown.push_str(&pad);
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}

/// Formats plain data as YAML, with scalars in their JSON form.
fn yaml(value: &serde_json::Value, depth: usize) -> String {
    use serde_json::Value;
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => map
            .iter()
            .map(|(key, value)| match value {
                Value::Object(inner) if !inner.is_empty() => {
                    format!("{pad}{key}:\n{}", yaml(value, depth + 1))
                }
                Value::Array(inner) if !inner.is_empty() => {
                    format!("{pad}{key}:\n{}", yaml(value, depth))
                }
                scalar => format!("{pad}{key}: {scalar}\n"),
            })
            .collect(),
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .map(|item| {
                let block = yaml(item, depth + 1);
                let trimmed = block.trim_start();
                format!("{pad}- {trimmed}")
            })
            .collect(),
        scalar => format!("{pad}{scalar}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let text = align(
            &["NAME", "HOLDER"],
            vec![vec!["a-long-name".into(), "x".into()]],
        );
        assert_eq!(text, "NAME          HOLDER\na-long-name   x\n");
    }

    #[test]
    fn control_characters_of_the_cluster_are_escaped() {
        let identity = "a\x1b[2J\n\rb\u{9b}c\u{202e}\0ä";
        let shown = escaped(identity);
        assert_eq!(shown, r"a\u{1b}[2J\n\rb\u{9b}c\u{202e}\u{0}ä");
        assert_eq!(escaped("web-1_x"), "web-1_x");
        let invisible = "w\u{200b}e\u{ad}b\u{2060}\u{feff}\u{e0041}";
        assert_eq!(
            escaped(invisible),
            r"w\u{200b}e\u{ad}b\u{2060}\u{feff}\u{e0041}"
        );
        assert_eq!(escaped_lines("one\n\ttwo\x1b"), "one\n\ttwo\\u{1b}");
        let table = align(&["HOLDER", "B"], vec![vec![shown, "x".into()]]);
        assert_eq!(table.lines().count(), 2);
        assert!(!table.contains('\x1b'));
    }

    #[test]
    fn colour_codes_do_not_count_as_width() {
        let rows = vec![vec!["\x1b[32mheld\x1b[0m".into(), "x".into()]];
        let text = align(&["STATE", "B"], rows);
        assert_eq!(text, "STATE   B\n\x1b[32mheld\x1b[0m    x\n");
    }

    #[test]
    fn spans_have_two_units_at_most() {
        let spans = [0.0, 0.85, 12.34, 250.0, 11_100.0, 1_054_800.0, -3.0].map(span);
        assert_eq!(
            spans,
            ["0ms", "850ms", "12.3s", "4m10s", "3h5m", "12d5h", "-3.0s"]
        );
    }

    #[test]
    fn nested_values_are_formatted_as_yaml() {
        let text = yaml(&json!([{"a": {"b": [1, 2]}, "c": "x: y"}]), 0);
        assert_eq!(text, "- a:\n    b:\n    - 1\n    - 2\n  c: \"x: y\"\n");
    }
}
