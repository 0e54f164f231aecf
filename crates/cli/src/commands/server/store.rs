//! Flags that choose the store of the data.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tenure_apiserver::store::EtcdConfig;

#[derive(Args, Clone, Debug)]
pub(super) struct StoreArgs {
    /// Storage engine: redb, memory, or etcd=URL[,URL...]
    ///
    /// `redb` is a crash-safe file in the data directory. With `memory`, the data are gone when the server ends. With
    /// `etcd`, all servers on that etcd share the data.
    #[arg(
        long,
        value_name = "ENGINE",
        default_value = "redb",
        default_value_if("ephemeral", "true", "memory"),
        value_parser = Store::parse
    )]
    pub(super) store: Store,
    /// Certificate authority of etcd
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Private key of that certificate
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// Prefix of all keys in etcd; servers with the same prefix share data
    #[arg(long, value_name = "PATH", default_value = "/tenure")]
    etcd_prefix: String,
    /// Compact etcd's history when it is older than this; 0s disables it
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = crate::values::duration)]
    etcd_compaction_interval: Duration,
}

#[derive(Clone, Debug)]
pub(super) enum Store {
    Redb,
    Memory,
    /// The endpoints.
    Etcd(Vec<String>),
}

impl StoreArgs {
    /// Returns the configuration of etcd, if the data are there.
    pub(super) fn etcd(&self) -> Option<EtcdConfig> {
        let Store::Etcd(endpoints) = &self.store else {
            return None;
        };
        let interval = self.etcd_compaction_interval;
        Some(EtcdConfig {
            prefix: self.etcd_prefix.clone(),
            ca_file: self.etcd_cafile.clone(),
            cert_file: self.etcd_certfile.clone(),
            key_file: self.etcd_keyfile.clone(),
            compaction: Some(interval).filter(|time| !time.is_zero()),
            ..EtcdConfig::new(endpoints.clone())
        })
    }
}

impl Store {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "redb" => Ok(Self::Redb),
            None if text == "memory" => Ok(Self::Memory),
            Some(("etcd", urls)) if !urls.is_empty() => {
                Ok(Self::Etcd(urls.split(',').map(str::to_owned).collect()))
            }
            _ => Err("expected redb, memory or etcd=URL[,URL...]".to_owned()),
        }
    }
}
