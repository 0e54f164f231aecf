//! A copy of the workspace under `target/`, in which one package is changed, built and run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

    /// Returns the programs of a build, or its error locations: file, position, text.
    fn cargo(&self, args: &[&str]) -> Result<(Vec<PathBuf>, Vec<BuildError>)> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(args)
            .arg("--message-format=json")
            .current_dir(&self.folder)
            .env("CARGO_BUILD_BUILD_DIR", &self.shared)
            .env("CARGO_TARGET_DIR", self.shared.join("mutants/target"))
            .env("CARGO_INCREMENTAL", "0")
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

    /// Returns whether a program fails, or does not end in time, with one change enabled; 0 is none.
    pub(crate) fn notices(
        &self,
        package: &str,
        program: &Path,
        args: &[&str],
        change: u32,
        limit: Duration,
    ) -> Result<bool> {
        let mut child = Command::new(program)
            .args(args)
            .current_dir(self.folder.join(package))
            .env("CARGO_MANIFEST_DIR", self.folder.join(package))
            .env("TENURE_MUTATION", change.to_string())
            // A tenth of the default of proptest, because every change runs all property tests.
            .env("PROPTEST_CASES", "25")
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(!status.success());
            }
            if started.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }
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
