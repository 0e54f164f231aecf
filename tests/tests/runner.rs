//! All tests with real processes, in one binary.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod acceptance;
mod acceptance_run;
mod acceptance_tokens;
mod apiserver_clients;
mod apiserver_interop;
mod apiserver_nemesis;
mod book;
mod confirm_death;
mod connecting;
mod demo;
mod deploy;
mod election_overrun;
mod explain;
mod helm;
mod help;
mod host_browser;
mod host_files;
mod manager_process;
mod manager_restarts;
mod manager_shards;
mod members;
mod monitoring;
mod packages;
mod page;
mod preference;
mod provisioner_access;
mod provisioner_capacity;
mod provisioner_claims;
mod provisioner_connection;
mod provisioner_deletion;
mod provisioner_faults;
mod provisioner_http;
mod provisioner_leaders;
mod provisioner_migration;
mod provisioner_nodes;
mod provisioner_old;
mod provisioner_protection;
mod provisioner_recorded;
mod provisioner_requests;
mod provisioner_scale;
mod provisioner_sources;
mod provisioner_states;
mod provisioner_topology;
mod proxies;
mod real_access;
mod real_client_go;
mod real_clients;
mod real_commands;
mod real_components;
mod real_coordinated;
mod real_differential;
mod real_driver;
mod real_etcd;
mod real_harness;
mod real_interop;
mod real_migration;
mod real_nemesis;
mod real_provisioner;
mod real_scheduler;
mod real_server;
mod real_storage;
mod reference;
mod run_access;
mod run_command;
mod run_containment;
mod run_crash_release;
mod run_options;
mod run_terminal;
mod run_watchdog;
mod security_access;
mod security_campaign;
mod security_cost;
mod security_floods;
mod seeing;
mod sentences;
mod server_command;
mod server_crash;
mod server_encryption;
mod server_ephemeral;
mod server_manifests;
mod server_remote;
mod server_storage;
mod service_manager;
mod sidecar;
mod sidecar_access;
mod sidecar_http;
mod sidecar_life;
mod sidecar_old;
mod sidecar_options;
mod sidecar_outlets;
mod sidecar_seats;
mod top;
mod unanswered;

/// A file that is not listed contains tests that never run.
#[test]
fn every_file_is_listed() {
    let runner = include_str!("runner.rs");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        let listed = module == "runner" || runner.contains(&format!("\nmod {module};\n"));
        assert!(listed, "tests/{name} is not listed in runner.rs");
    }
}
