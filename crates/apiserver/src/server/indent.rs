//! Indents JSON responses for people, who read them with curl or in a browser.

use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;

use crate::request::{Query, RequestInfo};
use crate::respond::Body;

/// Bytes of the body that are indented at a time.
const PIECE: usize = 4 * 1024;
/// Deepest level that is indented further than the level above it, so that the result is at most a small multiple of
/// the body.
const DEEPEST: usize = 16;

/// Returns whether the client wants an indented response. A watch is never indented, because it has one event per line.
pub(super) fn is_wanted<B>(request: &Request<B>) -> bool {
    let uri = request.uri();
    let is_api = uri.path().starts_with("/api");
    is_api && asks(uri.query().unwrap_or_default(), request.headers()) && {
        let info = RequestInfo::parse(request.method(), uri.path(), uri.query());
        !info.is_long_running()
    }
}

fn asks(query: &str, headers: &HeaderMap) -> bool {
    if query.contains("pretty")
        && let Some(value) = Query::new(query).text("pretty")
    {
        return matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True");
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let agent = header(USER_AGENT).unwrap_or_default();
    let programs = ["curl", "Wget", "Mozilla/5.0"];
    programs.iter().any(|program| agent.starts_with(program))
        || header(ACCEPT).is_some_and(|accept| accept.contains("pretty=1"))
}

/// Indents the body of a JSON response.
pub(super) fn indented(response: Response<Body>) -> Response<Body> {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("application/json")) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    let start = (body, Bytes::new(), Indenter::default());
    let frames = stream::unfold(start, |(mut body, mut rest, mut indenter)| async move {
        while rest.is_empty() {
            match body.frame().await? {
                Ok(frame) => rest = frame.into_data().unwrap_or_default(),
                Err(error) => return Some((Err(error), (body, rest, indenter))),
            }
        }
        let piece = rest.split_to(rest.len().min(PIECE));
        let out = Frame::data(Bytes::from(indenter.indent(&piece)));
        Some((Ok(out), (body, rest, indenter)))
    });
    Response::from_parts(parts, StreamBody::new(frames).boxed_unsync())
}

/// The position in a JSON text that arrives in pieces.
#[derive(Default)]
struct Indenter {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Whether the last token opened a list or object, which may be empty.
    opened: bool,
}

impl Indenter {
    fn indent(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(piece.len() * 2);
        for &byte in piece {
            if self.in_string {
                out.push(byte);
                self.in_string = self.escaped || byte != b'"';
                self.escaped = !self.escaped && byte == b'\\';
                continue;
            }
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b'{' | b'[' => {
                    self.begin_value(&mut out);
                    out.push(byte);
                    self.depth += 1;
                    self.opened = true;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if !std::mem::take(&mut self.opened) {
                        self.new_line(&mut out);
                    }
                    out.push(byte);
                }
                b',' => {
                    out.push(byte);
                    self.new_line(&mut out);
                }
                b':' => out.extend_from_slice(b": "),
                _ => {
                    self.begin_value(&mut out);
                    out.push(byte);
                    self.in_string = byte == b'"';
                }
            }
        }
        out
    }

    fn begin_value(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.opened) {
            self.new_line(out);
        }
    }

    fn new_line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b' ', 2 * self.depth.min(DEEPEST)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn text_is_indented_regardless_of_its_pieces() {
        let value = json!({"a": [1, true, {"b\"\\": "x, {y}: [z]"}], "c": {}, "d": [], "e": null});
        let expected = serde_json::to_string_pretty(&value).unwrap();
        let text = value.to_string() + "\n";
        for size in [1, 2, 7, text.len()] {
            let mut indenter = Indenter::default();
            let pieces = text.as_bytes().chunks(size);
            let out: Vec<u8> = pieces.flat_map(|piece| indenter.indent(piece)).collect();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{size}");
        }
    }

    #[test]
    fn deep_text_grows_by_a_small_factor() {
        let text = "[".repeat(2_000) + &"]".repeat(2_000);
        let out = Indenter::default().indent(text.as_bytes());
        assert!(out.len() < text.len() * 40, "{}", out.len());
        let deep = "[".repeat(100) + "1" + &"]".repeat(100);
        let out = Indenter::default().indent(deep.as_bytes());
        let parsed: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(parsed.to_string(), deep);
    }

    #[test]
    fn people_get_indented_responses_and_programs_do_not() {
        let wanted = |path: &str, agent: &str| {
            let request = Request::get(path).header(USER_AGENT, agent).body(());
            is_wanted(&request.unwrap())
        };
        assert!(wanted("/api/v1/pods", "curl/8.5.0"));
        assert!(wanted("/api/v1/pods", "Mozilla/5.0 (X11)"));
        assert!(wanted("/api/v1/pods?pretty=true", "kubectl/v1.36"));
        assert!(!wanted("/api/v1/pods?pretty=false", "curl/8.5.0"));
        assert!(!wanted("/api/v1/pods", "kubectl/v1.36"));
        assert!(!wanted("/api/v1/pods?watch=true", "curl/8.5.0"));
        assert!(!wanted("/openapi/v2", "curl/8.5.0"));
    }
}
