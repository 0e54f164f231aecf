//! CSI migration, compared: random classes and volumes are translated by the provisioner and by the library that
//! Kubernetes uses.

mod generate;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_provisioner::migration;

pub use generate::request;

/// The kind of translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A class of an in-tree plugin for its driver.
    Class,
    /// A volume of an in-tree plugin to CSI.
    ToCsi,
    /// A CSI volume to the plugin that its driver replaced.
    ToInTree,
}

/// One translation.
#[derive(Clone, Debug, Serialize)]
pub struct Request {
    /// The direction.
    pub operation: Operation,
    /// The in-tree plugin.
    pub plugin: &'static str,
    /// The StorageClass or PersistentVolume.
    pub object: Value,
}

/// The result of one translation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Answer {
    object: Option<Value>,
    error: Option<String>,
}

/// A request that the two sides answer differently.
#[derive(Clone, Debug)]
pub struct Difference {
    request: Request,
    ours: Answer,
    theirs: Answer,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request {
            operation,
            plugin,
            object,
        } = &self.request;
        writeln!(f, "{operation:?} {plugin}: {object}")?;
        for (side, answer) in [("ours", &self.ours), ("theirs", &self.theirs)] {
            match (&answer.object, &answer.error) {
                (Some(object), _) => writeln!(f, "  {side}: {object}")?,
                (None, error) => writeln!(f, "  {side}: error {error:?}")?,
            }
        }
        Ok(())
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// The differences.
    pub differences: Vec<Difference>,
    /// How many requests were accepted and rejected, by plugin and operation.
    pub counts: BTreeMap<(&'static str, Operation), (usize, usize)>,
}

/// Sends requests to both sides.
///
/// # Errors
/// Fails if the program cannot be run, or does not answer every request.
pub fn compare(program: &Path, requests: Vec<Request>) -> Result<Comparison> {
    let theirs = ask(program, &requests)?;
    let mut found = Comparison::default();
    for (request, theirs) in requests.into_iter().zip(theirs) {
        let ours = translate(&request)?;
        let key = (request.plugin, request.operation);
        let (accepted, rejected) = found.counts.entry(key).or_default();
        match theirs.error {
            None => *accepted += 1,
            Some(_) => *rejected += 1,
        }
        // The texts of errors differ.
        if ours.object != theirs.object || ours.error.is_some() != theirs.error.is_some() {
            found.differences.push(Difference {
                request,
                ours,
                theirs,
            });
        }
    }
    Ok(found)
}

fn ask(program: &Path, requests: &[Request]) -> Result<Vec<Answer>> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| program.display().to_string())?;
    let mut input = child.stdin.take().context("no stdin")?;
    let output = child.stdout.take().context("no stdout")?;
    let lines: Vec<_> = requests
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<_, _>>()?;
    // The program answers while it still receives requests. A separate thread writes them, because otherwise both sides
    // could wait for each other.
    let writer =
        std::thread::spawn(move || lines.iter().try_for_each(|line| writeln!(input, "{line}")));
    let mut answers = Vec::new();
    for line in BufReader::new(output).lines() {
        let mut answer: Answer = serde_json::from_str(&line?)?;
        answer.object = answer.object.map(plain);
        answers.push(answer);
    }
    let status = child.wait()?;
    let written = writer
        .join()
        .map_err(|_| anyhow::anyhow!("the writer panicked"))?;
    written.context("writing requests")?;
    ensure!(status.success(), "the peer ended with {status}");
    ensure!(
        answers.len() == requests.len(),
        "{} answers to {} requests",
        answers.len(),
        requests.len()
    );
    Ok(answers)
}

fn translate(request: &Request) -> Result<Answer> {
    let result = match request.operation {
        Operation::Class => {
            let class = decode(&request.object)?;
            migration::class_to_csi(request.plugin, &class).map(serde_json::to_value)
        }
        Operation::ToCsi => {
            migration::volume_to_csi(&decode(&request.object)?).map(serde_json::to_value)
        }
        Operation::ToInTree => {
            migration::volume_to_in_tree(&decode(&request.object)?).map(serde_json::to_value)
        }
    };
    Ok(match result {
        Ok(object) => Answer {
            object: Some(plain(object?)),
            error: None,
        },
        Err(error) => Answer {
            object: None,
            error: Some(error.to_string()),
        },
    })
}

fn decode<T: DeserializeOwned>(object: &Value) -> Result<T> {
    T::deserialize(object).with_context(|| object.to_string())
}

/// Removes fields that are absent in one encoding and empty in the other: null, `{}` and `[]`, and the names of the
/// kind.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (key, plain(value)));
            let is_empty = |value: &Value| match value {
                Value::Null => true,
                Value::Object(fields) => fields.is_empty(),
                Value::Array(items) => items.is_empty(),
                _ => false,
            };
            let names_kind = |key: &str, value: &Value| {
                let names = [
                    "PersistentVolume",
                    "StorageClass",
                    "v1",
                    "storage.k8s.io/v1",
                ];
                ["kind", "apiVersion"].contains(&key)
                    && value.as_str().is_some_and(|text| names.contains(&text))
            };
            fields
                .filter(|(key, value)| !is_empty(value) && !names_kind(key, value))
                .collect()
        }
        Value::Array(items) => items.into_iter().map(plain).collect(),
        other => other,
    }
}
