//! The signals that commands act on or forward.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::notify;

/// A request of another process or of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// End: TERM, INT, QUIT, or HUP.
    End(Signal),
    /// Forward this signal to the group.
    Forward(Signal),
    /// A child ended or stopped.
    Child,
}

/// All signal streams.
pub(crate) struct Signals {
    streams: Vec<(Stream, Asked)>,
    /// Signals that would ask us to end, but are currently forwarded.
    passed_on: Vec<Signal>,
}

impl Signals {
    /// Starts to listen. From now on, these signals do not end the process by default. Signals that the parent process
    /// had ignored stay ignored, as `nohup` and a shell's `&` expect.
    pub(crate) fn listen() -> io::Result<Self> {
        let asked = [
            Asked::End(Signal::TERM),
            Asked::End(Signal::INT),
            Asked::End(Signal::QUIT),
            Asked::End(Signal::HUP),
            Asked::Forward(Signal::USR1),
            Asked::Forward(Signal::USR2),
            Asked::Forward(Signal::WINCH),
            Asked::Forward(Signal::CONT),
            Asked::Child,
        ];
        let ignored = ignored();
        let number = |asked: &Asked| match asked {
            Asked::End(signal) | Asked::Forward(signal) => signal.as_raw(),
            Asked::Child => Signal::CHILD.as_raw(),
        };
        let streams = asked
            .into_iter()
            .filter(|asked| {
                let left_alone = [Signal::HUP, Signal::INT, Signal::QUIT].map(|s| s.as_raw());
                let number = number(asked);
                !(left_alone.contains(&number) && ignored & (1 << (number - 1)) != 0)
            })
            .map(|asked| Ok((signal(SignalKind::from_raw(number(&asked)))?, asked)));
        Ok(Self {
            streams: streams.collect::<io::Result<_>>()?,
            passed_on: Vec::new(),
        })
    }

    /// From now on forwards exactly these of the signals that ask us to end.
    pub(crate) fn pass_on(&mut self, signals: &[Signal]) {
        self.passed_on = signals.to_vec();
    }

    /// Returns the next request. Cancel safe.
    pub(crate) async fn next(&mut self) -> Asked {
        std::future::poll_fn(|context| {
            for (stream, asked) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(match *asked {
                        Asked::End(signal) if self.passed_on.contains(&signal) => {
                            Asked::Forward(signal)
                        }
                        asked => {
                            if matches!(asked, Asked::End(_)) {
                                notify::stopping();
                            }
                            asked
                        }
                    });
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Returns the next signal that asks us to end. Cancel safe.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            if let Asked::End(signal) = self.next().await {
                return signal;
            }
        }
    }
}

/// Returns the signals that this process ignores, as a mask; none if /proc does not show them.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
