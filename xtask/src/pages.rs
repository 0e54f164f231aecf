//! Checks of Markdown files: links and their anchors, the table of contents of the book, how pages begin, and the length
//! of the README.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::book::{self, PAGES};

/// Maximum number of lines of the README.
const README_LINES: usize = 120;

/// The table of contents of the book.
const SUMMARY: &str = "docs/book/SUMMARY.md";

/// All Markdown files of the repository.
#[derive(Default)]
pub(crate) struct Pages {
    texts: BTreeMap<PathBuf, String>,
}

impl Pages {
    pub(crate) fn add(&mut self, file: &str, text: String) {
        self.texts.insert(PathBuf::from(file), text);
    }

    /// Reports all problems. `root` is the folder of the workspace.
    pub(crate) fn check(&self, root: &Path, problems: &mut Vec<String>) {
        let anchors: BTreeMap<&Path, BTreeSet<String>> = self
            .texts
            .iter()
            .map(|(file, text)| (file.as_path(), anchors(text)))
            .collect();
        for (file, text) in &self.texts {
            let folder = file.parent().unwrap_or(Path::new(""));
            for (number, target) in links(text) {
                let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
                let place = match path {
                    "" => file.clone(),
                    path => book::normal(&folder.join(path)),
                };
                let mut report = |problem: &str| {
                    problems.push(format!("{}:{number}: {problem} {target}", file.display()));
                };
                if !root.join(&place).exists() && !self.texts.contains_key(&place) {
                    report("link to missing");
                } else if let Some(known) = anchors.get(self.source(&place).as_path())
                    && !anchor.is_empty()
                    && !known.contains(anchor)
                {
                    report("link to missing heading");
                }
            }
        }
        self.check_book(problems);
        let readme = self.texts.get(Path::new("README.md"));
        let lines = readme.map_or(0, |text| text.lines().count());
        if lines > README_LINES {
            problems.push(format!(
                "README.md: {lines} lines, {README_LINES} are allowed"
            ));
        }
    }

    /// Returns the file that has the text of a page: the page itself, or the file that it includes.
    fn source(&self, file: &Path) -> PathBuf {
        match (file.strip_prefix(PAGES), self.texts.get(file)) {
            (Ok(below), Some(text)) => book::source(&below.to_string_lossy(), text),
            _ => file.to_path_buf(),
        }
    }

    /// Checks that the table of contents has every page once, and that each page begins with its use.
    fn check_book(&self, problems: &mut Vec<String>) {
        let Some(summary) = self.texts.get(Path::new(SUMMARY)) else {
            problems.push(format!("{SUMMARY} is missing"));
            return;
        };
        let mut listed = BTreeSet::new();
        for (number, target) in links(summary) {
            if !listed.insert(Path::new(PAGES).join(target)) {
                problems.push(format!("{SUMMARY}:{number}: {target} is listed twice"));
            }
        }
        let own = |file: &&PathBuf| file.starts_with(PAGES) && *file != Path::new(SUMMARY);
        for file in self.texts.keys().filter(own) {
            let shown = file.display();
            if !listed.contains(file) {
                problems.push(format!("{shown}: not in {SUMMARY}"));
            }
            let source = self.source(file);
            let Some(text) = self.texts.get(&source) else {
                problems.push(format!("{shown}: includes missing {}", source.display()));
                continue;
            };
            if !begins_well(text) {
                problems.push(format!(
                    "{}: must begin with a title and `After reading this page ...` (or `After this tutorial ...`)",
                    source.display()
                ));
            }
        }
    }
}

/// Returns whether a page begins with its title and a sentence about what the reader can do after it.
fn begins_well(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let title = lines.next().is_some_and(|line| line.starts_with("# "));
    let use_ = lines.next().unwrap_or_default();
    title
        && (use_.starts_with("After reading this page") || use_.starts_with("After this tutorial"))
}

/// Returns the lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((number + 1, line))
    })
}

/// Returns the relative links of a text, with the numbers of their lines.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let targets = line.split("](").skip(1);
        let targets = targets.filter_map(|rest| rest.split(')').next());
        let relative = targets
            .filter(|target| !target.is_empty() && !target.contains("://"))
            .filter(|target| !target.contains(' '));
        relative.map(move |target| (number, target))
    })
}

/// Returns the anchors of the headings of a text, as mdBook and GitHub make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let anchor: String = title
            .trim()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
                _ => None,
            })
            .collect();
        let mut number = 0;
        let mut unique = anchor.clone();
        while !anchors.insert(unique) {
            number += 1;
            unique = format!("{anchor}-{number}");
        }
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# A\n\nAfter reading this page you can see.\n";

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let mut pages = Pages::default();
        for (file, text) in files {
            pages.add(file, (*text).to_owned());
        }
        let mut problems = Vec::new();
        pages.check(Path::new("/nonexistent"), &mut problems);
        problems
    }

    #[test]
    fn links_to_missing_files_and_headings_are_reported() {
        let page = format!(
            "{GOOD}[a](#one-two) [b](#two) [c](../x.md)\n```\n[d](y.md)\n```\n## One `two`\n"
        );
        let found = problems(&[("docs/book/a.md", &page), (SUMMARY, "- [A](a.md)\n")]);
        assert_eq!(
            found,
            [
                "docs/book/a.md:4: link to missing heading #two",
                "docs/book/a.md:4: link to missing ../x.md"
            ]
        );
    }

    #[test]
    fn page_that_is_not_listed_or_begins_badly_is_reported() {
        let found = problems(&[
            ("docs/book/a.md", "# A\n\nThis page is about a.\n"),
            ("docs/book/b.md", GOOD),
            ("docs/book/c.md", "{{#include ../../C.md}}\n"),
            ("C.md", GOOD),
            (SUMMARY, "- [A](a.md)\n- [A](a.md)\n- [C](c.md)\n"),
            ("README.md", "[c](docs/book/c.md#a)\n"),
        ]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].ends_with("a.md is listed twice"), "{found:?}");
        assert!(found[1].contains("a.md: must begin with"), "{found:?}");
        assert!(found[2].contains("b.md: not in"), "{found:?}");
    }

    #[test]
    fn long_readme_is_reported() {
        let readme = "line\n".repeat(121);
        let found = problems(&[("README.md", &readme), (SUMMARY, "")]);
        assert_eq!(found, ["README.md: 121 lines, 120 are allowed"]);
    }

    #[test]
    fn equal_headings_have_numbered_anchors() {
        let found = anchors("# A b\n## A b\n#no\n## `x` and_y, z-1\n");
        let expected = ["a-b", "a-b-1", "x-and_y-z-1"];
        assert_eq!(found, expected.map(str::to_owned).into());
    }
}
