//! Configuration of the etcd engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tenure_host::files;

use super::super::durable::format::Unreadable;
use super::super::{Encryption, Retention};

/// Address, credentials and retention of an etcd.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT` of the members, tried in this order.
    pub endpoints: Vec<String>,
    /// Prefix of all keys. Servers with the same prefix share their objects.
    pub prefix: String,
    /// CA certificate of etcd (PEM), required for `https`.
    pub ca_file: Option<PathBuf>,
    /// Client certificate (PEM).
    pub cert_file: Option<PathBuf>,
    /// Private key of the client certificate (PEM).
    pub key_file: Option<PathBuf>,
    /// Age above which etcd's history is compacted; `None` disables compaction. Compaction affects the whole etcd,
    /// independent of the prefix.
    pub compaction: Option<Duration>,
    /// History that this server keeps in memory for watches and exact lists.
    pub retention: Retention,
    /// Encryption of the values. All servers with the same prefix need the same keys.
    pub encryption: Encryption,
}

impl EtcdConfig {
    /// Creates a configuration for these members, without TLS files and with five minutes of history.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: "/tenure".to_owned(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            compaction: Some(Duration::from_secs(300)),
            retention: Retention::default(),
            encryption: Encryption::OFF,
        }
    }
}

/// Error that prevents the use of an etcd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// An endpoint is invalid.
    #[error("etcd endpoint {0:?}: {1}")]
    Endpoint(String, &'static str),
    /// The prefix is invalid.
    #[error("etcd prefix {0:?} must begin with a slash and must not end with one")]
    Prefix(String),
    /// A certificate or key file is unusable.
    #[error("{0}: {1}")]
    File(String, String),
    /// TLS setup failed.
    #[error("TLS to etcd cannot be set up: {0}")]
    Tls(String),
    /// A value is encrypted with a key that is missing.
    #[error("etcd: {0}")]
    Locked(String),
    /// etcd did not answer, or answered with an error.
    #[error("etcd cannot be used: {0}")]
    Unusable(String),
}

impl From<Unreadable> for EtcdError {
    fn from(error: Unreadable) -> Self {
        match error {
            Unreadable::Damaged(what) => Self::Unusable(what),
            Unreadable::Locked(what) => Self::Locked(what),
        }
    }
}

/// One member.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
    pub(super) origin: Uri,
}

impl Endpoint {
    fn parse(text: &str) -> Result<Self, EtcdError> {
        let bad = |why| EtcdError::Endpoint(text.to_owned(), why);
        let origin: Uri = text
            .trim_end_matches('/')
            .parse()
            .map_err(|_| bad("not a URL"))?;
        let tls = match origin.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad("must begin with http:// or https://")),
        };
        if !matches!(origin.path(), "" | "/") || origin.query().is_some() {
            return Err(bad("must end after the port"));
        }
        let host = origin.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| bad("has no host"))?;
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: origin.port_u16().unwrap_or(2379),
            tls,
            origin,
        })
    }
}

/// The members of a configuration, and the TLS setup if one of them needs it.
pub(super) type Members = (Vec<Endpoint>, Option<Arc<ClientConfig>>);

/// Validates a configuration without connecting.
pub(super) fn members(config: &EtcdConfig) -> Result<Members, EtcdError> {
    let EtcdConfig { prefix, .. } = config;
    if !prefix.starts_with('/') || prefix.ends_with('/') || prefix.contains('\0') {
        return Err(EtcdError::Prefix(prefix.clone()));
    }
    let endpoints = config.endpoints.iter().map(|text| Endpoint::parse(text));
    let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
    if endpoints.is_empty() {
        return Err(EtcdError::Endpoint(
            String::new(),
            "name at least one endpoint",
        ));
    }
    let tls = endpoints.iter().any(|endpoint| endpoint.tls);
    let tls = tls.then(|| client_config(config)).transpose()?;
    Ok((endpoints, tls.map(Arc::new)))
}

fn client_config(config: &EtcdConfig) -> Result<ClientConfig, EtcdError> {
    let Some(ca) = &config.ca_file else {
        let why = "an https endpoint needs the CA certificate of etcd (--etcd-cafile)";
        return Err(EtcdError::Tls(why.to_owned()));
    };
    let failed = |error: rustls::Error| EtcdError::Tls(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(failed)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_root_certificates(roots);
    let mut client = match (&config.cert_file, &config.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            let bad = |why: String| EtcdError::File(key.display().to_string(), why);
            let text = files::read_secret(key).map_err(|error| bad(error.to_string()))?;
            let pair = PrivateKeyDer::from_pem_slice(text.as_bytes());
            let pair = pair.map_err(|error| bad(error.to_string()))?;
            builder
                .with_client_auth_cert(certificates(certificate)?, pair)
                .map_err(failed)?
        }
        _ => {
            let why = "--etcd-certfile and --etcd-keyfile must be given together";
            return Err(EtcdError::Tls(why.to_owned()));
        }
    };
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(client)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdError> {
    let bad = |why: String| EtcdError::File(path.display().to_string(), why);
    let found = CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))?;
    let found = found.collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| bad(error.to_string()))?;
    if found.is_empty() {
        return Err(bad("contains no certificate".to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(endpoint: &str) -> String {
        members(&EtcdConfig::new([endpoint]))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn endpoints_are_urls_of_members() {
        let (members, tls) = members(&EtcdConfig::new([
            "http://a:1",
            "http://[::1]/",
            "http://b",
        ]))
        .unwrap();
        let places: Vec<_> = members.iter().map(|m| (m.host.as_str(), m.port)).collect();
        assert_eq!(places, [("a", 1), ("::1", 2379), ("b", 2379)]);
        assert!(tls.is_none());
        for bad in ["", "a:1", "ftp://a", "http://a/b", "http://a?b", "http://"] {
            assert!(
                error(bad).starts_with("etcd endpoint"),
                "{bad}: {}",
                error(bad)
            );
        }
    }

    #[test]
    fn tls_configuration_error_names_the_missing_option_or_file() {
        assert!(error("https://a").contains("--etcd-cafile"));
        let absent = EtcdConfig {
            ca_file: Some("/absent/ca.pem".into()),
            ..EtcdConfig::new(["https://a"])
        };
        let why = members(&absent).unwrap_err().to_string();
        assert!(why.contains("/absent/ca.pem"), "{why}");
    }

    #[test]
    fn a_prefix_is_a_path() {
        for bad in ["", "x", "/x/", "/"] {
            let config = EtcdConfig {
                prefix: bad.to_owned(),
                ..EtcdConfig::new(["http://a"])
            };
            assert!(matches!(members(&config), Err(EtcdError::Prefix(_))));
        }
    }
}
