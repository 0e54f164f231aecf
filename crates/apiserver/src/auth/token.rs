//! Tokens of ServiceAccounts: JSON web tokens with the claims of Kubernetes.
//!
//! A token is valid if its signature, issuer, audience and times are valid. In addition, the ServiceAccount and the
//! object to which the token is bound must exist with the uids in the token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use super::keys::{KeyError, SigningKey, VerifyingKey};
use super::{AUTHENTICATED, User};
use super::{IssuedToken, TokenClaims};
use crate::store::{Key, Store};

/// Issuer of the tokens, and the audience of this server.
pub const AUDIENCE: &str = super::DEFAULT_AUDIENCE;

/// The claims of a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Claims {
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    iss: String,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Bound,
    nbf: i64,
    sub: String,
}

/// The objects whose deletion invalidates a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Bound {
    namespace: String,
    serviceaccount: Named,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Named>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Named>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Named>,
}

/// Name and uid of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Named {
    name: String,
    uid: String,
}

/// Reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected {
    /// The text is not a token of a service account.
    #[error("not a service account token")]
    Malformed,
    /// Another key signed the token, or it was changed.
    #[error("the signature is invalid")]
    Signature,
    /// The token is for another audience or from another issuer.
    #[error("the token is for another audience")]
    Audience,
    /// The token is not valid yet, or has expired.
    #[error("the token has expired or is not valid yet")]
    Time,
    /// The account was deleted, or replaced by another of the same name.
    #[error("the service account no longer exists")]
    Gone,
    /// The object to which the token is bound was deleted, or replaced by another of the same name.
    #[error("the object that the token is bound to no longer exists")]
    Unbound,
}

/// Signs tokens and verifies them.
pub struct Issuer {
    key: SigningKey,
    /// The public part of `key`, followed by the former keys.
    accepted: Vec<VerifyingKey>,
    /// Tokens with a verified signature, because verification takes longer than the rest of a small request. Everything
    /// that can change is checked for every request.
    known: Mutex<HashMap<String, Arc<Claims>>>,
}

/// Maximum number of cached tokens. If it is exceeded, the cache is cleared.
const MAX_KNOWN: usize = 4096;

impl Issuer {
    /// Creates an issuer that signs with this key.
    #[must_use]
    pub fn new(key: SigningKey) -> Self {
        Self {
            accepted: vec![VerifyingKey::of(&key)],
            key,
            known: Mutex::default(),
        }
    }

    /// Adds keys whose tokens are accepted too.
    #[must_use]
    pub fn accept(mut self, keys: impl IntoIterator<Item = VerifyingKey>) -> Self {
        for key in keys {
            if !self.accepted.contains(&key) {
                self.accepted.push(key);
            }
        }
        self
    }

    /// Returns the public keys as the JSON web key set of `/openid/v1/jwks`.
    #[must_use]
    pub fn key_set(&self) -> Value {
        let keys: Vec<Value> = self.accepted.iter().map(VerifyingKey::to_value).collect();
        json!({ "keys": keys })
    }

    /// Issues a token; `None` if the system has no random numbers.
    pub(super) fn issue(&self, wanted: &TokenClaims<'_>) -> Option<IssuedToken> {
        let now = Timestamp::now().as_second();
        let expires_at = now.saturating_add(wanted.seconds);
        let bound = |kind| {
            let object = wanted.bound.filter(|object| object.kind == kind)?;
            Some(Named {
                name: object.name.into(),
                uid: object.uid.into(),
            })
        };
        let claims = Claims {
            aud: wanted.audiences.to_vec(),
            exp: expires_at,
            iat: now,
            iss: AUDIENCE.into(),
            jti: uuid::Uuid::new_v4().to_string(),
            kubernetes: Bound {
                namespace: wanted.namespace.into(),
                serviceaccount: Named {
                    name: wanted.name.into(),
                    uid: wanted.uid.into(),
                },
                pod: bound("Pod"),
                secret: bound("Secret"),
                node: bound("Node"),
            },
            nbf: now,
            sub: format!("system:serviceaccount:{}:{}", wanted.namespace, wanted.name),
        };
        Some(IssuedToken {
            token: self.sign(&claims)?,
            expires_at,
        })
    }

    fn sign(&self, claims: &Claims) -> Option<String> {
        self.sign_payload(&serde_json::to_vec(claims).ok()?)
    }

    /// Signs arbitrary bytes instead of claims; `None` if the system has no random numbers.
    pub(crate) fn sign_payload(&self, payload: &[u8]) -> Option<String> {
        let header = json!({ "alg": "ES256", "kid": self.accepted[0].id });
        let mut token = URL_SAFE_NO_PAD.encode(header.to_string());
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(payload));
        let signature = self
            .key
            .pair
            .sign(&SystemRandom::new(), token.as_bytes())
            .ok()?;
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(signature));
        Some(token)
    }

    /// Returns the user of a token.
    ///
    /// # Errors
    /// Returns the reason why the token is invalid.
    pub fn verify(&self, token: &str, audience: &str, store: &dyn Store) -> Result<User, Rejected> {
        let claims = self.known_claims(token)?;
        if claims.iss != AUDIENCE || !claims.aud.iter().any(|a| a == audience) {
            return Err(Rejected::Audience);
        }
        let now = Timestamp::now().as_second();
        if now >= claims.exp || now < claims.nbf {
            return Err(Rejected::Time);
        }
        let Bound {
            namespace,
            serviceaccount,
            pod,
            secret,
            node,
        } = &claims.kubernetes;
        if !serviceaccount.exists(store, "/serviceaccounts", namespace, false) {
            return Err(Rejected::Gone);
        }
        // A pod needs its token until it has terminated, so a pod that is being deleted counts as existing.
        let bound = [
            (pod, "/pods", namespace.as_str()),
            (secret, "/secrets", namespace),
            (node, "/nodes", ""),
        ];
        for (object, resource, namespace) in bound {
            let gone = |object: &Named| !object.exists(store, resource, namespace, true);
            if object.as_ref().is_some_and(gone) {
                return Err(Rejected::Unbound);
            }
        }
        Ok(claims.user())
    }

    fn known_claims(&self, token: &str) -> Result<Arc<Claims>, Rejected> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = lock().get(token) {
            return Ok(Arc::clone(claims));
        }
        let claims = Arc::new(self.claims(token)?);
        let mut known = lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(token.to_owned(), Arc::clone(&claims));
        Ok(claims)
    }

    fn claims(&self, token: &str) -> Result<Claims, Rejected> {
        let (signed, signature) = token.rsplit_once('.').ok_or(Rejected::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(Rejected::Malformed)?;
        let decode = |part| {
            URL_SAFE_NO_PAD
                .decode(part)
                .map_err(|_| Rejected::Malformed)
        };
        let header: Value =
            serde_json::from_slice(&decode(header)?).map_err(|_| Rejected::Malformed)?;
        if header.get("alg").and_then(Value::as_str) != Some("ES256") {
            return Err(Rejected::Malformed);
        }
        let id = header.get("kid").and_then(Value::as_str);
        let named = self.accepted.iter().find(|key| id == Some(&key.id));
        let candidates = match named {
            Some(key) => std::slice::from_ref(key),
            None => &self.accepted,
        };
        let signature = decode(signature)?;
        let fits = |key: &VerifyingKey| {
            let algorithm = &signature::ECDSA_P256_SHA256_FIXED;
            signature::UnparsedPublicKey::new(algorithm, &key.point)
                .verify(signed.as_bytes(), &signature)
                .is_ok()
        };
        if !candidates.iter().any(fits) {
            return Err(Rejected::Signature);
        }
        serde_json::from_slice(&decode(payload)?).map_err(|_| Rejected::Malformed)
    }
}

impl Claims {
    fn user(&self) -> User {
        let account = &self.kubernetes.serviceaccount;
        let namespace = &self.kubernetes.namespace;
        let mut user = User {
            name: format!("system:serviceaccount:{namespace}:{}", account.name),
            uid: account.uid.clone(),
            groups: service_account_groups(namespace),
            ..User::default()
        };
        user.add_group(AUTHENTICATED);
        let credential = vec![format!("JTI={}", self.jti)];
        user.extra.insert(
            "authentication.kubernetes.io/credential-id".into(),
            credential,
        );
        let Bound { pod, node, .. } = &self.kubernetes;
        for (kind, object) in [("pod", pod), ("node", node)] {
            let Some(object) = object else { continue };
            let member = |what: &str| format!("authentication.kubernetes.io/{kind}-{what}");
            user.extra.insert(member("name"), vec![object.name.clone()]);
            user.extra.insert(member("uid"), vec![object.uid.clone()]);
        }
        user
    }
}

/// Returns the groups of all ServiceAccounts of a namespace.
pub(super) fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![
        "system:serviceaccounts".into(),
        format!("system:serviceaccounts:{namespace}"),
    ]
}

impl Named {
    /// Returns whether the object exists with this uid. With `ending`, an object that is being deleted counts as
    /// existing.
    fn exists(&self, store: &dyn Store, resource: &str, namespace: &str, ending: bool) -> bool {
        #[derive(Deserialize)]
        struct Read {
            metadata: Meta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            uid: String,
            deletion_timestamp: Option<String>,
        }
        let key = Key {
            resource: Arc::from(resource),
            namespace: namespace.into(),
            name: self.name.clone(),
        };
        let object = store.get(&key);
        let read = object.and_then(|object| serde_json::from_slice::<Read>(&object.json).ok());
        read.is_some_and(|Read { metadata }| {
            metadata.uid == self.uid && (ending || metadata.deletion_timestamp.is_none())
        })
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use ring::signature::KeyPair as _;

    use super::*;

    fn claims() -> Claims {
        let named = Named {
            name: "sa".into(),
            uid: "u".into(),
        };
        Claims {
            aud: vec![AUDIENCE.into()],
            exp: 10,
            iat: 1,
            iss: AUDIENCE.into(),
            jti: "j".into(),
            kubernetes: Bound {
                namespace: "d".into(),
                serviceaccount: named,
                pod: None,
                secret: None,
                node: None,
            },
            nbf: 1,
            sub: "system:serviceaccount:d:sa".into(),
        }
    }

    #[test]
    fn signed_token_is_verified_and_altered_token_is_rejected() {
        let issuer = Issuer::new(SigningKey::generate().unwrap());
        let token = issuer.sign(&claims()).unwrap();
        assert_eq!(
            issuer.claims(&token).unwrap().sub,
            "system:serviceaccount:d:sa"
        );

        let other = Issuer::new(SigningKey::generate().unwrap());
        assert_eq!(other.claims(&token).unwrap_err(), Rejected::Signature);

        let mut parts: Vec<&str> = token.split('.').collect();
        let altered = URL_SAFE_NO_PAD.encode(br#"{"sub":"system:serviceaccount:d:root"}"#);
        parts[1] = &altered;
        assert_eq!(
            issuer.claims(&parts.join(".")).unwrap_err(),
            Rejected::Signature
        );

        let none = URL_SAFE_NO_PAD.encode(br#"{"alg":"none"}"#);
        parts[0] = &none;
        assert_eq!(
            issuer.claims(&parts.join(".")).unwrap_err(),
            Rejected::Malformed
        );
        for junk in ["", "a", "a.b", "a.b.c", "...", "é.é.é"] {
            assert_eq!(
                issuer.claims(junk).unwrap_err(),
                Rejected::Malformed,
                "{junk}"
            );
        }
    }

    #[test]
    fn tokens_of_an_accepted_key_stay_valid() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old.key");
        let old = Issuer::new(SigningKey::load_or_generate(&path).unwrap());
        let token = old.sign(&claims()).unwrap();
        let new = Issuer::new(SigningKey::generate().unwrap());
        assert_eq!(new.claims(&token).unwrap_err(), Rejected::Signature);

        // The file contains one key as a private key and as a public key in the form of `openssl ec -pubout`.
        let point = old.key.pair.public_key().as_ref();
        let mut info =
            b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\
            \x3d\x03\x01\x07\x03\x42\x00"
                .to_vec();
        info.extend_from_slice(point);
        let public = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            STANDARD.encode(info)
        );
        let both = std::fs::read_to_string(&path).unwrap() + &public;
        let file = dir.path().join("both.pem");
        std::fs::write(&file, both).unwrap();
        let loose = VerifyingKey::read_all(&file);
        assert!(
            matches!(loose, Err(KeyError::File(..))),
            "the PEM contains a private key"
        );
        tenure_host::files::tighten(&file).unwrap();
        let keys = VerifyingKey::read_all(&file).unwrap();
        assert_eq!(keys.len(), 2);
        let rolled = Issuer::new(new.key).accept(keys);
        assert!(rolled.claims(&token).is_ok());
        let set = rolled.key_set();
        assert_eq!(set["keys"].as_array().unwrap().len(), 2);
        assert_eq!(set["keys"][1], old.key_set()["keys"][0]);

        for junk in [
            "",
            "x",
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        ] {
            std::fs::write(&file, junk).unwrap();
            let read = VerifyingKey::read_all(&file);
            assert!(matches!(read, Err(KeyError::NotPublic(_))), "{junk}");
        }
    }

    #[test]
    fn signing_key_is_loaded_again_and_invalid_file_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sa.key");
        let first = Issuer::new(SigningKey::load_or_generate(&path).unwrap());
        let second = Issuer::new(SigningKey::load_or_generate(&path).unwrap());
        let token = first.sign(&claims()).unwrap();
        assert!(second.claims(&token).is_ok());
        assert_eq!(first.key_set(), second.key_set());
        std::fs::write(&path, "junk").unwrap();
        assert!(matches!(
            SigningKey::load_or_generate(&path),
            Err(KeyError::Parse(_))
        ));
    }
}
