//! Test helpers: a scripted API server, and an election in this process.

use std::convert::Infallible;
use std::sync::Arc;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use serde_json::{Value, json};
use tenure::{Elector, MemoryLock, Overrun};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::commands::elect::view::{Facts, Seen, View};
use crate::observed_lock::Notes;

/// Reaction to a request.
pub(super) enum Act {
    Answer(StatusCode, String),
    /// Never respond.
    Hang,
}

/// Returns a response that has only a status.
pub(super) fn status(code: StatusCode) -> Act {
    let status = json!({ "kind": "Status", "code": code.as_u16(), "message": code.as_str() });
    Act::Answer(code, status.to_string())
}

/// Returns a client of a server that handles each request with `act`.
pub(super) async fn server(act: impl Fn(&Parts, Value) -> Act + Send + Sync + 'static) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let act = Arc::new(act);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let act = act.clone();
            let service =
                service_fn(move |request: Request<Incoming>| answer(act.clone(), request));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let url = format!("http://{address}").parse().unwrap();
    tenure::client(Config::new(url)).unwrap()
}

async fn answer(
    act: Arc<impl Fn(&Parts, Value) -> Act>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    match act(&parts, body) {
        Act::Answer(code, text) => {
            let answer = Response::builder().status(code).body(text.into());
            Ok(answer.unwrap())
        }
        Act::Hang => std::future::pending().await,
    }
}

/// Creates an elector of a lock without other candidates.
pub(super) fn elector() -> Elector {
    let lock = Arc::new(MemoryLock::new("life"));
    let builder = Elector::builder(lock).on_overrun(Overrun::Log);
    builder.build().unwrap()
}

/// Creates the sidecar's view of it.
pub(super) fn view(elector: &Elector) -> View {
    View {
        facts: Arc::new(Facts {
            election: "life".to_owned(),
            namespace: "ns".to_owned(),
            lock: "leases",
            lease_duration_seconds: 15,
            short_names: false,
        }),
        handle: elector.handle(),
        notes: Notes::default(),
        seen: watch::Sender::new(Seen::default()),
    }
}
