//! The scripted driver as a program, for manual tests of a provisioner.
#![allow(clippy::print_stderr, reason = "a command prints errors")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tenure_csi::mock::{MockConfig, MockDriver};
use tenure_csi::{ControllerCapability, PluginCapability};

/// Run a CSI driver that keeps its volumes in memory and follows the class parameter `script`
#[derive(Parser, Debug)]
#[command(name = "mock-csi-driver", version)]
struct Args {
    /// Unix socket to listen on
    #[arg(long, value_name = "PATH")]
    endpoint: PathBuf,
    /// Name of the driver
    #[arg(long, default_value = "mock.csi.example")]
    name: String,
    /// Plugin capabilities, with their CSI names
    #[arg(long, value_delimiter = ',', default_value = "CONTROLLER_SERVICE", value_parser = plugin)]
    plugin: Vec<PluginCapability>,
    /// Controller capabilities, with their CSI names
    #[arg(long, value_delimiter = ',', default_value = "CREATE_DELETE_VOLUME", value_parser = controller)]
    controller: Vec<ControllerCapability>,
    /// File to which each call is appended as a line of JSON
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

fn plugin(name: &str) -> Result<PluginCapability, String> {
    PluginCapability::from_str_name(name)
        .ok_or_else(|| format!("{name:?} is not a plugin capability"))
}

fn controller(name: &str) -> Result<ControllerCapability, String> {
    ControllerCapability::from_str_name(name)
        .ok_or_else(|| format!("{name:?} is not a controller capability"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let config = MockConfig {
        name: args.name,
        plugin: args.plugin,
        controller: args.controller,
        journal: args.journal,
        ..MockConfig::default()
    };
    match MockDriver::start(config, &args.endpoint) {
        Ok(_driver) => std::future::pending().await,
        Err(error) => {
            eprintln!("mock-csi-driver: {}: {error}", args.endpoint.display());
            ExitCode::FAILURE
        }
    }
}
