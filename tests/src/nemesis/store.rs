//! A store that accepts effects with tokens and rejects a token below the greatest accepted one: the resource of S3 in
//! safety.md. Candidates access it over loopback, with one line per effect.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::{self, Nanos};

/// A running store. It ends with the process.
#[derive(Clone, Debug)]
pub struct FencedStore {
    address: SocketAddr,
    books: Arc<Mutex<BTreeMap<String, Book>>>,
}

/// The effects of one election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    /// Effects that were applied.
    pub accepted: u64,
    /// Effects of older terms that were rejected.
    pub refusals: Vec<Refusal>,
    greatest: String,
}

/// An effect that came too late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The token of its term.
    pub token: String,
    /// Time of arrival.
    pub at: Nanos,
}

impl FencedStore {
    /// Starts an empty store.
    ///
    /// # Errors
    ///
    /// Fails if there is no free port.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let store = Self {
            address: listener.local_addr()?,
            books: Arc::default(),
        };
        let shared = store.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let store = shared.clone();
                std::thread::spawn(move || store.serve(&stream));
            }
        });
        Ok(store)
    }

    /// Returns its address, for `--store`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the effects of this election.
    pub fn book(&self, election: &str) -> Book {
        self.lock().get(election).cloned().unwrap_or_default()
    }

    /// Lines are `ELECTION TOKEN`; responses are `accepted` or `refused`.
    fn serve(&self, stream: &TcpStream) {
        _ = stream.set_nodelay(true);
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let (election, token) = line.split_once(' ').unwrap_or((&line, ""));
            let accepted = self
                .lock()
                .entry(election.to_owned())
                .or_default()
                .take(token);
            let mut answer = stream;
            let word: &[u8] = if accepted {
                b"accepted\n"
            } else {
                b"refused\n"
            };
            if answer.write_all(word).is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Book>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Returns violations of guards that its entries prove, except rejections at excused times.
    ///
    /// A single rejection proves nothing. Between the last check of the guard and the effect a process may be stopped
    /// for a long time. In that case the step began in time and arrives too late, and rejecting it is the purpose of
    /// the store. A candidate performs its steps one by one, so this can happen once per term. At a second rejection,
    /// the guard was checked after a newer term had already worked, and it was still valid.
    pub fn misguided(&self, excused: impl Fn(Nanos) -> bool) -> Vec<String> {
        let mut late = BTreeMap::<&str, u64>::new();
        for refusal in self.refusals.iter().filter(|late| !excused(late.at)) {
            *late.entry(&refusal.token).or_default() += 1;
        }
        let twice = late.into_iter().filter(|(_, count)| *count > 1);
        let mut found: Vec<String> = twice
            .map(|(token, count)| {
                format!("{count} effects with token {token} arrived after those of a newer term")
            })
            .collect();
        if self.accepted == 0 {
            found.push("no effect came to the fenced store".to_owned());
        }
        found
    }

    /// Returns whether an effect with this token is applied. The check and the effect are one step.
    fn take(&mut self, token: &str) -> bool {
        let stale = (token.len(), token) < (self.greatest.len(), &self.greatest);
        if stale {
            self.refusals.push(Refusal {
                token: token.to_owned(),
                at: clock::now(),
            });
        } else {
            self.accepted += 1;
            token.clone_into(&mut self.greatest);
        }
        !stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_token_is_refused_once_a_newer_one_was_accepted() {
        let mut book = Book::default();
        let taken: Vec<bool> = ["9", "9", "10", "9", "10"]
            .iter()
            .map(|token| book.take(token))
            .collect();
        assert_eq!(taken, [true, true, true, false, true]);
        assert_eq!((book.accepted, book.refusals.len()), (4, 1));
        assert_eq!(book.refusals[0].token, "9");
    }

    #[test]
    fn one_late_step_of_a_term_is_possible_and_two_are_not() {
        let mut book = Book::default();
        assert_eq!(
            book.misguided(|_| false),
            ["no effect came to the fenced store"]
        );
        for token in ["8", "9", "10", "8", "9"] {
            book.take(token);
        }
        assert_eq!(book.misguided(|_| false), Vec::<String>::new());
        book.take("9");
        assert_eq!(
            book.misguided(|_| false),
            ["2 effects with token 9 arrived after those of a newer term"]
        );
        assert_eq!(book.misguided(|_| true), Vec::<String>::new());
    }

    #[test]
    fn elections_are_separate_and_responses_arrive_over_the_socket() {
        let store = FencedStore::start().unwrap();
        let mut stream = TcpStream::connect(store.address()).unwrap();
        stream.write_all(b"a 7\nb 3\na 6\n").unwrap();
        let answers: Vec<String> = BufReader::new(&stream)
            .lines()
            .take(3)
            .map(Result::unwrap)
            .collect();
        assert_eq!(answers, ["accepted", "accepted", "refused"]);
        assert_eq!(store.book("a").refusals.len(), 1);
        assert_eq!(store.book("b").refusals.len(), 0);
    }
}
