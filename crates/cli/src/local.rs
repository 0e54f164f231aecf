//! The embedded server of this machine, started on first use and shared by all of this user's
//! `tenure` processes.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure_apiserver::server::{Instance, default_data_dir};

/// How long a cold start may take on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(5);

/// Where the shared server keeps its state.
pub(crate) fn data_dir() -> Result<PathBuf> {
    let given = std::env::var_os("TENURE_DATA_DIR").map(PathBuf::from);
    given
        .or_else(default_data_dir)
        .context("no home directory: set HOME or XDG_STATE_HOME, or use a cluster")
}

/// Makes sure that the server runs, and returns its kubeconfig.
pub(crate) async fn ensure() -> Result<PathBuf> {
    let dir = data_dir()?;
    if let Some(instance) = running(&dir)? {
        note("using", &instance);
        return Ok(instance.kubeconfig);
    }
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let log = dir.join("server.log");
    let mut child = start(&dir, &log)?;
    let mut waited = Duration::ZERO;
    loop {
        // Two processes may start at once: one server wins the directory, the other ends, and both
        // processes use the winner.
        if let Some(instance) = running(&dir)? {
            note("started", &instance);
            return Ok(instance.kubeconfig);
        }
        let ended = child.try_wait()?.is_some_and(|status| !status.success());
        if ended && running(&dir)?.is_none() && waited > Duration::from_secs(2) {
            bail!(
                "the local server did not start; its log is {}",
                log.display()
            );
        }
        if waited > START_TIMEOUT {
            bail!(
                "the local server is not ready after {START_TIMEOUT:?}; see {}",
                log.display()
            );
        }
        tokio::time::sleep(POLL).await;
        waited += POLL;
    }
}

/// The server that runs on this directory and has announced itself.
fn running(dir: &Path) -> Result<Option<Instance>> {
    Ok(Instance::read(dir)?.filter(Instance::is_alive))
}

fn start(dir: &Path, log: &Path) -> Result<std::process::Child> {
    let output = File::options().create(true).append(true).open(log);
    let output = output.with_context(|| format!("cannot write {}", log.display()))?;
    Command::new(std::env::current_exe()?)
        .args(["server", "run", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(dir)
        // It must outlive this process and its terminal, and hold no folder busy.
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::from(output.try_clone()?))
        .stderr(Stdio::from(output))
        .spawn()
        .context("cannot start the local server")
}

fn note(verb: &str, instance: &Instance) {
    eprintln!(
        "tenure: no cluster found; {verb} the local server at {} (other machines cannot see it)",
        instance.url
    );
}
