//! Acceptance list of the command, item 7: fencing tokens increase across all changes of the lock and its holders.
//! docs/book/reference/command.md has the whole table.

use std::time::Duration;

use http::Method;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tenure::{Candidate, Elector, Event, FencingToken, Hub, LockKind, Term};
use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::wire::{Wire, lease_path};

const LIMIT: Duration = Duration::from_secs(120);

/// Number of hand-overs. The full acceptance run has ten thousand (`cargo xtask test process --long`).
fn hand_overs() -> usize {
    let wanted = std::env::var("TENURE_HAND_OVERS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(1_000)
}

/// Number of concurrent elections, so that ten thousand hand-overs take less than an hour.
const SIDE_BY_SIDE: usize = 20;

#[test]
fn acceptance_07_tokens_grow_over_hand_overs_deletions_and_restarts_under_one_name() {
    let server = Embedded::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let each = hand_overs().div_ceil(SIDE_BY_SIDE);
    let given = runtime.block_on(async {
        let file = Kubeconfig::read_from(server.kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(file, &options).await;
        let client = tenure::client(config.unwrap()).unwrap();
        let elections = (0..SIDE_BY_SIDE).map(|n| {
            let client = client.clone();
            tokio::spawn(hand_over_again(client, format!("tokens-{n}"), each))
        });
        let mut given = 0;
        for tokens in elections.collect::<Vec<_>>() {
            let tokens = tokens.await.unwrap();
            let growing = tokens.windows(2).all(|pair| pair[0] < pair[1]);
            assert!(growing, "{tokens:?}");
            given += tokens.len();
        }
        given
    });
    assert!(given >= hand_overs(), "{given}");
}

/// Two candidates alternate. The one that leaves returns under its old name. Occasionally the lock is deleted, held or
/// free.
async fn hand_over_again(client: Client, name: String, rounds: usize) -> Vec<FencingToken> {
    let hub = Hub::new(client.clone());
    let candidate = |id: &str| {
        Elector::open(client.clone(), LockKind::Leases, "default", &name)
            .hub(&hub)
            .identity(id)
            .events(false)
            .build()
            .unwrap()
            .start()
    };
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(client.clone(), "default");
    let mut tokens = Vec::new();
    let mut leader = candidate("a");
    let mut term = lead(&mut leader).await;
    for round in 0..rounds {
        tokens.push(term.tenure().token().clone());
        let id = if round % 2 == 0 { "b" } else { "a" };
        if round % 10 == 3 {
            leases.delete(&name, &Default::default()).await.unwrap();
        }
        // Every seventh time the same candidate returns, with no other holder in between.
        let same = round % 7 == 6;
        let successor = (!same).then(|| candidate(id));
        leader.shutdown();
        drop(term);
        while !matches!(leader.next().await, Some(Event::Finished) | None) {}
        if round % 10 == 8 {
            // The lease may already be held again, or deleted above.
            let _ = leases.delete(&name, &Default::default()).await;
        }
        leader = successor.unwrap_or_else(|| candidate("same"));
        term = lead(&mut leader).await;
    }
    tokens.push(term.tenure().token().clone());
    tokens
}

async fn lead(candidate: &mut Candidate) -> Term {
    let won = async {
        loop {
            match candidate.next().await {
                Some(Event::Lead(term)) => return term,
                Some(_) => {}
                None => panic!("the candidacy has ended"),
            }
        }
    };
    tokio::time::timeout(LIMIT, won).await.expect("a term")
}

#[test]
fn acceptance_07_tokens_grow_over_processes_that_remove_the_lock() {
    let home = Home::new();
    let mut last = 0_u64;
    for round in 0..8 {
        let mut args = vec!["run", "--election=e", "--id=same"];
        if round % 2 == 0 {
            args.push("--delete-on-exit");
        }
        args.extend(["--", "sh", "-c", "echo $TENURE_FENCING_TOKEN"]);
        let output = home.tenure(&args);
        let token = String::from_utf8_lossy(&output.stdout).into_owned();
        let token: u64 = token
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("{output:?}"));
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

/// A killed candidate that returns under its name finds a lease that still names it, or no lease.
#[test]
fn acceptance_07_tokens_grow_over_processes_that_are_killed_and_restarted() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let mut last = 0;
    for round in 0..6 {
        let mut command = home.command();
        command
            .env("KUBECONFIG", server.kubeconfig())
            .args(["run", "--election=e", "--id=same", "--lease-duration=4s"])
            .args(["--renew-deadline=2s", "--retry-period=300ms"])
            .args(["--", "sh", "-c", "echo $TENURE_FENCING_TOKEN; sleep 1000"]);
        let mut process = Process::spawn("same", command).unwrap();
        let token = poll(LIMIT, || process.json().first()?.as_u64());
        let token = token.unwrap_or_else(|| panic!("{}", process.transcript()));
        assert!(token > last, "{token} after {last}");
        last = token;
        process.kill();
        let lease = lease_path("default", "e");
        let left = admin.get(&lease).unwrap().body;
        assert_eq!(left["spec"]["holderIdentity"], "same", "{left}");
        if round % 2 == 1 {
            let deleted = admin.send(&Method::DELETE, &lease, None).unwrap();
            assert!(deleted.status.is_success(), "{}", deleted.body);
        }
    }
}
