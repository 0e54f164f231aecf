//! Moving controllers between two programs.

use tenure_apiserver::TestServer;
use tenure_manager::{ControllerLeader, LeaderMigration, Runnable};

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
