//! Errors of connections with the address of the server, which the errors of hyper do not contain.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use http::Uri;
use hyper_util::client::legacy;
use tenure_lock::{NO_CONNECTION, in_words};
use tower::BoxError;

/// A request without a complete response.
#[derive(Debug)]
struct Broken {
    address: Arc<str>,
    cause: legacy::Error,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, cause } = self;
        let what = if cause.is_connect() {
            NO_CONNECTION
        } else {
            "no complete response from"
        };
        write!(f, "{what} {address}: {}", in_words(cause))
    }
}

impl Error for Broken {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

/// Returns a function that adds the address of this server to errors of connections. Other errors stay as they are.
pub(super) fn with_address(server: &Uri) -> impl Fn(BoxError) -> BoxError + Clone + Send + 'static {
    let host = server.host().unwrap_or_default();
    let default = if server.scheme_str() == Some("http") {
        80
    } else {
        443
    };
    let address: Arc<str> = format!("{host}:{}", server.port_u16().unwrap_or(default)).into();
    move |error| match error.downcast::<legacy::Error>() {
        Ok(cause) => Broken {
            address: address.clone(),
            cause: *cause,
        }
        .into(),
        Err(other) => other,
    }
}

#[cfg(test)]
mod tests {
    use kube::{Client, Config};

    /// Returns the text of the error of a client whose server does not exist.
    async fn said(make: fn(Config) -> Result<Client, kube::Error>) -> (u16, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let url = format!("http://127.0.0.1:{port}").parse().unwrap();
        let mut config = Config::new(url);
        config.default_retry = false;
        let client = make(config).unwrap();
        let error = client.apiserver_version().await.unwrap_err();
        (port, crate::plain(&error))
    }

    #[tokio::test]
    async fn refused_connection_names_the_address_and_the_cause_once() {
        for make in [crate::client, crate::work_client] {
            let (port, said) = said(make).await;
            let expected = format!("cannot connect to 127.0.0.1:{port}: connection refused");
            assert_eq!(said, expected);
        }
    }
}
