//! The names by which browsers of this machine may reach a listener.

use std::sync::Arc;

use tenure_host::browser::Hosts;
use tokio::net::TcpListener;

/// Returns the accepted names of a listener on loopback: that of its address, and the given ones. Returns `None` for other
/// listeners, which accept every name, because a Service or an ingress may have any name.
pub(crate) fn of(listener: &TcpListener, address: &str, names: &[String]) -> Option<Arc<Hosts>> {
    let bound = listener.local_addr().ok()?;
    let own = address.rsplit_once(':').map(|(host, _)| host.to_owned());
    let names = names.iter().cloned().chain(own);
    let hosts = || Arc::new(Hosts::new(names, "--allowed-host"));
    bound.ip().is_loopback().then(hosts)
}
