//! Many clients of an HTTP listener: streams, idle connections and unauthenticated clients do not block others.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use tenure_tests::clock::{Nanos, poll};
use tenure_tests::event::Kind;
use tenure_tests::home::Home;
use tenure_tests::process::Process;

use crate::sidecar::free_port;

const LIMIT: Duration = Duration::from_secs(120);

/// Connects to a port of 127.0.0.1 from the address 127.0.0.N.
fn connect_from(last: u8, port: u16) -> TcpStream {
    let socket: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let own = SocketAddrV4::new([127, 0, 0, last].into(), 0);
    bind(&socket, &own).unwrap();
    let server = SocketAddrV4::new([127, 0, 0, 1].into(), port);
    connect(&socket, &server).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Sends a request and returns the code of its response, and the connection.
fn request(
    mut stream: TcpStream,
    path: &str,
    headers: &str,
) -> Option<(u16, BufReader<TcpStream>)> {
    let text = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n");
    stream.write_all(text.as_bytes()).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    Some((line.split(' ').nth(1)?.parse().ok()?, reader))
}

fn code(last: u8, port: u16, path: &str) -> Option<u16> {
    let (code, _) = request(connect_from(last, port), path, "Connection: close\r\n")?;
    Some(code)
}

/// Checks that short requests of these clients succeed.
#[track_caller]
fn probes_work(port: u16, clients: &[u8]) {
    for path in ["/livez", "/readyz", "/healthz", "/metrics", "/v1/is-leader"] {
        for client in clients {
            assert_eq!(code(*client, port, path), Some(200), "{path} of {client}");
        }
    }
}

#[test]
fn sidecar_seats_of_probes_stay_free_despite_streams_and_idle_clients() {
    let home = Home::new();
    let port = free_port();
    let mut command = home.command();
    command
        .args(["elect", "--election=e", "--events=json", "--id=me"])
        .arg(format!("--http=127.0.0.1:{port}"));
    let leader = Process::spawn("me", command).unwrap();
    leader.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();

    let mut streams = Vec::new();
    for (client, wanted) in [(1, 256), (2, 256), (3, 0)] {
        let (mut open, mut refused) = (0, 0);
        for n in 0..wanted + 20 {
            let path = if n % 2 == 0 { "/sse" } else { "/v1/watch" };
            let (code, reader) = request(connect_from(client, port), path, "").unwrap();
            match code {
                200 => {
                    open += 1;
                    streams.push(reader);
                }
                503 => refused += 1,
                other => panic!("{other}"),
            }
        }
        assert_eq!((open, refused), (wanted, 20), "of client {client}");
    }
    let (_, refused) = request(connect_from(3, port), "/sse", "").unwrap();
    let mut rest = String::new();
    refused.take(4096).read_to_string(&mut rest).unwrap();
    assert!(rest.to_lowercase().contains("retry-after: 10"), "{rest}");
    assert!(rest.contains("too many event streams"), "{rest}");
    probes_work(port, &[1, 2, 3]);

    // These clients send nothing, or only the start of a request.
    let mut idle: Vec<TcpStream> = Vec::new();
    for client in [1, 2, 4, 5, 6] {
        for n in 0..60 {
            let mut stream = connect_from(client, port);
            if n % 2 == 0 {
                let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHo");
            }
            idle.push(stream);
        }
    }
    probes_work(port, &[1, 2, 3, 4]);
    drop(idle);

    // No stream was closed for them.
    let first = streams.first_mut().unwrap();
    first.get_ref().set_nonblocking(true).unwrap();
    let mut text = Vec::new();
    let error = first.read_to_end(&mut text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(String::from_utf8_lossy(&text).contains("\"leader\":\"me\""));
    drop(streams);
    let again = poll(LIMIT, || {
        let (code, _) = request(connect_from(3, port), "/sse", "")?;
        (code == 200).then_some(())
    });
    assert!(again.is_some(), "the seats of closed streams are free");
}

/// Starts `tenure server` with plain HTTP and returns its port, and the administrator's token.
fn server(home: &Home, flags: &[&str]) -> (Process, u16, String) {
    let port = free_port();
    let data = format!("--data-dir={}", home.path("data").display());
    let mut command = home.command();
    command
        .args(["server", "--listen=127.0.0.1:0", "--store=memory", &data])
        .arg(format!("--insecure-listen=127.0.0.1:{port}"))
        .args(flags);
    let server = Process::spawn("server", command).unwrap();
    let token = poll(LIMIT, || {
        let up = server.text().iter().any(|line| line.contains("page on"));
        up.then(|| home.tenure(&["server", "token", &data]))
    });
    let token = token.unwrap_or_else(|| panic!("{}", server.transcript()));
    let token = String::from_utf8_lossy(&token.stdout).trim().to_owned();
    (server, port, token)
}

#[test]
fn server_page_feed_authenticates_before_it_takes_a_seat() {
    let home = Home::new();
    let (_server, port, token) = server(&home, &[]);
    let feed = |client: u8, headers: &str| {
        request(connect_from(client, port), "/ui/feed", headers).unwrap()
    };
    let mut strangers = Vec::new();
    for n in 0..200 {
        let headers = if n % 2 == 0 {
            ""
        } else {
            "Authorization: Bearer wrong\r\n"
        };
        let (code, reader) = feed(1, headers);
        assert_eq!(code, if n % 2 == 0 { 403 } else { 401 });
        strangers.push(reader);
    }
    let known = format!("Authorization: Bearer {token}\r\n");
    let mut open = Vec::new();
    for client in [1, 2, 3] {
        for n in 0..33 {
            let (code, reader) = feed(client, &known);
            let wanted = if client < 3 && n < 32 { 200 } else { 503 };
            assert_eq!(code, wanted, "feed {n} of client {client}");
            open.push(reader);
        }
    }
    let hello = open[0].by_ref().lines().map_while(Result::ok);
    let hello = hello.take(40).find(|line| line == "event: hello");
    assert!(hello.is_some());
}
