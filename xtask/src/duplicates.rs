//! Finds code that is in two crates: runs of equal lines.
//!
//! Blank lines, comments, imports, attributes, signatures and lines of punctuation do not count, because they are equal
//! in unrelated code.

use std::collections::HashMap;

/// Number of consecutive equal lines that count as a copy.
const RUN: usize = 6;

/// A line that counts.
struct Line {
    number: usize,
    /// Equal lines have equal numbers.
    id: usize,
}

/// The sources read so far.
#[derive(Default)]
pub(crate) struct Sources {
    ids: HashMap<String, usize>,
    files: Vec<(String, Vec<Line>)>,
}

impl Sources {
    /// Adds a file, unless it is not the source of a crate.
    pub(crate) fn add(&mut self, file: &str, text: &str) {
        if !(file.starts_with("crates/") && file.contains("/src/") && file.ends_with(".rs")) {
            return;
        }
        let mut lines = Vec::new();
        for (number, line) in significant(text) {
            let line: String = line.split_whitespace().collect::<Vec<_>>().join(" ");
            let next = self.ids.len();
            let id = *self.ids.entry(line).or_insert(next);
            lines.push(Line { number, id });
        }
        self.files.push((file.to_owned(), lines));
    }

    /// Reports each run of equal lines in two crates once.
    pub(crate) fn check(&self, problems: &mut Vec<String>) {
        // The first place of each run.
        let mut first: HashMap<Vec<usize>, (usize, usize)> = HashMap::new();
        for (file, (name, lines)) in self.files.iter().enumerate() {
            // A run of seven lines contains two runs of six, but is reported once.
            let mut reported = 0;
            for start in 0..(lines.len() + 1).saturating_sub(RUN) {
                let run = lines[start..start + RUN].iter().map(|line| line.id);
                let (other, at) = *first.entry(run.collect()).or_insert((file, start));
                let (other_name, other_lines) = &self.files[other];
                if crate_of(name) == crate_of(other_name) {
                    continue;
                }
                if start >= reported {
                    problems.push(format!(
                        "{name}:{}: the same {RUN} or more lines as {other_name}:{}; share them",
                        lines[start].number, other_lines[at].number
                    ));
                }
                reported = start + RUN;
            }
        }
    }
}

fn crate_of(file: &str) -> Option<&str> {
    file.split('/').nth(1)
}

/// Returns the lines that count, with their numbers.
fn significant(text: &str) -> impl Iterator<Item = (usize, &str)> {
    // The text that ends the current item, if the item does not count.
    let mut skip_to: Option<&[&str]> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim();
        if skip_to.is_none() {
            skip_to = uncounted(line);
        }
        if let Some(ends) = skip_to {
            if ends.iter().any(|end| line.ends_with(end)) {
                skip_to = None;
            }
            return None;
        }
        let counts = !line.starts_with("//") && line.chars().any(char::is_alphanumeric);
        counts.then_some((index + 1, line))
    })
}

/// Returns the text that ends an item that does not count, if a line starts such an item.
fn uncounted(line: &str) -> Option<&'static [&'static str]> {
    if line.starts_with("#[") || line.starts_with("#![") {
        return Some(&["]"]);
    }
    let public = line
        .strip_prefix("pub")
        .map(|rest| match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
            None => rest,
        });
    let item = public.unwrap_or(line).trim_start();
    if item.starts_with("use ") {
        return Some(&[";"]);
    }
    let item = item.strip_prefix("const ").unwrap_or(item);
    let item = item.strip_prefix("async ").unwrap_or(item);
    item.starts_with("fn ").then_some(&["{", ";", "}"][..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPIED: &str = "\
use std::fmt;

/// Adds.
#[must_use]
pub(crate) fn add(
    a: u32,
) -> u32 {
    let one = a + 1;
    let two = one + 1;
    // Not the same comment.
    let three = two + 1;
    if three > 3 {
        return three;
    }
    let four = three + 1;
    four
}
";

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let mut sources = Sources::default();
        files
            .iter()
            .for_each(|(file, text)| sources.add(file, text));
        let mut problems = Vec::new();
        sources.check(&mut problems);
        problems
    }

    #[test]
    fn copy_in_another_crate_is_reported_once_with_both_places() {
        let copy = COPIED
            .replace("Not the same", "Another")
            .replace("    let", "  let");
        let longer = copy.replace("  four\n", "  let five = four;\n  five\n");
        let longer = format!("//! Elsewhere.\n{longer}");
        let found = problems(&[
            ("crates/a/src/lib.rs", COPIED),
            ("crates/b/src/x/y.rs", &longer),
        ]);
        let expected =
            "crates/b/src/x/y.rs:9: the same 6 or more lines as crates/a/src/lib.rs:8; share them";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn copies_within_a_crate_and_outside_of_crates_are_not_reported() {
        for other in ["crates/a/src/b.rs", "crates/b/tests/b.rs", "tests/src/b.rs"] {
            let found = problems(&[("crates/a/src/a.rs", COPIED), (other, COPIED)]);
            assert!(found.is_empty(), "{other}: {found:?}");
        }
    }

    #[test]
    fn short_runs_imports_and_signatures_are_not_reported() {
        let five = COPIED.replace("let four = three + 1", "let more = three + 1");
        let same =
            |text: &str| problems(&[("crates/a/src/a.rs", COPIED), ("crates/b/src/b.rs", text)]);
        assert!(same(&five).is_empty());
        let only = "use a::{\n b,\n c,\n d,\n e,\n f,\n g,\n};\nfn a(\n b: u8,\n c: u8,\n d: u8,\n e: u8,\n f: u8,\n g: u8,\n) {\n}\n";
        assert!(problems(&[("crates/a/src/a.rs", only), ("crates/b/src/b.rs", only)]).is_empty());
    }
}
