//! An HTTP proxy for tests. It answers CONNECT, resolves every server name to loopback, and records the requests.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

/// A name that only the proxy resolves.
pub const NAME: &str = "tenure.test";

/// A running proxy. Dropping it ends it; its connections stay.
#[derive(Debug)]
pub struct ForwardProxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    over: Arc<AtomicBool>,
}

impl ForwardProxy {
    /// Starts it on a free port.
    ///
    /// # Errors
    ///
    /// Fails if there is no free port.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let proxy = Self {
            address: listener.local_addr()?,
            asked: Arc::default(),
            over: Arc::default(),
        };
        let (asked, over) = (proxy.asked.clone(), proxy.over.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let asked = asked.clone();
                if let Ok(stream) = stream {
                    std::thread::spawn(move || serve(stream, &asked));
                }
            }
        });
        Ok(proxy)
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requested servers since the last call, as `host:port`; other requests by their first line.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for ForwardProxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        _ = TcpStream::connect(self.address);
    }
}

fn serve(mut client: TcpStream, asked: &Mutex<Vec<String>>) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        client.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let line = head.lines().next().unwrap_or_default();
    let target = line
        .strip_prefix("CONNECT ")
        .and_then(|rest| rest.split(' ').next());
    let mut all = asked.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(target.unwrap_or(line).to_owned());
    drop(all);
    let port = target.and_then(|target| target.rsplit(':').next()?.parse::<u16>().ok());
    let Some(server) = port.and_then(|port| TcpStream::connect(("127.0.0.1", port)).ok()) else {
        return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").ok();
    };
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok()?;
    let (back, forth) = (server.try_clone().ok()?, client.try_clone().ok()?);
    std::thread::spawn(move || pass(back, client));
    pass(forth, server);
    Some(())
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    _ = io::copy(&mut from, &mut to);
    _ = to.shutdown(Shutdown::Both);
    _ = from.shutdown(Shutdown::Both);
}

/// Copies a kubeconfig whose server is on loopback. The copy names this host instead, and its cluster has these
/// additional fields.
///
/// # Errors
///
/// Fails if the kubeconfig has another form, or if the copy cannot be written.
pub fn under_name(kubeconfig: &Path, host: &str, more: &Value, to: &Path) -> io::Result<PathBuf> {
    let text = std::fs::read_to_string(kubeconfig)?;
    let mut config: Value = serde_saphyr::from_str(&text).map_err(io::Error::other)?;
    let cluster = &mut config["clusters"][0]["cluster"];
    let server = cluster["server"].as_str().unwrap_or_default();
    let server = server.replace("127.0.0.1", host);
    cluster["server"] = json!(server);
    cluster["tls-server-name"] = json!("localhost");
    for (key, value) in more.as_object().into_iter().flatten() {
        cluster[key.as_str()] = value.clone();
    }
    std::fs::write(to, config.to_string())?;
    Ok(to.to_owned())
}
