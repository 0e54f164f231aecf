//! Lists. All pages of a list belong to one revision.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde_json::json;

use super::options::{ListOptions, Match, Selection};
use super::render::ListMeta;
use crate::fairness::HEAVY;
use crate::registry::Target;
use crate::status::{Cause, Failure};
use crate::store::{Expired, Listing, Object, Range, Store, Window};

/// Time that a request waits for a revision that is not published yet.
const FUTURE_WAIT: Duration = Duration::from_secs(3);

/// Position at which a list continues.
#[derive(Debug, PartialEq, Eq)]
struct Token {
    /// Revision of the list. `None` continues inconsistently at the current revision.
    revision: Option<u64>,
    /// Namespace and name of the last returned object.
    after: (String, String),
}

/// One page of a list.
pub(super) struct Page {
    pub(super) meta: ListMeta,
    pub(super) objects: Vec<Arc<Object>>,
}

/// Returns the range of a collection.
pub(super) fn range(target: &Target<'_>, selection: &Selection) -> Range {
    let namespaced = target.kind.namespaced && !target.namespace.is_empty();
    let name = selection
        .fields
        .required("metadata.name")
        .map(str::to_owned);
    let namespace = if namespaced {
        Some(target.namespace.to_owned())
    } else if target.kind.namespaced {
        selection
            .fields
            .required("metadata.namespace")
            .map(str::to_owned)
    } else {
        Some(String::new())
    };
    Range {
        resource: target.kind.storage_key(),
        // A single object can only be named together with its namespace.
        name: name.filter(|_| namespace.is_some()),
        namespace,
    }
}

/// Number of objects up to which a list is small.
const FEW: usize = 32;

/// Returns whether a list takes no longer than the handling of one object.
pub(super) fn is_small(store: &Arc<dyn Store>, target: &Target<'_>, options: &ListOptions) -> bool {
    let range = range(target, &options.selection);
    let few = Window {
        after: None,
        limit: Some(FEW),
    };
    // A list at an earlier revision reads the history, which may be long.
    let present = options.revision.is_none_or(|revision| revision == 0);
    present
        && options.continue_token.is_none()
        && store.page(&range, None, &few).is_ok_and(|found| {
            found.remaining == 0 && bytes(&found.objects).map(Bytes::len).sum::<usize>() <= HEAVY
        })
}

/// Waits for the revision that a list names. A list does that before it takes a seat for heavy work.
pub(super) async fn wait_for_revision(
    store: &Arc<dyn Store>,
    options: &ListOptions,
) -> Result<(), Failure> {
    let token = options.continue_token.as_deref();
    let token = token.map(Token::parse).transpose()?;
    let revision = token.and_then(|token| token.revision);
    match revision.or(options.revision) {
        Some(revision) => wait_for(store, revision).await,
        None => Ok(()),
    }
}

/// Answers a list request.
pub(super) async fn list(
    store: &Arc<dyn Store>,
    target: &Target<'_>,
    options: &ListOptions,
) -> Result<Page, Failure> {
    let range = range(target, &options.selection);
    let token = options
        .continue_token
        .as_deref()
        .map(Token::parse)
        .transpose()?;
    let exact = match (&token, options.revision, options.revision_match) {
        (Some(token), ..) => token.revision,
        (None, Some(revision), Some(Match::Exact)) => Some(revision),
        // With a limit, the list is at exactly the requested revision, so that all pages are consistent.
        (None, Some(revision), None) if revision > 0 && options.limit > 0 => Some(revision),
        _ => None,
    };
    catch_up(store, exact.or(options.revision)).await?;
    // Revision 0 means any version. The real server answers it from its cache and ignores the limit.
    let limit = if options.revision == Some(0) && token.is_none() {
        0
    } else {
        options.limit
    };
    let after = token.as_ref().map(|token| token.after.clone());
    let reading = Reading {
        store,
        range,
        selection: &options.selection,
        exact,
    };
    let page = match reading.page(after.clone(), limit, WINDOW) {
        // Concurrent writes expired the revision of the first window, so all objects are read in one window.
        Err(_) if exact.is_none() => reading.page(after, limit, usize::MAX),
        page => page,
    };
    page.map_err(|_| expired(token.as_ref()))
}

/// Maximum number of objects that are read from the store at a time, because writers wait for the read.
const WINDOW: usize = 4096;

/// A list that is being read from the store.
struct Reading<'a> {
    store: &'a Arc<dyn Store>,
    range: Range,
    selection: &'a Selection,
    exact: Option<u64>,
}

impl Reading<'_> {
    /// Reads one page. All windows belong to the revision of the first one.
    ///
    /// With selectors, the page ends before it is known whether a later object matches. The page therefore has a
    /// continue token whenever unread objects remain.
    fn page(
        &self,
        mut after: Option<(String, String)>,
        limit: usize,
        window: usize,
    ) -> Result<Page, Expired> {
        let all = self.selection.is_empty();
        let (mut at, mut taken) = (self.exact, Vec::new());
        loop {
            let wanted = if limit > 0 && all { limit } else { window };
            let part = Window {
                after: after
                    .as_ref()
                    .map(|(namespace, name)| (&**namespace, &**name)),
                limit: Some(wanted),
            };
            let Listing {
                revision,
                objects,
                remaining,
            } = self.store.page(&self.range, at, &part)?;
            let (read, mut seen) = (objects.len(), 0);
            after = objects.last().map(|last| place(last)).or(after);
            for object in objects {
                if limit > 0 && taken.len() == limit {
                    break;
                }
                seen += 1;
                if all || self.selection.matches(&object) {
                    taken.push(object);
                }
            }
            let left = remaining + read - seen;
            let full = limit > 0 && taken.len() == limit;
            if left > 0 && !full {
                at = Some(revision);
                continue;
            }
            let mut meta = ListMeta {
                revision,
                ..ListMeta::default()
            };
            if let Some(last) = taken.last().filter(|_| left > 0) {
                let token = Token {
                    revision: Some(revision),
                    after: place(last),
                };
                meta.continue_token = Some(token.text());
                meta.remaining = all.then_some(left);
            }
            return Ok(Page {
                meta,
                objects: taken,
            });
        }
    }
}

fn place(object: &Object) -> (String, String) {
    (object.key.namespace.clone(), object.key.name.clone())
}

/// Waits until a read is recent enough. Without a revision, it must include every write that any server has
/// acknowledged before.
pub(super) async fn catch_up(store: &Arc<dyn Store>, revision: Option<u64>) -> Result<(), Failure> {
    match revision {
        Some(revision) => wait_for(store, revision).await,
        None if store.shared() => Ok(store.fresh().await?),
        None => Ok(()),
    }
}

/// Waits for a revision that a client has received from another server.
async fn wait_for(store: &Arc<dyn Store>, revision: u64) -> Result<(), Failure> {
    if revision <= store.revision() {
        return Ok(());
    }
    let reached = async {
        if store.shared() {
            // Writes below other prefixes of a shared etcd raise the revision without an event here, so the store must
            // ask etcd. After an error the revision may still arrive.
            let _ = store.fresh().await;
        }
        store.reached(revision).await;
    };
    if tokio::time::timeout(FUTURE_WAIT, reached).await.is_ok() {
        return Ok(());
    }
    let message = format!(
        "Too large resource version: {revision}, current: {}",
        store.revision()
    );
    let mut failure = Failure::generic(504, "Timeout", format!("Timeout: {message}"));
    if let Some(details) = &mut failure.details {
        details.retry_after_seconds = Some(1);
        details.causes = vec![Cause {
            reason: "ResourceVersionTooLarge",
            message: "Too large resource version".into(),
            field: String::new(),
        }];
    }
    Err(failure)
}

fn expired(token: Option<&Token>) -> Failure {
    let Some(token) = token else {
        return Failure::expired("The resourceVersion for the provided list is too old.");
    };
    let mut failure = Failure::expired(
        "The provided continue parameter is too old to display a consistent list result. You can \
         start a new list without the continue parameter, or use the continue token in this \
         response to retrieve the remainder of the results. Continuing with the provided token \
         results in an inconsistent list: objects that were created, modified, or deleted between \
         the first chunk and now may show up in the list.",
    );
    let after = token.after.clone();
    failure.continue_token = Some(
        Token {
            revision: None,
            after,
        }
        .text(),
    );
    failure
}

impl Token {
    fn text(&self) -> String {
        let revision = self.revision.map_or(json!(-1), |revision| json!(revision));
        let start = format!("{}/{}\0", self.after.0, self.after.1);
        let token = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let bad = || Failure::bad_request("invalid continue token: continue key is not valid");
        let bytes = URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|_| bad())?;
        let token: serde_json::Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        if token.get("v") != Some(&json!("meta.k8s.io/v1")) {
            return Err(bad());
        }
        let revision = match token.get("rv") {
            Some(rv) if rv.as_i64() == Some(-1) => None,
            Some(rv) => Some(rv.as_u64().filter(|rv| *rv > 0).ok_or_else(bad)?),
            None => return Err(bad()),
        };
        let start = token
            .get("start")
            .and_then(serde_json::Value::as_str)
            .ok_or_else(bad)?;
        let (namespace, name) = start
            .strip_suffix('\0')
            .and_then(|key| key.split_once('/'))
            .ok_or_else(bad)?;
        Ok(Self {
            revision,
            after: (namespace.to_owned(), name.to_owned()),
        })
    }
}

/// Returns the stored bytes of a page.
pub(super) fn bytes(objects: &[Arc<Object>]) -> impl ExactSizeIterator<Item = &Bytes> {
    objects.iter().map(|object| &object.json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_token_round_trips_and_invalid_token_is_rejected() {
        let token = Token {
            revision: Some(7),
            after: ("n".into(), "x".into()),
        };
        assert_eq!(Token::parse(&token.text()).ok(), Some(token));
        let loose = Token {
            revision: None,
            after: (String::new(), "x".into()),
        };
        assert_eq!(Token::parse(&loose.text()).ok(), Some(loose));
        for bad in [
            "garbage",
            "",
            "e30",
            "bnVsbA",
            "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ",
            "äö",
        ] {
            assert_eq!(
                Token::parse(bad).err().map(|failure| failure.code),
                Some(400),
                "{bad}"
            );
        }
    }
}
