//! The same random requests to two API servers: our responses must equal those of the real one.
//!
//! A sequence of operations runs in its own namespace. Responses are compared after everything that always differs is
//! masked: uids, times, generated names, and revisions, of which only the order counts. The first difference ends a
//! sequence, because later differences may be its consequences.

mod bodies;
mod definitions;
mod mask;
mod more_bodies;
mod op;
mod pods;

use std::fmt;

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};

use crate::nemesis::seed::Seeded;
use crate::wire::{Answer, Wire};
pub use bodies::{Kind, kinds};
pub use definitions::compare;
use mask::Mask;
pub use op::Op;

/// Number of operations of a sequence.
pub const LENGTH: usize = 40;

/// A difference between the responses of two servers.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The seed of the sequence.
    pub seed: u64,
    /// The previous operations, and the one with the difference as the last.
    pub history: Vec<String>,
    /// Response of the first server, masked.
    pub left: Value,
    /// Response of the second server, masked.
    pub right: Value,
}

/// One server, and the known state of its objects.
pub struct Side {
    wire: Wire,
    mask: Mask,
}

impl Side {
    /// Creates a side for the server of this client.
    pub fn new(wire: Wire) -> Self {
        Self {
            wire,
            mask: Mask::default(),
        }
    }

    fn play(&mut self, op: &Op, namespace: &str) -> Result<Value> {
        let filled = |text: &str| self.mask.resolve(&text.replace("@namespace", namespace));
        let (path, body) = (filled(&op.path), filled(&op.body));
        let answer = self
            .wire
            .send_as(&op.method, &path, op.content, body.into_bytes())
            .with_context(|| op.to_string())?;
        Ok(self.mask.answer(&answer, op))
    }

    fn create_namespace(&mut self, namespace: &str) -> Result<Answer> {
        self.mask = Mask::default();
        let body = json!({"metadata": {"name": namespace}});
        let answer = self
            .wire
            .send(&Method::POST, "/api/v1/namespaces", Some(&body))?;
        self.mask.start(&answer.body);
        Ok(answer)
    }
}

/// Returns the two kinds of a sequence by its number. Half as many sequences as there are kinds cover all kinds. After
/// that each kind is combined with another.
fn pair(number: usize) -> [&'static Kind; 2] {
    let kinds = kinds();
    let (half, turn) = (kinds.len().div_ceil(2), number / kinds.len());
    let first = kinds[number % kinds.len()];
    let second = kinds[(number + half + turn) % kinds.len()];
    let both = [first, second];
    let parted = |kind: &&Kind| matches!(kind.resource, "services" | "endpoints");
    match both.iter().all(parted) {
        // On the real server the deletion of a Service also deletes the Endpoints of its name; here it does not.
        true => [first, first],
        false => both,
    }
}

/// Runs a sequence on both servers. Its number decides the kinds, and its seed everything else.
///
/// # Errors
///
/// Fails if a server does not respond.
pub fn play(
    left: &mut Side,
    right: &mut Side,
    number: usize,
    seed: u64,
) -> Result<Option<Difference>> {
    let namespace = format!("diff-{seed}");
    for side in [&mut *left, &mut *right] {
        let created = side.create_namespace(&namespace)?;
        anyhow::ensure!(created.status.is_success(), "{namespace}: {created:?}");
    }
    let mut seeded = Seeded::new(seed);
    let kinds = pair(number);
    let mut history = Vec::new();
    let found = 'found: {
        let watches = kinds.map(Op::watch);
        let ops = std::iter::repeat_with(|| Op::random(&mut seeded, kinds));
        for op in ops
            .take(LENGTH)
            .collect::<Vec<_>>()
            .into_iter()
            .chain(watches)
        {
            history.push(op.to_string());
            // Both at the same time, because a watch takes a second.
            let answers = std::thread::scope(|scope| {
                let other = scope.spawn(|| left.play(&op, &namespace));
                let answer = right.play(&op, &namespace);
                let other = other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                (other, answer)
            });
            let (left, right) = (answers.0?, answers.1?);
            if left != right {
                break 'found Some(Difference {
                    seed,
                    history,
                    left,
                    right,
                });
            }
        }
        None
    };
    let of_cluster = kinds.iter().filter(|kind| !kind.namespaced);
    let mut left_over: Vec<String> = of_cluster
        .map(|kind| (kind.path() + &kind.query("")).replace("@namespace", &namespace))
        .collect();
    left_over.push(format!("/api/v1/namespaces/{namespace}"));
    for side in [left, right] {
        for path in &left_over {
            _ = side.wire.send(&Method::DELETE, path, None);
        }
    }
    Ok(found)
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}:", self.seed)?;
        let from = self.history.len().saturating_sub(6);
        for op in &self.history[from..] {
            writeln!(f, "  {op}")?;
        }
        let mut lines = Vec::new();
        differences("", &self.left, &self.right, &mut lines);
        for line in lines {
            writeln!(f, "    {line}")?;
        }
        Ok(())
    }
}

/// Collects the paths at which two values differ.
fn differences(path: &str, left: &Value, right: &Value, found: &mut Vec<String>) {
    match (left, right) {
        _ if left == right => {}
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let value = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or(json!("(absent)"))
                };
                differences(&format!("{path}/{key}"), &value(a), &value(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{index}"), a, b, found);
            }
        }
        _ => found.push(format!("{path}: {left} here, {right} there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_used() {
        let all = kinds();
        let mut seen: Vec<&str> = (0..all.len().div_ceil(2))
            .flat_map(pair)
            .map(|kind| kind.resource)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        let mut names: Vec<&str> = all.iter().map(|kind| kind.resource).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(seen, names);
        assert_ne!(pair(0)[1].resource, pair(all.len())[1].resource);
    }
}
