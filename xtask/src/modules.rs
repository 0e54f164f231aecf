//! Arrows between the top-level modules of the API server. They form no cycle, apart from the listed exceptions.

use std::collections::{BTreeMap, BTreeSet};

/// The folder whose modules are checked.
pub(crate) const FOLDER: &str = "crates/apiserver/src/";

/// Arrows that are part of a cycle, with their reason in ARCHITECTURE.md. Do not add one.
const EXCEPTIONS: &[(&str, &str)] = &[("fairness", "http")];

/// The arrows of each module.
#[derive(Default)]
pub(crate) struct Modules(BTreeMap<String, BTreeSet<String>>);

impl Modules {
    /// Adds the arrows of a file, given by its path below the folder. The code of tests may depend on anything.
    pub(crate) fn add(&mut self, file: &str, text: &str) {
        let name = file.split('/').next().unwrap_or_default();
        let name = name.trim_end_matches(".rs");
        let is_test = |part: &str| matches!(part.trim_end_matches(".rs"), "tests" | "property");
        if name == "lib" || file.ends_with("_tests.rs") || file.split('/').any(is_test) {
            return;
        }
        let arrows = self.0.entry(name.to_owned()).or_default();
        let shipped = text
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        for line in shipped.lines() {
            let line = line.trim_start();
            if line.starts_with("//") {
                continue;
            }
            for path in line.split("crate::").skip(1) {
                // `crate::{a, b}` names several modules, `crate::a::{X, Y}` names one.
                let several = path.strip_prefix('{').map(|list| list.split(','));
                let one = several.is_none().then_some(path);
                for part in several.into_iter().flatten().chain(one) {
                    let part = part.trim_start();
                    let end = part.find(|c: char| !(c.is_ascii_lowercase() || c == '_'));
                    arrows.insert(part[..end.unwrap_or(part.len())].to_owned());
                }
            }
        }
        arrows.remove(name);
    }

    /// Reports cycles, and exceptions that are no longer needed.
    pub(crate) fn check(&self, problems: &mut Vec<String>) {
        self.check_with(EXCEPTIONS, problems);
    }

    fn check_with(&self, exceptions: &[(&str, &str)], problems: &mut Vec<String>) {
        let mut done = BTreeSet::new();
        for module in self.0.keys() {
            self.visit(module, exceptions, &mut Vec::new(), &mut done, problems);
        }
        for (from, to) in exceptions {
            if !self.0.get(*from).is_some_and(|arrows| arrows.contains(*to)) {
                problems.push(format!(
                    "{from} -> {to} is gone: remove it from the exceptions in xtask/src/modules.rs"
                ));
            }
        }
    }

    fn visit<'a>(
        &'a self,
        module: &'a str,
        exceptions: &[(&str, &str)],
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
        problems: &mut Vec<String>,
    ) {
        if let Some(start) = path.iter().position(|before| *before == module) {
            let cycle = path[start..].join(" -> ");
            problems.push(format!(
                "{FOLDER}: modules form a cycle: {cycle} -> {module}"
            ));
            return;
        }
        let Some(arrows) = self.0.get(module).filter(|_| !done.contains(module)) else {
            return;
        };
        path.push(module);
        for to in arrows
            .iter()
            .filter(|to| !exceptions.contains(&(module, to)))
        {
            self.visit(to, exceptions, path, done, problems);
        }
        path.pop();
        done.insert(module);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)], exceptions: &[(&str, &str)]) -> Vec<String> {
        let mut modules = Modules::default();
        for (file, text) in files {
            modules.add(file, text);
        }
        let mut problems = Vec::new();
        modules.check_with(exceptions, &mut problems);
        problems
    }

    #[test]
    fn cycle_is_reported_once_with_its_path() {
        let files = [
            (
                "http/mod.rs",
                "use crate::registry::Kind;\nuse crate::status::Failure;",
            ),
            ("registry/kinds/custom.rs", "use crate::{auth, limits};"),
            ("auth.rs", "fn f() -> crate::http::Body {}"),
            ("status.rs", ""),
        ];
        let found = problems(&files, &[]);
        assert_eq!(
            found,
            ["crates/apiserver/src/: modules form a cycle: auth -> http -> registry -> auth"]
        );
        assert!(problems(&files, &[("auth", "http")]).is_empty());
    }

    #[test]
    fn tests_and_comments_are_not_arrows_and_old_exceptions_are_reported() {
        let files = [
            (
                "a/mod.rs",
                "use crate::b::B;\n#[cfg(test)]\nmod tests {\n    use crate::c::C;\n}",
            ),
            ("b/tests/mod.rs", "use crate::a::A;"),
            ("b/x_tests.rs", "use crate::a::A;"),
            ("b/mod.rs", "//! Like [`crate::a`].\nuse crate::b::x;"),
            ("c.rs", "use crate::a::A;"),
        ];
        assert!(problems(&files, &[]).is_empty());
        let found = problems(&files, &[("b", "a")]);
        assert!(found[0].starts_with("b -> a is gone"), "{found:?}");
    }
}
