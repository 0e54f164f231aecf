//! State of the view and the effect of keys, independent of a terminal.

use std::cmp::Ordering;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use crate::elections::Seen;

/// The action of a key.
pub(super) enum Act {
    None,
    Quit,
    StepDown(Box<Seen>),
}

/// Sort order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Name,
    Holder,
    Age,
    Left,
    Transitions,
}

/// Mode of the bottom line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mode {
    Normal,
    /// Typing the filter.
    Filter,
    /// Asking for confirmation before a step-down.
    Confirm(Box<Seen>),
    Help,
}

/// The state of the view.
pub(super) struct Screen {
    pub(super) server: String,
    /// The filtered and sorted rows.
    pub(super) rows: Vec<Seen>,
    pub(super) all: usize,
    /// The states of the elections with their numbers; `held` first.
    pub(super) states: Vec<(&'static str, usize)>,
    pub(super) ready: bool,
    pub(super) trouble: Option<String>,
    pub(super) sort: Sort,
    pub(super) reverse: bool,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) message: Option<String>,
    pub(super) table: TableState,
    /// Key of the selected row, because rows move.
    selected: Option<(String, String, &'static str)>,
}

impl Screen {
    pub(super) fn new(server: String) -> Self {
        Self {
            server,
            rows: Vec::new(),
            all: 0,
            states: Vec::new(),
            ready: false,
            trouble: None,
            sort: Sort::Name,
            reverse: false,
            filter: String::new(),
            mode: Mode::Normal,
            message: None,
            table: TableState::default(),
            selected: None,
        }
    }

    /// Shows a new state.
    pub(super) fn show(&mut self, mut rows: Vec<Seen>, ready: bool, trouble: Option<String>) {
        self.all = rows.len();
        let count = |state| rows.iter().filter(|row| row.state == state).count();
        self.states = ["held", "paused", "expired", "free"]
            .map(|state| (state, count(state)))
            .to_vec();
        (self.ready, self.trouble) = (ready, trouble);
        let filter = self.filter.to_lowercase();
        rows.retain(|row| {
            [&row.namespace, &row.name, &row.holder]
                .iter()
                .any(|text| text.to_lowercase().contains(&filter))
        });
        rows.sort_by(|a, b| {
            let order = self.sort.compare(a, b);
            let order = if self.reverse { order.reverse() } else { order };
            order.then_with(|| Sort::Name.compare(a, b))
        });
        self.rows = rows;
        let place = self
            .selected
            .as_ref()
            .and_then(|key| self.rows.iter().position(|row| key_of(row) == *key));
        self.select(place.unwrap_or(self.table.selected().unwrap_or(0)));
    }

    /// Acts on a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Act {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Act::Quit;
        }
        self.message = None;
        match std::mem::replace(&mut self.mode, Mode::Normal) {
            Mode::Normal => self.press_normal(key.code),
            Mode::Filter => self.press_filter(key.code),
            Mode::Confirm(seen) => match key.code {
                KeyCode::Char('y' | 'Y') => Act::StepDown(seen),
                _ => Act::None,
            },
            Mode::Help => Act::None,
        }
    }

    fn press_normal(&mut self, code: KeyCode) -> Act {
        let here = self.table.selected().unwrap_or(0);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Act::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.select(here + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(here.saturating_sub(1)),
            KeyCode::PageDown => self.select(here + 20),
            KeyCode::PageUp => self.select(here.saturating_sub(20)),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Char('n') => self.sort_by(Sort::Name),
            KeyCode::Char('h') => self.sort_by(Sort::Holder),
            KeyCode::Char('a') => self.sort_by(Sort::Age),
            KeyCode::Char('l') => self.sort_by(Sort::Left),
            KeyCode::Char('t') => self.sort_by(Sort::Transitions),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('d') => match self.rows.get(here) {
                Some(row) if row.holder.is_empty() => {
                    self.message = Some(format!("nobody holds {}", row.name));
                }
                Some(row) => self.mode = Mode::Confirm(Box::new(row.clone())),
                None => {}
            },
            _ => {}
        }
        Act::None
    }

    fn press_filter(&mut self, code: KeyCode) -> Act {
        match code {
            KeyCode::Enter => return Act::None,
            KeyCode::Esc => {
                self.filter.clear();
                return Act::None;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) => self.filter.push(character),
            _ => {}
        }
        self.mode = Mode::Filter;
        Act::None
    }

    fn sort_by(&mut self, sort: Sort) {
        self.reverse = self.sort == sort && !self.reverse;
        self.sort = sort;
    }

    fn select(&mut self, place: usize) {
        let place = place.min(self.rows.len().saturating_sub(1));
        self.table.select((!self.rows.is_empty()).then_some(place));
        self.selected = self.rows.get(place).map(key_of);
    }
}

impl Sort {
    fn compare(self, a: &Seen, b: &Seen) -> Ordering {
        let number = |x: Option<f64>, y: Option<f64>| {
            x.unwrap_or(f64::MAX).total_cmp(&y.unwrap_or(f64::MAX))
        };
        match self {
            Self::Name => (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)),
            Self::Holder => a.holder.cmp(&b.holder),
            Self::Age => number(a.held_for_seconds, b.held_for_seconds),
            Self::Left => number(a.valid_for_seconds, b.valid_for_seconds),
            Self::Transitions => b.transitions.cmp(&a.transitions),
        }
    }
}

fn key_of(row: &Seen) -> (String, String, &'static str) {
    (row.namespace.clone(), row.name.clone(), row.lock)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn row(name: &str, holder: &str, left: f64, transitions: u32) -> Seen {
        Seen {
            namespace: "default".into(),
            name: name.into(),
            lock: "leases",
            holder: holder.into(),
            transitions,
            lease_duration_seconds: 5,
            acquire_time: None,
            renew_time: None,
            held_for_seconds: Some(60.0),
            renewed_ago_seconds: Some(0.5),
            valid_for_seconds: Some(left),
            resource_version: "1".into(),
            paused: false,
            state: if left > 0.0 { "held" } else { "expired" },
            skewed: false,
            recent_terms: None,
            flapping: false,
            completed_time: None,
            candidates: Vec::new(),
        }
    }

    fn screen() -> Screen {
        let mut screen = Screen::new("here".into());
        screen.show(rows(), true, None);
        screen
    }

    fn rows() -> Vec<Seen> {
        vec![
            row("b", "x", 4.0, 9),
            row("a", "z", 1.0, 2),
            row("c", "y", 3.0, 5),
        ]
    }

    fn names(screen: &Screen) -> String {
        screen.rows.iter().map(|row| row.name.as_str()).collect()
    }

    fn press(screen: &mut Screen, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                key => KeyCode::Char(key),
            };
            screen.press(code.into());
            screen.show(rows(), true, None);
        }
    }

    #[test]
    fn sort_key_sorts_and_repeated_key_reverses_the_order() {
        let mut screen = screen();
        assert_eq!(names(&screen), "abc");
        for (keys, expected) in [
            ("n", "cba"),
            ("h", "bca"),
            ("l", "acb"),
            ("t", "bca"),
            ("t", "acb"),
        ] {
            press(&mut screen, keys);
            assert_eq!(names(&screen), expected, "{keys}");
        }
    }

    #[test]
    fn the_selection_stays_with_its_election() {
        let mut screen = screen();
        press(&mut screen, "j");
        assert_eq!(screen.table.selected(), Some(1));
        press(&mut screen, "h");
        let selected = &screen.rows[screen.table.selected().unwrap()];
        assert_eq!(selected.name, "b");
    }

    #[test]
    fn a_filter_is_typed_and_kept() {
        let mut screen = screen();
        press(&mut screen, "/y\n");
        assert_eq!(
            (names(&screen).as_str(), &screen.mode),
            ("c", &Mode::Normal)
        );
        press(&mut screen, "/");
        screen.press(KeyCode::Esc.into());
        screen.show(rows(), true, None);
        assert_eq!(names(&screen), "abc");
    }

    #[test]
    fn step_down_needs_confirmation() {
        let mut screen = screen();
        screen.press(KeyCode::Char('d').into());
        assert!(matches!(&screen.mode, Mode::Confirm(seen) if seen.name == "a"));
        assert!(matches!(screen.press(KeyCode::Char('n').into()), Act::None));
        screen.press(KeyCode::Char('d').into());
        let act = screen.press(KeyCode::Char('y').into());
        assert!(matches!(act, Act::StepDown(seen) if seen.holder == "z"));
    }
}
