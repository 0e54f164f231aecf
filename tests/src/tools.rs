//! Clients in other languages, which `cargo xtask test` installs below `target/tools`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Skip;

const HINT: &str = "`cargo xtask test process` installs it";

/// Returns a Python interpreter with the Kubernetes client and pytest.
///
/// # Errors
///
/// Fails if it is not installed.
pub fn python() -> Result<PathBuf, Skip> {
    let python = folder().join("python/bin/python");
    let found = succeeds(Command::new(&python).args(["-c", "import kubernetes, pytest"]));
    if found {
        Ok(python)
    } else {
        Err(Skip(format!("no Python client for Kubernetes: {HINT}")))
    }
}

/// Returns the file of the JavaScript client to import. Node.js is on the PATH in that case.
///
/// # Errors
///
/// Fails if one of them is not installed.
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

/// Returns the folder of Node.js packages with Jest and the JavaScript client. Node.js and npm are on the PATH in that
/// case.
///
/// # Errors
///
/// Fails if one of them is not installed.
pub fn jest() -> Result<PathBuf, Skip> {
    node_client()?;
    let modules = folder().join("node/node_modules");
    if modules.join("jest/bin/jest.js").exists() && succeeds(Command::new("npm").arg("--version")) {
        Ok(modules)
    } else {
        Err(Skip(format!("no Jest or no npm: {HINT}")))
    }
}

/// Returns the local repository of Maven with the Kubernetes client for Java. Maven and a JDK are on the PATH in that case.
///
/// # Errors
///
/// Fails if one of them is not installed.
pub fn maven() -> Result<PathBuf, Skip> {
    for program in ["mvn", "javac"] {
        if !succeeds(Command::new(program).arg("--version")) {
            return Err(Skip(format!("{program} is not installed")));
        }
    }
    let repository = folder().join("m2");
    if repository.join("io/fabric8/kubernetes-client").exists() {
        Ok(repository)
    } else {
        Err(Skip(format!("no Java client for Kubernetes: {HINT}")))
    }
}

/// Returns the file of the browser driver to import. Node.js, Chromium and axe-core are installed in that case.
///
/// # Errors
///
/// Fails if one of them is not installed.
pub fn playwright() -> Result<PathBuf, Skip> {
    if !succeeds(Command::new("node").arg("--version")) {
        return Err(Skip("Node.js is not installed".to_owned()));
    }
    if !Path::new("/usr/bin/chromium").exists() {
        return Err(Skip(format!("no Chromium: {HINT}")));
    }
    let modules = folder().join("node/node_modules");
    let library = modules.join("playwright-core/index.js");
    if library.exists() && modules.join("axe-core/axe.min.js").exists() {
        Ok(library)
    } else {
        Err(Skip(format!("no Playwright or no axe-core: {HINT}")))
    }
}

/// Checks for the program that builds and reads Debian packages.
///
/// # Errors
///
/// Fails if it is not installed.
pub fn dpkg_deb() -> Result<(), Skip> {
    if succeeds(Command::new("dpkg-deb").arg("--version")) {
        Ok(())
    } else {
        Err(Skip("dpkg-deb is not installed".to_owned()))
    }
}

/// Checks for a terminal whose content tests can read.
///
/// # Errors
///
/// Fails if it is not installed.
pub fn tmux() -> Result<(), Skip> {
    if succeeds(Command::new("tmux").arg("-V")) {
        Ok(())
    } else {
        Err(Skip(format!("no tmux: {HINT}")))
    }
}

/// Checks for a program that overwrites its environment with its title.
///
/// # Errors
///
/// Fails if it is not installed.
pub fn perl() -> Result<(), Skip> {
    if succeeds(Command::new("perl").arg("-v")) {
        Ok(())
    } else {
        Err(Skip(format!("no perl: {HINT}")))
    }
}

/// Returns the kubectl of the distribution, which is years older than the one in `peers/`. Prints its version.
///
/// # Errors
///
/// Fails if it is not unpacked.
///
/// # Panics
///
/// Panics on Debian bookworm if it is not version 1.20, the known version of that distribution.
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

/// Returns a program of Prometheus: `prometheus` or `promtool`.
///
/// # Errors
///
/// Fails if it is not unpacked.
pub fn prometheus(program: &str) -> Result<PathBuf, Skip> {
    let path = folder().join("prometheus/usr/bin").join(program);
    if path.exists() {
        Ok(path)
    } else {
        Err(Skip(format!("no {program}: {HINT}")))
    }
}

/// Returns the name and version of the distribution, for example `debian 12`.
fn distribution() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        let found = lines.find(|(key, _)| *key == name);
        found.map_or("unknown", |(_, value)| value.trim_matches('"'))
    };
    format!("{} {}", field("ID"), field("VERSION_ID"))
}

/// Returns our own command, from the build of the running test.
///
/// # Errors
///
/// Fails if it is not built.
pub fn tenure() -> Result<PathBuf, Skip> {
    beside("tenure", "tenure-cli")
}

/// Returns the program of `cargo xtask`.
///
/// # Errors
///
/// Fails if it is not built.
pub fn xtask() -> Result<PathBuf, Skip> {
    beside("xtask", "xtask")
}

/// Returns a test program based on the manager.
///
/// # Errors
///
/// Fails if it is not built.
pub fn managed() -> Result<PathBuf, Skip> {
    beside("managed", "tenure-tests")
}

/// Returns a candidate that behaves like `leader-elector:0.5`.
///
/// # Errors
///
/// Fails if it is not built.
pub fn old_sidecar() -> Result<PathBuf, Skip> {
    beside("old_sidecar", "tenure-tests")
}

/// Returns a separate program based on the library, for features without a flag in the command.
///
/// # Errors
///
/// Fails if it is not built.
pub fn candidate() -> Result<PathBuf, Skip> {
    beside("candidate", "tenure-tests")
}

/// Returns the same in the shipped profile, `dist`.
///
/// # Errors
///
/// Fails if it is not built.
pub fn shipped_candidate() -> Result<PathBuf, Skip> {
    let build = "cargo build --profile dist -p tenure-tests --bin candidate";
    below_target("dist/candidate").ok_or_else(|| {
        Skip(format!(
            "the candidate is not built in the profile dist: `{build}` builds it"
        ))
    })
}

/// Returns one of the examples.
///
/// # Errors
///
/// Fails if it is not built.
pub fn example(name: &str) -> Result<PathBuf, Skip> {
    beside(name, "tenure-examples")
}

/// Returns the CSI driver for manual tests.
///
/// # Errors
///
/// Fails if it is not built.
pub fn mock_driver() -> Result<PathBuf, Skip> {
    beside("mock-csi-driver", "tenure-csi --features mock")
}

/// Returns the command in the build of the sidecar image.
///
/// # Errors
///
/// Fails if it is not built.
pub fn sidecar() -> Result<PathBuf, Skip> {
    let missing = || {
        Skip("tenure-sidecar is not built: `cargo xtask image tenure-sidecar` builds it".to_owned())
    };
    below_target("image/tenure-sidecar").ok_or_else(missing)
}

/// Returns a program of another build than the running one.
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
    // Tests are in `deps` below the folder of the binaries.
    let mut folders = here
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name));
    let missing = || {
        Skip(format!(
            "{name} is not built: `cargo build -p {package}` builds it"
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
