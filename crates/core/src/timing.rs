//! The durations of an election, validated once.
//!
//! client-go checks `LeaseDuration > RenewDeadline > 1.2 * RetryPeriod` and stops at the first problem. That accepts
//! timings with no margin (15 s / 10 s / 5 s) and even with a negative one (15 s / 14 s / 11 s). This module reports
//! all problems together, and requires a margin:
//!
//! ```text
//! retry period + renew deadline + request timeout + margin <= lease duration
//! ```
//!
//! The first three durations together must be strictly *less* than the lease duration (duty 10 in
//! `docs/book/explanation/safety.md`). The margin is the required difference, and it is never zero. The sum including
//! the margin may therefore equal the lease duration, as it does by default: 2 s + 10 s + 2.5 s + 0.5 s of 15 s.

use std::fmt;
use std::time::Duration;

use crate::record::MAX_LEASE;

/// Jitter of polling followers (client-go `JitterFactor`): the interval is one retry period plus a random time of up to
/// this many retry periods.
pub const JITTER_FACTOR: f64 = 1.2;

/// Minimum request timeout.
const MIN_REQUEST_TIMEOUT: Duration = Duration::from_millis(10);

/// Validated durations. The default is client-go's convention: 15 s / 10 s / 2 s.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    lease_seconds: u32,
    renew_deadline: Duration,
    retry_period: Duration,
    request_timeout: Duration,
    margin: Duration,
    lock_delay: Duration,
    warnings: Vec<TimingProblem>,
}

impl Timing {
    /// Returns a builder with client-go's defaults.
    pub fn builder() -> TimingBuilder {
        TimingBuilder::default()
    }

    /// Returns LeaseDuration: how long other candidates wait after the last change of the record.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(u64::from(self.lease_seconds))
    }

    /// Returns LeaseDuration as it is written on the wire.
    pub fn lease_seconds(&self) -> u32 {
        self.lease_seconds
    }

    /// Returns RenewDeadline as configured.
    pub fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// Returns RetryPeriod: the interval at which the leader renews.
    pub fn retry_period(&self) -> Duration {
        self.retry_period
    }

    /// Returns the timeout of one request.
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Returns the margin for clocks that run at different rates.
    pub fn margin(&self) -> Duration {
        self.margin
    }

    /// Returns the lock delay: the time that this candidate waits in addition to the lease duration of another
    /// candidate, unless that candidate released the lock.
    pub fn lock_delay(&self) -> Duration {
        self.lock_delay
    }

    /// Returns the length of the guard, starting at the send time of the last applied write.
    pub fn guard(&self) -> Duration {
        // The renew deadline exceeds the fence only in `client_go_compat` timings.
        self.renew_deadline.min(self.fence())
    }

    /// Returns the length of the fence: guarded work must have ended this long after the send time of the last applied
    /// write. Cancelled work may still be stopping between the end of the guard and the fence.
    pub fn fence(&self) -> Duration {
        self.lease().saturating_sub(self.margin)
    }

    /// Returns how long work may take to stop after a loss that was noticed before the guard expired.
    pub fn grace(&self) -> Duration {
        self.fence().saturating_sub(self.guard())
    }

    /// Returns the largest difference of clock rates, as a fraction, under which guards exclude each other:
    /// `guard <= lease * (1 - rho) / (1 + rho)`.
    pub fn tolerated_rate_error(&self) -> f64 {
        let (lease, guard) = (self.lease().as_secs_f64(), self.guard().as_secs_f64());
        (lease - guard) / (lease + guard)
    }

    /// Returns the violated rules that [`TimingBuilder::client_go_compat`] waived.
    pub fn warnings(&self) -> &[TimingProblem] {
        &self.warnings
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::builder()
            .build()
            .expect("15 s / 10 s / 2 s keeps every rule")
    }
}

/// Collects the durations; [`build`](Self::build) validates them.
#[derive(Clone, Debug)]
#[must_use]
pub struct TimingBuilder {
    lease: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
    request_timeout: Option<Duration>,
    lock_delay: Duration,
    client_go_compat: bool,
}

impl Default for TimingBuilder {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            request_timeout: None,
            lock_delay: Duration::ZERO,
            client_go_compat: false,
        }
    }
}

impl TimingBuilder {
    /// Sets LeaseDuration, in whole seconds.
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.lease = duration;
        self
    }

    /// Sets RenewDeadline.
    pub fn renew_deadline(mut self, duration: Duration) -> Self {
        self.renew_deadline = duration;
        self
    }

    /// Sets RetryPeriod.
    pub fn retry_period(mut self, duration: Duration) -> Self {
        self.retry_period = duration;
        self
    }

    /// Sets the request timeout. The default is the time that the other rules leave, at most half the renew deadline.
    pub fn request_timeout(mut self, duration: Duration) -> Self {
        self.request_timeout = Some(duration);
        self
    }

    /// Sets the lock delay; the default is zero. Use it to protect a resource that cannot check fencing tokens from
    /// requests that a failed leader sent before its term expired. All candidates must use the same lock delay.
    pub fn lock_delay(mut self, duration: Duration) -> Self {
        self.lock_delay = duration;
        self
    }

    /// Accepts timings that client-go accepts although they leave no margin. The violated rule becomes a
    /// [warning](Timing::warnings).
    pub fn client_go_compat(mut self, yes: bool) -> Self {
        self.client_go_compat = yes;
        self
    }

    /// Validates the durations.
    ///
    /// # Errors
    ///
    /// One error that lists every problem with its values.
    pub fn build(self) -> Result<Timing, TimingError> {
        let Self {
            lease,
            renew_deadline: renew,
            retry_period: retry,
            ..
        } = self;
        let mut problems = Vec::new();
        if lease.subsec_nanos() != 0 || lease.is_zero() {
            problems.push(TimingProblem::LeaseNotWholeSeconds { lease });
        }
        if lease > MAX_LEASE {
            problems.push(TimingProblem::LeaseTooLong { lease });
        }
        if renew.is_zero() {
            problems.push(TimingProblem::Zero {
                what: "renew deadline",
            });
        }
        if retry.is_zero() {
            problems.push(TimingProblem::Zero {
                what: "retry period",
            });
        }
        if lease <= renew {
            problems.push(TimingProblem::LeaseNotAboveRenew { lease, renew });
        }
        let delay = self.lock_delay;
        if delay > MAX_LEASE {
            problems.push(TimingProblem::LockDelayTooLong { delay });
        }
        let jittered = Duration::try_from_secs_f64(retry.as_secs_f64() * JITTER_FACTOR);
        if renew <= jittered.unwrap_or(Duration::MAX) {
            problems.push(TimingProblem::RenewNotAboveRetry { renew, retry });
        }
        if let Some(timeout) = self
            .request_timeout
            .filter(|t| t.is_zero() || *t > renew / 2)
        {
            problems.push(TimingProblem::RequestTimeout { timeout, renew });
        }
        let margin = (lease / 30).max(Duration::from_millis(250));
        let left = lease.saturating_sub(renew.saturating_add(retry).saturating_add(margin));
        let mut warnings = Vec::new();
        let mut request_timeout = self.request_timeout.unwrap_or_else(|| left.min(renew / 2));
        // Contradictory durations leave no margin either. That contradiction is already reported above.
        let consistent = lease > renew && renew > retry;
        if consistent && (left < request_timeout || request_timeout < MIN_REQUEST_TIMEOUT) {
            let problem = TimingProblem::NoMargin {
                lease,
                renew,
                retry,
                timeout: request_timeout.max(MIN_REQUEST_TIMEOUT),
                margin,
            };
            if self.client_go_compat {
                warnings.push(problem);
                request_timeout = self.request_timeout.unwrap_or(renew / 2);
            } else {
                problems.push(problem);
            }
        }
        if !problems.is_empty() {
            return Err(TimingError { problems });
        }
        Ok(Timing {
            lease_seconds: u32::try_from(lease.as_secs())
                .expect("at most MAX_LEASE, checked above"),
            renew_deadline: renew,
            retry_period: retry,
            request_timeout,
            margin,
            lock_delay: delay,
            warnings,
        })
    }
}

/// One violated rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TimingProblem {
    /// The wire format has whole seconds only, and the API server rejects zero.
    #[error("lease duration {lease:?} must be a positive number of whole seconds")]
    LeaseNotWholeSeconds {
        /// As configured.
        lease: Duration,
    },
    /// Other candidates would not honour such a long lease.
    #[error("lease duration {lease:?} must not exceed {MAX_LEASE:?}")]
    LeaseTooLong {
        /// As configured.
        lease: Duration,
    },
    /// The lock delay would outlast every lease.
    #[error("lock delay {delay:?} must not exceed {MAX_LEASE:?}")]
    LockDelayTooLong {
        /// As configured.
        delay: Duration,
    },
    /// A duration is zero.
    #[error("{what} must be greater than zero")]
    Zero {
        /// Name of the duration.
        what: &'static str,
    },
    /// The leader would act longer than its lease lasts.
    #[error("lease duration {lease:?} must be greater than renew deadline {renew:?}")]
    LeaseNotAboveRenew {
        /// As configured.
        lease: Duration,
        /// As configured.
        renew: Duration,
    },
    /// One failed renewal would end the term.
    #[error(
        "renew deadline {renew:?} must be greater than retry period {retry:?} * {JITTER_FACTOR}"
    )]
    RenewNotAboveRetry {
        /// As configured.
        renew: Duration,
        /// As configured.
        retry: Duration,
    },
    /// One request without a response would use up the whole renew deadline.
    #[error(
        "request timeout {timeout:?} must be between zero and half the renew deadline {renew:?}"
    )]
    RequestTimeout {
        /// As configured.
        timeout: Duration,
        /// As configured.
        renew: Duration,
    },
    /// No time is left for slow requests and clocks with different rates.
    #[error(
        "retry period {retry:?} + renew deadline {renew:?} + request timeout {timeout:?} + margin \
         {margin:?} must fit into lease duration {lease:?}"
    )]
    NoMargin {
        /// As configured.
        lease: Duration,
        /// As configured.
        renew: Duration,
        /// As configured.
        retry: Duration,
        /// As configured or computed.
        timeout: Duration,
        /// Computed: a thirtieth of the lease, at least 250 ms.
        margin: Duration,
    },
}

/// Every problem of a set of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimingError {
    /// The problems; at least one.
    pub problems: Vec<TimingProblem>,
}

impl fmt::Display for TimingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid election timing: ")?;
        for (i, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for TimingError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(lease_ms: u64, renew_ms: u64, retry_ms: u64) -> Result<Timing, TimingError> {
        builder(lease_ms, renew_ms, retry_ms).build()
    }

    fn builder(lease_ms: u64, renew_ms: u64, retry_ms: u64) -> TimingBuilder {
        Timing::builder()
            .lease_duration(Duration::from_millis(lease_ms))
            .renew_deadline(Duration::from_millis(renew_ms))
            .retry_period(Duration::from_millis(retry_ms))
    }

    #[test]
    fn the_default_is_client_gos_convention() {
        let timing = Timing::default();
        assert_eq!(timing, build(15_000, 10_000, 2_000).unwrap());
        assert_eq!(timing.margin(), Duration::from_millis(500));
        assert_eq!(timing.request_timeout(), Duration::from_millis(2_500));
        assert_eq!(timing.fence(), Duration::from_millis(14_500));
        assert_eq!(timing.grace(), Duration::from_millis(4_500));
        assert!((timing.tolerated_rate_error() - 0.2).abs() < 1e-9);
        let used = timing.retry_period() + timing.renew_deadline() + timing.request_timeout();
        assert_eq!(timing.lease() - used, timing.margin());
    }

    #[test]
    fn all_problems_are_reported_together_with_their_values() {
        let error = build(1_900, 2_500, 2_400).unwrap_err();
        assert_eq!(error.problems.len(), 3);
        let text = error.to_string();
        for part in [
            "1.9s must be a positive number of whole seconds",
            "renew deadline 2.5s",
            "2.4s",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn missing_margin_is_reported_with_other_problems_without_overflow() {
        let with_timeout = builder(15_000, 10_000, 5_000).request_timeout(Duration::from_secs(6));
        let error = with_timeout.build().unwrap_err();
        assert!(
            matches!(
                error.problems[..],
                [
                    TimingProblem::RequestTimeout { .. },
                    TimingProblem::NoMargin { .. }
                ]
            ),
            "{error}"
        );
        let longest = Timing::builder()
            .lease_duration(Duration::MAX)
            .renew_deadline(Duration::MAX)
            .retry_period(Duration::MAX);
        assert!(longest.build().is_err());
    }

    #[test]
    fn sub_second_leases_are_refused() {
        assert!(build(900, 500, 100).is_err());
        assert!(build(0, 0, 0).is_err());
    }

    #[test]
    fn timings_without_margin_need_the_compat_switch() {
        for (lease, renew, retry) in [(15_000, 10_000, 5_000), (15_000, 14_000, 10_000)] {
            let error = build(lease, renew, retry).unwrap_err();
            assert!(
                matches!(error.problems[..], [TimingProblem::NoMargin { .. }]),
                "{error}"
            );
            let timing = builder(lease, renew, retry)
                .client_go_compat(true)
                .build()
                .unwrap();
            assert_eq!(timing.warnings().len(), 1);
            assert_eq!(timing.request_timeout(), timing.renew_deadline() / 2);
        }
    }

    #[test]
    fn compat_never_lets_the_guard_outlast_the_fence() {
        let timing = builder(15_000, 14_900, 2_000)
            .client_go_compat(true)
            .build()
            .unwrap();
        assert_eq!(timing.guard(), Duration::from_millis(14_500));
        assert_eq!(timing.grace(), Duration::ZERO);
    }

    #[test]
    fn durations_at_their_limits_have_the_problem_of_that_limit_alone() {
        let problems = |lease, renew, retry| build(lease, renew, retry).unwrap_err().problems;
        assert!(matches!(
            problems(10_000, 10_000, 2_000)[..],
            [TimingProblem::LeaseNotAboveRenew { .. }]
        ));
        assert!(matches!(
            problems(20_000, 10_000, 10_000)[..],
            [TimingProblem::RenewNotAboveRetry { .. }]
        ));
        // Ten seconds with their jitter are twelve.
        for (renew, accepted) in [(11_500, false), (12_000, false), (12_001, true)] {
            let built = build(60_000, renew, 10_000);
            assert_eq!(built.is_ok(), accepted, "{renew}");
        }
        // Between ten milliseconds and half the renew deadline.
        for (millis, accepted) in [(9, false), (10, true), (5_000, true), (5_001, false)] {
            let timeout = Duration::from_millis(millis);
            let built = builder(60_000, 10_000, 2_000).request_timeout(timeout);
            assert_eq!(built.build().is_ok(), accepted, "{millis}");
        }
    }

    #[test]
    fn wrangler_and_openshift_timings_are_accepted() {
        build(45_000, 30_000, 2_000).unwrap();
        let openshift = build(137_000, 107_000, 26_000).unwrap_err();
        assert!(
            openshift
                .to_string()
                .contains("must fit into lease duration 137s")
        );
    }

    #[test]
    fn one_request_may_take_at_most_half_the_deadline() {
        let error = builder(60_000, 10_000, 2_000)
            .request_timeout(Duration::from_secs(6))
            .build();
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("request timeout 6s")
        );
    }
}
