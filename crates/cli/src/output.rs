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

/// Prints rows in the chosen format; `table` gives header and cells for people.
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
    // A closed pipe (`| head`) is no error.
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether colours and cursor movement make sense.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Columns as wide as their longest cell, three spaces apart, as kubectl prints them.
pub(crate) fn align(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut lines = vec![header.iter().map(ToString::to_string).collect::<Vec<_>>()];
    lines.extend(rows);
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..header.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in &lines {
        let mut shown = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            shown.push_str(&format!("{cell:<width$}   "));
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}

/// YAML of plain data: every scalar in its JSON spelling, which is valid YAML.
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
    fn yaml_nests() {
        let text = yaml(&json!([{"a": {"b": [1, 2]}, "c": "x: y"}]), 0);
        assert_eq!(text, "- a:\n    b:\n    - 1\n    - 2\n  c: \"x: y\"\n");
    }
}
