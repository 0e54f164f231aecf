//! The table of attacks. Each ends at a given time and has a bounded number of connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;

use super::bombs;
use super::client::{Client, JSON, JSON_PATCH, MERGE, open_from, status};
use super::server::{AttackedServer, rule};
use super::{DEFINITIONS, LEASES, MAPS, RBAC};
use crate::clock::{self, Nanos};

/// Name of the attacking user. Further attackers have a number after it.
pub const ATTACKER: &str = "mallory";
/// Users of [`Attack::Users`].
pub const ATTACKERS: usize = 13;

/// Number and size of the ConfigMaps that attackers list.
const OBJECTS: (usize, usize) = (200, 60_000);
/// Pause after a rejection: less than the server asks for.
const PAUSE: Duration = Duration::from_millis(50);

/// Kinds of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Large lists from many connections.
    Lists,
    /// Large patches from many connections.
    Patches,
    /// Request bodies that arrive byte by byte.
    SlowBodies,
    /// Large lists whose responses are never read.
    UnreadLists,
    /// Watches that are never read, while their objects change.
    Watches,
    /// Renewals of another user's Lease.
    Renewals,
    /// Roles with many rules and many combinations.
    Roles,
    /// Connections without requests, and unfinished TLS handshakes.
    Connections,
    /// HTTP/2 streams that are opened and reset.
    Streams,
    /// Large definitions of custom kinds with many patterns, created, changed and deleted.
    Definitions,
    /// Several users, each with lists, patches, slow bodies and unread lists.
    Users,
}

impl Attack {
    /// All attacks, in the order of a campaign.
    pub const ALL: [Self; 11] = [
        Self::Lists,
        Self::Patches,
        Self::SlowBodies,
        Self::UnreadLists,
        Self::Watches,
        Self::Renewals,
        Self::Roles,
        Self::Connections,
        Self::Streams,
        Self::Definitions,
        Self::Users,
    ];

    /// Runs the attack until `end`. Returns how many requests were executed, rejected and failed.
    pub async fn run(self, target: &Target, end: Nanos) -> Tally {
        let flood = Flood {
            target: target.clone(),
            end,
            tally: Arc::default(),
            tasks: JoinSet::new(),
        };
        match self {
            Self::Lists => flood.lists(ATTACKER, 40).join().await,
            Self::Patches => flood.patches(ATTACKER, 40).join().await,
            Self::SlowBodies => flood.slow_bodies(ATTACKER, 400).join().await,
            Self::UnreadLists => flood.unread_lists(ATTACKER, 60).join().await,
            Self::Watches => flood.watches(ATTACKER, 600).join().await,
            Self::Renewals => flood.renewals(ATTACKER, 60).join().await,
            Self::Roles => flood.roles(ATTACKER, 6).join().await,
            Self::Connections => flood.connections(8, 400).join().await,
            Self::Streams => flood.streams(ATTACKER, 4).join().await,
            Self::Definitions => flood.definitions(ATTACKER, 6).join().await,
            Self::Users => {
                let attackers = (0..ATTACKERS).map(|n| format!("{ATTACKER}-{n}"));
                let all = attackers.fold(flood, |flood, user| {
                    let flood = flood.lists(&user, 4).patches(&user, 4);
                    flood.slow_bodies(&user, 20).unread_lists(&user, 6)
                });
                all.join().await
            }
        }
    }
}

/// The addresses of the attacked server.
#[derive(Clone, Debug)]
pub struct Target {
    plain: SocketAddr,
    tls: SocketAddr,
}

impl Target {
    /// Creates the objects and the rights that the attacks need. The attackers have many rights, but cannot grant others.
    ///
    /// # Panics
    ///
    /// Panics if the server does not create them.
    pub async fn prepare(server: &AttackedServer) -> Self {
        server.fill(OBJECTS.0, OBJECTS.1).await;
        let all = [
            "get", "list", "watch", "create", "update", "patch", "delete",
        ];
        let rules = json!([
            rule("", "configmaps", &all),
            rule("", "pods", &["get"]),
            rule("coordination.k8s.io", "leases", &all),
            rule("rbac.authorization.k8s.io", "*", &all),
            rule("apiextensions.k8s.io", "customresourcedefinitions", &all),
        ]);
        let users: Vec<String> = attackers();
        server.allow(ATTACKER, "attacker", &rules).await;
        let path = format!("{RBAC}/clusterrolebindings");
        let binding = bombs::binding("attackers", "attacker", &users);
        server.create(&path, &binding).await;
        let lease = json!({ "metadata": { "name": "attacked" } });
        server.create(LEASES, &lease).await;
        Self {
            plain: server.plain(),
            tls: server.tls(),
        }
    }
}

/// Returns the names of all attacking users.
pub fn attackers() -> Vec<String> {
    let numbered = (0..ATTACKERS).map(|number| format!("{ATTACKER}-{number}"));
    [ATTACKER.to_owned()].into_iter().chain(numbered).collect()
}

/// Results of the requests of an attack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Executed requests and opened streams or connections.
    pub executed: usize,
    /// Requests that the server rejected.
    pub rejected: usize,
    /// Requests without a response, because the server closed the connection.
    pub failed: usize,
}

#[derive(Debug, Default)]
struct Counters {
    executed: AtomicUsize,
    rejected: AtomicUsize,
    failed: AtomicUsize,
}

impl Counters {
    /// Counts a status. Returns whether the request was executed.
    fn count(&self, status: u16) -> bool {
        let counter = match status {
            200..300 => &self.executed,
            0 => &self.failed,
            _ => &self.rejected,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        (200..300).contains(&status)
    }
}

/// A request that is sent repeatedly.
type Shot = (&'static str, String, &'static str, Bytes);

/// The tasks of one attack.
struct Flood {
    target: Target,
    end: Nanos,
    tally: Arc<Counters>,
    tasks: JoinSet<()>,
}

impl Flood {
    fn client(&self, user: &str) -> Client {
        Client {
            address: self.target.plain,
            token: format!("{user}-token"),
        }
    }

    async fn join(mut self) -> Tally {
        while self.tasks.join_next().await.is_some() {}
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Tally {
            executed: read(&self.tally.executed),
            rejected: read(&self.tally.rejected),
            failed: read(&self.tally.failed),
        }
    }

    /// Sends requests on one connection until the end; `shot` makes the nth request.
    fn shoot(&mut self, user: &str, shot: impl Fn(usize) -> Shot + Send + 'static) {
        let (client, end, tally) = (self.client(user), self.end, Arc::clone(&self.tally));
        self.tasks.spawn(async move {
            let mut connection = None;
            let mut number = 0;
            while clock::now() < end {
                let open = match connection.take() {
                    Some(open) => Ok(open),
                    None => client.connect().await,
                };
                let Ok(mut open) = open else {
                    tally.count(0);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                let (method, path, kind, body) = shot(number);
                number += 1;
                let headers = [("content-type", kind)];
                match open.send(method, &path, &headers, body).await {
                    Ok(reply) => {
                        connection = Some(open);
                        if !tally.count(reply.status) {
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                    Err(_) => _ = tally.count(0),
                }
            }
        });
    }

    fn lists(mut self, user: &str, clients: usize) -> Self {
        for _ in 0..clients {
            self.shoot(user, |_| ("GET", MAPS.to_owned(), JSON, Bytes::new()));
        }
        self
    }

    fn patches(mut self, user: &str, clients: usize) -> Self {
        let merge = Bytes::from(bombs::merge_patch(4_000, 200).to_string());
        let operations = Bytes::from(bombs::json_patch(5_000).to_string());
        for client in 0..clients {
            let path = format!("{MAPS}/m-{client}");
            let (merge, operations) = (merge.clone(), operations.clone());
            self.shoot(user, move |number| match (client + number) % 2 {
                0 => ("PATCH", path.clone(), MERGE, merge.clone()),
                _ => ("PATCH", path.clone(), JSON_PATCH, operations.clone()),
            });
        }
        self
    }

    fn slow_bodies(mut self, user: &str, clients: usize) -> Self {
        for _ in 0..clients {
            let (client, end, tally) = (self.client(user), self.end, Arc::clone(&self.tally));
            self.tasks.spawn(async move {
                let headers = "content-type: application/json\r\ncontent-length: 100000\r\n";
                while clock::now() < end {
                    let Ok(mut stream) = client.raw(&format!("POST {MAPS}"), headers).await else {
                        tally.count(0);
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    };
                    tally.count(200);
                    // A rejected request is answered before its body has arrived.
                    while clock::now() < end && stream.write_all(b" ").await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        let mut answer = [0; 16];
                        if stream.try_read(&mut answer).is_ok() {
                            tally.count(429);
                            break;
                        }
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        self
    }

    fn unread_lists(mut self, user: &str, clients: usize) -> Self {
        for _ in 0..clients {
            let (client, end, tally) = (self.client(user), self.end, Arc::clone(&self.tally));
            self.tasks.spawn(async move {
                let mut unread = Vec::new();
                while clock::now() < end {
                    let Ok(mut stream) = client.raw(&format!("GET {MAPS}"), "").await else {
                        tally.count(0);
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    };
                    if tally.count(status(&mut stream).await) {
                        unread.push(stream);
                    }
                    tokio::time::sleep(4 * PAUSE).await;
                }
            });
        }
        self
    }

    fn watches(mut self, user: &str, clients: usize) -> Self {
        for _ in 0..clients {
            let (client, end, tally) = (self.client(user), self.end, Arc::clone(&self.tally));
            self.tasks.spawn(async move {
                let line = format!("GET {MAPS}?watch=true&resourceVersion=0");
                while clock::now() < end {
                    let Ok(mut stream) = client.raw(&line, "").await else {
                        tally.count(0);
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    };
                    tally.count(status(&mut stream).await);
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
            });
        }
        // The events are large.
        let change = |number: usize| {
            let body = json!({ "metadata": { "annotations": { "n": number.to_string() } } });
            Bytes::from(body.to_string())
        };
        for writer in 0..2 {
            let path = format!("{MAPS}/m-{writer}");
            self.shoot(user, move |n| ("PATCH", path.clone(), MERGE, change(n)));
        }
        self
    }

    fn renewals(mut self, user: &str, clients: usize) -> Self {
        for client in 0..clients {
            let body = json!({ "metadata": { "annotations": { format!("a-{client}"): "b" } } });
            let body = Bytes::from(body.to_string());
            let path = format!("{LEASES}/attacked");
            self.shoot(user, move |_| ("PATCH", path.clone(), MERGE, body.clone()));
        }
        self
    }

    fn roles(mut self, user: &str, clients: usize) -> Self {
        let wide = Bytes::from(bombs::wide_role("wide", 1_000).to_string());
        let owner = user.to_owned();
        for client in 0..clients {
            let (wide, owner) = (wide.clone(), owner.clone());
            self.shoot(user, move |number| {
                let name = format!("bomb-{client}-{}", number / 4 % 8);
                let role = format!("{RBAC}/clusterroles");
                match number % 4 {
                    // The rules of `view`, and of this user, grow with every role.
                    0 => {
                        let bomb = bombs::aggregated_role(&name, 5_000).to_string();
                        ("POST", role, JSON, bomb.into())
                    }
                    1 => {
                        let users = [owner.clone()];
                        let path = format!("{RBAC}/clusterrolebindings");
                        let bomb = bombs::binding(&name, &name, &users).to_string();
                        ("POST", path, JSON, bomb.into())
                    }
                    2 => {
                        let patch =
                            json!({ "metadata": { "annotations": { "n": number.to_string() } } });
                        let body = patch.to_string().into();
                        ("PATCH", format!("{role}/{name}"), MERGE, body)
                    }
                    _ => ("POST", role, JSON, wide.clone()),
                }
            });
        }
        // A denied request evaluates all rules of the user.
        for _ in 0..20 {
            let path = "/api/v1/namespaces/default/secrets".to_owned();
            self.shoot(user, move |_| ("GET", path.clone(), JSON, Bytes::new()));
        }
        self
    }

    fn connections(mut self, tasks: u8, each: usize) -> Self {
        for task in 0..tasks {
            let from = Ipv4Addr::new(127, 0, 0, 2 + task / 4);
            let (target, end, tally) = (self.target.clone(), self.end, Arc::clone(&self.tally));
            self.tasks.spawn(async move {
                let mut open = std::collections::VecDeque::new();
                let mut number = 0;
                while clock::now() < end {
                    number += 1;
                    // Half of a request head, the first bytes of a handshake, or nothing.
                    let (address, bytes): (_, &'static [u8]) = match number % 3 {
                        0 => (target.plain, b"GET / HTTP/1.1\r\n"),
                        1 => (target.tls, b"\x16\x03\x01\x02\x00\x01"),
                        _ => (target.tls, b""),
                    };
                    match open_from(from, address, bytes).await {
                        Ok(stream) => {
                            tally.count(200);
                            open.push_back(stream);
                        }
                        Err(_) => {
                            tally.count(0);
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                    if open.len() > each {
                        open.pop_front();
                    }
                }
            });
        }
        self
    }

    /// Opens HTTP/2 streams and drops them before their responses arrive, which resets them.
    fn streams(mut self, user: &str, connections: usize) -> Self {
        for _ in 0..connections {
            let (client, end, tally) = (self.client(user), self.end, Arc::clone(&self.tally));
            self.tasks.spawn(async move {
                while clock::now() < end {
                    let opened = super::client::reset_streams(&client, MAPS, 2_000, end).await;
                    tally.executed.fetch_add(opened, Ordering::Relaxed);
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        self
    }

    fn definitions(mut self, user: &str, clients: usize) -> Self {
        for client in 0..clients {
            self.shoot(user, move |number| {
                // Every definition is created, changed and deleted; no content appears twice.
                let plural = client * 100_000 + number / 3;
                let path = format!("{DEFINITIONS}/bombs{plural}.x.io");
                match number % 3 {
                    0 => {
                        let body = bombs::definition(plural, 1_000).to_string();
                        ("POST", DEFINITIONS.to_owned(), JSON, body.into())
                    }
                    1 => {
                        let spec = &bombs::definition(plural, 900)["spec"]["versions"];
                        let patch: Value = json!({ "spec": { "versions": spec } });
                        ("PATCH", path, MERGE, patch.to_string().into())
                    }
                    _ => ("DELETE", path, JSON, Bytes::new()),
                }
            });
        }
        self
    }
}
