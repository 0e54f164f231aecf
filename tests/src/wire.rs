//! A plain client of an API server, to read what candidates wrote. It blocks, so that tests read from top to bottom. It
//! uses paths and JSON instead of types, so that no field is lost.

use std::path::Path;

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

/// A connection as the user of one kubeconfig.
pub struct Wire {
    runtime: tokio::runtime::Runtime,
    client: kube::Client,
}

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kubeconfig is unusable.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The request failed without a response.
    #[error("{method} {path}: {source}")]
    Request {
        /// The request's method.
        method: Method,
        /// The request's path.
        path: String,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A response: its status and its body, as text if it is not JSON.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The body.
    pub body: Value,
}

impl Wire {
    /// Connects with a kubeconfig.
    ///
    /// # Errors
    ///
    /// Fails if the kubeconfig cannot be read or used.
    pub fn connect(kubeconfig: &Path) -> Result<Self, Error> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Request {
            method: Method::CONNECT,
            path: kubeconfig.display().to_string(),
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(error.into()))?;
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig)?;
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(file, &options).await?;
            kube::Client::try_from(config).map_err(|error| failed(error.into()))
        })?;
        Ok(Self { runtime, client })
    }

    /// Sends a GET.
    ///
    /// # Errors
    ///
    /// Fails if there was no response. Any status counts as a response.
    pub fn get(&self, path: &str) -> Result<Answer, Error> {
        self.send(&Method::GET, path, None)
    }

    /// Sends any request, optionally with a JSON body.
    ///
    /// # Errors
    ///
    /// Fails if there was no response. Any status counts as a response.
    pub fn send(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Answer, Error> {
        let bytes = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let kind = match *method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        self.send_as(method, path, kind, bytes)
    }

    /// Sends any request, with any body.
    ///
    /// # Errors
    ///
    /// Fails if there was no response. Any status counts as a response.
    pub fn send_as(
        &self,
        method: &Method,
        path: &str,
        kind: &str,
        bytes: Vec<u8>,
    ) -> Result<Answer, Error> {
        self.request(method, path, &[("content-type", kind)], bytes)
    }

    /// Sends any request with additional headers, and optionally with a JSON body.
    ///
    /// # Errors
    ///
    /// Fails if there was no response. Any status counts as a response.
    pub fn send_with(
        &self,
        method: &Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Answer, Error> {
        let bytes = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let mut headers = headers.to_vec();
        headers.push(("content-type", "application/json"));
        self.request(method, path, &headers, bytes)
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        headers: &[(&str, &str)],
        bytes: Vec<u8>,
    ) -> Result<Answer, Error> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Request {
            method: method.clone(),
            path: path.to_owned(),
            source,
        };
        let mut request = Request::builder().method(method.clone()).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(kube::client::Body::from(bytes))
            .map_err(|error| failed(error.into()))?;
        self.runtime.block_on(async {
            let answer = self
                .client
                .send(request)
                .await
                .map_err(|error| failed(error.into()))?;
            let status = answer.status();
            let body = answer
                .into_body()
                .collect()
                .await
                .map_err(|error| failed(error.into()))?;
            let body = body.to_bytes();
            let body = serde_json::from_slice(&body)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
            Ok(Answer { status, body })
        })
    }
}

/// Returns the path of a Lease, or of all Leases of a namespace if the name is empty.
pub fn lease_path(namespace: &str, name: &str) -> String {
    object_path("/apis/coordination.k8s.io/v1", namespace, "leases", name)
}

/// Returns the path of a namespaced object, or of the whole collection if the name is empty.
pub fn object_path(group: &str, namespace: &str, resource: &str, name: &str) -> String {
    let path = format!("{group}/namespaces/{namespace}/{resource}/{name}");
    path.trim_end_matches('/').to_owned()
}
