//! Resource requests: calls the verb of the registry and converts its result to a response.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::{Value, json};

use super::accept::{Form, negotiate, not_acceptable};
use super::body::{self, Media};
use super::options::{self, ListOptions, Selection};
use super::render::{ListMeta, View};
use super::watch::Feed;
use super::{Api, Body, list, respond};
use crate::auth::User;
use crate::fairness::{HEAVY, Resource, Tenant};
use crate::registry::{self, DeleteOptions, Deleted, Kind, Registry, Source, Subresource, Target};
use crate::request::{Query, ResourcePath, Verb};
use crate::schema;
use crate::status::{Failure, status_text};

/// Greatest number of bytes of defaults in the response to the deletion of a collection.
const MAX_DEFAULTS: usize = 64 << 20;

/// One resource request.
pub(super) struct Call<'a> {
    pub(super) api: &'a Arc<Api>,
    pub(super) user: &'a User,
    pub(super) verb: Verb,
    pub(super) target: Target<'a>,
    pub(super) subresource: Option<Subresource>,
    pub(super) query: Query<'a>,
    pub(super) parts: &'a Parts,
    /// The shares of the user, if the server limits them.
    pub(super) tenant: Option<&'a Tenant>,
    /// Texts for `Warning` headers.
    pub(super) warnings: Vec<String>,
}

/// The target of a resource path.
pub(super) enum Resolved<'a> {
    /// A kind.
    Kind(Target<'a>, Option<Subresource>),
    /// The group is served, but this resource is not.
    NoResource,
    /// The group is not served.
    NoGroup,
}

/// Resolves a path. `kind` is the kind that serves its resource.
pub(super) fn resolve<'a>(
    registry: &Registry,
    kind: Option<&'a Kind>,
    path: &'a ResourcePath,
) -> Resolved<'a> {
    let found = kind.and_then(|kind| Some((kind, kind.version(&path.version)?)));
    let Some((kind, version)) = found else {
        let served = registry.served();
        let known = (served.kinds().iter()).any(|kind| kind.group() == path.group);
        return if known {
            Resolved::NoResource
        } else {
            Resolved::NoGroup
        };
    };
    let in_namespace = !path.namespace.is_empty();
    // Authorization uses the namespace of the path. A namespace object is therefore valid only in its own namespace.
    let own = kind.is_namespace && path.namespace == path.name;
    let misplaced = (in_namespace && !kind.namespaced && !own)
        || (kind.namespaced && !in_namespace && !path.name.is_empty());
    if misplaced {
        return Resolved::NoResource;
    }
    let subresource = if path.subresource.is_empty() {
        None
    } else {
        match kind.subresource(version, &path.subresource) {
            Some(found) => Some(found),
            None => return Resolved::NoResource,
        }
    };
    let namespace = if kind.namespaced {
        path.namespace.as_str()
    } else {
        ""
    };
    Resolved::Kind(
        Target {
            kind,
            version,
            namespace,
            name: &path.name,
        },
        subresource,
    )
}

impl Call<'_> {
    /// Runs the verb.
    pub(super) async fn run<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let kind = self.target.kind;
        self.warnings
            .extend(self.target.version.deprecated().map(str::to_owned));
        let named = !self.target.name.is_empty();
        let placed = !kind.namespaced || !self.target.namespace.is_empty();
        self.check_fence_is_readable().await?;
        if let Some(question) = kind.review {
            return match (self.verb, named, placed) {
                (Verb::Create, false, true) => self.review(question, body).await,
                _ => Err(Failure::method_not_allowed()),
            };
        }
        if let Some(subresource) = self.subresource {
            return self.run_subresource(subresource, body).await;
        }
        match (self.verb, named, placed) {
            (Verb::Get, true, _) => self.get().await,
            (Verb::List, false, _) => self.list().await,
            (Verb::Watch, ..) => self.watch(),
            (Verb::Create, false, true) => self.create(body).await,
            (Verb::Update, true, _) => self.update(body).await,
            (Verb::Patch, true, _) => self.patch(body).await,
            (Verb::Delete, true, _) => self.delete(body).await,
            (Verb::DeleteCollection, false, true) => self.delete_collection(body).await,
            _ => Err(Failure::method_not_allowed()),
        }
    }

    /// Returns the size of the stored objects that the request parses. Its duration depends on it. These are the addressed
    /// object, and the limit ranges and quotas that a write has to respect.
    pub(super) fn stored_bytes(&self) -> usize {
        if self.tenant.is_none() {
            return 0;
        }
        let registry = &self.api.registry;
        let stored = match self.target.name.is_empty() {
            true => None,
            false => registry.store.get(&self.target.key()),
        };
        let is_bounded = match self.verb {
            Verb::Create | Verb::Delete | Verb::DeleteCollection => true,
            // Other updates of an object change no usage. Renewals of a Lease are among them.
            Verb::Update | Verb::Patch => self.target.kind.metered || stored.is_none(),
            _ => false,
        };
        let bounds = match is_bounded && self.target.kind.namespaced {
            true => registry.bound_bytes(self.target.namespace),
            false => 0,
        };
        bounds + stored.map_or(0, |stored| stored.json.len())
    }

    /// Rejects a fence on a Lease that the user may not read, because the response would reveal its state.
    async fn check_fence_is_readable(&self) -> Result<(), Failure> {
        if self.target.kind.review.is_some() || self.verb.is_read() {
            return Ok(());
        }
        let Some(fence) = options::fence(&self.parts.headers)? else {
            return Ok(());
        };
        let registry = &self.api.registry;
        let check = || registry.check_fence_is_readable(&self.target, self.user, &fence);
        match self.tenant {
            Some(tenant) if !registry.is_fence_check_quick(self.user, &fence) => {
                tenant.off_workers(async { check() }).await?
            }
            _ => check(),
        }
    }

    async fn run_subresource<B>(
        &mut self,
        subresource: Subresource,
        body: B,
    ) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match (subresource, self.verb) {
            (Subresource::Status | Subresource::EphemeralContainers, Verb::Get) => self.get().await,
            (
                Subresource::Status | Subresource::Finalize | Subresource::EphemeralContainers,
                Verb::Update,
            ) => self.update(body).await,
            (Subresource::Status | Subresource::EphemeralContainers, Verb::Patch) => {
                self.patch(body).await
            }
            (Subresource::Scale, Verb::Get | Verb::Update | Verb::Patch) => self.scale(body).await,
            (Subresource::Token, Verb::Create) => self.issue_token(body).await,
            (Subresource::Binding, Verb::Create) => self.bind(body).await,
            (Subresource::Eviction, Verb::Create) => self.evict(body).await,
            _ => Err(Failure::method_not_allowed()),
        }
    }

    pub(super) fn form(&self) -> Result<Form, Failure> {
        match negotiate(&self.parts.headers)? {
            Form::Discovery(_) => Ok(Form::Full),
            Form::PartialList if matches!(self.verb, Verb::List | Verb::DeleteCollection) => {
                Ok(Form::Partial)
            }
            Form::PartialList => Err(Failure {
                details: None,
                ..not_acceptable()
            }),
            form => Ok(form),
        }
    }

    /// Returns the fields that selectors may use.
    fn fields(&self) -> registry::Fields {
        self.target.kind.fields(self.target.version)
    }

    fn view(&self) -> Result<View, Failure> {
        View::new(&self.target, self.form()?, &self.query)
    }

    fn answer(&self, code: StatusCode, stored: &Bytes) -> Result<Response<Body>, Failure> {
        Ok(self.view()?.object(stored)?.into_response(code))
    }

    async fn get(&self) -> Result<Response<Body>, Failure> {
        self.form()?;
        let revision = self.query.text("resourceVersion");
        let revision = revision.map(options::revision).transpose()?;
        list::catch_up(&self.api.registry.store, revision).await?;
        let object = self.api.registry.get(&self.target)?;
        self.answer(StatusCode::OK, &object.json)
    }

    /// Waits for the resourceVersion of a get request. Ignores an invalid resourceVersion, which the request itself
    /// reports.
    pub(super) async fn wait_for_revision(&self) -> Result<(), Failure> {
        let revision = self.query.text("resourceVersion").map(options::revision);
        match (self.verb, revision) {
            (Verb::Get, Some(Ok(revision))) => {
                list::catch_up(&self.api.registry.store, Some(revision)).await
            }
            _ => Ok(()),
        }
    }

    async fn list(&self) -> Result<Response<Body>, Failure> {
        let view = self.view()?;
        let options = ListOptions::parse(self.fields(), &self.query, false)?;
        let store = &self.api.registry.store;
        list::wait_for_revision(store, &options).await?;
        let answer = async {
            let page = list::list(store, &self.target, &options).await?;
            self.answer_list(&view, &page)
        };
        match self.tenant {
            Some(tenant) if !list::is_small(store, &self.target, &options) => {
                tenant.off_workers(Box::pin(answer)).await?
            }
            _ => answer.await,
        }
    }

    /// Returns the response with a list. Charges its bytes to the share of the user before it allocates them.
    fn answer_list(&self, view: &View, page: &list::Page) -> Result<Response<Body>, Failure> {
        let bytes: usize = list::bytes(&page.objects).map(Bytes::len).sum();
        let mut charge = match self.tenant {
            Some(tenant) if bytes > HEAVY => Some(tenant.take(Resource::Answers, bytes as u64)?),
            _ => None,
        };
        // The defaults of the first objects are not charged, as a small list is not.
        let mut uncharged = 0;
        let grow = |added: usize| {
            uncharged += added;
            let Some(tenant) = self.tenant.filter(|_| uncharged > HEAVY) else {
                return Ok(());
            };
            let amount = std::mem::take(&mut uncharged) as u64;
            match &mut charge {
                Some(charge) => charge.grow(amount)?,
                None => charge = Some(tenant.take(Resource::Answers, amount)?),
            }
            Ok(())
        };
        let body = view.list(&page.meta, list::bytes(&page.objects), grow)?;
        let mut response = body.into_response(StatusCode::OK);
        if let Some(charge) = charge {
            response.extensions_mut().insert(Arc::new(charge));
        }
        Ok(response)
    }

    fn watch(&self) -> Result<Response<Body>, Failure> {
        let view = self.view()?;
        let mut options = ListOptions::parse(self.fields(), &self.query, true)?;
        if !self.target.name.is_empty() {
            // The legacy path contains the name of the object. A watch expresses the name as a selector.
            let name = format!("metadata.name={}", self.target.name);
            options.selection.fields = name
                .parse()
                .map_err(|error| Failure::bad_request(format!("{error}")))?;
        }
        let feed = Feed::new(
            Arc::clone(&self.api.registry.store),
            list::range(&self.target, &options.selection),
            view,
            self.empty(),
            &options,
            self.api.shutdown.subscribe(),
            self.api.metrics.watching(),
        )
        .within(self.tenant.cloned());
        let body = StreamBody::new(feed.into_stream()).boxed_unsync();
        let mut response = respond::json(StatusCode::OK, Bytes::new());
        *response.body_mut() = body;
        Ok(response)
    }

    /// Returns an empty object of the kind, for bookmarks.
    fn empty(&self) -> Arc<Value> {
        let Target { kind, version, .. } = self.target;
        let message = schema::message(kind.group(), version.name(), kind.kind());
        let value = body::canonical(message, json!({"metadata": {}})).unwrap_or_else(|_| json!({}));
        Arc::new(match version.conversion {
            Some(conversion) => (conversion.to_stored)(value),
            None => value,
        })
    }

    /// Reads the object in the body and converts it to the stored form.
    async fn object<B>(&mut self, body: B, options: &str) -> Result<Value, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let validation = options::field_validation(&self.query, options)?;
        let media = body::media(&self.parts.headers)?;
        let bytes = body::read(body, &self.parts.headers).await?;
        let Target { kind, version, .. } = self.target;
        let decoded = body::decode(kind, version, media, &bytes, validation)?;
        self.warnings.extend(decoded.warnings);
        let mut value = match version.conversion {
            Some(conversion) => (conversion.to_stored)(decoded.value),
            None => decoded.value,
        };
        self.warnings
            .extend(registry::meta::unique_owners(&mut value));
        Ok(value)
    }

    async fn create<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.form()?;
        let options = options::write_options(&self.query, &self.parts.headers, "CreateOptions")?;
        let object = self.object(body, "CreateOptions").await?;
        let stored = self
            .api
            .registry
            .create(&self.target, object, self.user, &options)
            .await?;
        self.warn(None, &stored);
        self.answer(StatusCode::CREATED, &stored)
    }

    async fn update<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.form()?;
        let options = options::write_options(&self.query, &self.parts.headers, "UpdateOptions")?;
        let object = self.object(body, "UpdateOptions").await?;
        check_name(&self.target, &object)?;
        self.store(Source::Replace(object), &options).await
    }

    /// Stores the result of a PUT or PATCH and returns the response.
    pub(super) async fn store(
        &mut self,
        source: Source<'_>,
        options: &registry::WriteOptions,
    ) -> Result<Response<Body>, Failure> {
        let store = &self.api.registry.store;
        let old = match self.warns() {
            true => store.get(&self.target.key()),
            false => None,
        };
        let (stored, created) = self
            .api
            .registry
            .update(&self.target, self.subresource, source, self.user, options)
            .await?;
        self.warn(old.as_ref().map(|old| &old.json), &stored);
        let code = if created {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        self.answer(code, &stored)
    }

    /// Whether a write of this kind can cause warnings about the object.
    fn warns(&self) -> bool {
        let Target { kind, version, .. } = self.target;
        self.subresource.is_none() && (kind.warn.is_some() || version.custom.is_some())
    }

    /// Adds the warnings about a written object.
    fn warn(&mut self, old: Option<&Bytes>, new: &Bytes) {
        if !self.warns() {
            return;
        }
        let parse = |bytes: &Bytes| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
        if let Some(warn) = self.target.kind.warn {
            let new = parse(new);
            let generation = |object: &Value| object.pointer("/metadata/generation").cloned();
            let is_pod = self.target.kind.kind() == "Pod";
            // The real server warns about a template again only if the spec has changed.
            let changed = old.is_none_or(|old| generation(&parse(old)) != generation(&new));
            if changed || is_pod {
                self.warnings.extend(warn(&new));
            }
            return;
        }
        let has_finalizers = |bytes: &Bytes| {
            const MEMBER: &[u8] = b"\"finalizers\"";
            bytes.windows(MEMBER.len()).any(|part| part == MEMBER)
        };
        if has_finalizers(new) {
            let old = old.map(parse);
            let warnings = registry::meta::warn_about_finalizers(old.as_ref(), &parse(new));
            self.warnings.extend(warnings);
        }
    }

    async fn delete<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.form()?;
        let options = self.delete_options(body).await?;
        let deleted = self.api.registry.delete(&self.target, &options).await?;
        match deleted {
            Deleted::Gone(last) if !self.target.kind.returns_deleted => {
                let last: Value = serde_json::from_slice(&last).unwrap_or_default();
                let (group, plural) = self.target.kind.resource();
                let details = crate::status::Details {
                    name: self.target.name.to_owned(),
                    group: group.to_owned(),
                    kind: plural.to_owned(),
                    uid: registry::rules::text(&last, "/metadata/uid").to_owned(),
                    ..Default::default()
                };
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                    "status": "Success", "details": details.to_value()});
                Ok(respond::json(StatusCode::OK, status_text(&status)))
            }
            Deleted::Gone(stored) => self.answer(StatusCode::OK, &stored),
            // The real server returns 202 only if the client sent the deprecated `orphanDependents`.
            Deleted::Ending(stored) if options.cascade_in_old_way => {
                self.answer(StatusCode::ACCEPTED, &stored)
            }
            Deleted::Ending(stored) => self.answer(StatusCode::OK, &stored),
        }
    }

    /// Returns the options of a deletion. The body takes precedence over the query.
    pub(super) async fn delete_options<B>(&self, body: B) -> Result<DeleteOptions, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let bytes = body::read(body, &self.parts.headers).await?;
        let value = if bytes.is_empty() {
            json!({})
        } else {
            // Clients send any content type with an empty body, so the type is checked only here.
            let media = body::media(&self.parts.headers)?;
            decode_delete_options(media, &bytes)?
        };
        super::delete_options::parse(&value, &self.query, &self.parts.headers)
    }

    async fn delete_collection<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let view = self.view()?;
        let options = self.delete_options(body).await?;
        let selection = Selection::parse(self.fields(), &self.query)?;
        let all = ListOptions {
            selection,
            ..ListOptions::default()
        };
        let list = list::list(&self.api.registry.store, &self.target, &all);
        let page = match self.tenant {
            Some(tenant) => tenant.off_workers(Box::pin(list)).await??,
            None => list.await?,
        };
        // Success confirms the fencing token, so the token must be checked even if there is nothing to delete.
        self.api
            .registry
            .check_fence(&self.target, &options.write)?;
        for object in &page.objects {
            let target = Target {
                namespace: &object.key.namespace,
                name: &object.key.name,
                ..self.target
            };
            match self.api.registry.delete(&target, &options).await {
                Err(failure) if failure.code != 404 => return Err(failure),
                _ => {}
            }
        }
        let meta = ListMeta {
            revision: self.api.registry.store.revision(),
            ..ListMeta::default()
        };
        let page = list::Page { meta, ..page };
        self.answer_deleted(&view, &page).await
    }

    /// Returns the response with the deleted objects. It may exceed the share of the user, because the client cannot
    /// request the objects again. If the defaults that the stored objects lack exceed [`MAX_DEFAULTS`], it omits them.
    async fn answer_deleted(
        &self,
        view: &View,
        page: &list::Page,
    ) -> Result<Response<Body>, Failure> {
        let bytes: usize = list::bytes(&page.objects).map(Bytes::len).sum();
        let list = || {
            let mut room = MAX_DEFAULTS;
            let grow = |added: usize| {
                let rest = room.checked_sub(added);
                room = rest.ok_or_else(|| Failure::internal("too many bytes of defaults"))?;
                Ok(())
            };
            let objects = list::bytes(&page.objects);
            let full = view.list(&page.meta, objects, grow);
            full.or_else(|_| {
                let objects = list::bytes(&page.objects);
                view.without_defaults()
                    .list(&page.meta, objects, |_| Ok(()))
            })
        };
        let body = match self.tenant.filter(|_| bytes > HEAVY) {
            Some(tenant) => tenant.off_workers(async { list() }).await??,
            None => list()?,
        };
        Ok(body.into_response(StatusCode::OK))
    }
}

fn decode_delete_options(media: Media, bytes: &[u8]) -> Result<Value, Failure> {
    let kind = ("", "v1", body::DELETE_OPTIONS);
    let decoded = body::decode_as(kind, media, bytes, options::FieldValidation::Ignore)?;
    Ok(decoded.value)
}

/// Checks that name and namespace in the body equal those in the path.
pub(super) fn check_name(target: &Target<'_>, object: &Value) -> Result<(), Failure> {
    let name = registry::rules::text(object, "/metadata/name");
    if name != target.name {
        let url = target.name;
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({url})"
        )));
    }
    registry::check_namespace(target, object)
}
