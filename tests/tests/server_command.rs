//! `tenure server` as a process: one server per directory, backup and restore.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::home::{Home, write_secret};
use tenure_tests::nemesis::proxy::{Gate, Proxy};
use tenure_tests::process::Process;
use tenure_tests::wire::Wire;

const LIMIT: Duration = Duration::from_secs(180);

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Runs a command while leading and returns the token of its term.
fn token(home: &Home) -> u64 {
    let output = home.tenure(&[
        "run",
        "--election=e",
        "--",
        "sh",
        "-c",
        "echo $TENURE_FENCING_TOKEN",
    ]);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap()
}

/// Returns the description of the server of this home directory, if it runs.
fn running(home: &Home) -> Option<serde_json::Value> {
    let status = home.tenure(&["server", "status"]);
    serde_json::from_slice(&status.stdout).ok()
}

/// Starts `tenure server run` with these options on free ports. Returns its description.
fn serve(home: &Home, options: &[&str]) -> (Process, serde_json::Value) {
    let mut command = home.command();
    command.args(["server", "run", "--listen=127.0.0.1:0"]);
    command.arg("--insecure-listen=127.0.0.1:0").args(options);
    let server = Process::spawn("server", command).unwrap();
    let instance = poll(LIMIT, || running(home));
    let instance = instance.unwrap_or_else(|| panic!("no start: {}", server.transcript()));
    (server, instance)
}

/// Returns the address on which a server listens without TLS.
fn plain(instance: &serde_json::Value) -> &str {
    let url = instance["insecureUrl"].as_str().unwrap();
    url.trim_start_matches("http://")
}

/// Connects as the administrator of a server.
fn admin(instance: &serde_json::Value) -> Wire {
    let kubeconfig = instance["kubeconfig"].as_str().unwrap();
    Wire::connect(Path::new(kubeconfig)).unwrap()
}

/// Returns the code of the response to a GET over plain HTTP.
fn plain_get(instance: &serde_json::Value, path: &str, token: &str) -> u16 {
    let mut stream = TcpStream::connect(plain(instance)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let token = match token {
        "" => String::new(),
        token => format!("authorization: Bearer {token}\r\n"),
    };
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{token}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn server_command_restores_its_backup_and_never_reuses_a_revision() {
    let home = Home::new();
    token(&home);
    let saved = home.tenure(&["server", "backup", "live.backup"]);
    assert!(saved.status.success(), "{}", text(&saved));
    let last = token(&home);
    assert!(home.tenure(&["server", "stop"]).status.success());
    let saved = home.tenure(&["server", "backup", "stopped.backup"]);
    assert!(saved.status.success(), "{}", text(&saved));
    let restored = home.tenure(&["server", "restore", "live.backup"]);
    assert!(restored.status.success(), "{}", text(&restored));
    assert!(token(&home) > last, "the token is above all earlier tokens");
}

/// For every error of the database engine about a damaged file, the message names the file and the remedy.
#[test]
fn server_command_reports_a_damaged_file() {
    let home = Home::new();
    token(&home);
    let instance = running(&home).unwrap();
    let kubeconfig = Path::new(instance["kubeconfig"].as_str().unwrap());
    let file = kubeconfig.parent().unwrap().join("store.redb");
    assert!(home.tenure(&["server", "stop"]).status.success());
    let whole = std::fs::read(&file).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let mut found = 0;
    for page in (0..used).step_by(4096) {
        let mut damaged = whole.clone();
        damaged[page..page + 64]
            .iter_mut()
            .for_each(|byte| *byte ^= 0x55);
        std::fs::write(&file, &damaged).unwrap();
        let saved = home.tenure(&["server", "backup", &format!("{page}.backup")]);
        let said = text(&saved);
        assert!(!said.contains("panicked"), "{said}");
        if !saved.status.success() {
            found += 1;
            assert_eq!(saved.status.code(), Some(1), "{said}");
            assert!(said.contains("store.redb is damaged: "), "{said}");
            assert!(
                said.contains("; move it away and restore a backup"),
                "{said}"
            );
        }
    }
    assert!(found > 2, "{found} of {used} bytes");
}

#[test]
fn server_command_refuses_a_directory_in_use() {
    let home = Home::new();
    token(&home);
    let instance = running(&home).unwrap();
    let second = home.tenure(&["server", "run", "--listen=127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(1), "{}", text(&second));
    assert!(
        text(&second).contains(&instance["pid"].to_string()),
        "{}",
        text(&second)
    );
    let restore = home.tenure(&["server", "restore", "nothing"]);
    assert!(
        text(&restore).contains("stop it first"),
        "{}",
        text(&restore)
    );
}

/// The stream of a watch ends properly, and the store is closed. A store that was not closed would continue with
/// another revision.
#[test]
fn server_command_drains_watches_and_ends_cleanly_when_asked() {
    let home = Home::new();
    // Without controllers only this test writes.
    let alone = format!("--disable={}", tenure_server::CONTROLLERS.join(","));
    let (mut server, instance) = serve(&home, &[&alone]);
    let folder = Path::new(instance["kubeconfig"].as_str().unwrap());
    let folder = folder.parent().unwrap();
    let token = std::fs::read_to_string(folder.join("token")).unwrap();
    let map = serde_json::json!({ "metadata": { "name": "seen" } });
    let made = admin(&instance)
        .send(&http::Method::POST, MAPS, Some(&map))
        .unwrap();
    let revision = &made.body["metadata"]["resourceVersion"];

    let watch = TcpStream::connect(plain(&instance)).unwrap();
    watch.set_read_timeout(Some(LIMIT)).unwrap();
    let request = format!(
        "GET {MAPS}?watch=true HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
        token.trim()
    );
    (&watch).write_all(request.as_bytes()).unwrap();
    let mut watch = BufReader::new(watch);
    let mut text = String::new();
    while !text.contains(r#""name":"seen""#) {
        assert!(watch.read_line(&mut text).unwrap() > 0, "{text}");
    }
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");

    server.terminate();
    watch.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("0\r\n\r\n"), "{text}");
    let ended = server.wait(LIMIT).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", server.transcript());
    assert!(!folder.join("server.json").exists());

    let (_server, instance) = serve(&home, &[&alone]);
    let listed = admin(&instance).get(MAPS).unwrap().body;
    assert_eq!(listed["items"][0]["metadata"]["name"], "seen", "{listed}");
    assert_eq!(&listed["metadata"]["resourceVersion"], revision, "{listed}");
}

/// The recorded file grants the permission that the request lacked.
#[test]
fn server_command_records_the_least_role_of_observed_requests() {
    let home = Home::new();
    write_secret(home.path("tokens"), "secret,alice,1\n");
    let options = [
        "--store=memory",
        "--token-auth-file=tokens",
        "--record-rbac=roles.yaml",
    ];
    let (mut server, instance) = serve(&home, &options);
    assert_eq!(plain_get(&instance, MAPS, "secret"), 403);
    server.terminate();
    let ended = server.wait(LIMIT).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", server.transcript());
    let recorded = std::fs::read_to_string(home.path("roles.yaml")).unwrap();
    let of_alice: Vec<&str> = recorded
        .split("---\n")
        .filter(|document| document.contains("recorded:alice"))
        .collect();
    let [role, binding] = of_alice[..] else {
        panic!("{recorded}")
    };
    assert!(role.contains("kind: Role\n"), "{role}");
    let rule = "rules:\n- apiGroups: [\"\"]\n  resources: [\"configmaps\"]\n  verbs: [\"list\"]\n";
    assert!(role.ends_with(rule), "{role}");

    let (_server, instance) = serve(&home, &options[..2]);
    assert_eq!(plain_get(&instance, MAPS, "secret"), 403);
    let admin = admin(&instance);
    for (plural, object) in [("roles", role), ("rolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/default/{plural}");
        let (post, yaml) = (http::Method::POST, "application/yaml");
        let made = admin.send_as(&post, &path, yaml, object.into()).unwrap();
        assert!(made.status.is_success(), "{}", made.body);
    }
    assert_eq!(plain_get(&instance, MAPS, "secret"), 200);
}

#[test]
fn server_command_prints_the_token_of_the_administrator() {
    let home = Home::new();
    let none = home.tenure(&["server", "token"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(
        text(&none).contains("no server has run on"),
        "{}",
        text(&none)
    );
    let (_server, instance) = serve(&home, &[]);
    let printed = home.tenure(&["server", "token"]);
    assert!(printed.status.success(), "{}", text(&printed));
    let token = String::from_utf8(printed.stdout).unwrap();
    let secrets = "/api/v1/secrets";
    assert_eq!(plain_get(&instance, secrets, token.trim()), 200);
    assert_eq!(plain_get(&instance, secrets, "another"), 401);
}

#[test]
fn server_command_uses_xdg_state_home() {
    let home = Home::new();
    let state = home.path("elsewhere");
    let tenure = |args: &[&str]| {
        let mut command = home.command();
        command.env("XDG_STATE_HOME", &state).args(args);
        command.output().unwrap()
    };
    let ran = tenure(&["run", "--election=e", "--", "true"]);
    assert!(ran.status.success(), "{}", text(&ran));
    let status = tenure(&["server", "status"]);
    let stopped = tenure(&["server", "stop"]);
    assert!(stopped.status.success(), "{}", text(&stopped));
    let instance: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let wanted = state.canonicalize().unwrap().join("tenure/kubeconfig");
    assert_eq!(instance["kubeconfig"].as_str(), wanted.to_str());
    assert!(wanted.exists());
    assert!(
        !home.path(".local").exists(),
        "no file is outside XDG_STATE_HOME"
    );
}

#[test]
fn server_command_serves_ten_thousand_idle_connections() {
    const CONNECTIONS: usize = 10_000;
    let home = Home::new();
    raise_file_limit(CONNECTIONS as u64 + 500);
    let (server, instance) = serve(&home, &["--store=memory"]);
    let memory = || server.resident_bytes().unwrap();
    let before = memory();
    let idle: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| TcpStream::connect(plain(&instance)).unwrap())
        .collect();
    for _ in 0..10 {
        assert_eq!(plain_get(&instance, "/version", ""), 200);
    }
    let each = memory().saturating_sub(before) / CONNECTIONS as u64;
    assert!(each < 20_000, "{each} bytes for an idle connection");
    for connection in idle {
        connection.set_nonblocking(true).unwrap();
        let closed = connection.peek(&mut [0]);
        let open = matches!(&closed, Err(error) if error.kind() == ErrorKind::WouldBlock);
        assert!(open, "{closed:?}");
    }
}

/// A server with enough data that a backup takes a while, and its administrator's socket.
struct Full {
    home: Home,
    server: Process,
    instance: serde_json::Value,
}

impl Full {
    fn start() -> Self {
        let home = Home::new();
        std::fs::create_dir(home.path("tmp")).unwrap();
        let mut command = home.command();
        command
            .env("TMPDIR", home.path("tmp"))
            .args(["server", "run", "--listen=127.0.0.1:0", "--store=memory"])
            .arg("--unix-socket")
            .arg(home.path("socket"));
        let server = Process::spawn("server", command).unwrap();
        let instance = poll(LIMIT, || {
            let status = home.tenure(&["server", "status"]);
            serde_json::from_slice::<serde_json::Value>(&status.stdout).ok()
        });
        let instance = instance.expect("the server starts");
        let kubeconfig = instance["kubeconfig"].as_str().unwrap();
        let admin = Wire::connect(Path::new(kubeconfig)).unwrap();
        for n in 0..16 {
            let map = serde_json::json!({ "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": format!("big-{n}") }, "data": { "k": "x".repeat(900_000) } });
            let path = "/api/v1/namespaces/default/configmaps";
            let made = admin.send(&http::Method::POST, path, Some(&map)).unwrap();
            assert!(made.status.is_success(), "{}", made.body);
        }
        Self {
            home,
            server,
            instance,
        }
    }

    /// Sends a request over the administrator's socket.
    fn ask(&self, method: &str, path: &str, headers: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.home.path("socket")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Sends a request and returns the code of the response.
    fn code(&self, method: &str, path: &str, headers: &str) -> u16 {
        let mut line = [0; 12];
        self.ask(method, path, headers)
            .read_exact(&mut line)
            .unwrap();
        String::from_utf8_lossy(&line[9..]).parse().unwrap()
    }
}

#[test]
fn server_command_cancelled_backup_leaves_no_file_and_a_working_server() {
    let full = Full::start();
    for round in 0..12 {
        let mut stream = full.ask("GET", "/tenure/backup", "");
        // The client disconnects before the first byte, and in the middle.
        if round % 2 == 1 {
            let mut some = vec![0; 64 * 1024];
            stream.read_exact(&mut some).unwrap();
            assert!(some.starts_with(b"HTTP/1.1 200"));
        }
        drop(stream);
    }
    let files = || std::fs::read_dir(full.home.path("tmp")).unwrap().count();
    let open = || {
        let folder = format!("/proc/{}/fd", full.server.pid());
        let links = std::fs::read_dir(folder).unwrap().flatten();
        let mut links = links.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.any(|link| link.to_string_lossy().contains("tenure-backup"))
    };
    let cleared = poll(LIMIT, || (files() == 0 && !open()).then_some(()));
    assert!(cleared.is_some(), "{} files, open: {}", files(), open());
    assert_eq!(full.code("GET", "/readyz", ""), 200);
    let saved = full.home.tenure(&["server", "backup", "whole"]);
    assert!(saved.status.success(), "{}", text(&saved));
    assert!(full.home.path("whole").metadata().unwrap().len() > 10_000_000);
}

/// An incomplete backup leaves no file, neither under its name nor under another one.
#[test]
fn server_command_interrupted_backup_leaves_no_file() {
    let full = Full::start();
    // The connection to the server is slow.
    let kubeconfig = full.instance["kubeconfig"].as_str().unwrap();
    let proxy = Proxy::start(Path::new(kubeconfig)).unwrap();
    let dir = Path::new(kubeconfig).parent().unwrap();
    let described = std::fs::read_dir(dir)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("startTicks")));
    let described = described.expect("the server describes itself in its directory");
    let mut instance = full.instance.clone();
    instance["kubeconfig"] = proxy.kubeconfig().to_str().unwrap().into();
    std::fs::write(described, instance.to_string()).unwrap();
    let whole = full.home.path("b");
    let part = || {
        let files = std::fs::read_dir(full.home.path("")).unwrap().flatten();
        let mut files = files.map(|entry| entry.path());
        files.find(|path| path.extension().is_some_and(|end| end == "part"))
    };
    for how in ["cut", "interrupted"] {
        proxy.set(Gate::Open, Gate::Slow(Duration::from_millis(40)));
        let mut command = full.home.command();
        command.args(["server", "backup", "b"]);
        let mut saving = Process::spawn("backup", command).unwrap();
        let began = poll(LIMIT, || {
            let length = part()?.metadata().ok()?.len();
            (length > 50_000).then_some(())
        });
        assert!(began.is_some(), "{}", saving.transcript());
        let mode = part().unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "the backup contains secrets");
        let code = if how == "cut" {
            proxy.reset();
            1
        } else {
            let pid = i32::try_from(saving.pid()).unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
            128 + 2
        };
        let status = saving.wait(LIMIT).unwrap();
        assert_eq!(status.code(), Some(code), "{how}: {}", saving.transcript());
        assert!(part().is_none() && !whole.exists(), "{how}");
    }
    proxy.heal();
    let saved = full.home.tenure(&["server", "backup", "b"]);
    assert!(saved.status.success(), "{}", text(&saved));
    assert_eq!(
        whole.metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(part().is_none());
}

/// The page acts with the credentials of the request, not with those of the server or of the owner of a socket.
#[test]
fn server_command_page_does_not_act_as_the_administrator() {
    let full = Full::start();
    let kubeconfig = full.instance["kubeconfig"].as_str().unwrap();
    let admin = Wire::connect(Path::new(kubeconfig)).unwrap();
    let lease = serde_json::json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "e" }, "spec": { "holderIdentity": "a", "leaseDurationSeconds": 15 } });
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let made = admin
        .send(&http::Method::POST, leases, Some(&lease))
        .unwrap();
    assert!(made.status.is_success(), "{}", made.body);
    let order = "/ui/step-down?namespace=default&name=e";
    // Over the socket, its owner is the administrator, but the page has no permissions.
    assert_eq!(full.code("GET", leases, ""), 200);
    assert_eq!(
        full.code("GET", "/ui", ""),
        200,
        "the page itself has no permissions"
    );
    assert_eq!(full.code("GET", "/ui/feed", ""), 403);
    assert_eq!(full.code("POST", order, ""), 401);
    let wrong = "authorization: Bearer wrong\r\n";
    assert_eq!(full.code("GET", "/ui/feed", wrong), 401);
    assert_eq!(full.code("POST", order, wrong), 401);
    // Over TLS without credentials, as from any other machine.
    let mut config =
        serde_json::to_value(kube::config::Kubeconfig::read_from(kubeconfig).unwrap()).unwrap();
    config["users"][0]["user"] = serde_json::json!({});
    let nobody = full.home.path("nobody");
    std::fs::write(&nobody, config.to_string()).unwrap();
    let nobody = Wire::connect(&nobody).unwrap();
    assert_eq!(nobody.get("/ui/feed").unwrap().status, 403);
    let refused = nobody.send(&http::Method::POST, order, None).unwrap();
    assert_eq!(refused.status, 401);
    let untouched = admin.get(&format!("{leases}/e")).unwrap().body;
    assert!(
        untouched["metadata"]["annotations"].is_null(),
        "{untouched}"
    );
}

/// Raises the limit as far as the system allows.
fn raise_file_limit(wanted: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let current = Some(wanted);
        let maximum = limit.maximum;
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("ten thousand files");
    }
}
