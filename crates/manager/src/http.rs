//! The health and metrics listeners.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use prometheus_client::registry::Registry;
use tenure_exposition::expose;
use tenure_host::listener::Listener;
use tenure_host::seats::Seats;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::health::Checks;

/// Content of a listener.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) healthz: Arc<Checks>,
    pub(crate) readyz: Arc<Checks>,
    pub(crate) registry: Arc<Registry>,
    /// Whether this listener serves probes.
    pub(crate) probes: bool,
    pub(crate) metrics: bool,
}

/// Binds an address.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| Error::Listen { address, source })
}

/// Serves until stopped.
pub(crate) async fn serve(
    listener: TcpListener,
    site: Site,
    seats: Arc<Seats>,
    stop: CancellationToken,
) {
    let served = Listener::Tcp(listener).serve(seats, move |request, _| {
        std::future::ready(site.answer(&request))
    });
    tokio::select! {
        () = stop.cancelled() => {}
        () = served => {}
    }
}

impl Site {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        const PLAIN: &str = "text/plain; charset=utf-8";
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(405, PLAIN, "GET or HEAD\n".to_owned());
        }
        if self.metrics && path == "/metrics" {
            let (kind, body) = expose(&self.registry, request.headers());
            return text(200, kind, body);
        }
        for (root, checks) in [("/healthz", &self.healthz), ("/readyz", &self.readyz)] {
            if let Some(below) = path.strip_prefix(root)
                && self.probes
                && (below.is_empty() || below.starts_with('/'))
            {
                let (status, body) = checks.answer(below, query);
                return text(status, PLAIN, body);
            }
        }
        text(404, PLAIN, "404 page not found\n".to_owned())
    }
}

fn text(status: u16, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}
