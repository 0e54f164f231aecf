//! ConfigMap, Secret and ServiceAccount.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{entries, immutable, set_default_text, text};
use crate::names;
use crate::status::Cause;

/// Maximum size of the data of one object, in bytes.
const DATA_LIMIT: usize = 1024 * 1024;

pub(in crate::registry) fn validate_config_map(map: &Value, causes: &mut Vec<Cause>) {
    let mut size = 0;
    for (key, value) in entries(map, "/data") {
        check_key(key, &format!("data[{key}]"), causes);
        if map
            .pointer("/binaryData")
            .and_then(|d| d.get(key))
            .is_some()
        {
            let why = "duplicate of key present in binaryData";
            causes.push(Cause::invalid(format!("data[{key}]"), &json!(key), why));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in entries(map, "/binaryData") {
        check_key(key, &format!("binaryData[{key}]"), causes);
        size += decoded_len(value);
    }
    if size > DATA_LIMIT {
        causes.push(Cause::too_long("", DATA_LIMIT));
    }
}

pub(in crate::registry) fn validate_config_map_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    check_frozen(old, new, &["data", "binaryData"], causes);
}

/// Merges `stringData` into `data` and sets the default type.
pub(in crate::registry) fn default_secret(secret: &mut Value) {
    let Some(map) = secret.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(plain)) = map.remove("stringData") {
        let data = map.entry("data").or_insert(Value::Null);
        if data.is_null() {
            *data = json!({});
        }
        if let Some(data) = data.as_object_mut() {
            for (key, value) in plain {
                let bytes = value.as_str().unwrap_or_default().as_bytes();
                data.insert(key, json!(STANDARD.encode(bytes)));
            }
        }
    }
    set_default_text(map, "type", "Opaque");
}

/// Removes everything except the name from references to secrets.
pub(in crate::registry) fn default_service_account(account: &mut Value) {
    let secrets = account.get_mut("secrets").and_then(Value::as_array_mut);
    for secret in secrets
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        secret.retain(|key, _| key == "name");
    }
}

pub(in crate::registry) fn validate_secret(secret: &Value, causes: &mut Vec<Cause>) {
    let mut size = 0;
    for (key, value) in entries(secret, "/data") {
        check_key(key, &format!("data[{key}]"), causes);
        size += decoded_len(value);
    }
    if size > DATA_LIMIT {
        causes.push(Cause::too_long("data", DATA_LIMIT));
    }
    let data = |key: &str| secret.pointer("/data").and_then(|d| d.get(key));
    let mut require = |keys: &[&str]| {
        for key in keys {
            if data(key).is_none() {
                causes.push(Cause::required(format!("data[{key}]"), ""));
            }
        }
    };
    match text(secret, "/type") {
        "kubernetes.io/tls" => require(&["tls.crt", "tls.key"]),
        "kubernetes.io/ssh-auth" => require(&["ssh-privatekey"]),
        "kubernetes.io/dockerconfigjson" => require(&[".dockerconfigjson"]),
        "kubernetes.io/dockercfg" => require(&[".dockercfg"]),
        "kubernetes.io/basic-auth" if data("username").is_none() && data("password").is_none() => {
            causes.push(Cause::required("data[username]", ""));
            causes.push(Cause::required("data[password]", ""));
        }
        "kubernetes.io/service-account-token" => {
            let name = secret.pointer("/metadata/annotations/kubernetes.io~1service-account.name");
            if name.and_then(Value::as_str).unwrap_or_default().is_empty() {
                let field = "metadata.annotations[kubernetes.io/service-account.name]";
                causes.push(Cause::required(field, ""));
            }
        }
        _ => {}
    }
}

pub(in crate::registry) fn validate_secret_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable(old, new, "/type", "type", causes);
    check_frozen(old, new, &["data"], causes);
}

/// Rejects changes of immutable objects: `immutable` cannot be reset, and the data cannot change.
fn check_frozen(old: &Value, new: &Value, members: &[&str], causes: &mut Vec<Cause>) {
    if old.get("immutable") != Some(&json!(true)) {
        return;
    }
    let why = "field is immutable when `immutable` is set";
    if new.get("immutable") != Some(&json!(true)) {
        causes.push(Cause::forbidden("immutable", why));
    }
    for member in members {
        if old.get(member) != new.get(member) {
            causes.push(Cause::forbidden(*member, why));
        }
    }
}

fn check_key(key: &str, field: &str, causes: &mut Vec<Cause>) {
    for why in names::config_map_key(key) {
        causes.push(Cause::invalid(field, &json!(key), &why));
    }
}

fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default().as_bytes();
    let padding = text.iter().rev().take_while(|b| **b == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_above_the_limit_by_one_byte_is_rejected() {
        let at = |n: usize| json!({"data": {"k": "x".repeat(n)}});
        let mut causes = Vec::new();
        validate_config_map(&at(DATA_LIMIT), &mut causes);
        assert_eq!(causes, []);
        validate_config_map(&at(DATA_LIMIT + 1), &mut causes);
        assert_eq!(causes[0].reason, "FieldValueTooLong");
    }

    #[test]
    fn an_immutable_map_keeps_its_data() {
        let old = json!({"data": {"a": "1"}, "immutable": true});
        let mut causes = Vec::new();
        validate_config_map_update(&old, &json!({"data": {"a": "2"}}), &mut causes);
        let fields: Vec<_> = causes.iter().map(|c| c.field.as_str()).collect();
        assert_eq!(fields, ["immutable", "data"]);
    }

    #[test]
    fn string_data_replaces_data_of_the_same_key() {
        let mut secret = json!({"data": {"a": "eA=="}, "stringData": {"a": "b"}});
        default_secret(&mut secret);
        assert_eq!(secret, json!({"data": {"a": "Yg=="}, "type": "Opaque"}));
        let once = secret.clone();
        default_secret(&mut secret);
        assert_eq!(secret, once);
    }
}
