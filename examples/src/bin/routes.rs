//! HTTP routes about an election, for probes and clients.
//!
//! | path | 200 |
//! |---|---|
//! | `/healthz` | unless this process holds the lease and does not renew it; for a liveness probe |
//! | `/leader` | only while this process leads, otherwise 503 with the name of the leader |
//!
//! The routes use hyper. With axum, the functions `health` and `leader` are handlers with the state `Handle`.
#![allow(clippy::print_stdout, reason = "the example prints what happens")]

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tenure::{Elector, Handle, Status};
use tokio::net::TcpListener;

/// Time after the end of the lease until a leader that does not renew counts as stuck.
const TOLERANCE: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let client = tenure::client(kube::Config::infer().await?)?;
    let elector = Elector::lease(client, "default", "routes-example").build()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    tokio::spawn(serve(listener, elector.handle()));
    elector
        .campaign(tokio::signal::ctrl_c(), |tenure| async move {
            println!("leading");
            tenure.cancelled().await;
        })
        .await;
    Ok(())
}

async fn serve(listener: TcpListener, handle: Handle) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let handle = handle.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (status, text) = match request.uri().path() {
                "/healthz" => health(&handle),
                "/leader" => leader(&handle),
                _ => (StatusCode::NOT_FOUND, String::new()),
            };
            let mut response = Response::new(text);
            *response.status_mut() = status;
            ready(Ok::<_, Infallible>(response))
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

fn health(handle: &Handle) -> (StatusCode, String) {
    match handle.health().check(TOLERANCE) {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn leader(handle: &Handle) -> (StatusCode, String) {
    // Reads the clock. The status may still be `Leader` after the guard has expired.
    if handle.is_leading() {
        return (StatusCode::OK, handle.identity().to_owned());
    }
    let leader = match handle.status() {
        Status::Follower { leader } => leader,
        Status::Leader { .. } | Status::Unknown => "nobody".to_owned(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, leader)
}
