//! Files that are read again when they change: static tokens, the administrator's token, certificates.
//!
//! Invariant: a file that is missing or invalid changes nothing. The server keeps what it has read before and logs the
//! error once per change of the file.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_host::files;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::auth::{Auth, TokenFile, User};
use crate::pki::{Pki, PkiError};
use crate::tls;

/// Interval at which the files are checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Number of checks after which certificates that are about to expire are replaced: about twelve hours.
const RENEW_EVERY: u32 = 12 * 3_600;

/// Identifies one version of the files: device, inode, size, and the times of the last changes.
type Version = Vec<Option<(u64, u64, u64, [i64; 4])>>;

/// Files that belong together, and the version that was read last.
struct Files {
    paths: Vec<PathBuf>,
    read: Option<Version>,
    seen: Option<Version>,
    /// Number of checks until the same version is read again, after an error of the file system.
    retry_in: Option<u32>,
    /// Number of such errors since the last change.
    failures: u32,
}

impl Files {
    fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            read: None,
            seen: None,
            retry_in: None,
            failures: 0,
        }
    }

    /// Returns whether the files have changed, and have not changed again since the last check. A file that is being
    /// written is not read.
    fn changed(&mut self) -> bool {
        let now: Version = self.paths.iter().map(|path| version(path)).collect();
        if self.read.as_ref() == Some(&now) {
            let left = self.retry_in.map(|checks| checks.saturating_sub(1));
            self.retry_in = left.filter(|left| *left > 0);
            return left == Some(0);
        }
        if self.seen.as_ref() != Some(&now) {
            self.seen = Some(now);
            return false;
        }
        self.read = self.seen.take();
        (self.retry_in, self.failures) = (None, 0);
        true
    }

    /// Requests another read of the same version. The pauses grow up to about a minute.
    fn retry(&mut self) {
        self.failures = (self.failures + 1).min(6);
        self.retry_in = Some(1 << self.failures);
    }
}

/// Returns whether an error can go away without a change of the file. A file that is missing or is not text cannot.
fn is_temporary(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, NotFound};
    !matches!(error.kind(), NotFound | InvalidData)
}

fn version(path: &Path) -> Option<(u64, u64, u64, [i64; 4])> {
    let found = std::fs::metadata(path).ok()?;
    let times = [
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ];
    Some((found.dev(), found.ino(), found.len(), times))
}

/// The sources of static tokens, each with its last valid content.
pub(super) struct Tokens {
    /// The file in kube-apiserver's format.
    pub(super) file: Option<PathBuf>,
    pub(super) from_file: TokenFile,
    /// The file of the administrator's token.
    pub(super) admin: Option<PathBuf>,
    pub(super) admin_token: Option<String>,
    /// Tokens that have no file.
    pub(super) fixed: TokenFile,
}

/// The certificates of the TLS listener.
pub(super) struct Certificates {
    pub(super) folder: PathBuf,
    pub(super) names: Vec<String>,
    pub(super) pki: Pki,
    pub(super) acceptor: watch::Sender<TlsAcceptor>,
}

/// Reads changed files again, until it is dropped.
pub(super) struct Reload {
    pub(super) auth: Arc<Auth>,
    pub(super) tokens: Tokens,
    pub(super) certificates: Option<Certificates>,
}

impl Reload {
    pub(super) async fn run(self) {
        let tokens = self.tokens.file.iter().chain(&self.tokens.admin);
        let certificates = self.certificates.iter().flat_map(|certificates| {
            ["ca.crt", "server.crt", "server.key"].map(|name| certificates.folder.join(name))
        });
        let mut checker = Checker {
            token_files: Files::new(tokens.cloned().collect()),
            pki_files: Files::new(certificates.collect()),
            checks: 0,
            reload: self,
        };
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            // Checks on a blocking thread, so that a file system that does not respond cannot block requests.
            let check = tokio::task::spawn_blocking(move || checker.check());
            let Ok(checked) = check.await else { return };
            checker = checked;
        }
    }
}

/// The state between two checks.
struct Checker {
    reload: Reload,
    token_files: Files,
    pki_files: Files,
    checks: u32,
}

impl Checker {
    fn check(mut self) -> Self {
        self.checks = self.checks.wrapping_add(1);
        if self.token_files.changed() && self.reload.tokens.read_again(&self.reload.auth) {
            self.token_files.retry();
        }
        if let Some(certificates) = &mut self.reload.certificates {
            if self.checks.is_multiple_of(RENEW_EVERY) {
                certificates.renew();
            }
            if self.pki_files.changed() && certificates.read_again() {
                self.pki_files.retry();
            }
        }
        self
    }
}

impl Tokens {
    /// Returns all valid tokens.
    pub(super) fn all(&self) -> TokenFile {
        let mut tokens = self.from_file.clone();
        tokens.extend(self.fixed.clone());
        if let Some(token) = &self.admin_token {
            tokens.insert(token, User::admin());
        }
        tokens
    }

    /// Reads both files. A valid file takes effect even if the other one is invalid. Returns whether a later attempt
    /// may succeed although the files do not change.
    fn read_again(&mut self, auth: &Auth) -> bool {
        let mut again = false;
        let refused = |path: &Path, error: &dyn std::fmt::Display| {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot read static tokens; the old ones stay valid");
        };
        if let Some(path) = &self.file {
            match files::read_secret(path) {
                Err(error) => {
                    again |= is_temporary(&error);
                    refused(path, &error);
                }
                Ok(text) => match TokenFile::parse(&text) {
                    Ok(tokens) => self.from_file = tokens,
                    Err(error) => refused(path, &error),
                },
            }
        }
        if let Some(path) = &self.admin {
            match files::read_own(path) {
                Ok(text) if text.trim().is_empty() => refused(path, &"the file is empty"),
                Ok(text) => self.admin_token = Some(text.trim().to_owned()),
                Err(error) => {
                    again |= is_temporary(&error);
                    refused(path, &error);
                }
            }
        }
        if auth.set_tokens(self.all()) {
            tracing::info!("static tokens changed");
        }
        again
    }
}

impl Certificates {
    /// Replaces certificates that this server's authority issued and that are about to expire.
    fn renew(&self) {
        if let Err(error) = Pki::renew(&self.folder, &self.names) {
            tracing::error!(%error, "cannot renew the certificates");
        }
    }

    /// Reads the certificates. Returns whether a later attempt may succeed although the files do not change.
    fn read_again(&mut self) -> bool {
        let folder = self.folder.display();
        let pki = match self.pki.read_again(&self.folder) {
            Ok(pki) => pki,
            Err(error) => {
                tracing::warn!(%error, "cannot read the certificates; the old ones stay in use");
                return matches!(&error, PkiError::File(_, error) if is_temporary(error));
            }
        };
        if pki.ca == self.pki.ca && pki.server == self.pki.server {
            return false;
        }
        match tls::server_config(&pki) {
            Ok(config) => {
                self.acceptor
                    .send_replace(TlsAcceptor::from(Arc::new(config)));
                self.pki = pki;
                tracing::info!(%folder, "certificates changed");
            }
            Err(error) => {
                tracing::warn!(%folder, %error, "cannot use the certificates; the old ones stay in use");
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_again_after_an_error_with_growing_pauses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, "a").unwrap();
        let mut files = Files::new(vec![path.clone()]);
        assert!(!files.changed(), "the file may still be written to");
        assert!(files.changed());
        assert!(!files.changed());
        for pause in [2, 4, 8] {
            files.retry();
            for _ in 1..pause {
                assert!(!files.changed());
            }
            assert!(files.changed());
        }
        assert!(!files.changed(), "no retry was requested");
        files.retry();
        std::fs::write(&path, "ab").unwrap();
        assert!(!files.changed());
        assert!(files.changed(), "a change does not wait for the retry");
        assert_eq!((files.retry_in, files.failures), (None, 0));
    }
}
