//! Pages of the reference that the code determines: the command line and the metrics.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::wire::Wire;

use crate::help::{commands, help};
use crate::sidecar::free_port;

const LIMIT: Duration = Duration::from_secs(60);

fn page(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/reference");
    folder.join(name)
}

/// Returns the text of the page of all commands.
fn command_line() -> String {
    let mut text = "# Command line\n\n\
        After reading this page you can look up every command and flag, as `--help` prints them.\n\n\
        <!-- UPDATE_EXPECT=1 cargo test -p tenure-tests reference writes this page. -->\n"
        .to_owned();
    let mut commands = commands();
    commands.sort();
    for path in commands {
        let name = [&["tenure".to_owned()], &path[..]].concat().join(" ");
        let help = help(&path, "--help", 100);
        let lines = help.trim().lines().map(str::trim_end);
        let help = lines.collect::<Vec<_>>().join("\n");
        // Writing to a string cannot fail.
        let _ = write!(text, "\n## `{name}`\n\n```text\n{help}\n```\n");
    }
    text
}

#[test]
fn page_of_the_command_line_is_the_help_of_every_command() {
    let file = page("command-line.md");
    let expected = command_line();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&file, &expected).unwrap();
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let differ = text
        .lines()
        .zip(expected.lines())
        .find(|(now, expected)| now != expected);
    assert!(
        text == expected,
        "{} is out of date, for example {differ:?}; UPDATE_EXPECT=1 writes it again",
        file.display()
    );
}

/// Returns the rows of a page of metrics for the families of an exposition.
fn rows(exposition: &str) -> Vec<String> {
    let kind = |name: &str| {
        let mut types = exposition.lines();
        let line = types.find_map(|line| line.strip_prefix(&format!("# TYPE {name} ")));
        line.unwrap_or("unknown").to_owned()
    };
    let families = exposition
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "));
    let families = families.filter_map(|line| line.split_once(' '));
    families
        .map(|(name, help)| {
            let help = help.trim_end_matches('.');
            format!("| `{name}` | {} | {help} |", kind(name))
        })
        .collect()
}

/// Returns `/metrics` of a plain listener.
fn scrape(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer).filter(|answer| answer.contains("# HELP"))
}

#[test]
fn page_of_the_metrics_has_every_family_of_the_sidecar_and_the_servers() {
    let home = Home::new();
    let (sidecar, controllers) = (free_port(), free_port());
    let mut command = home.command();
    command
        .args(["server", "--ephemeral", "--write-kubeconfig", "cluster"])
        .arg(format!("--metrics-address=127.0.0.1:{controllers}"));
    let _server = Process::spawn("server", command).unwrap();
    let kubeconfig = home.path("cluster");
    poll(LIMIT, || kubeconfig.exists().then_some(())).expect("a kubeconfig");
    let mut command = home.command();
    command
        .args(["elect", "e", "--announce", "--kubeconfig"])
        .arg(&kubeconfig)
        .arg(format!("--http=127.0.0.1:{sidecar}"));
    let _sidecar = Process::spawn("sidecar", command).unwrap();
    let of_sidecar = poll(LIMIT, || {
        scrape(sidecar).filter(|text| text.contains("tenure_terms_total{"))
    });
    let of_controllers = poll(LIMIT, || scrape(controllers));
    let api = Embedded::start().unwrap();
    let api = Wire::connect(&api.kubeconfig()).and_then(|api| api.get("/metrics"));
    let api = api.unwrap().body.as_str().unwrap_or_default().to_owned();

    let text = std::fs::read_to_string(page("metrics.md")).unwrap();
    let found = [of_sidecar.unwrap(), of_controllers.unwrap(), api];
    let mut missing: Vec<String> = found.iter().flat_map(|text| rows(text)).collect();
    assert!(missing.len() > 20, "{missing:?}");
    missing.retain(|row| !text.contains(row.as_str()));
    missing.sort();
    missing.dedup();
    assert!(
        missing.is_empty(),
        "metrics.md lacks these rows:\n{}",
        missing.join("\n")
    );
}
