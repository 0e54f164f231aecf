//! `cargo xtask dist`: makes the files of a release for this platform, from static binaries or from a given one. The same
//! sources and binaries give the same bytes.

mod archive;
mod debian;
mod registries;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{Run, root, target};
use crate::elf::Elf;
use crate::image;

/// The files that can be made, in this order.
const KINDS: [&str; 7] = ["archive", "deb", "krew", "docker", "sbom", "wheel", "npm"];

/// The list of the checksums of all files.
const CHECKSUMS: &str = "SHA256SUMS";

/// The inputs of every file.
struct Dist {
    /// The whole command, for every file except those of `docker`.
    binary: PathBuf,
    /// Binaries of the images, by their names.
    images: Vec<(String, PathBuf)>,
    version: String,
    /// Whether the binary needs neither a loader nor libraries.
    is_static: bool,
    out: PathBuf,
    /// A folder for files that are not part of the result.
    stage: PathBuf,
    /// The folder of the URLs at which the files will be downloaded.
    base_url: String,
}

/// Arguments of the command.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    kinds: Vec<String>,
    binary: Option<String>,
    out: Option<String>,
    base_url: Option<String>,
}

/// Makes the named files, or all, in `target/artifacts` or `--out DIR`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let version = version()?;
    let out = match &options.out {
        Some(out) => std::path::absolute(out)?,
        None => target().join("artifacts"),
    };
    let images = match &options.binary {
        Some(file) => vec![(
            "tenure".to_owned(),
            fs::canonicalize(file).with_context(|| file.clone())?,
        )],
        None => image::run(&[])?,
    };
    let binary = images.first().context("no binary")?.1.clone();
    let bytes = fs::read(&binary)?;
    let elf = Elf::parse(&bytes);
    let elf = elf.with_context(|| format!("{} is not a 64-bit program", binary.display()))?;
    let dist = Dist {
        is_static: elf.needs == 0,
        base_url: options
            .base_url
            .unwrap_or_else(|| format!("https://example.com/tenure/v{version}")),
        stage: out.join(".stage"),
        binary,
        images,
        version,
        out,
    };
    remove_folder(&dist.out)?;
    fs::create_dir_all(&dist.out)?;
    for kind in KINDS {
        if !options.kinds.is_empty() && options.kinds.iter().all(|name| name != kind) {
            continue;
        }
        let made = match kind {
            "archive" => archive::archive(&dist),
            "deb" => debian::package(&dist),
            "krew" => archive::krew(&dist),
            "docker" => docker(&dist),
            "sbom" => sbom::write(&dist),
            "wheel" => registries::wheel(&dist),
            _ => registries::npm(&dist),
        };
        made.with_context(|| format!("cannot make {kind}"))?;
    }
    remove_folder(&dist.stage)?;
    checksums(&dist.out)
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (flag, given) = match arg.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            let place = match flag {
                "--binary" => &mut options.binary,
                "--out" => &mut options.out,
                "--base-url" => &mut options.base_url,
                kind if KINDS.contains(&kind) => {
                    options.kinds.push(arg.clone());
                    continue;
                }
                _ => bail!("unknown {arg}: expected one of {}", KINDS.join(", ")),
            };
            let value = given.or_else(|| args.next().cloned());
            *place = Some(value.with_context(|| format!("{flag} needs a value"))?);
        }
        Ok(options)
    }
}

/// Writes a folder per image that `docker build` takes as its context, with the binary and the last stage of the
/// Dockerfile.
fn docker(dist: &Dist) -> Result<()> {
    let file = fs::read_to_string(root().join("deploy/Dockerfile"))?;
    for (name, binary) in &dist.images {
        let stage = if name == "tenure-provisioner" {
            "provisioner"
        } else {
            "tenure"
        };
        let folder = dist.out.join("docker").join(name);
        fs::create_dir_all(&folder)?;
        fs::copy(binary, folder.join("tenure"))?;
        let stage = last_stage(&file, stage)
            .with_context(|| format!("deploy/Dockerfile has no stage {stage}"))?;
        fs::write(folder.join("Dockerfile"), stage)?;
    }
    Ok(())
}

/// Returns a stage of a Dockerfile that copies the binary from the folder instead of the build stage.
fn last_stage(file: &str, name: &str) -> Option<String> {
    let start = format!("FROM scratch AS {name}\n");
    let rest = &file[file.find(&start)?..];
    let end = rest[1..].find("\nFROM ").map_or(rest.len(), |end| end + 1);
    let stage = rest[..end].trim_end();
    let copied = stage.replace("COPY --from=build /tenure ", "COPY tenure ");
    (copied != stage).then(|| copied + "\n")
}

/// Writes the checksums of all files below a folder, in the format of `sha256sum --check`.
fn checksums(out: &Path) -> Result<()> {
    let mut names = Vec::new();
    let mut folders = vec![out.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                names.push(path.strip_prefix(out)?.display().to_string());
            }
        }
    }
    names.sort();
    let sums = Run::new("sha256sum", ["--"])
        .args(&names)
        .inside(out)
        .output()?;
    fs::write(out.join(CHECKSUMS), &sums)?;
    println!("{}:\n{sums}", out.display());
    Ok(())
}

/// Returns the version of the workspace.
pub(crate) fn version() -> Result<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let (_, package) = manifest
        .split_once("[workspace.package]\n")
        .context("Cargo.toml: no [workspace.package]")?;
    let mut lines = package.lines();
    let version = lines.find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    Ok(version.context("Cargo.toml: no version")?.to_owned())
}

fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| folder.display().to_string())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_kinds_and_flags_with_values() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options = Options::parse(&words("wheel --binary b --out=o npm")).unwrap();
        let expected = Options {
            kinds: words("wheel npm"),
            binary: Some("b".to_owned()),
            out: Some("o".to_owned()),
            base_url: None,
        };
        assert_eq!(options, expected);
        for wrong in ["rpm", "--out", "--release"] {
            Options::parse(&words(wrong)).unwrap_err();
        }
    }

    #[test]
    fn each_image_has_a_stage_that_copies_the_binary_of_its_folder() {
        let file = fs::read_to_string(root().join("deploy/Dockerfile")).unwrap();
        for (name, program) in [("tenure", "/tenure"), ("provisioner", "/csi-provisioner")] {
            let stage = last_stage(&file, name).unwrap();
            assert!(stage.starts_with("FROM scratch AS"), "{stage}");
            assert!(
                stage.contains(&format!("COPY tenure {program}\n")),
                "{stage}"
            );
            assert!(
                stage.ends_with(&format!("ENTRYPOINT [\"{program}\"]\n")),
                "{stage}"
            );
            assert_eq!(stage.matches("FROM ").count(), 1, "{stage}");
        }
        assert_eq!(last_stage(&file, "sidecar"), None);
    }
}
