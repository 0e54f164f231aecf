//! Turns a panic inside a run into a finding of that run, with its seed and its trace. The simulator continues. The
//! assertions of the core detect some violations before the invariants do.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use tenure_lock::panic_text;

/// Runs a closure, and returns the message if it panicked.
pub(crate) fn caught<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    // The run ends after a panic. Its partially changed state is only reported.
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| panic_text(&*panic).to_owned())
}

/// Returns the panics on this thread since the last call, including panics inside tasks, which the runtime would hide.
pub(crate) fn panicked() -> Option<String> {
    thread_local! {
        static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let next = take_hook();
        set_hook(Box::new(move |panic| {
            LAST.set(Some(panic_text(panic.payload()).to_owned()));
            next(panic);
        }));
    });
    LAST.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_a_panic_is_returned() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| panic!("plain")), Err::<(), _>("plain".into()));
        let number = 3;
        let text = "S5: 3".to_owned();
        assert_eq!(caught(|| panic!("S5: {number}")), Err::<(), _>(text));
    }

    #[test]
    fn panic_in_a_task_is_reported() {
        assert_eq!(panicked(), None);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            tokio::spawn(async { panic!("in a task") });
            tokio::task::yield_now().await;
        });
        assert_eq!(panicked().as_deref(), Some("in a task"));
        assert_eq!(panicked(), None);
    }
}
