//! How an attempt to provision ended, which decides whether it is tried again and with what.

use tenure_csi::{CallError, Code};

/// What the driver may be doing after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing: the attempt is over, and so is the claim if it was deleted.
    Finished,
    /// Perhaps still making the volume: the claim is tried again even if it is deleted meanwhile, because
    /// only the answer tells whether there is something to delete.
    InBackground,
    /// What it did before: this attempt did not get as far as asking.
    NoChange,
    /// Nothing, and it will not for this node: the scheduler should choose another.
    Reschedule,
}

/// An attempt that made no volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// What the driver may be doing.
    pub(crate) state: State,
    /// For people.
    pub(crate) message: String,
    /// What to do about it besides trying again.
    pub(crate) kind: FailureKind,
    /// The driver was not asked, and an earlier attempt may still be at work: what is known of that stays.
    pub(crate) undecided: bool,
}

/// Special kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// None of the below.
    Plain,
    /// The claim is not ours to provision: no event, no retry.
    Ignored,
    /// The driver will say no for as long as the claim stays as it is: retried slowly.
    Infeasible,
}

impl Failure {
    pub(crate) fn new(state: State, message: impl Into<String>) -> Self {
        Self {
            state,
            message: message.into(),
            kind: FailureKind::Plain,
            undecided: false,
        }
    }

    pub(crate) fn finished(message: impl Into<String>) -> Self {
        Self::new(State::Finished, message)
    }

    pub(crate) fn no_change(message: impl Into<String>) -> Self {
        Self::new(State::NoChange, message)
    }

    pub(crate) fn in_background(message: impl Into<String>) -> Self {
        Self::new(State::InBackground, message)
    }

    pub(crate) fn ignored(message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Ignored,
            ..Self::finished(message)
        }
    }

    /// What a failed CreateVolume means. `can_move`: topology counts and a node was selected.
    pub(crate) fn of_call(error: &CallError, can_move: bool) -> Self {
        let kind = match error.code {
            Code::InvalidArgument => FailureKind::Infeasible,
            _ => FailureKind::Plain,
        };
        Self {
            state: state_of(error.code, can_move),
            message: error.to_string(),
            kind,
            undecided: false,
        }
    }

    /// The same, of an attempt that did not get as far as asking. `begun`: an earlier one may have.
    pub(crate) fn before_asking(self, begun: bool) -> Self {
        Self {
            undecided: begun,
            ..self
        }
    }

    /// Whether it is certain now that the driver makes nothing.
    pub(crate) fn settles(&self) -> bool {
        matches!(self.state, State::Finished | State::Reschedule) && !self.undecided
    }
}

/// The error table.
fn state_of(code: Code, can_move: bool) -> State {
    match code {
        Code::ResourceExhausted if can_move => State::Reschedule,
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted => {
            State::InBackground
        }
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => State::Finished,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_settles_what_was_begun() {
        for (failure, settles) in [
            (Failure::finished("x"), true),
            (Failure::new(State::Reschedule, "x"), true),
            (Failure::no_change("x"), false),
            (Failure::in_background("x"), false),
        ] {
            assert_eq!(failure.settles(), settles, "{failure:?}");
            assert_eq!(failure.clone().before_asking(false).settles(), settles);
            assert!(!failure.before_asking(true).settles());
        }
    }

    #[test]
    fn the_error_table() {
        let all = (1..=16).map(Code::from_i32);
        for code in all {
            for can_move in [true, false] {
                let expected = match code {
                    Code::ResourceExhausted if can_move => State::Reschedule,
                    Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Unavailable
                    | Code::Aborted => State::InBackground,
                    _ => State::Finished,
                };
                let failure = Failure::of_call(&CallError::new(code, "x"), can_move);
                assert_eq!(failure.state, expected, "{code:?} {can_move}");
                let infeasible = failure.kind == FailureKind::Infeasible;
                assert_eq!(infeasible, code == Code::InvalidArgument);
            }
        }
    }
}
