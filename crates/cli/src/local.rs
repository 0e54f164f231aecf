//! The embedded server of this machine, started on first use and shared by all `tenure` processes of this user.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, test_kill_process};
use tenure_apiserver::server::{Instance, default_data_dir};
use tenure_host::files;
use tenure_lock::in_words;

use crate::commands::run::close_inherited;

/// Time limit of a cold start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Hidden subcommand; see [`start_server`].
pub(crate) const DETACHED: &str = "__detached";

const POLL: Duration = Duration::from_millis(5);

/// Returns the data directory of the shared server.
pub(crate) fn data_dir() -> Result<PathBuf> {
    let given = std::env::var_os("TENURE_DATA_DIR").map(PathBuf::from);
    given
        .or_else(default_data_dir)
        .context("no home directory: set HOME or XDG_STATE_HOME, or use a cluster")
}

/// Makes sure that the server runs, prints `why` it is used, and returns its kubeconfig.
pub(crate) async fn ensure(why: &str) -> Result<PathBuf> {
    let dir = data_dir()?;
    // The files in this folder determine which server and which credentials are used.
    let claimed = files::check_folder(&dir);
    claimed.with_context(|| format!("data directory {}", dir.display()))?;
    if let Some(instance) = running(&dir)? {
        note(why, "using", &instance);
        return Ok(instance.kubeconfig);
    }
    files::create_folder(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let log = dir.join("server.log");
    let server = start(&dir, &log)?;
    let mut waited = Duration::ZERO;
    loop {
        // Two processes may start servers at the same time. One server locks the directory, the other one ends, and
        // both processes use the first one.
        if let Some(instance) = running(&dir)? {
            note(why, "started", &instance);
            return Ok(instance.kubeconfig);
        }
        let ended = server.is_none_or(|pid| test_kill_process(pid).is_err());
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

/// Returns the server that runs in this directory and has published its address.
fn running(dir: &Path) -> Result<Option<Instance>> {
    Ok(Instance::read(dir)?.filter(Instance::is_alive))
}

/// Starts the server and returns its process.
fn start(dir: &Path, log: &Path) -> Result<Option<Pid>> {
    let mut options = File::options();
    let output = options.create(true).append(true).mode(0o600).open(log);
    let output = output.with_context(|| format!("cannot write {}", log.display()))?;
    let started = Command::new(std::env::current_exe()?)
        .arg(DETACHED)
        .args(["server", "run", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(dir)
        // The server outlives this process, so it does not get the secrets in its environment.
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| is_needed(name)))
        // The root directory as working directory, so that the server does not keep another file system busy.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(output))
        .output()
        .context("cannot start the local server")?;
    let pid = String::from_utf8_lossy(&started.stdout);
    Ok(pid.trim().parse().ok().and_then(Pid::from_raw))
}

/// Returns whether the local server gets this environment variable.
fn is_needed(name: &OsStr) -> bool {
    const NAMES: [&str; 8] = [
        "HOME",
        "LANG",
        "PATH",
        "RUST_BACKTRACE",
        "RUST_LOG",
        "TMPDIR",
        "TOKIO_WORKER_THREADS",
        "TZ",
    ];
    const PREFIXES: [&str; 2] = ["TENURE_", "XDG_"];
    let is_in = |name: &str| {
        NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    name.to_str().is_some_and(is_in)
}

/// `tenure __detached ARG...`: leaves the session of its parent, closes inherited files, starts `tenure ARG...` and
/// prints its process id. The server therefore outlives the terminal, keeps no pipe open, and is not a child of the
/// caller.
pub(crate) fn start_server(args: &[OsString]) -> u8 {
    // This fails only for the leader of a group, which this process is not.
    let _ = rustix::process::setsid();
    close_inherited(&[]);
    let log = || {
        std::io::stderr()
            .as_fd()
            .try_clone_to_owned()
            .map(Stdio::from)
    };
    let spawn = || -> std::io::Result<u32> {
        let server = Command::new(std::env::current_exe()?)
            .args(args)
            .stdin(Stdio::null())
            .stdout(log()?)
            .stderr(log()?)
            .spawn()?;
        Ok(server.id())
    };
    match spawn() {
        Ok(id) => {
            println!("{id}");
            0
        }
        Err(error) => {
            eprintln!(
                "tenure: cannot start the local server: {}",
                in_words(&error)
            );
            125
        }
    }
}

fn note(why: &str, verb: &str, instance: &Instance) {
    eprintln!(
        "tenure: {verb} the local server at {} ({why}; other machines cannot see it)",
        instance.url
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_server_gets_no_secrets_of_its_starter() {
        for name in [
            "PATH",
            "HOME",
            "XDG_STATE_HOME",
            "TENURE_DATA_DIR",
            "RUST_LOG",
        ] {
            assert!(is_needed(OsStr::new(name)), "{name}");
        }
        for name in [
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "KUBECONFIG",
            "LD_PRELOAD",
            "PATHS",
        ] {
            assert!(!is_needed(OsStr::new(name)), "{name}");
        }
    }
}
