//! Replays conversations recorded from the real kube-apiserver over HTTP.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait for a server in this process; no election is decided here"
)]

#[path = "support/replay.rs"]
mod replay;
mod support;

use std::path::Path;

use serde_json::Value;
use support::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_conversations_replay_without_a_hard_difference() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cases");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("fixtures")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("name")
        })
        .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
        .collect();
    names.sort();
    assert_eq!(names.len(), 65);
    let only = std::env::var("CASE").unwrap_or_default();
    names.retain(|name| name.contains(&only));
    assert!(!names.is_empty(), "no case is named {only:?}");
    let mut failed = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).expect("case");
        let case: Value = serde_json::from_str(&text).expect("JSON");
        let server = Server::start().await;
        let differences = replay::play(&server, &case, &format!("c{index}x7q")).await;
        server.api.shutdown();
        let hard = differences
            .iter()
            .filter(|difference| difference.hard)
            .count();
        println!("{} {name}", if hard == 0 { "ok  " } else { "FAIL" });
        for difference in &differences {
            let grade = if difference.hard { "hard" } else { "soft" };
            println!("    {grade} {}", difference.text);
        }
        if hard > 0 {
            failed.push(name.clone());
        }
    }
    assert!(
        failed.is_empty(),
        "{} cases differ: {failed:?}",
        failed.len()
    );
}
