//! The commands of the book, run as a reader runs them.
//!
//! `cargo` in a tutorial starts a program that this test run has built, so that nothing is compiled a second time.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tenure_tests::real::{Peer, build};
use tenure_tests::scenarios::clients;
use tenure_tests::{Skip, tools, tutorial};

/// Returns `tenure` and kubectl.
fn programs() -> Option<Vec<(&'static str, PathBuf)>> {
    if !clients::peer(Peer::Kubectl) {
        return None;
    }
    let tenure = tools::tenure().unwrap();
    Some(vec![
        ("tenure", tenure),
        ("kubectl", build(Peer::Kubectl).unwrap()),
    ])
}

/// Returns whether a program of the system is on the PATH, and prints a line if it is not.
fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).map(|folder| folder.join(program));
    let found = folders.find(|program| program.is_file());
    Skip::unless(found.ok_or_else(|| Skip(format!("{program} is not installed"))))
}

/// Makes a program with the name `cargo` that starts the built programs in `folder`, as `cargo run --bin NAME -- ARGS` does.
fn cargo_in(folder: &Path, programs: &[PathBuf]) -> PathBuf {
    for program in programs {
        let link = folder.join(program.file_name().unwrap());
        std::os::unix::fs::symlink(program, link).unwrap();
    }
    let script = format!(
        "#!/bin/sh\n\
         while [ $# -gt 0 ]; do\n\
         case $1 in --bin) bin=$2; shift 2 ;; --) shift; break ;; *) shift ;; esac\n\
         done\n\
         exec {}/\"$bin\" \"$@\"\n",
        folder.display()
    );
    let cargo = folder.join("cargo");
    std::fs::write(&cargo, script).unwrap();
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
    cargo
}

#[test]
fn first_election_works_as_printed() {
    tutorial::run(
        "tutorials/first-election.md",
        &[("tenure", tools::tenure().unwrap())],
    );
}

#[test]
fn sidecar_works_as_printed() {
    let (Some(programs), Some(_)) = (programs(), installed("curl")) else {
        return;
    };
    tutorial::run("tutorials/sidecar.md", &programs);
}

#[test]
fn controller_works_as_printed() {
    let (Some(mut programs), Some(controller)) =
        (programs(), Skip::unless(tools::example("controller")))
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    programs.push(("cargo", cargo_in(folder.path(), &[controller])));
    tutorial::run("tutorials/controller.md", &programs);
}

#[test]
fn fencing_works_as_printed() {
    let Some(python) = installed("python3") else {
        return;
    };
    let tenure = tools::tenure().unwrap();
    tutorial::run(
        "tutorials/fencing.md",
        &[("tenure", tenure), ("python3", python)],
    );
}

#[test]
fn csi_driver_works_as_printed() {
    let (Some(mut programs), Some(driver)) = (programs(), Skip::unless(tools::mock_driver()))
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    programs.push(("cargo", cargo_in(folder.path(), &[driver])));
    tutorial::run("tutorials/csi-driver.md", &programs);
}

#[test]
fn guides_work_as_printed() {
    let tenure = ("tenure", tools::tenure().unwrap());
    for page in [
        "how-to/backup.md",
        "how-to/cron-once.md",
        "how-to/durations.md",
        "how-to/migrate-leader-elector.md",
    ] {
        tutorial::run(page, std::slice::from_ref(&tenure));
    }
    if let Some(programs) = programs() {
        tutorial::run("how-to/least-privilege.md", &programs);
    }
}

#[test]
fn metrics_of_the_sidecar_are_as_printed() {
    let Some(curl) = installed("curl") else {
        return;
    };
    let programs = [("tenure", tools::tenure().unwrap()), ("curl", curl)];
    tutorial::run("how-to/alerts.md", &programs);
}

#[test]
fn followers_of_the_sidecar_work_as_printed() {
    let (Some(python), Some(node)) = (installed("python3"), installed("node")) else {
        return;
    };
    let programs = [
        ("tenure", tools::tenure().unwrap()),
        ("python3", python),
        ("node", node),
    ];
    tutorial::run("how-to/follow.md", &programs);
}

/// A page with commands that no test runs would become wrong without notice.
#[test]
fn every_page_with_commands_is_tested() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book");
    let tests = include_str!("book.rs");
    let mut pages = 0;
    for part in std::fs::read_dir(&folder).unwrap() {
        let part = part.unwrap().path();
        for page in std::fs::read_dir(&part).into_iter().flatten() {
            let page = page.unwrap().path();
            let text = std::fs::read_to_string(&page).unwrap_or_default();
            if !text.contains("```sh,run") {
                continue;
            }
            pages += 1;
            let name = page.strip_prefix(&folder).unwrap().display().to_string();
            assert!(
                tests.contains(&format!("\"{name}\"")),
                "no test runs {name}"
            );
        }
    }
    assert!(pages >= 10, "{pages}");
}
