//! The feed: the content of a board, then its changes, as server-sent events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::board::{Board, ElectionJson, Key, Row};

/// Interval of comment lines, which keep idle streams open through proxies and show the page that the feed works.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Time during which changes are collected into one event.
const GATHER: Duration = Duration::from_millis(40);

/// Maximum number of terms per election.
const TERMS: usize = 40;

/// The first event of a feed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Hello {
    /// Name of the server.
    pub(super) server: String,
    /// Whether the page offers to sign in.
    pub(super) sign_in: bool,
    pub(super) steer: Steer,
}

/// Whether the token of this page can step holders down, and the reason as a sentence if it cannot.
#[derive(Debug, Serialize)]
pub(crate) struct Steer {
    pub(super) able: bool,
    pub(super) why: String,
}

/// Sends events until the client disconnects.
pub(super) async fn tell(mut board: Board, hello: &Hello, lines: mpsc::Sender<Bytes>) {
    let mut told: BTreeMap<Key, Arc<Row>> = BTreeMap::new();
    let mut said = None;
    if lines.send(event("hello", hello)).await.is_err() {
        return;
    }
    let mut reset = true;
    loop {
        let put: Vec<ElectionJson> = board
            .rows()
            .filter(|row| {
                told.get(&row.key())
                    .is_none_or(|old| !Arc::ptr_eq(old, row))
            })
            .map(|row| row.to_json(TERMS))
            .collect();
        let now: BTreeMap<Key, Arc<Row>> = board
            .rows()
            .map(|row| (row.key(), Arc::clone(row)))
            .collect();
        let gone: Vec<String> = told
            .keys()
            .filter(|key| !now.contains_key(*key))
            .map(|(namespace, name, lock)| format!("{namespace}/{name}/{lock}"))
            .collect();
        let state = (board.is_ready(), board.trouble());
        if board.is_ready() || board.trouble().is_some() {
            let news = !put.is_empty() || !gone.is_empty() || said.as_ref() != Some(&state);
            if news {
                let change = json!({
                    "reset": reset,
                    "put": put,
                    "gone": gone,
                    "ready": state.0,
                    "trouble": state.1,
                });
                if lines.send(event("elections", &change)).await.is_err() {
                    return;
                }
                (told, said, reset) = (now, Some(state), false);
            }
        }
        tokio::select! {
            () = board.changed() => tokio::time::sleep(GATHER).await,
            () = tokio::time::sleep(KEEP_ALIVE) => {
                if lines.send(Bytes::from_static(b": alive\n\n")).await.is_err() {
                    return;
                }
            }
            () = lines.closed() => return,
        }
    }
}

/// Formats an event. Compact JSON has no line breaks, so it fits into one data line.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}
