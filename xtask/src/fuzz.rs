//! `cargo xtask fuzz`: runs the targets of `fuzz/` under libFuzzer, guided by coverage, with a corpus of recorded
//! inputs.
//!
//! The flags are those of `cargo fuzz --sanitizer none`, which the stable toolchain supports. The fuzzers search for
//! violated invariants, panics, overflows, and excessive time or memory. Undefined behaviour cannot occur in a
//! workspace that denies unsafe code. Only a C++ compiler has to be installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use serde_json::Value;

use crate::command::{Run, root, target};

/// The programs of `fuzz/Cargo.toml`.
const TARGETS: [&str; 9] = [
    "protobuf",
    "json",
    "patch",
    "selector",
    "path",
    "roles",
    "audit",
    "fence",
    "credentials",
];

/// Time of a short run of one target.
const BRIEF_SECONDS: u32 = 4;

const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Parses `[TARGET...] [--seconds N]` and runs the targets.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let mut seconds = 60;
    let mut targets = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            let number = args.next().context("--seconds needs a number")?;
            seconds = number
                .parse()
                .with_context(|| format!("--seconds {number}"))?;
        } else if let Some(target) = TARGETS.iter().find(|target| *target == arg) {
            targets.push(*target);
        } else {
            bail!("no target {arg:?}: there are {}", TARGETS.join(", "));
        }
    }
    if targets.is_empty() {
        targets.extend(TARGETS);
    }
    fuzz(&targets, seconds)
}

/// Runs every target for a short time.
pub(crate) fn briefly() -> Result<()> {
    fuzz(&TARGETS, BRIEF_SECONDS)
}

fn fuzz(targets: &[&str], seconds: u32) -> Result<()> {
    let package = root().join("fuzz");
    // The fuzzed code uses the dependencies of the shipped code; cargo adds those of libFuzzer to the list.
    fs::copy(root().join("Cargo.lock"), package.join("Cargo.lock"))?;
    let built = target().join("fuzz");
    // With an explicit target, cargo builds the build scripts without the flags.
    let host = host()?;
    Run::cargo(["build", "--release", "--bins", "--target", &host])
        .inside(&package)
        .env("RUSTFLAGS", COVERAGE)
        .env("CARGO_TARGET_DIR", &built)
        .go()?;
    for target in targets {
        let seeds = seeds(target)?;
        let folder = |name: &str| -> Result<PathBuf> {
            let folder = built.join(name).join(target);
            fs::create_dir_all(&folder)?;
            Ok(folder)
        };
        let (corpus, given, found) = (folder("corpus")?, folder("seeds")?, folder("found")?);
        for (n, seed) in seeds.iter().enumerate() {
            fs::write(given.join(n.to_string()), seed)?;
        }
        let args = [
            corpus.display().to_string(),
            given.display().to_string(),
            format!("-max_total_time={seconds}"),
            format!("-artifact_prefix={}/", found.display()),
            format!("-dict={}", package.join("words.dict").display()),
            // On a busy machine, a slow run must not count as an endless loop.
            "-timeout=120".to_owned(),
            "-print_final_stats=1".to_owned(),
            "-print_funcs=0".to_owned(),
            "-verbosity=0".to_owned(),
        ];
        let program = built.join(&host).join("release").join(target);
        let said = Command::new(program).args(args).output()?;
        let text = String::from_utf8_lossy(&said.stderr);
        if !said.status.success() {
            eprintln!("{text}");
            bail!(
                "{target} ended with {}: the input is in {}; add it to crates/apiserver/tests/fuzz.rs",
                said.status,
                found.display()
            );
        }
        let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let number = |name| number(name).unwrap_or("?").trim();
        println!(
            "{target}: {} seeds, {} inputs, {} of them with new coverage",
            seeds.len(),
            number("stat::number_of_executed_units:"),
            number("stat::new_units_added:"),
        );
    }
    Ok(())
}

/// Returns the platform of this process, as named by the compiler.
fn host() -> Result<String> {
    let said = Run::new("rustc", ["-vV"]).output()?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host
        .context("no host in the output of rustc -vV")?
        .to_owned())
}

/// Returns seeds from the recorded exchanges and the responses of the real decoder.
fn seeds(target: &str) -> Result<Vec<Vec<u8>>> {
    let fixtures = root().join("crates/apiserver/tests/fixtures");
    let lines = |name: &str| lines(&fixtures.join("oracle").join(name));
    let texts = |seeds: Vec<String>| seeds.into_iter().map(String::into_bytes).collect();
    let seeds: Vec<Vec<u8>> = match target {
        "protobuf" => {
            let pairs = [files(&fixtures.join("protobuf"))?, lines("objects.jsonl")?].concat();
            let texts = pairs.iter().filter_map(|pair| pair["protobuf"].as_str());
            let base64 = base64::engine::general_purpose::STANDARD;
            texts
                .map(|text| base64.decode(text))
                .collect::<Result<_, _>>()?
        }
        "json" => {
            let bodies = lines("bodies.jsonl")?.into_iter();
            let bodies = bodies.filter_map(|line| line["body"].as_str().map(str::to_owned));
            let objects = lines("objects.jsonl")?.into_iter();
            let objects = objects.map(|line| line["written"].to_string());
            texts(bodies.chain(objects).collect())
        }
        "patch" => {
            let pairs = [lines("patches.jsonl")?, lines("strategic.jsonl")?].concat();
            let pair = |line: &Value| format!("{}\n{}", line["target"], line["patch"]);
            texts(pairs.iter().map(pair).collect())
        }
        "selector" => {
            let lines = requests(&fixtures.join("cases"))?;
            texts(lines.iter().flat_map(|line| selectors(line)).collect())
        }
        "roles" | "audit" | "fence" | "credentials" => seed_files(&fixtures.join("fuzz"), target)?,
        _ => texts(requests(&fixtures.join("cases"))?),
    };
    if seeds.is_empty() {
        bail!("no seeds for {target} in {}", fixtures.display());
    }
    Ok(seeds)
}

/// Returns `METHOD TARGET` of every recorded request.
fn requests(folder: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for case in files(folder)? {
        for step in case["steps"].as_array().into_iter().flatten() {
            let request = &step["request"];
            if let (Some(method), Some(path)) =
                (request["method"].as_str(), request["path"].as_str())
            {
                lines.push(format!("{method} {}", path.replace("${run}", "run")));
            }
        }
    }
    lines.sort();
    lines.dedup();
    Ok(lines)
}

/// Returns the seeds of a target that are separate files: `TARGET-NAME`, or `TARGET-NAME.base64`.
fn seed_files(folder: &Path, target: &str) -> Result<Vec<Vec<u8>>> {
    let mut seeds = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if !name.starts_with(&format!("{target}-")) {
            continue;
        }
        let bytes = fs::read(&path)?;
        if name.ends_with(".base64") {
            let text: Vec<u8> = bytes
                .into_iter()
                .filter(|b| !b.is_ascii_whitespace())
                .collect();
            seeds.push(base64::engine::general_purpose::STANDARD.decode(text)?);
        } else {
            seeds.push(bytes);
        }
    }
    Ok(seeds)
}

/// Returns the selectors in the query of a request line.
fn selectors(line: &str) -> Vec<String> {
    let query = line.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .filter(|(key, _)| key.ends_with("Selector"))
        .map(|(_, value)| plain(value))
        .collect()
}

/// Decodes percent-encoded text; other text is unchanged.
fn plain(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let code = piece.get(..2).map(|code| u8::from_str_radix(code, 16));
        if let Some(Ok(byte)) = code {
            bytes.push(byte);
            bytes.extend(&piece.as_bytes()[2..]);
        } else {
            bytes.push(b'%');
            bytes.extend(piece.as_bytes());
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the JSON files of a folder.
fn files(folder: &Path) -> Result<Vec<Value>> {
    let mut paths: Vec<_> = fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    paths.sort();
    paths
        .iter()
        .map(|path| {
            serde_json::from_slice(&fs::read(path)?).with_context(|| path.display().to_string())
        })
        .collect()
}

/// Reads a file with one JSON value per line.
fn lines(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| path.display().to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{TARGETS, seeds, selectors};

    #[test]
    fn every_target_is_a_program_and_has_seeds() {
        let package = std::fs::read_to_string(crate::command::root().join("fuzz/Cargo.toml"));
        let package = package.unwrap();
        assert_eq!(package.matches("[[bin]]").count(), TARGETS.len());
        for target in TARGETS {
            assert!(
                package.contains(&format!("name = \"{target}\"")),
                "{target}"
            );
            let seeds = seeds(target).unwrap();
            assert!(seeds.len() >= 2, "{target} has {}", seeds.len());
        }
        assert!(
            seeds("protobuf")
                .unwrap()
                .iter()
                .all(|seed| seed.starts_with(b"k8s\0"))
        );
    }

    #[test]
    fn selectors_are_found_in_a_query_and_decoded() {
        let line = "GET /api/v1/pods?watch=1&labelSelector=a%3Db%2C!c&fieldSelector=x%zz";
        assert_eq!(selectors(line), ["a=b,!c", "x%zz"]);
        assert!(selectors("GET /api/v1/pods").is_empty());
    }
}
