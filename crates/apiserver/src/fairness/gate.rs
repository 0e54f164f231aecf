//! The state of seats and shares, and guards that return them.
//!
//! One short lock protects everything. An uncontended request takes it three times and does not wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Limits;
use super::class::Lane;
use super::limit::{Rejection, Resource};
use super::queue::{Bounds, FairQueue, Full, Ticket};
use super::share::{Member, Share};
use super::users::Users;
use crate::auth::ANONYMOUS;
use crate::status::Failure;

/// Longest wait for a seat. Shorter than the renew deadline of an election, so that the candidate can try again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for a seat of the heavy lane.
const HEAVY_PATIENCE: Duration = Duration::from_secs(30);

/// Requests, bodies or watches that a user may always have.
const FLOOR_COUNT: u64 = 16;
/// Bytes that a user may always have.
const FLOOR_BYTES: u64 = 256 * 1024;

/// Seats in use and waiting requests of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneUse {
    pub(crate) lane: Lane,
    pub(crate) executing: u32,
    pub(crate) waiting: u32,
}

/// Seats and shares of all users.
pub(crate) struct Gate {
    state: Mutex<State>,
    rejected: [AtomicU64; Rejection::ALL.len()],
}

struct State {
    users: Users,
    lanes: [FairQueue<oneshot::Sender<()>>; Lane::ALL.len()],
    shares: [Share; Resource::ALL.len()],
}

impl Gate {
    pub(super) fn new(limits: &Limits) -> Self {
        let requests = limits.requests.max(2);
        // One seat per processor. The operating system shares the processors between these threads and those of the
        // runtime.
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let heavy = u32::try_from(processors).unwrap_or(u32::MAX).max(2);
        let lane = |seats: u32, per_user: u32, queue: u32, queue_per_user: u32| {
            FairQueue::new(Bounds {
                seats,
                seats_per_user: per_user.max(1),
                queue,
                queue_per_user,
                queue_floor: u32::try_from(FLOOR_COUNT).unwrap_or(u32::MAX),
            })
        };
        // A small limit has a small floor, because the floors of all users are in addition to it.
        let share = |cap: u64, floor: u64| Share::new(cap, 1, (cap / 256).clamp(1, floor));
        Self {
            state: Mutex::new(State {
                users: Users::new(limits.users),
                lanes: [
                    lane(requests * 2, requests, requests * 64, requests * 16),
                    lane(requests, requests, requests * 32, requests * 32),
                    lane(requests, requests / 2, requests * 16, requests * 4),
                    lane(heavy, heavy / 2, requests * 4, requests),
                ],
                shares: [
                    share(limits.body_bytes, FLOOR_BYTES),
                    share(limits.arriving_bodies, FLOOR_COUNT),
                    share(limits.answer_bytes, FLOOR_BYTES),
                    share(limits.watches, FLOOR_COUNT),
                ],
            }),
            rejected: Default::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a handle for a user.
    pub(super) fn tenant(self: &Arc<Self>, name: &str) -> Tenant {
        let place = self.lock().users.hold(name);
        self.held(place, name)
    }

    fn held(self: &Arc<Self>, place: u32, name: &str) -> Tenant {
        let hold = Hold {
            gate: Arc::clone(self),
            place,
            anonymous: name.starts_with(ANONYMOUS),
        };
        Tenant {
            hold: Arc::new(hold),
            heavy: false,
        }
    }

    /// Takes a seat for a user, after a bounded wait in the queue if none is free.
    pub(super) async fn seat(self: &Arc<Self>, name: &str, lane: Lane) -> Result<Seat, Failure> {
        let (tenant, taken) = {
            let mut state = self.lock();
            let place = state.users.hold(name);
            let taken = state.lanes[lane as usize].try_take(place);
            drop(state);
            (self.held(place, name), taken)
        };
        if taken {
            return Ok(Seat { tenant, lane });
        }
        tenant.wait(lane, PATIENCE).await
    }

    /// Counts a rejection.
    pub(crate) fn count(&self, why: Rejection) {
        if let Some(index) = Rejection::ALL.iter().position(|other| *other == why) {
            self.rejected[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how often requests were rejected, by limit.
    pub(crate) fn rejections(&self) -> impl Iterator<Item = (Rejection, u64)> + '_ {
        let counts = self.rejected.iter().map(|n| n.load(Ordering::Relaxed));
        Rejection::ALL.into_iter().zip(counts)
    }

    /// Returns the use of every lane.
    pub(crate) fn lanes(&self) -> [LaneUse; Lane::ALL.len()] {
        let state = self.lock();
        Lane::ALL.map(|lane| {
            let queue = &state.lanes[lane as usize];
            LaneUse {
                lane,
                executing: queue.in_use(),
                waiting: queue.waiting(),
            }
        })
    }

    /// Returns the bytes of answers that clients have not read.
    pub(crate) fn answer_bytes(&self) -> u64 {
        self.lock().shares[Resource::Answers as usize].total()
    }
}

impl State {
    /// Gives free seats to waiting requests.
    fn grant(&mut self, lane: Lane) {
        while let Some((user, waiting)) = self.lanes[lane as usize].grant() {
            if waiting.send(()).is_err() {
                self.lanes[lane as usize].release(user);
            }
        }
    }
}

/// Keeps the place of a user in the table until dropped.
struct Hold {
    gate: Arc<Gate>,
    place: u32,
    /// Whether the user is a client without credentials.
    anonymous: bool,
}

impl Hold {
    fn member(&self) -> Member {
        Member {
            place: self.place,
            anonymous: self.anonymous,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.gate.lock().users.release(self.place);
    }
}

/// The user of a request, with its shares.
#[derive(Clone)]
pub(crate) struct Tenant {
    hold: Arc<Hold>,
    /// Whether the request already has a seat of the heavy lane.
    heavy: bool,
}

impl Tenant {
    pub(super) fn already_heavy(self, heavy: bool) -> Self {
        Self { heavy, ..self }
    }

    /// Takes a part of a share.
    ///
    /// # Errors
    /// 429 if the share of the user is used up.
    pub(crate) fn take(&self, resource: Resource, amount: u64) -> Result<Charge, Failure> {
        let member = self.hold.member();
        let mut state = self.hold.gate.lock();
        if !state.shares[resource as usize].try_take(member, amount) {
            return Err(self.exhausted(&state, resource, amount));
        }
        drop(state);
        Ok(self.charge(resource, amount))
    }

    /// Takes a part of a share, even if it is used up.
    pub(super) fn take_anyway(&self, resource: Resource, amount: u64) -> Charge {
        let mut state = self.hold.gate.lock();
        state.shares[resource as usize].take(self.hold.member(), amount);
        drop(state);
        self.charge(resource, amount)
    }

    fn charge(&self, resource: Resource, amount: u64) -> Charge {
        Charge {
            hold: Arc::clone(&self.hold),
            resource,
            amount,
        }
    }

    /// Rejects a request whose user has more unread answers than its share.
    pub(super) fn check_answers(&self) -> Result<(), Failure> {
        let state = self.hold.gate.lock();
        let share = &state.shares[Resource::Answers as usize];
        if share.total() == 0 || !share.is_exceeded(self.hold.place) {
            return Ok(());
        }
        Err(self.exhausted(&state, Resource::Answers, 0))
    }

    fn exhausted(&self, state: &State, resource: Resource, amount: u64) -> Failure {
        self.hold.gate.count(Rejection::Share(resource));
        let user = state.users.name(self.hold.place);
        let has = state.shares[resource as usize].of(self.hold.place);
        let what = match resource {
            Resource::Bodies => format!(
                "{has} bytes of request bodies, and {amount} more would exceed the user's share"
            ),
            Resource::ArrivingBodies => format!(
                "{has} requests whose bodies are still arriving, which is the user's share; send bodies faster or \
                 fewer at a time"
            ),
            Resource::Answers => format!(
                "{has} bytes of responses that are not read yet, and {amount} more would exceed the user's share; \
                 read responses, or list in pages with `limit`"
            ),
            Resource::Watches => {
                format!("{has} open watches, which is the user's share of all watches")
            }
        };
        Failure::try_again(format!("too many requests: user {user:?} has {what}"))
    }

    /// Runs work of unknown duration outside the threads of the runtime, after a fair wait for a seat. Box a large
    /// future, because the returned future contains it several times.
    ///
    /// # Errors
    /// 429 if too many requests wait already.
    pub(crate) async fn off_workers<F: Future>(&self, work: F) -> Result<F::Output, Failure> {
        if self.heavy {
            return Ok(work.await);
        }
        let seat = self.heavy_seat().await?;
        let done = crate::blocking::off_workers(work).await;
        drop(seat);
        Ok(done)
    }

    async fn heavy_seat(&self) -> Result<Seat, Failure> {
        let taken = self.hold.gate.lock().lanes[Lane::Heavy as usize].try_take(self.hold.place);
        if taken {
            return Ok(Seat {
                tenant: self.clone(),
                lane: Lane::Heavy,
            });
        }
        self.clone().wait(Lane::Heavy, HEAVY_PATIENCE).await
    }

    async fn wait(self, lane: Lane, patience: Duration) -> Result<Seat, Failure> {
        let gate = Arc::clone(&self.hold.gate);
        let (granted, seat) = oneshot::channel();
        let ticket = {
            let mut state = gate.lock();
            let queued = state.lanes[lane as usize].enqueue(self.hold.place, granted);
            // A seat may have become free since the first attempt.
            state.grant(lane);
            queued.map_err(|full| self.queue_full(&state, lane, full))?
        };
        let mut waiting = Waiting {
            tenant: Some(self),
            lane,
            ticket,
            seat,
        };
        match tokio::time::timeout(patience, &mut waiting.seat).await {
            Ok(Ok(())) => waiting.into_seat().ok_or_else(|| timed_out(lane, patience)),
            _ => {
                gate.count(Rejection::TimeOut);
                Err(timed_out(lane, patience))
            }
        }
    }

    fn queue_full(&self, state: &State, lane: Lane, full: Full) -> Failure {
        self.hold.gate.count(Rejection::QueueFull);
        let bounds = state.lanes[lane as usize].bounds();
        let user = state.users.name(self.hold.place);
        let name = lane.name();
        Failure::try_again(match full {
            Full::User => format!(
                "too many requests: user {user:?} has {} requests that wait in the lane {name:?}, which is the most \
                 for one user",
                bounds.queue_per_user
            ),
            Full::All => format!(
                "too many requests: {} requests wait in the lane {name:?}, which is the most for all users",
                bounds.queue
            ),
        })
    }
}

fn timed_out(lane: Lane, patience: Duration) -> Failure {
    Failure::try_again(format!(
        "too many requests: the request waited {} s for its turn in the lane {:?}",
        patience.as_secs(),
        lane.name()
    ))
}

/// A request that waits for a seat.
struct Waiting {
    /// `None` after the seat was taken over.
    tenant: Option<Tenant>,
    lane: Lane,
    ticket: Ticket,
    seat: oneshot::Receiver<()>,
}

impl Waiting {
    fn into_seat(mut self) -> Option<Seat> {
        let tenant = self.tenant.take()?;
        Some(Seat {
            tenant,
            lane: self.lane,
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(tenant) = self.tenant.take() else {
            return;
        };
        let mut state = tenant.hold.gate.lock();
        // Grants happen under the lock, so that the request is now either granted or in the queue.
        match self.seat.try_recv() {
            Ok(()) => {
                state.lanes[self.lane as usize].release(tenant.hold.place);
                state.grant(self.lane);
            }
            Err(_) => {
                state.lanes[self.lane as usize].remove(self.ticket);
            }
        }
    }
}

/// The right to execute one request, until dropped.
pub(super) struct Seat {
    tenant: Tenant,
    lane: Lane,
}

impl Seat {
    pub(super) fn tenant(&self) -> &Tenant {
        &self.tenant
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.tenant.hold.gate.lock();
        state.lanes[self.lane as usize].release(self.tenant.hold.place);
        state.grant(self.lane);
    }
}

/// A part of a share, until dropped.
pub(crate) struct Charge {
    hold: Arc<Hold>,
    resource: Resource,
    amount: u64,
}

impl Charge {
    /// Takes more of the same share.
    ///
    /// # Errors
    /// 429 if the share of the user is used up.
    pub(crate) fn grow(&mut self, amount: u64) -> Result<(), Failure> {
        let member = self.hold.member();
        let mut state = self.hold.gate.lock();
        if !state.shares[self.resource as usize].try_take(member, amount) {
            let tenant = Tenant {
                hold: Arc::clone(&self.hold),
                heavy: false,
            };
            let failure = tenant.exhausted(&state, self.resource, amount);
            drop(state);
            return Err(failure);
        }
        self.amount += amount;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut state = self.hold.gate.lock();
        state.shares[self.resource as usize].give(self.hold.member(), self.amount);
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
