//! Generates the messages and clients from `proto/csi.proto`, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/csi.proto");
    let descriptors = protox::compile(["proto/csi.proto"], ["proto"])?;
    let mut config = prost_build::Config::new();
    // Ordered maps make logs, recordings and comparisons reproducible.
    config.btree_map(["."]);
    // These carry secrets; their Debug is written by hand.
    config.skip_debug([
        ".csi.v1.CreateVolumeRequest",
        ".csi.v1.DeleteVolumeRequest",
        ".csi.v1.ValidateVolumeCapabilitiesRequest",
        ".csi.v1.NodePublishVolumeRequest",
    ]);
    tonic_prost_build::configure()
        .build_server(std::env::var_os("CARGO_FEATURE_MOCK").is_some())
        .build_transport(false)
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}
