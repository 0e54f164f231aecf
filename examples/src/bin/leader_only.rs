//! A tower layer that answers 503 while this process does not lead.
//!
//! The layer works with every server that uses tower, such as axum and tonic. It adds the fencing token of the term to
//! the request, so that the handler can send the token with its effects.
#![allow(clippy::print_stdout, reason = "the example prints what happens")]

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use hyper::body::Incoming;
use hyper::header::RETRY_AFTER;
use hyper::server::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tenure::{Elector, FencingToken, Handle, Tenure};
use tokio::net::TcpListener;
use tower::layer::layer_fn;
use tower::{Layer as _, Service, service_fn};

#[derive(Clone)]
struct LeaderOnly<S> {
    inner: S,
    handle: Handle,
}

impl<S, B, R: Default> Service<Request<B>> for LeaderOnly<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<R>, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(tenure) = self.handle.tenure().filter(Tenure::is_leading) {
            request.extensions_mut().insert(tenure.token().clone());
            return Either::Left(self.inner.call(request));
        }
        let mut response = Response::new(R::default());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(RETRY_AFTER, 1_u16.into());
        Either::Right(ready(Ok(response)))
    }
}

async fn write(request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    let token = request.extensions().get().map_or("-", FencingToken::as_str);
    Ok(Response::new(format!("written with token {token}")))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let client = tenure::client(kube::Config::infer().await?)?;
    let elector = Elector::lease(client, "default", "leader-only-example").build()?;
    let handle = elector.handle();
    let layer = layer_fn(move |inner| LeaderOnly {
        inner,
        handle: handle.clone(),
    });
    let service = TowerToHyperService::new(layer.layer(service_fn(write)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (stream, service) = (TokioIo::new(stream), service.clone());
            tokio::spawn(http1::Builder::new().serve_connection(stream, service));
        }
    });
    let work = |tenure: Tenure| async move { tenure.cancelled().await };
    elector.campaign(tokio::signal::ctrl_c(), work).await;
    Ok(())
}
