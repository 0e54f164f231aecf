//! The socket of a scripted driver.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::body::Body;
use tower::Service as _;

use super::State;
use super::service::Service;
use crate::v1::controller_server::ControllerServer;
use crate::v1::identity_server::IdentityServer;
use crate::v1::node_server::NodeServer;

/// Serves the socket until it is stopped. Then all connections break immediately, as if the process had died.
pub(crate) fn listen(
    socket: &Path,
    state: Arc<State>,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    if let Ok((stream, _)) = accepted {
                        tokio::spawn(serve(stream, state.clone(), stop.clone()));
                    }
                }
                () = told(stop.clone()) => return,
            }
        }
    });
    Ok(())
}

async fn serve(stream: UnixStream, state: Arc<State>, stop: watch::Receiver<bool>) {
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let service = Service::new(state, pid);
    let routes = service_fn(move |request| route(service.clone(), request));
    let connection =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), routes);
    tokio::select! {
        // An error of one connection does not affect the others.
        _ = connection => {}
        () = told(stop) => {}
    }
}

async fn told(mut stop: watch::Receiver<bool>) {
    // A dropped sender is a request to stop too.
    _ = stop.wait_for(|stop| *stop).await;
}

async fn route(
    service: Service,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Body>, Infallible> {
    let path = request.uri().path();
    if path.starts_with("/csi.v1.Identity/") {
        IdentityServer::new(service).call(request).await
    } else if path.starts_with("/csi.v1.Node/") {
        NodeServer::new(service).call(request).await
    } else {
        // The generated server answers unknown methods with Unimplemented.
        ControllerServer::new(service).call(request).await
    }
}
