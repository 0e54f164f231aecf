//! What the API asks of security while it handles a request.
//!
//! The pipeline in front authenticates and authorizes the request line. Some answers need more: a PUT
//! that turns out to create, a role that must not grant more than its author has, the review kinds,
//! tokens for service accounts. They go through [`Access`].

use serde_json::Value;

use super::{Attributes, User};

/// The answer of an authorizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may go on.
    pub allowed: bool,
    /// Why; may be empty.
    pub reason: String,
}

/// A token made for a service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    /// The signed token.
    pub token: String,
    /// When it ends, in seconds since the epoch.
    pub expires_at: i64,
}

/// What a token for a service account shall say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaims<'a> {
    /// Namespace of the service account.
    pub namespace: &'a str,
    /// Name of the service account.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// For whom it is; never empty.
    pub audiences: &'a [String],
    /// How long it shall live.
    pub seconds: i64,
    /// What it lives and dies with besides the account.
    pub bound: Option<BoundObject<'a>>,
}

/// An object that a token is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundObject<'a> {
    /// `Pod`, `Secret` or `Node`.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
}

/// The rules that apply to one user in one namespace, as `SelfSubjectRulesReview` shows them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// Items of `resourceRules`: `{verbs, apiGroups, resources, resourceNames}`.
    pub resource_rules: Vec<Value>,
    /// Items of `nonResourceRules`: `{verbs, nonResourceURLs}`.
    pub non_resource_rules: Vec<Value>,
}

/// Why a role or a binding may not be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotGranted {
    /// It grants more than the writer has; the request is answered 403.
    #[error("{0}")]
    Beyond(String),
    /// What a binding would grant is unknown, because its role is not there; answered 404.
    #[error("{resource}.rbac.authorization.k8s.io {name:?} not found")]
    NoRole {
        /// `roles` or `clusterroles`.
        resource: &'static str,
        /// Of the role.
        name: String,
    },
}

/// The audience of tokens when a client names none.
pub const DEFAULT_AUDIENCE: &str = "https://kubernetes.default.svc";

/// Security, as seen by the API.
pub trait Access: Send + Sync + 'static {
    /// May this user do that, as its request turned out to need?
    fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// Returns whether a decision about this user is short enough for a thread of the runtime.
    fn is_quick(&self, _: &User, _: &Attributes<'_>) -> bool {
        true
    }

    /// What would the answer be, if this user wanted to do that? Somebody only asks.
    fn review(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// Who is the owner of this bearer token, and for which of the asked audiences is it good?
    /// `Err` is the text for `TokenReview.status.error`.
    fn review_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), String>;

    /// Makes a token for a service account.
    fn issue_token(&self, claims: &TokenClaims<'_>) -> Result<IssuedToken, String>;

    /// The longest life of a token, in seconds; a request for more gets a token of this life.
    fn max_token_seconds(&self) -> Option<i64> {
        None
    }

    /// May this user store this role or binding? Called before every write of an RBAC kind, with
    /// the plural name, the namespace (empty at cluster scope), the version that the write replaces
    /// (`None` where it creates) and the object after the write.
    ///
    /// # Errors
    /// Why not.
    fn check_grant(
        &self,
        user: &User,
        resource: &str,
        namespace: &str,
        old: Option<&Value>,
        object: &Value,
    ) -> Result<(), NotGranted>;

    /// The rules of a user in a namespace.
    fn rules(&self, user: &User, namespace: &str) -> Rules;

    /// The public keys of service account tokens as a JSON web key set, if there are any.
    fn key_set(&self) -> Option<Value> {
        None
    }
}

/// Allows everything and knows no tokens; for plain tests of the API.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl Access for AllowAll {
    fn authorize(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision {
            allowed: true,
            reason: String::new(),
        }
    }

    fn review(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        self.authorize(user, attributes)
    }

    fn review_token(&self, _: &str, _: &[String]) -> Result<(User, Vec<String>), String> {
        Err("invalid bearer token".into())
    }

    fn issue_token(&self, _: &TokenClaims<'_>) -> Result<IssuedToken, String> {
        Err("this server makes no tokens".into())
    }

    fn check_grant(
        &self,
        _: &User,
        _: &str,
        _: &str,
        _: Option<&Value>,
        _: &Value,
    ) -> Result<(), NotGranted> {
        Ok(())
    }

    fn rules(&self, _: &User, _: &str) -> Rules {
        let all = serde_json::json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
        Rules {
            resource_rules: vec![all],
            non_resource_rules: Vec::new(),
        }
    }
}
