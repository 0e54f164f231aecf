//! `Impersonate-*` headers: a caller acts as another user if its roles grant the verb `impersonate`.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::token::service_account_groups;
use super::{ANONYMOUS, AUTHENTICATED, Attributes, Target, UNAUTHENTICATED, User};
use crate::status::Failure;

const PREFIX: &str = "impersonate-";
const EXTRA: &str = "impersonate-extra-";

/// The user that a request impersonates.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Copies the impersonation headers; `None` if the request has none.
pub(crate) fn headers(all: &HeaderMap) -> Option<HeaderMap> {
    let mut found = HeaderMap::new();
    for (name, value) in all {
        if name.as_str().starts_with(PREFIX) {
            found.append(name.clone(), value.clone());
        }
    }
    (!found.is_empty()).then_some(found)
}

/// Reads the impersonation headers; `None` if the request has none.
pub(super) fn wanted(headers: &HeaderMap) -> Result<Option<Wanted>, Failure> {
    let mut wanted = Wanted::default();
    let mut any = false;
    for (name, value) in headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with(PREFIX))
    {
        wanted.take(name, text(name, value)?);
        any = true;
    }
    if !any {
        return Ok(None);
    }
    if wanted.user.is_empty() {
        return Err(Failure::bad_request(
            "requested a group, uid or extra value without impersonating a user: \
             add an Impersonate-User header",
        ));
    }
    Ok(Some(wanted))
}

impl Wanted {
    fn take(&mut self, name: &HeaderName, value: String) {
        match name.as_str() {
            "impersonate-user" => self.user = value,
            "impersonate-uid" => self.uid = value,
            "impersonate-group" => self.groups.push(value),
            other => {
                if let Some(key) = other.strip_prefix(EXTRA) {
                    self.extra
                        .entry(percent_decoded(key))
                        .or_default()
                        .push(value);
                }
            }
        }
    }

    /// Checks every permission that the impersonation needs. Stops at the first one that is denied.
    pub(super) fn permissions(
        &self,
        permit: impl Fn(Attributes<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let ask = |group, resource, subresource, namespace, name| {
            let target = Target::Resource {
                group,
                resource,
                subresource,
                namespace,
                name,
            };
            permit(Attributes {
                verb: "impersonate",
                target,
            })
        };
        match service_account(&self.user) {
            Some((namespace, name)) => ask("", "serviceaccounts", "", namespace, name)?,
            None => ask("", "users", "", "", &self.user)?,
        }
        for group in &self.groups {
            ask("", "groups", "", "", group)?;
        }
        for (key, values) in &self.extra {
            for value in values {
                ask("authentication.k8s.io", "userextras", key, "", value)?;
            }
        }
        if !self.uid.is_empty() {
            ask("authentication.k8s.io", "uids", "", "", &self.uid)?;
        }
        Ok(())
    }

    pub(super) fn into_user(self) -> User {
        let mut user = User {
            name: self.user,
            uid: self.uid,
            groups: self.groups,
            extra: self.extra,
        };
        if user.groups.is_empty()
            && let Some((namespace, _)) = service_account(&user.name)
        {
            user.groups = service_account_groups(namespace);
        }
        if user.name == ANONYMOUS {
            user.add_group(UNAUTHENTICATED);
        } else if !user.is_in(UNAUTHENTICATED) {
            user.add_group(AUTHENTICATED);
        }
        user
    }
}

fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, Failure> {
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Failure::bad_request(format!(
            "header {name} is not valid UTF-8"
        ))),
    }
}

fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// Decodes `%xx` in a key, because keys may contain characters that header names may not.
fn percent_decoded(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|h| std::str::from_utf8(h).ok());
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        map
    }

    #[test]
    fn impersonation_headers_give_the_user_and_the_required_permissions() {
        let headers = headers(&[
            ("Impersonate-User", "jane"),
            ("Impersonate-Group", "devs"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Extra-acme.com%2fproject", "x"),
        ]);
        let wanted = wanted(&headers).unwrap().unwrap();
        let asked = RefCell::new(Vec::new());
        wanted
            .permissions(|a| {
                let Target::Resource {
                    resource,
                    subresource,
                    name,
                    ..
                } = a.target
                else {
                    panic!("a path")
                };
                asked
                    .borrow_mut()
                    .push(format!("{resource}/{subresource} {name}"));
                Ok(())
            })
            .unwrap();
        assert_eq!(
            asked.into_inner(),
            [
                "users/ jane",
                "groups/ devs",
                "groups/ ops",
                "userextras/acme.com/project x",
                "uids/ 7"
            ]
        );
        let user = wanted.into_user();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
        assert_eq!(user.groups, ["devs", "ops", "system:authenticated"]);
        assert_eq!(user.extra["acme.com/project"], ["x"]);
    }

    #[test]
    fn impersonated_service_account_has_its_groups() {
        let user = wanted(&headers(&[(
            "Impersonate-User",
            "system:serviceaccount:ns:sa",
        )]))
        .unwrap()
        .unwrap()
        .into_user();
        assert_eq!(
            user.groups,
            [
                "system:serviceaccounts",
                "system:serviceaccounts:ns",
                "system:authenticated"
            ]
        );
    }

    #[test]
    fn groups_without_a_user_are_refused() {
        assert!(wanted(&headers(&[("Impersonate-Group", "system:masters")])).is_err());
        assert!(wanted(&headers(&[("Accept", "*/*")])).unwrap().is_none());
    }
}
