//! The scale subresource: the desired and the current number of replicas, in one form for every kind.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::patch::{APPLY, configuration, finish, take_member};
use super::resource::{Call, check_name};
use super::{Body, body, options, respond};
use crate::patch;
use crate::registry::rules::text;
use crate::registry::{Configuration, Scale, Source, Subresource, Target, WriteOptions};
use crate::request::Verb;
use crate::status::{Cause, Failure};

impl Call<'_> {
    /// Reads or changes the scale.
    pub(super) async fn scale<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let place = place(&self.target).ok_or_else(Failure::no_resource)?;
        let registry = &self.api.registry;
        if self.verb == Verb::Get {
            super::list::catch_up(&registry.store, None).await?;
            let stored = registry.get(&self.target)?;
            return answer(&self.target, &place, &stored.json);
        }
        let (content, options) = if self.verb == Verb::Patch {
            self.patch_options()?
        } else {
            let (query, headers) = (&self.query, &self.parts.headers);
            ("", options::write_options(query, headers, "UpdateOptions")?)
        };
        let bytes = body::read(body, &self.parts.headers).await?;
        if content == APPLY {
            return self.apply_scale(&place, &bytes, &options).await;
        }
        let target = self.target;
        let whole = if self.verb == Verb::Patch {
            None
        } else {
            let media = body::media(&self.parts.headers)?;
            let known = ("autoscaling", "v1", "Scale");
            let validation = options::FieldValidation::Ignore;
            let scale = body::decode_as(known, media, &bytes, validation)?.value;
            check_name(&target, &scale)?;
            Some(scale)
        };
        let change = |old: &Value| {
            let scale = match &whole {
                Some(scale) => scale.clone(),
                None => patched(scale_of(&target, &place, old), content, &bytes)?,
            };
            let replicas = replicas(&target, &scale)?.unwrap_or(0);
            let mut new = old.clone();
            set(&mut new, &place.replicas, json!(replicas));
            let version = text(&scale, "/metadata/resourceVersion");
            if !version.is_empty() {
                new["metadata"]["resourceVersion"] = json!(version);
            }
            Ok(new)
        };
        let sub = Some(Subresource::Scale);
        let (stored, _) = registry
            .update(&target, sub, Source::Patch(&change), self.user, &options)
            .await?;
        answer(&target, &place, &stored)
    }

    /// Applies a scale. It sets one field of the object, and its manager becomes the owner of that field.
    async fn apply_scale(
        &self,
        place: &Scale,
        bytes: &[u8],
        options: &WriteOptions,
    ) -> Result<Response<Body>, Failure> {
        let target = self.target;
        let store = |object: Value| {
            let (value, _) = finish(&target, object, options::FieldValidation::Ignore)?;
            check_name(&target, &value)?;
            Ok(value)
        };
        let (mut scale, _) = configuration(bytes)?;
        let mut stated = Configuration {
            api_version: take_member(&mut scale, "apiVersion"),
            kind: take_member(&mut scale, "kind"),
            object: scale,
            force: self.query.flag("force"),
            store: &store,
        };
        stated.check("autoscaling", "v1", "Scale")?;
        let mut object = json!({"metadata": {"name": target.name}});
        for member in ["name", "namespace", "uid", "resourceVersion"] {
            if let Some(value) = stated.object.pointer(&format!("/metadata/{member}")) {
                object["metadata"][member] = value.clone();
            }
        }
        if let Some(replicas) = replicas(&target, &stated.object)? {
            set(&mut object, &place.replicas, json!(replicas));
        }
        stated.api_version = target.kind.api_version(target.version);
        target.kind.kind().clone_into(&mut stated.kind);
        stated.object = object;
        let (sub, source) = (Some(Subresource::Scale), Source::Apply(stated));
        let registry = &self.api.registry;
        let done = registry.update(&target, sub, source, self.user, options);
        answer(&target, place, &done.await?.0)
    }
}

/// Returns the number of replicas in a scale, if it is present.
fn replicas(target: &Target<'_>, scale: &Value) -> Result<Option<i64>, Failure> {
    let number = match scale.pointer("/spec/replicas") {
        None | Some(Value::Null) => return Ok(None),
        Some(number) => number
            .as_i64()
            .filter(|number| i32::try_from(*number).is_ok())
            .ok_or_else(|| Failure::bad_request("spec.replicas must be a 32-bit integer"))?,
    };
    if number < 0 {
        let why = "should be a non-negative integer";
        let cause = Cause::invalid("spec.replicas", &json!(number), why);
        let kind = ("autoscaling", "Scale");
        return Err(Failure::invalid(kind, target.name, vec![cause]));
    }
    Ok(Some(number))
}

/// Returns the locations of the replica numbers in objects of the kind.
fn place(target: &Target<'_>) -> Option<Scale> {
    match &target.version.custom {
        Some(custom) => custom.scale.clone(),
        None => Some(Scale {
            replicas: "/spec/replicas".to_owned(),
            status: "/status/replicas".to_owned(),
            selector: Some("/spec/selector".to_owned()),
        }),
    }
}

fn answer(target: &Target<'_>, place: &Scale, stored: &[u8]) -> Result<Response<Body>, Failure> {
    let object: Value = serde_json::from_slice(stored)
        .map_err(|error| Failure::internal(format!("stored object is not JSON: {error}")))?;
    let scale = scale_of(target, place, &object);
    Ok(respond::json(StatusCode::OK, scale.to_string() + "\n"))
}

fn scale_of(target: &Target<'_>, place: &Scale, object: &Value) -> Value {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = json!({"name": target.name});
    for member in ["namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.pointer(&format!("/metadata/{member}")) {
            metadata[member] = value.clone();
        }
    }
    let mut status = json!({"replicas": number(&place.status)});
    let selector = place
        .selector
        .as_deref()
        .and_then(|pointer| object.pointer(pointer));
    match selector {
        Some(Value::String(selector)) => status["selector"] = json!(selector),
        Some(selector) => {
            // The selector of a replication controller is the map of labels; other selectors contain it.
            let labels = selector.get("matchLabels").unwrap_or(selector);
            let labels = labels.as_object().into_iter().flatten();
            let terms: Vec<String> = labels
                .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
                .collect();
            status["selector"] = json!(terms.join(","));
        }
        None => {}
    }
    let mut spec = json!({});
    if number(&place.replicas) != 0 {
        spec["replicas"] = json!(number(&place.replicas));
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec,
        "status": status})
}

fn patched(scale: Value, content: &str, bytes: &[u8]) -> Result<Value, Failure> {
    let failed = |error: patch::Error| Failure::new(error.code(), "Invalid", error.to_string());
    if content == "json-patch+json" {
        return patch::json(scale, bytes).map_err(failed);
    }
    let change: Value = serde_json::from_slice(bytes)
        .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
    patch::merge(scale, change).map_err(failed)
}

/// Sets the value at a JSON pointer without indices. Creates the maps above it.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut slot = object;
    for name in pointer.split('/').skip(1) {
        if !slot.is_object() {
            *slot = json!({});
        }
        slot = &mut slot[name.replace("~1", "/").replace("~0", "~")];
    }
    *slot = value;
}
