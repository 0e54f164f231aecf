//! The descendants of a process, regardless of their group or session.
//!
//! The wrapper and its watchdog both adopt orphans, so the chain of parents of a descendant always leads to one of
//! them. A process is signalled only if that chain was observed. A pid alone proves nothing, because the parent of an
//! orphan may be the init process.

use std::collections::HashMap;
use std::fs;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpgrp, getpid, kill_process, pidfd_open,
    pidfd_send_signal, waitpid,
};

/// A process as shown by /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    group: i32,
    pub(crate) zombie: bool,
    /// Start time in clock ticks since boot.
    pub(crate) started: u64,
}

impl Process {
    /// Reads one process; `None` if it has ended, or if /proc does not show it.
    pub(crate) fn read(pid: i32) -> Option<Self> {
        parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Sends a signal. A process that has ended in the meantime is not an error.
    pub(crate) fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        // The handle refers to the process for which it was opened. If that is still the one that was found, no other
        // process can get the signal, even if the pid is reused.
        let handle = pidfd_open(pid, PidfdFlags::empty());
        if Self::read(self.pid).is_none_or(|now| now.started != self.started) {
            return;
        }
        let _ = match handle {
            Ok(handle) => pidfd_send_signal(handle, signal),
            Err(_) => kill_process(pid, signal),
        };
    }
}

/// Returns the living descendants of the command, as the wrapper finds them. They are all processes below this one,
/// except the watchdog and the processes of this program itself. The latter are direct children in our own group, such
/// as a plugin that fetches credentials, and the descendants of these children.
pub(crate) fn descendants(watchdog: i32) -> Vec<Process> {
    let (me, own_group) = (raw(getpid()), raw(getpgrp()));
    let own = |process: &Process| {
        process.parent == me && process.group == own_group && process.pid != watchdog
    };
    confirmed(|| {
        let mut found = below(me, &by_parent(), own);
        found.retain(|process| !process.zombie && process.pid != watchdog);
        found
    })
}

/// Returns the living descendants of the watchdog, which is this process. They are those of the command.
pub(crate) fn own_descendants() -> Vec<Process> {
    confirmed(|| {
        let mut found = below(raw(getpid()), &by_parent(), |_| false);
        found.retain(|process| !process.zombie);
        found
    })
}

/// Scans again before it reports that nothing is left. A process that forks and exits while /proc is read can hide its
/// child from one scan.
fn confirmed(scan: impl Fn() -> Vec<Process>) -> Vec<Process> {
    let found = scan();
    if found.is_empty() { scan() } else { found }
}

/// Reaps orphans from outside the group that became children of this process, but not `main`. The exit code of `main`,
/// and its pid as that of a group, are needed until all other processes have ended.
pub(crate) fn reap_orphans(main: Option<Pid>) {
    let (me, own_group) = (raw(getpid()), raw(getpgrp()));
    let main = main.map(raw);
    for process in by_parent().remove(&me).unwrap_or_default() {
        if process.zombie && process.group != own_group && Some(process.pid) != main {
            let _ = waitpid(Pid::from_raw(process.pid), WaitOptions::NOHANG);
        }
    }
}

/// Returns all processes below one, without those that `skip` selects and their descendants.
fn below(
    root: i32,
    children: &HashMap<i32, Vec<Process>>,
    skip: impl Fn(&Process) -> bool,
) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![(root, 0)];
    while let Some((parent, started)) = parents.pop() {
        for process in children.get(&parent).into_iter().flatten() {
            // A parent is never younger than its child. If it seems younger, its pid was reused while /proc was read.
            if process.started >= started && process.pid != root && !skip(process) {
                found.push(*process);
                parents.push((process.pid, process.started));
            }
        }
    }
    found
}

fn by_parent() -> HashMap<i32, Vec<Process>> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(process) = pid.and_then(Process::read) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    children
}

/// Parses `pid (name) state parent group ...`; the name may contain anything.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    // A program whose first thread has ended looks like a zombie, but its other threads continue.
    let threads: u32 = fields
        .nth(14)
        .and_then(|field| field.parse().ok())
        .unwrap_or(1);
    let started = fields.nth(1).and_then(|field| field.parse().ok());
    Some(Process {
        pid,
        parent,
        group,
        zombie: ended && threads <= 1,
        started: started.unwrap_or(0),
    })
}

pub(crate) fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, started: u64) -> Process {
        Process {
            pid,
            parent,
            group: pid,
            zombie: false,
            started,
        }
    }

    fn found(all: &[Process], skip: impl Fn(&Process) -> bool) -> Vec<i32> {
        let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
        for process in all {
            children.entry(process.parent).or_default().push(*process);
        }
        let mut found: Vec<i32> = below(1, &children, skip).iter().map(|p| p.pid).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn names_with_brackets_do_not_confuse() {
        let process = parse(7, "7 (a) S 1 (b)) Z 3 5 5 0").unwrap();
        assert_eq!(
            (process.parent, process.group, process.zombie),
            (3, 5, true)
        );
    }

    #[test]
    fn a_process_ends_with_its_last_thread() {
        let stat =
            |threads: u32| format!("7 (a) Z 3 5 5 0 -1 4228 0 0 0 0 0 0 0 0 20 0 {threads} 0 99");
        assert!(!parse(7, &stat(2)).unwrap().zombie);
        assert!(parse(7, &stat(1)).unwrap().zombie);
        assert_eq!(parse(7, &stat(1)).unwrap().started, 99);
    }

    #[test]
    fn children_of_children_are_found() {
        let all = [
            process(2, 1, 5),
            process(3, 2, 5),
            process(4, 9, 5),
            process(5, 3, 6),
        ];
        assert_eq!(found(&all, |_| false), [2, 3, 5]);
        assert_eq!(found(&all, |process| process.pid == 3), [2]);
    }

    #[test]
    fn child_that_is_older_than_its_parent_is_not_a_descendant() {
        let all = [process(2, 1, 50), process(3, 2, 40), process(4, 3, 60)];
        assert_eq!(found(&all, |_| false), [2]);
    }

    #[test]
    fn own_process_is_found_and_has_a_start() {
        let me = Process::read(raw(getpid())).unwrap();
        assert!(me.started > 0 && !me.zombie);
    }
}
