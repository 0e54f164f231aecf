//! Holders that are proved dead (duty 19).

use super::{Config, Table, config};

/// Script: a follower observes a term of `bing` that has a mark and a description of its holder.
const HELD: &str = "
    0     start
    0.01  read1 bing/15 v4 renew=7 mark=bing/15@7 by=bing@7t0
    0.01  watching
";

/// Plays `held` and then `lines`. Returns the commands that the lines cause.
fn after(held: &str, config: Config, lines: &str) -> String {
    let table = Table::new(config).play(held);
    let before = table.log.len();
    let table = table.play(lines);
    let shown = table.log[before..].lines();
    let shown = shown.map(|line| line.split_whitespace().next_back().unwrap_or_default());
    shown.collect::<Vec<_>>().join(" ")
}

fn writes(held: &str, config: Config, lines: &str) -> bool {
    let table = Table::new(config).play(held).play(lines);
    table.log.contains("acquire#")
}

#[test]
fn duty_19_dead_holder_is_replaced_without_waiting_for_its_lease() {
    let table = Table::new(config()).play(HELD).play("1 dead v4");
    assert!(table.log.contains("acquire#2"), "{}", table.log);
    assert_eq!(after(HELD, config(), "1 tick"), "-");
}

#[test]
fn duty_19_winner_over_a_dead_holder_leads_the_next_term() {
    let table = Table::new(config())
        .play(HELD)
        .play("1 dead v4\n1.01 ok2 5");
    assert!(table.log.contains("LEAD token=5 t1"), "{}", table.log);
}

#[test]
fn duty_19_proof_counts_for_the_version_that_it_names() {
    assert!(!writes(HELD, config(), "1 dead v3\n1 dead v5\n2 tick"));
    let renewed = "1 dead v3\n2 watch bing/15 v5 renew=8 mark=bing/15@8 by=bing@7t0";
    assert!(
        !writes(HELD, config(), renewed),
        "proof of an earlier version"
    );
    // The holder's last renewal reached the server after its death.
    let late = "1 watch bing/15 v5 renew=8 mark=bing/15@8 by=bing@7t0\n1 dead v5\n2 tick";
    assert!(
        !writes(HELD, config(), late),
        "the description is that of another term"
    );
    let open = "
        0     start
        0.01  read1 bing/15 v4 renew=7 mark=bing/15@7 by=bing@7t0 paused
        0.01  watching
        1     dead v4
        2     watch bing/15 v5 renew=7 mark=bing/15@7 by=bing@7t0
    ";
    assert!(
        !writes(open, config(), "3 tick"),
        "another version needs another proof"
    );
    assert!(writes(open, config(), "3 dead v5\n4 tick"));
}

#[test]
fn duty_19_holder_that_is_not_described_is_never_proved_dead() {
    for held in [
        "bing/15 v4 renew=7 mark=bing/15@7",
        "bing/15 v4 renew=7 by=bing@7t0",
        "bing/15 v4 renew=7 mark=bing/15@6 by=bing@7t0",
        "bing/15 v4 renew=7 mark=bing/15@7 by=bing@6t0",
        "bing/15 v4 renew=7 mark=bing/15@7 by=bing@7t1",
        "bing/15 v4 renew=7 mark=bing/15@7 by=bong@7t0",
        "bing/15 v4 renew=7 mark=bing/15@7 by=bing@7t0 garbage",
    ] {
        let script = format!("0 start\n0.01 read1 {held}\n0.01 watching");
        assert!(!writes(&script, config(), "1 dead v4\n2 tick"), "{held}");
    }
}

#[test]
fn duty_19_proof_changes_no_other_rule() {
    let paused = HELD.replace("by=bing@7t0", "by=bing@7t0 paused");
    assert!(!writes(&paused, config(), "1 dead v4\n2 tick"), "paused");
    let for_life = Config {
        for_life: true,
        ..config()
    };
    assert!(!writes(HELD, for_life, "1 dead v4\n2 tick"), "for life");
    let coordinated = Config {
        coordinated: true,
        ..config()
    };
    assert!(
        !writes(HELD, coordinated, "1 dead v4\n2 tick"),
        "coordinated"
    );
    let stepped_down = "0.5 stepdown\n1 dead v4\n2 tick";
    assert!(!writes(HELD, config(), stepped_down), "does not campaign");
    assert!(
        !writes(HELD, config(), "1 watch absent v5\n1.1 dead v4\n2 tick"),
        "deleted"
    );
}

#[test]
fn duty_19_proof_never_ends_the_own_term() {
    let log = Table::new(config())
        .play("0 start\n0.01 read1 absent\n0.02 ok2 5\n1 dead v5\n1.5 tick")
        .log;
    assert!(log.contains("LEAD token=5"), "{log}");
    assert!(!log.contains("STOP"), "{log}");
}
