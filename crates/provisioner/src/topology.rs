//! Computes `accessibility_requirements`: the topology from which a volume must be accessible.
//!
//! Terms are lists of keys and values, sorted by key. The result for a claim does not depend on the order of nodes.
//! A retry gets the result of the first attempt ([`Memory`]), because the driver may have begun to create the volume
//! there.

use std::collections::BTreeMap;

use tenure_csi::v1::{Topology, TopologyRequirement};

use crate::objects::AllowedTerm;
use crate::state::{Failure, State};

/// Keys and values, sorted by key.
pub(crate) type Term = Vec<(String, String)>;

/// Access to the topology of nodes.
pub(crate) trait Nodes {
    /// Returns the topology keys of the driver on a node, or `None` if the node has no CSINode.
    fn keys_of(&self, node: &str) -> Option<Vec<String>>;
    /// Returns the topology keys of any node that has some.
    fn any_keys(&self) -> Option<Vec<String>>;
    /// Returns the labels of a node.
    fn labels_of(&self, node: &str) -> Option<BTreeMap<String, String>>;
    /// Returns the values of these keys on every node that has all of them.
    fn terms(&self, keys: &[String]) -> Vec<Term>;
}

/// The topology found for a claim, kept so that a retry repeats it although nodes may be gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    keys: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    terms: Option<Vec<Term>>,
}

/// Inputs of the computation.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) claim: &'a str,
    pub(crate) driver: &'a str,
    pub(crate) allowed: &'a [AllowedTerm],
    pub(crate) selected: Option<&'a str>,
    pub(crate) strict: bool,
    pub(crate) immediate: bool,
}

/// Computes the requirement for a claim; `None` if there is no restriction.
pub(crate) fn requirement(
    input: &Input<'_>,
    nodes: &dyn Nodes,
    memory: &mut Memory,
) -> Result<Option<TopologyRequirement>, Failure> {
    let selected = match input.selected {
        Some(node) => Some(selected_term(input, node, nodes, memory)?),
        None => None,
    };
    let allowed = flatten(input.allowed);
    let strict = input.strict.then_some(selected.as_ref()).flatten();
    let mut requisite = match strict {
        Some((term, _)) => {
            if !allowed.is_empty() && !allowed.iter().any(|allowed| is_subset(allowed, term)) {
                return Err(Failure::no_change(format!(
                    "selected node {:?} is not in the allowed topologies of the class",
                    input.selected.unwrap_or_default()
                )));
            }
            vec![term.clone()]
        }
        None if !allowed.is_empty() => allowed,
        None if selected.is_none() && !input.immediate => return Ok(None),
        None => aggregate(
            input,
            selected.as_ref().map(|(_, keys)| keys),
            nodes,
            memory,
        )?,
    };
    if requisite.is_empty() {
        return Ok(None);
    }
    sort(&mut requisite);
    requisite.dedup();

    let preferred = match &selected {
        None => {
            let (base, index) = spread(input.claim);
            let count = u32::try_from(requisite.len()).unwrap_or(u32::MAX);
            let first = fnv1(base.as_bytes()).wrapping_add(index) % count;
            rotate(&requisite, usize::try_from(first).unwrap_or_default())
        }
        Some(_) if strict.is_some() => requisite.clone(),
        Some((term, _)) => {
            let first = requisite
                .iter()
                .position(|candidate| is_subset(candidate, term));
            let first = first.ok_or_else(|| {
                Failure::no_change(format!(
                    "topology of selected node {:?} is not in the requisite topologies",
                    input.selected.unwrap_or_default()
                ))
            })?;
            rotate(&requisite, first)
        }
    };
    Ok(Some(TopologyRequirement {
        requisite: to_csi(requisite),
        preferred: to_csi(preferred),
    }))
}

fn selected_term(
    input: &Input<'_>,
    node: &str,
    nodes: &dyn Nodes,
    memory: &mut Memory,
) -> Result<(Term, Vec<String>), Failure> {
    let keys = match &memory.keys {
        Some(keys) => keys.clone(),
        None => nodes.keys_of(node).ok_or_else(|| {
            let message = format!(
                "failed to get selected CSINode {node}: csinode.storage.k8s.io {node:?} not found"
            );
            Failure::new(State::Reschedule, message)
        })?,
    };
    if keys.is_empty() {
        return Err(Failure::no_change(format!(
            "no topology key of driver {} on CSINode {node}",
            input.driver
        )));
    }
    let known = memory
        .labels
        .as_ref()
        .and_then(|labels| term_of(labels, &keys));
    let term = match known {
        Some(term) => term,
        None => {
            let labels = nodes.labels_of(node).ok_or_else(|| {
                Failure::no_change(format!("selected node {node:?} does not exist"))
            })?;
            let term = term_of(&labels, &keys).ok_or_else(|| {
                Failure::no_change(format!(
                    "selected node {node:?} has no label for some topology key of {keys:?}"
                ))
            })?;
            memory.labels = Some(labels);
            term
        }
    };
    memory.keys = Some(keys.clone());
    Ok((term, keys))
}

fn aggregate(
    input: &Input<'_>,
    selected_keys: Option<&Vec<String>>,
    nodes: &dyn Nodes,
    memory: &mut Memory,
) -> Result<Vec<Term>, Failure> {
    if let Some(terms) = &memory.terms {
        return Ok(terms.clone());
    }
    let keys = selected_keys.or(memory.keys.as_ref()).cloned();
    let keys = keys.or_else(|| nodes.any_keys()).ok_or_else(|| {
        Failure::no_change(format!(
            "no available topology found: no CSINode has a topology key of driver {}",
            input.driver
        ))
    })?;
    let terms = nodes.terms(&keys);
    if terms.is_empty() {
        return Err(Failure::no_change(format!(
            "no available topology found: no node has the labels {keys:?}"
        )));
    }
    memory.keys = Some(keys);
    memory.terms = Some(terms.clone());
    Ok(terms)
}

/// Returns the values of the keys if all are present.
pub(crate) fn term_of(labels: &BTreeMap<String, String>, keys: &[String]) -> Option<Term> {
    let pair = |key: &String| Some((key.clone(), labels.get(key)?.clone()));
    let mut term: Term = keys.iter().map(pair).collect::<Option<_>>()?;
    term.sort();
    term.dedup();
    Some(term)
}

/// Converts an OR of ANDs of ORs to an OR of ANDs.
pub(crate) fn flatten(allowed: &[AllowedTerm]) -> Vec<Term> {
    let mut all = Vec::new();
    for term in allowed {
        let mut products: Vec<Term> = vec![Vec::new()];
        for expression in &term.match_label_expressions {
            products = expression
                .values
                .iter()
                .flat_map(|value| {
                    let pair = (expression.key.clone(), value.clone());
                    products.iter().map(move |product| {
                        let mut product = product.clone();
                        product.push(pair.clone());
                        product
                    })
                })
                .collect();
        }
        products.iter_mut().for_each(|product| product.sort());
        products.retain(|product| !product.is_empty());
        all.extend(products);
    }
    all
}

/// Sorts by length, then pair by pair.
fn sort(terms: &mut [Term]) {
    terms.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
}

pub(crate) fn is_subset(small: &Term, large: &Term) -> bool {
    small.iter().all(|pair| large.contains(pair))
}

fn rotate(terms: &[Term], first: usize) -> Vec<Term> {
    let mut terms = terms.to_vec();
    terms.rotate_left(first);
    terms
}

fn to_csi(terms: Vec<Term>) -> Vec<Topology> {
    let filled = terms.into_iter().filter(|term| !term.is_empty());
    let topology = |term: Term| Topology {
        segments: term.into_iter().collect(),
    };
    filled.map(topology).collect()
}

/// Splits a claim name of a StatefulSet for spreading: `data-web-2` becomes `web`, which is hashed, and 2, which is
/// added. All claims of one replica get the same term, and consecutive replicas get consecutive terms.
fn spread(claim: &str) -> (&str, u32) {
    let Some((base, index)) = claim.rsplit_once('-') else {
        return (claim, 0);
    };
    // Go accepts digits only; Rust's parser would also accept a sign.
    let digits = index.bytes().all(|b| b.is_ascii_digit());
    match index.parse() {
        Ok(index) if digits => (base.rsplit_once('-').map_or(base, |(_, set)| set), index),
        _ => (claim, 0),
    }
}

/// FNV-1, 32 bits: multiply, then xor.
fn fnv1(bytes: &[u8]) -> u32 {
    bytes.iter().fold(2_166_136_261, |hash: u32, byte| {
        hash.wrapping_mul(16_777_619) ^ u32::from(*byte)
    })
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
