//! The server's certificate authority. It is created on the first start and reused afterwards.
//!
//! Files in the `pki` folder of the data directory: `ca.crt`, `ca.key`, `server.crt`, `server.key`, `admin.crt`,
//! `admin.key`, all PEM, ECDSA P-256. Only their owner can read the keys.
//!
//! Invariant: the serving certificate always covers the names that the server was started with. The same authority
//! issues a new one when a name is added or when the certificate expires soon.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use tenure_host::files;

use crate::auth::MASTERS;

const DAY: i64 = 24 * 3600;
const CA_DAYS: i64 = 3650;
const LEAF_DAYS: i64 = 365;
/// Remaining validity below which a certificate is replaced.
const RENEW_DAYS: i64 = 30;

/// An error about certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{0}: {1}")]
    File(String, #[source] io::Error),
    /// A file has unexpected contents.
    #[error("{0} is not usable: {1}; remove the pki folder to create new certificates")]
    Unusable(String, String),
    /// A certificate could not be generated.
    #[error("cannot create a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// A name is neither a DNS name nor an address.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
}

/// A certificate and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// The certificates and keys for TLS.
#[derive(Clone)]
pub struct Pki {
    /// The certificate of the authority, PEM; clients trust it.
    pub ca: String,
    /// The serving certificate.
    pub server: Identity,
    /// The administrator's client certificate (`kubernetes-admin` of `system:masters`).
    pub admin: Identity,
}

/// The names in every serving certificate, in addition to the configured names and the host name.
pub const NAMES: [&str; 8] = [
    "127.0.0.1",
    "::1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "10.0.0.1",
];

impl Pki {
    /// Creates certificates that exist only in memory.
    ///
    /// # Errors
    /// Returns an error if a name is invalid.
    pub fn ephemeral(names: &[String]) -> Result<Self, PkiError> {
        Self::under(new_authority()?, names)
    }

    /// Issues certificates with an authority that is stored elsewhere. The certificates exist only in memory.
    pub(crate) fn under(authority: Identity, names: &[String]) -> Result<Self, PkiError> {
        let authority = Authority::new(authority)
            .map_err(|e| PkiError::Unusable("the certificate authority".to_owned(), e))?;
        Ok(Self {
            server: authority.serving(&all_names(names))?,
            admin: authority.client("kubernetes-admin", &[MASTERS])?,
            ca: authority.identity.certificate,
        })
    }

    /// Reads the certificates from a folder, and creates those that are absent or no longer valid.
    ///
    /// # Errors
    /// Returns an error if the folder is not usable, if a file has unexpected contents, or if a name is invalid.
    pub fn load_or_generate(folder: &Path, names: &[String]) -> Result<Self, PkiError> {
        create_private_folder(folder)?;
        let authority = match read_identity(folder, "ca")? {
            Some(identity) => Authority::new(identity)
                .map_err(|e| PkiError::Unusable(folder.join("ca.crt").display().to_string(), e))?,
            None => {
                let authority = Authority::generate()?;
                write_identity(folder, "ca", &authority.identity)?;
                authority
            }
        };
        let names = all_names(names);
        let ca = authority.identity.certificate.clone();
        let server = match read_identity(folder, "server")? {
            Some(identity) if is_good(&identity, &ca, &names) => identity,
            _ => store(folder, "server", authority.serving(&names)?)?,
        };
        let admin = match read_identity(folder, "admin")? {
            Some(identity) if is_good(&identity, &ca, &BTreeSet::new()) => identity,
            _ => store(
                folder,
                "admin",
                authority.client("kubernetes-admin", &[MASTERS])?,
            )?,
        };
        Ok(Self { ca, server, admin })
    }

    /// Replaces the certificates that this folder's authority issued and that expire soon. An authority is never
    /// created, and certificates of another issuer are left to the operator.
    pub(crate) fn renew(folder: &Path, names: &[String]) -> Result<(), PkiError> {
        let Some(identity) = read_identity(folder, "ca")? else {
            return Ok(());
        };
        let path = || folder.join("ca.crt").display().to_string();
        let authority = Authority::new(identity).map_err(|e| PkiError::Unusable(path(), e))?;
        let ca = &authority.identity.certificate;
        let expires = |name: &str| {
            let identity = read_identity(folder, name)?;
            let left = identity.and_then(|identity| issued_by(&identity, ca));
            Ok::<_, PkiError>(left.filter(|issued| issued.seconds_left <= RENEW_DAYS * DAY))
        };
        if let Some(old) = expires("server")? {
            let kept = old.names.into_iter().filter(|name| san(name).is_ok());
            let names = all_names(names).into_iter().chain(kept).collect();
            write_identity(folder, "server", &authority.serving(&names)?)?;
        }
        if expires("admin")?.is_some() {
            let admin = authority.client("kubernetes-admin", &[MASTERS])?;
            write_identity(folder, "admin", &admin)?;
        }
        Ok(())
    }

    /// Reads the authority and the serving certificate again. Does not create certificates.
    pub(crate) fn read_again(&self, folder: &Path) -> Result<Self, PkiError> {
        let path = folder.join("ca.crt");
        let ca = std::fs::read_to_string(&path)
            .map_err(|e| PkiError::File(path.display().to_string(), e))?;
        let server = read_identity(folder, "server")?.ok_or_else(|| {
            let path = folder.join("server.crt").display().to_string();
            PkiError::File(path, io::ErrorKind::NotFound.into())
        })?;
        Ok(Self {
            ca,
            server,
            admin: self.admin.clone(),
        })
    }
}

/// Reads the authority in a folder, if there is one.
#[cfg(feature = "etcd")]
pub(crate) fn read_authority(folder: &Path) -> Result<Option<Identity>, PkiError> {
    read_identity(folder, "ca")
}

/// Writes an authority to a folder that has none.
#[cfg(feature = "etcd")]
pub(crate) fn write_authority(folder: &Path, authority: &Identity) -> Result<(), PkiError> {
    create_private_folder(folder)?;
    write_identity(folder, "ca", authority)
}

/// Creates a new authority without storing it.
pub(crate) fn new_authority() -> Result<Identity, PkiError> {
    Ok(Authority::generate()?.identity)
}

/// A certificate authority.
struct Authority {
    identity: Identity,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn generate() -> Result<Self, PkiError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "tenure-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        set_lifetime(&mut params, CA_DAYS);
        let certificate = params.self_signed(&key)?.pem();
        let identity = Identity {
            certificate,
            key: key.serialize_pem(),
        };
        Ok(Self {
            identity,
            issuer: Issuer::new(params, key),
        })
    }

    fn new(identity: Identity) -> Result<Self, String> {
        let key = KeyPair::from_pem(&identity.key).map_err(|e| e.to_string())?;
        let issuer =
            Issuer::from_ca_cert_pem(&identity.certificate, key).map_err(|e| e.to_string())?;
        Ok(Self { identity, issuer })
    }

    fn serving(&self, names: &BTreeSet<String>) -> Result<Identity, PkiError> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "tenure-server");
        for name in names {
            params.subject_alt_names.push(san(name)?);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    fn client(&self, user: &str, groups: &[&str]) -> Result<Identity, PkiError> {
        let mut params = CertificateParams::default();
        for group in groups {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *group);
        }
        params.distinguished_name.push(DnType::CommonName, user);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity, PkiError> {
        let key = KeyPair::generate()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_lifetime(&mut params, LEAF_DAYS);
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity {
            certificate,
            key: key.serialize_pem(),
        })
    }
}

/// Writes a file that only its owner can read, atomically. A power failure may lose it, so use this only for files that
/// every start writes again.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    files::replace(path, content, 0o600)
}

/// Like [`write_private`], but the file survives a power failure.
pub(crate) fn write_private_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    files::replace_durably(path, content, 0o600)
}

/// Creates a folder and its parents with access for the owner only. An existing folder is not changed.
pub(crate) fn create_private_folder(path: &Path) -> Result<(), PkiError> {
    files::create_folder(path).map_err(|e| PkiError::File(path.display().to_string(), e))
}

fn store(folder: &Path, name: &str, identity: Identity) -> Result<Identity, PkiError> {
    write_identity(folder, name, &identity)?;
    Ok(identity)
}

fn write_identity(folder: &Path, name: &str, identity: &Identity) -> Result<(), PkiError> {
    // The key is written first, because a certificate without a key counts as absent.
    for (extension, content) in [("key", &identity.key), ("crt", &identity.certificate)] {
        let path = folder.join(format!("{name}.{extension}"));
        write_private_durably(&path, content.as_bytes())
            .map_err(|e| PkiError::File(path.display().to_string(), e))?;
    }
    Ok(())
}

/// Returns `None` unless both files exist.
fn read_identity(folder: &Path, name: &str) -> Result<Option<Identity>, PkiError> {
    let read = |extension: &str| {
        let path = folder.join(format!("{name}.{extension}"));
        let text = match extension {
            "key" => files::read_own(&path),
            _ => std::fs::read_to_string(&path),
        };
        match text {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(PkiError::File(path.display().to_string(), e)),
        }
    };
    Ok(match (read("crt")?, read("key")?) {
        (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
        _ => None,
    })
}

/// Returns the names and addresses of a server: the usual ones, that of the machine, and the given ones.
pub(crate) fn all_names(given: &[String]) -> BTreeSet<String> {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let host = Some(host).filter(|host| san(host).is_ok() && !host.is_empty());
    NAMES
        .iter()
        .map(|n| (*n).to_owned())
        .chain(host)
        .chain(given.iter().cloned())
        .collect()
}

fn san(name: &str) -> Result<SanType, PkiError> {
    if let Ok(address) = name.parse() {
        return Ok(SanType::IpAddress(address));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '*' | '_');
    if name.is_empty() || !name.chars().all(plain) {
        return Err(PkiError::Name(name.to_owned()));
    }
    name.try_into()
        .map(SanType::DnsName)
        .map_err(|_| PkiError::Name(name.to_owned()))
}

fn set_lifetime(params: &mut CertificateParams, days: i64) {
    let now = std::time::SystemTime::now();
    let span = |days: i64| std::time::Duration::from_secs((days * DAY).unsigned_abs());
    // Clients whose clock is up to a day behind accept the certificate.
    params.not_before = (now - span(1)).into();
    params.not_after = (now + span(days)).into();
}

/// Whether this authority issued the certificate, and the certificate covers the names and does not expire soon.
fn is_good(identity: &Identity, ca: &str, names: &BTreeSet<String>) -> bool {
    issued_by(identity, ca).is_some_and(|issued| {
        issued.seconds_left > RENEW_DAYS * DAY && names.is_subset(&issued.names)
    })
}

/// The names of a certificate, and the time until it expires.
struct Issued {
    names: BTreeSet<String>,
    seconds_left: i64,
}

/// Returns the content of a certificate, or `None` if another authority issued it.
fn issued_by(identity: &Identity, ca: &str) -> Option<Issued> {
    let (_, ca) = x509_parser::pem::parse_x509_pem(ca.as_bytes()).ok()?;
    let ca = ca.parse_x509().ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(identity.certificate.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    certificate.verify_signature(Some(ca.public_key())).ok()?;
    let end = certificate.validity().not_after.timestamp();
    Some(Issued {
        names: sans(&certificate),
        seconds_left: end - jiff::Timestamp::now().as_second(),
    })
}

fn sans(certificate: &x509_parser::certificate::X509Certificate<'_>) -> BTreeSet<String> {
    use x509_parser::extensions::GeneralName;
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return BTreeSet::new();
    };
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes)
                    .ok()
                    .map(|b| std::net::IpAddr::from(b).to_string()),
                16 => <[u8; 16]>::try_from(*bytes)
                    .ok()
                    .map(|b| std::net::IpAddr::from(b).to_string()),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Issues a serving certificate that expires in some days.
    fn short_lived(authority: &Authority, days: i64) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(san("old.example").unwrap());
        set_lifetime(&mut params, days);
        let certificate = params.signed_by(&key, &authority.issuer).unwrap().pem();
        Identity {
            certificate,
            key: key.serialize_pem(),
        }
    }

    #[test]
    fn renewal_replaces_only_expiring_certificates_of_the_same_authority() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let server = || read_identity(folder, "server").unwrap().unwrap();
        let first = Pki::load_or_generate(folder, &[]).unwrap();
        Pki::renew(folder, &["new.example".into()]).unwrap();
        assert!(
            server() == first.server,
            "the certificate does not expire soon"
        );
        let other = short_lived(&Authority::generate().unwrap(), 2);
        write_identity(folder, "server", &other).unwrap();
        Pki::renew(folder, &[]).unwrap();
        assert!(
            server() == other,
            "another authority issued the certificate"
        );
        let own = Authority::new(read_identity(folder, "ca").unwrap().unwrap()).unwrap();
        let expiring = short_lived(&own, 2);
        write_identity(folder, "server", &expiring).unwrap();
        let key = std::fs::read(folder.join("ca.key")).unwrap();
        std::fs::remove_file(folder.join("ca.key")).unwrap();
        Pki::renew(folder, &[]).unwrap();
        assert!(server() == expiring, "the authority's key is absent");
        assert!(!folder.join("ca.key").exists());
        std::fs::write(folder.join("ca.key"), key).unwrap();
        Pki::renew(folder, &["new.example".into()]).unwrap();
        let names = ["new.example", "old.example", "localhost"].map(str::to_owned);
        assert!(is_good(&server(), &first.ca, &names.into()));
        let ca = std::fs::read_to_string(folder.join("ca.crt")).unwrap();
        assert_eq!(ca, first.ca);
    }

    #[test]
    fn certificates_are_kept_until_a_name_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("pki");
        let first = Pki::load_or_generate(&folder, &[]).unwrap();
        let again = Pki::load_or_generate(&folder, &["localhost".into()]).unwrap();
        assert_eq!(first.server.certificate, again.server.certificate);
        let named = Pki::load_or_generate(&folder, &["api.example".into()]).unwrap();
        assert_ne!(first.server.certificate, named.server.certificate);
        assert_eq!((&first.ca, &first.admin.key), (&named.ca, &named.admin.key));
        for file in ["ca.key", "server.key", "admin.key"] {
            let mode = std::fs::metadata(folder.join(file))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn certificates_of_another_authority_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::load_or_generate(dir.path(), &[]).unwrap();
        for file in ["ca.key", "ca.crt"] {
            std::fs::remove_file(dir.path().join(file)).unwrap();
        }
        let second = Pki::load_or_generate(dir.path(), &[]).unwrap();
        assert_ne!(first.ca, second.ca);
        assert_ne!(first.admin.certificate, second.admin.certificate);
    }

    #[test]
    fn invalid_names_and_files_are_errors() {
        assert!(matches!(
            Pki::ephemeral(&["a b".into()]),
            Err(PkiError::Name(_))
        ));
        let dir = tempfile::tempdir().unwrap();
        Pki::load_or_generate(dir.path(), &[]).unwrap();
        std::fs::write(dir.path().join("ca.crt"), "junk").unwrap();
        assert!(matches!(
            Pki::load_or_generate(dir.path(), &[]),
            Err(PkiError::Unusable(..))
        ));
    }
}
