//! Replays recorded conversations and compares the responses by role.
//!
//! Values that differ between runs are compared by their role: uids and resourceVersions by identity and order within
//! the conversation, times by their format, continue tokens by presence. Differences in message texts, warnings and
//! content type are soft; all others are hard.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use regex::Regex;
use serde_json::{Map, Value, json};

use crate::support::{Server, Stream, request};

const TIMES: &[&str] = &[
    "creationTimestamp",
    "deletionTimestamp",
    "time",
    "lastTransitionTime",
    "firstTimestamp",
    "lastTimestamp",
    "renewTime",
    "acquireTime",
    "eventTime",
    "expirationTimestamp",
    "lastPhaseTransitionTime",
    "lastUpdateTime",
    "lastHeartbeatTime",
];

/// Marks a resourceVersion until its rank is known.
const RV: &str = "<rv>";

/// A difference between the response of the real server and that of this one.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) hard: bool,
    pub(crate) text: String,
}

/// Replays a case and compares every recorded response.
pub(crate) async fn play(server: &Server, case: &Value, run: &str) -> Vec<Difference> {
    let steps = case["steps"].as_array().expect("steps");
    let mut player = Player::new(server, case, run);
    let mut answers = Vec::new();
    for step in steps {
        answers.push(player.step(step).await);
    }
    let mut versions = player.roles.versions.clone();
    versions.sort_unstable();
    versions.dedup();
    let mut out = Vec::new();
    for (index, (step, answer)) in steps.iter().zip(answers).enumerate() {
        if let (Some(want), Some(got)) = (step.get("answer"), answer) {
            let mut found = Vec::new();
            compare(want, &rank(got, &versions), "", &mut found);
            let path = step
                .pointer("/request/path")
                .and_then(Value::as_str)
                .unwrap_or("watch");
            for mut difference in found {
                difference.text = format!("step {index} {path}{}", difference.text);
                out.push(difference);
            }
        }
    }
    out
}

struct Player<'a> {
    server: &'a Server,
    variables: HashMap<String, String>,
    watches: HashMap<String, Watcher>,
    roles: Roles,
}

/// The values observed so far, by role.
struct Roles {
    run: String,
    uids: Vec<(String, String)>,
    versions: Vec<u64>,
    keep_managed_fields: bool,
    keep_times: bool,
    masks: Vec<Regex>,
}

struct Watcher {
    state: Arc<Mutex<(Vec<Value>, bool)>>,
    status: u16,
}

impl<'a> Player<'a> {
    fn new(server: &'a Server, case: &Value, run: &str) -> Self {
        let keep = |name: &str| case.pointer(&format!("/keep/{name}"));
        let masks = keep("mask").and_then(Value::as_array).into_iter().flatten();
        Self {
            server,
            variables: HashMap::from([("run".to_owned(), run.to_owned())]),
            watches: HashMap::new(),
            roles: Roles {
                run: run.to_owned(),
                uids: Vec::new(),
                versions: Vec::new(),
                keep_managed_fields: keep("managedFields").is_some_and(|v| v == true),
                keep_times: keep("times").is_some_and(|v| v == true),
                masks: masks
                    .map(|mask| Regex::new(mask.as_str().expect("mask")).expect("regex"))
                    .collect(),
            },
        }
    }

    async fn step(&mut self, step: &Value) -> Option<Value> {
        let wanted = self.fill(step.get("request").unwrap_or(&Value::Null));
        if let Some(seconds) = step.get("sleep").and_then(Value::as_f64) {
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        }
        if let Some(name) = step.get("watch").and_then(Value::as_str) {
            let watcher = Watcher::start(self.server, &wanted).await;
            self.watches.insert(name.to_owned(), watcher);
            return None;
        }
        if let Some(name) = step.get("collect").and_then(Value::as_str) {
            let count = step["count"].as_u64().unwrap_or(0);
            let seconds = step.get("seconds").and_then(Value::as_f64).unwrap_or(8.0);
            let answer = self.watches[name].collect(count, seconds).await;
            return Some(self.roles.normal(&answer, None, None));
        }
        let mut answer = self.call(&wanted).await;
        if let Some(seconds) = step.get("poll").and_then(Value::as_f64) {
            let end = Instant::now() + Duration::from_secs_f64(seconds);
            let status = step
                .get("poll_status")
                .and_then(Value::as_u64)
                .unwrap_or(200);
            while answer["status"] != status && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(20)).await;
                answer = self.call(&wanted).await;
            }
        }
        for (name, path) in step
            .get("capture")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let path = path.as_str().expect("path").replace('.', "/");
            let value = answer.pointer(&format!("/body/{path}"));
            let text = value.map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
            self.variables
                .insert(name.clone(), text.unwrap_or_else(|| "None".to_owned()));
        }
        let skip = step.get("skip").is_some_and(|skip| skip == true);
        (!skip).then(|| self.roles.normal(&answer, None, None))
    }

    async fn call(&self, wanted: &Value) -> Value {
        let method = wanted["method"].as_str().expect("method");
        let path = wanted["path"].as_str().expect("path");
        let body = match wanted.get("body") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(text)) => text.clone().into_bytes(),
            Some(other) => other.to_string().into_bytes(),
        };
        let headers = headers(wanted);
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let response = request(self.server.address, method, path, &headers, body).await;
        let (parts, body) = response.into_parts();
        let bytes = http_body_util::BodyExt::collect(body)
            .await
            .expect("body")
            .to_bytes();
        let kind = parts
            .headers
            .get("content-type")
            .and_then(|v| v.to_str().ok());
        let kind = kind
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        let mut answer = json!({"status": parts.status.as_u16(), "type": kind});
        let warnings: Vec<&str> = parts
            .headers
            .get_all("warning")
            .iter()
            .filter_map(|v| v.to_str().ok())
            .collect();
        if !warnings.is_empty() {
            answer["warnings"] = json!(warnings);
        }
        let text = || json!(String::from_utf8_lossy(&bytes));
        answer["body"] = serde_json::from_slice(&bytes).unwrap_or_else(|_| text());
        answer
    }

    /// Replaces `${name}` everywhere.
    fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => json!(self.fill_text(text)),
            Value::Array(list) => list.iter().map(|item| self.fill(item)).collect(),
            Value::Object(map) => map
                .iter()
                .map(|(k, v)| (self.fill_text(k), self.fill(v)))
                .collect(),
            other => other.clone(),
        }
    }

    fn fill_text(&self, text: &str) -> String {
        let mut out = text.to_owned();
        for (name, value) in &self.variables {
            out = out.replace(&format!("${{{name}}}"), value);
        }
        out
    }
}

impl Watcher {
    async fn start(server: &Server, wanted: &Value) -> Self {
        let path = wanted["path"].as_str().expect("path").to_owned();
        let headers = headers(wanted);
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let response = request(server.address, "GET", &path, &headers, Vec::new()).await;
        let mut stream = Stream::of(response);
        let status = stream.status;
        let state = Arc::new(Mutex::new((Vec::new(), false)));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Some(event) = stream.next().await {
                shared.lock().expect("lock").0.push(event);
            }
            shared.lock().expect("lock").1 = true;
        });
        Self { state, status }
    }

    async fn collect(&self, count: u64, seconds: f64) -> Value {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let enough = || {
            let state = self.state.lock().expect("lock");
            state.1 || u64::try_from(state.0.len()).expect("fits") >= count
        };
        while !enough() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Surplus events are a difference too, so they get time to arrive.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let state = self.state.lock().expect("lock");
        json!({"status": self.status, "events": state.0, "closed": state.1})
    }
}

impl Roles {
    /// Replaces run-dependent values by the names of their roles.
    fn normal(
        &mut self,
        value: &Value,
        key: Option<&str>,
        parent: Option<&Map<String, Value>>,
    ) -> Value {
        match value {
            Value::Object(map) => {
                let of_list = key == Some("metadata")
                    && parent.is_some_and(|p| p.contains_key("items") || p.contains_key("rows"));
                let mut out = Map::new();
                for (k, v) in map {
                    if (k == "managedFields" && !self.keep_managed_fields) || k == "selfLink" {
                        continue;
                    }
                    out.insert(k.clone(), self.member(k, v, map, of_list));
                }
                Value::Object(out)
            }
            Value::Array(list) => list
                .iter()
                .map(|item| self.normal(item, key, parent))
                .collect(),
            Value::String(text) => json!(self.text(text)),
            other => other.clone(),
        }
    }

    fn member(
        &mut self,
        key: &str,
        value: &Value,
        map: &Map<String, Value>,
        of_list: bool,
    ) -> Value {
        static UID: LazyLock<Regex> =
            LazyLock::new(|| Regex::new("^[0-9a-f-]{36}$").expect("regex"));
        if let Some(text) = value.as_str() {
            match key {
                "resourceVersion" if text.parse::<u64>().is_ok() => {
                    if of_list {
                        return json!("<rv:list>");
                    }
                    self.versions.push(text.parse().expect("number"));
                    return json!({ RV: text });
                }
                "continue" if !text.is_empty() => return json!("<continue>"),
                "uid" if UID.is_match(text) => return json!(self.uid(text)),
                _ if TIMES.contains(&key) && !self.keep_times => return json!(time(text)),
                _ => {}
            }
        }
        self.normal(value, Some(key), Some(map))
    }

    fn uid(&mut self, uid: &str) -> String {
        if let Some((_, role)) = self.uids.iter().find(|(known, _)| known == uid) {
            return role.clone();
        }
        let role = format!("<uid:{}>", self.uids.len() + 1);
        self.uids.push((uid.to_owned(), role.clone()));
        role
    }

    fn text(&self, text: &str) -> String {
        let mut out = text.replace(&self.run, "<run>");
        for (uid, role) in &self.uids {
            out = out.replace(uid, role);
        }
        for mask in &self.masks {
            out = mask.replace_all(&out, "<masked>").into_owned();
        }
        out
    }
}

fn headers(wanted: &Value) -> BTreeMap<String, String> {
    let text = |name: &str| wanted.get(name).and_then(Value::as_str);
    let mut out = BTreeMap::from([
        ("user-agent".to_owned(), "conformance/1".to_owned()),
        (
            "accept".to_owned(),
            text("accept").unwrap_or("application/json").to_owned(),
        ),
    ]);
    let token = text("as").unwrap_or("admintoken");
    if !token.is_empty() {
        out.insert("authorization".to_owned(), format!("Bearer {token}"));
    }
    if wanted.get("body").is_some_and(|body| !body.is_null()) {
        let kind = text("type").unwrap_or("application/json");
        out.insert("content-type".to_owned(), kind.to_owned());
    }
    for (name, value) in wanted
        .get("headers")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        out.insert(
            name.to_lowercase(),
            value.as_str().expect("text").to_owned(),
        );
    }
    out
}

fn time(text: &str) -> &str {
    static MICRO: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$")
            .expect("regex")
    });
    static WHOLE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$").expect("regex")
    });
    match text {
        _ if MICRO.is_match(text) => "<time:us>",
        _ if WHOLE.is_match(text) => "<time:s>",
        other => other,
    }
}

/// Replaces marked versions by their rank among all observed versions.
fn rank(value: Value, versions: &[u64]) -> Value {
    match value {
        Value::Object(map) => {
            if let Some(text) = map.get(RV).and_then(Value::as_str) {
                let version: u64 = text.parse().expect("number");
                let rank = versions.binary_search(&version).expect("was collected");
                return json!(format!("<rv:{}>", rank + 1));
            }
            map.into_iter()
                .map(|(k, v)| (k, rank(v, versions)))
                .collect()
        }
        Value::Array(list) => list.into_iter().map(|item| rank(item, versions)).collect(),
        other => other,
    }
}

fn compare(want: &Value, got: &Value, path: &str, out: &mut Vec<Difference>) {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            let keys: std::collections::BTreeSet<&String> = want.keys().chain(got.keys()).collect();
            for key in keys {
                let hard = !matches!(key.as_str(), "message" | "warnings" | "type");
                let at = format!("{path}.{key}");
                match (want.get(key), got.get(key)) {
                    (Some(w), Some(g)) => compare(w, g, &at, out),
                    (w, g) => out.push(difference(hard, &at, w, g)),
                }
            }
        }
        (Value::Array(want), Value::Array(got)) => {
            if want.len() != got.len() {
                let (w, g) = (json!(want.len()), json!(got.len()));
                out.push(difference(
                    true,
                    &format!("{path}(length)"),
                    Some(&w),
                    Some(&g),
                ));
            }
            for (index, (w, g)) in want.iter().zip(got).enumerate() {
                compare(w, g, &format!("{path}[{index}]"), out);
            }
        }
        _ if want != got => {
            let last = path.rsplit('.').next().unwrap_or_default();
            let soft =
                last.starts_with("message") || last.starts_with("warnings") || path == ".type";
            out.push(difference(!soft, path, Some(want), Some(got)));
        }
        _ => {}
    }
}

fn difference(hard: bool, path: &str, want: Option<&Value>, got: Option<&Value>) -> Difference {
    let show = |value: Option<&Value>| match value {
        None => "<absent>".to_owned(),
        Some(value) => {
            let text = value.to_string();
            text.chars().take(300).collect()
        }
    };
    Difference {
        hard,
        text: format!("{path}: want {} got {}", show(want), show(got)),
    }
}
