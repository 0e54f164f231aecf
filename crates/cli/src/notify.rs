//! Reports to the service manager that started this process, with the protocol of sd_notify(3).
//!
//! - Nothing is reported before [`ready`], so that other commands of a unit, such as `tenure server status`, stay silent.
//! - A report never delays an election: only [`ready`] waits, for at most a second.
//! - Text from the cluster cannot add an assignment to a report, because its line breaks are escaped.
//! - Programs that Tenure starts do not get the variables of the protocol; see [`Unnotified`].

use std::ffi::OsStr;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with, sockopt,
};
use tenure::clock::{Clock as _, SystemClock};
use tenure::deadline::Deadline;
use tenure_lock::in_words;
use tokio::sync::oneshot;

use crate::output::escaped;

const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// Time limit of the first report, which a service manager waits for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Maximum length of a status in bytes.
const LONGEST_STATUS: usize = 1_024;

/// The service manager, set when this process reports that it is ready. The inner value is `None` without a service
/// manager.
static MANAGER: OnceLock<Option<Manager>> = OnceLock::new();

/// Reports that this process campaigns or serves, and starts to feed the watchdog of the service manager.
pub(crate) fn ready(status: &str) {
    MANAGER.get_or_init(|| {
        let manager = Manager::open(&std::env::var_os(SOCKET)?);
        let manager = manager.inspect_err(|why| warn(why)).ok()?;
        let text = format!("READY=1\n{}", status_line(status));
        manager.send(&text, SendFlags::empty());
        if let (Some(interval), Ok(runtime)) = (interval(), tokio::runtime::Handle::try_current()) {
            let send = || report("WATCHDOG=1");
            runtime.spawn(feed(interval, deadline_thread_responds, send));
        }
        Some(manager)
    });
}

/// Reports the current state as a line for people.
pub(crate) fn status(text: &str) {
    report(&status_line(text));
}

/// Reports that this process is ending.
pub(crate) fn stopping() {
    if let Some(Some(manager)) = MANAGER.get()
        && !manager.stopping.swap(true, Ordering::Relaxed)
    {
        manager.send("STOPPING=1", SendFlags::DONTWAIT);
    }
}

fn report(text: &str) {
    if let Some(Some(manager)) = MANAGER.get() {
        manager.send(text, SendFlags::DONTWAIT);
    }
}

/// Returns the assignment of a status, on one line and not too long.
fn status_line(text: &str) -> String {
    let mut line = format!("STATUS={}", escaped(text));
    line.truncate(line.floor_char_boundary(LONGEST_STATUS));
    line
}

/// A command without the variables of the service manager.
///
/// The manager accepts reports of the main process of a unit. If it accepts those of all processes
/// (`NotifyAccess=all`), a child that reports its own start or end would speak for this process.
pub(crate) trait Unnotified {
    /// Removes the variables from the environment of the command.
    fn unnotified(&mut self) -> &mut Self;
}

impl Unnotified for std::process::Command {
    fn unnotified(&mut self) -> &mut Self {
        for variable in [SOCKET, WATCHDOG_USEC, WATCHDOG_PID] {
            self.env_remove(variable);
        }
        self
    }
}

impl Unnotified for tokio::process::Command {
    fn unnotified(&mut self) -> &mut Self {
        self.as_std_mut().unnotified();
        self
    }
}

/// The socket of a service manager.
struct Manager {
    socket: OwnedFd,
    address: SocketAddrUnix,
    stopping: AtomicBool,
    /// Whether a failed report was logged.
    warned: AtomicBool,
}

impl Manager {
    /// The error is for the user.
    fn open(address: &OsStr) -> Result<Self, String> {
        let open = || -> rustix::io::Result<Option<Self>> {
            let address = match address.as_bytes() {
                [b'/', ..] => SocketAddrUnix::new(Path::new(address))?,
                [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
                _ => return Ok(None),
            };
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
            Ok(Some(Self {
                socket,
                address,
                stopping: AtomicBool::new(false),
                warned: AtomicBool::new(false),
            }))
        };
        let shown = || escaped(&address.to_string_lossy());
        match open() {
            Ok(Some(manager)) => Ok(manager),
            Ok(None) => Err(format!(
                "{SOCKET}={} is neither an absolute path nor an abstract address such as @name",
                shown()
            )),
            Err(error) => Err(format!("{SOCKET}={}: {}", shown(), in_words(&error))),
        }
    }

    /// Sends one datagram. A failure does not affect the election, so it is only logged.
    fn send(&self, text: &str, flags: SendFlags) {
        let flags = flags | SendFlags::NOSIGNAL;
        let sent = retry_on_intr(|| sendto(&self.socket, text.as_bytes(), flags, &self.address));
        if let Err(error) = sent
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            warn(&in_words(&error));
        }
    }
}

fn warn(why: &str) {
    tracing::warn!(why, "cannot report to the service manager");
}

/// Returns how often the watchdog of the service manager is fed: twice in its time limit. `None` if it does not watch
/// this process.
fn interval() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok();
    let (limit, pid) = (variable(WATCHDOG_USEC), variable(WATCHDOG_PID));
    interval_of(limit.as_deref(), pid.as_deref(), std::process::id())
}

fn interval_of(limit: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let limit = limit?.parse().ok().filter(|limit| *limit > 0)?;
    Some((Duration::from_micros(limit) / 2).max(Duration::from_millis(1)))
}

/// Calls `send` once per interval, as long as this task is polled and `responds` completes with true.
async fn feed<R>(interval: Duration, responds: impl Fn() -> R, send: impl Fn())
where
    R: Future<Output = bool>,
{
    loop {
        if responds().await {
            send();
        }
        tokio::time::sleep(interval).await;
    }
}

/// Completes with true when the thread that ends terms has made a call that is due now.
async fn deadline_thread_responds() -> bool {
    let (call, called) = oneshot::channel();
    let due = Deadline::new(SystemClock.now().local, move || {
        let _ = call.send(());
    });
    let responded = called.await.is_ok();
    drop(due);
    responded
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::*;

    #[test]
    fn status_is_one_bounded_line() {
        let hostile = "waiting: a\nMAINPID=1\r\u{2028} holds e";
        let line = status_line(hostile);
        assert_eq!(
            line, "STATUS=waiting: a\\nMAINPID=1\\r\u{2028} holds e",
            "no line break is left"
        );
        let long = status_line(&"ä".repeat(4_096));
        assert_eq!(long.len(), LONGEST_STATUS - 1, "cut between characters");
    }

    #[test]
    fn addresses_are_paths_or_abstract() {
        assert!(Manager::open(OsStr::new("/run/systemd/notify")).is_ok());
        assert!(Manager::open(OsStr::new("@tenure")).is_ok());
        for wrong in ["", "notify", "vsock:2:1234"] {
            let why = Manager::open(OsStr::new(wrong)).err().unwrap();
            assert!(why.contains("neither an absolute path"), "{why}");
        }
        let long = format!("/{}", "x".repeat(200));
        assert!(Manager::open(OsStr::new(&long)).is_err());
    }

    #[test]
    fn watchdog_of_another_process_is_not_fed() {
        let half = Some(Duration::from_secs(1));
        assert_eq!(interval_of(Some("2000000"), None, 7), half);
        assert_eq!(interval_of(Some("2000000"), Some("7"), 7), half);
        assert_eq!(interval_of(Some("2000000"), Some("8"), 7), None);
        assert_eq!(interval_of(Some("2000000"), Some(""), 7), None);
        for none in [None, Some("0"), Some(""), Some("-1"), Some("soon")] {
            assert_eq!(interval_of(none, None, 7), None, "{none:?}");
        }
        let least = Some(Duration::from_millis(1));
        assert_eq!(interval_of(Some("1"), None, 7), least);
    }

    #[tokio::test(start_paused = true)]
    async fn watchdog_starves_without_the_deadline_thread() {
        let (interval, minute) = (Duration::from_secs(10), Duration::from_secs(61));
        let fed = Cell::new(0);
        let send = || fed.set(fed.get() + 1);
        let _ = tokio::time::timeout(minute, feed(interval, || ready(true), send)).await;
        assert_eq!(fed.take(), 7, "at the start and once per interval");
        let _ = tokio::time::timeout(minute, feed(interval, || ready(false), send)).await;
        assert_eq!(fed.take(), 0, "the thread has dropped the call");
        let _ = tokio::time::timeout(minute, feed(interval, pending, send)).await;
        assert_eq!(fed.take(), 0, "the thread does not respond");
    }

    #[tokio::test]
    async fn deadline_thread_responds_while_it_lives() {
        assert!(deadline_thread_responds().await);
    }
}
