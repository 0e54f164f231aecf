//! Authentication and authorization.
//!
//! The pipeline of the server calls [`Auth::authenticate`], [`Auth::impersonate`] and [`Auth::authorize`] before a
//! request reaches the API. [`Auth`] also implements [`Access`], through which the API makes further checks: reviews,
//! tokens and privilege escalation.
//!
//! Invariant: a decision reflects every role and binding whose write was acknowledged before the decision began.

mod access;
pub mod bootstrap;
mod checks;
mod impersonate;
mod keys;
pub mod rbac;
mod record;
#[cfg(test)]
mod tests;
pub mod token;
mod token_file;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderMap;

use crate::status::Failure;
use crate::store::Store;

pub use access::{
    Access, AllowAll, BoundObject, DEFAULT_AUDIENCE, Decision, IssuedToken, NotGranted, Rules,
    TokenClaims,
};
pub(crate) use impersonate::headers as impersonation_headers;
pub use record::Recorder;
pub use token_file::{TokenFile, TokenFileError};

pub use crate::request::{Attributes, Target};

/// The group of every authenticated caller.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of every anonymous caller.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The name of an anonymous caller.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group that may do everything, regardless of the roles.
pub const MASTERS: &str = "system:masters";

/// An authenticated caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Login name (`kubernetes-admin`, `system:serviceaccount:NS:NAME`, `system:anonymous`).
    pub name: String,
    /// Opaque id; may be empty.
    pub uid: String,
    /// Groups, including `system:authenticated` or `system:unauthenticated`.
    pub groups: Vec<String>,
    /// Additional claims, for reviews.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Returns the user of a request without credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.into(),
            groups: vec![UNAUTHENTICATED.into()],
            ..Self::default()
        }
    }

    /// Returns a user with this name, these groups and `system:authenticated`.
    #[must_use]
    pub fn new(name: impl Into<String>, groups: impl IntoIterator<Item = String>) -> Self {
        let mut user = Self {
            name: name.into(),
            ..Self::default()
        };
        user.groups.extend(groups);
        user.add_group(AUTHENTICATED);
        user
    }

    /// Returns the administrator of the server, whom the roles do not restrict.
    #[must_use]
    pub fn admin() -> Self {
        Self::new("kubernetes-admin", [MASTERS.to_owned()])
    }

    /// Returns whether the user is a member of the group.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    pub(crate) fn add_group(&mut self, group: &str) {
        if !self.is_in(group) {
            self.groups.push(group.to_owned());
        }
    }
}

/// The authorization mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The roles and bindings in the store.
    #[default]
    Rbac,
    /// Every request that passes authentication is allowed.
    AlwaysAllow,
}

/// Options of [`Auth`].
#[derive(Default)]
pub struct Options {
    /// The authorization mode.
    pub mode: Mode,
    /// Static tokens.
    pub tokens: TokenFile,
    /// The key that signs ServiceAccount tokens. If absent, a key is generated for this process.
    pub key: Option<token::SigningKey>,
    /// Former signing keys, whose tokens stay valid.
    pub keys: Vec<token::VerifyingKey>,
    /// Maximum lifetime of an issued ServiceAccount token, in seconds.
    pub max_token_seconds: Option<i64>,
    /// Whether requests without credentials are rejected with 401. Otherwise their user is `system:anonymous`.
    pub deny_anonymous: bool,
    /// Records the observed requests.
    pub recorder: Option<Arc<Recorder>>,
}

/// Authentication and authorization over one store.
pub struct Auth {
    store: Arc<dyn Store>,
    rbac: Option<rbac::Authorizer>,
    tokens: RwLock<TokenFile>,
    /// Grows with every change of `tokens`.
    token_changes: AtomicU64,
    max_token_seconds: Option<i64>,
    issuer: token::Issuer,
    deny_anonymous: bool,
    recorder: Option<Arc<Recorder>>,
}

impl Auth {
    /// Reads the roles in the store. Every later decision applies their changes first.
    ///
    /// # Errors
    /// Returns an error if there is no signing key and none can be generated.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Result<Self, token::KeyError> {
        let key = options.key.map_or_else(token::SigningKey::generate, Ok)?;
        let rbac = match options.mode {
            Mode::Rbac => Some(rbac::Authorizer::new(Arc::clone(&store))),
            Mode::AlwaysAllow => None,
        };
        Ok(Self {
            rbac,
            tokens: RwLock::new(options.tokens),
            token_changes: AtomicU64::new(0),
            max_token_seconds: options.max_token_seconds,
            issuer: token::Issuer::new(key).accept(options.keys),
            deny_anonymous: options.deny_anonymous,
            recorder: options.recorder,
            store,
        })
    }

    /// Returns the user of a request: that of the client certificate, otherwise that of the bearer token, otherwise
    /// `system:anonymous`.
    ///
    /// # Errors
    /// Returns 401 for an unknown token, and for a request without credentials if anonymous callers are denied.
    pub fn authenticate<'a>(
        &self,
        certificate: Option<&'a User>,
        headers: &HeaderMap,
    ) -> Result<Cow<'a, User>, Failure> {
        if let Some(user) = certificate {
            return Ok(Cow::Borrowed(user));
        }
        match bearer(headers) {
            Some(token) => self
                .token_user(token, token::AUDIENCE)
                .map(Cow::Owned)
                .ok_or_else(Failure::unauthorized),
            None if self.deny_anonymous => Err(Failure::unauthorized()),
            None => Ok(Cow::Owned(User::anonymous())),
        }
    }

    /// Waits for the writes of other servers on the same store if a valid token names an account that is unknown here.
    ///
    /// # Errors
    /// Returns 503 if the store cannot be reached.
    pub async fn catch_up(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let Some(token) = bearer(headers).filter(|_| self.store.shared()) else {
            return Ok(());
        };
        let verified = (self.issuer).verify(token, token::AUDIENCE, self.store.as_ref());
        if let Err(token::Rejected::Gone | token::Rejected::Unbound) = verified {
            self.store.fresh().await?;
        }
        Ok(())
    }

    /// Replaces the user with the one in the `Impersonate-*` headers, if there are any.
    ///
    /// # Errors
    /// Returns 403 if the user may not impersonate, and 400 if the headers are invalid.
    pub fn impersonate<'a>(
        &self,
        user: Cow<'a, User>,
        headers: &HeaderMap,
    ) -> Result<Cow<'a, User>, Failure> {
        match impersonate::wanted(headers)? {
            None => Ok(user),
            Some(wanted) => {
                wanted.permissions(|attributes| self.authorize(&user, &attributes))?;
                Ok(Cow::Owned(wanted.into_user()))
            }
        }
    }

    /// Authorizes a request. Records it if a recorder is configured.
    ///
    /// # Errors
    /// Returns 403 with the text of Kubernetes.
    pub fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Result<(), Failure> {
        self.record(user, attributes);
        self.permit(user, attributes)
    }

    /// Like [`Self::authorize`]. Returns `None` and records nothing if the user has so many rules that the decision
    /// takes long.
    pub(crate) fn authorize_briefly(
        &self,
        user: &User,
        attributes: &Attributes<'_>,
    ) -> Option<Result<(), Failure>> {
        let allowed = self.permit_briefly(user, attributes)?;
        self.record(user, attributes);
        Some(self.answer(allowed, user, attributes))
    }

    /// Returns whether the request is allowed; `None` if the decision takes long.
    pub(crate) fn permit_briefly(&self, user: &User, attributes: &Attributes<'_>) -> Option<bool> {
        match &self.rbac {
            Some(rbac) => rbac.allows_briefly(user, attributes),
            None => Some(true),
        }
    }

    /// Returns the decision with its reason, for reviews.
    #[must_use]
    pub fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        match &self.rbac {
            Some(rbac) => rbac.decide(user, attributes),
            None => Decision {
                allowed: true,
                reason: String::new(),
            },
        }
    }

    /// Returns the issuer of ServiceAccount tokens.
    #[must_use]
    pub fn issuer(&self) -> &token::Issuer {
        &self.issuer
    }

    /// Replaces the static tokens. Returns false if they are the same.
    pub(crate) fn set_tokens(&self, tokens: TokenFile) -> bool {
        let mut current = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
        if *current == tokens {
            return false;
        }
        *current = tokens;
        self.token_changes.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Returns a number that changes with every change of the roles, bindings and static tokens.
    pub(crate) fn generation(&self) -> u64 {
        let roles = self.rbac.as_ref().map_or(0, rbac::Authorizer::generation);
        roles + self.token_changes.load(Ordering::Acquire)
    }

    fn record(&self, user: &User, attributes: &Attributes<'_>) {
        if let Some(recorder) = &self.recorder {
            recorder.observe(user, attributes);
        }
    }

    pub(crate) fn permit(&self, user: &User, attributes: &Attributes<'_>) -> Result<(), Failure> {
        let allowed = match &self.rbac {
            Some(rbac) => rbac.allows(user, attributes),
            None => true,
        };
        self.answer(allowed, user, attributes)
    }

    fn answer(
        &self,
        allowed: bool,
        user: &User,
        attributes: &Attributes<'_>,
    ) -> Result<(), Failure> {
        if allowed {
            return Ok(());
        }
        let why = self.decide(user, attributes).reason;
        Err(Failure::forbidden(&user.name, attributes, &why))
    }

    /// Returns the user of a token. Static tokens are valid for this server's own audience only.
    pub(crate) fn token_user(&self, token: &str, audience: &str) -> Option<User> {
        let known = if audience == token::AUDIENCE {
            let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
            tokens.user(token)
        } else {
            None
        };
        known.or_else(|| {
            self.issuer
                .verify(token, audience, self.store.as_ref())
                .ok()
        })
    }
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers
        .get(http::header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
