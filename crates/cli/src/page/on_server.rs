//! The page on an embedded API server.

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tenure_apiserver::auth::{Attributes, Auth, Target};
use tenure_apiserver::server::{Builder, Handle};
use tenure_apiserver::status::Failure;

use super::{Caller, Door, PREFIX, Page, Refusal};

/// The page on an embedded API server.
pub(crate) struct OnServer {
    caller: Arc<OnceLock<Caller>>,
}

impl OnServer {
    /// Adds the page to the builder of a server.
    pub(crate) fn add(server: Builder) -> (Builder, Self) {
        let caller = Arc::new(OnceLock::new());
        let page = Page::new(Door::Caller(Arc::clone(&caller)));
        let server = server.public_route(PREFIX, move |parts| {
            let page = page.clone();
            async move {
                let answer = page.answer(&parts).await;
                answer.map(|body| body.map_err(|never| match never {}).boxed_unsync())
            }
        });
        (server, Self { caller })
    }

    /// Sets the address and the access check of the started server.
    pub(crate) async fn open(self, server: &Handle) -> Result<()> {
        let config = Kubeconfig::from_yaml(server.kubeconfig())?;
        let options = KubeConfigOptions::default();
        let config = tenure::read_kubeconfig(config, &options).await?;
        let auth = Arc::clone(server.auth());
        let check = Box::new(move |token: Option<String>| {
            let auth = Arc::clone(&auth);
            Box::pin(async move { may_list(&auth, token.as_deref()).await }) as _
        });
        let _ = self.caller.set(Caller { config, check });
        Ok(())
    }
}

/// Checks that the owner of a token, or an anonymous client, may list leases.
async fn may_list(auth: &Auth, token: Option<&str>) -> Result<(), Refusal> {
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let value = value.map_err(|_| refusal(&Failure::unauthorized()))?;
        headers.insert(AUTHORIZATION, value);
    }
    auth.catch_up(&headers).await.map_err(|f| refusal(&f))?;
    let user = auth.authenticate(None, &headers).map_err(|f| refusal(&f))?;
    let attributes = Attributes {
        verb: "list",
        target: Target::Resource {
            group: "coordination.k8s.io",
            resource: "leases",
            subresource: "",
            namespace: "",
            name: "",
        },
    };
    let allowed = auth.authorize(&user, &attributes);
    allowed.map_err(|failure| refusal(&failure))
}

fn refusal(failure: &Failure) -> Refusal {
    let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::FORBIDDEN);
    Refusal(code, failure.message.clone())
}
