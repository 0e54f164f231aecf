//! Encryption of stored values, below the engines' formats and above their media.
//!
//! An encrypted value is `version (1), key id (8), salt (16), nonce (12), ciphertext, tag (16)`. The cipher is
//! AES-256-GCM. Every value has a separate key, derived with HKDF-SHA-256 from the key of the file and the random salt.
//! Salt and nonce have 224 random bits together, so that one key of the file can encrypt any number of values.
//!
//! Invariant: the associated data of a value contain the key of its object. A value that was moved to another object,
//! or changed in any bit, is an error and never an object.

mod key_file;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};

pub use self::key_file::KeyFileError;

/// Storage name of Secrets.
const SECRETS: &str = "/secrets";

const VERSION: u8 = 1;
const ID_LEN: usize = 8;
const SALT_LEN: usize = 16;
const TAG_LEN: usize = 16;
/// Bytes before the ciphertext.
const HEADER: usize = 1 + ID_LEN + SALT_LEN + NONCE_LEN;

/// The objects whose values are encrypted when they are written. Every value can be read, regardless of the scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Secrets.
    #[default]
    Secrets,
    /// All objects.
    All,
    /// No object.
    None,
}

/// Identifies a key. It is derived from the key and does not reveal it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyId([u8; ID_LEN]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// The keys of a key file, and the objects that they encrypt. The default has no keys. Clones share the keys.
#[derive(Clone, Debug, Default)]
pub struct Encryption(Option<Arc<Keys>>);

struct Keys {
    /// The first key encrypts; every key decrypts.
    keys: Vec<DataKey>,
    scope: Scope,
    file: PathBuf,
}

/// One key of the file, from which the keys of values are derived.
struct DataKey {
    id: KeyId,
    base: Prk,
}

/// Prints ids only.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.keys.iter().map(|key| key.id).collect();
        f.debug_struct("Keys")
            .field("keys", &ids)
            .field("scope", &self.scope)
            .field("file", &self.file)
            .finish()
    }
}

/// Progress and result of a key rotation, in objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rotation {
    /// Objects that were read.
    pub read: u64,
    /// Objects that were rewritten because they were not encrypted as configured.
    pub rewritten: u64,
    /// Objects that are encrypted now.
    pub encrypted: u64,
    /// All objects, if their number is known.
    pub total: Option<u64>,
}

impl Rotation {
    /// Counts an object with the key that it had and the key that it gets.
    pub(super) fn count(&mut self, had: Option<KeyId>, gets: Option<KeyId>) {
        self.read += 1;
        self.rewritten += u64::from(had != gets);
        self.encrypted += u64::from(gets.is_some());
    }
}

/// Reason why a value cannot be decrypted. The text continues a sentence that names the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DecryptError {
    #[error("is encrypted with key {id}, which is not in {}; add this key to the file", file.display())]
    NotInFile { id: KeyId, file: PathBuf },
    #[error("is encrypted with key {0}; name the file with this key: --encryption-key-file FILE")]
    NoFile(KeyId),
    #[error(
        "cannot be decrypted with key {0}: the value was changed, or it belongs to another object"
    )]
    Changed(KeyId),
    #[error("is encrypted in a way that this version does not know")]
    Unknown,
}

impl DecryptError {
    /// Returns whether another key file makes the value readable.
    pub(super) fn needs_key(&self) -> bool {
        matches!(self, Self::NotInFile { .. } | Self::NoFile(_))
    }
}

impl Encryption {
    /// Encryption without keys.
    pub const OFF: Self = Self(None);

    /// Reads a key file. [`KeyFileError`] lists the conditions.
    ///
    /// # Errors
    /// Returns the file, the reason and the remedy.
    pub fn read(file: impl AsRef<Path>, scope: Scope) -> Result<Self, KeyFileError> {
        let file = file.as_ref();
        let keys = key_file::read(file)?;
        Ok(Self(Some(Arc::new(Keys {
            keys,
            scope,
            file: file.to_owned(),
        }))))
    }

    /// Returns encryption with these keys.
    #[cfg(test)]
    pub(super) fn of(keys: &[u8], scope: Scope) -> Self {
        let keys = keys.iter().map(|key| DataKey::new(&[*key; 32]).unwrap());
        Self(Some(Arc::new(Keys {
            keys: keys.collect(),
            scope,
            file: "/etc/tenure/keys".into(),
        })))
    }

    /// Creates a file with one random key. Does not replace a file.
    ///
    /// # Errors
    /// Returns an error if the file exists or cannot be written.
    pub fn create_key_file(file: impl AsRef<Path>) -> Result<KeyId, KeyFileError> {
        key_file::create(file.as_ref())
    }

    /// Returns the key that encrypts; `None` if nothing is encrypted when it is written.
    pub fn writing_key(&self) -> Option<KeyId> {
        let keys = self.0.as_ref().filter(|keys| keys.scope != Scope::None)?;
        keys.keys.first().map(|key| key.id)
    }

    /// Returns whether there are keys.
    pub fn has_keys(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the key that values of a resource are encrypted with; `None` if they are stored in clear text.
    pub(super) fn key_for(&self, resource: &str) -> Option<KeyId> {
        self.key(resource).map(|key| key.id)
    }

    fn key(&self, resource: &str) -> Option<&DataKey> {
        let keys = self.0.as_ref()?;
        let covered = match keys.scope {
            Scope::Secrets => resource == SECRETS,
            Scope::All => true,
            Scope::None => false,
        };
        keys.keys.first().filter(|_| covered)
    }

    /// Encrypts a value with the key of its resource; `None` if the resource is stored in clear text.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub(super) fn seal(
        &self,
        resource: &str,
        associated: &[u8],
        value: &[u8],
    ) -> io::Result<Option<Vec<u8>>> {
        let key = self.key(resource);
        key.map(|key| key.seal(associated, value)).transpose()
    }

    /// Encrypts a value that belongs to no object, if anything is encrypted.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    #[cfg(feature = "etcd")]
    pub(super) fn seal_shared(
        &self,
        associated: &[u8],
        value: &[u8],
    ) -> io::Result<Option<Vec<u8>>> {
        // Such values are credentials, so they are encrypted like Secrets.
        self.seal(SECRETS, associated, value)
    }

    /// Returns the key that [`Encryption::seal_shared`] uses.
    #[cfg(feature = "etcd")]
    pub(super) fn shared_key(&self) -> Option<KeyId> {
        self.key_for(SECRETS)
    }

    /// Decrypts a value. Also returns the key that it was encrypted with.
    pub(super) fn open(
        &self,
        associated: &[u8],
        sealed: &[u8],
    ) -> Result<(KeyId, Vec<u8>), DecryptError> {
        let (version, rest) = sealed.split_first().ok_or(DecryptError::Unknown)?;
        if *version != VERSION {
            return Err(DecryptError::Unknown);
        }
        let (id, rest) = rest
            .split_first_chunk::<ID_LEN>()
            .ok_or(DecryptError::Unknown)?;
        let id = KeyId(*id);
        let keys = self.0.as_ref().ok_or(DecryptError::NoFile(id))?;
        let missing = || DecryptError::NotInFile {
            id,
            file: keys.file.clone(),
        };
        let key = keys.keys.iter().find(|key| key.id == id);
        let value = key.ok_or_else(missing)?.open(associated, rest);
        value
            .map(|value| (id, value))
            .ok_or(DecryptError::Changed(id))
    }
}

impl DataKey {
    fn new(key: &[u8; 32]) -> Option<Self> {
        struct IdLength;
        impl KeyType for IdLength {
            fn len(&self) -> usize {
                ID_LEN
            }
        }
        let base = Salt::new(HKDF_SHA256, b"tenure encryption at rest").extract(key);
        let mut id = [0; ID_LEN];
        let derived = base.expand(&[b"key id"], IdLength);
        derived.and_then(|derived| derived.fill(&mut id)).ok()?;
        Some(Self {
            id: KeyId(id),
            base,
        })
    }

    /// Derives the key of one value.
    fn value_key(&self, salt: &[u8; SALT_LEN]) -> Option<LessSafeKey> {
        let info = [b"value".as_slice(), salt];
        let derived = self.base.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }

    fn seal(&self, associated: &[u8], value: &[u8]) -> io::Result<Vec<u8>> {
        let mut random = [0; SALT_LEN + NONCE_LEN];
        let filled = SystemRandom::new().fill(&mut random);
        filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
        let mut sealed = Vec::with_capacity(HEADER + value.len() + TAG_LEN);
        sealed.push(VERSION);
        sealed.extend_from_slice(&self.id.0);
        sealed.extend_from_slice(&random);
        sealed.extend_from_slice(value);
        let tag = random.split_first_chunk().and_then(|(salt, nonce)| {
            let key = self.value_key(salt)?;
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let (_, text) = sealed.split_at_mut_checked(HEADER)?;
            let associated = Aad::from(associated);
            key.seal_in_place_separate_tag(nonce, associated, text).ok()
        });
        let tag = tag.ok_or_else(|| io::Error::other("the value is too long to be encrypted"))?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// Decrypts the part of a value after the key id; `None` if it was changed.
    fn open(&self, associated: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
        let (salt, rest) = rest.split_first_chunk()?;
        let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let mut value = text.to_vec();
        let key = self.value_key(salt)?;
        let opened = key.open_in_place(nonce, Aad::from(associated), &mut value);
        let length = opened.ok()?.len();
        value.truncate(length);
        Some(value)
    }
}
