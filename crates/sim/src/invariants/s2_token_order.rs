//! S2: a later term has a strictly greater token, and no two terms share one.
//!
//! Terms are ordered by the writes that won them, in the order in which the store applied them. That order is correct
//! even if clocks are not.

/// Number of past terms that are compared. Older terms are covered by earlier comparisons.
const REMEMBERED: usize = 8;

/// The tokens of past terms.
#[derive(Clone, Debug, Default)]
pub struct TokenOrder {
    terms: Vec<(u64, u64)>,
    /// Number of terms.
    pub count: u64,
}

impl TokenOrder {
    /// Takes the position of a new term in the order of the store, and its token.
    pub fn begin(&mut self, term: u64, token: u64) -> Option<String> {
        self.count += 1;
        let wrong = self
            .terms
            .iter()
            .find(|(t, k)| (*t < term && *k >= token) || (*t >= term && *k <= token));
        let text = wrong.map(|(t, k)| format!("term {term} has token {token}, term {t} had {k}"));
        if self.terms.len() == REMEMBERED {
            self.terms.remove(0);
        }
        self.terms.push((term, token));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_and_lower_tokens_are_found() {
        let mut order = TokenOrder::default();
        assert!(order.begin(1, 5).is_none());
        assert!(order.begin(3, 9).is_none());
        assert!(order.begin(4, 9).is_some());
        assert!(TokenOrder::default().begin(1, 1).is_none());
        assert!(order.begin(5, 8).is_some());
    }
}
