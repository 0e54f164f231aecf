//! Tests of servers in this process, over real sockets.

mod access;
mod clients;
mod data_dir;
mod faults;
mod limits;
mod shutdown;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::pki::{Identity, Pki};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// A response: its status code, its protocol, and its body as JSON or as a string.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: StatusCode,
    version: Version,
    pub(crate) body: Value,
}

fn address(url: &str) -> &str {
    url.split_once("://").unwrap().1
}

async fn connect(url: &str) -> TcpStream {
    TcpStream::connect(address(url)).await.unwrap()
}

/// Opens a TLS connection that trusts the server's authority and offers these protocols.
async fn connect_tls(
    url: &str,
    pki: &Pki,
    client: Option<&Identity>,
    protocols: &[&str],
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(pki.ca.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(identity) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(name, connect(url).await).await.unwrap()
}

fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap()
}

/// Sends one request over HTTP/1.
async fn send<S>(io: S, request: Request<Full<Bytes>>) -> Answer
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let answer = read(sender.send_request(request).await.unwrap()).await;
    connection.abort();
    answer
}

/// Sends one request over HTTP/2.
async fn send_h2<S>(io: S, mut request: Request<Full<Bytes>>) -> Answer
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let path = request.uri().path().to_owned();
    *request.uri_mut() = format!("https://localhost{path}").parse().unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let answer = read(sender.send_request(request).await.unwrap()).await;
    connection.abort();
    answer
}

async fn read(response: http::Response<hyper::body::Incoming>) -> Answer {
    let (code, version) = (response.status(), response.version());
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into());
    Answer {
        code,
        version,
        body,
    }
}

pub(crate) async fn get(url: &str, path: &str, token: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let headers = if token.is_empty() { &[][..] } else { &headers };
    send(connect(url).await, request(Method::GET, path, headers, "")).await
}

pub(crate) async fn post(url: &str, path: &str, token: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
    ];
    send(
        connect(url).await,
        request(Method::POST, path, &headers, &body.to_string()),
    )
    .await
}
