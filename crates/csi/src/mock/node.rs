//! The node service of a scripted driver. It mounts nothing: a published volume is an empty directory at its target.

use std::{fs, io};

use serde_json::json;
use tonic::{Request, Response, Status};

use super::script::Method;
use super::service::Service;
use crate::v1::node_server::Node;
use crate::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest,
    NodeGetInfoResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, Topology,
};

#[tonic::async_trait]
impl Node for Service {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let method = Method::NodePublishVolume;
        let script = self.state.next_step(method);
        let (id, path) = (&request.volume_id, &request.target_path);
        self.scripted(method, asked(id, path), script, |_| {
            check(id, path)?;
            if request.volume_capability.is_none() {
                return Err(Status::invalid_argument("no volume capability"));
            }
            self.find(id)?;
            match fs::create_dir(path) {
                // Publishing is idempotent.
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    Err(Status::internal(format!("{path}: {error}")))
                }
                _ => Ok(NodePublishVolumeResponse {}),
            }
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let method = Method::NodeUnpublishVolume;
        let script = self.state.next_step(method);
        let (id, path) = (&request.volume_id, &request.target_path);
        self.scripted(method, asked(id, path), script, |_| {
            check(id, path)?;
            match fs::remove_dir(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(Status::internal(format!("{path}: {error}")))
                }
                _ => Ok(NodeUnpublishVolumeResponse {}),
            }
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let method = Method::NodeGetCapabilities;
        let script = self.state.next_step(method);
        self.scripted(method, json!({}), script, |_| {
            Ok(NodeGetCapabilitiesResponse::default())
        })
        .await
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let method = Method::NodeGetInfo;
        let script = self.state.next_step(method);
        self.scripted(method, json!({}), script, |_| {
            let (node_id, segments) = self.state.config.node.clone();
            Ok(NodeGetInfoResponse {
                node_id,
                max_volumes_per_node: 0,
                accessible_topology: Some(Topology { segments }),
            })
        })
        .await
    }
}

fn asked(volume_id: &str, target_path: &str) -> serde_json::Value {
    json!({ "volume_id": volume_id, "target_path": target_path })
}

fn check(volume_id: &str, target_path: &str) -> Result<(), Status> {
    match volume_id.is_empty() || target_path.is_empty() {
        true => Err(Status::invalid_argument("no volume id or no target path")),
        false => Ok(()),
    }
}
