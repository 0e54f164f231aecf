//! The result of an attempt to provision, which decides whether and how it is retried.

use tenure_csi::{CallError, Code};

/// State of the driver after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The driver creates nothing. If the claim was deleted, it needs no further work.
    Finished,
    /// The driver may still be creating the volume. The claim is retried even after its deletion, because only the
    /// driver's response shows whether a volume has to be deleted.
    InBackground,
    /// The state is the same as before, because this attempt ended before the call.
    NoChange,
    /// The driver creates nothing, and cannot create the volume for this node. The scheduler must choose another node.
    Reschedule,
}

/// An attempt that created no volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// State of the driver after this attempt.
    pub(crate) state: State,
    /// Message for Events and logs.
    pub(crate) message: String,
    /// The handling other than a retry.
    pub(crate) kind: FailureKind,
    /// The driver was not called, and an earlier attempt may still run. Its recorded state stays.
    pub(crate) undecided: bool,
}

/// Special kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// An ordinary failure.
    Plain,
    /// Another provisioner handles the claim: no Event, no retry.
    Ignored,
    /// The driver rejects the claim until the claim changes: retried slowly.
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

    /// Classifies a failed CreateVolume. `can_move` says that topology is enabled and a node was selected.
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

    /// Marks a failure before the call to the driver. `begun` says that an earlier attempt may have called it.
    pub(crate) fn before_asking(self, begun: bool) -> Self {
        Self {
            undecided: begun,
            ..self
        }
    }

    /// Returns whether the driver certainly creates nothing.
    pub(crate) fn settles(&self) -> bool {
        matches!(self.state, State::Finished | State::Reschedule) && !self.undecided
    }
}

/// Maps a gRPC code to the state of the driver.
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
    fn only_a_response_of_the_driver_settles_a_call() {
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
    fn grpc_codes_map_to_the_states_of_the_table() {
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
