//! Shares of a resource that is counted: bytes, watches, connections.
//!
//! A user may hold at most `weight` times the amount that is still free. A single user can therefore hold at most
//! `weight / (weight + 1)` of the whole. A part is always free for a user that comes later, without any configuration
//! per user.
//!
//! With a weight of one, each user that takes its whole share halves the free amount. A user may therefore always hold
//! the floor, even if almost nothing is free. The number of users is bounded, so the sum of their floors is bounded,
//! too. There can be many clients without credentials, so the rule also applies to all of them together.

/// The place of a user, which is a small number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) place: u32,
    /// Whether the user is a client without credentials.
    pub(crate) anonymous: bool,
}

impl From<u32> for Member {
    fn from(place: u32) -> Self {
        Self {
            place,
            anonymous: false,
        }
    }
}

/// Amounts of one resource that users hold.
#[derive(Debug)]
pub(crate) struct Share {
    cap: u64,
    weight: u64,
    floor: u64,
    total: u64,
    /// Amount that all clients without credentials hold together.
    anonymous: u64,
    users: Vec<u64>,
}

impl Share {
    /// Creates a share with this much for all users together. Every user may have as much as `floor`.
    pub(crate) fn new(cap: u64, weight: u64, floor: u64) -> Self {
        Self {
            cap,
            weight,
            floor,
            total: 0,
            anonymous: 0,
            users: Vec::new(),
        }
    }

    /// Takes an amount if it is within the share of the user. A user that holds nothing may take any amount while at
    /// most half of the whole is in use, so that one large answer is possible.
    pub(crate) fn try_take(&mut self, user: impl Into<Member>, amount: u64) -> bool {
        let user = user.into();
        let fits = self.fits(self.of(user), amount);
        if !fits || (user.anonymous && !self.fits(self.anonymous, amount)) {
            return false;
        }
        self.take(user, amount);
        true
    }

    fn fits(&self, has: u64, amount: u64) -> bool {
        has + amount <= self.floor
            || within(has + amount, self.total + amount, self.cap, self.weight)
            || (has == 0 && self.total <= self.cap / 2)
    }

    /// Takes an amount, even above the share.
    pub(crate) fn take(&mut self, user: impl Into<Member>, amount: u64) {
        let user = user.into();
        if user.anonymous {
            self.anonymous += amount;
        }
        let index = user.place as usize;
        if index >= self.users.len() {
            self.users.resize(index + 1, 0);
        }
        self.users[index] += amount;
        self.total += amount;
    }

    /// Gives an amount back.
    pub(crate) fn give(&mut self, user: impl Into<Member>, amount: u64) {
        let user = user.into();
        if user.anonymous {
            self.anonymous = self.anonymous.saturating_sub(amount);
        }
        if let Some(has) = self.users.get_mut(user.place as usize) {
            *has = has.saturating_sub(amount);
            self.total = self.total.saturating_sub(amount);
        }
    }

    /// Returns whether a user holds more than its share. This happens if other users have taken a part since, or after
    /// [`take`](Self::take).
    pub(crate) fn is_exceeded(&self, user: impl Into<Member>) -> bool {
        let has = self.of(user);
        has > self.floor && !within(has, self.total, self.cap, self.weight)
    }

    /// Returns the amount that a user holds.
    pub(crate) fn of(&self, user: impl Into<Member>) -> u64 {
        self.users
            .get(user.into().place as usize)
            .copied()
            .unwrap_or(0)
    }

    /// Returns the amount that all users hold together.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }
}

/// Returns whether a user that holds `has` is within its share if all users together hold `total`.
pub(crate) fn within(has: u64, total: u64, cap: u64, weight: u64) -> bool {
    has <= weight.saturating_mul(cap.saturating_sub(total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes single units until the share is used up.
    fn fill(share: &mut Share, user: u32) -> u64 {
        while share.try_take(user, 1) {}
        share.of(user)
    }

    #[test]
    fn share_of_one_user_leaves_the_rest_to_others() {
        let mut share = Share::new(100, 1, 0);
        assert_eq!(fill(&mut share, 0), 50);
        assert_eq!(fill(&mut share, 1), 25);
        assert_eq!(fill(&mut share, 2), 12);
        assert!(share.is_exceeded(0), "others have come since");
        share.give(0, 50);
        assert_eq!(fill(&mut share, 2), 37);
        let mut share = Share::new(100, 4, 0);
        assert_eq!(fill(&mut share, 0), 80);
    }

    #[test]
    fn share_of_a_user_that_has_nothing_allows_one_large_amount() {
        let mut share = Share::new(100, 1, 0);
        assert!(share.try_take(0, 90));
        assert!(!share.try_take(0, 1));
        assert!(!share.try_take(1, 20), "more than half is in use");
        assert!(share.try_take(1, 5));
        share.give(0, 90);
        assert!(!share.is_exceeded(1));
        assert!(share.try_take(0, 40));
    }

    #[test]
    fn share_has_a_floor_for_every_user() {
        let mut share = Share::new(4_096, 1, 16);
        let users: Vec<u64> = (0..100).map(|user| fill(&mut share, user)).collect();
        assert_eq!(users[..3], [2_048, 1_024, 512]);
        assert!(users[13..].iter().all(|has| *has == 16), "{users:?}");
        assert!(!share.is_exceeded(99));
        assert!(share.is_exceeded(0));
    }

    #[test]
    fn share_of_clients_without_credentials_is_common() {
        let mut share = Share::new(4_096, 1, 16);
        let client = |place| Member {
            place,
            anonymous: true,
        };
        let mut sum = 0;
        for place in 0..1_000 {
            while share.try_take(client(place), 1) {
                sum += 1;
            }
        }
        assert_eq!(sum, 2_048, "as much as one user");
        assert_eq!(fill(&mut share, 1_000), 1_024);
        share.give(client(0), 2_048);
        assert!(share.try_take(client(7), 1));
    }

    proptest! {
        #[test]
        fn share_counts_add_up(steps in proptest::collection::vec((0..4_u32, 0..40_u64, any::<bool>()), 0..200)) {
            let mut share = Share::new(100, 1, 0);
            let mut taken: Vec<(u32, u64)> = Vec::new();
            for (user, amount, take) in steps {
                if take {
                    if share.try_take(user, amount) {
                        taken.push((user, amount));
                    }
                } else if let Some((user, amount)) = taken.pop() {
                    share.give(user, amount);
                }
                let sum: u64 = taken.iter().map(|(_, amount)| amount).sum();
                prop_assert_eq!(share.total(), sum);
                for user in 0..4 {
                    let own = taken.iter().filter(|(other, _)| *other == user);
                    prop_assert_eq!(share.of(user), own.map(|(_, amount)| amount).sum::<u64>());
                }
                prop_assert!(share.total() <= 100, "a first amount is at most 40 of 100");
            }
        }
    }
}
