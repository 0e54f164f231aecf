//! A client that is fit for lock requests.

use std::time::Duration;

use kube::{Client, Config};

/// The user agent of [`client`]. API servers and their audit logs tell elections apart by it, as they
/// do with client-go's `leader-election` suffix.
pub const USER_AGENT: &str = concat!("tenure/", env!("CARGO_PKG_VERSION"), "/leader-election");

/// No part of an answer may be this late: longer than the pause between two bookmarks of a watch,
/// which is a minute. Requests of elections are given up much earlier, one by one.
const SILENCE: Duration = Duration::from_secs(100);

/// Connecting may take this long.
const CONNECT: Duration = Duration::from_secs(5);

/// Builds a client for elections: its own connections, so that an application's traffic cannot hold
/// up a renewal; no hidden retries, because a renewal that is repeated below the election outlives
/// its term; bounded silence.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = tenure::client(kube::Config::infer().await?)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// What [`kube::Client::try_from`] finds wrong with the configuration.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    Client::try_from(lock_config(config))
}

fn lock_config(mut config: Config) -> Config {
    config.default_retry = false;
    config.connect_timeout = Some(config.connect_timeout.map_or(CONNECT, |t| t.min(CONNECT)));
    config.read_timeout = Some(config.read_timeout.unwrap_or(SILENCE));
    config.reset_reader_on_write = true;
    let named = |(name, _): &(http::HeaderName, _)| *name == http::header::USER_AGENT;
    config.headers.retain(|header| !named(header));
    config.headers.push((
        http::header::USER_AGENT,
        http::HeaderValue::from_static(USER_AGENT),
    ));
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hidden_retries_and_a_telling_user_agent() {
        let config = lock_config(Config::new(http::Uri::from_static("http://localhost:1")));
        assert!(!config.default_retry);
        assert!(config.read_timeout.is_some());
        assert!(config.reset_reader_on_write);
        assert!(USER_AGENT.contains("leader-election"));
        assert_eq!(config.headers.len(), 1);
        assert_eq!(config.headers[0].1, USER_AGENT);
    }
}
