//! Waiting for an API server: how long, and a word to people who wait along.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

/// What takes longer is worth a word.
pub(crate) const WORTH_A_WORD: Duration = Duration::from_secs(1);

/// What the API server answers; says on standard error for whom it waits if that takes long.
pub(crate) async fn on<T>(server: impl Display, answer: impl Future<Output = T>) -> T {
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = tokio::time::sleep(WORTH_A_WORD) => {}
    }
    eprintln!("tenure: waiting for {server}");
    answer.await
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
