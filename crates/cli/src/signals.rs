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
}

impl Signals {
    /// Begins to listen; from here on none of these ends the process by itself.
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
        let streams = asked.into_iter().map(|asked| {
            let number = match asked {
                Asked::End(signal) | Asked::Forward(signal) => signal.as_raw(),
                Asked::Child => Signal::CHILD.as_raw(),
            };
            Ok((signal(SignalKind::from_raw(number))?, asked))
        });
        Ok(Self {
            streams: streams.collect::<io::Result<_>>()?,
        })
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Asked {
        std::future::poll_fn(|context| {
            for (stream, asked) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*asked);
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
