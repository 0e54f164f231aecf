//! Evidence of the kernel: the end of a process on the same machine, and a later boot of the same machine.
//!
//! Invariant: the kernel is asked about a pid only in the pid namespace and boot that the holder has named. A number of
//! another namespace means another process.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use tenure_core::death::Evidence;
use tenure_core::{Incarnation, Place, Process};
use tenure_lock::BoxFuture;
use tokio::net::unix::pipe::Receiver;

use super::DeathProof;

/// Number of the initial pid namespace, which is the same on every Linux machine.
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Number of the initial UTS namespace, also the same everywhere. Its host name is that of the machine.
const INITIAL_UTS_NAMESPACE: u64 = 0xEFFF_FFFE;

/// Reason why the kernel cannot give evidence here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the end of processes cannot be observed here: {0}")]
pub struct Unavailable(String);

/// Evidence of the kernel of this machine. The runtime must have tokio's I/O driver.
#[derive(Clone, Debug)]
pub struct HostProof {
    /// Name of the machine; `None` in a container, whose image may contain the machine id of another machine. A container
    /// with the pid namespace of the machine is recognized by its UTS namespace.
    machine: Option<String>,
    /// The process whose end is the end of the work.
    process: Process,
}

impl HostProof {
    /// Describes this process, for work that ends with it. Children of the process are not part of the proof. Use it
    /// only if they do not continue the work.
    ///
    /// # Errors
    ///
    /// Fails if `/proc` does not describe this process.
    pub fn of_process() -> Result<Self, Unavailable> {
        Self::of(getpid().as_raw_pid())
    }

    /// Describes the pid namespace of this process by its init process: the work ends with all of its processes. Use it
    /// for work that may outlive this process. Candidates then learn of a later boot of the machine only.
    ///
    /// # Errors
    ///
    /// Fails if `/proc` does not describe the init process.
    pub fn of_pid_namespace() -> Result<Self, Unavailable> {
        Self::of(1)
    }

    /// Returns whether a reboot of this machine can be proved.
    pub fn names_machine(&self) -> bool {
        self.machine.is_some()
    }

    fn of(pid: i32) -> Result<Self, Unavailable> {
        let own = fs::read_to_string("/proc/self/stat").map_err(|error| because(&error))?;
        let pid_of_proc = own.split(' ').next().and_then(|pid| pid.parse().ok());
        if pid_of_proc != Some(getpid().as_raw_pid()) {
            return Err(Unavailable(
                "/proc belongs to another pid namespace".to_owned(),
            ));
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|error| because(&error))?;
        let boot = boot.trim();
        if boot.is_empty() {
            return Err(Unavailable("the boot has no id".to_owned()));
        }
        let namespace = |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map(|f| f.ino());
        let pid_namespace = namespace("pid").map_err(|error| because(&error))?;
        let started =
            started(pid).ok_or_else(|| Unavailable(format!("/proc/{pid}/stat cannot be read")))?;
        Ok(Self {
            machine: machine(pid_namespace, namespace("uts").unwrap_or(0)),
            process: Process {
                boot: boot.to_owned(),
                pid_namespace,
                // Kernels before 5.6 have no time namespaces.
                time_namespace: namespace("time").unwrap_or(0),
                pid: pid.unsigned_abs(),
                started,
            },
        })
    }

    fn is_here(&self, process: &Process) -> bool {
        process.boot == self.process.boot && process.pid_namespace == self.process.pid_namespace
    }
}

impl DeathProof for HostProof {
    fn describe(&self, place: &mut Place) {
        place.machine.clone_from(&self.machine);
        place.processes.push(self.process.clone());
    }

    fn watch(&self, holder: &Arc<Incarnation>) -> Option<BoxFuture<'static, Vec<Evidence>>> {
        let place = &holder.place;
        let other_boot = |process: &Process| process.boot != self.process.boot;
        if place.processes.is_empty() {
            return None;
        }
        if let Some(machine) = self
            .machine
            .as_ref()
            .filter(|_| place.machine == self.machine && place.processes.iter().all(other_boot))
        {
            let booted = Evidence::Booted {
                machine: machine.clone(),
                boot: self.process.boot.clone(),
            };
            return Some(Box::pin(std::future::ready(vec![booted])));
        }
        if !place.processes.iter().all(|process| self.is_here(process)) {
            return None;
        }
        let (holder, time_namespace) = (holder.clone(), self.process.time_namespace);
        Some(Box::pin(async move {
            let mut evidence = Vec::new();
            for process in &holder.place.processes {
                if !ended(process, time_namespace).await {
                    tracing::debug!(pid = process.pid, "the kernel does not show this process");
                    return Vec::new();
                }
                evidence.push(Evidence::ProcessEnded(process.clone()));
            }
            evidence
        }))
    }
}

/// Waits for the end of a process of this pid namespace. Returns false if the kernel does not report it.
async fn ended(process: &Process, time_namespace: u64) -> bool {
    let pid = i32::try_from(process.pid).ok();
    let Some(pid) = pid.and_then(Pid::from_raw) else {
        return false;
    };
    let handle = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(handle) => handle,
        Err(error) => return error == Errno::SRCH,
    };
    // A pid is reused only after its process has ended. The start time is compared after the handle was opened: a
    // process that takes the pid later has another start time. If /proc does not show the process, the end of the
    // process with this pid still implies the end of the holder.
    let comparable = process.time_namespace == time_namespace;
    let current = started(pid.as_raw_pid()).filter(|_| comparable);
    if current.is_some_and(|current| current != process.started) {
        return true;
    }
    // The descriptor is not a pipe, but tokio only waits for it to become readable, and never reads it.
    let Ok(handle) = Receiver::from_owned_fd_unchecked(handle) else {
        return false;
    };
    handle.readable().await.is_ok() && is_readable(&handle)
}

/// Returns whether the process of this handle has ended.
fn is_readable(handle: &impl AsFd) -> bool {
    let mut handles = [PollFd::new(handle, PollFlags::IN)];
    let polled = poll(&mut handles, Some(&Timespec::default()));
    polled.is_ok() && handles[0].revents().contains(PollFlags::IN)
}

/// Returns the start time of a process in clock ticks since the boot.
fn started(pid: i32) -> Option<u64> {
    started_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the 22nd field, the start time. The second field is a name that may contain spaces and parentheses.
fn started_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Returns the machine id and the host name, if this process sees those of its own machine. The host name distinguishes
/// machines that were installed from the same image, and containers that share all namespaces with their machines.
fn machine(pid_namespace: u64, uts_namespace: u64) -> Option<String> {
    let id = fs::read_to_string("/etc/machine-id").ok()?;
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    machine_name(id.trim(), host.trim(), pid_namespace, uts_namespace)
}

fn machine_name(id: &str, host: &str, pid_namespace: u64, uts_namespace: u64) -> Option<String> {
    let unique =
        id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit()) && id.chars().any(|c| c != '0');
    let own = pid_namespace == INITIAL_PID_NAMESPACE && uts_namespace == INITIAL_UTS_NAMESPACE;
    (unique && own && !host.is_empty()).then(|| format!("{id}.{host}"))
}

fn because(error: &std::io::Error) -> Unavailable {
    Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use futures_util::FutureExt as _;
    use tenure_core::Record;

    use super::*;

    fn host() -> HostProof {
        HostProof::of_process().unwrap()
    }

    fn child() -> Child {
        let mut sleep = Command::new("sleep");
        sleep.arg("600").stdin(Stdio::null()).spawn().unwrap()
    }

    fn of_child(child: &Child) -> Process {
        let pid = i32::try_from(child.id()).unwrap();
        HostProof::of(pid).unwrap().process
    }

    fn holder(machine: Option<&str>, processes: Vec<Process>) -> Arc<Incarnation> {
        let place = Place {
            machine: machine.map(str::to_owned),
            processes,
            ..Place::default()
        };
        Arc::new(Incarnation::of(&Record::default(), place))
    }

    #[test]
    fn start_time_follows_the_last_parenthesis() {
        let stat = "7 (a) (b c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 51234 9 9";
        assert_eq!(started_in(stat), Some(51_234));
        assert_eq!(started_in("7 (a) S 1"), None);
        assert_eq!(started_in(""), None);
    }

    #[test]
    fn machine_of_a_container_or_without_a_unique_id_has_no_name() {
        let id = "0123456789abcdef0123456789abcdef";
        let of = |id: &str| machine_name(id, "n1", INITIAL_PID_NAMESPACE, INITIAL_UTS_NAMESPACE);
        assert_eq!(of(id), Some(format!("{id}.n1")));
        let other = 4_026_532_000;
        for (pid, uts) in [
            (other, INITIAL_UTS_NAMESPACE),
            (INITIAL_PID_NAMESPACE, other),
            (other, other),
        ] {
            assert_eq!(machine_name(id, "n1", pid, uts), None, "a container");
        }
        for id in ["", "uninitialized", &"0".repeat(32), &id[1..]] {
            assert_eq!(of(id), None, "{id}");
        }
    }

    #[test]
    fn machines_of_one_image_differ_by_their_host_names() {
        let id = "0123456789abcdef0123456789abcdef";
        let of = |host: &str| machine_name(id, host, INITIAL_PID_NAMESPACE, INITIAL_UTS_NAMESPACE);
        assert_ne!(of("n1"), of("n2"));
        assert_eq!(of(""), None);
    }

    #[test]
    fn this_process_is_described() {
        let mut place = Place::default();
        host().describe(&mut place);
        assert_eq!(place.processes.len(), 1);
        assert_eq!(place.processes[0].pid, std::process::id());
        assert!(place.processes[0].started > 0 && place.processes[0].pid_namespace > 0);
    }

    #[tokio::test]
    async fn end_of_all_processes_is_reported_and_not_that_of_one() {
        let (mut one, mut other) = (child(), child());
        let processes = vec![of_child(&one), of_child(&other)];
        let mut evidence = host().watch(&holder(None, processes.clone())).unwrap();
        one.kill().unwrap();
        one.wait().unwrap();
        tokio::task::yield_now().await;
        assert!((&mut evidence).now_or_never().is_none());
        other.kill().unwrap();
        let ended = processes.into_iter().map(Evidence::ProcessEnded);
        assert_eq!(evidence.await, ended.collect::<Vec<_>>());
        other.wait().unwrap();
    }

    #[tokio::test]
    async fn reused_pid_is_the_end_of_the_earlier_process() {
        let mut child = child();
        let mut earlier = of_child(&child);
        earlier.started -= 1;
        let evidence = host().watch(&holder(None, vec![earlier.clone()])).unwrap();
        assert_eq!(evidence.await, [Evidence::ProcessEnded(earlier.clone())]);
        // Start times of two time namespaces cannot be compared.
        earlier.time_namespace += 1;
        let evidence = host().watch(&holder(None, vec![earlier])).unwrap();
        assert!(evidence.now_or_never().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn process_that_does_not_exist_has_ended() {
        let mut child = child();
        let gone = of_child(&child);
        child.kill().unwrap();
        child.wait().unwrap();
        let evidence = host().watch(&holder(None, vec![gone.clone()])).unwrap();
        assert_eq!(evidence.await, [Evidence::ProcessEnded(gone)]);
    }

    #[tokio::test]
    async fn another_boot_of_the_same_machine_is_reported() {
        let mut host = host();
        host.machine = Some("m".to_owned());
        let mut earlier = host.process.clone();
        earlier.boot = "earlier".to_owned();
        let evidence = host.watch(&holder(Some("m"), vec![earlier.clone()]));
        let booted = Evidence::Booted {
            machine: "m".to_owned(),
            boot: host.process.boot.clone(),
        };
        assert_eq!(evidence.unwrap().await, [booted]);
        assert!(
            host.watch(&holder(Some("n"), vec![earlier.clone()]))
                .is_none()
        );
        let mixed = vec![earlier, host.process.clone()];
        assert!(host.watch(&holder(Some("m"), mixed)).is_none());
    }

    #[test]
    fn holder_elsewhere_or_without_processes_is_not_watched() {
        let host = host();
        let mut process = host.process.clone();
        process.pid_namespace += 1;
        assert!(host.watch(&holder(None, vec![process])).is_none());
        let mut process = host.process.clone();
        process.boot = "earlier".to_owned();
        assert!(host.watch(&holder(None, vec![process])).is_none());
        assert!(host.watch(&holder(None, Vec::new())).is_none());
    }
}
