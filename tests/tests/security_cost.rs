//! Twice the input costs `tenure server` at most three times the CPU time, for inputs that attackers choose.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::attack::bombs;
use tenure_tests::attack::client::{JSON, JSON_PATCH, MERGE};
use tenure_tests::attack::server::{AttackedServer, rule};
use tenure_tests::attack::{DEFINITIONS, MAPS, RBAC};

/// Entries of the shortest input. Quadratic work is visible from a few thousand entries on.
const LEAST: usize = 1_000;
/// Number of times that the input is doubled.
const DOUBLINGS: u32 = 2;
/// Less work is not compared: the kernel counts in hundredths of a second, and the server has background work.
const FLOOR: Duration = Duration::from_millis(150);

type Case = (
    &'static str,
    &'static str,
    String,
    &'static str,
    fn(usize) -> Value,
);

fn cases() -> Vec<Case> {
    let dry = |path: &str| format!("{path}?dryRun=All");
    vec![
        (
            "rules of a role",
            "POST",
            dry(&format!("{RBAC}/clusterroles")),
            JSON,
            |n| bombs::aggregated_role("r", n),
        ),
        (
            "combinations of a role",
            "POST",
            dry(&format!("{RBAC}/clusterroles")),
            JSON,
            |n| bombs::wide_role("w", n),
        ),
        (
            "JSON patch",
            "PATCH",
            format!("{MAPS}/m-0?dryRun=All"),
            JSON_PATCH,
            bombs::json_patch,
        ),
        (
            "merge patch",
            "PATCH",
            format!("{MAPS}/m-0?dryRun=All"),
            MERGE,
            |n| bombs::merge_patch(n, 1),
        ),
        ("owners", "POST", dry(MAPS), JSON, |n| {
            bombs::metadata("x", "ownerReferences", n)
        }),
        ("labels", "POST", dry(MAPS), JSON, |n| {
            bombs::metadata("x", "labels", n)
        }),
        ("patterns", "POST", dry(DEFINITIONS), JSON, |n| {
            bombs::definition(n, n / 4)
        }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_twice_the_input_is_at_most_three_times_the_work() {
    let server = AttackedServer::start(&["mallory".to_owned()], &["--store=memory"]);
    let all = ["get", "create", "update", "patch"];
    let rules = json!([
        rule("", "configmaps", &all),
        rule("", "pods", &["get"]),
        rule("rbac.authorization.k8s.io", "clusterroles", &all),
        rule("apiextensions.k8s.io", "customresourcedefinitions", &all),
    ]);
    server.allow("mallory", "attacker", &rules).await;
    server.fill(1, 1).await;
    let mallory = server.client("mallory");
    let mut problems = Vec::new();
    for (name, method, path, kind, body) in cases() {
        let mut costs = Vec::new();
        for doubling in 0..=DOUBLINGS {
            let body = body(LEAST << doubling);
            let before = server.process().cpu_time().unwrap();
            let headers = [("content-type", kind)];
            let answer = mallory
                .send_with(method, &path, &headers, &body)
                .await
                .unwrap();
            assert!(
                ![404, 429, 500].contains(&answer.status),
                "{name}: {}",
                answer.json()
            );
            costs.push(server.process().cpu_time().unwrap() - before);
        }
        println!("{name}: {costs:?}");
        let (first, last) = (costs[0], costs[costs.len() - 1]);
        if last > 3_u32.pow(DOUBLINGS) * first.max(FLOOR) {
            problems.push(format!("{name}: {costs:?}"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// The rules that a role adds to an aggregated role, and the rules of a user, are part of many decisions. The decisions
/// of other users do not become slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_many_rules_of_a_user_do_not_slow_others_down() {
    let users = ["mallory", "bob"].map(str::to_owned);
    let server = AttackedServer::start(&users, &["--store=memory"]);
    let verbs = ["get", "list", "create", "update", "patch", "delete"];
    let rules = json!([
        rule("rbac.authorization.k8s.io", "*", &verbs),
        rule("", "pods", &["get"]),
    ]);
    server.allow("mallory", "attacker", &rules).await;
    server
        .allow("bob", "maps", &json!([rule("", "configmaps", &["list"])]))
        .await;
    let (mallory, bob) = (server.client("mallory"), server.client("bob"));
    for number in 0..6 {
        let name = format!("bomb-{number}");
        let role = bombs::aggregated_role(&name, 5_000);
        let made = mallory
            .send("POST", &format!("{RBAC}/clusterroles"), &role)
            .await
            .unwrap();
        assert_eq!(made.status, 201, "{}", made.json());
        // An attacker with very many rules cannot grant more, because the comparison would take too long.
        server.bind("mallory", &name).await;
        // The first decision after a change of roles applies the change.
        let before = server.process().cpu_time().unwrap();
        assert_eq!(
            bob.send("GET", MAPS, &Value::Null).await.unwrap().status,
            200
        );
        let cost = server.process().cpu_time().unwrap() - before;
        println!("decision after {} rules: {cost:?}", (number + 1) * 5_000);
        assert!(cost < Duration::from_secs(2), "{cost:?}");
    }
    // The attacker's own requests are decided with all its rules, one at a time.
    let secrets = "/api/v1/namespaces/default/secrets";
    let denied = mallory.send("GET", secrets, &Value::Null).await.unwrap();
    assert_eq!(denied.status, 403, "{}", denied.json());
}
