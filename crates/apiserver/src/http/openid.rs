//! OpenID discovery: the issuer and the public keys of service account tokens, with which other systems verify them.

use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use super::{Body, respond};
use crate::auth::{Access, DEFAULT_AUDIENCE};

const KEYS: &str = "/openid/v1/jwks";

/// Answers the two paths; `None` for other paths and if there are no keys.
pub(super) fn answer(path: &str, access: &dyn Access) -> Option<Response<Body>> {
    let keys = access.key_set()?;
    match path {
        KEYS => {
            let kind = HeaderValue::from_static("application/jwk-set+json");
            Some(respond::bytes(StatusCode::OK, kind, keys.to_string()))
        }
        "/.well-known/openid-configuration" => {
            let document = json!({
                "issuer": DEFAULT_AUDIENCE,
                "jwks_uri": format!("{DEFAULT_AUDIENCE}{KEYS}"),
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            });
            Some(respond::json(StatusCode::OK, document.to_string()))
        }
        _ => None,
    }
}
