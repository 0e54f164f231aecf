//! What can go wrong between us and a driver.

use std::path::PathBuf;
use std::time::Duration;

pub use tonic::Code;

/// A call that the driver refused, or that was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", go_name(*code))]
pub struct CallError {
    /// The gRPC status.
    pub code: Code,
    /// What the driver said.
    pub message: String,
}

impl CallError {
    /// An error with this code and text.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The code as Go prints it, which is how metrics label it.
    #[must_use]
    pub fn code_name(&self) -> &'static str {
        go_name(self.code)
    }

    pub(crate) fn from_status(status: &tonic::Status) -> Self {
        Self::new(status.code(), status.message())
    }
}

pub(crate) fn go_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// There is no connection to the driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Only unix sockets are spoken to: what else listens there cannot be told when it restarts.
    #[error("csi address {0:?} is no unix socket: give a path or unix:///path")]
    NotUnix(String),
    /// Nobody answered in time.
    #[error("csi driver at {}: no connection within {limit:?}: {last}", socket.display())]
    TimedOut {
        /// Where we tried.
        socket: PathBuf,
        /// For how long.
        limit: Duration,
        /// Why the last try failed.
        last: String,
    },
}

/// A driver that is connected but cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A call of the start failed; none of them is repeated.
    #[error("csi driver: {method}: {source}")]
    Call {
        /// Which.
        method: &'static str,
        /// How.
        source: CallError,
    },
    /// A driver without a name cannot be found by any claim.
    #[error("csi driver: GetPluginInfo gave no name")]
    NoName,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_read_as_in_go() {
        let error = CallError::new(Code::Cancelled, "stop");
        assert_eq!(error.to_string(), "Canceled: stop");
        assert_eq!(error.code_name(), "Canceled");
        let status = tonic::Status::resource_exhausted("full");
        let error = CallError::from_status(&status);
        assert_eq!(error.to_string(), "ResourceExhausted: full");
    }
}
