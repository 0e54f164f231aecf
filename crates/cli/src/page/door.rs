//! Access to the page, and the credentials that it acts with.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use http::StatusCode;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use tenure_lock::{LockKind, in_words};

use super::feed::{Hello, Steer};
use crate::api;
use crate::board::{Board, Scope};
use crate::connect::address_of;
use crate::elections;

/// A rejected request: status code and reason.
pub(crate) struct Refusal(pub(crate) StatusCode, pub(crate) String);

/// Access rule of the page.
pub(crate) enum Door {
    /// A client with the secret acts with the credentials of this process.
    Secret {
        secret: String,
        config: Box<Config>,
        namespace: Option<String>,
    },
    /// A client acts with its own credentials, and the API server decides. The configuration is set when the server has
    /// started.
    #[cfg_attr(
        not(feature = "server"),
        allow(dead_code, reason = "for the embedded server")
    )]
    Caller(Arc<OnceLock<Caller>>),
    /// Every client may see one election, as with the sidecar's other endpoints. A client with the token may step its holder
    /// down.
    Sidecar {
        client: Client,
        namespace: String,
        name: String,
        kind: LockKind,
        token: Option<Arc<str>>,
        /// Whether this candidate announces itself, so that it may list the others.
        announced: bool,
    },
}

/// Checks in this process whether the client with this token may list locks.
type Check = dyn Fn(Option<String>) -> BoxFuture<'static, Result<(), Refusal>> + Send + Sync;

/// The API server that the page is part of.
pub(crate) struct Caller {
    pub(crate) config: Config,
    pub(crate) check: Box<Check>,
}

impl Door {
    /// Returns the name of this access rule in the page.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Secret { .. } => "ui",
            Self::Caller(_) => "server",
            Self::Sidecar { .. } => "sidecar",
        }
    }

    /// Returns whether a client can get more rights with another token.
    fn knows_tokens(&self) -> bool {
        match self {
            Self::Secret { .. } => false,
            Self::Caller(_) => true,
            Self::Sidecar { token, .. } => token.is_some(),
        }
    }

    /// Authenticates a client without a request to the API server, so that rejecting an unknown client is cheap.
    pub(super) async fn admit(&self, token: Option<&str>) -> Result<(), Refusal> {
        match self {
            Self::Secret { secret, .. } => {
                if !token.is_some_and(|token| same(token, secret)) {
                    return Err(unknown("open the address that `tenure ui` printed"));
                }
                Ok(())
            }
            Self::Caller(caller) => {
                let caller = caller.get().ok_or_else(starting)?;
                (caller.check)(token.map(str::to_owned)).await
            }
            Self::Sidecar { .. } => Ok(()),
        }
    }

    /// Opens a board for an admitted client, and returns what the client may do.
    pub(super) async fn enter(&self, token: Option<&str>) -> Result<(Hello, Board), Refusal> {
        let (client, server, steer, scope) = match self {
            Self::Secret {
                config, namespace, ..
            } => {
                let scope = Scope {
                    namespace: namespace.clone(),
                    ..Scope::default()
                };
                let client = connect(config.as_ref().clone())?;
                (client, address_of(config), None, scope)
            }
            Self::Caller(caller) => {
                let config = as_caller(caller, token)?;
                let server = address_of(&config);
                (connect(config)?, server, None, Scope::default())
            }
            Self::Sidecar {
                client,
                namespace,
                name,
                kind,
                token: wanted,
                announced,
            } => {
                let scope = Scope {
                    namespace: Some(namespace.clone()),
                    name: Some(name.clone()),
                    kind: Some(*kind),
                    members: *announced,
                };
                let steer = match (wanted, token) {
                    (None, _) => no("This sidecar runs without --step-down-token-file."),
                    (Some(wanted), Some(token)) if same(token, wanted) => yes(),
                    (Some(_), Some(_)) => no("This token is not the step-down token."),
                    (Some(_), None) => no("Sign in with the step-down token."),
                };
                (client.clone(), String::new(), Some(steer), scope)
            }
        };
        let steer = match steer {
            Some(steer) => steer,
            None => {
                if matches!(self, Self::Secret { .. }) {
                    check(&client, &scope).await?;
                }
                may_steer(&client, &scope, token.is_some()).await
            }
        };
        let hello = Hello {
            server,
            sign_in: self.knows_tokens(),
            steer,
        };
        Ok((hello, Board::open(&client, &scope)))
    }

    /// Returns an API client that may step a holder down.
    pub(super) fn steer(
        &self,
        token: &str,
        kind: LockKind,
        namespace: &str,
        name: &str,
    ) -> Result<Client, Refusal> {
        match self {
            Self::Secret { secret, config, .. } => {
                if !same(token, secret) {
                    return Err(unknown(
                        "this token is not the one that `tenure ui` printed",
                    ));
                }
                connect(config.as_ref().clone())
            }
            Self::Caller(caller) => connect(as_caller(caller, Some(token))?),
            Self::Sidecar {
                client,
                namespace: own,
                name: election,
                kind: lock,
                token: wanted,
                ..
            } => {
                if !wanted.as_ref().is_some_and(|wanted| same(token, wanted)) {
                    return Err(unknown(
                        "this token is not the one in the file of --step-down-token-file",
                    ));
                }
                // The credentials of this process are for one election only.
                let parts = |kind| elections::resource_of(kind);
                if (own.as_str(), election.as_str(), parts(*lock)) != (namespace, name, parts(kind))
                {
                    let why = "this sidecar takes part in another election".to_owned();
                    return Err(Refusal(StatusCode::FORBIDDEN, why));
                }
                Ok(client.clone())
            }
        }
    }
}

/// Compares two secrets in constant time.
fn same(given: &str, wanted: &str) -> bool {
    let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let (given, wanted) = (digest(given), digest(wanted));
    let pairs = given.as_ref().iter().zip(wanted.as_ref());
    pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn unknown(why: &str) -> Refusal {
    Refusal(StatusCode::UNAUTHORIZED, why.to_owned())
}

fn starting() -> Refusal {
    let why = "the server is starting".to_owned();
    Refusal(StatusCode::SERVICE_UNAVAILABLE, why)
}

fn yes() -> Steer {
    Steer {
        able: true,
        why: String::new(),
    }
}

fn no(why: &str) -> Steer {
    Steer {
        able: false,
        why: why.to_owned(),
    }
}

fn connect(config: Config) -> Result<Client, Refusal> {
    let address = address_of(&config);
    tenure::work_client(config).map_err(|error| {
        let why = tenure::plain(&error);
        let text = format!("cannot create a client for {address}: {why}");
        Refusal(StatusCode::BAD_GATEWAY, text)
    })
}

/// Returns a configuration for the server's own address with the token of the client, or without credentials.
fn as_caller(caller: &OnceLock<Caller>, token: Option<&str>) -> Result<Config, Refusal> {
    let mut config = caller.get().ok_or_else(starting)?.config.clone();
    let auth = match token {
        Some(token) => serde_json::json!({ "token": token }),
        None => serde_json::json!({}),
    };
    config.auth_info = serde_json::from_value(auth).map_err(|error| {
        let text = format!("the token cannot be used: {}", in_words(&error));
        Refusal(StatusCode::BAD_REQUEST, text)
    })?;
    Ok(config)
}

/// Checks with the API server that the client may list the locks.
async fn check(client: &Client, scope: &Scope) -> Result<(), Refusal> {
    let path = elections::collection(LockKind::Leases, scope.namespace.as_deref()) + "?limit=1";
    match api::get(client, &path).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if [401, 403].contains(&status.code) => Err(Refusal(
            StatusCode::from_u16(status.code).unwrap_or(StatusCode::FORBIDDEN),
            status.message.clone(),
        )),
        // The board reports the error and retries.
        Err(_) => Ok(()),
    }
}

async fn may_steer(client: &Client, scope: &Scope, known: bool) -> Steer {
    if !known {
        return no("Sign in with a token.");
    }
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some("coordination.k8s.io".into()),
                resource: Some("leases".into()),
                namespace: scope.namespace.clone(),
                verb: Some("patch".into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    match reviews.create(&PostParams::default(), &review).await {
        Ok(answer) if answer.status.as_ref().is_some_and(|s| s.allowed) => yes(),
        Ok(_) => no("This token may not patch leases."),
        Err(_) => no("The API server does not say whether this token may patch leases."),
    }
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn secrets_are_compared_as_a_whole() {
        assert!(same("abc", "abc"));
        assert!(!same("abc", "abd") && !same("", "abc") && !same("abcd", "abc"));
    }
}
