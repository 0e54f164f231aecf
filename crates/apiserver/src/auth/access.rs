//! Security checks that need more than the request line.
//!
//! The server authenticates and authorizes the request line before the API handles the request. [`Access`] makes the
//! further checks that some requests need: a PUT that creates an object, a write of a role or a binding, the review
//! kinds, and tokens for service accounts.

use serde_json::Value;

use super::{Attributes, User};

/// The decision of an authorizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// The reason; may be empty.
    pub reason: String,
}

/// A token made for a service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    /// The signed token.
    pub token: String,
    /// Time at which it expires, in seconds since the epoch.
    pub expires_at: i64,
}

/// The claims of a token for a service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaims<'a> {
    /// Namespace of the service account.
    pub namespace: &'a str,
    /// Name of the service account.
    pub name: &'a str,
    /// Uid of the service account.
    pub uid: &'a str,
    /// Audiences of the token; never empty.
    pub audiences: &'a [String],
    /// Lifetime in seconds.
    pub seconds: i64,
    /// The object whose deletion makes the token invalid, in addition to the account.
    pub bound: Option<BoundObject<'a>>,
}

/// An object that a token is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundObject<'a> {
    /// `Pod`, `Secret` or `Node`.
    pub kind: &'a str,
    /// Name of the object.
    pub name: &'a str,
    /// Uid of the object.
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

/// Reason for which a role or a binding must not be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotGranted {
    /// The role or binding grants more than the writer has. The response is 403.
    #[error("{0}")]
    Beyond(String),
    /// The role of a binding does not exist, so its rules are unknown. The response is 404.
    #[error("{resource}.rbac.authorization.k8s.io {name:?} not found")]
    NoRole {
        /// `roles` or `clusterroles`.
        resource: &'static str,
        /// Name of the role.
        name: String,
    },
}

/// The audience of a token if the client names none.
pub const DEFAULT_AUDIENCE: &str = "https://kubernetes.default.svc";

/// Security checks of the API.
pub trait Access: Send + Sync + 'static {
    /// Decides whether a user has a permission that its request needs in addition to that of the request line.
    fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// Returns whether a decision about this user is short enough for a thread of the runtime.
    fn is_quick(&self, _: &User, _: &Attributes<'_>) -> bool {
        true
    }

    /// Returns the decision that a request of this user would get, for the review kinds.
    fn review(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// Returns the user of a bearer token, and the requested audiences for which the token is valid.
    ///
    /// # Errors
    /// The text for `TokenReview.status.error`.
    fn review_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), String>;

    /// Issues a token for a service account.
    fn issue_token(&self, claims: &TokenClaims<'_>) -> Result<IssuedToken, String>;

    /// Returns the maximum lifetime of a token in seconds. A request for a longer one gets a token with this lifetime.
    fn max_token_seconds(&self) -> Option<i64> {
        None
    }

    /// Checks that a user may store a role or binding. The API calls it before every write of an RBAC kind. The
    /// arguments are the plural name, the namespace (empty at cluster scope), the replaced version (`None` for a new
    /// object) and the object after the write.
    ///
    /// # Errors
    /// The reason for the rejection.
    fn check_grant(
        &self,
        user: &User,
        resource: &str,
        namespace: &str,
        old: Option<&Value>,
        object: &Value,
    ) -> Result<(), NotGranted>;

    /// Returns the rules of a user in a namespace.
    fn rules(&self, user: &User, namespace: &str) -> Rules;

    /// Returns the public keys of service account tokens as a JSON web key set, if tokens are issued.
    fn key_set(&self) -> Option<Value> {
        None
    }
}

/// Allows every request and accepts no token. For tests of the API.
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
        Err("this server issues no tokens".into())
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
