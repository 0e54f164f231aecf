//! The harness itself: the cluster has the expected properties and leaves nothing behind.

use std::fs;
use std::process::Command;
use std::time::Duration;

use http::{Method, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tenure_tests::Skip;
use tenure_tests::process::Process;
use tenure_tests::real::{Cluster, Detached, Peer, available, own_cluster, shared};
use tenure_tests::wire::{Wire, lease_path};

#[test]
fn server_reports_its_version() {
    let Some(cluster) = Skip::unless(shared()) else {
        return;
    };
    if cluster.is_existing() {
        return;
    }
    let version = cluster.wire().unwrap().get("/version").unwrap();
    assert_eq!(version.body["gitVersion"], Peer::KubeApiserver.version());
    assert_eq!(version.body["major"], "1");
}

#[test]
fn rbac_is_enabled() {
    let user = |cluster: &'static Cluster| Ok((cluster, cluster.user_kubeconfig()?));
    let Some((cluster, user)) = Skip::unless(shared().and_then(user)) else {
        return;
    };
    let user = Wire::connect(&user).unwrap();
    let answer = user.get(&lease_path("default", "rbac")).unwrap();
    assert_eq!(
        (answer.status, &answer.body["reason"]),
        (StatusCode::FORBIDDEN, &json!("Forbidden"))
    );
    let admin = cluster
        .wire()
        .unwrap()
        .get(&lease_path("default", "rbac"))
        .unwrap();
    assert_eq!(admin.status, StatusCode::NOT_FOUND);
}

#[test]
fn dropped_cluster_leaves_no_process_and_no_file() {
    if Skip::unless(own_cluster()).is_none() {
        return;
    }
    let cluster = Cluster::start().unwrap();
    let lease = json!({"metadata": {"name": "x"}, "spec": {}});
    let created =
        cluster
            .wire()
            .unwrap()
            .send(&Method::POST, &lease_path("default", ""), Some(&lease));
    assert_eq!(created.unwrap().status, StatusCode::CREATED);

    let (pids, kubeconfig) = (cluster.pids(), cluster.kubeconfig());
    let running = |pid: &u32| fs::exists(format!("/proc/{pid}")).unwrap();
    assert!(pids.len() == 2 && pids.iter().all(running));
    drop(cluster);
    assert!(!pids.iter().any(running));
    assert!(!kubeconfig.parent().unwrap().exists());
}

/// Stops a cluster at the end of the test, even after a panic.
struct Down(Detached);

impl Drop for Down {
    fn drop(&mut self) {
        _ = self.0.down();
    }
}

#[test]
fn up_and_down_control_a_cluster_and_up_replaces_an_incomplete_one() {
    if Skip::unless(own_cluster()).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Down(cluster) = &Down(Detached::in_folder(folder.path().to_owned()));
    assert!(cluster.state().unwrap().is_none());
    assert!(!cluster.down().unwrap());

    let (first, started) = cluster.up().unwrap();
    assert!(started);
    assert_eq!(cluster.up().unwrap(), (first.clone(), false));
    let lease = json!({"metadata": {"name": "x"}, "spec": {}});
    let wire = Wire::connect(&first.kubeconfig).unwrap();
    let made = wire.send(&Method::POST, &lease_path("default", ""), Some(&lease));
    assert_eq!(made.unwrap().status, StatusCode::CREATED);

    let [store, server] = first.running()[..] else {
        panic!("{first:?}")
    };
    let pid = Pid::from_raw(i32::try_from(store).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let left = || cluster.state().unwrap().filter(|state| !state.is_whole());
    let left = tenure_tests::clock::poll(Duration::from_secs(60), left).unwrap();
    assert_eq!(left.running(), [server]);

    let (second, started) = cluster.up().unwrap();
    assert!(started && second.is_whole(), "{second:?}");
    assert_eq!(first.running(), Vec::<u32>::new());
    let wire = Wire::connect(&second.kubeconfig).unwrap();
    let lease = wire.get(&lease_path("default", "x")).unwrap();
    assert_eq!(lease.status, StatusCode::NOT_FOUND);

    assert!(cluster.down().unwrap());
    assert_eq!(second.running(), Vec::<u32>::new());
    assert!(cluster.state().unwrap().is_none() && !second.kubeconfig.exists());
}

/// Runs this test program again with an existing cluster.
#[test]
fn an_existing_cluster_is_used_and_left_running() {
    let programs = own_cluster().and_then(|()| available(&[Peer::Elector]));
    if Skip::unless(programs).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Down(cluster) = &Down(Detached::in_folder(folder.path().to_owned()));
    let (state, _) = cluster.up().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .args(["real_client_go::client_go_term_has_the_expected_records"])
        .args(["real_harness::rbac_is_enabled"])
        .args(["real_harness::dropped_cluster_leaves_no_process_and_no_file"])
        .env("TENURE_KUBECONFIG", &state.kubeconfig)
        // Requirements for a cluster that the harness starts do not apply to an existing one.
        .env("TENURE_REAL", "require");
    let mut run = Process::spawn("tests on an existing cluster", command).unwrap();
    let ended = run.wait(Duration::from_secs(240)).unwrap();
    let said = run.text().join("\n");
    assert!(ended.success(), "{said}");
    assert!(said.contains("3 passed"), "{said}");
    for skipped in ["has no user without permissions", "needs its own cluster"] {
        assert!(said.contains(skipped), "no {skipped:?} in\n{said}");
    }
    // The run used that cluster.
    let wire = Wire::connect(&state.kubeconfig).unwrap();
    let lease = wire.get(&lease_path("default", "client-go-term")).unwrap();
    assert_eq!(lease.status, StatusCode::OK);
    assert!(state.is_whole());
}
