//! Fair shares of the server for each user, so that one user cannot stop the requests of the others.
//!
//! | file | content |
//! |---|---|
//! | `class` | the lane of a request |
//! | `queue` | seats, and a fair queue for them |
//! | `share` | shares of bytes and watches |
//! | `limit` | what is limited, and the names of limits |
//! | `users` | the bounded table of users |
//! | `gate` | the shared state: seats and shares that are returned when dropped |
//! | `intake` | reads a request body within the shares of its user |
//!
//! A request takes these steps after authorization, which is heavy work itself if its user has very many rules:
//!
//! 1. Its body is read. Arriving and large bodies count against shares.
//! 2. It takes a seat in its lane, or waits for one in the fair queue of the lane.
//! 3. Heavy work takes a second seat, in the heavy lane, and leaves the threads of the runtime to other requests.
//! 4. A large answer counts against the share of its user until the client has read it.
//!
//! A request above a limit gets 429 with `Retry-After: 1` and a message that names the limit.
//!
//! Invariants: the lane of elections has separate seats. No work of other lanes runs on the threads of the runtime for
//! longer than the handling of [`HEAVY`] bytes takes.

mod class;
mod gate;
mod intake;
mod limit;
mod queue;
pub(crate) mod share;
mod users;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Bytes};
use tenure_host::address::network;

use crate::auth::{ANONYMOUS, User};
use crate::http::Api;
use crate::request::RequestInfo;
use crate::respond::{self, Body};
use crate::status::Failure;
pub(crate) use class::Lane;
pub(crate) use gate::{Charge, Gate, Tenant};
use intake::ReadBody;
pub(crate) use intake::TooLarge;
pub(crate) use limit::{Rejection, Resource};

/// Work on more bytes than this is heavy.
pub(crate) const HEAVY: usize = 32 * 1024;

/// Answers of fewer bytes are not counted.
const SMALL_ANSWER: u64 = 64 * 1024;

/// Limits of all users together. A single user gets a share of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Seats of the lanes `workload` and `system`; elections have twice as many.
    pub(crate) requests: u32,
    /// Open watches.
    pub(crate) watches: u64,
    /// Bytes of request bodies that are read or handled.
    pub(crate) body_bytes: u64,
    /// Bytes of answers that clients have not read.
    pub(crate) answer_bytes: u64,
    /// Request bodies that the server waits for.
    pub(crate) arriving_bodies: u64,
    /// Users that are remembered.
    pub(crate) users: usize,
    /// Longest pause within a body.
    pub(crate) body_pause: Duration,
    /// Longest time for a whole body.
    pub(crate) body_deadline: Duration,
    /// Longest time for a request, from its body to its answer. Watches have no such limit.
    pub(crate) request_deadline: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests: 256,
            watches: 16_384,
            body_bytes: 128 << 20,
            answer_bytes: 256 << 20,
            arriving_bodies: 4_096,
            users: 4_096,
            body_pause: Duration::from_secs(30),
            body_deadline: Duration::from_secs(60),
            request_deadline: Duration::from_secs(60),
        }
    }
}

/// Handles an authorized request within the shares of its user.
pub(crate) struct Fairness {
    gate: Arc<Gate>,
    limits: Limits,
    /// False hands every request to the API, for measurements.
    enabled: bool,
}

impl Fairness {
    pub(crate) fn new(limits: Limits, enabled: bool) -> Self {
        Self {
            gate: Arc::new(Gate::new(&limits)),
            limits,
            enabled,
        }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Returns the shares of a user.
    pub(crate) fn tenant(&self, user: &User, address: Option<IpAddr>) -> Tenant {
        self.gate.tenant(&flow(user, address))
    }

    /// Handles a request, or rejects it with 429. The response carries its [`Charge`] as an extension.
    pub(crate) async fn handle<B>(
        &self,
        api: &Arc<Api>,
        request: Request<B>,
        info: RequestInfo,
        user: &User,
        address: Option<IpAddr>,
    ) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let name = flow(user, address);
        match self.run(api, request, info.clone(), user, &name).await {
            Ok(response) => response,
            Err(failure) => {
                api.count_rejection(&info, failure.code);
                respond::failure(&failure)
            }
        }
    }

    async fn run<B>(
        &self,
        api: &Arc<Api>,
        request: Request<B>,
        info: RequestInfo,
        user: &User,
        name: &str,
    ) -> Result<Response<Body>, Failure>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let (head, body) = request.into_parts();
        let length = match body.size_hint().exact() {
            // Intermediaries may leave out the length of an empty body.
            None if body.is_end_stream() => Some(0),
            known => known,
        };
        let Some(lane) = class::lane(&info, user, length, head.uri.query()) else {
            // Health checks and `/version` do not use a body.
            let mut request = Request::from_parts(head, ReadBody::default());
            request.extensions_mut().insert(info);
            return Ok(api.handle(request, user).await);
        };
        let declared = head.headers.get(CONTENT_LENGTH).is_some();
        let limits = intake::Limits::of(&self.limits, declared);
        let intake = intake::read(body, &self.gate, name, &limits).await?;
        let (body, body_charge) = intake.into_parts();
        if !self.enabled {
            let mut request = Request::from_parts(head, body);
            request.extensions_mut().insert(info);
            return Ok(api.handle(request, user).await);
        }
        let seat = self.gate.seat(name, lane).await?;
        let heavy = body.len() > HEAVY || class::is_heavy(&info);
        let tenant = seat.tenant();
        if lane != Lane::Elections {
            tenant.check_answers()?;
        }
        let watch = match info.is_long_running() {
            true if !user.is_in(crate::auth::MASTERS) => Some(tenant.take(Resource::Watches, 1)?),
            _ => None,
        };
        let (long, reads) = (info.is_long_running(), info.verb.is_read());
        let mut request = Request::from_parts(head, body);
        request.extensions_mut().insert(info);
        // The events of a watch are sent after this seat was returned.
        let inner = Tenant::clone(tenant).already_heavy(heavy && !long);
        request.extensions_mut().insert(inner);
        let handling = async {
            let deadline = self.limits.request_deadline;
            match tokio::time::timeout(deadline, api.handle(request, user)).await {
                Ok(response) => Ok(response),
                Err(_) => Err(timed_out(deadline)),
            }
        };
        let response = if heavy {
            tenant.off_workers(Box::pin(handling)).await??
        } else {
            handling.await?
        };
        drop(body_charge);
        if long {
            return Ok(with_charge(response, watch));
        }
        let counted = response.extensions().get::<Arc<Charge>>().is_some();
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        if counted || bytes <= SMALL_ANSWER {
            return Ok(response);
        }
        // A write has been applied, so that its answer is sent in any case.
        let charge = if reads {
            tenant.take(Resource::Answers, bytes)?
        } else {
            tenant.take_anyway(Resource::Answers, bytes)
        };
        Ok(with_charge(response, Some(charge)))
    }
}

/// Keeps the charges of a response against the shares of its user until its body is dropped.
fn with_charge(mut response: Response<Body>, charge: Option<Charge>) -> Response<Body> {
    if let Some(charge) = charge {
        response.extensions_mut().insert(Arc::new(charge));
    }
    response
}

/// Returns the name under which requests are counted: the user, or the address of a client without credentials.
fn flow(user: &User, address: Option<IpAddr>) -> Cow<'_, str> {
    match address {
        Some(address) if user.name == ANONYMOUS => {
            Cow::Owned(format!("{ANONYMOUS} at {}", network(address)))
        }
        _ => Cow::Borrowed(&user.name),
    }
}

fn timed_out(deadline: Duration) -> Failure {
    let message = format!(
        "Timeout: request did not complete within the allotted timeout of {} s; a write may have been applied",
        deadline.as_secs_f64()
    );
    let mut failure = Failure::generic(504, "Timeout", message);
    if let Some(details) = &mut failure.details {
        details.retry_after_seconds = Some(1);
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_clients_are_counted_by_their_network() {
        let alice = User::new("alice", []);
        let address = "192.0.2.7".parse().ok();
        assert_eq!(flow(&alice, address), "alice");
        let anonymous = User::anonymous();
        assert_eq!(flow(&anonymous, address), "system:anonymous at 192.0.2.7");
        let mapped = "::ffff:192.0.2.7".parse().ok();
        assert_eq!(flow(&anonymous, mapped), "system:anonymous at 192.0.2.7");
        let six = "2001:db8:1:2:3:4:5:6".parse().ok();
        assert_eq!(flow(&anonymous, six), "system:anonymous at 2001:db8:1:2::");
        assert_eq!(flow(&anonymous, None), "system:anonymous");
    }
}
