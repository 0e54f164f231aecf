//! Every process that the command has brought into the world, whichever group or session it went to.
//!
//! A program that leaves its group (`setsid`, a daemon) is still a descendant: this process is the
//! reaper of its orphans, so the line of parents always leads back here. Once this process is dead
//! that line is cut; the watchdog then goes by a mark in the environment, which descendants inherit.

use std::fs;

use rustix::process::{Pid, Signal, WaitOptions, getpgrp, getpid, kill_process, waitpid};

/// The environment variable that marks descendants.
pub(crate) const MARK: &str = "TENURE_INTERNAL_RUN";

/// What /proc says about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    group: i32,
    zombie: bool,
}

impl Process {
    /// Sends a signal; one that has gone meanwhile is no error.
    pub(crate) fn signal(self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// The living descendants of this process, without `besides` and what belongs to this program itself:
/// direct children in our own group, such as a plugin that fetches credentials.
pub(crate) fn descendants(besides: i32) -> Vec<Process> {
    let (me, own_group) = (raw(getpid()), raw(getpgrp()));
    let mut found = below(me, &everybody());
    let mine = |process: &Process| {
        process.pid == besides || (process.parent == me && process.group == own_group)
    };
    let others: Vec<i32> = found.iter().filter(|p| mine(p)).map(|p| p.pid).collect();
    found.retain(|process| !process.zombie && !others.contains(&process.pid));
    found.retain(|process| !others.contains(&process.parent));
    found
}

/// Reaps orphans that came to this process from outside the group, and nobody else's children: the
/// exit code of the main child is for whoever waits for it.
pub(crate) fn reap_orphans(group: Pid, besides: i32) {
    let (me, own_group) = (raw(getpid()), raw(getpgrp()));
    for process in everybody() {
        let adopted = process.parent == me && process.zombie && process.group != own_group;
        if adopted && process.group != raw(group) && process.pid != besides {
            let _ = waitpid(Pid::from_raw(process.pid), WaitOptions::NOHANG);
        }
    }
}

/// All who carry the mark, and the descendants of another process if it lives.
pub(crate) fn descendants_of(parent: Option<Pid>, mark: &str) -> Vec<Process> {
    let everybody = everybody();
    let (me, parent) = (raw(getpid()), parent.map(raw));
    let mut found = parent.map_or_else(Vec::new, |parent| below(parent, &everybody));
    let marked = format!("{MARK}={mark}");
    let carries = |process: &&Process| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == marked.as_bytes())
    };
    found.extend(everybody.iter().filter(carries));
    found.retain(|process| !process.zombie && process.pid != me && Some(process.pid) != parent);
    found
}

/// All processes below one.
fn below(root: i32, everybody: &[Process]) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for process in everybody.iter().filter(|process| process.parent == parent) {
            // A process cannot be its own ancestor, but ids are reused while we look.
            if !found.contains(process) {
                found.push(*process);
                parents.push(process.pid);
            }
        }
    }
    found
}

fn everybody() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            parse(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
        })
        .collect()
}

/// `pid (name) state parent group ...`; the name may hold anything.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    // A program whose first thread has ended looks like a zombie and goes on in the others.
    let threads: u32 = fields
        .nth(14)
        .and_then(|field| field.parse().ok())
        .unwrap_or(1);
    Some(Process {
        pid,
        parent,
        group,
        zombie: ended && threads <= 1,
    })
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            |threads: u32| format!("7 (a) Z 3 5 5 0 -1 4228 0 0 0 0 0 0 0 0 20 0 {threads} 0");
        assert!(!parse(7, &stat(2)).unwrap().zombie);
        assert!(parse(7, &stat(1)).unwrap().zombie);
    }

    #[test]
    fn children_of_children_are_found() {
        let process = |pid, parent| Process {
            pid,
            parent,
            group: pid,
            zombie: false,
        };
        let all = [process(2, 1), process(3, 2), process(4, 9), process(5, 3)];
        let found: Vec<i32> = below(1, &all).iter().map(|process| process.pid).collect();
        assert_eq!(found, [2, 3, 5]);
    }
}
