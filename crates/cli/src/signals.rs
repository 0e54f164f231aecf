//! The signals that commands act on or pass on.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Something that another process, or the terminal, asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// End: TERM, INT, QUIT, or HUP.
    End(Signal),
    /// Pass this on to the group.
    Forward(Signal),
    /// A child ended or stopped.
    Child,
}

/// All streams together.
pub(crate) struct Signals {
    streams: Vec<(Stream, Asked)>,
    /// Signals that are for somebody else at present, though they would ask us to end.
    passed_on: Vec<Signal>,
}

impl Signals {
    /// Begins to listen; from here on none of these ends the process by itself. What whoever started
    /// us had ignored stays ignored, as `nohup` and a shell's `&` expect it.
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

    /// From now on these are to be passed on, and no others that ask us to end.
    pub(crate) fn pass_on(&mut self, signals: &[Signal]) {
        self.passed_on = signals.to_vec();
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Asked {
        std::future::poll_fn(|context| {
            for (stream, asked) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(match *asked {
                        Asked::End(signal) if self.passed_on.contains(&signal) => {
                            Asked::Forward(signal)
                        }
                        asked => asked,
                    });
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// The next signal that asks us to end. Cancel safe.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            if let Asked::End(signal) = self.next().await {
                return signal;
            }
        }
    }
}

/// The signals that this process ignores, as a mask; none where /proc does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
