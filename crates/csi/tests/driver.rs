//! The client against the scripted driver, over a real socket.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_csi::mock::{Method, MockConfig, MockDriver, Script};
use tenure_csi::v1::{CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, VolumeCapability};
use tenure_csi::{
    Code, Config, ConnectError, ControllerCapability, Driver, Metrics, PluginCapability, StartError,
};

struct Pair {
    folder: tempfile::TempDir,
    mock: MockDriver,
    driver: Driver,
    metrics: Metrics,
}

async fn pair(config: MockConfig) -> Pair {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let mock = MockDriver::start(config, &socket).unwrap();
    let metrics = Metrics::default();
    let mut client = Config::new(socket.to_str().unwrap());
    client.timeout = Duration::from_millis(300);
    let driver = Driver::connect(&client, &metrics).await.unwrap();
    Pair {
        folder,
        mock,
        driver,
        metrics,
    }
}

fn request(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: 7,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![VolumeCapability::default()],
        ..Default::default()
    }
}

#[tokio::test]
async fn facts_are_those_of_the_driver() {
    let config = MockConfig {
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::CloneVolume,
        ],
        ..MockConfig::default()
    };
    let pair = pair(config).await;
    pair.driver.ready().await.unwrap();
    let facts = pair.driver.facts().await.unwrap();
    assert_eq!(facts.name, "mock.csi.example");
    assert!(facts.plugin(PluginCapability::ControllerService));
    assert!(facts.controller(ControllerCapability::CloneVolume));
    assert!(!facts.controller(ControllerCapability::GetCapacity));
    assert!(!facts.topology());
}

#[tokio::test]
async fn volume_is_created_once_per_name_and_deleted() {
    let pair = pair(MockConfig::default()).await;
    for _ in 0..2 {
        let answer = pair.driver.create_volume(request("a")).await.unwrap();
        let volume = answer.volume.unwrap();
        assert_eq!(
            (volume.volume_id.as_str(), volume.capacity_bytes),
            ("vol-a", 7)
        );
    }
    assert_eq!(pair.mock.volumes().len(), 1);
    let calls = pair.mock.calls_of(Method::CreateVolume);
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].request["capacity_range"]["required_bytes"], "7");
    assert_eq!(calls[0].pid, i32::try_from(std::process::id()).ok());
    let delete = DeleteVolumeRequest {
        volume_id: "vol-a".to_owned(),
        secrets: BTreeMap::new(),
    };
    pair.driver.delete_volume(delete).await.unwrap();
    assert!(pair.mock.volumes().is_empty());
}

#[tokio::test]
async fn scripts_are_followed() {
    let pair = pair(MockConfig::default()).await;
    pair.mock
        .script(Method::CreateVolume, Script::fail("RESOURCE_EXHAUSTED", 1));
    let error = pair.driver.create_volume(request("a")).await.unwrap_err();
    assert_eq!(error.to_string(), "ResourceExhausted: scripted");
    assert!(pair.mock.volumes().is_empty());

    // The driver creates the volume, but responds after the timeout.
    let late = Script {
        times: Some(1),
        answer_after_ms: 2_000,
        ..Script::default()
    };
    pair.mock.script(Method::CreateVolume, late);
    let error = pair.driver.create_volume(request("a")).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded);
    assert_eq!(pair.mock.volumes().len(), 1);
    pair.driver.create_volume(request("a")).await.unwrap();

    let mut registry = prometheus_client::registry::Registry::default();
    pair.metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for code in ["OK", "DeadlineExceeded", "ResourceExhausted"] {
        let line = format!(
            r#"csi_sidecar_operations_seconds_count{{driver_name="unknown-driver",method_name="/csi.v1.Controller/CreateVolume",grpc_status_code="{code}"}} 1"#
        );
        assert!(text.contains(&line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn lost_connection_is_reported_and_calls_return_unavailable() {
    let pair = pair(MockConfig::default()).await;
    pair.driver.ready().await.unwrap();
    let slow = Script {
        delay_ms: 100_000,
        ..Script::default()
    };
    pair.mock.script(Method::CreateVolume, slow);
    let driver = pair.driver.clone();
    let call = tokio::spawn(async move { driver.create_volume(request("a")).await });
    while pair.mock.calls_of(Method::CreateVolume).is_empty() {
        tokio::task::yield_now().await;
    }
    drop(pair.mock);
    pair.driver.lost().await;
    assert_eq!(call.await.unwrap().unwrap_err().code, Code::Unavailable);
    let error = pair.driver.create_volume(request("b")).await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
    drop(pair.folder);
}

#[tokio::test]
async fn client_waits_for_a_driver_that_starts_late() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("late");
    let metrics = Metrics::default();
    let mut config = Config::new(format!("unix://{}", socket.display()));
    config.connect_timeout = Duration::from_millis(60);
    let error = Driver::connect(&config, &metrics).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");

    config.connect_timeout = Duration::from_secs(30);
    let connect = tokio::spawn(async move { Driver::connect(&config, &metrics).await });
    tokio::task::yield_now().await;
    let mock = MockDriver::start(MockConfig::default(), &socket).unwrap();
    let driver = connect.await.unwrap().unwrap();

    // The client waits while the driver is not ready. An error ends the wait.
    mock.set_ready(false);
    let ready = tokio::spawn({
        let driver = driver.clone();
        async move { driver.ready().await }
    });
    while mock.calls_of(Method::Probe).is_empty() {
        tokio::task::yield_now().await;
    }
    mock.set_ready(true);
    ready.await.unwrap().unwrap();
    mock.script(Method::Probe, Script::fail("INTERNAL", 1));
    let error = driver.ready().await.unwrap_err();
    assert!(matches!(error, StartError::Call { .. }), "{error}");
}

#[tokio::test]
async fn a_driver_needs_a_name() {
    let config = MockConfig {
        name: String::new(),
        ..MockConfig::default()
    };
    let pair = pair(config).await;
    let error = pair.driver.facts().await.unwrap_err();
    assert!(matches!(error, StartError::NoName), "{error}");
}
