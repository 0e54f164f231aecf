//! The conformance suite for CSI drivers passes with the scripted driver. Therefore results of a provisioner with it
//! apply to other drivers.

use std::process::Command;
use std::time::Duration;

use tenure_csi::mock::{Method, MockConfig, MockDriver};
use tenure_csi::{ControllerCapability, PluginCapability};
use tenure_tests::Skip;
use tenure_tests::process::Process;
use tenure_tests::real::{Peer, available, build};

const LIMIT: Duration = Duration::from_secs(300);

/// Returns a configuration with capabilities that need no further calls and those whose calls the driver implements.
/// The driver accepts any source of a clone, which the suite would reject, and it attaches nothing.
fn config() -> MockConfig {
    MockConfig {
        plugin: vec![
            PluginCapability::ControllerService,
            PluginCapability::VolumeAccessibilityConstraints,
        ],
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::GetCapacity,
            ControllerCapability::SingleNodeMultiWriter,
        ],
        ..MockConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csi_sanity_passes_with_the_scripted_driver() {
    if Skip::unless(available(&[Peer::CsiSanity])).is_none() {
        return;
    }
    let program = tokio::task::block_in_place(|| build(Peer::CsiSanity)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let driver = MockDriver::start(config(), &socket).unwrap();
    let mut command = Command::new(program);
    let path = |name: &str| folder.path().join(name).display().to_string();
    command
        .arg(format!("--csi.endpoint=unix://{}", path("s")))
        .arg(format!("--csi.mountdir={}", path("mount")))
        .arg(format!("--csi.stagingdir={}", path("stage")))
        .args(["--ginkgo.v", "--ginkgo.no-color"]);
    let mut sanity = Process::spawn("csi-sanity", command).unwrap();
    let status = tokio::task::block_in_place(|| sanity.wait(LIMIT)).unwrap();
    let said = sanity.text().join("\n");
    assert!(status.success(), "{said}");
    assert!(said.contains(" 0 Failed"), "{said}");
    // The suite called every supported method, and no volume is left.
    for method in [
        Method::GetPluginInfo,
        Method::GetPluginCapabilities,
        Method::Probe,
        Method::CreateVolume,
        Method::DeleteVolume,
        Method::ValidateVolumeCapabilities,
        Method::GetCapacity,
        Method::ControllerGetCapabilities,
        Method::NodePublishVolume,
        Method::NodeUnpublishVolume,
        Method::NodeGetCapabilities,
        Method::NodeGetInfo,
    ] {
        assert!(!driver.calls_of(method).is_empty(), "{method:?}\n{said}");
    }
    assert!(driver.volumes().is_empty(), "{:?}", driver.volumes());
}
