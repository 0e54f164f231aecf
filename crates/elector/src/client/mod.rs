//! A Kubernetes client that is suitable for lock requests.

#[cfg(feature = "http2")]
mod calm;
#[cfg(feature = "http2")]
mod http2;
mod named;
mod proxy;
#[cfg(feature = "http2")]
mod single;

pub use proxy::{ProxyError, proxy_from_environment, read_kubeconfig};

use std::time::Duration;

use http::{Request, Response};
use hyper::body::Bytes;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::util::MapErrLayer;
use tower::{BoxError, Service, ServiceBuilder};

use named::with_address;
use proxy::Dial;

/// The user agent of [`client`]. API servers and their audit logs recognize election requests by it, as with
/// client-go's `leader-election` suffix.
pub const USER_AGENT: &str = concat!("tenure/", env!("CARGO_PKG_VERSION"), "/leader-election");

/// Maximum silence within a response. It is longer than the interval between two bookmarks of a watch, which is a
/// minute. Requests of elections have separate, much shorter timeouts.
const SILENCE: Duration = Duration::from_secs(100);

/// Timeout for connecting.
const CONNECT: Duration = Duration::from_secs(5);

/// Builds a client for elections with these properties:
///
/// - It has its own connections, so that application traffic cannot delay a renewal.
/// - It does not retry, because a renewal that is repeated below the election could outlive its term.
/// - The silence within a response is bounded.
/// - No packet waits for the acknowledgement of another.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = tenure::client(kube::Config::infer().await?)?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails if [`kube::Client::try_from`] rejects the configuration, or if the proxy cannot be used.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    let mut config = careful(config, USER_AGENT);
    proxy::correct(&mut config)?;
    if is_kubes_business(&config) {
        return kubes_own(config);
    }
    over_http1(config)
}

/// Builds kube's own client for application traffic. It uses the proxy of the configuration by the same rules as
/// [`client`]. (kube supports proxies only with a feature.)
///
/// # Errors
///
/// Same as for [`client`].
pub fn work_client(mut config: Config) -> Result<Client, kube::Error> {
    proxy::correct(&mut config)?;
    if config.proxy_url.is_none() {
        return kubes_own(config);
    }
    over_http1(config)
}

fn over_http1(config: Config) -> Result<Client, kube::Error> {
    let https = config.rustls_https_connector_with_connector(tcp(&config)?)?;
    let connector = bounded(TimeoutConnector::new(https), &config);
    assemble(
        config,
        legacy::Builder::new(TokioExecutor::new()).build(connector),
    )
}

/// Like [`client`], with one connection for everything except watches if the server supports HTTP/2, as API servers do.
/// Intended for programs with hundreds of elections. On busy connections, responses are read every ten milliseconds and
/// watches every twenty-five milliseconds. Each read takes everything that has arrived. As with HTTP/1.1, a request
/// that is given up closes its connection. Needs the feature `http2`.
///
/// # Errors
///
/// Same as for [`client`].
#[cfg(feature = "http2")]
pub fn client_http2(config: Config) -> Result<Client, kube::Error> {
    over_http2(careful(config, USER_AGENT))
}

/// Like [`client_http2`], for application traffic of controllers with many small requests. It has a separate user
/// agent. Requests that a busy server rejects temporarily are sent again, as kube's own client does, unless the
/// configuration disables it. Elections use a separate client.
///
/// # Errors
///
/// Same as for [`client`].
#[cfg(feature = "http2")]
pub fn work_client_http2(config: Config, user_agent: &'static str) -> Result<Client, kube::Error> {
    let default_retry = config.default_retry;
    let mut config = careful(config, user_agent);
    config.default_retry = default_retry;
    over_http2(config)
}

#[cfg(feature = "http2")]
fn over_http2(mut config: Config) -> Result<Client, kube::Error> {
    proxy::correct(&mut config)?;
    if is_kubes_business(&config) {
        return kubes_own(config);
    }
    let bounded = |https| bounded(TimeoutConnector::new(calm::Together(https)), &config);
    let dial = tcp(&config)?;
    let tcp = |every| {
        let tcp = dial.clone();
        calm::Calmly { tcp, every }
    };
    let connector = bounded(http2::connector(&config, tcp(calm::ANSWERS))?);
    let for_watches = config.rustls_https_connector_with_connector(tcp(calm::WATCH))?;
    let for_watches = bounded(for_watches);
    assemble(config, http2::Wary::new(connector, &for_watches))
}

/// Builds kube's own client, whose errors name the server.
fn kubes_own(config: Config) -> Result<Client, kube::Error> {
    let named = MapErrLayer::new(with_address(&config.cluster_url));
    Ok(ClientBuilder::try_from(config)?.with_layer(&named).build())
}

/// Returns whether kube has to build the client, because an exec plugin may issue certificates with an expiry.
fn is_kubes_business(config: &Config) -> bool {
    config.proxy_url.is_none() && config.auth_info.exec.is_some()
}

fn bounded<C>(mut connector: TimeoutConnector<C>, config: &Config) -> TimeoutConnector<C> {
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    connector
}

fn assemble<S, B>(config: Config, connections: S) -> Result<Client, kube::Error>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = ServiceBuilder::new()
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(Into::<BoxError>::into)
        .map_err(with_address(&config.cluster_url))
        .map_err(Into::<BoxError>::into)
        .service(connections);
    let base = ServiceBuilder::new().layer(config.base_uri_layer());
    let namespace = config.default_namespace;
    if config.default_retry {
        let again = RetryLayer::new(RetryPolicy::server_retry());
        let service = base.layer(again).service(service);
        return Ok(ClientBuilder::new(service, namespace).build());
    }
    // Do not make the retry layer optional: every request would then reserve memory for a second copy of itself.
    Ok(ClientBuilder::new(base.service(service), namespace).build())
}

/// Creates the TCP connector. The end of a TLS handshake and the first request are two small packets. kube's own
/// connector leaves Nagle's algorithm enabled, so the second packet waits until the first is acknowledged. Linux delays
/// the acknowledgement by 40 ms, far longer than the rest of a hand-over.
fn tcp(config: &Config) -> Result<Dial, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let dial = Dial::new(tcp, config.proxy_url.as_ref());
    dial.map_err(|error| kube::Error::Service(error.into()))
}

fn careful(mut config: Config, user_agent: &'static str) -> Config {
    config.default_retry = false;
    config.connect_timeout = Some(config.connect_timeout.map_or(CONNECT, |t| t.min(CONNECT)));
    config.read_timeout = Some(config.read_timeout.unwrap_or(SILENCE));
    config.reset_reader_on_write = true;
    let named = |(name, _): &(http::HeaderName, _)| *name == http::header::USER_AGENT;
    config.headers.retain(|header| !named(header));
    config.headers.push((
        http::header::USER_AGENT,
        http::HeaderValue::from_static(user_agent),
    ));
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_does_not_retry_and_sends_the_election_user_agent() {
        let config = Config::new(http::Uri::from_static("http://localhost:1"));
        let config = careful(config, USER_AGENT);
        assert!(!config.default_retry);
        assert!(config.read_timeout.is_some());
        assert!(config.reset_reader_on_write);
        assert!(USER_AGENT.contains("leader-election"));
        assert_eq!(config.headers.len(), 1);
        assert_eq!(config.headers[0].1, USER_AGENT);
    }

    #[tokio::test]
    async fn packets_do_not_wait_for_each_other() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("https://{}", listener.local_addr().unwrap());
        let uri: http::Uri = uri.parse().unwrap();
        let mut tcp = tcp(&Config::new(uri.clone())).unwrap();
        let stream = Service::call(&mut tcp, uri).await;
        assert!(stream.unwrap().inner().nodelay().unwrap());
    }
}
