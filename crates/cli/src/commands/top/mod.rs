//! `tenure top`: shows all elections live in a terminal.
//!
//! The terminal is restored regardless of how the command ends: by a key, a signal or a panic.

mod columns;
mod screen;
mod view;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use kube::Client;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tenure_lock::LockKind;
use tokio::sync::mpsc;

use crate::api;
use crate::board::{Board, Scope};
use crate::connect::{self, Connect};
use crate::elections::{self, Seen};
use crate::output;
use crate::signals::Signals;
use screen::{Act, Screen};

/// Interval at which times on the screen are updated.
const TICK: Duration = Duration::from_millis(250);

/// Show elections live in this terminal
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Show only this namespace [default: all namespaces]
    #[arg(short, long, value_name = "NS", env = "TENURE_NAMESPACE")]
    namespace: Option<String>,
}

impl Top {
    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        if !output::is_terminal() {
            bail!("top needs a terminal; `tenure status -w` prints changes anywhere");
        }
        let mut signals = Signals::listen()?;
        let config = connect.config().await?;
        let server = connect::address_of(&config);
        let client = connect::client(config).await?;
        let scope = Scope {
            namespace: self.namespace,
            ..Scope::default()
        };
        let board = Board::open(&client, &scope);
        // Also installs a panic hook that restores the terminal.
        let terminal = ratatui::try_init()?;
        let result = live(terminal, board, client, Screen::new(server), &mut signals).await;
        ratatui::restore();
        result
    }
}

async fn live(
    mut terminal: ratatui::DefaultTerminal,
    mut board: Board,
    client: Client,
    mut screen: Screen,
    signals: &mut Signals,
) -> Result<u8> {
    let mut keys = keys();
    let (answers, mut answered) = mpsc::unbounded_channel();
    let mut tick = tokio::time::interval(TICK);
    loop {
        let rows = board.rows().map(|row| row.seen_now()).collect();
        screen.show(rows, board.is_ready(), board.trouble());
        terminal.draw(|frame| view::draw(frame, &mut screen))?;
        let event = tokio::select! {
            () = board.changed() => None,
            _ = tick.tick() => None,
            answer = answered.recv() => {
                screen.message = answer;
                None
            }
            event = keys.recv() => match event {
                Some(event) => Some(event),
                // The terminal was closed.
                None => return Ok(0),
            },
            _ = signals.end() => return Ok(0),
        };
        let Some(Event::Key(key)) = event else {
            continue;
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match screen.press(key) {
            Act::None => {}
            Act::Quit => return Ok(0),
            Act::StepDown(seen) => {
                let (client, answers) = (client.clone(), answers.clone());
                tokio::spawn(async move {
                    let _ = answers.send(step_down(&client, &seen).await);
                });
            }
        }
    }
}

/// Orders the holder to step down, and returns the message about the result.
async fn step_down(client: &Client, seen: &Seen) -> String {
    let (holder, namespace, name) = (&seen.holder, &seen.namespace, &seen.name);
    let order = async {
        let kind: LockKind = seen.lock.parse()?;
        let patch = seen.step_down_patch(None, None);
        elections::order(client, kind, namespace, name, &patch).await
    };
    let text = match order.await {
        Ok(()) => format!("asked {holder} to step down from {namespace}/{name}"),
        Err(error) => format!("cannot ask {holder} to step down: {}", api::plain(&error)),
    };
    output::escaped(&text)
}

/// Reads the terminal on a separate thread, because a read cannot be cancelled. The thread ends with the process.
fn keys() -> mpsc::UnboundedReceiver<Event> {
    let (send, receive) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if send.send(event).is_err() {
                break;
            }
        }
    });
    receive
}
