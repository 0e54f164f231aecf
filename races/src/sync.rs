//! Loom's versions of the primitives in `src/sync.rs` of the library.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};

use self::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a sleep with a limit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeouts {
    /// Only by a notification. A lost wake-up is therefore a deadlock.
    Never,
    /// Only by its limit, while the other threads run. Code that depends on a notification does not continue earlier.
    Always,
}

// Loom runs all threads of a model on one thread of the test.
thread_local! {
    static TIMEOUTS: Cell<Timeouts> = const { Cell::new(Timeouts::Never) };
    static SLEEPS: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn reset(timeouts: Timeouts) {
    TIMEOUTS.set(timeouts);
    SLEEPS.set(0);
}

/// The number of sleeps with a limit that have begun in this run.
pub(crate) fn sleeps() -> u32 {
    SLEEPS.get()
}

/// Loom's condition variables ignore the limit of a wait.
#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn wait<T>(&self, guard: MutexGuard<'_, T>) {
        drop(self.0.wait(guard));
    }

    pub(crate) fn wait_timeout<T>(&self, guard: MutexGuard<'_, T>, limit: Duration) {
        if limit.is_zero() {
            return;
        }
        SLEEPS.set(SLEEPS.get() + 1);
        match TIMEOUTS.get() {
            Timeouts::Never => self.wait(guard),
            Timeouts::Always => {
                drop(guard);
                crate::clock::advance(limit);
                loom::thread::yield_now();
            }
        }
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }
}

/// Wakes a thread that waits for a future.
#[derive(Default)]
struct Signal {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        *lock(&self.woken) = true;
        self.changed.notify_one();
    }
}

/// Waits for a future. Loom's function of this name aborts the process if it is part of a deadlock.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let signal = Arc::new(Signal::default());
    let waker = Waker::from(signal.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let mut woken = lock(&signal.woken);
        if !*woken {
            signal.changed.wait(woken);
            woken = lock(&signal.woken);
        }
        *woken = false;
    }
}

/// Like the type in std: one of several calls of `set` stores its value, and the others return after that.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    setting: Mutex<()>,
    is_set: AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self {
            setting: Mutex::new(()),
            is_set: AtomicBool::new(false),
            value: std::sync::OnceLock::new(),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        let is_set = self.is_set.load(Ordering::Acquire);
        self.value.get().filter(|_| is_set)
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let _setting = lock(&self.setting);
        self.value.set(value)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }
}

/// Tokio's type, whose internals loom does not check: each call happens as a whole.
#[derive(Debug)]
pub(crate) struct Notify {
    calls: AtomicUsize,
    notify: tokio::sync::Notify,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self {
            calls: AtomicUsize::new(0),
            notify: tokio::sync::Notify::new(),
        }
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        self.calls.fetch_add(1, Ordering::AcqRel);
        Notified {
            notify: self,
            inner: Box::pin(self.notify.notified()),
        }
    }

    pub(crate) fn notify_waiters(&self) {
        self.calls.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_waiters();
    }
}

/// The future of a [`Notify`].
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    inner: Pin<Box<tokio::sync::futures::Notified<'a>>>,
}

impl Notified<'_> {
    pub(crate) fn enable(mut self: Pin<&mut Self>) -> bool {
        self.notify.calls.fetch_add(1, Ordering::AcqRel);
        self.inner.as_mut().enable()
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.notify.calls.fetch_add(1, Ordering::AcqRel);
        self.inner.as_mut().poll(context)
    }
}
