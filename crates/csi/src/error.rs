//! Errors of the connection to a driver.

use std::path::PathBuf;
use std::time::Duration;

pub use tonic::Code;

/// A call that the driver rejected or did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", go_name(*code))]
pub struct CallError {
    /// The gRPC status.
    pub code: Code,
    /// Message of the driver.
    pub message: String,
}

impl CallError {
    /// Creates an error with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Returns the code as Go prints it. Metrics use it as a label.
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

/// Error while connecting to a driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is not a unix socket. Other transports are not supported, because a restart of the driver would not
    /// be noticed.
    #[error("csi address {0:?} is not a unix socket; use a path or unix:///path")]
    NotUnix(String),
    /// No driver accepted a connection in time.
    #[error("csi driver at {}: no connection within {limit:?}: {last}", socket.display())]
    TimedOut {
        /// Path of the socket.
        socket: PathBuf,
        /// The time limit.
        limit: Duration,
        /// Cause of the last failure.
        last: String,
    },
}

/// A driver that is connected but cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A call during start-up failed. Such calls are not retried.
    #[error("csi driver: {method}: {source}")]
    Call {
        /// The method.
        method: &'static str,
        /// The error.
        source: CallError,
    },
    /// The driver has no name, so no class can refer to it.
    #[error("csi driver: GetPluginInfo returned no name")]
    NoName,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_formatted_as_in_go() {
        let error = CallError::new(Code::Cancelled, "stop");
        assert_eq!(error.to_string(), "Canceled: stop");
        assert_eq!(error.code_name(), "Canceled");
        let status = tonic::Status::resource_exhausted("full");
        let error = CallError::from_status(&status);
        assert_eq!(error.to_string(), "ResourceExhausted: full");
    }
}
