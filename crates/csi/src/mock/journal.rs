//! The call journal of a scripted driver.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::script::Method;
use crate::v1::volume_capability::AccessType;
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::volume_content_source::Type as Source;
use crate::v1::{CreateVolumeRequest, DeleteVolumeRequest, Topology, VolumeCapability};

/// One recorded call.
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    /// Time of the call since the start of the driver.
    pub at: Duration,
    /// The method.
    pub method: Method,
    /// Process id of the caller, from the socket.
    pub pid: Option<i32>,
    /// The request in protobuf's JSON form, with the field names of the CSI specification.
    pub request: Value,
    /// The status code of the response as Go spells it; empty while the call runs.
    pub answer: String,
}

#[derive(Debug)]
pub(crate) struct Journal {
    start: Instant,
    calls: Mutex<Vec<Call>>,
    file: Option<Mutex<File>>,
}

impl Journal {
    pub(crate) fn open(file: Option<&Path>) -> io::Result<Self> {
        let open = |path| File::options().create(true).append(true).open(path);
        Ok(Self {
            start: Instant::now(),
            calls: Mutex::default(),
            file: file.map(open).transpose()?.map(Mutex::new),
        })
    }

    pub(crate) fn begin(&self, method: Method, pid: Option<i32>, request: Value) -> usize {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(Call {
            at: self.start.elapsed(),
            method,
            pid,
            request,
            answer: String::new(),
        });
        calls.len() - 1
    }

    pub(crate) fn end(&self, call: usize, answer: &str) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(call) = calls.get_mut(call) else {
            return;
        };
        answer.clone_into(&mut call.answer);
        if let Some(file) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let line = serde_json::to_string(call).unwrap_or_default();
            // A failed write shows as a missing line when a test reads the journal.
            _ = writeln!(file, "{line}");
        }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.clone()
    }
}

/// Converts a CreateVolume request to protobuf's JSON form. Includes secrets, because it is for tests only.
#[must_use]
pub fn create_request(request: &CreateVolumeRequest) -> Value {
    let mut map = Map::new();
    put(&mut map, "name", json!(request.name));
    if let Some(range) = &request.capacity_range {
        let mut entry = Map::new();
        put_number(&mut entry, "required_bytes", range.required_bytes);
        put_number(&mut entry, "limit_bytes", range.limit_bytes);
        map.insert("capacity_range".to_owned(), entry.into());
    }
    let capabilities: Vec<_> = request.volume_capabilities.iter().map(capability).collect();
    put(&mut map, "volume_capabilities", json!(capabilities));
    put(&mut map, "parameters", json!(request.parameters));
    put(&mut map, "secrets", json!(request.secrets));
    if let Some(source) = request
        .volume_content_source
        .as_ref()
        .and_then(|s| s.r#type.as_ref())
    {
        let source = match source {
            Source::Snapshot(s) => json!({ "snapshot": { "snapshot_id": s.snapshot_id } }),
            Source::Volume(v) => json!({ "volume": { "volume_id": v.volume_id } }),
        };
        map.insert("volume_content_source".to_owned(), source);
    }
    if let Some(requirement) = &request.accessibility_requirements {
        let mut entry = Map::new();
        let terms = |topologies: &[Topology]| topologies.iter().map(topology).collect::<Vec<_>>();
        put(
            &mut entry,
            "requisite",
            json!(terms(&requirement.requisite)),
        );
        put(
            &mut entry,
            "preferred",
            json!(terms(&requirement.preferred)),
        );
        map.insert("accessibility_requirements".to_owned(), entry.into());
    }
    put(
        &mut map,
        "mutable_parameters",
        json!(request.mutable_parameters),
    );
    map.into()
}

/// Converts a DeleteVolume request to protobuf's JSON form.
#[must_use]
pub fn delete_request(request: &DeleteVolumeRequest) -> Value {
    let mut map = Map::new();
    put(&mut map, "volume_id", json!(request.volume_id));
    put(&mut map, "secrets", json!(request.secrets));
    map.into()
}

fn capability(capability: &VolumeCapability) -> Value {
    let mut map = Map::new();
    match &capability.access_type {
        Some(AccessType::Block(_)) => drop(map.insert("block".to_owned(), json!({}))),
        Some(AccessType::Mount(mount)) => {
            let mut entry = Map::new();
            put(&mut entry, "fs_type", json!(mount.fs_type));
            put(&mut entry, "mount_flags", json!(mount.mount_flags));
            put(
                &mut entry,
                "volume_mount_group",
                json!(mount.volume_mount_group),
            );
            map.insert("mount".to_owned(), entry.into());
        }
        None => {}
    }
    if let Some(access) = &capability.access_mode {
        let mode = Mode::try_from(access.mode).map_or("?", |mode| mode.as_str_name());
        map.insert("access_mode".to_owned(), json!({ "mode": mode }));
    }
    map.into()
}

fn topology(topology: &Topology) -> Value {
    let mut map = Map::new();
    put(&mut map, "segments", json!(topology.segments));
    map.into()
}

/// Inserts a value unless it is empty, because protobuf's JSON form omits empty values.
fn put(map: &mut Map<String, Value>, key: &str, value: Value) {
    let empty = match &value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    };
    if !empty {
        map.insert(key.to_owned(), value);
    }
}

/// Inserts a 64-bit number as a string, as protobuf's JSON form requires.
fn put_number(map: &mut Map<String, Value>, key: &str, number: i64) {
    if number != 0 {
        map.insert(key.to_owned(), json!(number.to_string()));
    }
}
