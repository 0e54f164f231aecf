//! Kubeconfig files: the address, the authority and the credentials for a client.

use std::borrow::Cow;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::pki::Identity;

/// Contents of a kubeconfig.
pub struct Kubeconfig<'a> {
    /// Address of the server, `https://...` or `http://...`.
    pub server: &'a str,
    /// PEM certificate of the trusted authority, for `https`.
    pub ca: Option<&'a str>,
    /// Credentials of the client.
    pub credentials: Credentials<'a>,
}

/// Credentials of a client.
pub enum Credentials<'a> {
    /// No credentials: the server does not authenticate clients.
    None,
    /// A bearer token.
    Token(&'a str),
    /// A client certificate.
    Certificate(&'a Identity),
}

impl Kubeconfig<'_> {
    /// Returns the text of the file. Every value is a JSON string, which is also a YAML string.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut cluster = format!("    server: {}\n", quoted(self.server));
        if let Some(ca) = self.ca {
            cluster.push_str(&format!(
                "    certificate-authority-data: {}\n",
                STANDARD.encode(ca)
            ));
        }
        let user = match self.credentials {
            Credentials::None => "  user: {}\n".to_owned(),
            Credentials::Token(token) => format!("  user:\n    token: {}\n", quoted(token)),
            Credentials::Certificate(identity) => format!(
                "  user:\n    client-certificate-data: {}\n    client-key-data: {}\n",
                STANDARD.encode(&identity.certificate),
                STANDARD.encode(sec1(&identity.key).as_bytes()),
            ),
        };
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: tenure\n  cluster:\n{cluster}\
             users:\n- name: kubernetes-admin\n{user}\
             contexts:\n- name: tenure\n  context:\n    cluster: tenure\n    user: kubernetes-admin\n\
             current-context: tenure\n"
        )
    }

    /// Writes the file with access for its owner only.
    ///
    /// # Errors
    /// Returns an error if the file or its folder cannot be written.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        crate::pki::write_private(path, self.to_yaml().as_bytes())
    }
}

/// A P-256 key in PKCS #8, as ring writes it, up to its 32 secret bytes.
const PKCS8_HEAD: [u8; 36] = [
    0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02,
    0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x6d, 0x30, 0x6b, 0x02,
    0x01, 0x01, 0x04, 0x20,
];
/// Number of secret bytes of such a key, and of those that follow: the public key with its header.
const SECRET: usize = 32;
const PUBLIC: usize = 70;
/// The same key in SEC 1, up to its secret bytes, and the name of the curve, which follows them.
const SEC1_HEAD: [u8; 7] = [0x30, 0x77, 0x02, 0x01, 0x01, 0x04, 0x20];
const CURVE: [u8; 12] = [
    0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07,
];
/// Length of a line in a PEM file.
const PEM_LINE: usize = 64;

/// Returns a P-256 key of ring in the format of SEC 1, and any other key unchanged. fabric8's client for Java takes every
/// key in PKCS #8 for an RSA key; all clients recognize an `EC PRIVATE KEY`.
fn sec1(pem: &str) -> Cow<'_, str> {
    let body: String = pem
        .lines()
        .filter(|line| !line.starts_with("-----"))
        .map(str::trim)
        .collect();
    let der = STANDARD.decode(body).unwrap_or_default();
    let rest = der.strip_prefix(PKCS8_HEAD.as_slice());
    let Some(rest) = rest.filter(|rest| rest.len() == SECRET + PUBLIC) else {
        return pem.into();
    };
    let (secret, public) = rest.split_at(SECRET);
    let text = STANDARD.encode([SEC1_HEAD.as_slice(), secret, &CURVE, public].concat());
    let mut key = "-----BEGIN EC PRIVATE KEY-----\n".to_owned();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(PEM_LINE));
        key = key + line + "\n";
        rest = after;
    }
    (key + "-----END EC PRIVATE KEY-----\n").into()
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring::sign::any_supported_type;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn key_in_sec1_is_the_same_key() {
        let pkcs8 = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let sec1 = sec1(&pkcs8);
        let parsed = |pem: &str| PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
        assert!(matches!(parsed(&sec1), PrivateKeyDer::Sec1(_)), "{sec1}");
        let public = |pem: &str| {
            let key = any_supported_type(&parsed(pem)).unwrap();
            key.public_key().map(|public| public.to_vec())
        };
        assert!(public(&pkcs8).is_some());
        assert_eq!(public(&pkcs8), public(&sec1));
        assert!(sec1.lines().all(|line| line.len() <= PEM_LINE));
    }

    #[test]
    fn other_keys_are_unchanged() {
        for pem in [
            "",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            assert_eq!(sec1(pem), pem);
        }
    }
}
