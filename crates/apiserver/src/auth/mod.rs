//! Who is asking, and may they.
//!
//! [`Auth`] is the one object that the rest of the server meets: the pipeline calls
//! [`Auth::authenticate`], [`Auth::impersonate`] and [`Auth::authorize`] before a request reaches the
//! API; the API asks the rest (reviews, tokens, who may grant what) through [`Access`], which
//! [`Auth`] implements.
//!
//! Invariant: a decision reflects every role and binding whose write was acknowledged before the
//! decision began.

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

/// The group of every caller that proved who it is.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of every caller that did not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The name of a caller that did not prove who it is.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group that may do everything, whatever the roles say.
pub const MASTERS: &str = "system:masters";

/// An authenticated caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Login name (`kubernetes-admin`, `system:serviceaccount:NS:NAME`, `system:anonymous`).
    pub name: String,
    /// Opaque id; may be empty.
    pub uid: String,
    /// Groups, `system:authenticated` or `system:unauthenticated` among them.
    pub groups: Vec<String>,
    /// Further claims, for reviews.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The caller that showed no credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.into(),
            groups: vec![UNAUTHENTICATED.into()],
            ..Self::default()
        }
    }

    /// A caller of this name and these groups, which gain `system:authenticated`.
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

    /// The administrator of the server, who bypasses the roles.
    #[must_use]
    pub fn admin() -> Self {
        Self::new("kubernetes-admin", [MASTERS.to_owned()])
    }

    /// Whether the caller is a member of the group.
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

/// Who decides what a caller may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The roles and bindings in the store.
    #[default]
    Rbac,
    /// Nobody: everything is allowed to everyone who is not turned away with 401.
    AlwaysAllow,
}

/// What [`Auth`] is made of besides the store.
#[derive(Default)]
pub struct Options {
    /// Who decides.
    pub mode: Mode,
    /// Static tokens.
    pub tokens: TokenFile,
    /// The key that signs ServiceAccount tokens; made anew, for this process only, if absent.
    pub key: Option<token::SigningKey>,
    /// Keys that signed tokens in the past, which stay valid.
    pub keys: Vec<token::VerifyingKey>,
    /// Longest life of an issued ServiceAccount token, in seconds.
    pub max_token_seconds: Option<i64>,
    /// Whether callers without credentials are `system:anonymous` (else 401).
    pub deny_anonymous: bool,
    /// Where observed traffic is recorded.
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
    /// Puts the parts together; reads the roles that the store holds now and follows them from here.
    ///
    /// # Errors
    /// If no signing key was given and none could be made.
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

    /// Finds out who sends a request: the client certificate's user if there is one, else the bearer
    /// token's, else anonymous.
    ///
    /// # Errors
    /// 401 for a token that nobody knows, and for none at all where anonymous callers are denied.
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

    /// Waits for what other servers on the same store have made, if a good token names an account that
    /// is not known here.
    ///
    /// # Errors
    /// 503 if the store cannot be asked.
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

    /// Replaces the caller by the one named in `Impersonate-*` headers, if it may do so.
    ///
    /// # Errors
    /// 403 if it may not, 400 if the headers make no sense.
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

    /// Decides whether the caller may do this. Records the wish if traffic is recorded.
    ///
    /// # Errors
    /// 403 with Kubernetes' text.
    pub fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Result<(), Failure> {
        self.record(user, attributes);
        self.permit(user, attributes)
    }

    /// Decides like [`Self::authorize`], unless the caller has so many rules that the decision takes long. Then it
    /// returns `None` and records nothing.
    pub(crate) fn authorize_briefly(
        &self,
        user: &User,
        attributes: &Attributes<'_>,
    ) -> Option<Result<(), Failure>> {
        let allowed = self.permit_briefly(user, attributes)?;
        self.record(user, attributes);
        Some(self.answer(allowed, user, attributes))
    }

    /// Returns whether the caller may do this, or `None` if that takes long.
    pub(crate) fn permit_briefly(&self, user: &User, attributes: &Attributes<'_>) -> Option<bool> {
        match &self.rbac {
            Some(rbac) => rbac.allows_briefly(user, attributes),
            None => Some(true),
        }
    }

    /// The decision with its reason, for reviews.
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

    /// The signer and verifier of ServiceAccount tokens.
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

    /// Changes with every change of the roles, bindings and static tokens that decisions use.
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

    /// Static tokens are for this server's own audience only.
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
