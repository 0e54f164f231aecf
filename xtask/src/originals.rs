//! Checks the tables of docs/book/explanation/originals.md: every named test exists, and the summary has the correct
//! numbers of rows.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The page, from the root of the workspace.
pub(crate) const PAGE: &str = "docs/book/explanation/originals.md";

const VERDICTS: [&str; 4] = ["same", "better", "different", "left out"];

/// Compares the text of the page with the tree below `root`.
///
/// A row with the verdict "same" or "better" needs a test, any other row a reason. The summary has the number of rows
/// of each verdict.
pub(crate) fn check(root: &Path, text: &str, problems: &mut Vec<String>) {
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    let mut stated: BTreeMap<&str, &str> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let mut report =
            |problem: String| problems.push(format!("{PAGE}:{}: {problem}", number + 1));
        match cells(line)[..] {
            [verdict, _, count] if VERDICTS.contains(&verdict) => {
                stated.insert(verdict, count);
            }
            [_, _, _, verdict, evidence] if VERDICTS.contains(&verdict) => {
                *rows.entry(verdict).or_default() += 1;
                for problem in evidence_problems(root, verdict, evidence) {
                    report(problem);
                }
            }
            [behaviour, _, _, verdict, _]
                if behaviour != "behaviour" && !behaviour.starts_with("---") =>
            {
                report(format!("{verdict:?} is not a verdict"));
            }
            [_, _, _, _, _, _, ..] => report("a row has more than five cells".to_owned()),
            _ => {}
        }
    }
    for verdict in VERDICTS {
        let counted = rows.get(verdict).copied().unwrap_or_default().to_string();
        let stated = stated.get(verdict).copied().unwrap_or("no number of");
        if stated != counted {
            problems.push(format!(
                "{PAGE}: the summary states {stated} rows with the verdict {verdict:?}, there are {counted}"
            ));
        }
    }
}

/// The cells of a row of a table; none for any other line.
fn cells(line: &str) -> Vec<&str> {
    let row = line.strip_prefix('|');
    let row = row.and_then(|row| row.trim_end().strip_suffix('|'));
    row.map_or_else(Vec::new, |row| row.split('|').map(str::trim).collect())
}

fn evidence_problems(root: &Path, verdict: &str, evidence: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let files = named(evidence);
    let needs_test = matches!(verdict, "same" | "better");
    if needs_test && files.iter().all(|(_, names)| names.is_empty()) {
        problems.push(format!("{verdict:?} without a test: {evidence}"));
    }
    let only_tests = files
        .first()
        .is_some_and(|(file, _)| evidence.starts_with(&format!("`{file}`")));
    if !needs_test && (evidence.is_empty() || only_tests) {
        problems.push(format!("{verdict:?} without a reason: {evidence}"));
    }
    for (file, names) in files {
        let Ok(source) = fs::read_to_string(root.join(file)) else {
            problems.push(format!("{file} does not exist"));
            continue;
        };
        let tests = tests_of(&source);
        for name in names {
            let exists = match name.strip_suffix('*') {
                Some(start) => tests.iter().any(|test| test.starts_with(start)),
                None => tests.contains(&name),
            };
            if !exists {
                problems.push(format!("{file} has no test {name}"));
            }
        }
    }
    problems
}

/// The source files in the code spans of a cell, each with the code spans that follow it: names of tests.
fn named(cell: &str) -> Vec<(&str, Vec<&str>)> {
    let mut files: Vec<(&str, Vec<&str>)> = Vec::new();
    for code in cell.split('`').skip(1).step_by(2) {
        if code.ends_with(".rs") {
            files.push((code, Vec::new()));
        } else if let Some((_, names)) = files.last_mut() {
            names.push(code);
        }
    }
    files
}

/// The names of all tests of a source file.
fn tests_of(source: &str) -> Vec<&str> {
    let mut tests = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = function(line) {
            if is_test {
                tests.push(name);
            }
            is_test = false;
        }
    }
    tests
}

/// The name of the function that a line begins to define.
fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("async ").unwrap_or(line);
    let definition = line.strip_prefix("fn ")?;
    definition.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = "\
| verdict | meaning | rows |
|---|---|---|
| same | | 1 |
| better | | 0 |
| different | | 1 |
| left out | | 0 |

| behaviour | original | Tenure | verdict | test or reason |
|---|---|---|---|---|
";

    fn problems(rows: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let root = crate::command::root();
        check(&root, &format!("{SUMMARY}{rows}"), &mut problems);
        problems
    }

    const GOOD: &str = "\
| a | b | c | same | `xtask/src/originals.rs` `rows_with_*`, `rows_with_tests_or_reasons_are_accepted` |
| a | b | c | different | `x` differs; `xtask/src/originals.rs` `rows_with_*` |
";

    #[test]
    fn rows_with_tests_or_reasons_are_accepted() {
        assert_eq!(problems(GOOD), [""; 0]);
    }

    #[test]
    fn missing_tests_reasons_and_verdicts_are_reported() {
        for (evidence, text) in [
            ("same | a reason", "\"same\" without a test"),
            ("same | `xtask/src/originals.rs`", "\"same\" without a test"),
            (
                "same | `xtask/src/originals.rs` `problems`",
                "has no test problems",
            ),
            (
                "same | `xtask/src/originals.rs` `row_*`",
                "has no test row_*",
            ),
            (
                "same | `xtask/src/none.rs` `x`",
                "xtask/src/none.rs does not exist",
            ),
            ("different |  ", "\"different\" without a reason"),
            (
                "different | `xtask/src/originals.rs` `rows_with_*`",
                "\"different\" without a reason",
            ),
            ("equal | a reason", "\"equal\" is not a verdict"),
        ] {
            let found = problems(&format!("| a | b | c | {evidence} |\n"));
            assert!(found[0].contains(text), "{evidence}: {found:?}");
            assert!(
                found[0].starts_with("docs/book/explanation/originals.md:10: "),
                "{found:?}"
            );
        }
    }

    #[test]
    fn wrong_number_of_rows_is_reported() {
        let row = GOOD.lines().next().unwrap();
        let expected = "docs/book/explanation/originals.md: the summary states 1 rows with the verdict \"same\", there are 2";
        assert_eq!(problems(&format!("{GOOD}{row}\n")), [expected]);
    }
}
