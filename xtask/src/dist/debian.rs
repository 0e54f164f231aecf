//! The Debian package: the command, its completions and man pages, the systemd units and their user. It has no scripts,
//! so that its installation only copies files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{Dist, archive};
use crate::command::{Run, root};

/// The folder of the command in the units, and the one in the package.
const UNITS_BIN: &str = "/usr/local/bin/tenure";
const PACKAGE_BIN: &str = "/usr/bin/tenure";

/// The user of the units, which systemd-sysusers creates.
const SYSUSERS: &str = "u tenure - \"Leader election\" /var/lib/tenure\n";

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: the authors of Tenure
License: Apache-2.0
 On Debian systems, the full text of the licence is in
 /usr/share/common-licenses/Apache-2.0.
";

/// Writes `tenure_VERSION_amd64.deb`.
pub(super) fn package(dist: &Dist) -> Result<()> {
    let stage = dist.stage.join("deb");
    let usr = stage.join("usr");
    let share = usr.join("share");
    copy(&dist.binary, &stage.join(&PACKAGE_BIN[1..]))?;
    for (shell, folder, name) in [
        ("bash", "bash-completion/completions", "tenure"),
        ("zsh", "zsh/vendor-completions", "_tenure"),
        ("fish", "fish/vendor_completions.d", "tenure.fish"),
    ] {
        let script = archive::completion(dist, shell)?;
        write(&share.join(folder).join(name), &script)?;
    }
    let man = share.join("man/man1");
    archive::man_pages(dist, &man)?;
    let mut pages = Vec::new();
    for page in fs::read_dir(&man)? {
        pages.push(page?.path().display().to_string());
    }
    Run::new("gzip", ["-9n"]).args(&pages).output()?;
    for unit in ["tenure@.service", "tenure-server.service"] {
        let text = fs::read_to_string(root().join("deploy/systemd").join(unit))?;
        if !text.contains(UNITS_BIN) {
            bail!("{unit} does not run {UNITS_BIN}");
        }
        let text = text.replace(UNITS_BIN, PACKAGE_BIN);
        write(&usr.join("lib/systemd/system").join(unit), &text)?;
    }
    write(&usr.join("lib/sysusers.d/tenure.conf"), SYSUSERS)?;
    write(&share.join("doc/tenure/copyright"), COPYRIGHT)?;
    write(&stage.join("DEBIAN/control"), &control(dist))?;
    let file = format!("tenure_{}_amd64.deb", dist.version);
    let paths = [stage, dist.out.join(file)].map(|path| path.display().to_string());
    // The time of all files, for packages with the same bytes.
    Run::new(
        "dpkg-deb",
        ["--root-owner-group", "-Zgzip", "-z6", "--build"],
    )
    .args(&paths)
    .env("SOURCE_DATE_EPOCH", "0")
    .go()
}

fn control(dist: &Dist) -> String {
    // A binary with a loader is only for tests.
    let depends = if dist.is_static {
        ""
    } else {
        "Depends: libc6\n"
    };
    format!(
        "\
Package: tenure
Version: {}
Architecture: amd64
Maintainer: The authors of Tenure <maintainers@example.com>
Section: admin
Priority: optional
{depends}Description: leader election for Kubernetes without writing code
 The command tenure runs commands and services on one machine at a time,
 replaces the leader-elector sidecar, shows and controls elections, and
 serves a Kubernetes API.
",
        dist.version
    )
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder)?;
    fs::copy(from, to)
        .map(drop)
        .with_context(|| from.display().to_string())
}

fn write(to: &Path, text: &str) -> Result<()> {
    let folder = to.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder)?;
    Ok(fs::write(to, text)?)
}
