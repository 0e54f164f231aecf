//! Runnables that are added to a running manager.

use tenure_apiserver::TestServer;
use tenure_manager::{Manager, OnLoss, Runnable};

use super::{Log, Running, config, quick, speaker, until};

#[tokio::test]
async fn added_runnable_starts_immediately_and_in_each_later_term() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let manager = quick(&server)
        .await
        .on_loss(OnLoss::Demote)
        .leader("g", speaker("first", &log))
        .build()
        .unwrap();
    let (handle, group) = (manager.handle(), manager.group("g").unwrap());
    // Additions also work before the manager runs.
    handle.add_every(speaker("early", &log)).unwrap();
    let running = Running::start(manager);
    log.wait("early starts", 1).await;
    log.wait("first starts", 1).await;
    handle.add_every(speaker("every", &log)).unwrap();
    handle.add_leader("g", speaker("second", &log)).unwrap();
    log.wait("every starts", 1).await;
    log.wait("second starts", 1).await;
    assert_eq!(log.count("first starts"), 1, "the others go on");
    assert_eq!(handle.running(), ["early", "every", "first", "second"]);

    let taken = handle.add_leader("g", speaker("every", &log)).unwrap_err();
    assert_eq!(taken.to_string(), "two runnables have the name every");
    let nowhere = handle.add_leader("h", speaker("third", &log)).unwrap_err();
    let text = "leader group h does not exist (existing groups: g)";
    assert_eq!(nowhere.to_string(), text);

    group.election().unwrap().step_down(Default::default());
    log.wait("second starts", 2).await;
    log.wait("first starts", 2).await;
    assert_eq!(log.count("every starts"), 1);
    running.stop().await.unwrap();
    assert_eq!(log.count("second stopped"), 2);
    assert_eq!(log.count("every stopped"), 1);
    until("nothing runs", || handle.running().is_empty()).await;
    let late = handle.add_every(speaker("late", &log)).unwrap_err();
    let text = "late cannot be added: the manager is stopping or has stopped";
    assert_eq!(late.to_string(), text);
}

#[tokio::test]
async fn added_runnable_starts_without_an_election() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let manager = Manager::builder(config(&server).await)
        .no_leader_elect(true)
        .leader("g", Runnable::new("done", |_| async {}))
        .build()
        .unwrap();
    let handle = manager.handle();
    let running = Running::start(manager);
    until("the first is done", || handle.running().is_empty()).await;
    handle.add_leader("g", speaker("second", &log)).unwrap();
    log.wait("second starts", 1).await;
    running.stop().await.unwrap();
    assert_eq!(log.count("second stopped"), 1);
}

#[tokio::test]
async fn manager_that_could_not_start_rejects_additions() {
    let server = TestServer::start().await.unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let manager = quick(&server)
        .await
        .probe_address(taken.local_addr().unwrap())
        .build()
        .unwrap();
    let handle = manager.handle();
    manager.run(std::future::pending::<()>()).await.unwrap_err();
    let refused = handle.add_every(speaker("late", &Log::default()));
    refused.unwrap_err();
}
