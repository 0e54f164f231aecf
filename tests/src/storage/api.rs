//! Objects as plain JSON.

use std::path::Path;

use anyhow::{Context, Result};
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

/// An API server, accessed as its administrator.
#[derive(Clone)]
pub struct Api {
    client: Client,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// Connects to the server of a kubeconfig.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read.
    pub async fn open(kubeconfig: &Path) -> Result<Self> {
        let file = Kubeconfig::read_from(kubeconfig)?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(file, &options).await?;
        Ok(Self {
            client: Client::try_from(config)?,
        })
    }

    /// Returns the object at a path; nothing if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails for any status other than 200 and 404.
    pub async fn get(&self, path: &str) -> Result<Option<Value>> {
        match self.ask(Method::GET, path, None).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error).with_context(|| format!("GET {path}")),
        }
    }

    /// Creates an object. An existing one is accepted.
    ///
    /// # Errors
    ///
    /// Fails if it was rejected.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        match self.ask(Method::POST, path, Some(object)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Value::Null),
            answer => answer.with_context(|| format!("POST {path}")),
        }
    }

    /// Merges into an object. A deleted one is ignored.
    ///
    /// # Errors
    ///
    /// Fails if it was rejected.
    pub async fn merge(&self, path: &str, patch: &Value) -> Result<()> {
        match self.ask(Method::PATCH, path, Some(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => answer.map(drop).with_context(|| format!("PATCH {path}")),
        }
    }

    /// Deletes an object, which stays as long as it has finalizers.
    ///
    /// # Errors
    ///
    /// Fails if it was rejected.
    pub async fn delete(&self, path: &str) -> Result<()> {
        match self.ask(Method::DELETE, path, None).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => answer.map(drop).with_context(|| format!("DELETE {path}")),
        }
    }

    /// Deletes an object together with its finalizers, as if their owners had removed them.
    ///
    /// # Errors
    ///
    /// Fails if it was rejected.
    pub async fn remove(&self, path: &str) -> Result<()> {
        self.delete(path).await?;
        self.merge(path, &json!({ "metadata": { "finalizers": null } }))
            .await
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, kube::Error> {
        let kind = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let bytes = body
            .map(|body| body.to_string().into_bytes())
            .unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind);
        let request = request.body(bytes).map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}
