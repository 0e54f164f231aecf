//! A copy of the workspace under `target/`, in which one package is changed, built and run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::render::{SWITCH, culprits, render};
use crate::sites::{Site, find};

/// Maximum number of builds that fail because of changes that do not compile.
const BUILDS: usize = 12;

/// A file with its possible changes.
pub(crate) struct Source {
    /// Path from the root of the workspace.
    pub(crate) path: String,
    text: String,
    pub(crate) sites: Vec<Site>,
    /// The number of its first change.
    pub(crate) first: u32,
}

/// Location of a build error: file, position, text.
type BuildError = (String, usize, String);

/// The copy.
pub(crate) struct Tree {
    root: PathBuf,
    folder: PathBuf,
    /// The dependencies, which are shared with the builds of the workspace.
    shared: PathBuf,
}

impl Tree {
    /// Copies every file of the checkout that has changed since the last copy.
    pub(crate) fn copy() -> Result<Self> {
        let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let root = own
            .ancestors()
            .nth(2)
            .context("the tool is two folders below the root")?
            .to_path_buf();
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let folder = target.join("mutants/tree");
        let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
        let files = Command::new("git").args(list).current_dir(&root).output()?;
        for file in String::from_utf8_lossy(&files.stdout).lines() {
            if let Ok(content) = fs::read(root.join(file)) {
                write(&folder.join(file), &content)?;
            }
        }
        Ok(Self {
            root,
            folder,
            shared: target,
        })
    }

    /// Returns all possible changes in these files and in the files below these folders. A path that does not exist is
    /// skipped, so that a target can name a module as a file and as a folder.
    pub(crate) fn sources(&self, paths: &[&str]) -> Result<Vec<Source>> {
        let mut files = Vec::new();
        for path in paths {
            list(&self.root.join(path), &mut files)?;
        }
        if files.is_empty() {
            bail!("no source files below {}", paths.join(", "));
        }
        files.sort();
        let mut sources = Vec::new();
        let mut first = 1;
        for file in files {
            let path = file.strip_prefix(&self.root)?.display().to_string();
            // Test modules in separate files have no attribute inside.
            if path.contains("/tests")
                || path.ends_with("/testing.rs")
                || path.ends_with("/mutant.rs")
                || path.ends_with("/seeded.rs")
            {
                continue;
            }
            let text = fs::read_to_string(&file)?;
            let sites = find(&text).with_context(|| path.clone())?;
            let many: usize = sites.iter().map(|site| site.changes.len()).sum();
            sources.push(Source {
                path,
                text,
                sites,
                first,
            });
            first += u32::try_from(many)?;
        }
        Ok(sources)
    }

    /// Writes all changes except the unviable ones, and adds the switch to the crate roots of the package.
    fn write(
        &self,
        package: &str,
        sources: &[Source],
        unviable: &BTreeSet<u32>,
    ) -> Result<Vec<String>> {
        let mut texts = Vec::new();
        for source in sources {
            let mut text = render(&source.text, &source.sites, source.first, unviable);
            if is_root(package, &source.path) {
                text += SWITCH;
                text.insert_str(0, "#![allow(warnings)] ");
            }
            write(&self.folder.join(&source.path), text.as_bytes())?;
            texts.push(text);
        }
        for root in ["lib.rs", "main.rs"].map(|name| format!("{package}/src/{name}")) {
            if !sources.iter().any(|source| source.path == root)
                && let Ok(text) = fs::read_to_string(self.root.join(&root))
            {
                write(
                    &self.folder.join(&root),
                    format!("#![allow(warnings)] {text}{SWITCH}").as_bytes(),
                )?;
            }
        }
        Ok(texts)
    }

    /// Builds with every change that compiles. Returns the programs, and the numbers of the changes that do not
    /// compile.
    pub(crate) fn build(
        &self,
        package: &str,
        sources: &[Source],
        args: &[&str],
        unviable: &mut BTreeSet<u32>,
    ) -> Result<Vec<PathBuf>> {
        for _ in 0..BUILDS {
            let texts = self.write(package, sources, unviable)?;
            let (programs, errors) = self.cargo(args)?;
            if errors.is_empty() {
                return Ok(programs);
            }
            let before = unviable.len();
            let mut last = "";
            for (file, at, text) in &errors {
                last = text;
                let Some(index) = sources.iter().position(|source| source.path == *file) else {
                    continue;
                };
                let source = &sources[index];
                unviable.extend(culprits(&texts[index], *at, &source.sites, source.first));
            }
            if unviable.len() == before {
                bail!("{package} does not compile, and no change causes the error:\n{last}");
            }
            eprintln!("{} changes do not compile", unviable.len());
        }
        bail!("{package} still does not compile after {BUILDS} builds")
    }

    /// Builds in the copy. The third-party crates are shared with the builds of the workspace.
    fn cargo(&self, args: &[&str]) -> Result<(Vec<PathBuf>, Vec<BuildError>)> {
        let target = self.shared.join("mutants/target");
        let settings = own_settings(&self.folder)?;
        let args: Vec<_> = args
            .iter()
            .copied()
            .chain(settings.iter().map(String::as_str))
            .collect();
        run_cargo(&self.folder, &target, Some(&self.shared), &args)
    }

    /// Builds test programs of the unchanged workspace, and copies them into the folder of the changed program, where
    /// they expect it.
    pub(crate) fn harness(&self, args: &[&str], changed: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let (programs, errors) = run_cargo(&self.root, &self.shared, None, args)?;
        if let Some((_, _, text)) = errors.first() {
            bail!("cargo {} failed:\n{text}", args.join(" "));
        }
        let folder = changed.first().and_then(|program| program.parent());
        let folder = folder.context("no changed program was built")?.join("deps");
        fs::create_dir_all(&folder)?;
        let mut copies = Vec::new();
        // Cargo also names the other programs of the package, which are not in the folder of test programs.
        let is_test = |program: &PathBuf| program.parent().is_some_and(|at| at.ends_with("deps"));
        for program in programs.into_iter().filter(is_test) {
            let copy = folder.join(program.file_name().context("a program has a name")?);
            fs::copy(&program, &copy)?;
            copies.push(copy);
        }
        Ok(copies)
    }

    /// Returns the folder in which the tests of a package run. It belongs to the copy, or to the unchanged workspace.
    pub(crate) fn folder_of(&self, package: &str, changed: bool) -> PathBuf {
        let root = if changed { &self.folder } else { &self.root };
        root.join(package)
    }
}

/// Returns cargo arguments that give the packages of a workspace another profile than in other builds.
///
/// Cargo names the files of a package after its path in the workspace and its profile. With the same profile, builds
/// of the checkout would use the files of the copy and run changed code.
fn own_settings(folder: &Path) -> Result<Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(folder)
        .output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let names = packages.filter_map(|package| package["name"].as_str());
    Ok(names
        .map(|name| format!("--config=profile.dev.package.{name}.debug=\"none\""))
        .collect())
}

/// Returns the programs of a build, or its error locations: file, position, text.
fn run_cargo(
    folder: &Path,
    target: &Path,
    build: Option<&Path>,
    args: &[&str],
) -> Result<(Vec<PathBuf>, Vec<BuildError>)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // `cargo run` sets variables that describe this tool. Some build scripts, for example that of `ring`, read these
    // variables. They would run again after each change of the caller, and all crates that depend on them would be
    // built again.
    for (name, _) in std::env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name
            .to_str()
            .is_some_and(|name| of_package.iter().any(|of| name.starts_with(of)))
        {
            command.env_remove(name);
        }
    }
    if let Some(build) = build {
        command
            .env("CARGO_BUILD_BUILD_DIR", build)
            .env("CARGO_INCREMENTAL", "0");
    }
    let output = command
        .args(args)
        .arg("--message-format=json")
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .stderr(Stdio::piped())
        .output()?;
    let (mut programs, mut errors) = (Vec::new(), Vec::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if let Some(program) = message["executable"].as_str() {
            programs.push(PathBuf::from(program));
        }
        let error = &message["message"];
        if error["level"] == "error" {
            let spans = error["spans"].as_array().into_iter().flatten();
            let text = error["rendered"].as_str().unwrap_or_default();
            for span in spans.filter(|span| span["is_primary"] == true) {
                let at = span["byte_start"]
                    .as_u64()
                    .and_then(|at| usize::try_from(at).ok());
                let file = span["file_name"].as_str().unwrap_or_default();
                errors.push((file.to_owned(), at.unwrap_or_default(), text.to_owned()));
            }
        }
    }
    if !output.status.success() && errors.is_empty() {
        bail!(
            "cargo {} failed:\n{}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok((programs, errors))
}

fn is_root(package: &str, path: &str) -> bool {
    ["lib.rs", "main.rs"]
        .iter()
        .any(|name| path == format!("{package}/src/{name}"))
}

fn list(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            list(&entry?.path(), files)?;
        }
    } else if path.exists() && path.extension().is_some_and(|extension| extension == "rs") {
        files.push(path.to_path_buf());
    }
    Ok(())
}

/// Writes a file if its content differs, so that cargo does not rebuild it unnecessarily.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_the_workspace_have_another_profile_in_the_copy() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let settings = own_settings(own).unwrap();
        for name in ["tenure-core", "tenure-lock", "tenure", "tenure-cli"] {
            let setting = format!("--config=profile.dev.package.{name}.debug=\"none\"");
            assert!(settings.contains(&setting), "{settings:?}");
        }
    }
}
