//! Measures how long the machine lets a process wait for the CPU.
//!
//! Guarantees within a margin of half a second hold only if runnable processes get the CPU in time. A test of such a
//! guarantee checks the stalls before it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock;

const NAP: Duration = Duration::from_millis(5);

/// A thread that sleeps and wakes, and records how late it wakes. Ends when dropped.
#[derive(Debug)]
pub struct Stalls {
    longest: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stalls {
    /// Starts to measure.
    pub fn watch() -> Self {
        let (longest, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (noted, ended) = (longest.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let before = clock::now();
                std::thread::sleep(NAP);
                let late = clock::now().since(before).saturating_sub(NAP);
                let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                noted.fetch_max(late, Ordering::Relaxed);
            }
        });
        Self {
            longest,
            over,
            thread: Some(thread),
        }
    }

    /// Returns the longest stall so far.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}
