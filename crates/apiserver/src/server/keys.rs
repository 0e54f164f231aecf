//! The keys that all servers on one etcd share, so that a certificate, kubeconfig or token of one server is valid on
//! the others.
//!
//! The first server stores its keys in etcd, and the others copy them. A data directory with other keys is rejected,
//! because replacing them would lock out clients that trust them.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::builder::StartError;
use crate::auth::token::{KeyError, SigningKey};
use crate::pki::{self, Identity, PkiError};
use crate::store::EtcdStore;

/// Authority and signing key.
pub(super) struct Keys {
    pub(super) authority: Identity,
    pub(super) signing: SigningKey,
}

/// The keys as stored in etcd.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    ca_certificate: String,
    ca_key: String,
    signing_key: String,
}

impl Keys {
    /// Gets the shared keys, and writes them to the data directory if there is one.
    pub(super) async fn agree(
        store: &EtcdStore,
        folder: Option<&Path>,
    ) -> Result<Self, StartError> {
        let unusable = |why: &str| {
            crate::store::EtcdError::Unusable(format!("shared keys of the servers: {why}"))
        };
        let pki_folder = folder.map(|folder| folder.join("pki"));
        let authority = match &pki_folder {
            Some(folder) => pki::read_authority(folder)?,
            None => None,
        };
        let signing_path = folder.map(|folder| folder.join("sa.key"));
        let signing = match &signing_path {
            Some(path) if path.exists() => Some(SigningKey::load_or_generate(path)?),
            _ => None,
        };
        let mine = Stored::new(
            &authority.clone().map_or_else(pki::new_authority, Ok)?,
            &match &signing {
                Some(key) => key.to_pem(),
                None => SigningKey::generate()?.to_pem(),
            },
        );
        let proposal = serde_json::to_vec(&mine).map_err(|error| unusable(&error.to_string()))?;
        let agreed = store.agree("keys", proposal).await?;
        let agreed: Stored =
            serde_json::from_slice(&agreed).map_err(|error| unusable(&error.to_string()))?;
        let others = |mine: Option<&str>, agreed: &str| {
            mine.is_some_and(|mine| mine.trim() != agreed.trim())
        };
        let certificate = authority.as_ref().map(|own| own.certificate.as_str());
        let key = signing.as_ref().map(SigningKey::to_pem);
        if others(certificate, &agreed.ca_certificate)
            || others(key.as_deref(), &agreed.signing_key)
        {
            let folder = folder.map(|folder| folder.display().to_string());
            return Err(StartError::OtherKeys(folder.unwrap_or_default()));
        }
        let shared = Identity {
            certificate: agreed.ca_certificate,
            key: agreed.ca_key,
        };
        if let (Some(folder), None) = (&pki_folder, &authority) {
            pki::write_authority(folder, &shared)?;
        }
        if let (Some(path), None) = (&signing_path, &signing) {
            let name = path.display().to_string();
            pki::write_private_durably(path, agreed.signing_key.as_bytes())
                .map_err(|error| PkiError::File(name, error))?;
        }
        let signing = SigningKey::from_pem(&agreed.signing_key).ok_or(KeyError::Generate);
        Ok(Self {
            authority: shared,
            signing: signing.map_err(|_| unusable("the signing key is invalid"))?,
        })
    }
}

impl Stored {
    fn new(authority: &Identity, signing_key: &str) -> Self {
        Self {
            ca_certificate: authority.certificate.clone(),
            ca_key: authority.key.clone(),
            signing_key: signing_key.to_owned(),
        }
    }
}
