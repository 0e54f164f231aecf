//! Fault injection for tests of clients.
//!
//! Rules apply in the order in which they were added. A request gets the latency of every matching rule, and the first
//! other action of a matching rule.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;

use crate::status::Failure;

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// The request is handled after this delay.
    Latency(Duration),
    /// The request is handled, and the connection is closed without a response.
    DropAnswer,
    /// The request is not handled; the response is a Status with this code.
    Answer(u16),
    /// A watch ends this long after its start.
    CutWatch(Duration),
}

/// A fault with its matching requests and number of uses. By default it applies to every request without limit.
#[derive(Clone, Debug)]
#[must_use = "a fault does nothing until it is added"]
pub struct Fault {
    action: Action,
    requests: Requests,
    times: Option<u32>,
}

/// The matching requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Prefix of the path; empty for all paths.
    pub path: String,
    /// Name of the user; empty for all users.
    pub user: String,
    /// The verb (`update`, `watch`, ...); empty for all verbs.
    pub verb: String,
}

impl Requests {
    fn fit(&self, path: &str, user: &str, verb: &str) -> bool {
        path.starts_with(&self.path)
            && (self.user.is_empty() || self.user == user)
            && (self.verb.is_empty() || self.verb == verb)
    }
}

impl Fault {
    /// Creates a fault with this effect.
    pub fn new(action: Action) -> Self {
        Self {
            action,
            requests: Requests::default(),
            times: None,
        }
    }

    /// Creates a fault that delays requests.
    pub fn latency(wait: Duration) -> Self {
        Self::new(Action::Latency(wait))
    }

    /// Creates a fault that handles requests and drops the response.
    pub fn drop_answer() -> Self {
        Self::new(Action::DropAnswer)
    }

    /// Creates a fault that does not handle requests and responds with a Status, such as 409, 410, 429, 500 or 503.
    pub fn answer(code: u16) -> Self {
        Self::new(Action::Answer(code))
    }

    /// Creates a fault that ends watches early.
    pub fn cut_watch(after: Duration) -> Self {
        Self::new(Action::CutWatch(after))
    }

    /// Limits the fault to paths with this prefix.
    pub fn path(mut self, prefix: impl Into<String>) -> Self {
        self.requests.path = prefix.into();
        self
    }

    /// Limits the fault to requests of this user.
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.requests.user = name.into();
        self
    }

    /// Limits the fault to requests with this verb.
    pub fn verb(mut self, verb: impl Into<String>) -> Self {
        self.requests.verb = verb.into();
        self
    }

    /// Limits the number of uses.
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }
}

/// Handle of an added fault: counts its uses and can remove it.
#[derive(Clone, Debug)]
pub struct Added {
    rule: Arc<Rule>,
}

impl Added {
    /// Returns the number of affected requests so far.
    #[must_use]
    pub fn hits(&self) -> u32 {
        self.rule.hits.load(Ordering::SeqCst)
    }

    /// Removes the fault. Requests that it already affected are not changed.
    pub fn remove(&self) {
        self.rule.left.store(0, Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct Rule {
    fault: Fault,
    hits: AtomicU32,
    /// `u32::MAX` means no limit.
    left: AtomicU32,
}

/// The faults of one server.
#[derive(Debug)]
pub struct Faults {
    rules: Mutex<Vec<Arc<Rule>>>,
    count: AtomicUsize,
    cuts: broadcast::Sender<Requests>,
}

impl Default for Faults {
    fn default() -> Self {
        let (cuts, _) = broadcast::channel(16);
        Self {
            rules: Mutex::default(),
            count: AtomicUsize::new(0),
            cuts,
        }
    }
}

impl Faults {
    /// Adds a fault, which applies from the next request on.
    pub fn add(&self, fault: Fault) -> Added {
        let left = AtomicU32::new(fault.times.unwrap_or(u32::MAX));
        let rule = Arc::new(Rule {
            fault,
            hits: AtomicU32::new(0),
            left,
        });
        let mut rules = self.lock();
        rules.push(Arc::clone(&rule));
        self.count.store(rules.len(), Ordering::Release);
        Added { rule }
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.lock().clear();
        self.count.store(0, Ordering::Release);
    }

    /// Ends matching running watches now, cleanly.
    pub fn cut_watches(&self, which: &Requests) {
        // An error means that there are no watches.
        let _ = self.cuts.send(which.clone());
    }

    /// Returns the faults for this request.
    pub(super) fn plan(&self, path: &str, user: &str, verb: &str) -> Plan {
        let mut plan = Plan::default();
        if self.count.load(Ordering::Acquire) == 0 {
            return plan;
        }
        for rule in self
            .lock()
            .iter()
            .filter(|r| r.fault.requests.fit(path, user, verb))
        {
            let action = rule.fault.action;
            let wanted = match action {
                Action::Latency(_) => true,
                Action::CutWatch(_) => verb == "watch" && plan.action.is_none(),
                Action::DropAnswer | Action::Answer(_) => plan.action.is_none(),
            };
            if !wanted || !rule.take() {
                continue;
            }
            match action {
                Action::Latency(wait) => plan.latency += wait,
                other => plan.action = Some(other),
            }
        }
        plan
    }

    /// Resolves when a running watch must end.
    pub(super) fn cut(&self, path: &str, user: &str) -> impl Future<Output = ()> + Send + use<> {
        let mut cuts = self.cuts.subscribe();
        let (path, user) = (path.to_owned(), user.to_owned());
        async move {
            loop {
                match cuts.recv().await {
                    Ok(which) if which.fit(&path, &user, "watch") => return,
                    Ok(_) => {}
                    // If the message was missed, the watch ends rather than hang.
                    Err(broadcast::error::RecvError::Lagged(_)) => return,
                    Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Rule>>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rule {
    fn take(&self) -> bool {
        let one_less = |left| match left {
            0 => None,
            u32::MAX => Some(u32::MAX),
            left => Some(left - 1),
        };
        let taken = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .is_ok();
        if taken {
            self.hits.fetch_add(1, Ordering::SeqCst);
        }
        taken
    }
}

/// The faults for one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) latency: Duration,
    pub(super) action: Option<Action>,
}

/// Returns the response of [`Action::Answer`].
pub(super) fn injected(code: u16) -> Failure {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    Failure::new(code, reason, format!("injected fault {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_affect_matching_requests_up_to_their_limit() {
        let faults = Faults::default();
        let added = faults.add(
            Fault::answer(409)
                .path("/apis/x/")
                .user("bob")
                .verb("update")
                .times(2),
        );
        for (path, user, verb) in [
            ("/api", "bob", "update"),
            ("/apis/x/l", "eve", "update"),
            ("/apis/x/l", "bob", "get"),
        ] {
            assert_eq!(faults.plan(path, user, verb), Plan::default());
        }
        for _ in 0..2 {
            assert_eq!(
                faults.plan("/apis/x/l", "bob", "update").action,
                Some(Action::Answer(409))
            );
        }
        assert_eq!(faults.plan("/apis/x/l", "bob", "update").action, None);
        assert_eq!(added.hits(), 2);
    }

    #[test]
    fn latency_adds_up_and_the_first_action_wins() {
        let faults = Faults::default();
        let second = Duration::from_secs(1);
        faults.add(Fault::latency(second));
        faults.add(Fault::drop_answer());
        let unused = faults.add(Fault::answer(500));
        faults.add(Fault::latency(second));
        let plan = faults.plan("/", "", "get");
        assert_eq!(
            plan,
            Plan {
                latency: 2 * second,
                action: Some(Action::DropAnswer)
            }
        );
        assert_eq!(unused.hits(), 0);
        faults.clear();
        assert_eq!(faults.plan("/", "", "get"), Plan::default());
    }

    #[test]
    fn removed_fault_affects_no_request() {
        let faults = Faults::default();
        let added = faults.add(Fault::answer(503));
        assert!(faults.plan("/", "", "get").action.is_some());
        added.remove();
        assert!(faults.plan("/", "", "get").action.is_none());
    }
}
