//! Health checks in controller-runtime's format.
//!
//! `/healthz` and `/readyz` run all checks, `/healthz/name` runs one. `?verbose` lists them, and `?exclude=name` skips
//! some. Only a request for a single check shows why it failed.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// A check: returns the reason if it fails.
pub(crate) type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Text that a passing check reports.
pub(crate) type Note = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The checks of one endpoint, in the order of their names.
#[derive(Clone, Default)]
pub(crate) struct Checks(Vec<(String, Check)>, BTreeMap<String, Note>);

impl Checks {
    /// Adds a check that always passes, with a note.
    pub(crate) fn add_note(&mut self, name: &str, note: Note) {
        self.add(name, Arc::new(|| Ok(())));
        self.1.insert(name.to_owned(), note);
    }

    /// Formats a passing check.
    fn ok(&self, name: &str) -> String {
        match self.1.get(name).and_then(|note| note()) {
            Some(note) => format!("ok: {note}"),
            None => "ok".to_owned(),
        }
    }

    pub(crate) fn add(&mut self, name: &str, check: Check) {
        self.0.retain(|(present, _)| present != name);
        self.1.remove(name);
        self.0.push((name.to_owned(), check));
        self.0.sort_by(|(a, _), (b, _)| a.cmp(b));
    }

    /// Returns status and body for a path below the endpoint, such as `` or `/name`.
    pub(crate) fn answer(&self, below: &str, query: &str) -> (u16, String) {
        let name = below.trim_start_matches('/');
        if name.is_empty() {
            return self.all(query);
        }
        match self.0.iter().find(|(present, _)| present == name) {
            None if name == "ping" && self.0.is_empty() => (200, "ok".to_owned()),
            None => (404, "404 page not found\n".to_owned()),
            Some((_, check)) => match check() {
                Ok(()) => (200, self.ok(name)),
                Err(why) => (500, format!("internal server error: {why}\n")),
            },
        }
    }

    fn all(&self, query: &str) -> (u16, String) {
        let values = |key: &str| -> Vec<String> {
            let pairs = query.split('&').filter(|pair| !pair.is_empty());
            let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
            pairs
                .filter(|(name, _)| *name == key)
                .map(|(_, value)| value.to_owned())
                .collect()
        };
        let verbose = !values("verbose").is_empty();
        let mut excluded = values("exclude");
        excluded.retain(|name| !name.is_empty());
        let mut text = String::new();
        let mut failed = false;
        let ping: [(String, Check); 1] = [("ping".to_owned(), Arc::new(|| Ok(())))];
        let checks = if self.0.is_empty() {
            &ping[..]
        } else {
            &self.0
        };
        for (name, check) in checks {
            let line = if excluded.iter().any(|excluded| excluded == name) {
                format!("[+]{name} excluded: ok")
            } else if let Err(why) = check() {
                tracing::debug!(check = name, why, "health check failed");
                failed = true;
                format!("[-]{name} failed: reason withheld")
            } else {
                format!("[+]{name} {}", self.ok(name))
            };
            let _ = writeln!(text, "{line}");
        }
        if !failed && !verbose {
            return (200, "ok".to_owned());
        }
        excluded.retain(|excluded| checks.iter().all(|(name, _)| name != excluded));
        if !excluded.is_empty() {
            let quoted: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
            let _ = writeln!(
                text,
                "warn: some health checks cannot be excluded: no matches for {}",
                quoted.join(",")
            );
        }
        let verdict = if failed { "failed" } else { "passed" };
        let _ = writeln!(text, "healthz check {verdict}");
        (if failed { 500 } else { 200 }, text)
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> Checks {
        let mut checks = Checks::default();
        checks.add("store", Arc::new(|| Err("disk full".into())));
        checks.add("ping", Arc::new(|| Ok(())));
        checks
    }

    #[test]
    fn without_checks_there_is_ping() {
        assert_eq!(Checks::default().answer("", ""), (200, "ok".into()));
        let listed = "[+]ping ok\nhealthz check passed\n".to_owned();
        assert_eq!(Checks::default().answer("", "verbose"), (200, listed));
        assert_eq!(Checks::default().answer("/ping", ""), (200, "ok".into()));
    }

    #[test]
    fn a_failure_is_listed_without_its_reason() {
        let text = "[+]ping ok\n[-]store failed: reason withheld\nhealthz check failed\n";
        assert_eq!(checks().answer("", ""), (500, text.into()));
    }

    #[test]
    fn single_failed_check_shows_its_reason() {
        assert_eq!(checks().answer("/ping", ""), (200, "ok".into()));
        let text = "internal server error: disk full\n".to_owned();
        assert_eq!(checks().answer("/store", ""), (500, text));
        assert_eq!(checks().answer("/nothing", "").0, 404);
    }

    #[test]
    fn note_of_a_check_that_passes_is_shown_and_changes_no_status() {
        let mut checks = Checks::default();
        checks.add_note("shards-queue", Arc::new(|| Some("waiting".to_owned())));
        assert_eq!(checks.answer("", ""), (200, "ok".into()));
        let one = checks.answer("/shards-queue", "");
        assert_eq!(one, (200, "ok: waiting".into()));
        let listed = "[+]shards-queue ok: waiting\nhealthz check passed\n".to_owned();
        assert_eq!(checks.answer("", "verbose"), (200, listed));
    }

    #[test]
    fn excluded_checks_do_not_count_and_unknown_ones_are_named() {
        assert_eq!(checks().answer("", "exclude=store"), (200, "ok".into()));
        let (status, text) = checks().answer("", "verbose&exclude=store&exclude=x");
        assert_eq!(status, 200);
        assert_eq!(
            text,
            "[+]ping ok\n[+]store excluded: ok\nwarn: some health checks cannot be excluded: no \
             matches for \"x\"\nhealthz check passed\n"
        );
    }
}
