//! All problems of a configuration are reported together.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::TokioClock;
use tenure::{Elector, MemoryLock};

use crate::wire::secs;

#[test]
fn one_error_lists_every_problem_with_its_values() {
    let error = Elector::builder(Arc::new(MemoryLock::new("x")))
        .identity("")
        .lease_duration(Duration::from_millis(1_900))
        .renew_deadline(secs(2))
        .retry_period(secs(2))
        .label("a", "b")
        .build()
        .unwrap_err();
    assert_eq!(error.problems.len(), 5, "{error}");
    let text = error.to_string();
    for part in [
        "the identity is empty",
        "lease duration 1.9s must be a positive number of whole seconds",
        "must be greater than renew deadline 2s",
        "renew deadline 2s must be greater than retry period 2s",
        "labels cannot be set",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn names_and_labels_that_kubernetes_refuses_are_listed_with_the_rest() {
    let config = kube::Config::new(http::Uri::from_static("http://localhost:1"));
    let error = Elector::lease(tenure::client(config).unwrap(), "Default", "my_lease")
        .identity("")
        .label("bad key!", "x")
        .label("app", "x y")
        .build()
        .unwrap_err();
    let text = error.to_string();
    for part in [
        "the identity is empty",
        "namespace \"Default\" must be lower case",
        "name \"my_lease\" must be lower case",
        "label key \"bad key!\" must be",
        "value \"x y\" of label \"app\" must be",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn client_gos_timings_without_margin_need_the_compat_switch() {
    let builder = || {
        Elector::builder(Arc::new(MemoryLock::new("x")))
            .lease_duration(secs(15))
            .renew_deadline(secs(10))
            .retry_period(secs(5))
    };
    let error = builder().build().unwrap_err().to_string();
    assert!(
        error.contains("must fit into lease duration 15s"),
        "{error}"
    );
    assert!(builder().client_go_compat(true).build().is_ok());
}

#[test]
fn case_17_an_identity_is_generated_if_none_is_given_and_an_empty_one_is_rejected() {
    let builder = || Elector::builder(Arc::new(MemoryLock::new("x")));
    let handle = |elector: Elector| elector.handle().identity().to_owned();
    let (a, b) = (builder().build().unwrap(), builder().build().unwrap());
    assert_ne!(handle(a), handle(b));
    assert!(builder().identity("").build().is_err());
    assert!(builder().identity("a\nb").build().is_err());
}

#[tokio::test(start_paused = true)]
async fn clock_of_an_election_in_a_hub_is_a_problem() {
    let hub = tenure::Hub::with_clock(None, Arc::new(TokioClock::new()));
    let builder = || Elector::builder(Arc::new(MemoryLock::new("x")));
    let clock = Arc::new(TokioClock::new());
    for builder in [
        builder().hub(&hub).clock(clock.clone()),
        builder().clock(clock).hub(&hub),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains("Hub::with_clock"), "{error}");
    }
    assert!(builder().hub(&hub).build().is_ok());
}

#[test]
fn lock_delay_of_a_leader_for_life_is_a_problem() {
    let builder = || {
        let delay = Duration::from_secs(30);
        Elector::builder(Arc::new(MemoryLock::new("x"))).lock_delay(delay)
    };
    let error = builder().for_life(true).build().unwrap_err().to_string();
    assert!(error.contains("a lock delay has no effect"), "{error}");
    assert!(builder().build().is_ok());
}
