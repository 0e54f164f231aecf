//! Writes all changes of a file into its text, each behind a switch that is read at run time.
//!
//! One build then serves every change: a run with `TENURE_MUTATION=7` behaves as if only change 7 had been made.
//! Comments mark the position of each change, so that a compiler error leads to the change that does not compile.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::sites::{Shape, Site};

/// Code that is appended to the root of every changed crate.
pub(crate) const SWITCH: &str = r#"
#[doc(hidden)]
pub mod mutation_switch {
    static ACTIVE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    pub fn on(number: u32) -> bool {
        *ACTIVE.get_or_init(|| read().unwrap_or(0)) == number
    }
    fn read() -> Option<u32> {
        if let Ok(text) = std::env::var("TENURE_MUTATION") {
            return text.parse().ok();
        }
        // Tests clear the environment of the commands that they start. That of the first process in the sandbox stays.
        let first = std::fs::read("/proc/1/environ").ok()?;
        let first = String::from_utf8_lossy(&first);
        first.split('\0').find_map(|entry| entry.strip_prefix("TENURE_MUTATION=")?.parse().ok())
    }
}
"#;

/// Returns the text of a file with its changes, numbered from `first` on, except for those that do not compile.
pub(crate) fn render(source: &str, sites: &[Site], first: u32, unviable: &BTreeSet<u32>) -> String {
    let mut number = first;
    let mut numbered = Vec::new();
    for site in sites {
        numbered.push((site, number));
        number += u32::try_from(site.changes.len()).unwrap_or_default();
    }
    part(source, 0..source.len(), &numbered, unviable)
}

fn part(
    source: &str,
    range: Range<usize>,
    sites: &[(&Site, u32)],
    unviable: &BTreeSet<u32>,
) -> String {
    let mut out = String::new();
    let mut at = range.start;
    let mut rest = sites;
    while let Some(((site, first), after)) = rest.split_first() {
        let inside = after
            .iter()
            .take_while(|(other, _)| other.range.start < site.range.end)
            .count();
        let (inside, after) = after.split_at(inside);
        rest = after;
        out.push_str(&source[at..site.range.start]);
        at = site.range.end;
        let body = part(source, site.range.clone(), inside, unviable);
        let numbers = (*first..).zip(&site.changes);
        let viable: Vec<_> = numbers
            .filter(|(number, _)| !unviable.contains(number))
            .collect();
        if viable.is_empty() {
            out.push_str(&body);
            continue;
        }
        out.push_str(&format!("/*<{first}*/"));
        match site.shape {
            Shape::Expression => {
                out.push('(');
                for (number, change) in viable {
                    let text = &change.text;
                    out.push_str(&format!("if crate::mutation_switch::on({number}) {{ /*[{number}*/{text}/*]{number}*/ }} else "));
                }
                out.push_str(&format!("{{ {body} }})"));
            }
            Shape::Body => {
                for (number, change) in viable {
                    let text = &change.text;
                    out.push_str(&format!(" if crate::mutation_switch::on({number}) {{ /*[{number}*/{text}/*]{number}*/ }}"));
                }
            }
            Shape::Arm => {
                for (number, _) in viable {
                    out.push_str(&format!(
                        "/*[{number}*/ if !crate::mutation_switch::on({number})/*]{number}*/"
                    ));
                }
            }
        }
        out.push_str(&format!("/*>{first}*/"));
    }
    out.push_str(&source[at..range.end]);
    out
}

/// Returns the change, or all changes of the site, at a position of a rendered text. They must be omitted so that it
/// compiles.
pub(crate) fn culprits(rendered: &str, at: usize, sites: &[Site], first: u32) -> Vec<u32> {
    if let Some(number) = innermost(rendered, at, "/*[", "/*]") {
        return vec![number];
    }
    let Some(site) = innermost(rendered, at, "/*<", "/*>") else {
        return Vec::new();
    };
    let mut number = first;
    for candidate in sites {
        let many = u32::try_from(candidate.changes.len()).unwrap_or_default();
        if number == site {
            return (number..number + many).collect();
        }
        number += many;
    }
    Vec::new()
}

/// Returns the number of the innermost pair of marks around a position.
fn innermost(text: &str, at: usize, open: &str, close: &str) -> Option<u32> {
    let before = text.get(..at)?;
    let mut opened: Vec<u32> = Vec::new();
    let mut from = 0;
    loop {
        let next = [open, close].map(|mark| before[from..].find(mark).map(|found| from + found));
        let (place, opens) = match next {
            [Some(a), Some(b)] => (a.min(b), a < b),
            [Some(a), None] => (a, true),
            [None, Some(b)] => (b, false),
            [None, None] => return opened.last().copied(),
        };
        from = place + open.len();
        if opens {
            let digits: String = before[from..]
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            opened.push(digits.parse().ok()?);
        } else {
            opened.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::find;

    const SOURCE: &str = "fn f(a: u32, b: bool) -> bool { b && a + 1 < 7 }\n";

    #[test]
    fn rendered_text_has_every_change_behind_its_switch() {
        let sites = find(SOURCE).unwrap();
        let text = render(SOURCE, &sites, 1, &BTreeSet::new());
        for change in sites.iter().flat_map(|site| &site.changes) {
            assert!(text.contains(&change.text), "{} in {text}", change.text);
        }
        let names: Vec<_> = sites
            .iter()
            .flat_map(|site| &site.changes)
            .map(|c| c.name.as_str())
            .collect();
        let expected = [
            "return true",
            "return false",
            "replace && with ||",
            "replace < with ==",
            "replace < with >",
            "replace < with <=",
            "replace + with -",
            "replace + with *",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn position_of_an_error_gives_the_innermost_change() {
        let sites = find(SOURCE).unwrap();
        let text = render(SOURCE, &sites, 1, &BTreeSet::new());
        let inside = text.find("b || a").unwrap();
        assert_eq!(culprits(&text, inside, &sites, 1), [3]);
        let unchanged = text.rfind("a + 1").unwrap();
        assert_eq!(culprits(&text, unchanged, &sites, 1), [7, 8]);
        assert_eq!(culprits(&text, 1, &sites, 1), [0; 0]);
    }

    #[test]
    fn changes_that_do_not_compile_are_omitted() {
        let sites = find(SOURCE).unwrap();
        let all: BTreeSet<u32> = (1..=8).collect();
        assert_eq!(render(SOURCE, &sites, 1, &all), SOURCE);
    }

    #[test]
    fn tests_and_constants_are_not_changed() {
        let source = "const A: u32 = 1 + 2; #[cfg(test)] mod t { fn f() -> bool { 1 < 2 } } const fn g() -> u32 { 3 + 4 }";
        assert!(find(source).unwrap().is_empty());
    }

    #[test]
    fn arm_of_a_match_with_a_wildcard_can_be_deleted() {
        let source = "fn f(a: u32) -> u32 { match a { 1 => 2, 3 if a > 2 => 4, _ => 5 } }";
        let sites = find(source).unwrap();
        let names: Vec<_> = sites
            .iter()
            .flat_map(|site| &site.changes)
            .map(|c| c.name.as_str())
            .collect();
        assert!(names.contains(&"delete match arm"), "{names:?}");
        assert!(names.contains(&"replace guard with true"), "{names:?}");
        let text = render(source, &sites, 1, &BTreeSet::new());
        assert!(
            text.contains("1/*<3*//*[3*/ if !crate::mutation_switch::on(3)/*]3*//*>3*/ => 2"),
            "{text}"
        );
    }
}
