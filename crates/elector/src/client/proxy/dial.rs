//! TCP connections to a server, directly or through a proxy.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tenure_lock::{BoxFuture, in_words};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tower::{BoxError, Service};

use super::ProxyError;

/// Maximum length of a response to CONNECT.
const LONGEST_ANSWER: usize = 8192;

/// Connects to servers. The caller limits the time.
#[derive(Clone)]
pub(in crate::client) struct Dial {
    tcp: HttpConnector,
    proxy: Option<Arc<Proxy>>,
}

impl Dial {
    /// Creates a connector that uses the proxy, if there is one.
    pub(in crate::client) fn new(
        tcp: HttpConnector,
        proxy: Option<&Uri>,
    ) -> Result<Self, ProxyError> {
        let proxy = proxy.map(Proxy::new).transpose()?.map(Arc::new);
        Ok(Self { tcp, proxy })
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Some(proxy) = self.proxy.clone() else {
            let connecting = self.tcp.call(to);
            return Box::pin(async move { Ok(connecting.await?) });
        };
        let connecting = self.tcp.call(proxy.address.clone());
        Box::pin(async move {
            let failed = |why: BoxError| format!("proxy {}: {}", proxy.shown, in_words(&*why));
            let stream = connecting.await.map_err(|error| failed(error.into()))?;
            let mut stream = stream.into_inner();
            let tunnel = proxy.tunnel(&mut stream, &to).await;
            tunnel.map_err(|error| failed(error.into()))?;
            Ok(TokioIo::new(stream))
        })
    }
}

struct Proxy {
    /// The proxy's URL without credentials, for errors.
    shown: String,
    address: Uri,
    protocol: Protocol,
}

enum Protocol {
    /// HTTP CONNECT, with this value of `Proxy-Authorization`.
    Http { login: Option<String> },
    /// SOCKS version 5. The proxy resolves names.
    Socks { login: Option<(Vec<u8>, Vec<u8>)> },
}

impl Proxy {
    fn new(url: &Uri) -> Result<Self, ProxyError> {
        let shown = |host: &str, port| {
            let scheme = url.scheme_str().unwrap_or_default();
            format!("{scheme}://{host}:{port}")
        };
        let host = url.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| ProxyError::new("proxy", "the URL has no host"))?;
        let credentials = url
            .authority()
            .and_then(|authority| authority.as_str().rsplit_once('@'))
            .map(|(credentials, _)| credentials);
        let (protocol, port) = match url.scheme_str() {
            Some("http") => {
                let login = credentials.map(|text| {
                    // As in Go, a user without a password has an empty one.
                    let colon: &[u8] = if text.contains(':') { b"" } else { b":" };
                    STANDARD.encode([&unescaped(text), colon].concat())
                });
                (Protocol::Http { login }, 80)
            }
            Some("socks5" | "socks5h") => {
                let login = credentials.map(|text| {
                    let (user, password) = text.split_once(':').unwrap_or((text, ""));
                    (unescaped(user), unescaped(password))
                });
                (Protocol::Socks { login }, 1080)
            }
            _ => {
                let why = "only http:// and socks5:// proxies are supported";
                return Err(ProxyError::new(
                    shown(host, url.port_u16().unwrap_or(0)),
                    why,
                ));
            }
        };
        let port = url.port_u16().unwrap_or(port);
        let address = format!("http://{host}:{port}/").parse();
        Ok(Self {
            shown: shown(host, port),
            address: address.map_err(|_| ProxyError::new("proxy", "the URL has no host"))?,
            protocol,
        })
    }

    async fn tunnel(&self, stream: &mut TcpStream, to: &Uri) -> io::Result<()> {
        let host = to.host().unwrap_or_default();
        let default = if to.scheme_str() == Some("http") {
            80
        } else {
            443
        };
        let port = to.port_u16().unwrap_or(default);
        match &self.protocol {
            Protocol::Http { login } => connect(stream, host, port, login.as_deref()).await,
            Protocol::Socks { login } => socks(stream, host, port, login.as_ref()).await,
        }
    }
}

async fn connect(
    stream: &mut TcpStream,
    host: &str,
    port: u16,
    login: Option<&str>,
) -> io::Result<()> {
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some(login) = login {
        request += &format!("Proxy-Authorization: Basic {login}\r\n");
    }
    request += "\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // Read byte by byte, because the data after the response belongs to the caller.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() > LONGEST_ANSWER {
            return Err(io::Error::other("the answer to CONNECT is too long"));
        }
        answer.push(stream.read_u8().await?);
    }
    let line = answer
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let status = line.split_once(' ').map_or("", |(_, status)| status);
    match line.starts_with("HTTP/1.") && status.starts_with('2') {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "refused to connect to {host}:{port}: {}",
            status.chars().take(200).collect::<String>()
        ))),
    }
}

/// Connects by RFC 1928, with user name and password of RFC 1929.
async fn socks(
    stream: &mut TcpStream,
    host: &str,
    port: u16,
    login: Option<&(Vec<u8>, Vec<u8>)>,
) -> io::Result<()> {
    let too_long = || io::Error::other("a name or password is longer than 255 bytes");
    let sized = |bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).map_err(|_| too_long())?;
        io::Result::Ok([&[length], bytes].concat())
    };
    let method = if login.is_some() { 2 } else { 0 };
    stream.write_all(&[5, 1, method]).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    if chosen != [5, method] {
        let why = "does not accept this kind of login, or is not a SOCKS5 proxy";
        return Err(io::Error::other(why));
    }
    if let Some((user, password)) = login {
        let request = [&[1][..], &sized(user)?, &sized(password)?].concat();
        stream.write_all(&request).await?;
        stream.read_exact(&mut chosen).await?;
        if chosen[1] != 0 {
            return Err(io::Error::other("rejected the user name or password"));
        }
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = match bare.parse() {
        Ok(IpAddr::V4(address)) => [&[1][..], &address.octets()].concat(),
        Ok(IpAddr::V6(address)) => [&[4][..], &address.octets()].concat(),
        Err(_) => [&[3][..], &sized(bare.as_bytes())?].concat(),
    };
    let request = [&[5, 1, 0][..], &address, &port.to_be_bytes()].concat();
    stream.write_all(&request).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    if answer[1] != 0 {
        let why = match answer[1] {
            2 => "not allowed by its rules",
            3 | 4 => "the server is unreachable",
            5 => "the server refused the connection",
            _ => "failed",
        };
        let refused = format!("refused to connect to {host}:{port}: {why}");
        return Err(io::Error::other(refused));
    }
    // The address that the proxy uses is not needed.
    let length = match answer[3] {
        1 => 4,
        4 => 16,
        _ => usize::from(stream.read_u8().await?),
    };
    let mut rest = vec![0; length + 2];
    stream.read_exact(&mut rest).await.map(drop)
}

/// Decodes escapes like `%40`. Other text is unchanged.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let escaped = digits
            .filter(|_| *first == b'%')
            .and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() {
            &after[2..]
        } else {
            after
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn credentials_are_unescaped() {
        assert_eq!(unescaped("a%40b:c%3a%"), b"a@b:c:%");
        assert_eq!(unescaped("%+A%4"), b"%+A%4");
    }

    /// Connects to a server through a proxy that reads and writes these messages in turn.
    async fn through(
        scheme: &str,
        to: &str,
        script: &'static [(&'static [u8], &'static [u8])],
    ) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("{scheme}{}", listener.local_addr().unwrap());
        let serve = async {
            let mut stream = listener.accept().await.unwrap().0;
            for (expected, answer) in script {
                let mut read = vec![0; expected.len()];
                stream.read_exact(&mut read).await.unwrap();
                assert_eq!(read, *expected, "{:?}", String::from_utf8_lossy(&read));
                stream.write_all(answer).await.unwrap();
            }
            stream.write_all(b"hello").await.unwrap();
        };
        let mut dial = Dial::new(HttpConnector::new(), Some(&proxy.parse().unwrap())).unwrap();
        let dial = async {
            let stream = dial.call(to.parse().unwrap()).await;
            let stream = stream.map_err(|error| error.to_string().replace(&proxy, "PROXY"));
            let mut text = String::new();
            stream?
                .into_inner()
                .read_to_string(&mut text)
                .await
                .unwrap();
            Ok(text)
        };
        tokio::join!(dial, serve).0
    }

    #[tokio::test]
    async fn connect_request_names_the_server_and_has_credentials() {
        let script: &[(&[u8], &[u8])] = &[(
            b"CONNECT k8s.example:6443 HTTP/1.1\r\nHost: k8s.example:6443\r\n\
              Proxy-Authorization: Basic dTpwQA==\r\n\r\n",
            b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n",
        )];
        let text = through("http://u:p%40@", "https://k8s.example:6443", script);
        assert_eq!(text.await.unwrap(), "hello");
    }

    #[tokio::test]
    async fn refusals_name_the_proxy_and_the_server() {
        let script: &[(&[u8], &[u8])] = &[(
            b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
        )];
        let error = through("http://", "https://a", script).await.unwrap_err();
        let said = "refused to connect to a:443: 407 Proxy Authentication Required";
        assert_eq!(error, format!("proxy PROXY: {said}"));
        let script: &[(&[u8], &[u8])] = &[(
            b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            b"SSH-2.0-x\r\n\r\n",
        )];
        let error = through("http://", "https://a", script).await.unwrap_err();
        assert!(error.contains("refused to connect to a:443"), "{error}");
    }

    #[tokio::test]
    async fn socks_proxies_get_names_and_addresses() {
        let script: &[(&[u8], &[u8])] = &[
            (&[5, 1, 0], &[5, 0]),
            (
                b"\x05\x01\x00\x03\x01a\x01\xbb",
                &[5, 0, 0, 1, 1, 2, 3, 4, 0, 80],
            ),
        ];
        assert_eq!(
            through("socks5://", "https://a", script).await.unwrap(),
            "hello"
        );
        let script: &[(&[u8], &[u8])] = &[
            (&[5, 1, 2], &[5, 2]),
            (b"\x01\x01u\x01p", &[1, 0]),
            (
                &[5, 1, 0, 1, 10, 0, 0, 1, 0, 80],
                b"\x05\x00\x00\x03\x02xy\x00\x50",
            ),
        ];
        let text = through("socks5://u:p@", "http://10.0.0.1", script).await;
        assert_eq!(text.unwrap(), "hello");
        let script: &[(&[u8], &[u8])] = &[
            (&[5, 1, 0], &[5, 0]),
            (b"\x05\x01\x00\x03\x01a\x01\xbb", &[5, 2, 0, 1]),
        ];
        let error = through("socks5://", "https://a", script).await.unwrap_err();
        assert!(error.contains("not allowed by its rules"), "{error}");
    }

    #[test]
    fn other_kinds_of_proxies_are_refused_without_their_password() {
        let url = "https://u:secret@p:1".parse().unwrap();
        let error = Dial::new(HttpConnector::new(), Some(&url)).err().unwrap();
        let said = "https://p:1: only http:// and socks5:// proxies are supported";
        assert_eq!(error.to_string(), said);
    }
}
