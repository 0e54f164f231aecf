//! Exchanges recorded from a real kube-apiserver, with placeholder names replaced.

use serde_json::Value;

use crate::api::{Asked, Exchange, get, post, put};

/// One recorded exchange.
pub(crate) struct Fixture {
    steps: Vec<Value>,
}

impl Fixture {
    pub(crate) fn load(text: &str) -> Self {
        let mut text = text.to_owned();
        for (role, value) in [
            ("${run}", "run"),
            ("<run>", "run"),
            ("<time:us>", "2026-01-02T03:04:05.000006Z"),
            ("<time:s>", "2026-01-02T03:04:05Z"),
            ("${rv}", "101"),
            ("${rv2}", "102"),
            ("${uid}", "uid-1"),
        ] {
            text = text.replace(role, value);
        }
        for n in 1..9 {
            text = text.replace(&format!("<rv:{n}>"), &format!("10{n}"));
            text = text.replace(&format!("<uid:{n}>"), &format!("uid-{n}"));
        }
        let parsed: Value = serde_json::from_str(&text).unwrap();
        Self {
            steps: parsed["steps"].as_array().unwrap().clone(),
        }
    }

    /// Returns the request of a step with its recorded response.
    pub(crate) fn exchange(&self, step: usize) -> Exchange {
        let path = self.steps[step]["request"]["path"].as_str().unwrap();
        let asked: Asked = match self.steps[step]["request"]["method"].as_str().unwrap() {
            "GET" => get(path),
            "POST" => post(path),
            "PUT" => put(path),
            other => panic!("locks do not {other}"),
        };
        self.answer(step, asked)
    }

    /// Returns the response of a step for another request.
    pub(crate) fn answer(&self, step: usize, asked: Asked) -> Exchange {
        let answer = &self.steps[step]["answer"];
        let code = u16::try_from(answer["status"].as_u64().unwrap()).unwrap();
        asked.answers(code, &answer["body"])
    }

    pub(crate) fn request_body(&self, step: usize) -> &Value {
        &self.steps[step]["request"]["body"]
    }

    pub(crate) fn answer_body(&self, step: usize) -> &Value {
        &self.steps[step]["answer"]["body"]
    }

    pub(crate) fn message(&self, step: usize) -> &str {
        self.answer_body(step)["message"].as_str().unwrap()
    }
}
