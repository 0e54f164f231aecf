//! The network between a driver and the API server. It carries the real client's requests and watches, with delay,
//! loss, errors and partitions in either direction. It also executes requests long after the driver has given up on
//! them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::World;
use super::clock::{NodeClock, pause};
use super::server::{Answer, Author, Call};
use crate::fault::Fault;
use tenure::clock::Clock as _;

/// Real API servers send a bookmark at about this interval.
const BOOKMARK: Duration = Duration::from_secs(60);

/// The body of a response, or the beginning of one.
type Sent = UnsyncBoxBody<Bytes, io::Error>;

/// Connection of a node to the API server.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    pub(super) world: Arc<World>,
    pub(super) node: usize,
    pub(super) clock: NodeClock,
}

/// The outcome of a request in the network.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    pub(super) fault: Option<Fault>,
    /// Delay of faults that take time.
    pub(super) delay: Duration,
    /// Whether a lost message breaks the connection; otherwise it is lost silently.
    pub(super) reset: bool,
}

/// How a watch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Regularly.
    Clean,
    /// With an error.
    Broken,
    /// With the error "too old".
    Gone,
    /// The watch does not end, but it delivers no further events.
    Silent,
}

/// Creates the single client of a process, for all its elections.
pub(super) fn client(wires: Vec<Wire>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let mut wires = wires.iter();
        let wire = wires.find(|wire| {
            let part = format!("/{}/", super::namespace(wire.world.election));
            request.uri().path().contains(&part)
        });
        let wire = wire.cloned();
        async move {
            match wire {
                Some(wire) => wire.exchange(request).await,
                None => Err(io::Error::other(
                    "an elector asks in the namespace of its lock",
                )),
            }
        }
    });
    Client::new(service, "default")
}

impl Wire {
    async fn exchange(self, request: Request<Body>) -> Result<Response<Sent>, io::Error> {
        // The driver's feed has its own timers, which continue in a dead process.
        if self.clock.is_dead() {
            return std::future::pending().await;
        }
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let call = parse(&head.method, &head.uri, &body)?;
        // The request is checked here, when the driver hands it over, because a process can be stopped before the first
        // byte is sent.
        let author = (self.node as u64, self.clock.now().local);
        let fate = self.world.lend().leaves(self.node, &call, author.1);
        self.clock.runs().await;
        let (back, answer) = oneshot::channel();
        // A request that the driver gives up on is not undone.
        tokio::spawn(self.clone().travel(call, author, fate, back));
        let answer = answer.await.map_err(|_| io::Error::other("reset"))?;
        self.clock.runs().await;
        self.world.shown(self.node, &answer);
        self.respond(answer)
    }

    /// Carries a request to the server and its response back.
    async fn travel(
        self,
        call: Call,
        author: Author,
        fate: Fate,
        mut back: oneshot::Sender<Answer>,
    ) {
        let delay = self.world.lend().one_way();
        pause(delay).await;
        let lost = fate.fault == Some(Fault::RequestLost)
            || self.world.lend().nodes[self.node].requests_cut_until > Instant::now();
        let code = match fate.fault {
            _ if lost => None,
            Some(Fault::RequestLate) => {
                pause(fate.delay).await;
                None
            }
            Some(Fault::ErrorNotApplied) => Some(if fate.reset { 503 } else { 500 }),
            Some(Fault::Throttled) => Some(429),
            Some(Fault::Forbidden) => Some(403),
            _ => None,
        };
        let answer = match code {
            _ if lost => None,
            Some(code) => Some(Answer::Failure(code)),
            None => Some(self.world.serve(author, &call)),
        };
        let answer = match fate.fault {
            Some(Fault::ErrorApplied) => Some(Answer::Failure(504)),
            // A layer below the driver repeats the request.
            Some(Fault::OwnConflict) => Some(self.world.serve(author, &call)),
            Some(Fault::Duplicate) => {
                let (wire, call) = (self.clone(), call.clone());
                tokio::spawn(async move {
                    pause(fate.delay).await;
                    wire.world.serve(author, &call);
                });
                answer
            }
            Some(Fault::AnswerLost) => None,
            _ => answer,
        };
        if matches!(fate.fault, Some(Fault::AnswerLate)) {
            pause(fate.delay).await;
        }
        let cut = self.world.lend().nodes[self.node].answers_cut_until > Instant::now();
        match answer.filter(|_| !cut) {
            Some(answer) => {
                let delay = self.world.lend().one_way();
                pause(delay).await;
                // The driver may have given up on the request.
                let _ = back.send(answer);
            }
            None if fate.reset => {}
            None => back.closed().await,
        }
    }

    fn respond(&self, answer: Answer) -> Result<Response<Sent>, io::Error> {
        let (code, body) = match answer {
            Answer::Object(code, stored) => (code, stored.json.clone()),
            Answer::Noted => (201, json!({ "kind": "Event", "apiVersion": "v1" })),
            Answer::Failure(code) => (code, status(code)),
            Answer::List(stored, revision) => {
                (200, self.list(stored.map(|s| s.json.clone()), revision))
            }
            Answer::Watch { from, seconds } => {
                let (lines, body) = mpsc::unbounded_channel();
                let end = self.world.lend().watch_ends();
                let until = Instant::now() + Duration::from_secs(seconds);
                tokio::spawn(self.clone().watch(from, until, end, lines));
                let frames = stream::unfold(body, async |mut body| {
                    let line: Result<String, io::Error> = body.recv().await?;
                    let frame = line.map(|line| Frame::data(Bytes::from(line)));
                    Some((frame, body))
                });
                let body = StreamBody::new(frames).boxed_unsync();
                return Response::builder()
                    .status(200)
                    .body(body)
                    .map_err(io::Error::other);
            }
        };
        Response::builder()
            .status(code)
            .body(
                Full::from(body.to_string())
                    .map_err(|never| match never {})
                    .boxed_unsync(),
            )
            .map_err(io::Error::other)
    }

    fn list(&self, item: Option<Value>, revision: u64) -> Value {
        let resource = *self.world.name.resource();
        // Items of a list have no kind and apiVersion.
        let items = item.into_iter().map(|mut item| {
            if let Some(item) = item.as_object_mut() {
                item.remove("kind");
                item.remove("apiVersion");
            }
            item
        });
        json!({
            "kind": format!("{}List", resource.kind),
            "apiVersion": resource.api_version(),
            "metadata": { "resourceVersion": revision.to_string() },
            "items": items.collect::<Vec<_>>(),
        })
    }

    /// Serves one watch from its beginning to its end.
    async fn watch(
        self,
        from: u64,
        until: Instant,
        (end, length): (End, Duration),
        lines: mpsc::UnboundedSender<Result<String, io::Error>>,
    ) {
        let mut cursor = from;
        let epoch = self.world.lend().epoch;
        let ends = (Instant::now() + length).min(until);
        let end = if ends == until { End::Clean } else { end };
        let mut bookmark = Instant::now() + BOOKMARK;
        loop {
            // Register first, so that no later change is missed.
            let changed = self.world.changed.notified();
            let next = self
                .world
                .lend()
                .server
                .after(cursor)
                .map(|next| next.cloned());
            let broken = self.world.lend().epoch != epoch;
            match next {
                _ if broken => {
                    let _ = lines.send(Err(io::Error::other("the server went away")));
                    return;
                }
                Err(()) => {
                    let _ = lines.send(Ok(too_old()));
                    return;
                }
                Ok(Some(change)) => {
                    let delay = self.world.lend().event_delay();
                    pause(delay).await;
                    self.healed().await;
                    self.clock.runs().await;
                    cursor = change.revision;
                    if lines.send(Ok(change.line())).is_err() {
                        return;
                    }
                    self.world.changed(self.node, &change);
                    continue;
                }
                Ok(None) => {}
            }
            tokio::select! {
                biased;
                () = lines.closed() => return,
                () = changed => {}
                () = tokio::time::sleep_until(ends) => break,
                () = tokio::time::sleep_until(bookmark) => {
                    bookmark = Instant::now() + BOOKMARK;
                    let revision = self.world.lend().server.revision();
                    self.healed().await;
                    self.clock.runs().await;
                    // Changes since the last check are sent first.
                    if self.world.lend().server.after(cursor).is_ok_and(|next| next.is_none()) {
                        cursor = cursor.max(revision);
                        let _ = lines.send(Ok(self.bookmark(revision)));
                    }
                }
            }
        }
        self.clock.runs().await;
        match end {
            End::Clean => {}
            End::Broken => drop(lines.send(Err(io::Error::other("reset")))),
            End::Gone => drop(lines.send(Ok(too_old()))),
            End::Silent => lines.closed().await,
        }
    }

    /// Waits until a partition is over.
    async fn healed(&self) {
        loop {
            let until = self.world.lend().nodes[self.node].answers_cut_until;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    fn bookmark(&self, revision: u64) -> String {
        let resource = self.world.name.resource();
        let object = json!({
            "kind": resource.kind,
            "apiVersion": resource.api_version(),
            "metadata": { "resourceVersion": revision.to_string() },
        });
        format!("{}\n", json!({ "type": "BOOKMARK", "object": object }))
    }
}

fn too_old() -> String {
    format!("{}\n", json!({ "type": "ERROR", "object": status(410) }))
}

fn status(code: u16) -> Value {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("{reason}, injected by the simulator"), "reason": reason, "code": code,
    })
}

fn parse(method: &Method, uri: &http::Uri, body: &[u8]) -> Result<Call, io::Error> {
    let query = uri.query().unwrap_or_default();
    let value = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let number = |key| value(key).and_then(|text| text.parse::<u64>().ok());
    let json = || serde_json::from_slice(body).map_err(io::Error::other);
    Ok(match *method {
        Method::GET if uri.path().ends_with(super::NAME) => Call::Get,
        Method::GET if value("watch").is_some() => Call::Watch {
            from: number("resourceVersion").unwrap_or_default(),
            seconds: number("timeoutSeconds").unwrap_or(300),
        },
        Method::GET => Call::List,
        Method::POST if uri.path().ends_with("/events") => Call::Note,
        Method::POST => Call::Create(json()?),
        Method::PUT => Call::Update(json()?),
        _ => {
            let text = format!("an elector does not send {method} {uri}");
            return Err(io::Error::other(text));
        }
    })
}
