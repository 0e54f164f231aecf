//! An API server with your own controllers in one process, similar to k3s and rke2.
//!
//! The API server, its built-in controllers and two more run in one process. FOLDER contains all its state. Usage:
//! `own_server FOLDER`
#![allow(clippy::print_stdout, reason = "the example prints what happens")]

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::runtime::watcher;
use tenure_apiserver::server::{Engine, Server as ApiServer};
use tenure_manager::{Cause, Next, Request, Runnable, Warm};
use tenure_server::Server;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let folder = std::env::args().nth(1).context("own_server FOLDER")?;
    let api = ApiServer::builder()
        .data_dir(folder)
        .engine(Engine::Redb)
        .listen("127.0.0.1:0".parse()?);
    let server = Server::embedded(api).with_controllers(|manager, client| {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let greet = Warm::new("greeter", namespaces, watcher::Config::default(), greet);
        manager
            .on_startup("manifests", |mut startup| async move {
                // The API server may take a while to start; this task does not delay the other hooks.
                tokio::spawn(async move {
                    startup.api_ready().await;
                    println!("manifests applied");
                    startup.done.ok();
                });
            })
            .every(Runnable::new("tunnel", |scope| async move {
                println!("the tunnel is open");
                scope.cancelled().await;
                println!("the tunnel is closed");
            }))
            .warm("own-server", greet)
    });
    let started = server.start().await?;
    if let Some(path) = started.api().and_then(|api| api.kubeconfig_path()) {
        println!("export KUBECONFIG={}", path.display());
    }
    started.run_until_signal().await?;
    Ok(())
}

async fn greet(request: Request<Namespace>) -> Result<Next, Cause> {
    if request.object.is_some() {
        println!("hello, namespace {}", request.key.name);
    }
    Ok(Next::Change)
}
