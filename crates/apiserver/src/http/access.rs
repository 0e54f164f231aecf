//! What the API asks of security while it handles a request.
//!
//! The pipeline in front authenticates and authorizes the request line. Some answers need more: a PUT
//! that turns out to create, a role that must not grant more than its author has, the review kinds,
//! tokens for service accounts. They go through [`Access`].

use serde_json::Value;

use crate::auth::{Attributes, User};

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
}

/// The rules that apply to one user in one namespace, as `SelfSubjectRulesReview` shows them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// Items of `resourceRules`: `{verbs, apiGroups, resources, resourceNames}`.
    pub resource_rules: Vec<Value>,
    /// Items of `nonResourceRules`: `{verbs, nonResourceURLs}`.
    pub non_resource_rules: Vec<Value>,
}

/// The audience of tokens when a client names none.
pub const DEFAULT_AUDIENCE: &str = "https://kubernetes.default.svc";

/// Security, as seen by the API.
pub trait Access: Send + Sync + 'static {
    /// May this user do that?
    fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// Who is the owner of this bearer token, and for which of the asked audiences is it good?
    /// `Err` is the text for `TokenReview.status.error`.
    fn review_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), String>;

    /// Makes a token for a service account.
    fn issue_token(&self, claims: &TokenClaims<'_>) -> Result<IssuedToken, String>;

    /// May this user store this role or binding? Called before every write of an RBAC kind, with
    /// the plural name, the namespace (empty at cluster scope) and the object after the write.
    /// `Err` says what it would grant beyond what the user has; the request is answered 403.
    fn check_grant(
        &self,
        user: &User,
        resource: &str,
        namespace: &str,
        object: &Value,
    ) -> Result<(), String>;

    /// The rules of a user in a namespace.
    fn rules(&self, user: &User, namespace: &str) -> Rules;
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

    fn review_token(&self, _: &str, _: &[String]) -> Result<(User, Vec<String>), String> {
        Err("invalid bearer token".into())
    }

    fn issue_token(&self, _: &TokenClaims<'_>) -> Result<IssuedToken, String> {
        Err("this server makes no tokens".into())
    }

    fn check_grant(&self, _: &User, _: &str, _: &str, _: &Value) -> Result<(), String> {
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
