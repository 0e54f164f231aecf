//! Runnables that fail.

use std::time::Duration;

use tenure_apiserver::TestServer;
use tenure_manager::{Backoff, Error, Runnable};

use super::{Log, Logged, Running, quick};

const SOON: Backoff = Backoff {
    first: Duration::from_millis(5),
    most: Duration::from_millis(20),
    reset_after: Duration::from_secs(60),
};

fn failing(name: &'static str, log: &Log) -> Runnable {
    let log = log.clone();
    Runnable::new(name, move |_| {
        let log = log.clone();
        async move {
            log.say(name);
            Err::<(), _>(std::io::Error::other("no disk"))
        }
    })
}

#[tokio::test]
async fn die_ends_the_manager_with_the_name_and_the_cause() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    for scope in ["every", "leader"] {
        let manager = quick(&server).await;
        let manager = match scope {
            "every" => manager.every(failing("nodes", &log)),
            _ => manager.leader("g", failing("nodes", &log)),
        };
        let error = Running::start(manager.build().unwrap()).end().await;
        let error = error.unwrap_err();
        assert_eq!(error.to_string(), "nodes: no disk", "{scope}");
        assert!(matches!(error, Error::Runnable { .. }));
    }
}

#[tokio::test]
async fn a_panic_is_caught_and_names_the_controller() {
    let server = TestServer::start().await.unwrap();
    let panicking = Runnable::new("nodes", |scope| async move {
        assert!(scope.name().is_empty(), "index {} out of range", 3);
    });
    let manager = quick(&server).await.leader("g", panicking);
    let error = Running::start(manager.build().unwrap()).end().await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "nodes: panicked: index 3 out of range"
    );
    let client = server.client().unwrap();
    let holder = super::holder(&client, "g").await;
    assert_eq!(holder.as_deref(), Some(""), "stopped in order: released");
}

#[tokio::test]
async fn causes_of_an_error_are_reported() {
    #[derive(Debug)]
    struct Outer(std::io::Error);
    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("cannot write the node")
        }
    }
    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    let server = TestServer::start().await.unwrap();
    let outer = || Outer(std::io::Error::other("no disk"));
    let failing = Runnable::new("nodes", move |_| async move { Err::<(), _>(outer()) });
    let manager = quick(&server).await.every(failing);
    let error = Running::start(manager.build().unwrap()).end().await;
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "nodes: cannot write the node: no disk");

    // Items of a kube-rs controller's stream are logged.
    let logged = Logged::listen();
    let controller = Runnable::controller("maps", move |_| {
        futures_util::stream::iter([Ok(()), Err(outer())])
    });
    let manager = quick(&server).await.every(controller);
    let error = Running::start(manager.build().unwrap()).end().await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "maps: the controller ended without a request to stop"
    );
    let lines = logged.lines("reconciliation failed");
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].contains("cannot write the node: no disk"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn no_duration_is_too_long() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let never = Backoff {
        first: Duration::MAX,
        most: Duration::MAX,
        reset_after: Duration::MAX,
    };
    let manager = quick(&server)
        .await
        .shutdown_timeout(Duration::MAX)
        .hook_timeout(Duration::MAX)
        .cache_timeout(Duration::MAX)
        .hand_over_every(Duration::MAX)
        .on_startup("hook", |startup| async move { startup.done.ok() })
        .every(failing("once", &log).restart(never));
    let running = Running::start(manager.build().unwrap());
    log.wait("once", 1).await;
    running.stop().await.unwrap();
    assert_eq!(log.count("once"), 1);
}

#[tokio::test]
async fn restart_policy_starts_the_runnable_again_and_ignore_policy_continues_without_it() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let said = log.clone();
    let manager = quick(&server)
        .await
        .every(failing("again", &log).restart(SOON))
        .every(failing("once", &log).ignore())
        .leader(
            "g",
            Runnable::new("panics", move |scope| {
                said.say("panics");
                async move { assert!(scope.name().is_empty(), "oh") }
            })
            .restart(SOON),
        );
    let running = Running::start(manager.build().unwrap());
    log.wait("again", 4).await;
    log.wait("panics", 4).await;
    running.stop().await.unwrap();
    assert_eq!(log.count("once"), 1);
}

#[tokio::test]
async fn runnable_that_returns_is_complete_and_the_lease_is_kept() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let said = log.clone();
    let done = Runnable::new("done", move |_| {
        said.say("done");
        async {}
    });
    let manager = quick(&server).await.identity("a").leader("g", done);
    let manager = manager.build().unwrap();
    let group = manager.group("g").unwrap();
    let running = Running::start(manager);
    log.wait("done", 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(group.election().unwrap().is_leading());
    running.stop().await.unwrap();
    assert_eq!(log.count("done"), 1, "a term starts it once");
}
