//! The files of `cargo xtask dist`, made from the command of this build. Each package is installed as by a user, and
//! starts servers for the Kubernetes client of its language.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tenure_tests::clock::poll;
use tenure_tests::real::{self, Peer};
use tenure_tests::{Skip, tools};

const LIMIT: Duration = Duration::from_secs(120);
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

/// Runs a program to its end, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// Makes files of a release, and returns their folder.
fn dist(kinds: &[&str]) -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let binary = BINARY.get_or_init(|| {
        std::fs::create_dir_all(&folder).unwrap();
        // A debug build consists mostly of symbols, which take long to compress.
        let (built, small) = (tools::tenure().unwrap(), folder.join("tenure"));
        let mut strip = Command::new("strip");
        let stripped = strip.arg("-o").args([&small, &built]).status();
        if !stripped.is_ok_and(|status| status.success()) {
            std::fs::copy(built, &small).unwrap();
        }
        small
    });
    let out = folder.join(kinds.join("-"));
    let mut command = Command::new(tools::xtask().unwrap());
    command.arg("dist").args(kinds).arg("--binary").arg(binary);
    run(command.arg("--out").arg(&out));
    out
}

/// An environment without the command on the PATH. Servers write their files into a folder below it.
struct Environment {
    folder: TempDir,
}

impl Environment {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("tmp")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("TMPDIR", self.path("tmp"))
            .current_dir(self.folder.path());
        command
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Runs a program that starts a server, prints its kubeconfig and kills itself. Expects that the server ends.
    fn expect_server_ends_with(&self, command: &mut Command) {
        let output = command.output().unwrap();
        let said = text(&output);
        assert!(!output.status.success(), "it kills itself: {said}");
        let folder = self.path("tmp");
        assert!(said.contains(folder.to_str().unwrap()), "no server: {said}");
        let left = || std::fs::read_dir(&folder).unwrap().count();
        let gone = poll(LIMIT, || (left() == 0).then_some(()));
        assert!(gone.is_some(), "the server outlives its parent");
    }
}

/// Returns the first code block of this language in a page.
fn documented(page: &str, language: &str) -> String {
    let page = std::fs::read_to_string(root().join(page)).unwrap();
    let (_, block) = page.split_once(&format!("```{language}\n")).unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// Installs the wheel into a fresh virtual environment, and returns its folder. The Kubernetes client and pytest are
/// taken from `target/tools`.
fn python_project(python: &Path, project: &Environment) -> PathBuf {
    let folder = project.path("venv");
    let venv = ["-m", "venv", "--without-pip"];
    run(project.command(python).args(venv).arg(&folder));
    let wheel = format!("tenure-{VERSION}-py3-none-linux_x86_64.whl");
    let own = folder.join("bin/python");
    let install = ["install", "--quiet", "--no-index", "--no-cache-dir"];
    run(project
        .command(python)
        .args(["-m", "pip", "--python"])
        .arg(&own)
        .args(install)
        .arg(dist(&["wheel"]).join(wheel)));
    let packages = "import sysconfig; print(sysconfig.get_path('purelib'), end='')";
    let ask = |python: &Path| PathBuf::from(run(project.command(python).args(["-c", packages])));
    let shared = ask(python);
    std::fs::write(ask(&own).join("tools.pth"), shared.to_str().unwrap()).unwrap();
    folder
}

const PYTHON_TEST: &str = r#"
import os
import pytest
import tenure
from kubernetes import client, config

SERVERS = set()


@pytest.mark.parametrize("holder", ["a", "b"])
def test_lease_is_created(tenure_server, holder):
    SERVERS.add(tenure_server.kubeconfig)
    api = client.CoordinationV1Api(config.new_client_from_config(tenure_server.kubeconfig))
    lease = {"metadata": {"name": "web-" + holder}, "spec": {"holderIdentity": holder}}
    api.create_namespaced_lease("default", lease)
    assert api.read_namespaced_lease("web-" + holder, "default").spec.holder_identity == holder


def test_fixture_has_the_scope_of_the_settings(request):
    shared = request.config.getini("tenure_server_scope") == "session"
    assert len(SERVERS) == (1 if shared else 2)
    assert all(os.path.exists(path) == shared for path in SERVERS)


def test_invalid_flag_is_reported():
    with pytest.raises(RuntimeError, match="it ended"):
        tenure.Server(["--no-such-flag"])
"#;

#[test]
fn packages_wheel_starts_servers_for_pytest_and_the_python_client() {
    let Some(python) = Skip::unless(tools::python()) else {
        return;
    };
    let project = Environment::new();
    let venv = python_project(&python, &project);
    let version = run(project.command(venv.join("bin/tenure")).arg("--version"));
    assert!(version.contains(VERSION), "{version}");
    let readme = documented("packages/python/README.md", "python");
    project.write("test_readme.py", &readme);
    project.write("test_lease.py", PYTHON_TEST);
    let own = venv.join("bin/python");
    for scope in ["function", "session"] {
        let mut pytest = project.command(&own);
        pytest.args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o"]);
        let said = run(pytest.arg(format!("tenure_server_scope={scope}")));
        assert!(said.contains("5 passed"), "{scope}: {said}");
    }
    let killed =
        "import os, tenure; print(tenure.Server().kubeconfig, flush=True); os.kill(os.getpid(), 9)";
    project.expect_server_ends_with(project.command(&own).args(["-c", killed]));
}

/// Installs the npm package into an empty project. The Kubernetes client is taken from `target/tools`.
fn node_project(modules: &Path, project: &Environment) {
    project.write("package.json", r#"{ "private": true, "type": "module" }"#);
    let tarball = dist(&["npm"]).join(format!("tenure-{VERSION}.tgz"));
    let install = ["install", "--offline", "--no-audit", "--no-fund"];
    let npm = &mut project.command("npm");
    run(npm.args(install).arg("--no-update-notifier").arg(tarball));
    let own = project.path("node_modules/@kubernetes");
    symlink(modules.join("@kubernetes"), own).unwrap();
}

#[test]
fn packages_npm_starts_servers_for_node_jest_and_the_javascript_client() {
    let Some(modules) = Skip::unless(tools::jest()) else {
        return;
    };
    let project = Environment::new();
    node_project(&modules, &project);
    let tenure = project.path("node_modules/.bin/tenure");
    let version = run(project.command(tenure).arg("--version"));
    assert!(version.contains(VERSION), "{version}");

    let readme = documented("packages/npm/README.md", "js");
    project.write("readme.test.mjs", &readme);
    let said = run(project.command("node").args(["--test", "readme.test.mjs"]));
    assert!(said.contains("pass 1"), "{said}");

    // The same test for Jest, whose functions are global.
    let jest = readme
        .replace("import { after, before, test } from \"node:test\";\n", "")
        .replace("before(", "beforeAll(")
        .replace("after(", "afterAll(");
    project.write("jest.test.mjs", &jest);
    let config =
        r#"{ "testEnvironment": "node", "testMatch": ["**/jest.test.mjs"], "transform": {} }"#;
    project.write("jest.json", config);
    let mut jest = project.command("node");
    jest.arg("--experimental-vm-modules")
        .arg(modules.join("jest/bin/jest.js"))
        .args(["--config=jest.json", "--ci", "--no-cache", "--runInBand"]);
    let said = run(&mut jest);
    assert!(said.contains("1 passed"), "{said}");

    let invalid = "import { startServer } from 'tenure';
        await startServer({ args: ['--no-such-flag'] }).catch((error) => console.log(error.message));";
    let module = ["--input-type=module", "--eval"];
    let said = run(project.command("node").args(module).arg(invalid));
    assert!(said.contains("it ended"), "{said}");
    // The program ends although it does not stop its server.
    let forgotten = "import { startServer } from 'tenure'; await startServer();";
    run(project.command("node").args(module).arg(forgotten));
    let killed = "import { startServer } from 'tenure';
        console.log((await startServer()).kubeconfig); process.kill(process.pid, 'SIGKILL');";
    let fresh = project.path("tmp");
    _ = std::fs::remove_dir_all(&fresh);
    std::fs::create_dir(&fresh).unwrap();
    project.expect_server_ends_with(project.command("node").args(module).arg(killed));
}

/// Returns the PATH of this process, with the folder of the command before the others.
fn path_with_the_command() -> std::ffi::OsString {
    let tenure = tools::tenure().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = tenure.parent().into_iter().map(Path::to_owned);
    std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap()
}

#[test]
fn packages_go_starts_servers_for_tests_with_client_go() {
    if Skip::unless(real::available(&[Peer::TestServer])).is_none() {
        return;
    }
    let tests = real::built(Peer::TestServer).unwrap();
    let project = Environment::new();
    let path = path_with_the_command();
    let command = |filter: &str| {
        let mut command = project.command(&tests);
        command
            .env("PATH", &path)
            .args(["-test.v", "-test.count=1"]);
        command.arg(format!("-test.run={filter}"));
        command
    };
    let said = run(&mut command(""));
    assert_eq!(said.matches("--- PASS").count(), 5, "{said}");
    let killed = &mut command("TestKilledProcess");
    project.expect_server_ends_with(killed.env("TESTSERVER_KILL", "1"));
}

const JAVA_KILLED: &str = r#"
import dev.tenure.junit.TenureServer;

class Killed {
  public static void main(String... args) throws Exception {
    System.out.println(new TenureServer().start().kubeconfig());
    String own = String.valueOf(ProcessHandle.current().pid());
    new ProcessBuilder("kill", "-KILL", own).start().waitFor();
    Thread.sleep(60_000);
  }
}
"#;

#[test]
fn packages_java_starts_servers_for_junit_and_the_java_client() {
    let Some(repository) = Skip::unless(tools::maven()) else {
        return;
    };
    let project = Environment::new();
    let sources = root().join("clients/java");
    let pom = std::fs::read_to_string(sources.join("pom.xml")).unwrap();
    assert!(pom.contains(&format!("<version>{VERSION}</version>")));
    run(Command::new("cp")
        .arg("-r")
        .args([sources.join("pom.xml"), sources.join("src")])
        .arg(project.folder.path()));
    let readme = documented("clients/java/README.md", "java");
    project.write("src/test/java/NamespaceTest.java", &readme);
    let path = path_with_the_command();
    let mut maven = project.command("mvn");
    maven
        .env("PATH", &path)
        .args(["--batch-mode", "--no-transfer-progress", "test"])
        .arg(format!("-Dmaven.repo.local={}", repository.display()));
    let said = run(&mut maven);
    let passed = "Tests run: 6, Failures: 0, Errors: 0, Skipped: 0";
    assert!(said.contains(passed), "{said}");

    // Without Maven and JUnit, whose processes would also have to be killed.
    project.write("Killed.java", JAVA_KILLED);
    let (_, version) = pom.split_once("<junit.version>").unwrap();
    let (version, _) = version.split_once('<').unwrap();
    let api =
        format!("org/junit/jupiter/junit-jupiter-api/{version}/junit-jupiter-api-{version}.jar");
    let classes = [project.path("target/classes"), repository.join(api)];
    let classes = std::env::join_paths(classes).unwrap();
    let java = || {
        let mut java = project.command("java");
        java.arg("-cp").arg(&classes).arg("Killed.java");
        java
    };
    project.expect_server_ends_with(java().env("PATH", &path));
    let missing = java().env("TENURE_BINARY", "/nowhere/tenure").output();
    let said = text(&missing.unwrap());
    assert!(said.contains("cannot start /nowhere/tenure"), "{said}");
}

/// The archive has the command, its completions and man pages. The krew manifest names this archive.
#[test]
fn packages_archive_and_its_krew_manifest_contain_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let made = dist(&["archive", "krew"]);
    let name = format!("tenure-{VERSION}-x86_64-linux.tar.gz");
    let archive = made.join(&name);
    let tar = &mut Command::new("tar");
    run(tar.arg("-xzf").arg(&archive).arg("-C").arg(folder.path()));
    let inside = folder.path().join(format!("tenure-{VERSION}"));
    let version = run(Command::new(inside.join("tenure")).arg("--version"));
    assert!(version.contains(VERSION), "{version}");
    for file in [
        "LICENSE",
        "completions/tenure.bash",
        "completions/_tenure",
        "completions/tenure.fish",
        "man/tenure.1",
        "man/tenure-run.1",
    ] {
        let size = std::fs::metadata(inside.join(file)).unwrap().len();
        assert!(size > 100, "{file}");
    }
    let krew = std::fs::read_to_string(made.join("tenure.yaml")).unwrap();
    let krew: Value = serde_saphyr::from_str(&krew).unwrap();
    let platform = &krew["spec"]["platforms"][0];
    let sum = run(Command::new("sha256sum").arg(&archive));
    assert!(sum.starts_with(platform["sha256"].as_str().unwrap()));
    assert!(platform["uri"].as_str().unwrap().ends_with(&name));
    let from = platform["files"][0]["from"].as_str().unwrap();
    assert!(folder.path().join(from).exists(), "{from}");
    let check = ["--check", "--strict", "SHA256SUMS"];
    let said = run(Command::new("sha256sum").args(check).current_dir(&made));
    assert!(said.contains(&format!("{name}: OK")), "{said}");
}

/// The package installs the command, its documentation and the units, whose command lines name the installed file.
#[test]
fn packages_deb_installs_the_command_and_its_units() {
    if Skip::unless(tools::dpkg_deb()).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let package = dist(&["deb"]).join(format!("tenure_{VERSION}_amd64.deb"));
    let control = run(Command::new("dpkg-deb").arg("--info").arg(&package));
    assert!(
        control.contains(&format!("Version: {VERSION}")),
        "{control}"
    );
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        assert!(!control.contains(script), "{control}");
    }
    let owners = run(Command::new("dpkg-deb").arg("--contents").arg(&package));
    assert!(
        owners.lines().all(|line| line.contains(" root/root ")),
        "{owners}"
    );
    run(Command::new("dpkg-deb")
        .arg("-x")
        .args([&package, folder.path()]));
    let installed = |path: &str| folder.path().join(path.trim_start_matches('/'));
    let version = run(Command::new(installed("/usr/bin/tenure")).arg("--version"));
    assert!(version.contains(VERSION), "{version}");
    for unit in ["tenure@.service", "tenure-server.service"] {
        let unit = installed("/usr/lib/systemd/system").join(unit);
        let unit = std::fs::read_to_string(unit).unwrap();
        let start = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="));
        assert!(start.unwrap().starts_with("/usr/bin/tenure "), "{unit}");
        assert!(!unit.contains("/usr/local"), "{unit}");
    }
    for file in [
        "/usr/lib/sysusers.d/tenure.conf",
        "/usr/share/bash-completion/completions/tenure",
        "/usr/share/zsh/vendor-completions/_tenure",
        "/usr/share/fish/vendor_completions.d/tenure.fish",
        "/usr/share/man/man1/tenure-run.1.gz",
        "/usr/share/doc/tenure/copyright",
    ] {
        assert!(installed(file).exists(), "{file}");
    }
}

/// The bill names every crate of the command with its licence, and the checksum of each that is not ours.
#[test]
fn packages_sbom_lists_every_linked_crate() {
    let bill = std::fs::read_to_string(dist(&["sbom"]).join(format!("tenure-{VERSION}.cdx.json")))
        .unwrap();
    let bill: Value = serde_json::from_str(&bill).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    let components = bill["components"].as_array().unwrap();
    let names: Vec<&str> = components
        .iter()
        .filter_map(|c| c["name"].as_str())
        .collect();
    for linked in ["tenure", "tenure-server", "kube", "redb", "tokio", "ring"] {
        assert!(names.contains(&linked), "{linked}");
    }
    for not_linked in ["tempfile", "tenure-sim", "tonic-prost-build", "xtask"] {
        assert!(!names.contains(&not_linked), "{not_linked}");
    }
    for component in components {
        let name = component["name"].as_str().unwrap();
        let licence = &component["licenses"][0]["expression"];
        assert!(licence.is_string(), "{name}");
        let ours = name == "tenure" || name.starts_with("tenure-");
        assert_eq!(component["hashes"].is_null(), ours, "{name}");
    }
}
