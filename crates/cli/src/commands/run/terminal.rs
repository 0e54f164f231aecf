//! Passes the terminal to the group and takes it back, so that ^C and prompts work as if the command had been started
//! directly.

use std::io::stdin;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

/// The environment variable that makes the child wait for the terminal.
pub(crate) const FOREGROUND: &str = "TENURE_INTERNAL_FOREGROUND";

/// Returns whether standard input is a terminal.
pub(crate) fn is_there() -> bool {
    isatty(stdin())
}

/// Returns whether standard input is a terminal whose foreground group is ours.
pub(crate) fn in_foreground() -> bool {
    is_there() && tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

/// Makes the group the terminal's foreground group.
pub(crate) fn give_to(group: Pid) {
    let _ = tcsetpgrp(stdin(), group);
}

/// Takes the terminal back. The kernel stops a background process that does this unless it blocks
/// SIGTTOU.
pub(crate) fn take_back() {
    let mut output = SigSet::empty();
    output.add(Signal::SIGTTOU);
    let blocked = output.thread_block().is_ok();
    let _ = tcsetpgrp(stdin(), getpgrp());
    if blocked {
        let _ = output.thread_unblock();
    }
}

/// In the child: waits until the parent has passed the terminal, so that the first read does not stop the child. The
/// wait is limited: if the parent cannot pass the terminal, the child stays in the background.
pub(crate) fn await_foreground() {
    if std::env::var_os(FOREGROUND).is_none() {
        return;
    }
    for _ in 0..200 {
        if tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
