//! A child process of a test: its event lines, signals to it, and its guaranteed end.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::{self, Nanos};
use crate::event::{Event, Kind};

/// A running program. Dropping it kills it, and the kernel kills it if the test run dies first.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    lines: Arc<Lines>,
    stopped_at: Option<Nanos>,
    killed_at: Option<Nanos>,
}

/// The expected event that did not happen in time, and all output of the process until then.
#[derive(Debug, thiserror::Error)]
#[error("{name}: no {what} within {limit:?}; it said:\n{said}")]
pub struct Silence {
    name: String,
    what: String,
    limit: Duration,
    said: String,
}

impl Silence {
    pub(crate) fn new(name: &str, what: &str, limit: Duration, said: String) -> Self {
        Self {
            name: name.to_owned(),
            what: what.to_owned(),
            limit,
            said,
        }
    }
}

/// Longest wait for the last lines on standard error of a process that has ended.
const LAST_LINES: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Lines {
    said: Mutex<Said>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Said {
    events: Vec<Event>,
    json: Vec<serde_json::Value>,
    text: Vec<String>,
    /// Standard output has ended.
    closed: bool,
    /// Standard error has ended.
    errors_closed: bool,
}

impl Process {
    /// Starts a program and reads its output. Lines that are not events are kept as text.
    ///
    /// # Errors
    ///
    /// Fails if the program could not be started.
    pub fn spawn(name: impl Into<String>, mut command: Command) -> io::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = crate::spawn::spawn_bound(command)?;
        let lines = Arc::<Lines>::default();
        if let Some(stdout) = child.stdout.take() {
            let lines = lines.clone();
            std::thread::spawn(move || lines.read(stdout, true));
        }
        if let Some(stderr) = child.stderr.take() {
            let lines = lines.clone();
            std::thread::spawn(move || lines.read(stderr, false));
        }
        Ok(Self {
            name: name.into(),
            child,
            lines,
            stopped_at: None,
            killed_at: None,
        })
    }

    /// Returns the name given at the start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM, which asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL, and waits until the process has ended. Returns the last instant at which it did anything: that of
    /// the kill, or of the stop if it was stopped.
    pub fn kill(&mut self) -> Nanos {
        self.signal(Signal::KILL);
        _ = self.child.wait();
        let at = self.stopped_at.unwrap_or_else(clock::now);
        *self.killed_at.get_or_insert(at)
    }

    /// Sends SIGSTOP: the process is stopped immediately.
    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
        self.stopped_at = Some(clock::now());
    }

    /// Sends SIGCONT: the process continues.
    pub fn resume(&mut self) {
        self.stopped_at = None;
        self.signal(Signal::CONT);
    }

    /// Returns whether it has ended by itself or by a signal.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Returns the result of [`kill`](Self::kill), if it was called.
    pub fn killed_at(&self) -> Option<Nanos> {
        self.killed_at
    }

    /// Returns all events so far.
    pub fn events(&self) -> Vec<Event> {
        self.lines.lock().events.clone()
    }

    /// Returns the last event so far of one of these kinds.
    pub fn last_of(&self, kinds: &[Kind]) -> Option<Event> {
        let said = self.lines.lock();
        let mut events = said.events.iter().rev();
        events.find(|event| kinds.contains(&event.event)).cloned()
    }

    /// Returns all lines so far that are JSON but not events of an election.
    pub fn json(&self) -> Vec<serde_json::Value> {
        self.lines.lock().json.clone()
    }

    /// Returns all other lines so far, of both streams.
    pub fn text(&self) -> Vec<String> {
        self.lines.lock().text.clone()
    }

    /// Returns all output so far, for error messages.
    pub fn transcript(&self) -> String {
        self.lines.lock().transcript()
    }

    /// Waits for an event of this kind that was printed at or after `since`.
    ///
    /// # Errors
    ///
    /// Fails if there was none in time, or if the process ended without one.
    pub fn wait_for(&self, kind: Kind, since: Nanos, limit: Duration) -> Result<Event, Silence> {
        self.wait_until(&format!("{kind:?}"), limit, |event| {
            event.event == kind && event.t >= since
        })
    }

    /// Waits for an event that `wanted` accepts; `what` names it in the error.
    ///
    /// # Errors
    ///
    /// Fails if there was none in time, or if the process ended without one.
    pub fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<Event, Silence> {
        let end = clock::now() + limit;
        let mut said = self.lines.lock();
        loop {
            if let Some(event) = said.events.iter().find(|event| wanted(event)) {
                return Ok(event.clone());
            }
            let left = end.since(clock::now());
            if left.is_zero() || said.closed {
                return Err(Silence::new(&self.name, what, limit, said.transcript()));
            }
            said = match self.lines.news.wait_timeout(said, left) {
                Ok((said, _)) => said,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Waits for the end of the process and of its output.
    ///
    /// # Errors
    ///
    /// Fails if it did not end in time.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, Silence> {
        let ended = clock::poll(limit, || {
            let status = self.child.try_wait().ok().flatten()?;
            self.lines.lock().closed.then_some(status)
        });
        // The last lines may not be read yet. A process that it started may keep standard error open.
        let read = || self.lines.lock().errors_closed.then_some(());
        _ = clock::poll(LAST_LINES, read);
        ended.ok_or_else(|| Silence::new(&self.name, "end", limit, self.transcript()))
    }

    /// Returns the resident memory in bytes, if /proc shows it.
    pub fn resident_bytes(&self) -> Option<u64> {
        resident_bytes(self.pid())
    }

    /// Returns the run time of its threads so far in nanoseconds, if /proc shows it, for amounts that are too small for
    /// clock ticks. Excludes threads that have ended.
    pub fn run_time(&self) -> Option<Duration> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).ok()?;
        let times = tasks.filter_map(|task| {
            let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        Some(Duration::from_nanos(times.sum()))
    }

    /// Returns the CPU time used so far, if /proc shows it.
    pub fn cpu_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // The second field is the program's name in brackets and may contain anything.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let ticks: u64 =
            fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
        Some(Duration::from_millis(
            ticks * 1000 / rustix::param::clock_ticks_per_second(),
        ))
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // An ended process that was not waited for keeps its id, so the signal never reaches another process.
            _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.kill();
        }
    }
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, stream: impl io::Read, events: bool) {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let event = if events { Event::parse(&line) } else { None };
            let json = if events {
                serde_json::from_str(&line).ok()
            } else {
                None
            };
            let mut said = self.lock();
            match (event, json) {
                (Some(event), _) if event.event != Kind::Other => said.events.push(event),
                (_, Some(json)) => said.json.push(json),
                _ => said.text.push(line),
            }
            self.news.notify_all();
        }
        let mut said = self.lock();
        let closed = if events {
            &mut said.closed
        } else {
            &mut said.errors_closed
        };
        *closed = true;
        self.news.notify_all();
    }
}

impl Said {
    /// Work is omitted, and the text is truncated, because both can be thousands of lines.
    fn transcript(&self) -> String {
        let events = self
            .events
            .iter()
            .filter(|event| event.event != Kind::Working)
            .map(|event| {
                format!(
                    "{} {:?} leader={:?} token={:?}",
                    event.t.0, event.event, event.leader, event.token
                )
            });
        let text = &self.text[self.text.len().saturating_sub(30)..];
        events
            .chain(text.iter().cloned())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Returns whether a process exists and is not a zombie, if /proc shows it.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Returns a process and all its descendants, if /proc shows them.
pub fn family(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let parent = |child: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        let rest = stat.rsplit_once(')')?.1;
        rest.split_whitespace().nth(1)?.parse::<i32>().ok()
    };
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(child) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        if parent(child) == Some(pid) {
            all.extend(family(child));
        }
    }
    all
}

/// Returns the watchdog of a `tenure run`, which ends the group if the wrapper cannot, while a living one exists.
pub fn watchdog_of(wrapper: u32) -> Option<i32> {
    let is_watchdog = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|word| word == b"__watchdog")
    };
    let mut family = family(i32::try_from(wrapper).ok()?).into_iter();
    family.find(|pid| is_watchdog(pid) && is_alive(*pid))
}

/// Returns whether a process has a handler for SIGINT, the second signal of the mask, if /proc shows it.
pub fn catches_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 0b10 != 0)
}

/// Returns the resident memory of a process, if /proc shows it.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::spawn("shell", command).unwrap()
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn events_and_text_are_separated() {
        let mut process = shell(r#"echo '{"t":7,"event":"acquired"}'; echo hello; echo oops >&2"#);
        assert!(process.wait(LIMIT).unwrap().success());
        assert_eq!(
            process.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap().t,
            Nanos(7)
        );
        let text = clock::poll(LIMIT, || {
            Some(process.text()).filter(|text| text.len() == 2)
        });
        assert!(text.unwrap().iter().any(|line| line == "oops"));
    }

    #[test]
    fn wait_ends_when_the_output_of_the_process_ends() {
        let process = shell("echo bye");
        let silence = process
            .wait_for(Kind::Lost, Nanos(0), Duration::from_secs(3600))
            .unwrap_err();
        assert!(
            silence
                .to_string()
                .starts_with("shell: no Lost within 3600s"),
            "{silence}"
        );
    }

    #[test]
    fn cpu_time_of_busy_process_increases() {
        let process =
            shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; exec sleep 1000");
        let done = || process.text().contains(&"done".to_owned()).then_some(());
        clock::poll(LIMIT, done).unwrap();
        let spent = process.run_time().unwrap();
        assert!(spent > Duration::from_micros(100), "{spent:?}");
    }

    #[test]
    fn dropped_process_is_killed() {
        let process = shell("exec sleep 1000");
        let stat = format!("/proc/{}/stat", process.pid());
        assert!(std::fs::exists(&stat).unwrap());
        drop(process);
        assert!(!std::fs::exists(&stat).unwrap());
    }

    #[test]
    fn a_process_outlives_the_thread_that_started_it() {
        let mut process = std::thread::spawn(|| shell("exec sleep 1000"))
            .join()
            .unwrap();
        // The kernel sends the death signal when the thread ends, so this would be visible immediately.
        std::thread::sleep(Duration::from_millis(200));
        assert!(process.child.try_wait().unwrap().is_none());
    }
}
