//! Encryption of the data: the key file, its creation, and the rotation of its keys.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use tenure_apiserver::server::Instance;
use tenure_apiserver::store::{Encryption, EtcdStore, RedbStore, Rotation, Scope};

use super::store::{Store, StoreArgs};
use crate::waiting;

/// Time between two lines about the progress of a rotation.
const REPORT: Duration = Duration::from_secs(2);

#[derive(Args, Clone, Debug)]
pub(super) struct EncryptionArgs {
    /// Encrypt stored data with the first key of this file
    ///
    /// The other keys of the file decrypt data that was encrypted with them. `tenure server new-key` creates a file.
    #[arg(
        long,
        value_name = "FILE",
        env = "TENURE_ENCRYPTION_KEY_FILE",
        global = true
    )]
    encryption_key_file: Option<PathBuf>,
    /// Objects to encrypt when they are written
    #[arg(
        long,
        value_enum,
        default_value_t = Encrypt::Secrets,
        global = true
    )]
    encrypt: Encrypt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Encrypt {
    /// Secrets
    Secrets,
    /// All objects
    All,
    /// No objects; encrypted data stay readable
    None,
}

impl EncryptionArgs {
    /// Reads the key file, if there is one.
    pub(super) fn read(&self) -> Result<Encryption> {
        let scope = match self.encrypt {
            Encrypt::Secrets => Scope::Secrets,
            Encrypt::All => Scope::All,
            Encrypt::None => Scope::None,
        };
        match &self.encryption_key_file {
            Some(file) => Ok(Encryption::read(file, scope)?),
            None if self.encrypt != Encrypt::Secrets => {
                bail!("--encrypt needs the keys: --encryption-key-file FILE")
            }
            None => Ok(Encryption::OFF),
        }
    }

    /// `tenure server rotate-keys`
    pub(super) async fn rotate(&self, dir: PathBuf, store: StoreArgs) -> Result<u8> {
        let encryption = self.read()?;
        if !encryption.has_keys() {
            bail!("rotate-keys needs the keys: --encryption-key-file FILE");
        }
        let mut report = Report::default();
        let rotation = if let Some(mut etcd) = store.etcd() {
            etcd.encryption = encryption.clone();
            EtcdStore::rotate_keys(etcd, |rotation| report.show(rotation)).await?
        } else {
            if matches!(store.store, Store::Memory) {
                bail!("a server with --store memory has no stored data");
            }
            if Instance::read(&dir)?.is_some_and(|instance| instance.is_alive()) {
                let dir = dir.display();
                bail!("a server runs on {dir}; stop it first: `tenure server stop`");
            }
            if !dir.join("store.redb").exists() {
                let dir = dir.display();
                bail!("{dir} has no stored data; for a server on etcd, pass --store etcd=URL");
            }
            let whom = format!("the data in {}", dir.display());
            let (folder, keys) = (dir.clone(), encryption.clone());
            let rotate =
                move || RedbStore::rotate_keys(folder, &keys, |rotation| report.show(rotation));
            let rotation = waiting::on_blocking(whom, rotate).await??;
            tell_of_copies(&dir)?;
            rotation
        };
        let Rotation {
            read,
            rewritten,
            encrypted,
            ..
        } = rotation;
        match encryption.writing_key() {
            Some(key) => println!(
                "{read} objects: {rewritten} rewritten, {encrypted} encrypted with key {key}"
            ),
            None => println!("{read} objects: {rewritten} rewritten, none encrypted"),
        }
        Ok(0)
    }
}

/// `tenure server new-key`
pub(super) fn new_key(file: &Path) -> Result<u8> {
    let key = Encryption::create_key_file(file)?;
    println!("key {key} in {}", file.display());
    println!("keep a copy in a safe place: data encrypted with a lost key cannot be read");
    Ok(0)
}

/// Prints the copies of earlier restores, which still have their old keys.
fn tell_of_copies(dir: &Path) -> Result<()> {
    let entries = std::fs::read_dir(dir);
    for entry in entries.with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("store.redb.before-") {
            println!("{} still has its old keys; remove it", path.display());
        }
    }
    Ok(())
}

/// Progress on standard error.
#[derive(Debug, Default)]
struct Report {
    last: Option<Instant>,
}

impl Report {
    fn show(&mut self, rotation: Rotation) {
        // The time is read only for every n-th object, because this is called for every object.
        if !rotation.read.is_multiple_of(100) {
            return;
        }
        let last = *self.last.get_or_insert_with(Instant::now);
        if last.elapsed() < REPORT {
            return;
        }
        self.last = Some(Instant::now());
        let Rotation {
            read, rewritten, ..
        } = rotation;
        match rotation.total {
            Some(total) => eprintln!("tenure: read {read} of {total} objects, rewrote {rewritten}"),
            None => eprintln!("tenure: read {read} objects, rewrote {rewritten}"),
        }
    }
}
