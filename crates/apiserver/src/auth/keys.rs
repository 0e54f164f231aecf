//! The keys of ServiceAccount tokens: the signing key and the verifying keys.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use tenure_host::files;

const ALGORITHM: &signature::EcdsaSigningAlgorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
const PEM_HEAD: &str = "-----BEGIN PRIVATE KEY-----";
/// Part of the first line of every PEM with a private key.
const PRIVATE: &str = "PRIVATE KEY";
const PEM_TAIL: &str = "-----END PRIVATE KEY-----";

/// Reasons why a signing key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The system has no random numbers.
    #[error("cannot generate a signing key for service account tokens")]
    Generate,
    /// The file does not contain a signing key.
    #[error(
        "{0} does not contain a PKCS#8 ECDSA P-256 key in PEM; remove the file to generate a new key, which invalidates all issued tokens"
    )]
    Parse(String),
    /// The file contains something other than keys.
    #[error(
        "{0} must contain ECDSA P-256 keys in PEM, each as PUBLIC KEY or as PKCS#8 PRIVATE KEY"
    )]
    NotPublic(String),
    /// The file cannot be read or written.
    #[error("signing key of service accounts, {0}: {1}")]
    File(String, #[source] std::io::Error),
}

/// The key that signs tokens (ECDSA P-256).
pub struct SigningKey {
    pub(super) pair: EcdsaKeyPair,
    pkcs8: Vec<u8>,
}

impl SigningKey {
    /// Generates a key.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let document = EcdsaKeyPair::generate_pkcs8(ALGORITHM, &SystemRandom::new())
            .map_err(|_| KeyError::Generate)?;
        Self::from_pkcs8(document.as_ref()).ok_or(KeyError::Generate)
    }

    /// Reads the key from a file. If there is none, generates a key and writes it with access for its owner only.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, written or parsed.
    pub fn load_or_generate(path: &Path) -> Result<Self, KeyError> {
        let name = path.display().to_string();
        match files::read_own(path) {
            Ok(text) => Self::from_pem(&text).ok_or(KeyError::Parse(name)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let key = Self::generate()?;
                files::replace_durably(path, key.to_pem().as_bytes(), 0o600)
                    .map_err(|e| KeyError::File(name, e))?;
                Ok(key)
            }
            Err(e) => Err(KeyError::File(name, e)),
        }
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Option<Self> {
        let pair = EcdsaKeyPair::from_pkcs8(ALGORITHM, pkcs8, &SystemRandom::new()).ok()?;
        Some(Self {
            pair,
            pkcs8: pkcs8.to_vec(),
        })
    }

    pub(crate) fn from_pem(text: &str) -> Option<Self> {
        let body = text.trim().strip_prefix(PEM_HEAD)?.strip_suffix(PEM_TAIL)?;
        let body: String = body.split_whitespace().collect();
        Self::from_pkcs8(&STANDARD.decode(body).ok()?)
    }

    pub(crate) fn to_pem(&self) -> String {
        let body = STANDARD.encode(&self.pkcs8);
        let mut text = format!("{PEM_HEAD}\n");
        for line in body.as_bytes().chunks(64) {
            text.extend(line.iter().map(|b| char::from(*b)));
            text.push('\n');
        }
        text.push_str(PEM_TAIL);
        text.push('\n');
        text
    }
}

/// A public key that verifies tokens (ECDSA P-256).
#[derive(Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    /// An uncompressed point: 0x04, then x and y.
    pub(super) point: Vec<u8>,
    pub(super) id: String,
}

impl VerifyingKey {
    /// Returns the public part of a key.
    pub(super) fn of(key: &SigningKey) -> Self {
        Self::new(key.pair.public_key().as_ref())
    }

    fn new(point: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, point);
        Self {
            point: point.to_vec(),
            id: URL_SAFE_NO_PAD.encode(digest),
        }
    }

    /// Reads all keys of a file: public keys, or private keys like `sa.key`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or contains anything else.
    pub fn read_all(path: &Path) -> Result<Vec<Self>, KeyError> {
        let name = || path.display().to_string();
        let text = files::read_checked(path, |text| text.contains(PRIVATE))
            .map_err(|e| KeyError::File(name(), e))?;
        let mut keys = Vec::new();
        for pem in x509_parser::pem::Pem::iter_from_buffer(text.as_bytes()) {
            let key = pem.ok().and_then(|pem| Self::from_pem(&pem));
            keys.push(key.ok_or_else(|| KeyError::NotPublic(name()))?);
        }
        if keys.is_empty() {
            return Err(KeyError::NotPublic(name()));
        }
        Ok(keys)
    }

    fn from_pem(pem: &x509_parser::pem::Pem) -> Option<Self> {
        use x509_parser::prelude::FromDer as _;
        if pem.label == "PRIVATE KEY" {
            let key = SigningKey::from_pkcs8(&pem.contents)?;
            return Some(Self::of(&key));
        }
        let (rest, info) = x509_parser::x509::SubjectPublicKeyInfo::from_der(&pem.contents).ok()?;
        let point = info.subject_public_key.as_ref();
        let curve = info.algorithm.parameters.as_ref()?.as_oid().ok()?;
        let usable = pem.label == "PUBLIC KEY"
            && rest.is_empty()
            && curve == x509_parser::oid_registry::OID_EC_P256
            && point.len() == 65
            && point[0] == 4;
        usable.then(|| Self::new(point))
    }

    pub(super) fn to_value(&self) -> Value {
        let (x, y) = self.point[1..].split_at(32);
        json!({
            "use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        })
    }
}
