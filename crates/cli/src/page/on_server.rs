//! The page on an embedded API server.

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use http_body_util::BodyExt as _;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tenure_apiserver::server::{Builder, Handle};

use super::{Door, PREFIX, Page};

/// The page on an embedded API server.
pub(crate) struct OnServer {
    address: Arc<OnceLock<Config>>,
}

impl OnServer {
    /// Adds the page to the builder of a server.
    pub(crate) fn add(server: Builder) -> (Builder, Self) {
        let address = Arc::new(OnceLock::new());
        let page = Page::new(Door::Caller(Arc::clone(&address)));
        let server = server.public_route(PREFIX, move |parts| {
            let page = page.clone();
            async move {
                let answer = page.answer(&parts).await;
                answer.map(|body| body.map_err(|never| match never {}).boxed_unsync())
            }
        });
        (server, Self { address })
    }

    /// Sets the address of the started server.
    pub(crate) async fn open(self, server: &Handle) -> Result<()> {
        let config = Kubeconfig::from_yaml(server.kubeconfig())?;
        let options = KubeConfigOptions::default();
        let config = tenure::read_kubeconfig(config, &options).await?;
        let _ = self.address.set(config);
        Ok(())
    }
}
