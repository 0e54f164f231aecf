//! S3: no effect of an older term is applied after one of a newer term, provided that the resource rejects tokens below
//! the greatest accepted one.
//!
//! The resource is a store like Kleppmann's storage service. Effects can arrive some time after the work that caused
//! them was cancelled.

/// A resource that checks tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct FencedStore {
    greatest: u64,
    newest_term: u64,
    /// Effects that were applied.
    pub accepted: u64,
    /// Effects of former leaders that were rejected.
    pub refused: u64,
}

impl FencedStore {
    /// Handles an effect that arrives.
    pub fn effect(&mut self, term: u64, token: u64) -> Option<String> {
        if token < self.greatest {
            self.refused += 1;
            return None;
        }
        self.greatest = token;
        self.accepted += 1;
        let newest = self.newest_term;
        self.newest_term = newest.max(term);
        (term < newest).then(|| {
            format!("an effect of term {term} (token {token}) was applied after one of {newest}")
        })
    }
}
