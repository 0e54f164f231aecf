//! Installs the requirements of a tier of tests: with apt as root, otherwise into target/.

use std::cell::Cell;
use std::path::PathBuf;

use anyhow::Result;

use crate::command::{Run, on_path, root};

/// A missing requirement of tests.
#[derive(Debug)]
pub(crate) enum Missing {
    /// The machine lacks a whole toolchain, which is not an error.
    Toolchain(String),
    /// A package that should have been installed is missing.
    Package(String),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Toolchain(reason) | Self::Package(reason)) = self;
        out.write_str(reason)
    }
}

thread_local! {
    static UPDATED: Cell<bool> = const { Cell::new(false) };
}

/// Checks for a toolchain that the project does not install.
pub(crate) fn toolchain(program: &str) -> Result<(), Missing> {
    if on_path(program) {
        Ok(())
    } else {
        Err(Missing::Toolchain(format!("{program} is not installed")))
    }
}

/// Installs a program from a Debian package.
pub(crate) fn debian(program: &str, package: &str) -> Result<(), Missing> {
    if on_path(program) {
        return Ok(());
    }
    if !on_path("apt-get") {
        return Err(Missing::Toolchain(format!(
            "{program} is not installed, nor is apt-get"
        )));
    }
    let install = || -> Result<()> {
        if !UPDATED.get() {
            Run::new("apt-get", ["update", "-qq"]).go()?;
            UPDATED.set(true);
        }
        Run::new(
            "apt-get",
            ["install", "-y", "-qq", "--no-install-recommends", package],
        )
        .env("DEBIAN_FRONTEND", "noninteractive")
        .go()
    };
    match install() {
        Ok(()) if on_path(program) => Ok(()),
        Ok(()) => Err(Missing::Package(format!(
            "{package} does not contain {program}"
        ))),
        Err(error) => Err(Missing::Package(format!(
            "cannot install {package}: {error:#}"
        ))),
    }
}

/// Unpacks a file of a Debian package under target/ without installing it, because the machine may have another version
/// on the PATH.
pub(crate) fn unpacked(package: &str, file: &str) -> Result<(), Missing> {
    let folder = tools().join(package);
    if folder.join(file).exists() {
        return Ok(());
    }
    for program in ["apt-get", "dpkg-deb"] {
        toolchain(program)?;
    }
    let unpack = || -> Result<()> {
        std::fs::create_dir_all(&folder)?;
        let download = || {
            let download = Run::new("apt-get", ["download", "-qq", package]);
            download.inside(&folder).go()
        };
        if download().is_err() {
            // The package lists may be old or missing; only root may update them.
            Run::new("apt-get", ["update", "-qq"]).go()?;
            download()?;
        }
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                let paths = [path.display().to_string(), folder.display().to_string()];
                Run::new("dpkg-deb", ["-x"]).args(&paths).go()?;
            }
        }
        Ok(())
    };
    match unpack() {
        Ok(()) if folder.join(file).exists() => Ok(()),
        Ok(()) => Err(Missing::Package(format!("{package} has no {file}"))),
        Err(error) => Err(Missing::Package(format!("cannot get {package}: {error:#}"))),
    }
}

/// Installs a Python interpreter with packages, in a virtual environment under target/.
pub(crate) fn python(packages: &[&str]) -> Result<(), Missing> {
    toolchain("python3")?;
    let folder = tools().join("python");
    let install = || -> Result<()> {
        if !folder.join("bin/python").exists() {
            Run::new("python3", ["-m", "venv"])
                .args(&[folder.display().to_string()])
                .go()?;
        }
        let pip = folder.join("bin/pip");
        Run::new(&pip, ["install", "--quiet", "--disable-pip-version-check"])
            .args(&packages.iter().map(ToString::to_string).collect::<Vec<_>>())
            .go()
    };
    install().map_err(|error| Missing::Package(format!("python packages: {error:#}")))
}

/// Installs packages for Node.js under target/.
pub(crate) fn node(packages: &[&str]) -> Result<(), Missing> {
    toolchain("node")?;
    toolchain("npm")?;
    let folder = tools().join("node");
    let install = || -> Result<()> {
        std::fs::create_dir_all(&folder)?;
        let prefix = ["--prefix".to_owned(), folder.display().to_string()];
        Run::new("npm", ["install", "--silent", "--no-audit", "--no-fund"])
            .args(&prefix)
            .args(&packages.iter().map(ToString::to_string).collect::<Vec<_>>())
            .go()
    };
    install().map_err(|error| Missing::Package(format!("npm packages: {error:#}")))
}

/// Downloads what the tests of a Maven project need into a local repository under target/, and compiles the project.
pub(crate) fn maven(project: &str) -> Result<(), Missing> {
    toolchain("mvn")?;
    toolchain("javac")?;
    let repository = format!("-Dmaven.repo.local={}", tools().join("m2").display());
    Run::new("mvn", ["--batch-mode", "--quiet", "test", "-DskipTests"])
        .args(&[repository])
        .inside(&root().join(project))
        .go()
        .map_err(|error| Missing::Package(format!("packages of {project}: {error:#}")))
}

/// Installs cargo-deny, which checks the dependencies, unless it is on the PATH. Returns the program.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    from_crates_io("cargo-deny", "0.20.2", &[])
}

/// Installs mdBook, which builds docs/book, unless it is on the PATH. Returns the program.
pub(crate) fn mdbook() -> Result<PathBuf> {
    // Without its server and its watcher, mdBook compiles half as many crates.
    from_crates_io(
        "mdbook",
        "0.5.4",
        &["--no-default-features", "--features=search"],
    )
}

/// Installs a program from crates.io under target/, unless it is on the PATH.
fn from_crates_io(name: &str, version: &str, flags: &[&str]) -> Result<PathBuf> {
    if on_path(name) {
        return Ok(name.into());
    }
    let folder = tools().join(format!("{name}-{version}"));
    let program = folder.join("bin").join(name);
    if !program.exists() {
        // Without optimisation the build takes a third of the time, and the program still ends within seconds.
        let install = [
            "install",
            "--quiet",
            "--locked",
            "--debug",
            "--no-track",
            name,
            "--version",
            version,
        ];
        Run::cargo(install.iter().chain(flags))
            .args(&["--root".to_owned(), folder.display().to_string()])
            .go()?;
    }
    Ok(program)
}

/// Returns the folder for third-party tools.
pub(crate) fn tools() -> PathBuf {
    root().join("target/tools")
}
