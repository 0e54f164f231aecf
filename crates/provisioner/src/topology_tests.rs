//! Tests that the requirements equal those of upstream.

use super::*;
use crate::objects::AllowedExpression;

/// Nodes with labels and the same topology keys.
struct Fleet {
    keys: Vec<String>,
    nodes: Vec<(&'static str, BTreeMap<String, String>)>,
}

impl Fleet {
    fn new(keys: &[&str], nodes: &[(&'static str, &str)]) -> Self {
        Self {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            nodes: nodes
                .iter()
                .map(|(name, labels)| (*name, pairs(labels).into_iter().collect()))
                .collect(),
        }
    }
}

impl Nodes for Fleet {
    fn keys_of(&self, node: &str) -> Option<Vec<String>> {
        self.nodes
            .iter()
            .any(|(name, _)| *name == node)
            .then(|| self.keys.clone())
    }
    fn any_keys(&self) -> Option<Vec<String>> {
        (!self.keys.is_empty() && !self.nodes.is_empty()).then(|| self.keys.clone())
    }
    fn labels_of(&self, node: &str) -> Option<BTreeMap<String, String>> {
        self.nodes
            .iter()
            .find(|(name, _)| *name == node)
            .map(|(_, labels)| labels.clone())
    }
    fn terms(&self, keys: &[String]) -> Vec<Term> {
        self.nodes
            .iter()
            .filter_map(|(_, labels)| term_of(labels, keys))
            .collect()
    }
}

/// `zone=a,rack=1`
fn pairs(text: &str) -> Term {
    let mut term: Term = text
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    term.sort();
    term
}

fn show(topologies: &[Topology]) -> String {
    let one = |topology: &Topology| {
        let pairs: Vec<_> = topology
            .segments
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        pairs.join(",")
    };
    topologies.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn allowed(terms: &[&[(&str, &[&str])]]) -> Vec<AllowedTerm> {
    let expression = |(key, values): &(&str, &[&str])| AllowedExpression {
        key: (*key).to_owned(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    terms
        .iter()
        .map(|term| AllowedTerm {
            match_label_expressions: term.iter().map(expression).collect(),
        })
        .collect()
}

fn input<'a>(claim: &'a str, allowed: &'a [AllowedTerm], selected: Option<&'a str>) -> Input<'a> {
    Input {
        claim,
        driver: "d",
        allowed,
        selected,
        strict: false,
        immediate: true,
    }
}

fn zones() -> Fleet {
    Fleet::new(
        &["zone"],
        &[
            ("n0", "zone=z1,rack=r1"),
            ("n1", "zone=z1"),
            ("n2", "zone=z2"),
            ("n3", "zone=z3"),
        ],
    )
}

#[test]
fn spreading_gives_the_golden_vectors() {
    for (claim, base, hash, index, first) in [
        ("testpvcA-testset-1", "testset", 1_633_848_515, 1, [0, 0, 0]),
        ("testpvcB-testset-2", "testset", 1_633_848_515, 2, [1, 1, 1]),
        ("data-web-0", "web", 1_181_096_325, 0, [1, 0, 1]),
        ("data-web-1", "web", 1_181_096_325, 1, [0, 1, 2]),
        ("data-web-2", "web", 1_181_096_325, 2, [1, 2, 3]),
        ("myclaim", "myclaim", 1_862_193_917, 0, [1, 2, 1]),
        ("my-claim", "my-claim", 2_574_695_748, 0, [0, 0, 0]),
        ("www-0", "www", 946_209_706, 0, [0, 1, 2]),
    ] {
        assert_eq!(spread(claim), (base, index), "{claim}");
        assert_eq!(fnv1(base.as_bytes()), hash, "{claim}");
        for (n, expected) in [2u32, 3, 4].into_iter().zip(first) {
            assert_eq!(
                fnv1(base.as_bytes()).wrapping_add(index) % n,
                expected,
                "{claim} {n}"
            );
        }
    }
    assert_eq!(
        spread("a-4294967296"),
        ("a-4294967296", 0),
        "too large for an index"
    );
    assert_eq!(spread("a-+1"), ("a-+1", 0));
}

#[test]
fn allowed_topologies_are_expanded_to_terms() {
    let terms = allowed(&[&[("zone", &["1", "2"]), ("rack", &["A", "B"])]]);
    let flat: Vec<String> = flatten(&terms)
        .iter()
        .map(|term| term.iter().map(|(_, v)| v.as_str()).collect())
        .collect();
    assert_eq!(flat, ["A1", "A2", "B1", "B2"]);
    let requirement = requirement(
        &input("myclaim", &terms, None),
        &zones(),
        &mut Memory::default(),
    );
    let requirement = requirement.unwrap().unwrap();
    assert_eq!(
        show(&requirement.requisite),
        "rack=A,zone=1 rack=A,zone=2 rack=B,zone=1 rack=B,zone=2"
    );
}

#[test]
fn immediate_binding_aggregates_the_cluster() {
    let found = requirement(&input("www-0", &[], None), &zones(), &mut Memory::default());
    let found = found.unwrap().unwrap();
    assert_eq!(show(&found.requisite), "zone=z1 zone=z2 zone=z3");
    assert_eq!(show(&found.preferred), "zone=z2 zone=z3 zone=z1");

    let mut none = input("www-0", &[], None);
    none.immediate = false;
    assert_eq!(
        requirement(&none, &zones(), &mut Memory::default()),
        Ok(None)
    );

    let empty = Fleet::new(&["zone"], &[]);
    let error = requirement(&input("a", &[], None), &empty, &mut Memory::default()).unwrap_err();
    assert_eq!(error.state, State::NoChange);
    let unlabelled = Fleet::new(&["zone"], &[("n0", "rack=r1")]);
    assert!(requirement(&input("a", &[], None), &unlabelled, &mut Memory::default()).is_err());
}

#[test]
fn the_selected_node_comes_first() {
    let found = requirement(
        &input("a", &[], Some("n2")),
        &zones(),
        &mut Memory::default(),
    );
    let found = found.unwrap().unwrap();
    assert_eq!(show(&found.requisite), "zone=z1 zone=z2 zone=z3");
    assert_eq!(show(&found.preferred), "zone=z2 zone=z3 zone=z1");

    let terms = allowed(&[&[("zone", &["z2", "z3"])]]);
    let found = requirement(
        &input("a", &terms, Some("n3")),
        &zones(),
        &mut Memory::default(),
    );
    let found = found.unwrap().unwrap();
    assert_eq!(show(&found.preferred), "zone=z3 zone=z2");
    let outside = requirement(
        &input("a", &terms, Some("n0")),
        &zones(),
        &mut Memory::default(),
    );
    assert_eq!(outside.unwrap_err().state, State::NoChange);
}

#[test]
fn strict_means_only_the_selected_node() {
    let strict = |allowed, node| Input {
        strict: true,
        ..input("a", allowed, Some(node))
    };
    let found = requirement(&strict(&[], "n2"), &zones(), &mut Memory::default());
    let found = found.unwrap().unwrap();
    assert_eq!(show(&found.requisite), "zone=z2");
    assert_eq!(show(&found.preferred), "zone=z2");
    let terms = allowed(&[&[("zone", &["z1"])]]);
    assert!(requirement(&strict(&terms, "n2"), &zones(), &mut Memory::default()).is_err());
    assert!(requirement(&strict(&terms, "n1"), &zones(), &mut Memory::default()).is_ok());
}

#[test]
fn claim_of_a_node_without_csinode_returns_to_the_scheduler() {
    let error = requirement(
        &input("a", &[], Some("gone")),
        &zones(),
        &mut Memory::default(),
    );
    assert_eq!(error.unwrap_err().state, State::Reschedule);
    let keyless = Fleet::new(&[], &[("n0", "zone=z1")]);
    let error = requirement(
        &input("a", &[], Some("n0")),
        &keyless,
        &mut Memory::default(),
    );
    assert_eq!(error.unwrap_err().state, State::NoChange);
}

#[test]
fn retry_repeats_the_topology_although_the_nodes_are_gone() {
    let mut memory = Memory::default();
    let first = requirement(&input("a", &[], Some("n2")), &zones(), &mut memory).unwrap();
    let nothing = Fleet::new(&["zone"], &[]);
    let second = requirement(&input("a", &[], Some("n2")), &nothing, &mut memory).unwrap();
    assert_eq!(first, second);
    let mut memory = Memory::default();
    let first = requirement(&input("a", &[], None), &zones(), &mut memory).unwrap();
    assert_eq!(
        requirement(&input("a", &[], None), &nothing, &mut memory).unwrap(),
        first
    );
}
