//! The list of equivalent changes: changes without an effect, each with the reason.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::Numbered;

/// A line is `FILE FUNCTION: CHANGE in `TEXT` # REASON`.
const LIST: &str = include_str!("../equivalent.txt");

/// The list, and which of its lines were used.
pub(crate) struct Equivalents {
    used: BTreeMap<String, bool>,
}

impl Equivalents {
    /// Reads the lines for the files of these changes.
    pub(crate) fn read(changes: &[Numbered<'_>]) -> Result<Self> {
        let mut used = BTreeMap::new();
        for line in LIST
            .lines()
            .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        {
            let Some((key, reason)) = line.rsplit_once(" # ") else {
                bail!("equivalent.txt: a line without a reason after \" # \": {line}");
            };
            if reason.trim().is_empty() {
                bail!("equivalent.txt: a line without a reason: {line}");
            }
            let (path, _) = key.split_once(' ').unwrap_or((key, ""));
            if changes.iter().any(|change| change.path == path) {
                used.insert(key.trim().to_owned(), false);
            }
        }
        Ok(Self { used })
    }

    /// Returns whether a change is listed.
    pub(crate) fn lists(&mut self, change: &Numbered<'_>) -> bool {
        self.used.get_mut(&change.key()).is_some_and(|used| {
            *used = true;
            true
        })
    }

    /// Fails if a line names a change that no longer exists.
    pub(crate) fn check_used(&self) -> Result<()> {
        let unused: Vec<_> = self
            .used
            .iter()
            .filter(|(_, used)| !**used)
            .map(|(key, _)| key.as_str())
            .collect();
        if !unused.is_empty() {
            bail!(
                "equivalent.txt lists changes that no longer exist:\n  {}",
                unused.join("\n  ")
            );
        }
        Ok(())
    }
}
