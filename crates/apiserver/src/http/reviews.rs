//! Kinds that are not stored: access reviews, token reviews, and POST to subresources.

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::accept::negotiate_object;
use super::body;
use super::options::{self, FieldValidation};
use super::resource::Call;
use super::{Body, respond};
use crate::auth::{Attributes, BoundObject, DEFAULT_AUDIENCE, Target, TokenClaims, User};
use crate::registry::meta::{metadata, rfc3339};
use crate::registry::rules::{items, text};
use crate::registry::{self, Review, Source, Subresource};
use crate::status::{Cause, Failure};

/// Minimum, default and maximum lifetime of a token, in seconds.
const TOKEN_SECONDS: (i64, i64, i64) = (600, 3_600, 1 << 32);

impl Call<'_> {
    /// Answers a review.
    pub(super) async fn review<B>(
        &mut self,
        question: Review,
        body: B,
    ) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let kind = self.target.kind;
        let version = self.target.version;
        let mut review = self
            .question(body, (kind.group(), version.name(), kind.kind()))
            .await?;
        metadata(&mut review);
        let spec = review.get("spec").cloned().unwrap_or_else(|| json!({}));
        let status = match question {
            Review::SelfSubject => {
                let now = rfc3339(Timestamp::now());
                metadata(&mut review).insert("creationTimestamp".into(), json!(now));
                json!({"userInfo": user_info(self.user)})
            }
            Review::Token if text(&spec, "/token").is_empty() => {
                return Err(Failure::bad_request(
                    "token is required for TokenReview in authentication",
                ));
            }
            Review::Token => {
                super::list::catch_up(&self.api.registry.store, None).await?;
                self.review_token(&spec)
            }
            Review::SelfAccess => self.review_access(self.user, &spec)?,
            Review::SelfRules => self.review_rules(&spec)?,
            Review::Access => {
                let subject = subject(&spec)?;
                if kind.namespaced
                    && text(&spec, "/resourceAttributes/namespace") != self.target.namespace
                {
                    let field = "spec.resourceAttributes.namespace";
                    let value = json!(text(&spec, "/resourceAttributes/namespace"));
                    let cause = Cause::invalid(field, &value, "must match metadata.namespace");
                    return Err(Failure::invalid((kind.group(), ""), "", vec![cause]));
                }
                self.review_access(&subject, &spec)?
            }
        };
        review["status"] = status;
        self.answer_question(kind.kind(), &kind.api_version(version), &review)
    }

    /// `POST serviceaccounts/NAME/token`.
    pub(super) async fn issue_token<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let gvk = ("authentication.k8s.io", "v1", "TokenRequest");
        let write = options::write_options(&self.query, &self.parts.headers, "CreateOptions")?;
        let mut request = self.question(body, gvk).await?;
        super::list::catch_up(&self.api.registry.store, None).await?;
        // Nothing is stored, but the issued token permits later writes.
        self.api.registry.check_fence(&self.target, &write)?;
        let account = self.api.registry.get(&self.target)?;
        let account: Value = serde_json::from_slice(&account.json).unwrap_or_default();
        let uid = text(&account, "/metadata/uid");
        let asked = items(&request, "/spec/audiences")
            .iter()
            .filter_map(Value::as_str);
        let mut audiences: Vec<String> = asked.map(str::to_owned).collect();
        if audiences.is_empty() {
            audiences.push(DEFAULT_AUDIENCE.to_owned());
        }
        let (least, default, most) = TOKEN_SECONDS;
        let seconds = request
            .pointer("/spec/expirationSeconds")
            .and_then(Value::as_i64);
        let seconds = seconds.unwrap_or(default);
        if !(least..=most).contains(&seconds) {
            let why = if seconds < least {
                "may not specify a duration less than 10 minutes"
            } else {
                "may not specify a duration larger than 2^32 seconds"
            };
            let cause = Cause::invalid("spec.expirationSeconds", &json!(seconds), why);
            let kind = ("authentication.k8s.io", "TokenRequest");
            return Err(Failure::invalid(kind, "", vec![cause]));
        }
        let seconds = match self.api.access.max_token_seconds() {
            Some(most) if seconds > most => {
                self.warnings.push(format!(
                    "requested expiration of {seconds} seconds shortened to {most} seconds"
                ));
                most
            }
            _ => seconds,
        };
        let bound = self.bound_object(&request)?;
        let bound = bound
            .as_ref()
            .map(|(kind, name, uid)| BoundObject { kind, name, uid });
        let claims = TokenClaims {
            bound,
            namespace: self.target.namespace,
            name: self.target.name,
            uid,
            audiences: &audiences,
            seconds,
        };
        let issued = self
            .api
            .access
            .issue_token(&claims)
            .map_err(Failure::internal)?;
        let expires = Timestamp::from_second(issued.expires_at).unwrap_or(Timestamp::MAX);
        request["metadata"] = json!({
            "name": self.target.name,
            "namespace": self.target.namespace,
            "uid": uid,
            "creationTimestamp": rfc3339(Timestamp::now()),
        });
        request["spec"] = json!({"audiences": audiences, "expirationSeconds": seconds,
            "boundObjectRef": request.pointer("/spec/boundObjectRef")});
        request["status"] = json!({"token": issued.token, "expirationTimestamp": rfc3339(expires)});
        self.answer_question("TokenRequest", "authentication.k8s.io/v1", &request)
    }

    /// Returns kind, name and uid of the object to which the token is to be bound.
    fn bound_object(&self, request: &Value) -> Result<Option<(String, String, String)>, Failure> {
        let Some(wanted) = request
            .pointer("/spec/boundObjectRef")
            .filter(|wanted| !wanted.is_null())
        else {
            return Ok(None);
        };
        let account = self.target.name;
        let (kind, name) = (text(wanted, "/kind"), text(wanted, "/name"));
        let plural = match (text(wanted, "/apiVersion"), kind) {
            ("v1", "Pod") => "pods",
            ("v1", "Secret") => "secrets",
            ("v1", "Node") => "nodes",
            (version, kind) => {
                return Err(Failure::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to object of type \
                     {version}, Kind={kind}"
                )));
            }
        };
        let kind_entry = registry::find("", plural).expect("pods, secrets and nodes are kinds");
        let target = registry::Target {
            kind: kind_entry,
            version: &kind_entry.versions()[0],
            namespace: self.target.namespace,
            name,
        };
        let object = self.api.registry.get(&target)?;
        let object: Value = serde_json::from_slice(&object.json).unwrap_or_default();
        if kind == "Pod" && text(&object, "/spec/serviceAccountName") != account {
            return Err(Failure::bad_request(format!(
                "cannot bind token for serviceaccount {account:?} to pod running with different \
                 serviceaccount name."
            )));
        }
        let (asked, uid) = (text(wanted, "/uid"), text(&object, "/metadata/uid"));
        if !asked.is_empty() && asked != uid {
            let why = format!(
                "the UID in the bound object reference ({asked}) does not match the UID in record. \
                 The object might have been deleted and then recreated"
            );
            return Err(Failure::conflict(("", plural), name, &why));
        }
        Ok(Some((kind.to_owned(), name.to_owned(), uid.to_owned())))
    }

    /// `POST pods/NAME/binding`: assigns a pod to a node.
    pub(super) async fn bind<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let write = options::write_options(&self.query, &self.parts.headers, "CreateOptions")?;
        let binding = self.question(body, ("", "v1", "Binding")).await?;
        let node = text(&binding, "/target/name").to_owned();
        if node.is_empty() {
            let cause = Cause::required("target.name", "");
            return Err(Failure::invalid(
                ("", "Binding"),
                self.target.name,
                vec![cause],
            ));
        }
        let (resource, name) = (("", "pods/binding"), self.target.name);
        let place = |old: &Value| {
            let present = text(old, "/spec/nodeName");
            if !present.is_empty() {
                let why = format!("pod {name} is already assigned to node {present:?}");
                return Err(Failure::conflict(resource, name, &why));
            }
            let mut new = old.clone();
            new["spec"]["nodeName"] = json!(node);
            let conditions = new["status"].get("conditions").and_then(Value::as_array);
            let mut conditions = conditions.cloned().unwrap_or_default();
            conditions.retain(|condition| condition["type"] != "PodScheduled");
            conditions.push(json!({"type": "PodScheduled", "status": "True",
                "lastProbeTime": null, "lastTransitionTime": rfc3339(Timestamp::now())}));
            new["status"]["conditions"] = json!(conditions);
            Ok(new)
        };
        let registry = &self.api.registry;
        registry
            .update(
                &self.target,
                Some(Subresource::Binding),
                Source::Patch(&place),
                self.user,
                &write,
            )
            .await?;
        Ok(success(StatusCode::CREATED))
    }

    /// `POST pods/NAME/eviction`: deletes a pod if its disruption budget allows it.
    pub(super) async fn evict<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let eviction = self.question(body, ("policy", "v1", "Eviction")).await?;
        let empty = json!({});
        let wanted = eviction.get("deleteOptions").unwrap_or(&empty);
        let options = super::delete_options::parse(wanted, &self.query, &self.parts.headers)?;
        if text(&eviction, "/metadata/name") != self.target.name {
            let why = "name in URL does not match name in Eviction object";
            return Err(Failure::bad_request(why));
        }
        self.api.registry.evict(&self.target, &options).await?;
        Ok(success(StatusCode::CREATED))
    }

    async fn question<B>(&mut self, body: B, gvk: (&str, &str, &str)) -> Result<Value, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.form()?;
        negotiate_object(&self.parts.headers)?;
        let media = body::media(&self.parts.headers)?;
        let bytes: Bytes = body::read(body, &self.parts.headers).await?;
        let decoded = body::decode_as(gvk, media, &bytes, FieldValidation::Warn)?;
        self.warnings.extend(decoded.warnings);
        Ok(decoded.value)
    }

    fn answer_question(
        &self,
        kind: &str,
        api_version: &str,
        review: &Value,
    ) -> Result<Response<Body>, Failure> {
        let mut answer = review.clone();
        answer["kind"] = json!(kind);
        answer["apiVersion"] = json!(api_version);
        Ok(respond::json(
            StatusCode::CREATED,
            answer.to_string() + "\n",
        ))
    }

    fn review_token(&self, spec: &Value) -> Value {
        let asked = items(spec, "/audiences")
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned);
        let mut audiences: Vec<String> = asked.collect();
        if audiences.is_empty() {
            audiences.push(DEFAULT_AUDIENCE.to_owned());
        }
        match self
            .api
            .access
            .review_token(text(spec, "/token"), &audiences)
        {
            Ok((user, audiences)) => json!({"authenticated": true, "user": user_info(&user),
                "audiences": audiences}),
            Err(error) => json!({"user": {}, "error": error}),
        }
    }

    fn review_access(&self, user: &User, spec: &Value) -> Result<Value, Failure> {
        let get = |path: &str| text(spec, path);
        let resource = spec.get("resourceAttributes").filter(|v| !v.is_null());
        let path = spec.get("nonResourceAttributes").filter(|v| !v.is_null());
        let attributes = match (resource, path) {
            (Some(_), None) => Attributes {
                verb: get("/resourceAttributes/verb"),
                target: Target::Resource {
                    group: get("/resourceAttributes/group"),
                    resource: get("/resourceAttributes/resource"),
                    subresource: get("/resourceAttributes/subresource"),
                    namespace: get("/resourceAttributes/namespace"),
                    name: get("/resourceAttributes/name"),
                },
            },
            (None, Some(_)) => Attributes {
                verb: get("/nonResourceAttributes/verb"),
                target: Target::Path(get("/nonResourceAttributes/path")),
            },
            _ => {
                let why = "exactly one of nonResourceAttributes or resourceAttributes must be \
                           specified";
                let cause = Cause::invalid("spec.resourceAttributes", &Value::Null, why);
                return Err(Failure::invalid(
                    (self.target.kind.group(), ""),
                    "",
                    vec![cause],
                ));
            }
        };
        let decision = self.api.access.review(user, &attributes);
        let mut status = json!({"allowed": decision.allowed});
        if !decision.reason.is_empty() {
            status["reason"] = json!(decision.reason);
        }
        Ok(status)
    }

    fn review_rules(&self, spec: &Value) -> Result<Value, Failure> {
        let namespace = text(spec, "/namespace");
        if namespace.is_empty() {
            return Err(Failure::bad_request("no namespace on request"));
        }
        let rules = self.api.access.rules(self.user, namespace);
        Ok(json!({"resourceRules": rules.resource_rules,
            "nonResourceRules": rules.non_resource_rules, "incomplete": false}))
    }
}

/// Returns the subject of a SubjectAccessReview.
fn subject(spec: &Value) -> Result<User, Failure> {
    let groups = items(spec, "/groups")
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned);
    let extra = registry::rules::entries(spec, "/extra").map(|(key, values)| {
        let values = values
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        (key.clone(), values.map(str::to_owned).collect())
    });
    let user = User {
        name: text(spec, "/user").to_owned(),
        uid: text(spec, "/uid").to_owned(),
        groups: groups.collect(),
        extra: extra.collect(),
    };
    if user.name.is_empty() && user.groups.is_empty() {
        let why = "at least one of user or group must be specified";
        let cause = Cause::invalid("spec.user", &json!(""), why);
        return Err(Failure::invalid(
            ("authorization.k8s.io", ""),
            "",
            vec![cause],
        ));
    }
    Ok(user)
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    if !user.groups.is_empty() {
        info["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

fn success(code: StatusCode) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "code": code.as_u16()});
    respond::json(code, status.to_string() + "\n")
}
