//! The key file: one key per line, 32 bytes in base64. Empty lines and lines that start with `#` are ignored.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use tenure_host::files;

use super::{DataKey, KeyId};
use crate::store::durable::sync_dir;

/// Largest key file, about a thousand keys.
const MAX_BYTES: usize = 64 << 10;

/// Error of reading or creating a key file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file cannot be used, for example because other users can read it.
    #[error("encryption key file {}: {source}", path.display())]
    Io {
        /// The key file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The new file exists already.
    #[error(
        "{} exists and is not replaced, because data encrypted with its keys would become unreadable; choose another name",
        .0.display()
    )]
    Exists(PathBuf),
    /// The content is not a list of keys.
    #[error("encryption key file {}: {what}", path.display())]
    Invalid {
        /// The key file.
        path: PathBuf,
        /// The line and the reason.
        what: String,
    },
}

/// Reads the keys in order. Every key is in the result once.
pub(super) fn read(path: &Path) -> Result<Vec<DataKey>, KeyFileError> {
    let failed = |source| KeyFileError::Io {
        path: path.to_owned(),
        source,
    };
    let invalid = |what: String| KeyFileError::Invalid {
        path: path.to_owned(),
        what,
    };
    let text = files::read_secret(path).map_err(failed)?;
    if text.len() > MAX_BYTES {
        return Err(invalid(format!("it has more than {MAX_BYTES} bytes")));
    }
    parse(&text).map_err(invalid)
}

fn parse(text: &str) -> Result<Vec<DataKey>, String> {
    let mut keys = Vec::<DataKey>::new();
    let lines = text.lines().map(str::trim).zip(1..);
    for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
        let bytes = STANDARD.decode(line).ok();
        let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let key = bytes.and_then(|bytes| DataKey::new(&bytes));
        // The line may be a mistyped key, so the message does not repeat it.
        let key = key.ok_or_else(|| format!("line {number} is not a key: 32 bytes in base64"))?;
        if keys.iter().all(|known| known.id != key.id) {
            keys.push(key);
        }
    }
    if keys.is_empty() {
        return Err("it has no key; create one with `tenure server new-key FILE`".to_owned());
    }
    Ok(keys)
}

/// Creates a file with one random key.
pub(super) fn create(path: &Path) -> Result<KeyId, KeyFileError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists(path.to_owned()),
        _ => KeyFileError::Io {
            path: path.to_owned(),
            source,
        },
    };
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes).ok();
    let key = filled.and_then(|()| DataKey::new(&bytes));
    let no_random = || io::Error::other("the system has no random numbers");
    let id = key.ok_or_else(|| failed(no_random()))?.id;
    let mut file = files::create(path, 0o600).map_err(failed)?;
    let text = format!(
        "# Encryption key {id} of tenure server\n{}\n",
        STANDARD.encode(bytes)
    );
    let written = file.write_all(text.as_bytes()).and_then(|()| {
        file.sync_all()?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        sync_dir(dir.unwrap_or(Path::new(".")))
    });
    if let Err(error) = written {
        let _ = fs::remove_file(path);
        return Err(failed(error));
    }
    Ok(id)
}
