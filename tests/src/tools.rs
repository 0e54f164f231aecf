//! Clients in other languages, which `cargo xtask test` installs below `target/tools`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Skip;

const HINT: &str = "`cargo xtask test process` installs it";

/// A Python interpreter with the Kubernetes client.
///
/// # Errors
/// It is not installed.
pub fn python() -> Result<PathBuf, Skip> {
    let python = folder().join("python/bin/python");
    let found = succeeds(Command::new(&python).args(["-c", "import kubernetes"]));
    if found {
        Ok(python)
    } else {
        Err(Skip(format!("no Python client for Kubernetes: {HINT}")))
    }
}

/// The file of the JavaScript client to import; Node.js is on the PATH then.
///
/// # Errors
/// One of them is not installed.
pub fn node_client() -> Result<PathBuf, Skip> {
    if !succeeds(Command::new("node").arg("--version")) {
        return Err(Skip("Node.js is not installed".to_owned()));
    }
    let library = folder().join("node/node_modules/@kubernetes/client-node/dist/index.js");
    if library.exists() {
        Ok(library)
    } else {
        Err(Skip(format!("no JavaScript client for Kubernetes: {HINT}")))
    }
}

/// The file of the browser driver to import; Node.js and Chromium are there then.
///
/// # Errors
/// One of them is not installed.
pub fn playwright() -> Result<PathBuf, Skip> {
    if !succeeds(Command::new("node").arg("--version")) {
        return Err(Skip("Node.js is not installed".to_owned()));
    }
    if !Path::new("/usr/bin/chromium").exists() {
        return Err(Skip(format!("no Chromium: {HINT}")));
    }
    let library = folder().join("node/node_modules/playwright-core/index.js");
    if library.exists() {
        Ok(library)
    } else {
        Err(Skip(format!("no Playwright: {HINT}")))
    }
}

/// A terminal that tests can look at.
///
/// # Errors
/// It is not installed.
pub fn tmux() -> Result<(), Skip> {
    if succeeds(Command::new("tmux").arg("-V")) {
        Ok(())
    } else {
        Err(Skip(format!("no tmux: {HINT}")))
    }
}

/// A program that writes its title over its environment.
///
/// # Errors
/// It is not installed.
pub fn perl() -> Result<(), Skip> {
    if succeeds(Command::new("perl").arg("-v")) {
        Ok(())
    } else {
        Err(Skip(format!("no perl: {HINT}")))
    }
}

/// The kubectl of the distribution, years older than the one in `peers/`. Which one it is, is said.
///
/// # Errors
/// It is not unpacked.
///
/// # Panics
/// If it is another than Debian bookworm is known to have, 1.20, where that is the distribution.
pub fn distribution_kubectl() -> Result<PathBuf, Skip> {
    let kubectl = folder().join("kubernetes-client/usr/bin/kubectl");
    let version = Command::new(&kubectl)
        .args(["version", "--client", "--output=json"])
        .output();
    let version = version.ok().filter(|output| output.status.success());
    let version: Option<serde_json::Value> =
        version.and_then(|output| serde_json::from_slice(&output.stdout).ok());
    let distribution = distribution();
    let Some(version) = version else {
        let missing = format!("no kubectl of the distribution ({distribution}): {HINT}");
        return Err(Skip(missing));
    };
    let version = version["clientVersion"]["gitVersion"]
        .as_str()
        .unwrap_or_default();
    _ = writeln!(std::io::stderr(), "kubectl of {distribution}: {version}");
    if distribution == "debian 12" {
        assert!(
            version.starts_with("v1.20."),
            "of {distribution}: {version}"
        );
    }
    Ok(kubectl)
}

/// The name and version of the distribution, as `debian 12`.
fn distribution() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        let found = lines.find(|(key, _)| *key == name);
        found.map_or("unknown", |(_, value)| value.trim_matches('"'))
    };
    format!("{} {}", field("ID"), field("VERSION_ID"))
}

/// Our own command, from the build that the running test belongs to.
///
/// # Errors
/// It is not built.
pub fn tenure() -> Result<PathBuf, Skip> {
    beside("tenure", "tenure-cli")
}

/// A program on the manager, for tests.
///
/// # Errors
/// It has not been built.
pub fn managed() -> Result<PathBuf, Skip> {
    beside("managed", "tenure-tests")
}

/// A candidate with the manners of `leader-elector:0.5`.
///
/// # Errors
/// It is not built.
pub fn old_sidecar() -> Result<PathBuf, Skip> {
    beside("old_sidecar", "tenure-tests")
}

/// The library in a program of its own, for what the command has no flag for.
///
/// # Errors
/// It is not built.
pub fn candidate() -> Result<PathBuf, Skip> {
    beside("candidate", "tenure-tests")
}

/// The same in the profile of what is shipped, `dist`.
///
/// # Errors
/// It is not built.
pub fn shipped_candidate() -> Result<PathBuf, Skip> {
    let build = "cargo build --profile dist -p tenure-tests --bin candidate";
    below_target("dist/candidate")
        .ok_or_else(|| Skip(format!("no candidate as shipped: `{build}` makes it")))
}

/// One of the examples.
///
/// # Errors
/// It is not built.
pub fn example(name: &str) -> Result<PathBuf, Skip> {
    beside(name, "tenure-examples")
}

/// The command as the sidecar image has it.
///
/// # Errors
/// It is not built.
pub fn sidecar() -> Result<PathBuf, Skip> {
    let missing = || {
        Skip("tenure-sidecar is not built: `cargo xtask image tenure-sidecar` does it".to_owned())
    };
    below_target("image/tenure-sidecar").ok_or_else(missing)
}

/// A program of another build than the one that is running.
fn below_target(program: &str) -> Option<PathBuf> {
    let here = std::env::current_exe().unwrap_or_default();
    let mut programs = here
        .ancestors()
        .skip(2)
        .take(2)
        .map(|builds| builds.join(program));
    programs.find(|program| program.is_file())
}

fn beside(name: &str, package: &str) -> Result<PathBuf, Skip> {
    let here = std::env::current_exe().unwrap_or_default();
    // Tests are in `deps` below the folder where binaries are.
    let mut folders = here
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name));
    let missing = || {
        Skip(format!(
            "{name} is not built: `cargo build -p {package}` does it"
        ))
    };
    folders
        .find(|program| program.is_file())
        .ok_or_else(missing)
}

fn succeeds(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).join("target/tools")
}
