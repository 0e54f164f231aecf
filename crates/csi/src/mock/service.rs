//! The identity and controller services of a scripted driver.

use std::sync::{Arc, PoisonError};

use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use super::journal::{create_request, delete_request};
use super::script::{Method, Script};
use super::{LiveVolume, State};
use crate::error::go_name;
use crate::v1::controller_server::Controller;
use crate::v1::identity_server::Identity;
use crate::v1::validate_volume_capabilities_response::Confirmed;
use crate::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerServiceCapability, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, GetPluginCapabilitiesRequest,
    GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse, PluginCapability,
    ProbeRequest, ProbeResponse, Topology, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume, controller_service_capability, plugin_capability,
};

/// The identity, controller and node services, as served on one connection.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(super) state: Arc<State>,
    pid: Option<i32>,
}

impl Service {
    pub(crate) fn new(state: Arc<State>, pid: Option<i32>) -> Self {
        Self { state, pid }
    }

    /// Records the call, applies the script around `act`, and records the result.
    pub(super) async fn scripted<A>(
        &self,
        method: Method,
        request: Value,
        script: Script,
        act: impl FnOnce(&Script) -> Result<A, Status>,
    ) -> Result<Response<A>, Status> {
        let call = self.state.journal.begin(method, self.pid, request);
        script.delay().await;
        let result = match script.failure() {
            Some(status) => {
                if script.applied_despite_code {
                    _ = act(&script);
                }
                Err(status)
            }
            None => act(&script),
        };
        script.before_answer().await;
        let code = result.as_ref().err().map_or(tonic::Code::Ok, Status::code);
        self.state.journal.end(call, go_name(code));
        result.map(Response::new)
    }

    /// Returns the script in the class parameters. Its failures are counted per volume name.
    fn class_script(&self, request: &CreateVolumeRequest) -> Result<Option<Script>, Status> {
        let Some(text) = request.parameters.get("script") else {
            return Ok(None);
        };
        let mut script: Script = serde_json::from_str(text)
            .map_err(|error| Status::invalid_argument(format!("parameter script: {error}")))?;
        if let Some(times) = script.times {
            let mut used = self
                .state
                .used
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let used = used.entry(request.name.clone()).or_default();
            if *used >= times {
                script.code = None;
            }
            *used += 1;
        }
        Ok(Some(script))
    }

    /// Checks that a volume of this id exists.
    pub(super) fn find(&self, volume_id: &str) -> Result<(), Status> {
        match self.state.volumes.lock().contains_key(volume_id) {
            true => Ok(()),
            false => Err(Status::not_found(format!("no volume {volume_id}"))),
        }
    }

    fn create(
        &self,
        request: &CreateVolumeRequest,
        script: &Script,
    ) -> Result<CreateVolumeResponse, Status> {
        if request.name.is_empty() {
            return Err(Status::invalid_argument("no name"));
        }
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("no volume capabilities"));
        }
        let range = request.capacity_range.unwrap_or_default();
        let capacity = script.capacity.unwrap_or(range.required_bytes);
        let id = script.volume_id.clone();
        let id = id.unwrap_or_else(|| format!("vol-{}", request.name));
        let mut volumes = self.state.volumes.lock();
        if range.required_bytes > self.state.config.capacity {
            return Err(Status::resource_exhausted("no room"));
        }
        let live = volumes.entry(id.clone()).or_insert_with(|| LiveVolume {
            name: request.name.clone(),
            capacity,
        });
        let small = live.capacity < range.required_bytes;
        let large = range.limit_bytes > 0 && live.capacity > range.limit_bytes;
        if (small || large) && script.capacity.is_none() {
            return Err(Status::already_exists("exists with another size"));
        }
        if script.omit_volume {
            return Ok(CreateVolumeResponse { volume: None });
        }
        let topology = script.topology.clone().unwrap_or_default();
        let source = request.volume_content_source.clone();
        Ok(CreateVolumeResponse {
            volume: Some(Volume {
                capacity_bytes: capacity,
                volume_id: id,
                volume_context: script.context.clone(),
                content_source: source.filter(|_| !script.omit_content_source),
                accessible_topology: topology
                    .into_iter()
                    .map(|segments| Topology { segments })
                    .collect(),
            }),
        })
    }
}

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let method = Method::GetPluginInfo;
        let script = self.state.next_step(method);
        self.scripted(method, json!({}), script, |_| {
            Ok(GetPluginInfoResponse {
                name: self.state.config.name.clone(),
                vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
                ..Default::default()
            })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let method = Method::GetPluginCapabilities;
        let script = self.state.next_step(method);
        self.scripted(method, json!({}), script, |_| {
            let services = self
                .state
                .config
                .plugin
                .iter()
                .map(|capability| PluginCapability {
                    r#type: Some(plugin_capability::Type::Service(
                        plugin_capability::Service {
                            r#type: (*capability).into(),
                        },
                    )),
                });
            Ok(GetPluginCapabilitiesResponse {
                capabilities: services.collect(),
            })
        })
        .await
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let script = self.state.next_step(Method::Probe);
        self.scripted(Method::Probe, json!({}), script, |_| {
            Ok(ProbeResponse {
                ready: Some(*self.state.ready.borrow()),
            })
        })
        .await
    }
}

#[tonic::async_trait]
impl Controller for Service {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let method = Method::CreateVolume;
        let script = match self.class_script(&request)? {
            Some(script) => script,
            None => self.state.next_step(method),
        };
        self.scripted(method, create_request(&request), script, |script| {
            self.create(&request, script)
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let method = Method::DeleteVolume;
        let script = self.state.next_step(method);
        self.scripted(method, delete_request(&request), script, |_| {
            if request.volume_id.is_empty() {
                return Err(Status::invalid_argument("no volume id"));
            }
            self.state.volumes.lock().remove(&request.volume_id);
            Ok(DeleteVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let method = Method::ValidateVolumeCapabilities;
        let script = self.state.next_step(method);
        let asked = json!({ "volume_id": request.volume_id });
        self.scripted(method, asked, script, |_| {
            if request.volume_id.is_empty() || request.volume_capabilities.is_empty() {
                return Err(Status::invalid_argument("no volume id or no capabilities"));
            }
            self.find(&request.volume_id)?;
            Ok(ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                }),
                message: String::new(),
            })
        })
        .await
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let request = request.into_inner();
        let method = Method::GetCapacity;
        let script = self.state.next_step(method);
        let segments = request.accessible_topology.unwrap_or_default().segments;
        let asked = json!({ "parameters": request.parameters, "segments": segments });
        self.scripted(method, asked, script, |script| {
            Ok(GetCapacityResponse {
                available_capacity: script.capacity.unwrap_or(self.state.config.capacity),
                maximum_volume_size: script.largest,
                ..Default::default()
            })
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let method = Method::ControllerGetCapabilities;
        let script = self.state.next_step(method);
        self.scripted(method, json!({}), script, |_| {
            let rpcs = self.state.config.controller.iter();
            let rpcs = rpcs.map(|capability| ControllerServiceCapability {
                r#type: Some(controller_service_capability::Type::Rpc(
                    controller_service_capability::Rpc {
                        r#type: (*capability).into(),
                    },
                )),
            });
            Ok(ControllerGetCapabilitiesResponse {
                capabilities: rpcs.collect(),
            })
        })
        .await
    }
}
