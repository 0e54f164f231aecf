//! Plain reads from the API server, which also measure its clock and its latency.

use std::time::{Duration, Instant};

use http::header::DATE;
use http_body_util::BodyExt;
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::core::Status;
use serde_json::Value;

/// A response.
pub(crate) struct Answer {
    pub(crate) body: Value,
    pub(crate) clock: Clock,
    pub(crate) took: Duration,
}

/// Lower and upper bound of the time by which the server's clock is ahead of ours. Its `Date` has whole seconds, so one
/// response gives wide bounds. Several responses together give narrower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    at_least: SignedDuration,
    at_most: SignedDuration,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            at_least: SignedDuration::MIN,
            at_most: SignedDuration::MAX,
        }
    }
}

impl Clock {
    /// Computes the bounds from the `Date` of a response. `sent` and `answered` are instants of our clock.
    pub(crate) fn of(date: Timestamp, sent: Timestamp, answered: Timestamp) -> Self {
        Self {
            at_least: date.duration_since(answered),
            at_most: date.duration_since(sent) + SignedDuration::from_secs(1),
        }
    }

    /// Combines two bounds.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            at_least: self.at_least.max(other.at_least),
            at_most: self.at_most.min(other.at_most),
        }
    }

    /// Returns whether any response contained the time.
    pub(crate) fn is_known(self) -> bool {
        self != Self::default()
    }

    /// Returns the smallest difference that explains the responses; zero if the clocks may agree.
    pub(crate) fn ahead(self) -> SignedDuration {
        let zero = SignedDuration::ZERO;
        if self.at_least > zero {
            self.at_least
        } else if self.at_most < zero {
            self.at_most
        } else {
            zero
        }
    }

    /// Returns the current time of the server's clock, as far as known.
    pub(crate) fn now(self) -> Timestamp {
        let now = Timestamp::now();
        now.checked_add(self.ahead()).unwrap_or(now)
    }
}

/// `Accept` header for lists of objects of which only the metadata are needed.
pub(crate) const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// `Accept` header for watches of such objects.
pub(crate) const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// `Accept` header for whole objects.
pub(crate) const WHOLE: &str = "application/json";

/// Formats an error as one readable line. All errors for users are formatted here, because kube's own texts are written
/// for programmers.
pub(crate) fn plain(error: &anyhow::Error) -> String {
    tenure_lock::in_words(&**error)
}

/// Reads a path as JSON.
pub(crate) async fn get(client: &Client, path: &str) -> Result<Answer, kube::Error> {
    get_as(client, path, WHOLE).await
}

/// Reads a path as JSON, with one of the `Accept` headers above.
pub(crate) async fn get_as(
    client: &Client,
    path: &str,
    form: &'static str,
) -> Result<Answer, kube::Error> {
    let request = http::Request::get(path)
        .header(http::header::ACCEPT, form)
        .body(kube::client::Body::empty())
        .map_err(kube::Error::HttpError)?;
    let (sent, start) = (Timestamp::now(), Instant::now());
    let response = client.send(request).await?;
    let (answered, code) = (Timestamp::now(), response.status());
    let date = response.headers().get(DATE).and_then(|date| {
        let date = rfc2822::parse(date.to_str().ok()?).ok()?;
        Some(Clock::of(date.timestamp(), sent, answered))
    });
    let body = response.into_body().collect().await?.to_bytes();
    let took = start.elapsed();
    if !code.is_success() {
        let text = String::from_utf8_lossy(&body);
        let status = serde_json::from_slice(&body).unwrap_or_else(|_| {
            let message = format!("{code}: {}", text.trim());
            Status::failure(&message, "Failed").with_code(code.as_u16())
        });
        return Err(kube::Error::Api(Box::new(status)));
    }
    Ok(Answer {
        // Health checks return plain text.
        body: serde_json::from_slice(&body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&body).into()),
        clock: date.unwrap_or_default(),
        took,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    #[test]
    fn rejections_are_described_in_one_sentence() {
        let status = Status::failure("leases \"x\" not found", "NotFound").with_code(404);
        let refused = anyhow::Error::from(kube::Error::Api(Box::new(status)));
        let error = refused.context("cannot patch leases default/x");
        assert_eq!(
            plain(&error),
            "cannot patch leases default/x: leases \"x\" not found"
        );
        let twice = anyhow::anyhow!("b").context("a: b");
        assert_eq!(plain(&twice), "a: b");
    }

    #[test]
    fn clock_difference_is_zero_if_the_bounds_include_zero() {
        let clock = Clock::of(at(10_000), at(10_300), at(10_400));
        assert_eq!(clock.ahead(), SignedDuration::ZERO);
    }

    #[test]
    fn clock_difference_is_the_smallest_that_explains_the_dates() {
        let ahead = Clock::of(at(20_000), at(10_300), at(10_400));
        assert_eq!(ahead.ahead(), SignedDuration::from_millis(9_600));
        let behind = Clock::of(at(5_000), at(10_300), at(10_400));
        assert_eq!(behind.ahead(), SignedDuration::from_millis(-4_300));
    }

    #[test]
    fn bounds_of_several_responses_are_narrower() {
        let first = Clock::of(at(20_000), at(10_300), at(10_400));
        let second = Clock::of(at(21_000), at(11_010), at(11_020));
        assert_eq!(
            first.and(second).ahead(),
            SignedDuration::from_millis(9_980)
        );
    }
}
