//! What happens to work that did not end in time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::FencingToken;

/// How long the message of an abort may take.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// What to do with work that has not ended when another process may lead. Nothing is released then.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Overrun {
    /// Abort this process. The only choice that keeps the promise for work in this process. A
    /// [`Call`](Self::Call) that panics does the same.
    #[default]
    Abort,
    /// Log an error and go on; for work whose effects are all fenced by the token.
    Log,
    /// Call this, from the deadline thread; for work in a child process, which can be killed.
    Call(Arc<dyn Fn(&Overran) + Send + Sync>),
}

impl Overrun {
    /// Calls `act` from the deadline thread, outside the async runtime; it must not block.
    pub fn call(act: impl Fn(&Overran) + Send + Sync + 'static) -> Self {
        Self::Call(Arc::new(act))
    }

    /// Aborts this process like [`Abort`](Self::Abort), with a message that names the work. `message` must not block.
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
    /// The lock, `lease kube-system/x`.
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

/// Aborts. Another thread writes the message: whatever blocks the work may block standard error too, and
/// nothing may delay the end.
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
