//! The archive with the command, its completions and man pages, and the krew manifest that refers to it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Dist;
use crate::command::{Run, root};

/// Shells, and the names of their completion scripts.
pub(super) const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "tenure.bash"),
    ("zsh", "_tenure"),
    ("fish", "tenure.fish"),
];

/// Writes `tenure-VERSION-x86_64-linux.tar.gz`.
pub(super) fn archive(dist: &Dist) -> Result<()> {
    let name = format!("tenure-{}", dist.version);
    let stage = dist.stage.join("archive");
    let folder = stage.join(&name);
    fs::create_dir_all(folder.join("completions"))?;
    fs::copy(&dist.binary, folder.join("tenure"))?;
    fs::copy(root().join("LICENSE"), folder.join("LICENSE"))?;
    for (shell, file) in COMPLETIONS {
        fs::write(
            folder.join("completions").join(file),
            completion(dist, shell)?,
        )?;
    }
    man_pages(dist, &folder.join("man"))?;
    pack(&stage, &name, &path(dist))
}

/// Returns the completion script for a shell.
pub(super) fn completion(dist: &Dist, shell: &str) -> Result<String> {
    Run::new(&dist.binary, ["completions", shell]).output()
}

/// Writes the man pages into a folder.
pub(super) fn man_pages(dist: &Dist, folder: &Path) -> Result<()> {
    let dir = format!("--dir={}", folder.display());
    Run::new(&dist.binary, ["man", &dir]).output().map(drop)
}

/// Compresses a folder. Names, times and owners do not depend on this machine.
fn pack(parent: &Path, folder: &str, to: &Path) -> Result<()> {
    let fixed = [
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ];
    let mode = ["--mode=u+rw,go+r,go-w", "--format=ustar"];
    let file = to.display().to_string();
    let args = [
        "--create",
        "--use-compress-program=gzip -n",
        "--file",
        &file,
        folder,
    ];
    Run::new("tar", [&fixed[..], &mode, &args].concat())
        .inside(parent)
        .go()
}

fn path(dist: &Dist) -> PathBuf {
    let name = format!("tenure-{}-x86_64-linux.tar.gz", dist.version);
    dist.out.join(name)
}

/// Writes `tenure.yaml`, the manifest for `kubectl krew install --manifest`.
pub(super) fn krew(dist: &Dist) -> Result<()> {
    let archive = path(dist);
    if !archive.exists() {
        self::archive(dist)?;
    }
    let sum = Run::new("sha256sum", [&archive]).output()?;
    let sum = sum.split_whitespace().next().unwrap_or_default();
    let manifest = manifest(&dist.version, &dist.base_url, sum);
    Ok(fs::write(dist.out.join("tenure.yaml"), manifest)?)
}

fn manifest(version: &str, base_url: &str, sum: &str) -> String {
    format!(
        "\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: tenure
spec:
  version: v{version}
  homepage: {base_url}
  shortDescription: Show and control leader elections
  description: |
    Shows the leader of each election, its history and its candidates, and
    asks leaders to step down. It also runs commands and sidecars that take
    part in elections.
  platforms:
  - selector:
      matchLabels:
        os: linux
        arch: amd64
    uri: {base_url}/tenure-{version}-x86_64-linux.tar.gz
    sha256: {sum}
    files:
    - from: tenure-{version}/tenure
      to: tenure
    - from: tenure-{version}/LICENSE
      to: LICENSE
    bin: tenure
"
    )
}
