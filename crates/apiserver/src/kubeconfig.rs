//! Kubeconfig files: the address, the authority and the credentials for a client.

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
                STANDARD.encode(&identity.key),
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
