//! The feed: what is on a board, then what changes, as server-sent events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::board::{Board, Key, Row, Told};

/// Comment lines keep idle streams open through proxies, and tell the page that we live.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Changes that come together are told together.
const GATHER: Duration = Duration::from_millis(40);

/// How many terms of each election are told.
const TERMS: usize = 40;

/// What a page is told first.
#[derive(Debug, Serialize)]
pub(crate) struct Hello {
    /// Which server this is about.
    pub(super) server: String,
    pub(super) steer: Steer,
}

/// Whether the credential of this page can step holders down, and if not, why.
#[derive(Debug, Serialize)]
pub(crate) struct Steer {
    pub(super) able: bool,
    pub(super) why: String,
}

/// Tells until nobody listens.
pub(super) async fn tell(mut board: Board, hello: &Hello, lines: mpsc::Sender<Bytes>) {
    let mut told: BTreeMap<Key, Arc<Row>> = BTreeMap::new();
    let mut said = None;
    if lines.send(event("hello", hello)).await.is_err() {
        return;
    }
    let mut reset = true;
    loop {
        let put: Vec<Told> = board
            .rows()
            .filter(|row| {
                told.get(&row.key())
                    .is_none_or(|old| !Arc::ptr_eq(old, row))
            })
            .map(|row| row.told(TERMS))
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

/// JSON has no line ends inside, so one data line holds it.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}
