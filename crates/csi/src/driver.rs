//! Client of a CSI driver.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tonic::{Code, Request, Response, Status};

use crate::error::{CallError, ConnectError, StartError, go_name};
use crate::facts::Facts;
use crate::link::Link;
use crate::metrics::{Call, Metrics};
use crate::v1::controller_client::ControllerClient;
use crate::v1::identity_client::IdentityClient;
use crate::v1::node_client::NodeClient;
use crate::v1::{
    ControllerGetCapabilitiesRequest, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse,
    GetPluginCapabilitiesRequest, GetPluginInfoRequest, NodeGetInfoRequest, NodeGetInfoResponse,
    ProbeRequest,
};

/// Delay between connection attempts: grpc-go's backoff, limited to one second.
const RETRY: Duration = Duration::from_secs(1);
/// Interval of log lines while the driver is unreachable.
const STILL_CONNECTING: Duration = Duration::from_secs(10);
/// Authority of requests. HTTP requires one, and a unix socket has none.
const ORIGIN: &str = "http://localhost";

/// Address and timeouts of a driver.
#[derive(Clone, Debug)]
pub struct Config {
    /// A path or `unix://` address.
    pub address: String,
    /// Time limit for connecting.
    pub connect_timeout: Duration,
    /// Time limit of each call.
    pub timeout: Duration,
}

impl Config {
    /// Creates a configuration with the defaults of the CSI sidecars: 30 s to connect, 10 s per call.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            connect_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
        }
    }

    fn socket(&self) -> Result<PathBuf, ConnectError> {
        let path = match self.address.strip_prefix("unix:") {
            Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
            None if self.address.starts_with('/') => &self.address,
            None => "",
        };
        if path.is_empty() {
            return Err(ConnectError::NotUnix(self.address.clone()));
        }
        Ok(path.into())
    }
}

/// A connected driver. Clones share the connection.
#[derive(Clone)]
pub struct Driver {
    link: Link,
    timeout: Duration,
    metrics: Metrics,
    /// Whether calls are for an object of an in-tree plugin.
    migrated: bool,
}

impl Driver {
    /// Connects, with retries until the time limit, because the driver may start later in the same pod.
    ///
    /// # Errors
    /// Returns an error if the address is not a unix socket, or if no driver accepts a connection in time.
    pub async fn connect(config: &Config, metrics: &Metrics) -> Result<Self, ConnectError> {
        let socket = config.socket()?;
        let started = Instant::now();
        let mut next_line = started + RETRY;
        let mut pause = Duration::from_millis(20);
        loop {
            let last = match Link::open(&socket).await {
                Ok(link) => {
                    return Ok(Self {
                        link,
                        timeout: config.timeout,
                        metrics: metrics.clone(),
                        migrated: false,
                    });
                }
                Err(error) => error,
            };
            let now = Instant::now();
            if now >= started + config.connect_timeout {
                let limit = config.connect_timeout;
                return Err(ConnectError::TimedOut {
                    socket,
                    limit,
                    last,
                });
            }
            if now >= next_line {
                tracing::info!(socket = %socket.display(), error = last, "still connecting to the csi driver");
                next_line = now + STILL_CONNECTING;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY);
        }
    }

    /// Waits until the driver is ready.
    ///
    /// # Errors
    /// Returns the first failure, except a timeout.
    pub async fn ready(&self) -> Result<(), StartError> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let method = "/csi.v1.Identity/Probe";
            let answer = self
                .call(method, ProbeRequest {}, async |link, request| {
                    identity(link).probe(request).await
                })
                .await;
            match answer {
                Ok(answer) if answer.ready.unwrap_or(true) => return Ok(()),
                Ok(_) => tracing::info!("the csi driver is not ready yet"),
                Err(error) if error.code == Code::DeadlineExceeded => {
                    tracing::warn!(%error, "the csi driver does not respond to the probe");
                }
                Err(source) => return Err(StartError::Call { method, source }),
            }
        }
    }

    /// Reads name and capabilities. Metrics of later calls carry that name.
    ///
    /// # Errors
    /// Returns the first failed call, or an error if the driver has no name.
    pub async fn facts(&self) -> Result<Facts, StartError> {
        let failed = |method| move |source| StartError::Call { method, source };
        let method = "/csi.v1.Identity/GetPluginInfo";
        let info = self
            .call(method, GetPluginInfoRequest {}, async |link, request| {
                identity(link).get_plugin_info(request).await
            })
            .await
            .map_err(failed(method))?;
        if info.name.is_empty() {
            return Err(StartError::NoName);
        }
        self.metrics.driver_is(&info.name);
        let mut facts = Facts::new(info.name, [], []);
        facts.version = info.vendor_version;

        let method = "/csi.v1.Identity/GetPluginCapabilities";
        let request = GetPluginCapabilitiesRequest {};
        let answer = self
            .call(method, request, async |link, request| {
                identity(link).get_plugin_capabilities(request).await
            })
            .await
            .map_err(failed(method))?;
        facts.set_plugin(&answer);

        let method = "/csi.v1.Controller/ControllerGetCapabilities";
        let request = ControllerGetCapabilitiesRequest {};
        let answer = self
            .call(method, request, async |link, request| {
                controller(link).controller_get_capabilities(request).await
            })
            .await
            .map_err(failed(method))?;
        facts.set_controller(&answer);
        Ok(facts)
    }

    /// Creates a volume, or returns the existing one of this name.
    ///
    /// # Errors
    /// Returns the status of the driver; a timeout is `DeadlineExceeded`.
    pub async fn create_volume(
        &self,
        request: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, CallError> {
        let method = "/csi.v1.Controller/CreateVolume";
        self.call(method, request, async |link, request| {
            controller(link).create_volume(request).await
        })
        .await
    }

    /// Deletes a volume. Succeeds if the volume does not exist.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume).
    pub async fn delete_volume(
        &self,
        request: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, CallError> {
        let method = "/csi.v1.Controller/DeleteVolume";
        self.call(method, request, async |link, request| {
            controller(link).delete_volume(request).await
        })
        .await
    }

    /// Reads the free capacity.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume).
    pub async fn get_capacity(
        &self,
        request: GetCapacityRequest,
    ) -> Result<GetCapacityResponse, CallError> {
        let method = "/csi.v1.Controller/GetCapacity";
        self.call(method, request, async |link, request| {
            controller(link).get_capacity(request).await
        })
        .await
    }

    /// Reads node id and topology of the driver.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume).
    pub async fn node_info(&self) -> Result<NodeGetInfoResponse, CallError> {
        let method = "/csi.v1.Node/NodeGetInfo";
        self.call(method, NodeGetInfoRequest {}, async |link, request| {
            node(link).node_get_info(request).await
        })
        .await
    }

    /// Returns a client of the same driver. `migrated` states whether its calls are for objects of an in-tree plugin.
    /// Metrics have this label after [`Metrics::label_migrated`].
    #[must_use]
    pub fn migrated(&self, migrated: bool) -> Self {
        Self {
            migrated,
            ..self.clone()
        }
    }

    /// Completes when the connection is lost. A lost connection never recovers. Cancel safe.
    pub async fn lost(&self) {
        self.link.lost().await;
    }

    /// Makes one call with a timeout and metrics, and logs it without its secrets.
    async fn call<Q, A>(
        &self,
        method: &'static str,
        message: Q,
        send: impl AsyncFnOnce(Link, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, CallError>
    where
        Q: fmt::Debug,
        A: fmt::Debug,
    {
        tracing::trace!(method, request = ?message, "csi call");
        let mut request = Request::new(message);
        // The deadline is sent to the driver and enforced locally.
        request.set_timeout(self.timeout);
        let started = Instant::now();
        let answer = tokio::time::timeout(self.timeout, send(self.link.clone(), request)).await;
        let result = match answer {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(CallError::from_status(&status)),
            Err(_) => {
                let message = format!("no answer within {:?}", self.timeout);
                Err(CallError::new(Code::DeadlineExceeded, message))
            }
        };
        let code = result.as_ref().err().map_or(Code::Ok, |error| error.code);
        let took = started.elapsed();
        let call = Call {
            method,
            code: go_name(code),
            migrated: self.migrated,
        };
        self.metrics.observe(call, took);
        match &result {
            Ok(response) => tracing::trace!(method, ?response, ?took, "csi answer"),
            Err(error) => tracing::trace!(method, %error, ?took, "csi error"),
        }
        result
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

fn origin() -> hyper::Uri {
    hyper::Uri::from_static(ORIGIN)
}

fn identity(link: Link) -> IdentityClient<Link> {
    IdentityClient::with_origin(link, origin())
}

fn controller(link: Link) -> ControllerClient<Link> {
    ControllerClient::with_origin(link, origin())
}

fn node(link: Link) -> NodeClient<Link> {
    NodeClient::with_origin(link, origin())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unix_sockets_are_addresses() {
        for (address, path) in [
            ("/run/csi/socket", "/run/csi/socket"),
            ("unix:///run/csi/socket", "/run/csi/socket"),
            ("unix:/run/csi/socket", "/run/csi/socket"),
        ] {
            let socket = Config::new(address).socket().unwrap();
            assert_eq!(socket, PathBuf::from(path), "{address}");
        }
        for address in ["", "unix://", "localhost:10000", "tcp://a:1", "dns:///a"] {
            let error = Config::new(address).socket().unwrap_err();
            assert!(matches!(error, ConnectError::NotUnix(_)), "{address}");
        }
    }
}
