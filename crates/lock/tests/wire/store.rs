//! A minimal API server: objects with versions, and requests that take time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::request::Parts;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// Objects by path, with the version rules of the API server.
#[derive(Default)]
pub(crate) struct Store {
    objects: BTreeMap<String, Value>,
    revision: u64,
    /// Every change in order: path and object.
    pub(crate) events: Vec<(String, Value)>,
}

impl Store {
    fn serve(&mut self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        match (method, body) {
            ("GET", _) => match self.objects.get(path) {
                Some(object) => (200, object.clone()),
                None => failure(404, "NotFound"),
            },
            ("POST", Some(mut object)) => {
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    return failure(409, "AlreadyExists");
                }
                object["metadata"]["uid"] = format!("uid-{}", self.revision).into();
                (201, self.put(path, object))
            }
            ("PUT", Some(object)) => {
                let Some(stored) = self.objects.get(path) else {
                    return failure(404, "NotFound");
                };
                let same = |key| stored["metadata"][key] == object["metadata"][key];
                if same("uid") && same("resourceVersion") {
                    (200, self.put(path.to_owned(), object))
                } else {
                    failure(409, "Conflict")
                }
            }
            other => panic!("locks do not send {other:?}"),
        }
    }

    fn put(&mut self, path: String, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.objects.insert(path.clone(), object.clone());
        self.events.push((path, object.clone()));
        object
    }
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({ "kind": "Status", "reason": reason, "code": code }),
    )
}

/// Random numbers from a seed.
#[derive(Clone)]
pub(crate) struct Dice(Arc<Mutex<u64>>);

impl Dice {
    pub(crate) fn new(seed: u32) -> Self {
        let state = u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn below(&self, limit: u64) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % limit
    }

    pub(crate) async fn pause(&self) {
        for _ in 0..self.below(4) {
            tokio::task::yield_now().await;
        }
    }
}

/// Returns a client whose requests and responses take an arbitrary time. One response in `lossy` is lost.
pub(crate) fn client(store: Arc<Mutex<Store>>, dice: Dice, lossy: u64) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (store, dice) = (store.clone(), dice.clone());
        async move {
            let (Parts { method, uri, .. }, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = (!body.is_empty()).then(|| serde_json::from_slice(&body).unwrap());
            dice.pause().await;
            let (mut code, answer) = store
                .lock()
                .unwrap()
                .serve(method.as_str(), uri.path(), body);
            if dice.below(lossy) == 0 {
                code = 504;
            }
            dice.pause().await;
            let body = Body::from(answer.to_string().into_bytes());
            let answer = Response::builder().status(code).body(body).unwrap();
            Ok::<_, Infallible>(answer)
        }
    });
    Client::new(service, "default")
}
