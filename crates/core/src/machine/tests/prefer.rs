//! Duty 20: hand-overs to candidates of higher rank, and their head start.

use super::*;
use crate::preference::{Failback, Preference};

/// "baz" with priority 5, which hands over after 30 s.
fn ranked() -> Config {
    Config {
        preference: Some(Preference {
            rank: Rank {
                priority: 5,
                in_zone: false,
            },
            failback: Failback::Auto,
            failback_after: Duration::from_secs(30),
        }),
        ..config()
    }
}

/// Leads from 0.02 s, and renews so that its guard holds until 52 s.
const LEADS: &str = "
    0     start
    0.01  read1 absent
    0.02  ok2 5
";

fn play_ranked(config: Config, script: &str) -> String {
    Table::new(config).play(&format!("{LEADS}\n{script}")).log
}

/// Returns a script that shows these candidates every ten seconds while the term is renewed.
fn shown(candidates: &[&str]) -> String {
    let mut script = String::new();
    let (mut id, mut revision) = (3, 6);
    for (at, candidates) in candidates.iter().enumerate() {
        for part in [2, 4, 6, 8] {
            let time = 10 * at + part;
            script += &format!("{time} tick\n{time}.01 ok{id} {revision}\n");
            (id, revision) = (id + 1, revision + 1);
        }
        if !candidates.is_empty() {
            script += &format!("{}.9 candidates {candidates}\n", 10 * at + 9);
        }
    }
    script
}

/// Returns the time of the last line in which the term was stopped for another candidate, and that candidate.
fn handed_over(config: Config, script: &str) -> Option<(String, String)> {
    let table = Table::new(config).play(&format!("{LEADS}\n{script}"));
    let line = table.log.lines().find(|line| line.contains("STOP"))?;
    let to = table.commands.iter().find_map(|command| match command {
        Command::Stop {
            reason: crate::StopReason::PreferredHolder(to),
            ..
        } => Some(to.clone()),
        _ => None,
    });
    let time = line.split_whitespace().next().unwrap_or_default();
    Some((time.to_owned(), to?))
}

fn at(time: &str, to: &str) -> Option<(String, String)> {
    Some((time.to_owned(), to.to_owned()))
}

#[test]
fn duty_20_leader_hands_over_to_a_better_candidate_after_the_time() {
    let seen = ["bing=6"; 5];
    assert_eq!(handed_over(ranked(), &shown(&seen)), at("39.9", "bing"));
    let log = play_ranked(
        ranked(),
        &format!(
            "{}\n39.94 ok19 22\n39.95 worked\n39.96 read20 wrote19 v22\n",
            shown(&seen[..4])
        ),
    );
    assert!(log.contains("STOP preferred-holder"), "{log}");
    assert!(log.contains("release#21 over 22 /1 t0 to bing"), "{log}");
}

#[test]
fn duty_20_time_counts_from_the_beginning_of_the_term() {
    // Seen as a follower long before the term began.
    let mut script = "0 start\n0.01 read1 bing/15 v4 renew=7\n0.01 watching\n".to_owned();
    for time in [0.1, 10.0, 20.0, 30.0, 40.0] {
        script += &format!(
            "{time} watch bing/15 v{} renew={0}\n{time} candidates bing=6\n",
            5.0 + time * 10.0
        );
    }
    script += "41 watch /0 v1000 renew=8\n42 tick\n42.01 ok2 1001\n43 candidates bing=6\n";
    let table = Table::new(ranked()).play(&script);
    assert!(table.log.contains("LEAD token=1001"), "{}", table.log);
    assert!(!table.log.contains("STOP"), "{}", table.log);
}

#[test]
fn duty_20_only_a_ready_candidate_of_higher_rank_is_better() {
    for other in ["bing=5", "bing=4", "bing=6!", "bing=4z", "baz=9", "bing=-7"] {
        let seen = [other; 5];
        assert_eq!(handed_over(ranked(), &shown(&seen)), None, "{other}");
    }
    for other in ["bing=6", "bing=5z", "bing=2147483647"] {
        let seen = [other; 5];
        assert_eq!(
            handed_over(ranked(), &shown(&seen)),
            at("39.9", "bing"),
            "{other}"
        );
    }
}

#[test]
fn duty_20_interruption_restarts_the_time() {
    for interruption in ["bing=6!", "bing=5", "bong=1"] {
        let seen = [
            "bing=6",
            "bing=6",
            interruption,
            "bing=6",
            "bing=6",
            "bing=6",
        ];
        assert_eq!(handed_over(ranked(), &shown(&seen)), None, "{interruption}");
    }
    let seen = ["bing=6", "bing=6!", "bing=6", "bing=6", "bing=6", "bing=6"];
    assert_eq!(handed_over(ranked(), &shown(&seen)), at("59.9", "bing"));
}

#[test]
fn duty_20_unobserved_time_does_not_count() {
    let seen = ["bing=6", "", "", "bing=6"];
    assert_eq!(
        handed_over(ranked(), &shown(&seen)),
        at("39.9", "bing"),
        "30 s"
    );
    let seen = ["bing=6", "", "", "", "bing=6"];
    assert_eq!(handed_over(ranked(), &shown(&seen)), None, "40 s");
    let seen = ["bing=6", "", "", "", "bing=6", "bing=6", "bing=6", "bing=6"];
    assert_eq!(handed_over(ranked(), &shown(&seen)), at("79.9", "bing"));
}

#[test]
fn duty_20_best_candidate_that_was_ready_for_long_enough_is_chosen() {
    let seen = ["a=6 b=7 c=7 d=9!"; 4];
    assert_eq!(handed_over(ranked(), &shown(&seen)), at("39.9", "b"));
    let seen = ["a=6 b=7!", "a=6", "a=6 b=7", "a=6 b=7"];
    assert_eq!(
        handed_over(ranked(), &shown(&seen)),
        at("39.9", "a"),
        "b flaps"
    );
}

#[test]
fn duty_20_memory_for_candidates_is_limited() {
    let many: Vec<String> = (0..100).map(|n| format!("c{n:02}={}", 6 + n)).collect();
    let many = many.join(" ");
    let seen = [many.as_str(); 4];
    assert_eq!(handed_over(ranked(), &shown(&seen)), at("39.9", "c99"));
    let table = Table::new(ranked()).play(&format!("{LEADS}\n1 candidates {many}"));
    let text = format!("{:?}", table.election.better);
    assert!(text.contains("c92") && !text.contains("c91"), "{text}");
}

#[test]
fn duty_20_some_leaders_never_hand_over() {
    let seen = shown(&["bing=6"; 5]);
    let preference = ranked().preference.unwrap();
    for failback in [Failback::Never, Failback::Manual] {
        let preference = Some(Preference {
            failback,
            ..preference.clone()
        });
        let config = Config {
            preference,
            ..ranked()
        };
        assert_eq!(handed_over(config, &seen), None, "{failback:?}");
    }
    assert_eq!(handed_over(config(), &seen), None, "no ranks");
    let kept = Config {
        release_on_cancel: false,
        ..ranked()
    };
    assert_eq!(handed_over(kept, &seen), None, "nothing is released");
    let for_life = Config {
        for_life: true,
        ..ranked()
    };
    assert_eq!(handed_over(for_life, &seen), None, "for life");
}

#[test]
fn duty_20_coordinated_leader_does_not_hand_over() {
    let coordinated = Config {
        coordinated: true,
        ..ranked()
    };
    let mut script = "0 start\n0.01 read1 baz/15 v4 renew=7\n0.02 ok2 5\n".to_owned();
    script += &shown(&["bing=6"; 5]);
    let log = Table::new(coordinated).play(&script).log;
    assert!(log.contains("LEAD") && !log.contains("STOP"), "{log}");
}

#[test]
fn duty_20_leader_of_a_paused_election_does_not_hand_over() {
    let mut script = shown(&["bing=6", "bing=6", "bing=6", ""]);
    script += "39 watch wrote18 v30 paused\n39.9 candidates bing=6\n";
    assert_eq!(handed_over(ranked(), &script), None);
    script += "39.95 watch wrote18 v31\n39.96 candidates bing=6\n";
    assert_eq!(
        handed_over(ranked(), &script),
        at("39.96", "bing"),
        "resumed"
    );
}

#[test]
fn duty_20_release_names_only_a_candidate_that_is_still_ready() {
    let script = shown(&["bing=6"; 4]);
    for (last, named) in [("bing=6", true), ("bing=6!", false), ("bong=9", false)] {
        let end = format!(
            "39.94 ok19 22\n39.95 candidates {last}\n39.96 worked\n39.97 read20 wrote19 v22\n"
        );
        let log = play_ranked(ranked(), &format!("{script}{end}"));
        assert!(log.contains("release#21 over 22"), "{log}");
        assert_eq!(log.contains(" to bing"), named, "{last}: {log}");
    }
}

#[test]
fn duty_20_former_leader_lets_the_named_candidate_acquire_first() {
    let script = format!(
        "0.03 watching\n{}\n39.94 ok19 22\n39.95 worked\n39.96 read20 wrote19 v22\n39.97 ok21 23\n39.98 candidates\n40.5 tick\n41.96 tick\n41.98 tick",
        shown(&["bing=6"; 4])
    );
    let mut table = Table::new(ranked()).play(&format!("{LEADS}\n{script}"));
    assert!(table.log.contains("released"), "{}", table.log);
    let acquired = |log: &str| log.contains("acquire#22 over 23");
    let early: String = table
        .log
        .lines()
        .filter(|line| !line.starts_with("41.98"))
        .collect();
    assert!(!acquired(&early), "{}", table.log);
    assert!(acquired(&table.log), "{}", table.log);
    table.line("42 ok22 24");
    assert!(
        table.log.contains("LEAD token=24 t1"),
        "its own order ends no later term: {}",
        table.log
    );
}

#[test]
fn duty_20_former_leader_that_could_not_release_waits_for_the_lease() {
    // The work ends after the guard of the last renewal, which was sent at 38.01 s. The lease and three retry periods take
    // 21 s.
    let script = format!(
        "0.03 watching\n{}\n39.94 ok19 22\n52 worked\n59 tick\n59.02 tick",
        shown(&["bing=6"; 4])
    );
    let log = play_ranked(ranked(), &script);
    let line = |time: &str| {
        let found = log.lines().find(|line| line.starts_with(time));
        found.unwrap_or_else(|| panic!("no line {time:?}: {log}"))
    };
    assert!(line("39.9 ").contains("STOP preferred-holder"), "{log}");
    for early in ["52 ", "59 "] {
        assert!(!line(early).contains('#'), "{log}");
    }
    assert!(line("59.02 ").contains("acquire#20 over 22"), "{log}");
}

/// Returns when a follower of this rank acquires a lock that is released at one second, in milliseconds after that.
fn attempt_after(candidates: Option<&str>, seed: u64) -> u64 {
    let config = Config { seed, ..ranked() };
    let mut table =
        Table::new(config).play("0 start\n0.01 read1 bing/15 v4 renew=7\n0.01 watching");
    if let Some(candidates) = candidates {
        table.line(&format!("0.5 candidates {candidates}"));
    }
    table.line("1 watch /0 v5 renew=8");
    let due = table.election.deadline().expect("an attempt");
    let after = due.since(LocalTime::default() + Duration::from_secs(1));
    u64::try_from(after.as_micros()).expect("a short delay")
}

#[test]
fn duty_20_better_candidates_get_a_head_start() {
    for seed in 0..50 {
        let unranked = attempt_after(None, seed);
        let best = attempt_after(Some("bing=5 bong=6!"), seed);
        assert_eq!(best, unranked / 4, "{seed}");
        let (mut last, mut counts) = (best, Vec::new());
        for others in ["a=6", "a=6 b=6", "a=6 b=7 c=8", "a=6 b=7 c=8 d=9"] {
            let after = attempt_after(Some(others), seed);
            counts.push((after - best).div_ceil(15_000));
            assert!(after >= last);
            last = after;
        }
        assert_eq!(counts, [1, 2, 3, 3], "{seed}");
        assert!(best < 15_000, "a better candidate is always earlier");
    }
}
