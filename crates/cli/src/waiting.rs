//! Waiting with a time limit, and a message to the user after a while.

use std::fmt::Display;
use std::future::Future;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Time after which the command prints what it waits for.
pub(crate) const WORTH_A_WORD: Duration = Duration::from_secs(1);

/// Awaits a future. Prints on standard error what it waits for if that takes a long time.
pub(crate) async fn on<T>(whom: impl Display, answer: impl Future<Output = T>) -> T {
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = tokio::time::sleep(WORTH_A_WORD) => {}
    }
    // The reader of standard error may have ended, which is not a reason to stop.
    let _ = writeln!(std::io::stderr(), "tenure: waiting for {whom}");
    answer.await
}

/// Like [`on`], for blocking work.
pub(crate) async fn on_blocking<T: Send + 'static>(
    whom: impl Display,
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Handle::current();
    let work = tokio::task::spawn_blocking(move || {
        let _entered = runtime.enter();
        work()
    });
    Ok(on(whom, work).await?)
}

/// A time limit that several steps share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    whole: Option<Duration>,
    began: Instant,
}

impl Limit {
    /// Starts the time limit now; `None` means no limit.
    pub(crate) fn begin(whole: Option<Duration>) -> Self {
        let began = Instant::now();
        Self { whole, began }
    }

    /// Returns the whole limit; `None` without a limit.
    pub(crate) fn whole(self) -> Option<Duration> {
        self.whole
    }

    /// Returns the remaining time; `None` without a limit.
    pub(crate) fn left(self) -> Option<Duration> {
        let spent = self.began.elapsed();
        self.whole.map(|whole| whole.saturating_sub(spent))
    }

    /// Awaits the work. Returns `None` if the time is over first.
    pub(crate) async fn of<T>(self, work: impl Future<Output = T>) -> Option<T> {
        match self.left() {
            Some(left) => tokio::time::timeout(left, work).await.ok(),
            None => Some(work.await),
        }
    }
}
