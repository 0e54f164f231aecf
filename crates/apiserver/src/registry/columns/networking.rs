//! Columns of the group `networking.k8s.io`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{AGE_COLUMN, Column, first, or_none, scalar, selector_text, size, string, text};

pub(in crate::registry) const INGRESS: &[Column] = &[
    text("Class", |o, _| or_none(o, "/spec/ingressClassName")).described(
        "The name of the IngressClass resource that should be used for additional configuration",
    ),
    text("Hosts", |o, _| json!(hosts(o)))
        .described("Hosts that incoming requests are matched against before the ingress rule"),
    text("Address", |o, _| {
        let points = o
            .pointer("/status/loadBalancer/ingress")
            .and_then(Value::as_array);
        let points = points.into_iter().flatten();
        let all: BTreeSet<&str> = points
            .filter_map(|point| first(point, &["/ip", "/hostname"]))
            .collect();
        json!(all.into_iter().collect::<Vec<_>>().join(","))
    })
    .described("Address is a list containing ingress points for the load-balancer"),
    text("Ports", |o, _| {
        json!(if size(o, "/spec/tls") > 0 {
            "80, 443"
        } else {
            "80"
        })
    })
    .described("Ports of TLS configurations that open"),
    AGE_COLUMN,
];

pub(in crate::registry) const INGRESS_CLASS: &[Column] = &[
    text("Name", |o, _| {
        let mark = if is_default(o) { " (default)" } else { "" };
        json!(scalar(o.pointer("/metadata/name")) + mark)
    })
    .field("meta/v1.ObjectMeta", "name"),
    text("Controller", |o, _| string(o, "/spec/controller"))
        .described("Controller that is responsible for handling this class"),
    text("Parameters", |o, _| match o.pointer("/spec/parameters") {
        None | Some(Value::Null) => json!("<none>"),
        Some(parameters) => {
            let group = parameters.get("apiGroup").and_then(Value::as_str);
            let group = group.map_or_else(String::new, |group| format!(".{group}"));
            let kind = scalar(parameters.get("kind"));
            json!(format!("{kind}{group}/{}", scalar(parameters.get("name"))))
        }
    })
    .described("A reference to a resource with additional parameters"),
    AGE_COLUMN,
];

pub(in crate::registry) const POLICY: &[Column] = &[
    text("Pod-Selector", |o, _| {
        json!(selector_text(o.pointer("/spec/podSelector")))
    })
    .field("networking/v1.NetworkPolicySpec", "podSelector"),
    AGE_COLUMN,
];

/// Whether this is the default class, which ingresses without a class get.
pub(in crate::registry) fn is_default(class: &Value) -> bool {
    let annotations = class.pointer("/metadata/annotations");
    let mark = annotations.and_then(|a| a.get("ingressclass.kubernetes.io/is-default-class"));
    mark.is_some_and(|mark| mark == "true")
}

fn hosts(ingress: &Value) -> String {
    const MOST: usize = 3;
    let rules = ingress.pointer("/spec/rules").and_then(Value::as_array);
    let rules = rules.map(Vec::as_slice).unwrap_or_default();
    let (mut list, mut more) = (Vec::new(), false);
    for rule in rules {
        more |= list.len() == MOST;
        let host = scalar(rule.get("host"));
        if !more && !host.is_empty() {
            list.push(host);
        }
    }
    match (list.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => list.join(","),
        (false, true) => format!("{} + {} more...", list.join(","), rules.len() - MOST),
    }
}
