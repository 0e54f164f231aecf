//! Runs the entry points of the fuzz targets over generated and mutated input for a bounded number of cases. `cargo
//! xtask fuzz` runs the same functions under libFuzzer.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::path::Path;

use base64::Engine as _;
use proptest::prelude::*;
use serde_json::Value;
use tenure_apiserver::fuzzing;

fn fixtures() -> Vec<(Vec<u8>, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/protobuf");
    let mut pairs = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let pair: Value =
            serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap();
        let bytes = pair["protobuf"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(bytes)
            .unwrap();
        pairs.push((pair["json"].to_string().into_bytes(), bytes));
    }
    pairs
}

/// A mutation of bytes: overwrite, cut, insert or repeat a piece.
#[derive(Debug, Clone)]
enum Mutation {
    Set(usize, u8),
    Cut(usize, usize),
    Insert(usize, Vec<u8>),
    Repeat(usize, usize),
}

fn mutation(pieces: &'static [&'static str]) -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<usize>(), 0..40usize).prop_map(|(at, length)| Mutation::Cut(at, length)),
        (any::<usize>(), prop::collection::vec(any::<u8>(), 0..12))
            .prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        (any::<usize>(), prop::sample::select(pieces))
            .prop_map(|(at, piece)| Mutation::Insert(at, piece.as_bytes().to_vec())),
        (any::<usize>(), 0..60usize).prop_map(|(at, length)| Mutation::Repeat(at, length)),
    ]
}

fn mutate(mut bytes: Vec<u8>, mutations: Vec<Mutation>) -> Vec<u8> {
    for mutation in mutations {
        let length = bytes.len();
        let place = |at: usize| at % (length + 1);
        match mutation {
            Mutation::Set(at, byte) if length > 0 => bytes[at % length] = byte,
            Mutation::Set(..) => {}
            Mutation::Cut(at, count) => {
                let start = place(at);
                bytes.drain(start..(start + count).min(length));
            }
            Mutation::Insert(at, new) => {
                let start = place(at);
                bytes.splice(start..start, new);
            }
            Mutation::Repeat(at, count) => {
                let start = place(at);
                let piece = bytes[start..(start + count).min(length)].to_vec();
                bytes.splice(start..start, piece);
            }
        }
    }
    bytes
}

const JSON_PIECES: &[&str] = &[
    "null",
    "{}",
    "[]",
    "\"\"",
    "0",
    "-1",
    "1.5",
    "true",
    ",",
    ":",
    "{\"spec\":",
    "\"metadata\":{},",
    "\"spec\":{\"containers\":[{}]},",
    "\"2026-01-02T03:04:05.000006Z\"",
    "\"1.5Gi\"",
    "\"x\":1,",
];
const PATCH_PIECES: &[&str] = &[
    "\"$patch\":\"delete\",",
    "\"$patch\":\"replace\",",
    "\"$retainKeys\":[\"name\"],",
    "null",
    "{}",
    "[]",
    "\"$setElementOrder/containers\":[{\"name\":\"a\"}],",
    "\"$deleteFromPrimitiveList/finalizers\":[\"a\"],",
    "{\"op\":\"copy\",\"from\":\"/spec\",\"path\":\"/spec/x\"},",
    "{\"op\":\"move\",\"from\":\"/spec\",\"path\":\"/y\"},",
    "{\"name\":\"a\"},",
    ",",
];
const SELECTOR_PIECES: &[&str] = &[
    "a",
    "b",
    "in",
    "notin",
    "(",
    ")",
    ",",
    "=",
    "==",
    "!=",
    "!",
    ">",
    "<",
    " ",
    "1",
    "x.io/y",
    "\\",
    "ä",
    "metadata.name",
    "",
];

const PATH_PIECES: &[&str] = &[
    "/api/v1",
    "/apis/coordination.k8s.io/v1",
    "/apis",
    "/namespaces",
    "/default",
    "/leases",
    "/pods",
    "/status",
    "/finalize",
    "/watch",
    "/",
    "//",
    "/%6e",
    "/%2f",
    "/%",
    "/%zz",
    "/%00",
    "/.",
    "/..",
    "/é",
];
const QUERIES: &[&str] = &[
    "",
    "?",
    "?watch=true",
    "?watch=1&fieldSelector=metadata.name%3Dx",
    "?fieldSelector=metadata.name==a,metadata.name=b",
    "?fieldSelector=metadata.name%3D%zz",
    "?watch=false&watch=true",
    "?%77atch=true",
    "?limit=1&continue=x",
];

const SEED_PIECES: &[&str] = &[
    "\n",
    ",",
    ";",
    "=",
    "/",
    "*",
    "\"",
    "%",
    "%41",
    "&x ",
    "*x",
    "- ",
    "a",
    "system:masters",
    "token=1",
    "holder=",
    "{",
    "}",
    "[",
    "]",
    "RequestResponse",
    "level: ",
    "\\",
];

/// Returns the seeds of the targets about access, with the names of their files.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fuzz");
    let files = fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut bytes = fs::read(&path).unwrap();
        if name.ends_with(".base64") {
            bytes.retain(|byte| !byte.is_ascii_whitespace());
            bytes = base64::engine::general_purpose::STANDARD
                .decode(bytes)
                .unwrap();
        }
        (name, bytes)
    });
    files.collect()
}

/// A rule of a few names, so that rules often cover others.
fn rule() -> impl Strategy<Value = Value> {
    let list =
        |names: &'static [&'static str]| prop::collection::vec(prop::sample::select(names), 0..3);
    (
        list(&["get", "list", "*"]),
        list(&["", "apps", "*"]),
        list(&["pods", "pods/status", "*/status", "*", "pods/", "/"]),
        list(&["a", "b"]),
        list(&["/a", "/a/b", "/a*", "*", ""]),
    )
        .prop_map(|(verbs, groups, resources, names, urls)| {
            serde_json::json!({ "verbs": verbs, "apiGroups": groups, "resources": resources,
                "resourceNames": names, "nonResourceURLs": urls })
        })
}

const TARGET: &str = r#"{"metadata":{"name":"p","finalizers":["a","b"]},"spec":{"containers":[{"name":"a","ports":[{"containerPort":1}],"env":[{"name":"E","value":"v"}]},{"name":"b"}],"volumes":[{"name":"v","emptyDir":{}}],"holderIdentity":"h"}}"#;
const STRATEGIC: &str = r#"{"metadata":{"finalizers":["c"]},"spec":{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}],"containers":[{"name":"a","image":"i","env":[{"name":"E","$patch":"delete"}]}]}}"#;
const OPERATIONS: &str = r#"[{"op":"test","path":"/metadata/name","value":"p"},{"op":"add","path":"/spec/containers/-","value":{"name":"c"}},{"op":"remove","path":"/spec/volumes"}]"#;

proptest! {
    // PROPTEST_CASES sets the number of cases.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut body = b"k8s\0".to_vec();
        body.extend(&bytes);
        fuzzing::protobuf(&body);
        fuzzing::json(&bytes);
        fuzzing::patch(&bytes);
        fuzzing::selector(&bytes);
        fuzzing::path(&bytes);
        fuzzing::roles(&bytes);
        fuzzing::audit(&bytes);
        fuzzing::fence(&bytes);
        fuzzing::credentials(&bytes);
    }

    #[test]
    fn covered_rules_allow_no_further_request(
        had in prop::collection::vec(rule(), 0..4),
        wanted in prop::collection::vec(rule(), 0..3),
    ) {
        let list = |rules: Vec<Value>| Value::Array(rules).to_string();
        fuzzing::roles(format!("{}\n{}", list(had), list(wanted)).as_bytes());
    }

    #[test]
    fn mutated_seeds_never_panic(pick in any::<usize>(), mutations in prop::collection::vec(mutation(SEED_PIECES), 0..5)) {
        let seeds = seeds();
        let (name, seed) = &seeds[pick % seeds.len()];
        let bytes = mutate(seed.clone(), mutations);
        match name.split('-').next() {
            Some("roles") => fuzzing::roles(&bytes),
            Some("audit") => fuzzing::audit(&bytes),
            Some("fence") => fuzzing::fence(&bytes),
            Some("credentials") => fuzzing::credentials(&bytes),
            other => panic!("no target {other:?}"),
        }
    }

    #[test]
    fn mutated_protobuf_never_panics(pick in any::<usize>(), mutations in prop::collection::vec(mutation(&["\n", "\0"]), 1..6)) {
        let fixtures = fixtures();
        fuzzing::protobuf(&mutate(fixtures[pick % fixtures.len()].1.clone(), mutations));
    }

    #[test]
    fn mutated_json_never_panics(pick in any::<usize>(), mutations in prop::collection::vec(mutation(JSON_PIECES), 1..6)) {
        let fixtures = fixtures();
        fuzzing::json(&mutate(fixtures[pick % fixtures.len()].0.clone(), mutations));
    }

    #[test]
    fn mutated_patches_never_panic(operations in any::<bool>(), mutations in prop::collection::vec(mutation(PATCH_PIECES), 0..5)) {
        let patch = if operations { OPERATIONS } else { STRATEGIC };
        let mut bytes = format!("{TARGET}\n").into_bytes();
        bytes.extend(mutate(patch.as_bytes().to_vec(), mutations));
        fuzzing::patch(&bytes);
    }

    #[test]
    fn random_paths_are_authorized_as_they_are_handled(
        method in prop::sample::select(&["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "X"][..]),
        segments in prop::collection::vec(prop::sample::select(PATH_PIECES), 0..10),
        query in prop::sample::select(QUERIES),
    ) {
        fuzzing::path(format!("{method} {}{query}", segments.concat()).as_bytes());
    }

    #[test]
    fn random_selectors_round_trip(words in prop::collection::vec(prop::sample::select(SELECTOR_PIECES), 0..14)) {
        fuzzing::selector(words.concat().as_bytes());
    }
}
