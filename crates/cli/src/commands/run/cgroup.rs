//! A control group around the command, if this process may create one.
//!
//! The kernel kills all members of a control group in one step. Even a process that forks faster than /proc can be read
//! cannot escape. It is an additional measure: the tree of processes below the watchdog always exists.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process, test_kill_process};
use rustix::time::{ClockId, clock_gettime};
use tenure_lock::in_words;

use super::kin::{self, Process};

/// Name prefix of the control groups that are created here.
const PREFIX: &str = "tenure-run";

/// Number of times that the members of a frozen group are listed. No members can be added while it is frozen.
const ROUNDS: u32 = 3;

/// Control groups that a command created inside its own are removed down to this depth.
const DEPTH: u32 = 8;

/// Interval at which the members of a leftover control group are checked, before the next command starts.
const SWEEP_ROUND: Duration = Duration::from_millis(10);
const SWEEP_ROUNDS: u32 = 20;

/// How a control group is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// With `cgroup.kill` of version 2, since Linux 5.14.
    Two,
    /// With the freezer of version 1: freeze, kill each member, thaw.
    One,
}

/// A control group for one command.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup {
    folder: PathBuf,
    version: Version,
}

impl Cgroup {
    /// Creates a control group, and ends the leftovers of a wrapper that was killed together with its watchdog.
    ///
    /// The error is the reason why none can be created.
    pub(crate) fn make() -> Result<Self, String> {
        let mut why = String::from("no control groups are mounted");
        for (home, version) in homes() {
            sweep(&home, version);
            match Self::make_in(&home, version) {
                Ok(made) => return Ok(made),
                Err(error) => why = format!("{}: {}", home.display(), in_words(&error)),
            }
        }
        Err(why)
    }

    fn make_in(home: &Path, version: Version) -> io::Result<Self> {
        writable(home)?;
        let folder = home.join(name());
        fs::create_dir(&folder)?;
        let made = Self { folder, version };
        if !made.folder.join(made.control()).exists() {
            made.remove();
            return Err(io::Error::other(format!("it has no {}", made.control())));
        }
        Ok(made)
    }

    /// Returns where a control group can be created, or why not, without creating one.
    pub(crate) fn check() -> Result<String, String> {
        let mut why = String::from("no control groups are mounted");
        for (home, version) in homes() {
            match writable(&home) {
                Ok(()) => return Ok(format!("{} below {}", version.name(), home.display())),
                Err(error) => why = format!("{}: {}", home.display(), in_words(&error)),
            }
        }
        Err(why)
    }

    /// Returns the control group at this path, which another process got from [`path`](Self::path).
    pub(crate) fn at(folder: &Path) -> Self {
        let version = if folder.join("cgroup.kill").exists() {
            Version::Two
        } else {
            Version::One
        };
        Self {
            folder: folder.to_owned(),
            version,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns the kind for display.
    pub(crate) fn kind(&self) -> &'static str {
        self.version.name()
    }

    /// Moves this process into it.
    pub(crate) fn enter(&self) -> io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), "0")
    }

    /// Kills all members. A deleted group has none.
    pub(crate) fn kill(&self) {
        let control = self.folder.join(self.control());
        match self.version {
            Version::Two => {
                let _ = fs::write(control, "1");
            }
            Version::One => {
                let _ = fs::write(&control, "FROZEN");
                for _ in 0..ROUNDS {
                    self.members().for_each(|pid| {
                        let _ = kill_process(pid, Signal::KILL);
                    });
                }
                let _ = fs::write(&control, "THAWED");
            }
        }
    }

    /// Returns whether a member is alive. Version 1 does not distinguish dead members from living ones.
    pub(crate) fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.folder.join("cgroup.events"));
        self.version == Version::Two
            && events.is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
    }

    /// Removes it, if it has no members.
    pub(crate) fn remove(&self) {
        remove(&self.folder, DEPTH);
    }

    fn members(&self) -> impl Iterator<Item = Pid> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        pids.into_iter().filter_map(Pid::from_raw)
    }

    /// Returns the file with which it is killed.
    fn control(&self) -> &'static str {
        match self.version {
            Version::Two => "cgroup.kill",
            Version::One => "freezer.state",
        }
    }
}

impl Version {
    fn name(self) -> &'static str {
        match self {
            Self::Two => "cgroup v2",
            Self::One => "cgroup v1 freezer",
        }
    }
}

/// Checks for the permission to write the list of members here and below, which is needed to move a process.
fn writable(home: &Path) -> io::Result<()> {
    access(home, Access::WRITE_OK | Access::EXEC_OK)?;
    access(home.join("cgroup.procs"), Access::WRITE_OK)?;
    Ok(())
}

/// Returns the control groups of this process in which others could be created, version 2 first.
fn homes() -> Vec<(PathBuf, Version)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    homes_of(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

fn homes_of(cgroup: &str, mounts: &str) -> Vec<(PathBuf, Version)> {
    let own = |wanted: fn(&str) -> bool| {
        cgroup.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(controllers).then_some(path)
        })
    };
    let has_freezer = |list: &str| list.split(',').any(|name| name == "freezer");
    let mount = |kind: &str, freezer: bool| {
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let fits = right.next() == Some(kind) && (!freezer || has_freezer(right.nth(1)?));
            let mut left = left.split(' ').skip(3);
            let (root, point) = (left.next()?, left.next()?);
            fits.then_some((root, point))
        })
    };
    let home = |path: Option<&str>, mount: Option<(&str, &str)>| {
        let ((root, point), path) = (mount?, path?);
        // A path outside the cgroup namespace is not visible here.
        let inside = Path::new(path).strip_prefix(root).ok()?;
        let visible = !path.contains("/..");
        visible.then(|| Path::new(point).join(inside))
    };
    let two = home(own(str::is_empty), mount("cgroup2", false));
    let one = home(own(has_freezer), mount("cgroup", true));
    let versions = [(two, Version::Two), (one, Version::One)];
    let found = versions.into_iter();
    found
        .filter_map(|(home, version)| Some((home?, version)))
        .collect()
}

/// Returns a name that contains the wrapper's pid namespace, its pid and its start time. This combination is never
/// reused.
fn name() -> String {
    let me = kin::raw(getpid());
    let started = Process::read(me).map_or(0, |process| process.started);
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (now.tv_sec, now.tv_nsec);
    format!("{PREFIX}-{}-{me}-{started}-{seconds}.{nanos}", namespace())
}

/// Returns the number of this process's pid namespace; 0 if /proc does not show it.
fn namespace() -> u64 {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits: String = link
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap_or(0)
}

/// Ends and removes the control groups of wrappers that have ended. Only groups of the same pid namespace are checked,
/// because pids of other namespaces have another meaning.
fn sweep(home: &Path, version: Version) {
    let namespace = namespace();
    // All leftovers share this time, so that many of them do not delay the command.
    let mut rounds = SWEEP_ROUNDS;
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((of, pid, started)) = name.to_str().and_then(wrapper_of) else {
            continue;
        };
        let lives = match Process::read(pid) {
            Some(process) => process.started == started,
            // /proc may hide processes of other users. A signal shows whether one exists.
            None => {
                Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
            }
        };
        if namespace != 0 && of == namespace && !lives {
            let folder = entry.path();
            let left = Cgroup { folder, version };
            left.kill();
            while rounds > 0 && left.is_populated() {
                rounds -= 1;
                std::thread::sleep(SWEEP_ROUND);
            }
            left.remove();
        }
    }
}

/// Parses the namespace, the pid and the start time of the wrapper from a name of [`name`].
fn wrapper_of(name: &str) -> Option<(u64, i32, u64)> {
    let mut words = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-');
    let namespace = words.next()?.parse().ok()?;
    let (pid, started) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    // Without a start time the process cannot be distinguished from a later one with its pid.
    (started != 0).then_some((namespace, pid, started))
}

fn remove(folder: &Path, depth: u32) {
    if fs::remove_dir(folder).is_ok() || depth == 0 {
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path(), depth - 1);
        }
    }
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const MOUNTS: &str = "\
        25 20 0:22 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
        26 20 0:23 / /sys/fs/cgroup/freezer rw,relatime shared:3 - cgroup cgroup rw,freezer\n\
        27 20 0:24 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n";

    #[test]
    fn both_versions_are_found() {
        let found = homes_of("6:freezer:/a\n1:cpu:/b\n0::/c/d\n", MOUNTS);
        let expected = [
            ("/sys/fs/cgroup/unified/c/d", Version::Two),
            ("/sys/fs/cgroup/freezer/a", Version::One),
        ];
        assert_eq!(
            found,
            expected.map(|(path, version)| (path.into(), version))
        );
    }

    #[test]
    fn control_group_outside_of_what_is_mounted_is_not_found() {
        assert_eq!(homes_of("0::/../x\n", MOUNTS), []);
        assert_eq!(homes_of("", MOUNTS), []);
        assert_eq!(homes_of("0::/\n", "garbage - \n - cgroup2\n"), []);
        let inner = "25 20 0:22 /pod/a /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        assert_eq!(homes_of("0::/elsewhere\n", inner), []);
        let found = homes_of("0::/pod/a/b\n", inner);
        assert_eq!(found, [("/sys/fs/cgroup/b".into(), Version::Two)]);
    }

    #[test]
    fn names_tell_whose_they_are() {
        let me = kin::raw(getpid());
        let started = Process::read(me).unwrap().started;
        assert_eq!(wrapper_of(&name()), Some((namespace(), me, started)));
        for other in [
            "tenure-run-1-2-0-3",
            "tenure-run-1-x-3-4",
            "other-1-2-3",
            "",
        ] {
            assert_eq!(wrapper_of(other), None, "{other}");
        }
    }

    /// Tests each version that this machine has and permits.
    #[test]
    fn members_are_killed_and_nothing_is_left() {
        for (home, version) in homes() {
            let Ok(made) = Cgroup::make_in(&home, version) else {
                continue;
            };
            let mut member = Command::new("sleep").arg("1000").spawn().unwrap();
            let procs = made.folder.join("cgroup.procs");
            let joined = fs::write(procs, member.id().to_string());
            let populated = made.is_populated();
            made.kill();
            if joined.is_err() {
                member.kill().unwrap();
            }
            assert_eq!(member.wait().unwrap().signal(), Some(9), "{version:?}");
            assert!(version == Version::One || joined.is_err() || populated);
            assert!(!made.is_populated(), "{version:?}");
            made.remove();
            assert!(!made.path().exists(), "{version:?}");
        }
    }
}
