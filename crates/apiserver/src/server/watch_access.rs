//! Authorizes a running watch again.
//!
//! A watch can run for an hour. Meanwhile, its token can expire, and its ServiceAccount or its binding can be deleted.
//! kube-apiserver notices that only when the watch times out. This server ends the watch within [`MOST_MILLIS`].

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use crate::auth::{Auth, MASTERS, User, bearer, impersonation_headers, token};
use crate::fairness::Tenant;
use crate::request::RequestInfo;

/// Shortest time between two checks of a watch.
const LEAST_MILLIS: u64 = 5_000;
/// Longest time between two checks of a watch. The times are random, so that watches do not check at the same time.
const MOST_MILLIS: u64 = 9_500;

/// The credentials and the request line of a watch.
pub(super) struct WatchAccess {
    auth: Arc<Auth>,
    caller: Caller,
    /// Only the `Impersonate-*` headers.
    impersonation: Option<Box<HeaderMap>>,
    info: RequestInfo,
    /// The generation of roles and tokens that allowed the watch.
    allowed_at: u64,
    /// The shares of the user, for a decision that takes long.
    tenant: Tenant,
}

enum Caller {
    /// A user without a token: identified by a certificate or the socket, or anonymous.
    Known(User),
    Token(Box<str>),
}

impl WatchAccess {
    /// Stores the credentials of a watch. `known` is the user that the connection itself identifies.
    pub(super) fn new(
        auth: &Arc<Auth>,
        known: Option<User>,
        headers: &HeaderMap,
        info: &RequestInfo,
        tenant: Tenant,
    ) -> Self {
        let caller = match (known, bearer(headers)) {
            (Some(user), _) => Caller::Known(user),
            (None, Some(token)) => Caller::Token(token.into()),
            (None, None) => Caller::Known(User::anonymous()),
        };
        Self {
            auth: Arc::clone(auth),
            caller,
            impersonation: impersonation_headers(headers).map(Box::new),
            info: info.clone(),
            // Roles may have changed since the watch was authorized, so the first check must not rely on the
            // generation.
            allowed_at: u64::MAX,
            tenant,
        }
    }

    /// Resolves when the user may no longer watch.
    pub(super) async fn ended(mut self) {
        let always = matches!(&self.caller, Caller::Known(user) if user.is_in(MASTERS));
        if always && self.impersonation.is_none() {
            return std::future::pending().await;
        }
        while self.holds().await {
            let millis = rand::random_range(LEAST_MILLIS..MOST_MILLIS);
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
        tracing::info!(
            verb = self.info.verb.as_str(),
            "watch ended, because its user lost the right to it"
        );
    }

    /// Checks the credentials, and the roles if one of them changed since the last check.
    async fn holds(&mut self) -> bool {
        // The generation is read first, so that a change during the check causes another check.
        let generation = self.auth.generation();
        let user = match &self.caller {
            Caller::Known(user) => Cow::Borrowed(user),
            Caller::Token(token) => match self.auth.token_user(token, token::AUDIENCE) {
                Some(user) => Cow::Owned(user),
                None => return false,
            },
        };
        if generation == self.allowed_at {
            return true;
        }
        let none = HeaderMap::new();
        let headers = self.impersonation.as_deref().unwrap_or(&none);
        let Ok(user) = self.auth.impersonate(user, headers) else {
            return false;
        };
        let attributes = self.info.attributes();
        let allowed = match self.auth.permit_briefly(&user, &attributes) {
            Some(allowed) => allowed,
            None => {
                let decide = async { self.auth.permit(&user, &attributes).is_ok() };
                // If no seat is free for the decision, the watch ends, because an outdated decision must not stay in
                // force.
                self.tenant.off_workers(decide).await.unwrap_or(false)
            }
        };
        self.allowed_at = generation;
        allowed
    }
}
