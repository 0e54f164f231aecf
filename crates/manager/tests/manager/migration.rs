//! Moving controllers between two programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure::Status;
use tenure_apiserver::TestServer;
use tenure_manager::{ControllerLeader, LeaderMigration, OnLoss, Runnable};

use super::{Log, Running, holder, quick};

fn speaker(name: &'static str, log: &Log) -> Runnable {
    let log = log.clone();
    Runnable::new(name, move |scope| {
        log.say(name);
        async move { scope.cancelled().await }
    })
}

/// `route` has moved to the program `ccm`; `service` may run in both.
fn migration() -> LeaderMigration {
    let leader = |name: &str, component: &str| ControllerLeader {
        name: name.to_owned(),
        component: component.to_owned(),
    };
    LeaderMigration {
        leader_name: "migration".to_owned(),
        controller_leaders: vec![leader("route", "ccm"), leader("service", "*")],
    }
}

#[tokio::test]
async fn the_migration_lock_comes_after_the_main_lock_and_moves_alone() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let start = async |component: &'static str, log: &Log| {
        let manager = quick(&server)
            .await
            .identity(component)
            .leader_migration(migration(), component)
            .leader(component, speaker("node", log))
            .leader(component, speaker("route", log))
            .leader(component, speaker("service", log));
        Running::start(manager.build().unwrap())
    };
    let (kcm_log, ccm_log) = (Log::default(), Log::default());
    let kcm = start("kcm", &kcm_log).await;
    kcm_log.wait("service", 1).await;
    assert_eq!(kcm_log.all(), ["node", "service"], "route is not its own");
    assert_eq!(holder(&client, "kcm").await.as_deref(), Some("kcm"));
    assert_eq!(holder(&client, "migration").await.as_deref(), Some("kcm"));
    let ccm = start("ccm", &ccm_log).await;
    ccm_log.wait("node", 1).await;
    assert_eq!(
        ccm_log.all(),
        ["node"],
        "its own lock, and not the other's controllers"
    );
    kcm.stop().await.unwrap();
    ccm_log.wait("service", 1).await;
    ccm_log.wait("route", 1).await;
    ccm.stop().await.unwrap();
}

/// The migration lock waits for the main lock: a standby of one program does not take it from the other.
#[tokio::test]
async fn a_standby_does_not_contend_for_the_migration_lock() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let log = Log::default();
    let start = async |identity: &'static str| {
        let manager = quick(&server)
            .await
            .identity(identity)
            .leader_migration(migration(), "kcm")
            .leader("kcm", speaker("node", &log))
            .leader("kcm", speaker("service", &log));
        let manager = manager.build().unwrap();
        let groups = [manager.group("kcm"), manager.group("migration")];
        (Running::start(manager), groups.map(Option::unwrap))
    };
    let (first, _) = start("first").await;
    log.wait("service", 1).await;
    let (second, [main, migrated]) = start("second").await;
    let follows = Status::Follower {
        leader: "first".to_owned(),
    };
    let mut status = main.election().unwrap().watch();
    status.wait_for(|status| *status == follows).await.unwrap();
    let status = migrated.election().unwrap().status();
    assert_eq!(status, Status::Unknown, "it has not even looked");
    first.stop().await.unwrap();
    log.wait("service", 2).await;
    assert_eq!(log.all(), ["node", "service", "node", "service"]);
    assert_eq!(
        holder(&client, "migration").await.as_deref(),
        Some("second")
    );
    second.stop().await.unwrap();
}

/// A roll-out that moves `service` from one program to the other: never both at a time, and one of them at the end.
#[tokio::test]
async fn a_controller_moves_from_one_program_to_the_other_without_overlap() {
    let server = TestServer::start().await.unwrap();
    let working = Arc::new(AtomicUsize::new(0));
    let log = Log::default();
    let start = async |component: &'static str, owner: &str| {
        let (working, log) = (working.clone(), log.clone());
        let service = Runnable::new("service", move |scope| {
            let (working, log) = (working.clone(), log.clone());
            async move {
                assert_eq!(working.fetch_add(1, Ordering::SeqCst), 0, "overlap");
                log.say(component);
                scope.cancelled().await;
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                working.fetch_sub(1, Ordering::SeqCst);
            }
        });
        let migration = LeaderMigration {
            leader_name: "migration".to_owned(),
            controller_leaders: vec![ControllerLeader {
                name: "service".to_owned(),
                component: owner.to_owned(),
            }],
        };
        let manager = quick(&server)
            .await
            .leader_migration(migration, component)
            .leader(component, service);
        Running::start(manager.build().unwrap())
    };
    // Two replicas of each program. All start with the old assignment, then are replaced one by one.
    let mut replicas = Vec::new();
    for component in ["kcm", "ccm", "kcm", "ccm"] {
        replicas.push((component, start(component, "kcm").await));
    }
    log.wait("kcm", 1).await;
    for (component, old) in replicas.split_off(0) {
        old.stop().await.unwrap();
        replicas.push((component, start(component, "ccm").await));
    }
    log.wait("ccm", 1).await;
    assert_eq!(working.load(Ordering::SeqCst), 1);
    assert_eq!(log.all().last().map(String::as_str), Some("ccm"));
    for (_, replica) in replicas {
        replica.stop().await.unwrap();
    }
}

#[tokio::test]
async fn the_loss_of_either_lock_ends_the_manager() {
    for (lost, on_loss) in [
        ("kcm", OnLoss::Exit),
        ("migration", OnLoss::Exit),
        ("kcm", OnLoss::Demote),
        ("migration", OnLoss::Demote),
    ] {
        let server = TestServer::start().await.unwrap();
        let log = Log::default();
        let manager = quick(&server)
            .await
            .leader_migration(migration(), "kcm")
            .on_loss(on_loss)
            .leader("kcm", speaker("node", &log))
            .leader("kcm", speaker("service", &log));
        let running = Running::start(manager.build().unwrap());
        log.wait("service", 1).await;
        super::steal(&server, lost).await;
        let error = running.end().await.unwrap_err().to_string();
        assert_eq!(
            error,
            format!("leader election lost for {lost}: foreign-holder")
        );
    }
}

#[tokio::test]
async fn an_order_to_give_up_one_of_the_locks_ends_the_manager_too() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let manager = quick(&server)
        .await
        .leader_migration(migration(), "kcm")
        .on_loss(OnLoss::Demote)
        .leader("kcm", speaker("service", &log));
    let manager = manager.build().unwrap();
    let main = manager.group("kcm").unwrap();
    let running = Running::start(manager);
    log.wait("service", 1).await;
    main.election().unwrap().step_down(Default::default());
    let error = running.end().await.unwrap_err().to_string();
    assert_eq!(error, "leader election lost for kcm: step-down");
}
