//! Waiting for an API server, or for others: how long, and a word to people who wait along.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

/// What takes longer is worth a word.
pub(crate) const WORTH_A_WORD: Duration = Duration::from_secs(1);

/// What whoever is waited for answers; says on standard error who that is if it takes long.
pub(crate) async fn on<T>(whom: impl Display, answer: impl Future<Output = T>) -> T {
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = tokio::time::sleep(WORTH_A_WORD) => {}
    }
    eprintln!("tenure: waiting for {whom}");
    answer.await
}

/// The same for work that blocks its thread.
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

/// A time that several steps share, from its beginning on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    whole: Option<Duration>,
    began: Instant,
}

impl Limit {
    /// Begins now; without a duration there is no end to it.
    pub(crate) fn begin(whole: Option<Duration>) -> Self {
        let began = Instant::now();
        Self { whole, began }
    }

    /// All of it; `None` without an end.
    pub(crate) fn whole(self) -> Option<Duration> {
        self.whole
    }

    /// What is left of it; `None` without an end.
    pub(crate) fn left(self) -> Option<Duration> {
        let spent = self.began.elapsed();
        self.whole.map(|whole| whole.saturating_sub(spent))
    }

    /// What the work brings, unless the time is over first.
    pub(crate) async fn of<T>(self, work: impl Future<Output = T>) -> Option<T> {
        match self.left() {
            Some(left) => tokio::time::timeout(left, work).await.ok(),
            None => Some(work.await),
        }
    }
}
