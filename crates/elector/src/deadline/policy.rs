//! The policy for work that did not end in time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::FencingToken;

/// Time limit for writing the message of an abort.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Policy for work that has not ended when another process may lead. The lock is not released in that case.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Overrun {
    /// Abort this process. This is the only policy that protects against two leaders if the work runs in this process.
    /// A [`Call`](Self::Call) that panics aborts too.
    #[default]
    Abort,
    /// Log an error and continue. Use it if all effects of the work are fenced by the token.
    Log,
    /// Call this function from the deadline thread. Use it for work in a child process, which can be killed.
    Call(Arc<dyn Fn(&Overran) + Send + Sync>),
}

impl Overrun {
    /// Returns a policy that calls `act` from the deadline thread, outside the async runtime. `act` must not block.
    pub fn call(act: impl Fn(&Overran) + Send + Sync + 'static) -> Self {
        Self::Call(Arc::new(act))
    }

    /// Returns a policy that aborts this process like [`Abort`](Self::Abort), with a message that names the work.
    /// `message` must not block.
    pub fn abort_with(message: impl Fn(&Overran) -> String + Send + Sync + 'static) -> Self {
        Self::call(move |overran| abort(&message(overran)))
    }
}

impl fmt::Debug for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Abort => "Abort",
            Self::Log => "Log",
            Self::Call(_) => "Call",
        })
    }
}

/// The term whose work did not end in time.
#[derive(Clone, Debug)]
pub struct Overran {
    /// The lock, for example `lease kube-system/x`.
    pub lock: Arc<str>,
    /// The token of the term.
    pub token: FencingToken,
}

impl Overran {
    pub(super) fn message(&self, handles: usize) -> String {
        format!(
            "the work of term {} of {} did not end in time; aborting, because another process may lead now \
             ({handles} handles of the term are still held)",
            self.token, self.lock
        )
    }
}

/// Aborts the process. Another thread writes the message, because standard error may be blocked like the work, and
/// nothing may delay the abort.
pub(super) fn abort(message: &str) -> ! {
    let text = format!("tenure: {message}\n");
    let (said, heard) = std::sync::mpsc::channel();
    let speaker = std::thread::Builder::new().spawn(move || {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        let _ = said.send(());
    });
    if speaker.is_ok() {
        let _ = heard.recv_timeout(LAST_WORDS);
    }
    std::process::abort();
}
