//! The steps of the proved system and the names of their conditions, as in `proof/transitions.txt`.

macro_rules! steps {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal [$($condition:literal)*],)*) => {
        /// A step of the proved system.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step { $($(#[doc = $doc])* $name,)* }

        impl Step {
            /// All steps, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the name of the step in the table.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Returns the names of its conditions.
            pub const fn conditions(self) -> &'static [&'static str] {
                match self { $(Self::$name => &[$($condition,)*],)* }
            }
        }
    };
}

steps! {
    /// Real time and every clock advance.
    PassTime = "pass_time" ["forward" "rates"],
    /// Another writer replaces the record and keeps the mark.
    ForeignWrite = "foreign_write" ["exists" "next"],
    /// Another writer changes labels.
    Touch = "touch" ["exists" "next"],
    /// Another writer creates the object.
    ForeignCreate = "foreign_create" ["absent" "next"],
    /// A person deletes the object.
    Delete = "delete" ["exists" "next"],
    /// A candidate observes the current mark, the current record, or both.
    Observe = "observe" ["exists"],
    /// A stale read hides the current mark and the current record.
    Forget = "forget" [],
    /// A candidate gets a proof that the holder of a version is dead.
    Prove = "prove" ["known" "true"],
    /// The guard of a term ends.
    Stop = "stop" [],
    /// The work of a term has ended.
    EndWork = "end_work" [],
    /// A process ends.
    Crash = "crash" [],
    /// A candidate sends a write that wins or renews a term.
    Send = "send" ["numbered" "alive" "may_replace" "may_create"],
    /// A candidate sends a release.
    SendRelease = "send_release" ["numbered" "alive" "may_release" "may_empty"],
    /// The watchdog of a dead process sends a release.
    CrashRelease = "crash_release" ["numbered" "dead" "may_empty"],
    /// The server applies a write.
    Apply = "apply" ["sent" "fits" "next"],
    /// A term begins.
    Begin = "begin" ["alive" "follows" "applied" "wins" "current_term" "guard_holds" "greater_token"],
    /// A guard is extended: it counts from the send time of a later write.
    Extend = "extend" ["alive" "leads" "applied" "current_term" "later"],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_conditions_are_those_of_the_proof() {
        let table = include_str!("../../../../proof/transitions.txt");
        let listed: Vec<(&str, Vec<&str>)> = table
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| {
                let (name, conditions) = line.split_once(':').unwrap();
                (name, conditions.split_whitespace().collect())
            })
            .collect();
        let checked: Vec<(&str, Vec<&str>)> = Step::ALL
            .iter()
            .map(|step| (step.name(), step.conditions().to_vec()))
            .collect();
        assert_eq!(listed, checked);
    }
}
