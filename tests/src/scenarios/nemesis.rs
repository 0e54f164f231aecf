//! Faults on real processes. `real_nemesis` runs them on the real kube-apiserver, `apiserver_nemesis` on the embedded
//! one.

use std::time::Duration;

use crate::Skip;
use crate::nemesis::campaign::{Campaign, say};
use crate::nemesis::clock_shim::ClockShim;
use crate::nemesis::fault::Fault;
use crate::nemesis::known;
use crate::nemesis::seed;
use crate::nemesis::server::Server;
use crate::nemesis::squad::Make;

use std::path::Path;

/// Long enough for every kind of fault, with some twice: five minutes for both servers together.
const TIME: Duration = Duration::from_secs(150);

/// tenure has one leader at a time under every fault. client-go does not, under the same faults. If it did, the test
/// would prove nothing.
pub fn campaign(server: Server) {
    let seed = seed::of_tests();
    say(&format!(
        "TENURE_SEED={seed} has this schedule of faults on {}",
        server.name()
    ));
    let clocks = ClockShim::IS_FOR_THIS_PLATFORM && Skip::unless(ClockShim::new()).is_some();
    let disk = server.has_own_disk();
    let campaign = Campaign::start(server, &[Make::Tenure, Make::ClientGo], seed).unwrap();
    let outcome = campaign.run(TIME).unwrap();
    say(&outcome.to_string());
    let missed = outcome.missed();
    assert!(missed.is_empty(), "{missed:?} never occurred\n{outcome}");
    for (fault, why) in &outcome.impossible {
        let excused = match fault {
            Fault::DiskFull => !disk,
            fault => fault.is_of_the_clocks() && !clocks,
        };
        assert!(excused, "no {fault:?}: {why}");
    }
    let tenure = outcome.of(Make::Tenure);
    assert_eq!(tenure.violations, Vec::<String>::new(), "seed {seed}");
    assert!(tenure.terms > 5, "{outcome}");
    let client_go = outcome.of(Make::ClientGo);
    let shown = client_go.overlap.max(client_go.stale_work);
    assert!(
        shown > Duration::from_millis(300),
        "client-go had two leaders for at most {shown:?}: the nemesis is too weak\n{outcome}"
    );
}

/// Long enough for every kind of fault to be part of a pair.
const PAIRS_TIME: Duration = Duration::from_secs(100);

/// tenure has one leader at a time under any two concurrent faults.
pub fn fault_pairs(server: Server) {
    let seed = seed::of_tests();
    say(&format!(
        "TENURE_SEED={seed} has these pairs of faults on {}",
        server.name()
    ));
    let campaign = Campaign::start(server, &[Make::Tenure], seed).unwrap();
    let outcome = campaign.in_pairs().run(PAIRS_TIME).unwrap();
    say(&outcome.to_string());
    let missed = outcome.missed();
    assert!(missed.is_empty(), "{missed:?} never occurred\n{outcome}");
    assert!(outcome.pairs.len() >= 7, "{outcome}");
    let tenure = outcome.of(Make::Tenure);
    assert_eq!(tenure.violations, Vec::<String>::new(), "seed {seed}");
    assert!(tenure.terms > 3, "{outcome}");
}

/// Two candidates of tenure and two of client-go on one lock: no two guards of tenure overlap, regardless of client-go.
pub fn mixed_fleet(server: Server) {
    let seed = seed::of_tests();
    say(&format!(
        "TENURE_SEED={seed} has this schedule of faults for a mixed fleet on {}",
        server.name()
    ));
    let campaign = Campaign::start_mixed(server, seed).unwrap();
    let outcome = campaign.run(TIME).unwrap();
    say(&outcome.to_string());
    let missed = outcome.missed();
    assert!(missed.is_empty(), "{missed:?} never occurred\n{outcome}");
    let tenure = outcome.of(Make::Tenure);
    assert_eq!(tenure.violations, Vec::<String>::new(), "seed {seed}");
    assert!(tenure.terms > 2, "{outcome}");
}

/// The overlaps that client-go is known for, and that tenure does not have.
pub fn known_overlaps(kubeconfig: &Path) {
    let table = known::measure(kubeconfig).unwrap();
    say(&table.to_string());
    for (known, client_go, tenure) in &table.0 {
        assert_eq!(*tenure, Duration::ZERO, "{known:?}\n{table}");
        assert!(
            *client_go > Duration::from_secs(1),
            "{known:?}: client-go had two leaders for {client_go:?}: the nemesis is too weak\n{table}"
        );
    }
}
