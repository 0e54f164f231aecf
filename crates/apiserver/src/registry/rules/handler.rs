//! Probes and lifecycle hooks of containers: each runs exactly one handler.

use serde_json::{Value, json};

use super::{items, text};
use crate::names;
use crate::status::Cause;

const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

/// Handlers of a probe, in the order of the checks.
const OF_PROBE: &[&str] = &["exec", "httpGet", "tcpSocket", "grpc"];
/// Handlers of a lifecycle hook, in the order of the checks.
const OF_HOOK: &[&str] = &["exec", "httpGet", "tcpSocket", "sleep"];

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// Validates the probes and hooks of a container. `grace` is the grace period of its pod.
pub(super) fn validate(container: &Value, grace: Option<i64>, at: &str, causes: &mut Vec<Cause>) {
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = given(&container["lifecycle"], hook) {
            let at = format!("{at}.lifecycle.{hook}");
            check_handler(handler, OF_HOOK, grace, &at, causes);
        }
    }
    for name in PROBES {
        if let Some(probe) = given(container, name) {
            let at = format!("{at}.{name}");
            check_handler(probe, OF_PROBE, grace, &at, causes);
            check_probe(name, probe, &at, causes);
        }
    }
}

/// Validates an init container: only one that keeps running has probes and hooks.
pub(super) fn validate_init(
    container: &Value,
    grace: Option<i64>,
    at: &str,
    causes: &mut Vec<Cause>,
) {
    if text(container, "/restartPolicy") == "Always" {
        return validate(container, grace, at, causes);
    }
    for member in ["lifecycle"].iter().chain(&PROBES) {
        if given(container, member).is_some() {
            let why = "may not be set for init containers without restartPolicy=Always";
            causes.push(Cause::forbidden(format!("{at}.{member}"), why));
        }
    }
}

fn given<'a>(object: &'a Value, member: &str) -> Option<&'a Value> {
    object.get(member).filter(|value| !value.is_null())
}

fn check_probe(name: &str, probe: &Value, at: &str, causes: &mut Vec<Cause>) {
    for member in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        let value = &probe[member];
        if value.as_i64() < Some(0) && value.is_i64() {
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid(format!("{at}.{member}"), value, why));
        }
    }
    let grace = given(probe, "terminationGracePeriodSeconds");
    let field = format!("{at}.terminationGracePeriodSeconds");
    if let Some(grace) = grace.filter(|grace| grace.as_i64() <= Some(0)) {
        causes.push(Cause::invalid(&*field, grace, "must be greater than 0"));
    }
    match name {
        "readinessProbe" => {
            if let Some(grace) = grace {
                let why = "must not be set for readinessProbes";
                causes.push(Cause::invalid(field, grace, why));
            }
        }
        _ => {
            let threshold = probe["successThreshold"].as_i64().unwrap_or(0);
            if threshold != 1 {
                let field = format!("{at}.successThreshold");
                causes.push(Cause::invalid(field, &json!(threshold), "must be 1"));
            }
        }
    }
}

/// Checks that there is one handler, and validates the first. The others are rejected without a look at their content.
fn check_handler(
    parent: &Value,
    known: &[&str],
    grace: Option<i64>,
    at: &str,
    causes: &mut Vec<Cause>,
) {
    let mut handlers = known
        .iter()
        .filter_map(|name| Some((*name, given(parent, name)?)));
    let Some((name, handler)) = handlers.next() else {
        return causes.push(Cause::required(at, "must specify a handler type"));
    };
    check_content(name, handler, grace, &format!("{at}.{name}"), causes);
    for (name, _) in handlers {
        let why = "may not specify more than 1 handler type";
        causes.push(Cause::forbidden(format!("{at}.{name}"), why));
    }
}

fn check_content(
    name: &str,
    handler: &Value,
    grace: Option<i64>,
    at: &str,
    causes: &mut Vec<Cause>,
) {
    match name {
        "exec" => {
            if items(handler, "/command").is_empty() {
                causes.push(Cause::required(format!("{at}.command"), ""));
            }
        }
        "httpGet" => {
            if text(handler, "/path").is_empty() {
                causes.push(Cause::required(format!("{at}.path"), ""));
            }
            check_port(&handler["port"], at, causes);
            let (scheme, known) = (text(handler, "/scheme"), ["HTTP", "HTTPS"]);
            if !known.contains(&scheme) {
                let field = format!("{at}.scheme");
                causes.push(Cause::unsupported(field, &json!(scheme), &known));
            }
            for header in items(handler, "/httpHeaders") {
                let name = text(header, "/name");
                for why in names::http_header(name) {
                    let field = format!("{at}.httpHeaders");
                    causes.push(Cause::invalid(field, &json!(name), &why));
                }
            }
        }
        "sleep" => {
            let seconds = handler["seconds"].as_i64().unwrap_or(0);
            if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
                let why = format!(
                    "must be non-negative and less than terminationGracePeriodSeconds ({grace})"
                );
                causes.push(Cause::invalid(at, &json!(seconds), &why));
            }
        }
        _ => check_port(&handler["port"], at, causes),
    }
}

/// Checks a port, which is a number or the name of a port of the container.
fn check_port(port: &Value, at: &str, causes: &mut Vec<Cause>) {
    let field = format!("{at}.port");
    if let Some(name) = port.as_str() {
        for why in names::port_name(name) {
            causes.push(Cause::invalid(&*field, port, &why));
        }
        return;
    }
    let number = port.as_i64().unwrap_or(0);
    if !(1..=65535).contains(&number) {
        causes.push(Cause::invalid(field, &json!(number), PORT_RANGE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(container: &Value) -> Vec<(String, String)> {
        let mut causes = Vec::new();
        validate(container, Some(30), "c", &mut causes);
        let parts = |cause: Cause| (cause.field, cause.message);
        causes.into_iter().map(parts).collect()
    }

    fn fields(container: &Value) -> Vec<String> {
        let fields = causes(container).into_iter();
        fields.map(|(field, _)| field).collect()
    }

    #[test]
    fn probe_has_exactly_one_handler() {
        let grpc = json!({"port": 90});
        let probe = |handlers: Value| {
            let mut probe = json!({"successThreshold": 1});
            for (name, handler) in handlers.as_object().unwrap() {
                probe[name] = handler.clone();
            }
            json!({"livenessProbe": probe})
        };
        assert_eq!(fields(&probe(json!({"grpc": grpc}))), [""; 0]);
        let both = probe(json!({"grpc": grpc, "tcpSocket": {"port": "web"}}));
        let why = "Forbidden: may not specify more than 1 handler type";
        let field = "c.livenessProbe.grpc";
        assert_eq!(causes(&both), [(field.to_owned(), why.to_owned())]);
        assert_eq!(fields(&probe(json!({}))), ["c.livenessProbe"]);
    }

    #[test]
    fn handlers_are_validated() {
        let hook = |handler: Value| json!({"lifecycle": {"preStop": handler}});
        for (handler, field) in [
            (json!({"exec": {}}), "exec.command"),
            (json!({"tcpSocket": {"port": 0}}), "tcpSocket.port"),
            (json!({"tcpSocket": {"port": "-"}}), "tcpSocket.port"),
            (json!({"sleep": {"seconds": 31}}), "sleep"),
            (
                json!({"httpGet": {"path": "/", "port": 1, "scheme": "FTP"}}),
                "httpGet.scheme",
            ),
        ] {
            let found = fields(&hook(handler));
            assert_eq!(found[0], format!("c.lifecycle.preStop.{field}"));
        }
        assert_eq!(fields(&hook(json!({"sleep": {"seconds": 30}}))), [""; 0]);
    }

    #[test]
    fn init_container_that_ends_has_no_probes() {
        let mut container = json!({"readinessProbe": {"exec": {"command": ["true"]}}});
        let mut causes = Vec::new();
        validate_init(&container, None, "i", &mut causes);
        assert_eq!(causes[0].field, "i.readinessProbe");
        container["restartPolicy"] = json!("Always");
        causes.clear();
        validate_init(&container, None, "i", &mut causes);
        assert_eq!(causes, []);
    }
}
