//! The recorded cases of csi-provisioner 6.3: tenure gives the same results for the same claims.

use std::collections::BTreeMap;
use std::path::Path;

use tenure_csi::mock::MockConfig;
use tenure_csi::{ControllerCapability, PluginCapability};
use tenure_tests::storage::{Case, Rig, replay};

const RECORDED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../crates/provisioner/tests/recorded"
);

fn cases() -> Vec<(String, Case)> {
    let files = std::fs::read_dir(Path::new(RECORDED)).unwrap();
    let mut cases: Vec<_> = files
        .map(|file| file.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let case = serde_json::from_slice(&std::fs::read(&path).unwrap());
            (
                name,
                case.unwrap_or_else(|error| panic!("{}: {error}", path.display())),
            )
        })
        .collect();
    cases.sort_by(|a, b| a.0.cmp(&b.0));
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_case_gives_the_recorded_result() {
    let cases = cases();
    assert_eq!(cases.len(), 42);
    // Cases with the same driver and the same flags share a provisioner.
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, case) in cases {
        let key = (
            case.flags.clone(),
            case.driver_controller_capabilities.clone(),
            case.driver_plugin_capabilities.clone(),
        );
        groups.entry(key).or_default().push((name, case));
    }
    let mut differences = Vec::new();
    for (number, ((flags, controller, plugin), cases)) in groups.into_iter().enumerate() {
        // Each group has its own server, because provisioners of one driver name would share the claims.
        let rig = Rig::start().await.unwrap();
        let controller = controller
            .iter()
            .map(|name| ControllerCapability::from_str_name(name));
        let plugin = plugin
            .iter()
            .map(|name| PluginCapability::from_str_name(name));
        let config = MockConfig {
            controller: controller.map(Option::unwrap).collect(),
            plugin: plugin.map(Option::unwrap).collect(),
            ..MockConfig::default()
        };
        let socket = format!("s{number}");
        let driver = rig.driver(&socket, config).unwrap();
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let provisioner = rig.provisioner(&socket, &flags).unwrap();
        for (name, case) in &cases {
            let found = replay(case, &rig.api, &driver).await.unwrap();
            differences.extend(found.into_iter().map(|text| format!("{name}: {text}")));
        }
        assert_eq!(provisioner.stop().unwrap(), Some(0), "a clean exit");
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
