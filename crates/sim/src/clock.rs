//! The two clocks of a node. They have an offset and a rate error, and can be stopped.

use tenure_core::{LocalTime, Now, WallTime};

/// Parts per million.
const MILLION: i128 = 1_000_000;

/// Converts real time, which no node can read, to the time of a node.
#[derive(Clone, Debug)]
pub struct Clock {
    real: u64,
    local: u64,
    rate_ppm: i128,
    wall_offset: i64,
    stopped: bool,
}

impl Clock {
    /// Creates a clock that shows `local` at real time zero and runs `rate_ppm` too fast.
    pub fn new(local: u64, rate_ppm: i64, wall_offset: i64) -> Self {
        Self {
            real: 0,
            local,
            rate_ppm: rate_ppm.into(),
            wall_offset,
            stopped: false,
        }
    }

    /// Returns the local time at a real instant.
    pub fn local(&self, real: u64) -> u64 {
        if self.stopped {
            return self.local;
        }
        let elapsed = i128::from(real - self.real);
        self.local + (elapsed + elapsed * self.rate_ppm / MILLION) as u64
    }

    /// Returns the time of both clocks at a real instant.
    pub fn now(&self, real: u64) -> Now {
        Now {
            local: LocalTime::from_nanos(self.local(real)),
            wall: WallTime::from_micros((real as i64 + self.wall_offset).div_euclid(1_000)),
        }
    }

    /// Returns the first real instant, not before `from`, at which the local clock shows `local`.
    pub fn real_at(&self, local: LocalTime, from: u64) -> u64 {
        let ahead = i128::from(local.as_nanos().saturating_sub(self.local));
        let mut real =
            u64::try_from(i128::from(self.real) + ahead * MILLION / (MILLION + self.rate_ppm))
                .unwrap_or(u64::MAX / 4)
                .clamp(from, u64::MAX / 4);
        while !self.stopped && real < u64::MAX / 4 && self.local(real) < local.as_nanos() {
            real += 1;
        }
        real
    }

    /// Sets the wall clock forward or back.
    pub fn jump_wall(&mut self, nanos: i64) {
        self.wall_offset += nanos;
    }

    /// Stops the local clock, as when a hypervisor pauses the machine.
    pub fn stop(&mut self, real: u64) {
        self.local = self.local(real);
        self.real = real;
        self.stopped = true;
    }

    /// Resumes the local clock.
    pub fn go_on(&mut self, real: u64) {
        if self.stopped {
            self.real = real;
            self.stopped = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_at_is_the_first_instant_that_shows_the_local_time() {
        for ppm in [-200_000, -7, 0, 3, 180_000] {
            let clock = Clock::new(5_000, ppm, 0);
            for ahead in [0, 1, 999, 1_000_000_007] {
                let at = clock.real_at(LocalTime::from_nanos(5_000 + ahead), 0);
                assert!(clock.local(at) >= 5_000 + ahead);
                assert!(
                    at == 0 || clock.local(at - 1) < 5_000 + ahead,
                    "{ppm} {ahead}"
                );
            }
        }
    }

    #[test]
    fn stopped_clock_resumes_at_the_same_time() {
        let mut clock = Clock::new(0, 0, 0);
        clock.stop(10);
        assert_eq!(clock.local(50), 10);
        clock.go_on(60);
        assert_eq!(clock.local(65), 15);
    }
}
