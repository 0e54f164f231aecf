//! `--http-endpoint`: metrics and the health of the election.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use prometheus_client::registry::Registry;
use tenure::HealthAdaptor;
use tenure_exposition::expose;
use tenure_host::listener::Listener;
use tenure_host::seats::Seats;
use tokio::net::TcpListener;

use crate::options::Http;

/// Time after the end of the lease without a renewal before the probe fails.
pub(crate) const TOLERANCE: Duration = Duration::from_secs(20);

/// Text for `--enable-pprof`. This program has no such profiles, because the Go runtime creates them. A profile of this
/// process would contain addresses without names, because the shipped binary is stripped.
const PROFILES: &str = "\
this program has no Go runtime, so /debug/pprof has no profiles. alternatives:

CPU: perf record -g -p PID -- sleep 30, on the node, with a build that has symbols
memory: heaptrack -p PID, on the node; VmHWM in /proc/PID/status is the peak
current work: the metrics workqueue_* and csi_sidecar_operations_seconds, and the log with -v=5
";

/// Content of the endpoint.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) http: Http,
    pub(crate) registry: Registry,
    /// Present if this process takes part in an election.
    pub(crate) health: Option<Arc<HealthAdaptor>>,
}

/// Binds the address and serves it until the process ends.
pub(crate) async fn listen(site: Site) -> io::Result<()> {
    let address = &site.http.address;
    let address = match address.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.clone(),
    };
    let listener = TcpListener::bind(&address).await?;
    let site = Arc::new(site);
    let served = Listener::Tcp(listener).serve(Seats::new(), move |request, _| {
        let answer = site.answer(request.method(), request.uri().path(), request.headers());
        std::future::ready(answer)
    });
    tokio::spawn(served);
    Ok(())
}

impl Site {
    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Full<Bytes>> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD\n");
        }
        if path == self.http.metrics_path {
            let (kind, body) = expose(&self.registry, headers);
            let mut answer = text(StatusCode::OK, &body);
            let kind = HeaderValue::from_static(kind);
            answer.headers_mut().insert(header::CONTENT_TYPE, kind);
            return answer;
        }
        if self.http.pprof && (path == "/debug/pprof" || path.starts_with("/debug/pprof/")) {
            return text(StatusCode::NOT_IMPLEMENTED, PROFILES);
        }
        match &self.health {
            Some(health) if path == "/healthz/leader-election" && self.http.leader_health => {
                match health.check() {
                    Ok(()) => text(StatusCode::OK, "ok"),
                    Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
                }
            }
            _ => text(StatusCode::NOT_FOUND, "no such path\n"),
        }
    }
}

fn text(code: StatusCode, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body.to_owned()));
    *response.status_mut() = code;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(pprof: bool) -> Site {
        Site {
            http: Http {
                address: String::new(),
                metrics_path: "/metrics".to_owned(),
                leader_health: true,
                pprof,
            },
            registry: Registry::default(),
            health: None,
        }
    }

    #[test]
    fn profile_paths_respond_501_with_an_explanation() {
        let none = HeaderMap::new();
        let code = |pprof: bool, path: &str| site(pprof).answer(&Method::GET, path, &none).status();
        for path in ["/debug/pprof", "/debug/pprof/", "/debug/pprof/profile"] {
            assert_eq!(code(true, path), StatusCode::NOT_IMPLEMENTED, "{path}");
            assert_eq!(code(false, path), StatusCode::NOT_FOUND, "{path}");
        }
        assert_eq!(code(true, "/debug/pprofile"), StatusCode::NOT_FOUND);
        assert_eq!(code(true, "/metrics"), StatusCode::OK);
        let answer = site(true).answer(&Method::POST, "/debug/pprof/", &none);
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn metrics_are_in_the_format_that_is_asked_for() {
        let kind = |accept: &'static str| {
            let accept = (header::ACCEPT, HeaderValue::from_static(accept));
            let answer =
                site(false).answer(&Method::GET, "/metrics", &HeaderMap::from_iter([accept]));
            answer.headers()[header::CONTENT_TYPE].clone()
        };
        assert_eq!(kind("*/*"), "text/plain; version=0.0.4; charset=utf-8");
        let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert_eq!(kind("application/openmetrics-text;version=1.0.0"), open);
    }
}
