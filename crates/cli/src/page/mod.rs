//! The page: shows live elections in a browser, as one file without outside resources.
//!
//! `tenure server`, `tenure elect --http` and `tenure ui` serve it under `/ui`. The server decides the access rule (a
//! [`Door`]); the page itself has no rights. Credentials travel in the `Authorization` header only, never in a cookie or
//! an address, so that no other site can use them.

mod door;
mod feed;
#[cfg(feature = "server")]
mod on_server;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use tenure_host::seats::{Seat, StreamSeat, Streams};
use tenure_lock::LockKind;
use tokio::sync::mpsc;

use crate::api;
use crate::board::Board;
use crate::commands::steer;
use crate::elections;
use feed::Hello;

#[cfg(feature = "server")]
pub(crate) use door::Caller;
pub(crate) use door::{Door, Refusal};
#[cfg(feature = "server")]
pub(crate) use on_server::OnServer;

/// Path of the page.
pub(crate) const PREFIX: &str = "/ui";

/// Maximum number of concurrent feeds: of all clients, and of one address.
const FEEDS: (usize, usize) = (64, 32);

const STYLE: &str = include_str!("page.css");

const SCRIPT: &str = concat!(
    include_str!("feed.js"),
    include_str!("terms.js"),
    include_str!("elections.js"),
    include_str!("actions.js"),
);

/// The page as one file, without the name of its door.
static HTML: LazyLock<String> = LazyLock::new(|| {
    include_str!("page.html")
        .replace("<style></style>", &format!("<style>{STYLE}</style>"))
        .replace("<script></script>", &format!("<script>{SCRIPT}</script>"))
});

/// The Content-Security-Policy, which allows the script and style of the page by hash.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| {
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        format!("'sha256-{}'", STANDARD.encode(digest))
    };
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// Body of a response.
pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// The seat of a feed, and the seat of its connection if the listener counts connections.
type Seating = (StreamSeat, Option<StreamSeat>);

/// The page with its access rule.
#[derive(Clone)]
pub(crate) struct Page {
    door: Arc<Door>,
    html: Bytes,
    feeds: Arc<Streams>,
}

impl Page {
    pub(crate) fn new(door: Door) -> Self {
        // The page selects the instructions for signing in by this name.
        let name = format!("data-door=\"{}\"", door.name());
        Self {
            html: HTML.replace("data-door=\"\"", &name).into(),
            door: Arc::new(door),
            feeds: Streams::new(FEEDS.0, FEEDS.1),
        }
    }

    /// Returns whether a path belongs to the page.
    pub(crate) fn has(path: &str) -> bool {
        path.strip_prefix(PREFIX)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Handles a request for a path of the page. Its extensions contain the address of the client (`Option<IpAddr>`), and the
    /// [`Seat`] of its connection if the listener counts connections.
    pub(crate) async fn answer(&self, parts: &Parts) -> Response<Body> {
        let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
        let read = matches!(parts.method, Method::GET | Method::HEAD);
        match (path, read) {
            ("" | "/", true) => html(self.html.clone()),
            ("/feed", true) => self.feed(parts).await,
            ("/step-down", false) if parts.method == Method::POST => {
                match self.step_down(parts).await {
                    Ok(text) => plain(StatusCode::ACCEPTED, text),
                    Err(Refusal(code, why)) => plain(code, why),
                }
            }
            ("" | "/" | "/feed" | "/step-down", _) => plain(
                StatusCode::METHOD_NOT_ALLOWED,
                "use GET for the page and the feed, and POST for step-down".into(),
            ),
            _ => plain(StatusCode::NOT_FOUND, "no such path".into()),
        }
    }

    async fn feed(&self, parts: &Parts) -> Response<Body> {
        let (hello, board, seats) = match self.enter(parts).await {
            Ok(entered) => entered,
            Err(Refusal(code, why)) => {
                let mut response = plain(code, why);
                if code == StatusCode::SERVICE_UNAVAILABLE {
                    let later = HeaderValue::from_static("10");
                    response.headers_mut().insert(header::RETRY_AFTER, later);
                }
                return response;
            }
        };
        let (lines, heard) = mpsc::channel(16);
        tokio::spawn(async move {
            feed::tell(board, &hello, lines).await;
            drop(seats);
        });
        let frames = stream::unfold(heard, |mut heard| async move {
            let text: Bytes = heard.recv().await?;
            Some((Ok(Frame::data(text)), heard))
        });
        let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames)));
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        if parts.extensions.get::<Arc<Seat>>().is_some() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Authenticates the client in this process, and only then gives it seats and opens a board.
    async fn enter(&self, parts: &Parts) -> Result<(Hello, Board, Seating), Refusal> {
        let token = bearer(parts);
        self.door.admit(token).await?;
        let address = parts.extensions.get::<Option<IpAddr>>().copied().flatten();
        let full = || {
            let why = "too many pages are open: close some, or try again later".to_owned();
            Refusal(StatusCode::SERVICE_UNAVAILABLE, why)
        };
        let feed = self.feeds.take(address).ok_or_else(full)?;
        let connection = match parts.extensions.get::<Arc<Seat>>() {
            Some(seat) => Some(seat.stream().ok_or_else(full)?),
            None => None,
        };
        let (hello, board) = self.door.enter(token).await?;
        Ok((hello, board, (feed, connection)))
    }

    async fn step_down(&self, parts: &Parts) -> Result<String, Refusal> {
        // Browsers do not let another site send this header, so it protects against cross-site requests.
        let Some(token) = bearer(parts) else {
            let why = "step-down needs a bearer token".to_owned();
            return Err(Refusal(StatusCode::UNAUTHORIZED, why));
        };
        let query = parts.uri.query().unwrap_or_default();
        let value = |key: &str| parameter(query, key);
        let bad = |why: &str| Refusal(StatusCode::BAD_REQUEST, why.to_owned());
        let (Some(namespace), Some(name)) = (value("namespace"), value("name")) else {
            return Err(bad("the parameters namespace and name are required"));
        };
        if [&namespace, &name].iter().any(|part| !is_name(part)) {
            return Err(bad("namespace and name must be valid names of objects"));
        }
        let kind: LockKind = value("lock")
            .as_deref()
            .unwrap_or("leases")
            .parse()
            .map_err(|_| bad("lock must be a lock kind, for example leases"))?;
        let client = self.door.steer(token, kind, &namespace, &name)?;
        let failed = |error: anyhow::Error| {
            let code = match error.downcast_ref::<kube::Error>() {
                Some(kube::Error::Api(status)) => StatusCode::from_u16(status.code).ok(),
                _ => None,
            };
            Refusal(code.unwrap_or(StatusCode::BAD_GATEWAY), api::plain(&error))
        };
        let seen = elections::get(&client, kind, &namespace, &name).await;
        let Some(seen) = seen.map_err(failed)? else {
            let why = elections::missing(kind, &namespace, &name);
            return Err(Refusal(StatusCode::NOT_FOUND, why));
        };
        if seen.holder.is_empty() {
            let why = format!("nobody holds {namespace}/{name}");
            return Err(Refusal(StatusCode::CONFLICT, why));
        }
        let meant = value("transitions").and_then(|count| count.parse().ok());
        if meant.is_some_and(|meant: u32| meant != seen.transitions) {
            let why = format!("{} leads {namespace}/{name} now; try again", seen.holder);
            return Err(Refusal(StatusCode::CONFLICT, why));
        }
        let to = value("to").filter(|to| !to.is_empty());
        if let Some(to) = &to
            && let Some(why) = steer::refusal(&client, &namespace, &seen, to).await
        {
            return Err(Refusal(StatusCode::CONFLICT, why));
        }
        let patch = seen.step_down_patch(to.as_deref(), None);
        elections::order(&client, kind, &namespace, &name, &patch)
            .await
            .map_err(failed)?;
        Ok(format!("{} was asked to step down", seen.holder))
    }
}

fn html(page: Bytes) -> Response<Body> {
    let mut response = respond(StatusCode::OK, "text/html; charset=utf-8", page);
    let headers = response.headers_mut();
    let policy = HeaderValue::from_str(&POLICY).expect("hashes are printable");
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    let own = HeaderValue::from_static("same-origin");
    headers.insert("cross-origin-opener-policy", own.clone());
    headers.insert("cross-origin-resource-policy", own);
    response
}

fn plain(code: StatusCode, text: String) -> Response<Body> {
    respond(code, "text/plain; charset=utf-8", text.into())
}

fn respond(code: StatusCode, kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(BodyExt::boxed(Full::new(body)));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

fn bearer(parts: &Parts) -> Option<&str> {
    let value = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let token = value.strip_prefix("Bearer ")?.trim();
    (!token.is_empty()).then_some(token)
}

/// Returns whether a text is a valid object name and therefore safe in a path.
fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    !text.is_empty() && text.len() <= 253 && text.chars().all(allowed) && !text.starts_with('.')
}

/// Returns a decoded query parameter.
fn parameter(query: &str, key: &str) -> Option<String> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        (name == key).then(|| decode(value))
    };
    query.split('&').find_map(pair)
}

fn decode(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => match (digit(), digit()) {
                (Some(high), Some(low)) => u8::try_from(high * 16 + low).unwrap_or(b'?'),
                _ => b'?',
            },
            byte => byte,
        });
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_refers_to_no_outside_resource() {
        let outside = |text: &str| HTML.contains(text);
        assert!(!outside("src=\"http") && !outside("@import") && !outside("url("));
        // The SVG namespace is a name, not an address.
        let addresses = HTML.replace("http://www.w3.org/2000/svg", "");
        assert!(!addresses.contains("http://") && !addresses.contains("https://"));
        assert!(
            !HTML.contains("innerHTML") && !HTML.contains("style=\"") && !HTML.contains(" onclick")
        );
    }

    #[test]
    fn the_file_contains_style_and_script_and_the_name_of_the_door() {
        assert!(HTML.contains(STYLE) && HTML.contains(SCRIPT));
        // A closing tag within the script would end it early.
        assert!(!SCRIPT.contains("</") && !STYLE.contains("</"));
        let page = Page::new(Door::Caller(Arc::default()));
        let html = String::from_utf8_lossy(&page.html).into_owned();
        assert!(html.contains("<body data-door=\"server\">"));
        assert!(html.contains("<div data-for=\"server\">"));
    }

    #[test]
    fn the_policy_allows_the_one_script_and_style_only() {
        assert_eq!(POLICY.matches("'sha256-").count(), 2);
        assert!(POLICY.starts_with("default-src 'none'"));
        assert!(!POLICY.contains("unsafe"));
        assert_eq!(HTML.matches("<script").count(), 1);
        assert_eq!(HTML.matches("<style").count(), 1);
    }

    #[test]
    fn parameters_are_decoded() {
        assert_eq!(
            parameter("a=1&to=x%20y%2Fz+w", "to").as_deref(),
            Some("x y/z w")
        );
        assert_eq!(parameter("a=%", "a").as_deref(), Some("?"));
        assert_eq!(parameter("a=1", "b"), None);
    }

    #[test]
    fn names_that_would_change_a_path_are_rejected() {
        assert!(is_name("web") && is_name("a.b-c"));
        for bad in ["", "..", "a/b", "a?b", "a%2fb", "a b"] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn paths_are_below_the_prefix_by_whole_segments() {
        assert!(Page::has("/ui") && Page::has("/ui/") && Page::has("/ui/feed"));
        assert!(!Page::has("/") && !Page::has("/uix"));
    }
}
