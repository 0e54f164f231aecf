//! The watchdog of `tenure run`: the process that ends the group when the wrapper cannot.

use std::fs;
use std::io::{PipeReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::{Process, is_alive, watchdog_of};

const LIMIT: Duration = Duration::from_secs(120);

/// The shell's and the grandchild's ids are left in a file.
const FAMILY: &str = "sleep 1000 & echo $$ $! > $TENURE_ELECTION.new; \
     mv $TENURE_ELECTION.new $TENURE_ELECTION; wait";

fn start(home: &Home, election: &str) -> Process {
    let mut command = home.command();
    command
        .args(["run", "--lease-duration=4s", "--renew-deadline=2s"])
        .args(["--retry-period=300ms", "--election", election])
        .args(["--", "sh", "-c", FAMILY]);
    Process::spawn(election, command).unwrap()
}

/// Who runs in an election.
fn members(home: &Home, wrapper: &Process) -> Vec<i32> {
    let read = || fs::read_to_string(home.path(wrapper.name())).ok();
    let text = poll(LIMIT, read).unwrap_or_else(|| panic!("{}", wrapper.transcript()));
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

fn watchdog(wrapper: &Process) -> i32 {
    watchdog_of(wrapper.pid()).expect("nothing runs without it")
}

/// Waits until all of them have ended.
fn gone(pids: &[i32]) -> bool {
    let ended = || pids.iter().all(|pid| !is_alive(*pid)).then_some(());
    poll(LIMIT, ended).is_some()
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// A process that carries the mark of some wrapper's descendants, in a group of its own.
fn marked(mark: &str) -> Child {
    let mut command = Command::new("sleep");
    command.arg("1000").env("TENURE_INTERNAL_RUN", mark);
    command.process_group(0).spawn().unwrap()
}

/// A watchdog without its wrapper: its parent is this process, as after an adoption.
fn alone(home: &Home, mark: &str, deadline: u64, pipe: impl Into<Stdio>) -> Child {
    let mut dead = Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    let mut command = home.command();
    command
        .args(["__watchdog", &dead.id().to_string(), mark])
        .arg(deadline.to_string())
        .stdin(pipe);
    command.spawn().unwrap()
}

fn code(watchdog: &mut Child) -> Option<i32> {
    poll(LIMIT, || watchdog.try_wait().unwrap()).and_then(|status| status.code())
}

fn was_killed(mut child: Child) -> bool {
    let ended = poll(LIMIT, || child.try_wait().unwrap());
    ended.is_some_and(|status| status.signal() == Some(9))
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A wrapper can be killed before its watchdog has looked around. The watchdog's parent is then whoever takes
/// orphans in, the first process of the machine as a rule, and everything that runs there is below it.
#[test]
fn run_watchdog_that_comes_late_harms_nobody_else() {
    let home = Home::new();
    let (member, carrier, mut bystander) = (marked(""), marked("late"), marked("other"));
    let mut watchdog = alone(&home, "late", u64::MAX, Stdio::piped());
    let group = u64::from(member.id()).to_le_bytes();
    // The end of the pipe says that the wrapper died.
    watchdog.stdin.take().unwrap().write_all(&group).unwrap();
    assert_eq!(code(&mut watchdog), Some(1));
    assert!(was_killed(member) && was_killed(carrier));
    assert_eq!(
        bystander.try_wait().unwrap(),
        None,
        "a bystander was killed"
    );
    end(bystander);
}

/// A wrapper can be stopped as soon as it has started the command, before it has said which group that is.
#[test]
fn run_watchdog_knows_the_deadline_before_it_knows_the_group() {
    let home = Home::new();
    let (carrier, bystander) = (marked("early"), marked("other"));
    let deadline = boot_nanos() + 300_000_000;
    let mut watchdog = alone(&home, "early", deadline, Stdio::piped());
    let ended = code(&mut watchdog);
    assert!(boot_nanos() >= deadline);
    if ended != Some(1) {
        end(carrier);
        end(watchdog);
        panic!("it waited to be told more");
    }
    assert!(was_killed(carrier));
    end(bystander);
}

/// A watchdog that got no turn for long finds that its deadline has passed, and in its pipe that it was moved.
#[test]
fn run_watchdog_looks_for_news_before_it_kills() {
    let home = Home::new();
    let mut member = marked("");
    let (reader, mut news) = std::io::pipe().unwrap();
    let look: PipeReader = reader.try_clone().unwrap();
    for value in [u64::from(member.id()), u64::MAX / 2] {
        news.write_all(&value.to_le_bytes()).unwrap();
    }
    let mut watchdog = alone(&home, "slow", 1, reader);
    let has_read = || (rustix::io::ioctl_fionread(&look).unwrap() == 0).then_some(());
    assert!(poll(LIMIT, has_read).is_some());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(watchdog.try_wait().unwrap(), None, "it has ended");
    assert_eq!(member.try_wait().unwrap(), None, "the group was killed");
    drop(news);
    assert_eq!(code(&mut watchdog), Some(1));
    assert!(was_killed(member));
}

#[test]
fn run_watchdog_that_stands_still_holds_nobody_up() {
    let home = Home::new();
    let mut wrapper = start(&home, "e");
    let members = members(&home, &wrapper);
    let asleep = watchdog(&wrapper);
    signal(asleep, Signal::STOP);
    wrapper.terminate();
    let ended = poll(LIMIT, || wrapper.has_ended().then_some(()));
    if is_alive(asleep) {
        signal(asleep, Signal::CONT);
    }
    assert!(ended.is_some(), "it waits for its watchdog");
    assert!(gone(&members) && !is_alive(asleep));
}

#[test]
fn run_watchdog_that_was_killed_has_a_successor() {
    let home = Home::new();
    let mut wrapper = start(&home, "e");
    let members = members(&home, &wrapper);
    let first = watchdog(&wrapper);
    signal(first, Signal::KILL);
    let another = || watchdog_of(wrapper.pid()).filter(|pid| *pid != first);
    assert!(poll(LIMIT, another).is_some(), "{}", wrapper.transcript());
    assert!(members.iter().all(|pid| is_alive(*pid)));
    wrapper.stop();
    assert!(gone(&members), "the successor kills the group");
    wrapper.resume();
    assert_eq!(wrapper.wait(LIMIT).unwrap().code(), Some(76));
}

/// A wrapper that goes on finds its group killed, and whether it hears of that or of its loss first is chance. So
/// there are some of them: for each it is the loss that counts, and not how the command ended.
#[test]
fn run_watchdog_kills_the_group_of_a_wrapper_that_stands_still() {
    let home = Home::new();
    let names: Vec<String> = (0..6).map(|number| format!("e-{number}")).collect();
    let mut wrappers: Vec<Process> = names.iter().map(|name| start(&home, name)).collect();
    for wrapper in &mut wrappers {
        let members = members(&home, wrapper);
        wrapper.stop();
        assert_eq!(members.len(), 2);
    }
    for wrapper in &wrappers {
        assert!(gone(&members(&home, wrapper)), "{}", wrapper.name());
    }
    for wrapper in &mut wrappers {
        wrapper.resume();
    }
    for wrapper in &mut wrappers {
        let code = wrapper.wait(LIMIT).unwrap().code();
        assert_eq!(code, Some(76), "{}", wrapper.transcript());
    }
}
