//! Coordinated election (KEP-4355): the controller of the real kube-apiserver selects one of the library's candidates.

use std::path::Path;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tenure::{Coordinated, Elector, FencingToken, Handle};
use tenure_tests::embedded::Embedded;
use tenure_tests::real::{Cluster, own_cluster};
use tenure_tests::wire::{Wire, lease_path};
use tenure_tests::{Skip, clock};
use tokio::runtime::Runtime;

/// The controller waits five seconds for responses, and checks again after five more.
const LIMIT: Duration = Duration::from_secs(120);
const NAME: &str = "coordinated";

/// A candidate with its own runtime, which acts like a process: dropping the runtime is a crash.
struct Candidate {
    runtime: Runtime,
    handle: Handle,
}

impl Candidate {
    fn start(kubeconfig: &Path, identity: &str, emulation: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let file = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
        let handle = runtime.block_on(async {
            let options = kube::config::KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(file, &options);
            let client = tenure::client(config.await.unwrap()).unwrap();
            let elector = Elector::lease(client, "default", NAME)
                .identity(identity)
                .events(false)
                .lease_duration(Duration::from_secs(5))
                .renew_deadline(Duration::from_secs(3))
                .retry_period(Duration::from_millis(500))
                .coordinated(Coordinated::oldest_emulation_version("1.36.0", emulation))
                .build()
                .unwrap();
            let handle = elector.handle();
            tokio::spawn(
                elector.campaign(std::future::pending::<()>(), |tenure| async move {
                    tenure.cancelled().await;
                }),
            );
            handle
        });
        Self { runtime, handle }
    }

    fn crash(self) {
        self.runtime.shutdown_background();
    }
}

/// Waits for a term of one of these candidates whose token is greater than `last`.
fn led(candidates: &[&Candidate], last: Option<&FencingToken>) -> FencingToken {
    let found = clock::poll(LIMIT, || {
        let mut terms = candidates.iter().filter_map(|c| c.handle.tenure());
        terms
            .find(|term| term.is_leading() && last.is_none_or(|last| term.token() > last))
            .map(|term| term.token().clone())
    });
    found.expect("somebody leads")
}

fn lease(wire: &Wire) -> Value {
    wire.get(&lease_path("default", NAME)).unwrap().body
}

fn transitions(lease: &Value) -> u64 {
    lease["spec"]["leaseTransitions"].as_u64().unwrap()
}

#[test]
fn real_coordinated_election_survives_an_order_and_a_crash() {
    if Skip::unless(own_cluster()).is_none() {
        return;
    }
    let cluster = Cluster::start_with(&[
        "--feature-gates=CoordinatedLeaderElection=true",
        "--runtime-config=coordination.k8s.io/v1beta1=true",
    ])
    .unwrap();
    let wire = cluster.wire().unwrap();
    let first = Candidate::start(&cluster.kubeconfig(), "first", "1.35.0");
    let token = led(&[&first], None);
    let second = Candidate::start(&cluster.kubeconfig(), "second", "1.36.0");
    let won = lease(&wire);
    assert_eq!(won["spec"]["holderIdentity"], "first", "{won}");
    assert_eq!(won["spec"]["strategy"], "OldestEmulationVersion", "{won}");
    assert!(won["spec"]["acquireTime"].is_string(), "{won}");
    let mark = &won["metadata"]["annotations"][tenure_lock::TERM_ANNOTATION];
    assert!(
        mark.as_str().is_some_and(|mark| mark.contains("\"first\"")),
        "{won}"
    );

    // The controller never increments the transitions. The order stays on the object and must not end the next term.
    let number = transitions(&won);
    let ordered = tenure_core::Record {
        holder: "first".to_owned(),
        transitions: u32::try_from(number).unwrap(),
        ..Default::default()
    };
    let order = tenure_lock::orders::step_down_patch(&ordered, None, Some(Duration::from_secs(1)));
    let path = lease_path("default", NAME);
    let answer = wire.send(&Method::PATCH, &path, Some(&order)).unwrap();
    assert!(answer.status.is_success(), "{answer:?}");
    let again = led(&[&first, &second], Some(&token));
    let after = lease(&wire);
    assert!(transitions(&after) > number, "{after}");

    // The leader crashes; the other one takes over, although it is not the oldest.
    let (leader, other) = if first.handle.is_leading() {
        (first, second)
    } else {
        (second, first)
    };
    leader.crash();
    let last = led(&[&other], Some(&again));
    assert!(last > again && again > token);
    assert!(transitions(&lease(&wire)) > transitions(&after));
}

/// The embedded server has no controller, so the test assigns the Lease as the controller would: it keeps the count
/// of transitions and sets no acquire time.
#[test]
fn coordinated_token_is_accepted_by_the_fencing_header() {
    let server = Embedded::start().unwrap();
    let wire = Wire::connect(&server.kubeconfig()).unwrap();
    let candidate = Candidate::start(&server.kubeconfig(), "only", "1.36.0");
    let assigned = json!({
        "metadata": { "name": NAME },
        "spec": {
            "holderIdentity": "only", "leaseDurationSeconds": 5, "strategy": "OldestEmulationVersion",
            "renewTime": "2026-01-02T03:04:05.000006Z",
        },
    });
    let made = wire.send(&Method::POST, &lease_path("default", ""), Some(&assigned));
    assert_eq!(made.unwrap().status, StatusCode::CREATED);
    let token = led(&[&candidate], None);
    let fence = format!("default/{NAME}; holder=only; token={token}");
    let effect = json!({ "metadata": { "name": "effect" } });
    let answer = wire.send_with(
        &Method::POST,
        "/api/v1/namespaces/default/configmaps",
        &[("tenure-fence", &fence)],
        Some(&effect),
    );
    let answer = answer.unwrap();
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
}
