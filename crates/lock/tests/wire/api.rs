//! A scripted API server: it expects requests in order, checks each, and returns the scripted response.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use http::request::Parts;
use http::{Request, Response, Version};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// One expected request and its response.
pub(crate) struct Exchange {
    method: &'static str,
    path: String,
    answer: Answer,
    version: Version,
}

impl Exchange {
    /// Sends the response over a connection that is shared by many requests.
    pub(crate) fn over_http2(mut self) -> Self {
        self.version = Version::HTTP_2;
        self
    }
}

enum Answer {
    Body(u16, String),
    Broken,
    Never,
}

pub(crate) fn get(path: &str) -> Asked {
    Asked::new("GET", path)
}

pub(crate) fn post(path: &str) -> Asked {
    Asked::new("POST", path)
}

pub(crate) fn put(path: &str) -> Asked {
    Asked::new("PUT", path)
}

pub(crate) fn delete(path: &str) -> Asked {
    Asked::new("DELETE", path)
}

/// An expected request without its response yet.
pub(crate) struct Asked {
    method: &'static str,
    path: String,
}

impl Asked {
    fn new(method: &'static str, path: &str) -> Self {
        let path = path.to_owned();
        Self { method, path }
    }

    pub(crate) fn answers(self, code: u16, body: &Value) -> Exchange {
        self.answers_text(code, &body.to_string())
    }

    pub(crate) fn answers_text(self, code: u16, body: &str) -> Exchange {
        self.with(Answer::Body(code, body.to_owned()))
    }

    pub(crate) fn fails(self, code: u16, reason: &str) -> Exchange {
        self.answers(
            code,
            &json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": format!("{reason} by script"), "reason": reason, "code": code,
            }),
        )
    }

    /// Leaves the request without a response; see [`Script::hung`].
    pub(crate) fn hangs(self) -> Exchange {
        self.with(Answer::Never)
    }

    pub(crate) fn breaks(self) -> Exchange {
        self.with(Answer::Broken)
    }

    fn with(self, answer: Answer) -> Exchange {
        let Self { method, path } = self;
        Exchange {
            method,
            path,
            answer,
            version: Version::HTTP_11,
        }
    }
}

/// The script, and the requests that were received.
#[derive(Clone)]
pub(crate) struct Script {
    state: Arc<Mutex<State>>,
    hung: Arc<Notify>,
}

struct State {
    expected: VecDeque<Exchange>,
    sent: Vec<String>,
    wrong: Vec<String>,
}

impl Script {
    pub(crate) fn new(exchanges: impl IntoIterator<Item = Exchange>) -> Self {
        let state = State {
            expected: exchanges.into_iter().collect(),
            sent: Vec::new(),
            wrong: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            hung: Arc::default(),
        }
    }

    pub(crate) fn client(&self) -> Client {
        let script = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let script = script.clone();
            async move { script.serve(request).await }
        });
        Client::new(service, "default")
    }

    /// Waits until a request was left without a response.
    pub(crate) async fn hung(&self) {
        self.hung.notified().await;
    }

    /// Checks that the script was completed, and returns the bodies of all writes without marks.
    pub(crate) fn sent(&self) -> Vec<String> {
        let sent = self.sent_with_marks();
        sent.iter().map(|body| unmarked(body)).collect()
    }

    /// Same as [`sent`](Self::sent), with the marks of the terms.
    pub(crate) fn sent_with_marks(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        assert_eq!(state.wrong, Vec::<String>::new(), "unexpected requests");
        let left: Vec<_> = state
            .expected
            .iter()
            .map(|e| format!("{} {}", e.method, e.path))
            .collect();
        assert_eq!(
            left,
            Vec::<String>::new(),
            "expected requests that were not sent"
        );
        state.sent.clone()
    }

    /// Returns the only body that was sent, as JSON.
    pub(crate) fn sent_one(&self) -> Value {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        serde_json::from_str(&sent[0]).unwrap()
    }

    async fn serve(&self, request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let next = self.check(&head, String::from_utf8(body.to_vec()).unwrap())?;
        match next.answer {
            Answer::Never => {
                self.hung.notify_one();
                std::future::pending().await
            }
            Answer::Body(code, text) => Ok(Response::builder()
                .status(code)
                .version(next.version)
                .body(Body::from(text.into_bytes()))
                .unwrap()),
            Answer::Broken => Err(std::io::Error::other("connection reset by script")),
        }
    }

    fn check(&self, head: &Parts, body: String) -> Result<Exchange, std::io::Error> {
        let mut state = self.state.lock().unwrap();
        let path = head.uri.path_and_query().unwrap().as_str();
        let asked = (head.method.as_str(), path);
        let expected = state.expected.pop_front();
        let Some(next) = expected.filter(|next| (next.method, &*next.path) == asked) else {
            state.wrong.push(format!("{} {}", asked.0, asked.1));
            return Err(std::io::Error::other("not in the script"));
        };
        assert_eq!(head.headers[http::header::ACCEPT], "application/json");
        if asked.0 != "GET" {
            assert_eq!(head.headers[http::header::CONTENT_TYPE], "application/json");
            state.sent.push(body);
        }
        Ok(next)
    }
}

/// Returns the text of an object without the mark. Removes the annotations if there are no others.
fn unmarked(body: &str) -> String {
    const KEY: &str = "\"tenure.dev/term\":\"";
    let Some((before, rest)) = body.split_once(KEY) else {
        return body.to_owned();
    };
    let mut escaped = false;
    let end = rest.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    let after = &rest[end.unwrap() + 1..];
    let text = match (before.strip_suffix(','), after.strip_prefix(',')) {
        (Some(before), _) => format!("{before}{after}"),
        (None, Some(after)) => format!("{before}{after}"),
        (None, None) => format!("{before}{after}"),
    };
    text.replace(",\"annotations\":{}", "")
        .replace("\"annotations\":{},", "")
}
