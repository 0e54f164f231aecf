//! The security checks that the API performs while it handles a request.

use serde_json::{Value, json};

use super::rbac::{Grant, Rule};
use super::{
    Access, Attributes, Auth, Decision, IssuedToken, NotGranted, Rules, TokenClaims, User, token,
};

impl Access for Auth {
    fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        self.record(user, attributes);
        self.decide(user, attributes)
    }

    fn is_quick(&self, user: &User, attributes: &Attributes<'_>) -> bool {
        self.permit_briefly(user, attributes).is_some()
    }

    fn review(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        self.decide(user, attributes)
    }

    fn review_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), String> {
        let default = [token::AUDIENCE.to_owned()];
        let audiences = if audiences.is_empty() {
            &default
        } else {
            audiences
        };
        let mut found = None;
        let mut fitting = Vec::new();
        for audience in audiences {
            if let Some(user) = self.token_user(token, audience) {
                found = Some(user);
                fitting.push(audience.clone());
            }
        }
        found
            .map(|user| (user, fitting))
            .ok_or_else(|| "invalid bearer token".into())
    }

    fn issue_token(&self, claims: &TokenClaims<'_>) -> Result<IssuedToken, String> {
        self.issuer
            .issue(claims)
            .ok_or_else(|| "the token could not be signed".into())
    }

    fn max_token_seconds(&self) -> Option<i64> {
        self.max_token_seconds
    }

    fn check_grant(
        &self,
        user: &User,
        resource: &str,
        namespace: &str,
        old: Option<&Value>,
        object: &Value,
    ) -> Result<(), NotGranted> {
        let Some(grant) = Grant::of(resource, namespace, old, object) else {
            return Ok(());
        };
        self.record(user, &grant.lifted_by());
        match &self.rbac {
            Some(rbac) => rbac.check_grant(user, &grant),
            None => Ok(()),
        }
    }

    fn key_set(&self) -> Option<Value> {
        Some(self.issuer.key_set())
    }

    fn rules(&self, user: &User, namespace: &str) -> Rules {
        let rules = match &self.rbac {
            Some(rbac) => rbac.rules(user, namespace),
            None => Rule::everything().into(),
        };
        let mut out = Rules::default();
        for rule in rules {
            if !rule.resources.is_empty() {
                let mut item = json!({
                    "verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources,
                });
                if !rule.resource_names.is_empty() {
                    item["resourceNames"] = rule.resource_names.into();
                }
                out.resource_rules.push(item);
            } else if !rule.non_resource_urls.is_empty() {
                let item =
                    json!({ "verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls });
                out.non_resource_rules.push(item);
            }
        }
        out
    }
}
