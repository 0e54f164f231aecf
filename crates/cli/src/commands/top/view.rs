//! Draws a [`Screen`].

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::screen::{Mode, Screen, Sort};
use crate::elections::Seen;
use crate::output;

const HELP: &str = "q quit  ↑↓ select  / filter  d step down  sort by n name h holder a age l left \
                    t transitions (again: reverse)";

const HINT: &str = "q quit  ↑↓ select  n h a l t sort  / filter  d step down  ? help";

/// Width of the validity bar in cells.
const BAR: usize = 10;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(headline(screen), head);
    if screen.rows.is_empty() {
        let text = match (screen.ready, screen.all) {
            (false, _) => "looking for elections",
            (true, 0) => "no elections yet",
            (true, _) => "no election matches the filter",
        };
        frame.render_widget(Paragraph::new(text).style(faint()), body);
    } else {
        let table = table(screen);
        frame.render_stateful_widget(table, body, &mut screen.table);
    }
    frame.render_widget(bottom(screen), foot);
}

fn headline(screen: &Screen) -> Paragraph<'static> {
    let free = screen.all - screen.held;
    let mut parts = vec![
        Span::styled("tenure", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("  {} elections, {} held", screen.all, screen.held)),
    ];
    if free > 0 {
        parts.push(Span::styled(format!(", {free} not"), colour(Color::Yellow)));
    }
    if !screen.filter.is_empty() {
        parts.push(Span::raw(format!(
            "  filter {:?}: {}",
            screen.filter,
            screen.rows.len()
        )));
    }
    parts.push(match &screen.trouble {
        Some(why) => Span::styled(format!("  out of date: {why}"), colour(Color::Red)),
        None => Span::styled(format!("  live from {}", screen.server), faint()),
    });
    Paragraph::new(Line::from(parts))
}

fn table(screen: &Screen) -> Table<'static> {
    let spaces = {
        let mut names: Vec<&str> = screen.rows.iter().map(|r| r.namespace.as_str()).collect();
        names.dedup();
        names.len() > 1 || names.first().is_some_and(|name| *name != "default")
    };
    let title = |text: &'static str, sort: Sort| {
        let mark = match (screen.sort == sort, screen.reverse) {
            (true, false) => " ▾",
            (true, true) => " ▴",
            (false, _) => "",
        };
        Cell::from(format!("{text}{mark}"))
    };
    let header = Row::new([
        title("ELECTION", Sort::Name),
        title("HOLDER", Sort::Holder),
        Cell::from("STATE"),
        title("AGE", Sort::Age),
        Cell::from("RENEWED"),
        title("LEFT", Sort::Left),
        title("CHANGES", Sort::Transitions),
        Cell::from("NOTES"),
    ])
    .style(faint());
    let rows: Vec<Row<'static>> = screen.rows.iter().map(|seen| row(seen, spaces)).collect();
    let widths = [
        Constraint::Fill(3),
        Constraint::Fill(4),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(18),
        Constraint::Length(10),
        Constraint::Fill(2),
    ];
    Table::new(rows, widths)
        .header(header)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

fn row(seen: &Seen, spaces: bool) -> Row<'static> {
    let dash = || "-".to_owned();
    let span = |time: Option<f64>| time.map_or_else(dash, output::span);
    let name = if spaces {
        format!("{}/{}", seen.namespace, seen.name)
    } else {
        seen.name.clone()
    };
    let holder = Some(seen.holder.clone()).filter(|holder| !holder.is_empty());
    let mut notes = Vec::new();
    if seen.flapping {
        notes.push("flapping");
    }
    if seen.skewed {
        notes.push("clock skew?");
    }
    let state = match seen.state {
        "held" => colour(Color::Green),
        "expired" => colour(Color::Red),
        "paused" => colour(Color::Yellow),
        _ => faint(),
    };
    Row::new([
        Cell::from(name),
        Cell::from(holder.unwrap_or_else(dash)),
        Cell::from(Span::styled(seen.state, state)),
        Cell::from(span(seen.held_for_seconds)),
        Cell::from(span(seen.renewed_ago_seconds)),
        Cell::from(bar(seen)),
        Cell::from(seen.transitions.to_string()),
        Cell::from(Span::styled(notes.join(", "), colour(Color::Yellow))),
    ])
}

/// Formats the remaining validity as a bar and a number.
fn bar(seen: &Seen) -> Line<'static> {
    let Some(left) = seen.valid_for_seconds.filter(|left| *left > 0.0) else {
        return Line::from(Span::styled("-", faint()));
    };
    let share = (left / f64::from(seen.lease_duration_seconds.max(1))).clamp(0.0, 1.0);
    let full = (1..=BAR)
        .filter(|cell| *cell as f64 <= (share * BAR as f64).ceil())
        .count();
    let paint = if share < 0.35 {
        Color::Yellow
    } else {
        Color::Green
    };
    Line::from(vec![
        Span::styled("█".repeat(full), colour(paint)),
        Span::styled("░".repeat(BAR - full), faint()),
        Span::raw(format!(" {}", output::span(left))),
    ])
}

fn bottom(screen: &Screen) -> Paragraph<'static> {
    let strong = Style::new().add_modifier(Modifier::BOLD);
    match &screen.mode {
        Mode::Confirm(seen) => Paragraph::new(format!(
            "ask {} to step down from {}/{}? y yes, any other key no",
            seen.holder, seen.namespace, seen.name
        ))
        .style(strong),
        Mode::Filter => Paragraph::new(format!("/{}▏ enter keep, esc clear", screen.filter)),
        Mode::Help => Paragraph::new(HELP),
        Mode::Normal => match &screen.message {
            Some(message) => Paragraph::new(message.clone()).style(strong),
            None => Paragraph::new(HINT).style(faint()),
        },
    }
}

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn colour(colour: Color) -> Style {
    if output::has_colours() {
        Style::new().fg(colour)
    } else {
        Style::new()
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::screen::tests::row;
    use super::*;

    fn drawn(screen: &mut Screen, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 6)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
        (0..6).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn a_screen_shows_holder_state_and_what_is_left() {
        let mut screen = Screen::new("here".into());
        screen.show(
            vec![row("web", "alice", 4.0, 3), row("db", "", -1.0, 7)],
            true,
            None,
        );
        let lines = drawn(&mut screen, 110);
        assert!(
            lines[0].starts_with("tenure  2 elections, 1 held, 1 not  live from here"),
            "{lines:?}"
        );
        assert!(lines[1].contains("ELECTION ▾"), "{lines:?}");
        let web = lines.iter().find(|line| line.starts_with("web")).unwrap();
        assert!(
            web.contains("alice") && web.contains("held") && web.contains("████████░░ 4.0s"),
            "{web}"
        );
        assert!(lines[5].starts_with("q quit"), "{lines:?}");
    }

    #[test]
    fn narrow_terminals_and_trouble_do_no_harm() {
        let mut screen = Screen::new("here".into());
        screen.show(
            vec![row("web", "alice", 4.0, 3)],
            false,
            Some("refused".into()),
        );
        assert!(drawn(&mut screen, 20)[0].starts_with("tenure"));
        assert!(drawn(&mut screen, 100)[0].contains("out of date: refused"));
    }
}
