//! Shares of something that is counted: bytes, watches, connections.
//!
//! A user may have at most `weight` times as much as is left for all. One user alone gets `weight / (weight + 1)` of the
//! whole, and something is always left for a user that comes later. No configuration per user is necessary.

/// What users have of one resource. Users are small numbers.
#[derive(Debug)]
pub(crate) struct Share {
    cap: u64,
    weight: u64,
    total: u64,
    users: Vec<u64>,
}

impl Share {
    /// Creates a share with this much for all users together.
    pub(crate) fn new(cap: u64, weight: u64) -> Self {
        Self {
            cap,
            weight,
            total: 0,
            users: Vec::new(),
        }
    }

    /// Takes an amount if it is within the share of the user. A user that has nothing may take any amount while at most
    /// half of the whole is in use, so that one large answer is possible.
    pub(crate) fn try_take(&mut self, user: u32, amount: u64) -> bool {
        let has = self.of(user);
        let fits = within(has + amount, self.total + amount, self.cap, self.weight);
        if !fits && (has > 0 || self.total > self.cap / 2) {
            return false;
        }
        self.take(user, amount);
        true
    }

    /// Takes an amount, even above the share.
    pub(crate) fn take(&mut self, user: u32, amount: u64) {
        let index = user as usize;
        if index >= self.users.len() {
            self.users.resize(index + 1, 0);
        }
        self.users[index] += amount;
        self.total += amount;
    }

    /// Gives an amount back.
    pub(crate) fn give(&mut self, user: u32, amount: u64) {
        if let Some(has) = self.users.get_mut(user as usize) {
            *has = has.saturating_sub(amount);
            self.total = self.total.saturating_sub(amount);
        }
    }

    /// Returns whether a user has more than its share, because others have come since or it was given more.
    pub(crate) fn is_exceeded(&self, user: u32) -> bool {
        let has = self.of(user);
        has > 0 && !within(has, self.total, self.cap, self.weight)
    }

    /// Returns what a user has.
    pub(crate) fn of(&self, user: u32) -> u64 {
        self.users.get(user as usize).copied().unwrap_or(0)
    }

    /// Returns what all users have.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }
}

/// Returns whether `has` of a user is within its share, when all users have `total`.
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
        let mut share = Share::new(100, 1);
        assert_eq!(fill(&mut share, 0), 50);
        assert_eq!(fill(&mut share, 1), 25);
        assert_eq!(fill(&mut share, 2), 12);
        assert!(share.is_exceeded(0), "others have come since");
        share.give(0, 50);
        assert_eq!(fill(&mut share, 2), 37);
        let mut share = Share::new(100, 4);
        assert_eq!(fill(&mut share, 0), 80);
    }

    #[test]
    fn share_of_a_user_that_has_nothing_allows_one_large_amount() {
        let mut share = Share::new(100, 1);
        assert!(share.try_take(0, 90));
        assert!(!share.try_take(0, 1));
        assert!(!share.try_take(1, 20), "more than half is in use");
        assert!(share.try_take(1, 5));
        share.give(0, 90);
        assert!(!share.is_exceeded(1));
        assert!(share.try_take(0, 40));
    }

    proptest! {
        #[test]
        fn share_counts_add_up(steps in proptest::collection::vec((0..4_u32, 0..40_u64, any::<bool>()), 0..200)) {
            let mut share = Share::new(100, 1);
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
