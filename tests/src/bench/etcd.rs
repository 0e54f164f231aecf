//! Lease PUTs of `tenure server` on etcd, compared with plain puts into the same etcd, measured alternately.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a benchmark measures durations and prints its progress"
)]

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic_prost::ProstCodec;

use super::apiserver::{Ours, lease_puts};
use crate::real::Etcd;

/// Duration of each measurement.
const SPAN: Duration = Duration::from_secs(4);
/// Number of alternating measurements of both programs, so that a temporarily faster machine favours neither.
const TURNS: usize = 5;
/// Size of a Lease of [`lease_puts`] as the server stores it, with its managed fields.
const SIZE: usize = 635;

/// Measures both with the same numbers of clients.
///
/// # Errors
///
/// Fails if etcd or the server did not start or rejected a write.
pub fn bench(_real: bool) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let etcd = Etcd::start()?;
    let ours = Ours::start_with(&[&format!("--store=etcd={}", etcd.url())])?;
    let mut table = "### Etcd as the store\n\n| | puts into etcd | Lease PUTs over TLS, with etcd as the store | ratio | goal |\n\
                     |---|---|---|---|---|\n"
        .to_owned();
    for clients in [1, 32] {
        eprintln!("etcd, {clients} clients ...");
        let (mut plain, mut through) = (Vec::new(), Vec::new());
        for turn in 0..TURNS {
            plain.push(runtime.block_on(puts(etcd.port(), clients))?);
            let name = format!("etcd-{turn}");
            let kubeconfig = ours.kubeconfig();
            through.push(runtime.block_on(lease_puts(&kubeconfig, &name, clients, SPAN))?);
        }
        let (plain, through) = (median(plain), median(through));
        let ratio = plain / through;
        table.push_str(&format!(
            "| {clients} client{} | {plain:.0}/s | {through:.0}/s | {ratio:.2} | 1.5 |\n",
            if clients == 1 { "" } else { "s" }
        ));
    }
    Ok(table)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

/// Returns puts per second; each client has its own connection and its own key.
async fn puts(port: u16, clients: usize) -> Result<f64> {
    let mut tasks = JoinSet::new();
    for index in 0..clients {
        let link = Link::open(port).await?;
        tasks.spawn(async move {
            let (began, mut count) = (Instant::now(), 0_u32);
            while began.elapsed() < SPAN {
                count += 1;
                link.put(format!("/bench/{index}"), vec![b'x'; SIZE])
                    .await?;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        count += done??;
    }
    Ok(f64::from(count) / SPAN.as_secs_f64())
}

/// The needed fields of `etcdserverpb.PutRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// A response whose content is ignored.
#[derive(Clone, PartialEq, prost::Message)]
struct Anything {}

#[derive(Clone)]
struct Link(SendRequest<Body>);

impl Link {
    async fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let builder = http2::Builder::new(TokioExecutor::new());
        let (send, connection) = builder.handshake(TokioIo::new(stream)).await?;
        // The task ends when its sender is dropped.
        tokio::spawn(connection);
        Ok(Self(send))
    }

    async fn put(&self, key: String, value: Vec<u8>) -> Result<()> {
        let origin = http::Uri::from_static("http://127.0.0.1");
        let mut grpc = Grpc::with_origin(self.clone(), origin);
        grpc.ready().await.map_err(|error| anyhow!(error))?;
        let request = tonic::Request::new(PutRequest { key, value });
        let path = PathAndQuery::from_static("/etcdserverpb.KV/Put");
        let codec = ProstCodec::<PutRequest, Anything>::default();
        grpc.unary(request, path, codec).await?;
        Ok(())
    }
}

impl Service<http::Request<Body>> for Link {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
