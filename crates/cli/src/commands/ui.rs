//! `tenure ui`: serves the page for the user who started it.

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use ring::rand::{SecureRandom, SystemRandom};
use tenure_host::browser::Hosts;
use tenure_host::listener::Listener;
use tenure_host::seats::Seats;
use tokio::net::TcpListener;

use crate::connect::Connect;
use crate::hosts;
use crate::page::{Body, Door, PREFIX, Page};
use crate::signals::Signals;

/// Show elections in a browser
#[derive(Args, Debug)]
pub(crate) struct Ui {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Accept this name in the Host header; can be repeated
    ///
    /// It applies to a loopback address. IP addresses and localhost are always accepted.
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<String>,
    /// Show only this namespace [default: all namespaces]
    #[arg(short, long, value_name = "NS", env = "TENURE_NAMESPACE")]
    namespace: Option<String>,
}

impl Ui {
    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        let mut signals = Signals::listen()?;
        let config = connect.config().await?;
        let listener = TcpListener::bind(&self.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", self.listen))?;
        let secret = secret()?;
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            eprintln!(
                "tenure: warning: other machines can reach {address}, and the connection is not encrypted"
            );
        }
        println!("http://{address}{PREFIX}#token={secret}");
        eprintln!("tenure: open that address in a browser; ^C ends it");
        let page = Page::new(Door::Secret {
            secret,
            config: Box::new(config),
            namespace: self.namespace,
        });
        let hosts = hosts::of(&listener, &self.listen, &self.allowed_host);
        let served = Listener::Tcp(listener).serve(Seats::new(), move |request, seat| {
            let (page, hosts) = (page.clone(), hosts.clone());
            let mut parts = request.into_parts().0;
            parts.extensions.insert(seat.address());
            parts.extensions.insert(seat);
            async move { answer(&page, hosts.as_deref(), &parts).await }
        });
        tokio::select! {
            () = served => {}
            _ = signals.end() => {}
        }
        Ok(0)
    }
}

/// Creates a secret with 144 random bits.
fn secret() -> Result<String> {
    let mut bytes = [0; 18];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| anyhow::anyhow!("cannot get random numbers from the system"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

async fn answer(page: &Page, hosts: Option<&Hosts>, parts: &Parts) -> Response<Body> {
    let checked = hosts.map(|hosts| hosts.check(&parts.method, &parts.uri, &parts.headers));
    if let Some(Err(refused)) = checked {
        let why = Full::from(format!("{refused}\n"));
        let mut response = Response::new(BodyExt::boxed(why));
        *response.status_mut() = StatusCode::FORBIDDEN;
        return response;
    }
    if Page::has(parts.uri.path()) {
        return page.answer(parts).await;
    }
    let mut response = Response::new(BodyExt::boxed(Full::default()));
    if parts.uri.path() == "/" {
        *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
        let place = HeaderValue::from_static(PREFIX);
        response.headers_mut().insert(header::LOCATION, place);
    } else {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}
