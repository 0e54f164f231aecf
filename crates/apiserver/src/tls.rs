//! TLS configuration of the listener, and the user of a client certificate.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::auth::User;
use crate::pki::Pki;

/// An error of the TLS configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A certificate or a key cannot be parsed.
    #[error("a certificate or key is not usable: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The certificate and the key do not match.
    #[error("TLS cannot be set up: {0}")]
    Config(#[from] rustls::Error),
    /// The authority cannot be used to verify clients.
    #[error("client certificates cannot be checked: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Creates the configuration of the listener: the serving certificate, h2 and http/1.1, and optional client
/// certificates.
///
/// # Errors
/// Returns an error if the certificates do not match.
pub fn server_config(pki: &Pki) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&pki.ca)? {
        roots.add(certificate)?;
    }
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()?;
    let key = PrivateKeyDer::from_pem_slice(pki.server.key.as_bytes())?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&pki.server.certificate)?, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns the user of a verified client certificate: CN is the name, each O is a group. Returns `None` without a CN.
#[must_use]
pub fn certificate_user(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = parsed.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?;
    if name.is_empty() {
        return None;
    }
    let groups = subject
        .iter_organization()
        .filter_map(|o| o.as_str().ok())
        .map(str::to_owned);
    let mut user = User::new(name, groups);
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    let hex: String = digest.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    user.extra.insert(
        "authentication.kubernetes.io/credential-id".into(),
        vec![format!("X509SHA256={hex}")],
    );
    Some(user)
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    Ok(CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_certificate_names_the_administrator() {
        let pki = Pki::ephemeral(&[]).unwrap();
        server_config(&pki).unwrap();
        let user = certificate_user(&certificates(&pki.admin.certificate).unwrap()[0]).unwrap();
        assert_eq!(user.name, "kubernetes-admin");
        assert_eq!(user.groups, ["system:masters", "system:authenticated"]);
        assert!(user.extra.values().all(|v| v[0].starts_with("X509SHA256=")));
    }
}
