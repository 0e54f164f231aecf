//! A fair queue for seats: first in, first out for each user, round robin between users.
//!
//! The queue uses no clock, locks or tasks. Every operation takes amortized constant time.
//!
//! Invariants:
//! - a user has at most `seats_per_user` seats and `queue_per_user` waiting requests;
//! - the ring contains every user that has a waiting request and may take a seat, exactly once. It may also contain
//!   users for which this is no longer true; `grant` removes them.

use std::collections::VecDeque;

/// Marks the end of a list of nodes.
const NONE: u32 = u32::MAX;

/// Limits of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Requests that execute at the same time.
    pub(super) seats: u32,
    /// Requests of one user that execute at the same time.
    pub(super) seats_per_user: u32,
    /// Requests that wait for a seat.
    pub(super) queue: u32,
    /// Requests of one user that wait for a seat.
    pub(super) queue_per_user: u32,
    /// A user with fewer waiting requests may add one even if `queue` is reached.
    pub(super) queue_floor: u32,
}

/// Seats, and the requests that wait for one. A user is identified by a small number.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    bounds: Bounds,
    in_use: u32,
    waiting: u32,
    users: Vec<UserQueue>,
    ring: VecDeque<u32>,
    nodes: Vec<Node<T>>,
    /// First of the unused nodes.
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct UserQueue {
    seats: u32,
    waiting: u32,
    first: u32,
    last: u32,
    in_ring: bool,
}

#[derive(Debug)]
struct Node<T> {
    /// `None` if the node is unused.
    item: Option<T>,
    user: u32,
    before: u32,
    after: u32,
}

/// Identifies a waiting request until it is granted or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u32);

/// The bound that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The waiting requests of this user.
    User,
    /// The waiting requests of all users.
    All,
}

impl<T> FairQueue<T> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            in_use: 0,
            waiting: 0,
            users: Vec::new(),
            ring: VecDeque::new(),
            nodes: Vec::new(),
            free: NONE,
        }
    }

    /// Returns the number of seats in use.
    pub(super) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Returns the number of waiting requests.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting
    }

    pub(super) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Takes a seat if one is free and no earlier request of the user waits.
    pub(super) fn try_take(&mut self, user: u32) -> bool {
        let seats = self.bounds.seats;
        let per_user = self.bounds.seats_per_user;
        let in_use = self.in_use;
        let queue = self.user(user);
        if in_use >= seats || queue.seats >= per_user || queue.waiting > 0 {
            return false;
        }
        queue.seats += 1;
        self.in_use += 1;
        true
    }

    /// Adds a request behind the others of its user. A later `grant` returns it.
    pub(super) fn enqueue(&mut self, user: u32, item: T) -> Result<Ticket, Full> {
        let Bounds {
            queue: all,
            queue_per_user,
            queue_floor,
            ..
        } = self.bounds;
        let own = self.user(user).waiting;
        if own >= queue_per_user {
            return Err(Full::User);
        }
        if self.waiting >= all && own >= queue_floor {
            return Err(Full::All);
        }
        let before = self.user(user).last;
        let node = Node {
            item: Some(item),
            user,
            before,
            after: NONE,
        };
        let place = self.insert(node);
        match self.node(before) {
            Some(node) => node.after = place,
            None => self.user(user).first = place,
        }
        let queue = self.user(user);
        queue.last = place;
        queue.waiting += 1;
        self.waiting += 1;
        self.enter_ring(user);
        Ok(Ticket(place))
    }

    /// Removes a request that no longer waits for a seat.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let node = self.nodes.get_mut(ticket.0 as usize)?;
        let item = node.item.take()?;
        let (user, before, after) = (node.user, node.before, node.after);
        node.after = self.free;
        self.free = ticket.0;
        match self.node(before) {
            Some(node) => node.after = after,
            None => self.user(user).first = after,
        }
        match self.node(after) {
            Some(node) => node.before = before,
            None => self.user(user).last = before,
        }
        self.user(user).waiting -= 1;
        self.waiting -= 1;
        Some(item)
    }

    /// Returns a seat of a user. Call [`Self::grant`] afterwards until it returns `None`.
    pub(super) fn release(&mut self, user: u32) {
        self.in_use = self.in_use.saturating_sub(1);
        let queue = self.user(user);
        queue.seats = queue.seats.saturating_sub(1);
        self.enter_ring(user);
    }

    /// Takes a seat for the next waiting request, if a seat is free.
    pub(super) fn grant(&mut self) -> Option<(u32, T)> {
        while self.in_use < self.bounds.seats {
            let user = self.ring.pop_front()?;
            let per_user = self.bounds.seats_per_user;
            let queue = self.user(user);
            queue.in_ring = false;
            if queue.waiting == 0 || queue.seats >= per_user {
                continue;
            }
            let first = Ticket(queue.first);
            let Some(item) = self.remove(first) else {
                continue;
            };
            self.in_use += 1;
            self.user(user).seats += 1;
            self.enter_ring(user);
            return Some((user, item));
        }
        None
    }

    fn enter_ring(&mut self, user: u32) {
        let per_user = self.bounds.seats_per_user;
        let queue = self.user(user);
        if queue.waiting > 0 && queue.seats < per_user && !queue.in_ring {
            queue.in_ring = true;
            self.ring.push_back(user);
        }
    }

    fn user(&mut self, user: u32) -> &mut UserQueue {
        let index = user as usize;
        if index >= self.users.len() {
            let empty = UserQueue {
                seats: 0,
                waiting: 0,
                first: NONE,
                last: NONE,
                in_ring: false,
            };
            self.users.resize(index + 1, empty);
        }
        &mut self.users[index]
    }

    fn node(&mut self, place: u32) -> Option<&mut Node<T>> {
        self.nodes.get_mut(place as usize)
    }

    fn insert(&mut self, node: Node<T>) -> u32 {
        if let Some(unused) = self.nodes.get_mut(self.free as usize) {
            let place = self.free;
            self.free = unused.after;
            *unused = node;
            return place;
        }
        let place = u32::try_from(self.nodes.len()).unwrap_or(NONE);
        self.nodes.push(node);
        place
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn bounds(seats: u32, seats_per_user: u32, queue: u32, queue_per_user: u32) -> Bounds {
        Bounds {
            seats,
            seats_per_user,
            queue,
            queue_per_user,
            queue_floor: 0,
        }
    }

    #[test]
    fn queue_that_is_full_accepts_a_few_requests_of_a_user_without_any() {
        let floor = Bounds {
            queue_floor: 2,
            ..bounds(1, 1, 3, 3)
        };
        let mut queue = FairQueue::new(floor);
        assert!(queue.try_take(0));
        for number in 0..3 {
            queue.enqueue(0, number).unwrap();
        }
        queue.enqueue(1, 3).unwrap();
        queue.enqueue(1, 4).unwrap();
        assert_eq!(queue.enqueue(1, 5), Err(Full::All));
        queue.enqueue(2, 6).unwrap();
    }

    #[test]
    fn queue_serves_users_in_turn_and_each_user_in_order() {
        let mut queue = FairQueue::new(bounds(1, 1, 100, 100));
        assert!(queue.try_take(9));
        for number in 0..3 {
            queue.enqueue(0, (0, number)).unwrap();
        }
        queue.enqueue(1, (1, 0)).unwrap();
        queue.enqueue(2, (2, 0)).unwrap();
        queue.enqueue(2, (2, 1)).unwrap();
        let (mut order, mut holder) = (Vec::new(), 9);
        assert_eq!(queue.grant(), None, "the only seat is taken");
        loop {
            queue.release(holder);
            let Some((user, item)) = queue.grant() else {
                break;
            };
            holder = user;
            order.push(item);
        }
        assert_eq!(order, [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2)]);
        assert_eq!((queue.in_use(), queue.waiting()), (0, 0));
    }

    #[test]
    fn queue_user_with_all_its_seats_leaves_the_others_to_another_user() {
        let mut queue = FairQueue::new(bounds(4, 2, 100, 100));
        assert!(queue.try_take(0));
        assert!(queue.try_take(0));
        assert!(!queue.try_take(0), "half of the seats at most");
        queue.enqueue(0, 'a').unwrap();
        assert_eq!(queue.grant(), None);
        assert!(queue.try_take(1));
        queue.release(1);
        assert_eq!(queue.grant(), None, "the first user still has two");
        queue.release(0);
        assert_eq!(queue.grant(), Some((0, 'a')));
    }

    #[test]
    fn queue_rejects_requests_above_its_bounds_and_keeps_room_for_other_users() {
        let mut queue = FairQueue::new(bounds(1, 1, 3, 2));
        assert!(queue.try_take(0));
        queue.enqueue(0, 0).unwrap();
        let ticket = queue.enqueue(0, 1).unwrap();
        assert_eq!(queue.enqueue(0, 2), Err(Full::User));
        queue.enqueue(1, 3).unwrap();
        assert_eq!(queue.enqueue(2, 4), Err(Full::All));
        assert_eq!(queue.remove(ticket), Some(1));
        assert_eq!(queue.remove(ticket), None);
        queue.enqueue(2, 4).unwrap();
    }

    #[test]
    fn queue_memory_does_not_grow_with_the_number_of_requests() {
        let mut queue = FairQueue::new(bounds(1, 1, 100, 100));
        assert!(queue.try_take(0));
        for round in 0..10_000 {
            let ticket = queue.enqueue(1, round).unwrap();
            if round % 2 == 0 {
                assert_eq!(queue.remove(ticket), Some(round));
            } else {
                queue.release(u32::from(round > 1));
                assert_eq!(queue.grant(), Some((1, round)));
            }
        }
        assert!(queue.nodes.len() <= 2, "{}", queue.nodes.len());
        assert!(queue.ring.len() <= 2, "{}", queue.ring.len());
    }

    /// The same rules with plain lists, which check every user at each step.
    struct Model {
        bounds: Bounds,
        seats: Vec<u32>,
        waiting: Vec<VecDeque<u32>>,
        /// Users that may take a seat, in the order of their turns.
        turns: VecDeque<usize>,
    }

    impl Model {
        fn in_use(&self) -> u32 {
            self.seats.iter().sum()
        }

        fn queued(&self) -> usize {
            self.waiting.iter().map(VecDeque::len).sum()
        }

        fn may(&self, user: usize) -> bool {
            self.seats[user] < self.bounds.seats_per_user && !self.waiting[user].is_empty()
        }

        /// Appends users that became eligible, and removes those that no longer are.
        fn update(&mut self) {
            let turns = std::mem::take(&mut self.turns);
            self.turns = turns.into_iter().filter(|user| self.may(*user)).collect();
            for user in 0..self.seats.len() {
                if self.may(user) && !self.turns.contains(&user) {
                    self.turns.push_back(user);
                }
            }
        }

        fn grant(&mut self) -> Option<(u32, u32)> {
            if self.in_use() >= self.bounds.seats {
                return None;
            }
            let user = self.turns.pop_front()?;
            let item = self.waiting[user].pop_front()?;
            self.seats[user] += 1;
            self.update();
            Some((u32::try_from(user).unwrap(), item))
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive(u32),
        Release(u32),
        Leave(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..5_u32).prop_map(Step::Arrive),
            3 => (0..5_u32).prop_map(Step::Release),
            1 => (0..20_usize).prop_map(Step::Leave),
        ];
        proptest::collection::vec(step, 0..300)
    }

    proptest! {
        /// The queue grants the same requests as the model. A cancelled request may change only the turn of its user.
        /// The model therefore keeps the user in the ring until that turn.
        #[test]
        fn queue_behaves_like_the_model(steps in steps(), seats in 1..6_u32, per_user in 1..4_u32, floor in 0..3_u32) {
            let bounds = Bounds {
                queue_floor: floor,
                ..bounds(seats, per_user.min(seats), 12, 5)
            };
            let mut queue = FairQueue::new(bounds);
            let mut model = Model {
                bounds,
                seats: vec![0; 5],
                waiting: vec![VecDeque::new(); 5],
                turns: VecDeque::new(),
            };
            let mut tickets: Vec<(u32, u32, Ticket)> = Vec::new();
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Arrive(user) => {
                        let at = user as usize;
                        let free = model.in_use() < seats
                            && model.seats[at] < bounds.seats_per_user
                            && model.waiting[at].is_empty();
                        prop_assert_eq!(queue.try_take(user), free);
                        if free {
                            model.seats[at] += 1;
                            model.update();
                            continue;
                        }
                        next += 1;
                        let expected = if model.waiting[at].len() >= 5 {
                            Err(Full::User)
                        } else if model.queued() >= 12 && model.waiting[at].len() >= floor as usize {
                            Err(Full::All)
                        } else {
                            model.waiting[at].push_back(next);
                            model.update();
                            Ok(())
                        };
                        let got = queue.enqueue(user, next);
                        prop_assert_eq!(got.map(|_| ()), expected);
                        if let Ok(ticket) = got {
                            tickets.push((user, next, ticket));
                        }
                    }
                    Step::Release(user) => {
                        if model.seats[user as usize] == 0 {
                            continue;
                        }
                        queue.release(user);
                        model.seats[user as usize] -= 1;
                        model.update();
                    }
                    Step::Leave(index) => {
                        if tickets.is_empty() {
                            continue;
                        }
                        let (user, item, ticket) = tickets.swap_remove(index % tickets.len());
                        prop_assert_eq!(queue.remove(ticket), Some(item));
                        let waiting = &mut model.waiting[user as usize];
                        // A user whose last request was removed may have its old turn when it returns.
                        waiting.retain(|other| *other != item);
                        if waiting.is_empty() {
                            queue.forget_turn(user);
                        }
                        model.update();
                    }
                }
                loop {
                    let (got, expected) = (queue.grant(), model.grant());
                    prop_assert_eq!(got, expected);
                    let Some((_, item)) = got else { break };
                    tickets.retain(|(_, other, _)| *other != item);
                }
                prop_assert_eq!(queue.in_use(), model.in_use());
                prop_assert_eq!(queue.waiting() as usize, model.queued());
                prop_assert!(queue.in_use() <= seats);
            }
        }
    }

    impl<T> FairQueue<T> {
        /// Removes a user from the ring immediately, as the model does. The queue removes it at its next turn.
        fn forget_turn(&mut self, user: u32) {
            self.ring.retain(|other| *other != user);
            self.user(user).in_ring = false;
        }
    }
}
