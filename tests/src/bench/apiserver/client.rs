//! A client with a low cost: one HTTP/1.1 connection over TLS, requests from prepared text, and responses that are searched
//! and not parsed. Every server gets the same client, so that even a small machine measures the servers and not the client.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use kube::Config;
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Path of Leases.
pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// Address and credentials of a server, from its kubeconfig.
#[derive(Clone)]
pub(in crate::bench) struct Server {
    host: String,
    port: u16,
    tls: TlsConnector,
    authorization: Option<HeaderValue>,
}

impl Server {
    /// Reads a kubeconfig.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read or used.
    pub(in crate::bench) async fn new(kubeconfig: &Path) -> Result<Self> {
        let file = Kubeconfig::read_from(kubeconfig)?;
        let plain = serde_json::to_value(&file)?;
        let token = plain.pointer("/users/0/user/token");
        let authorization = token
            .and_then(serde_json::Value::as_str)
            .map(|token| HeaderValue::try_from(format!("Bearer {token}")))
            .transpose()?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        let url = &config.cluster_url;
        Ok(Self {
            host: url.host().context("no host in the kubeconfig")?.to_owned(),
            port: url.port_u16().unwrap_or(443),
            tls: TlsConnector::from(Arc::new(config.rustls_client_config()?)),
            authorization,
        })
    }

    /// Opens a new connection.
    ///
    /// # Errors
    ///
    /// Fails if there is no server.
    pub(in crate::bench) async fn connect(&self) -> Result<Client> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(self.host.clone())?;
        let stream = self.tls.connect(name, stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The task ends when its sender is dropped.
        tokio::spawn(connection);
        Ok(Client {
            sender,
            host: HeaderValue::try_from(&self.host)?,
            authorization: self.authorization.clone(),
        })
    }
}

/// One connection.
pub(in crate::bench) struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// Sends a request and returns the whole response.
    ///
    /// # Errors
    ///
    /// Fails if the response is not a success.
    pub(in crate::bench) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Bytes> {
        let response = self.open(method, path, body).await?;
        Ok(response.collect().await?.to_bytes())
    }

    /// Sends a request and returns the body of its response as a stream.
    ///
    /// # Errors
    ///
    /// Fails if the response is not a success.
    pub(super) async fn open(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Incoming> {
        // The only patches sent here are server-side applies.
        let kind = match method {
            Method::PATCH => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(HOST, self.host.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        self.sender.ready().await?;
        let request = request.body(Full::new(Bytes::from(body)))?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        if !status.is_success() {
            let answer = response.into_body().collect().await?.to_bytes();
            let answer = String::from_utf8_lossy(&answer);
            bail!("{method} {path}: {status} {answer}");
        }
        Ok(response.into_body())
    }
}

/// A Lease that is written repeatedly.
pub(super) struct Lease {
    name: String,
    version: String,
    writes: u32,
}

impl Lease {
    /// Creates the Lease.
    ///
    /// # Errors
    ///
    /// Fails if the server rejects it.
    pub(super) async fn create(client: &mut Client, name: String) -> Result<Self> {
        let mut lease = Self {
            name,
            version: String::new(),
            writes: 0,
        };
        let answer = client.send(Method::POST, LEASES, lease.body()).await?;
        lease.note(&answer)?;
        Ok(lease)
    }

    /// Renews the Lease, like its holder.
    ///
    /// # Errors
    ///
    /// Fails if the server rejects it.
    pub(super) async fn renew(&mut self, client: &mut Client) -> Result<()> {
        self.writes += 1;
        let path = format!("{LEASES}/{}", self.name);
        let answer = client.send(Method::PUT, &path, self.body()).await?;
        self.note(&answer)
    }

    /// Returns the resource version of the last write.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    fn body(&self) -> String {
        let Self {
            name,
            version,
            writes,
        } = self;
        let micros = writes % 1_000_000;
        format!(
            "{{\"apiVersion\":\"coordination.k8s.io/v1\",\"kind\":\"Lease\",\
             \"metadata\":{{\"name\":\"{name}\",\"namespace\":\"default\",\
             \"resourceVersion\":\"{version}\"}},\
             \"spec\":{{\"holderIdentity\":\"load\",\"leaseDurationSeconds\":15,\
             \"leaseTransitions\":0,\"acquireTime\":\"2026-01-02T03:04:05.000006Z\",\
             \"renewTime\":\"2026-01-02T03:04:05.{micros:06}Z\"}}}}"
        )
    }

    fn note(&mut self, answer: &[u8]) -> Result<()> {
        let version = version(answer).context("an answer without a resource version")?;
        version.clone_into(&mut self.version);
        Ok(())
    }
}

/// Returns the first resource version in a JSON text.
pub(super) fn version(json: &[u8]) -> Option<&str> {
    const MEMBER: &[u8] = b"\"resourceVersion\":\"";
    let at = json.windows(MEMBER.len()).position(|part| part == MEMBER)?;
    let rest = &json[at + MEMBER.len()..];
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&rest[..end]).ok()
}
