//! Giving the terminal to the group and taking it back, so that ^C and prompts work as if the
//! command had been started directly.

use std::io::stdin;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

/// The environment variable that tells the child to wait for the terminal.
pub(crate) const FOREGROUND: &str = "TENURE_INTERNAL_FOREGROUND";

/// Whether standard input is a terminal.
pub(crate) fn is_there() -> bool {
    isatty(stdin())
}

/// Whether standard input is a terminal whose foreground group we are.
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

/// In the child: waits until the parent has handed the terminal over, so that the first read does
/// not stop it. Bounded: a parent that cannot hand it over leaves the child in the background.
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
