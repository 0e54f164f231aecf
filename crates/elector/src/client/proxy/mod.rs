//! Selects the proxy for an API server by the rules of Go's `httpproxy`, which kubectl and client-go follow.
//!
//! The decision is made here and nowhere else, for lock requests and for all others.
//!
//! kube decides differently, in three ways that matter:
//!
//! - It matches `NO_PROXY` against the address of the proxy, not against that of the API server.
//! - It proxies requests to loopback addresses.
//! - It rejects a `NO_PROXY` with an empty entry, such as `localhost,`, and a proxy without a scheme.
//!
//! [`read_kubeconfig`] therefore does not let kube read the environment. Clients check a `proxy_url` that kube took
//! from the environment again.

mod dial;
mod exceptions;

pub(super) use dial::Dial;

use http::Uri;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use exceptions::Exceptions;

/// Stands for "no `proxy-url`" while kube reads a kubeconfig, so that kube does not read the environment. The name is
/// reserved (RFC 2606) and never resolves.
const NOT_GIVEN: &str = "http://not-given.invalid/";

/// A proxy setting that cannot be used. The value is not shown because it may contain a password.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {why}")]
pub struct ProxyError {
    setting: String,
    why: &'static str,
}

impl ProxyError {
    fn new(setting: impl Into<String>, why: &'static str) -> Self {
        let setting = setting.into();
        Self { setting, why }
    }
}

/// Reads a kubeconfig like [`Config::from_custom_kubeconfig`], but ignores the environment: the result has a
/// `proxy_url` only if the cluster's entry names one. See [`proxy_from_environment`].
///
/// # Errors
///
/// Same as for [`Config::from_custom_kubeconfig`].
pub async fn read_kubeconfig(
    mut kubeconfig: Kubeconfig,
    options: &KubeConfigOptions,
) -> Result<Config, KubeconfigError> {
    for cluster in &mut kubeconfig.clusters {
        if let Some(cluster) = &mut cluster.cluster
            && cluster.proxy_url.as_ref().is_none_or(String::is_empty)
        {
            cluster.proxy_url = Some(NOT_GIVEN.to_owned());
        }
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, options).await?;
    if config
        .proxy_url
        .as_ref()
        .is_some_and(|url| *url == *NOT_GIVEN)
    {
        config.proxy_url = None;
    }
    Ok(config)
}

/// Returns the proxy that the environment names for an API server, by Go's rules. The variable is `HTTPS_PROXY` for
/// https and `HTTP_PROXY` for http, or either in lower case. `NO_PROXY` excludes servers. Loopback addresses and
/// `localhost` are never proxied.
///
/// # Errors
///
/// Fails if the variable is set, applies to this server, and does not name a proxy.
pub fn proxy_from_environment(server: &Uri) -> Result<Option<Uri>, ProxyError> {
    Environment::read().proxy_for(server)
}

/// Corrects a `proxy_url` that kube took from the environment. Any other value is unchanged.
pub(super) fn correct(config: &mut Config) -> Result<(), kube::Error> {
    let environment = Environment::read();
    if environment.is_what_kube_took(config.proxy_url.as_ref()) {
        let decided = environment.proxy_for(&config.cluster_url);
        config.proxy_url = decided.map_err(|error| kube::Error::Service(error.into()))?;
    }
    Ok(())
}

/// The variables that Go reads.
#[derive(Clone, Debug, Default)]
struct Environment {
    https: Option<(&'static str, String)>,
    http: Option<(&'static str, String)>,
    exceptions: String,
    /// Whether this is a CGI program. It gets `HTTP_PROXY` from the `Proxy` header of a request that anybody can send.
    cgi: bool,
}

/// Returns the first of these variables that is not empty.
fn first_set(names: [&'static str; 2]) -> Option<(&'static str, String)> {
    let mut set = names.into_iter().filter_map(|name| {
        let value = std::env::var(name).ok()?;
        (!value.is_empty()).then_some((name, value))
    });
    set.next()
}

impl Environment {
    fn read() -> Self {
        let exceptions = first_set(["NO_PROXY", "no_proxy"]);
        Self {
            https: first_set(["HTTPS_PROXY", "https_proxy"]),
            http: first_set(["HTTP_PROXY", "http_proxy"]),
            exceptions: exceptions.map(|(_, value)| value).unwrap_or_default(),
            cgi: std::env::var_os("REQUEST_METHOD").is_some_and(|value| !value.is_empty()),
        }
    }

    fn proxy_for(&self, server: &Uri) -> Result<Option<Uri>, ProxyError> {
        let https = server.scheme_str() != Some("http");
        let (named, port) = if https {
            (&self.https, 443)
        } else {
            (&self.http, 80)
        };
        let Some((name, value)) = named else {
            return Ok(None);
        };
        let (host, port) = (
            server.host().unwrap_or_default(),
            server.port_u16().unwrap_or(port),
        );
        if Exceptions::parse(&self.exceptions).cover(host, port) {
            return Ok(None);
        }
        if !https && self.cgi {
            let why = "not used in a CGI program, where a request can set it";
            return Err(ProxyError::new(*name, why));
        }
        parse(value)
            .map(Some)
            .ok_or_else(|| ProxyError::new(*name, "not the URL of a proxy"))
    }

    /// Returns whether kube found this proxy in these two variables, the only ones that it reads.
    fn is_what_kube_took(&self, proxy: Option<&Uri>) -> bool {
        let found = self.https.as_ref().map(|(_, value)| value.parse::<Uri>());
        matches!((found, proxy), (Some(Ok(found)), Some(proxy)) if found == *proxy)
    }
}

/// Parses the URL of a proxy. As in Go, a URL without a scheme is an HTTP proxy.
fn parse(text: &str) -> Option<Uri> {
    let whole = |text: &str| {
        let url = text.parse::<Uri>().ok()?;
        let named = url.scheme().is_some() && url.host().is_some_and(|host| !host.is_empty());
        named.then_some(url)
    };
    let text = text.trim();
    match text.contains("://") {
        true => whole(text),
        false => whole(&format!("http://{text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(environment: &Environment, server: &str) -> Option<String> {
        let proxy = environment.proxy_for(&server.parse().unwrap()).unwrap();
        proxy.map(|url| url.to_string())
    }

    fn environment(https: &str, http: &str, exceptions: &str) -> Environment {
        let set = |name, value: &str| (!value.is_empty()).then(|| (name, value.to_owned()));
        Environment {
            https: set("HTTPS_PROXY", https),
            http: set("HTTP_PROXY", http),
            exceptions: exceptions.to_owned(),
            cgi: false,
        }
    }

    #[test]
    fn the_scheme_of_the_server_selects_the_variable() {
        let both = environment("http://secure:1", "plain:2", "");
        let secure = Some("http://secure:1/".to_owned());
        assert_eq!(chosen(&both, "https://k8s.example:6443"), secure);
        let plain = Some("http://plain:2/".to_owned());
        assert_eq!(chosen(&both, "http://k8s.example"), plain);
        let one = environment("http://secure:1", "", "");
        assert_eq!(chosen(&one, "http://k8s.example"), None);
    }

    #[test]
    fn loopback_is_never_proxied_even_by_an_unusable_proxy() {
        let broken = environment("http://[", "", "");
        for server in ["127.0.0.1", "127.9.9.9", "[::1]", "localhost", "LOCALHOST"] {
            assert_eq!(chosen(&broken, &format!("https://{server}:6443")), None);
        }
        let elsewhere = "https://k8s.example".parse().unwrap();
        let error = broken.proxy_for(&elsewhere).unwrap_err().to_string();
        assert_eq!(error, "HTTPS_PROXY: not the URL of a proxy");
    }

    #[test]
    fn cgi_programs_do_not_use_http_proxy() {
        let cgi = Environment {
            cgi: true,
            ..environment("http://p:1", "http://p:1", "")
        };
        assert!(cgi.proxy_for(&"http://a".parse().unwrap()).is_err());
        assert!(cgi.proxy_for(&"https://a".parse().unwrap()).is_ok());
    }

    #[test]
    fn no_proxy_is_matched_against_the_server() {
        let excluded = environment("http://p.corp:3128", "", "k8s.example");
        assert_eq!(chosen(&excluded, "https://k8s.example:6443"), None);
        let proxys_own = environment("http://p.corp:3128", "", "p.corp");
        assert!(chosen(&proxys_own, "https://k8s.example:6443").is_some());
    }

    #[tokio::test]
    async fn kubeconfig_proxy_is_used_and_environment_is_ignored() {
        let read = async |line: &str| {
            let text = format!(
                "{{clusters: [{{name: a, cluster: {{server: 'https://a' {line}}}}}], \
                 contexts: [{{name: a, context: {{cluster: a}}}}], current-context: a}}"
            );
            let kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
            let config = read_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            config.unwrap().proxy_url.map(|url| url.to_string())
        };
        assert_eq!(read("").await, None);
        assert_eq!(read(", proxy-url: ''").await, None);
        let own = read(", proxy-url: 'socks5://p:1'").await;
        assert_eq!(own.as_deref(), Some("socks5://p:1/"));
    }

    #[test]
    fn only_a_proxy_that_kube_took_from_the_environment_is_corrected() {
        let set = environment("http://p:1", "", "");
        let url = |text: &str| text.parse::<Uri>().unwrap();
        assert!(set.is_what_kube_took(Some(&url("http://p:1/"))));
        assert!(!set.is_what_kube_took(Some(&url("http://other:1"))));
        assert!(!set.is_what_kube_took(None));
        assert!(!environment("", "", "").is_what_kube_took(Some(&url("http://p:1"))));
    }
}
