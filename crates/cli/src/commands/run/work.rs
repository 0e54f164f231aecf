//! The guarded work of `tenure run`: one process group while leading.
//!
//! Three mechanisms end a group when the term ends:
//!
//! - This loop.
//! - The deadline thread, if the runtime is stuck.
//! - The watchdog process, if this whole process is stopped or killed.
//!
//! All three know the fence before the group starts. None of them ever moves it beyond the lease of a confirmed
//! renewal.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tenure::clock::{Clock, SystemClock};
use tenure::deadline::Deadline;
use tenure::{Handle, Term};
use tenure_core::{LocalTime, StopReason};

use super::args::OnExit;
use super::cgroup::Cgroup;
use super::containment::{Change, Containment};
use super::group::{Exit, Group, Spec};
use super::slots::Slot;
use super::{kin, terminal};
use crate::say;
use crate::signals::{Asked, Signals};

/// Interval at which the fence is checked. Well below any lease.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// Number of scans for processes at the fence, because some may be created in the meantime.
const ROUNDS: u32 = 5;

/// Maximum time for a command to end after it was asked to, as long as its lease can be kept.
const LONGEST_STOP: Duration = Duration::from_secs(30);

/// Time after the end of the guard at which this loop counts as stuck.
const STUCK: Duration = Duration::from_millis(250);

/// Interval at which a group that waits for the terminal is continued to check whether it still does.
const TERMINAL: Duration = Duration::from_secs(1);

/// Time during which a holder that stepped down by a signal does not campaign.
const SIT_OUT: Duration = Duration::from_secs(30);

/// Exit status of processes that still run at the fence.
const KILLED: Exit = Exit::Signal(9);

/// After a run of this length, a restarted child starts again with the shortest delay.
const STEADY: Duration = Duration::from_secs(60);

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The running group, for other threads that must end it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running(Arc<Ids>);

#[derive(Debug, Default)]
struct Ids {
    group: AtomicI32,
    watchdog: AtomicI32,
    cgroup: Mutex<Option<Cgroup>>,
}

impl Running {
    /// Kills the running group, if there is one, and then the processes that left it.
    pub(crate) fn kill(&self) {
        let watchdog = self.0.watchdog.load(Ordering::SeqCst);
        if watchdog == 0 {
            return;
        }
        if let Some(group) = Pid::from_raw(self.0.group.load(Ordering::SeqCst)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(cgroup) = &*self.0.cgroup.lock().unwrap_or_else(PoisonError::into_inner) {
            cgroup.kill();
        }
        for _ in 0..ROUNDS {
            let left = kin::descendants(watchdog);
            if left.is_empty() {
                break;
            }
            left.iter().for_each(|process| process.signal(Signal::KILL));
        }
    }

    fn set(&self, contained: &Containment, group: Option<Group>) {
        let cgroup = contained.cgroup().cloned();
        *self.0.cgroup.lock().unwrap_or_else(PoisonError::into_inner) = cgroup;
        let group = group.map_or(0, |group| kin::raw(group.id()));
        self.0.group.store(group, Ordering::SeqCst);
        self.0
            .watchdog
            .store(contained.watchdog(), Ordering::SeqCst);
    }

    fn clear(&self) {
        self.0.watchdog.store(0, Ordering::SeqCst);
        self.0.group.store(0, Ordering::SeqCst);
    }
}

/// The command, and what to do when it ends.
#[derive(Clone)]
pub(crate) struct Work {
    pub(crate) spec: Spec,
    pub(crate) on_exit: OnExit,
    pub(crate) on_failure: OnExit,
    pub(crate) max_restarts: Option<u32>,
    /// Signal for the group when the term ends; by default the signal that the wrapper got, otherwise TERM.
    pub(crate) stop_signal: Option<Signal>,
    pub(crate) max_hold: Option<Duration>,
    /// Nothing is started with less remaining validity of the guard than this.
    pub(crate) min_validity: Duration,
    /// Time from the end of the guard to the fence.
    pub(super) grace: Duration,
    /// Signal to the wrapper that gives up the term.
    pub(crate) step_down_signal: Option<Signal>,
    /// Signals that are forwarded to the group and do not end it.
    pub(crate) passed_on: Vec<Signal>,
    pub(crate) handle: Handle,
    pub(crate) foreground: bool,
    pub(crate) running: Running,
    /// With `--slots`: nothing is started again in a removed slot.
    pub(super) slot: Option<Slot>,
}

/// How the work of a term ended. The group is empty.
#[derive(Debug)]
pub(crate) enum End {
    /// The child ended by itself.
    Exited(Exit),
    /// The wrapper was asked to end.
    Asked(Signal, Option<Exit>),
    /// The term ended.
    Lost,
    /// The wrapper has held the lease for the allowed time.
    HeldLongEnough,
    /// The child could not be started.
    NotStarted(io::Error),
}

impl Work {
    /// Runs the command until it ends, the term ends, a signal asks the wrapper to end, or the allowed time has passed.
    pub(crate) async fn run(&self, term: &Term, signals: &mut Signals) -> End {
        let mut pause = FIRST_PAUSE;
        let mut restarts = 0;
        let hold = self.max_hold.map(|hold| SystemClock.now().local + hold);
        loop {
            let started = SystemClock.now().local;
            let end = match self.attend(term, signals, hold).await {
                Ok(end) => end,
                // The watchdog starts nothing after the fence.
                Err(_) if !term.tenure().is_leading() => return End::Lost,
                Err(error) => return End::NotStarted(error),
            };
            let End::Exited(exit) = end else { return end };
            match if exit.success() {
                self.on_exit
            } else {
                self.on_failure
            } {
                OnExit::Exit => return End::Exited(exit),
                OnExit::Hold => pause = Duration::MAX,
                OnExit::Restart => {
                    restarts += 1;
                    if self.max_restarts.is_some_and(|most| restarts > most) {
                        return End::Exited(exit);
                    }
                    if let Some(slot) = &self.slot
                        && let Some(why) = slot.gone(HEARTBEAT * 5).await
                    {
                        eprintln!("tenure: did not restart the command: {why}");
                        return End::Exited(exit);
                    }
                    if SystemClock.now().local.since(started) > STEADY {
                        pause = FIRST_PAUSE;
                    }
                }
            }
            let left = hold.map_or(Duration::MAX, |hold| hold.since(SystemClock.now().local));
            tokio::select! {
                biased;
                () = term.tenure().cancelled() => return End::Lost,
                signal = signals.end() => return End::Asked(signal, Some(exit)),
                () = tokio::time::sleep(left), if hold.is_some() => return End::HeldLongEnough,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    /// Starts one group and supervises it until it is empty.
    async fn attend(
        &self,
        term: &Term,
        signals: &mut Signals,
        hold: Option<LocalTime>,
    ) -> io::Result<End> {
        // This process may have been stopped or suspended since it won. A renewal restores the validity.
        while term.tenure().is_leading() && term.tenure().valid_for() < self.min_validity {
            tokio::select! {
                () = term.tenure().cancelled() => {}
                signal = signals.end() => return Ok(End::Asked(signal, None)),
                () = tokio::time::sleep(HEARTBEAT) => {}
            }
        }
        if !term.tenure().is_leading() {
            return Ok(End::Lost);
        }
        // The watchdog starts the command, so that the command never runs without it, even if this process is stopped.
        let mut contained = Containment::start(&self.spec, self.fence(term).as_nanos())?;
        self.running.set(&contained, None);
        let overdue = self.kill_at_fence(term);
        signals.pass_on(&self.passed_on);
        let ended = match contained.started().await {
            Ok(group) => {
                self.running.set(&contained, Some(group));
                if self.foreground {
                    terminal::give_to(group.id());
                }
                let looked = self.look_after(group, &mut contained, &overdue, term, signals, hold);
                Ok(looked.await)
            }
            Err(error) => {
                contained.clear_out(true, signals).await;
                Err(error)
            }
        };
        drop(overdue);
        self.running.clear();
        let exit = contained.finish().await.unwrap_or(KILLED);
        signals.pass_on(&[]);
        if self.foreground {
            terminal::take_back();
        }
        Ok(match ended? {
            // After this process was stopped, the watchdog may have acted first, and this loop has not received the
            // loss yet.
            None if exit == KILLED && !term.tenure().is_leading() => End::Lost,
            None => End::Exited(exit),
            Some(Why::Asked(signal)) => End::Asked(signal, Some(exit)),
            Some(Why::Lost) => End::Lost,
            Some(Why::Held) => End::HeldLongEnough,
        })
    }

    /// Supervises the command until it and all its descendants have ended. Returns why it was asked to end.
    async fn look_after(
        &self,
        group: Group,
        contained: &mut Containment,
        overdue: &Deadline,
        term: &Term,
        signals: &mut Signals,
        hold: Option<LocalTime>,
    ) -> Option<Why> {
        let mut stuck = Some(self.ask_if_stuck(term, group));
        let mut why: Option<Why> = None;
        let mut patience = None;
        let mut terminal = Longing::default();
        let mut wants_terminal = false;
        // A command without its watchdog could outlive this process, so it is ended.
        let unwatched = loop {
            if contained.is_unwatched() {
                break true;
            }
            if group.has_ended() {
                break false;
            }
            let now = SystemClock.now().local;
            let fence = self.fence(term);
            overdue.move_to(fence);
            contained.until(fence.as_nanos());
            terminal.look(std::mem::take(&mut wants_terminal), now, group);
            if let Some(stuck) = &stuck {
                stuck.move_to(now + term.tenure().valid_for() + STUCK);
            }
            if why.is_none() && hold.is_some_and(|hold| now >= hold) {
                why = Some(Why::Held);
                group.ask(self.stop_signal.unwrap_or(Signal::TERM));
            }
            if why.is_some() {
                stuck = None;
                if now >= *patience.get_or_insert(now + LONGEST_STOP) {
                    group.signal(Signal::KILL);
                }
            }
            tokio::select! {
                change = contained.next() => match change {
                    Change::Stopped(signal) => wants_terminal |= !group.go_on(signal),
                    Change::Ended => break false,
                    // The next iteration finds it dead.
                    Change::Unwatched => contained.end_watchdog(),
                },
                asked = signals.next() => match asked {
                    Asked::Child => {}
                    Asked::Forward(signal) if Some(signal) == self.step_down_signal => {
                        self.handle.step_down(SIT_OUT);
                    }
                    Asked::Forward(signal) => group.signal(signal),
                    // A second signal ends immediately.
                    Asked::End(_) if why.is_some() => {
                        say::second_signal("killing the command instead of waiting for it to end");
                        group.signal(Signal::KILL);
                    }
                    Asked::End(signal) => {
                        why = Some(Why::Asked(signal));
                        group.ask(self.stop_signal.unwrap_or(signal));
                    }
                },
                () = term.tenure().cancelled(), if why.is_none() => {
                    why = Some(Why::Lost);
                    group.ask(self.stop_signal.unwrap_or(Signal::TERM));
                }
                () = tokio::time::sleep(HEARTBEAT) => {}
            }
        };
        drop(stuck);
        let asked = contained.clear_out(unwatched, signals).await;
        why.or(asked.map(Why::Asked))
    }

    /// Returns the instant by which nothing of the group may be left.
    fn fence(&self, term: &Term) -> LocalTime {
        let deadline = term.deadline();
        fence(
            deadline,
            term.tenure().until() + self.grace,
            term.tenure().reason().as_ref(),
        )
    }

    /// If this loop is stuck, the deadline thread asks the group to end soon after the guard has expired.
    fn ask_if_stuck(&self, term: &Term, group: Group) -> Deadline {
        let signal = self.stop_signal.unwrap_or(Signal::TERM);
        let at = SystemClock.now().local + term.tenure().valid_for() + STUCK;
        Deadline::new(at, move || group.ask(signal))
    }

    /// The deadline thread kills remaining processes at the fence, independently of this loop.
    fn kill_at_fence(&self, term: &Term) -> Deadline {
        let running = self.running.clone();
        Deadline::new(self.fence(term), move || running.kill())
    }
}

/// Computes the fence. `counted` is the end of the last renewal's lease, minus the margin. The elector gives work that
/// was cancelled late, after a stop of this process, a little more time, possibly beyond `counted`. A group can be
/// killed, so it gets no extra time.
fn fence(deadline: LocalTime, counted: LocalTime, reason: Option<&StopReason>) -> LocalTime {
    match reason {
        // The lease is renewed in the meantime, and `counted` belongs to an older renewal.
        Some(reason) if reason.is_voluntary() => deadline,
        _ => deadline.min(counted),
    }
}

/// State of a group that is stopped because it wants the terminal. It is continued from time to time, because it may
/// have the terminal by then.
#[derive(Default)]
struct Longing {
    again: Option<LocalTime>,
    said: bool,
}

impl Longing {
    fn look(&mut self, stands_still: bool, now: LocalTime, group: Group) {
        if stands_still && !std::mem::replace(&mut self.said, true) {
            eprintln!(
                "tenure: the command is stopped, because it needs the terminal; run it in the foreground"
            );
        }
        if stands_still {
            self.again.get_or_insert(now + TERMINAL);
        }
        if self.again.take_if(|again| now >= *again).is_some() {
            group.signal(Signal::CONT);
        }
    }
}

/// Reason why a group was asked to end.
enum Why {
    Asked(Signal),
    Lost,
    Held,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_moment_is_not_for_groups() {
        let counted = LocalTime::from_nanos(1_000);
        let (earlier, later) = (LocalTime::from_nanos(900), LocalTime::from_nanos(1_100));
        for reason in [None, Some(&StopReason::GuardExpired)] {
            assert_eq!(fence(later, counted, reason), counted);
            assert_eq!(fence(earlier, counted, reason), earlier);
        }
        let kept = fence(later, counted, Some(&StopReason::StepDown));
        assert_eq!(kept, later, "the lease was renewed while it winds down");
    }
}
