//! Draws a [`Screen`].

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};

use super::columns::{self, BAR, Column, Wanted, cut_end, cut_middle, width_of};
use super::screen::{Mode, Screen, Sort};
use crate::elections::Seen;
use crate::output;

const HINT: &str = "? help  q quit  ↑↓ select  n h a l t sort  / filter  d step down";

/// Keys and columns, for the overlay.
const HELP: [(&str, &str); 18] = [
    ("q, Esc", "quit"),
    ("↑ ↓, k j", "select an election"),
    (
        "PgUp PgDn, g G",
        "move by a page, to the first, to the last",
    ),
    (
        "n h a l t",
        "sort by name, holder, age, time left, number of changes",
    ),
    ("", "the same key again reverses the order"),
    ("/", "filter by namespace, name or holder"),
    ("d", "ask the leader of the selected election to step down"),
    ("", ""),
    ("STATE", "held, expired, paused or free"),
    ("AGE", "time since the holder acquired the election"),
    ("RENEWED", "time since its last renewal"),
    ("LEFT", "time until another candidate may take over"),
    ("CHANGES", "number of changes of holder so far"),
    ("NOTES", "flapping: four or more terms in ten minutes"),
    ("", "clock skew?: a renewal time is in the future"),
    ("", "no standby: no other candidate is ready"),
    ("", ""),
    ("", "A narrow terminal shows fewer columns."),
];

/// Width of the keys in the overlay.
const KEYS: usize = 16;

/// Maximum number of lines of a question or message.
const MOST_LINES: usize = 3;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let area = frame.area();
    let (lines, style) = bottom(screen, usize::from(area.width));
    let height = u16::try_from(lines.len()).unwrap_or(1);
    let why = trouble(screen, usize::from(area.width));
    let [head, above, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(u16::try_from(why.len()).unwrap_or(0)),
        Constraint::Min(3),
        Constraint::Length(height),
    ])
    .areas(area);
    frame.render_widget(headline(screen, usize::from(area.width)), head);
    let why: Vec<Line<'_>> = why.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(why).style(colour(Color::Red)), above);
    if screen.rows.is_empty() {
        let text = match (screen.ready, screen.all) {
            (false, _) => "looking for elections",
            (true, 0) => "no elections yet",
            (true, _) => "no election matches the filter",
        };
        frame.render_widget(Paragraph::new(text).style(faint()), body);
    } else {
        let table = table(screen, usize::from(body.width));
        frame.render_stateful_widget(table, body, &mut screen.table);
    }
    let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).style(style), foot);
    if screen.mode == Mode::Help {
        help(frame, area);
    }
}

/// Draws the overlay with the keys, in the middle of the screen.
fn help(frame: &mut Frame<'_>, area: Rect) {
    let texts = HELP.iter().map(|(_, text)| width_of(text));
    let inner = KEYS + texts.max().unwrap_or(0) + 2;
    let width = area.width.min(u16::try_from(inner + 2).unwrap_or(u16::MAX));
    let height = area
        .height
        .min(u16::try_from(HELP.len() + 2).unwrap_or(u16::MAX));
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let room = usize::from(width).saturating_sub(4);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let lines = HELP.map(|(key, text)| {
        let text = cut_end(text, room.saturating_sub(KEYS));
        let key = format!("{key:KEYS$}");
        Line::from(vec![
            Span::raw(" "),
            Span::styled(cut_end(&key, room), bold),
            Span::raw(text),
        ])
    });
    let block = Block::bordered()
        .title(" Keys and columns ")
        .title_bottom(Line::from(" any key closes this ").alignment(Alignment::Right));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines.to_vec()).block(block), place);
}

fn headline(screen: &Screen, width: usize) -> Paragraph<'static> {
    let plural = if screen.all == 1 { "" } else { "s" };
    let mut parts = vec![
        Span::styled("tenure", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("  {} election{plural}", screen.all)),
    ];
    for (state, count) in screen.states.iter().filter(|(_, count)| *count > 0) {
        let style = match *state {
            "held" => Style::new(),
            _ => colour(Color::Yellow),
        };
        parts.push(Span::styled(format!(", {count} {state}"), style));
    }
    if !screen.filter.is_empty() {
        parts.push(Span::raw(format!(
            "  filter {:?}: {}",
            screen.filter,
            screen.rows.len()
        )));
    }
    let server = &screen.server;
    parts.push(match &screen.trouble {
        Some(_) => Span::styled(format!("  out of date from {server}"), colour(Color::Red)),
        None => Span::styled(format!("  live from {server}"), faint()),
    });
    let mut room = width;
    for part in &mut parts {
        part.content = cut_end(&part.content, room).into();
        room = room.saturating_sub(part.width());
    }
    Paragraph::new(Line::from(parts))
}

/// Returns the lines that say why the screen is out of date. They are wrapped, because the cause is at the end.
fn trouble(screen: &Screen, width: usize) -> Vec<String> {
    let Some(why) = &screen.trouble else {
        return Vec::new();
    };
    let text = format!("{}; retrying", output::escaped(why));
    columns::wrap(&text, width, MOST_LINES)
}

fn table(screen: &Screen, width: usize) -> Table<'static> {
    let spaces = {
        let mut names: Vec<&str> = screen.rows.iter().map(|r| r.namespace.as_str()).collect();
        names.dedup();
        names.len() > 1 || names.first().is_some_and(|name| *name != "default")
    };
    let widest = |text: &dyn Fn(&Seen) -> usize| screen.rows.iter().map(text).max().unwrap_or(0);
    let wanted = Wanted {
        name: widest(&|seen| width_of(&name_of(seen, spaces))),
        holder: widest(&|seen| width_of(&holder_of(seen))),
        notes: widest(&|seen| width_of(&notes(seen))),
    };
    let columns = columns::choose(wanted, width);
    let header = columns.iter().map(|(column, width)| {
        let title = title(*column, screen);
        Cell::from(cut_end(&title, *width))
    });
    let header = Row::new(header.collect::<Vec<_>>()).style(faint());
    let rows: Vec<Row<'static>> = screen
        .rows
        .iter()
        .map(|seen| {
            let cells = columns.iter();
            let cells = cells.map(|(column, width)| cell(seen, *column, *width, spaces));
            Row::new(cells.collect::<Vec<_>>())
        })
        .collect();
    let widths = columns.iter().map(|(_, width)| {
        let width = u16::try_from(*width).unwrap_or(u16::MAX);
        Constraint::Length(width)
    });
    Table::new(rows, widths)
        .header(header)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

fn title(column: Column, screen: &Screen) -> String {
    let (text, sort) = match column {
        Column::Election => ("ELECTION", Some(Sort::Name)),
        Column::Holder => ("HOLDER", Some(Sort::Holder)),
        Column::State => ("STATE", None),
        Column::Age => ("AGE", Some(Sort::Age)),
        Column::Renewed => ("RENEWED", None),
        Column::Left => ("LEFT", Some(Sort::Left)),
        Column::Bar => ("", None),
        Column::Changes => ("CHANGES", Some(Sort::Transitions)),
        Column::Notes => ("NOTES", None),
    };
    let mark = match (sort == Some(screen.sort), screen.reverse) {
        (true, false) => " ▾",
        (true, true) => " ▴",
        (false, _) => "",
    };
    format!("{text}{mark}")
}

fn name_of(seen: &Seen, spaces: bool) -> String {
    if spaces {
        format!("{}/{}", seen.namespace, seen.name)
    } else {
        seen.name.clone()
    }
}

/// Returns the holder without the control characters that a candidate can write into its identity.
fn holder_of(seen: &Seen) -> String {
    output::escaped(&seen.holder)
}

fn notes(seen: &Seen) -> String {
    let mut notes = Vec::new();
    if seen.flapping {
        notes.push("flapping");
    }
    if seen.skewed {
        notes.push("clock skew?");
    }
    if seen.has_no_standby() {
        notes.push("no standby");
    }
    notes.join(", ")
}

fn cell(seen: &Seen, column: Column, width: usize, spaces: bool) -> Cell<'static> {
    let dash = || "-".to_owned();
    let span = |time: Option<f64>| Cell::from(time.map_or_else(dash, output::span));
    match column {
        Column::Election => Cell::from(cut_middle(&name_of(seen, spaces), width)),
        Column::Holder if seen.holder.is_empty() => Cell::from(dash()),
        Column::Holder => Cell::from(cut_end(&holder_of(seen), width)),
        Column::State => {
            let style = match seen.state {
                "held" => colour(Color::Green),
                "expired" => colour(Color::Red),
                "paused" => colour(Color::Yellow),
                _ => faint(),
            };
            Cell::from(Span::styled(cut_end(seen.state, width), style))
        }
        Column::Age => span(seen.held_for_seconds),
        Column::Renewed => span(seen.renewed_ago_seconds),
        Column::Left => span(valid_for(seen)),
        Column::Bar => Cell::from(bar(seen)),
        Column::Changes => Cell::from(seen.transitions.to_string()),
        Column::Notes => Cell::from(Span::styled(
            cut_end(&notes(seen), width),
            colour(Color::Yellow),
        )),
    }
}

fn valid_for(seen: &Seen) -> Option<f64> {
    seen.valid_for_seconds.filter(|left| *left > 0.0)
}

/// Formats the remaining validity as a bar.
fn bar(seen: &Seen) -> Line<'static> {
    let Some(left) = valid_for(seen) else {
        return Line::default();
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
    ])
}

/// Returns the lines at the bottom and their style. Questions and messages are wrapped, so that none of them loses its end.
fn bottom(screen: &Screen, width: usize) -> (Vec<String>, Style) {
    let strong = Style::new().add_modifier(Modifier::BOLD);
    match &screen.mode {
        Mode::Confirm(seen) => {
            let holder = cut_end(&holder_of(seen), width);
            let name = cut_middle(&name_of(seen, true), width);
            let text = format!("ask {holder} to step down from {name}? y yes, any other key no");
            // Holder and name have at most one line each. The end of the question must be visible.
            (columns::wrap(&text, width, 2 * MOST_LINES), strong)
        }
        Mode::Filter => {
            let end = "▏ enter keep, esc clear";
            let room = width.saturating_sub(width_of(end) + 1);
            let text = format!("/{}{end}", cut_end(&screen.filter, room));
            (vec![cut_end(&text, width)], Style::new())
        }
        Mode::Help | Mode::Normal => match &screen.message {
            Some(message) => (columns::wrap(message, width, MOST_LINES), strong),
            None => (vec![cut_end(HINT, width)], faint()),
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

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn screen(rows: Vec<Seen>) -> Screen {
        let mut screen = Screen::new("here".into());
        screen.show(rows, true, None);
        screen
    }

    const LONG: &str = "payments-reconciliation-worker";
    const POD: &str = "payments-7d9f8b6c5d-x2x8z_0f8a4c1e-9a6b-4d57-8b1c-5d4a3c2b1a00";

    #[test]
    fn screen_shows_holder_state_and_remaining_validity() {
        let mut screen = screen(vec![row("web", "alice", 4.0, 3), row("db", "", -1.0, 7)]);
        let lines = drawn(&mut screen, 110, 6);
        assert!(
            lines[0].starts_with("tenure  2 elections, 1 held, 1 expired  live from here"),
            "{lines:?}"
        );
        assert!(lines[1].contains("ELECTION ▾"), "{lines:?}");
        let web = lines.iter().find(|line| line.starts_with("web")).unwrap();
        assert!(
            web.contains("alice") && web.contains("held") && web.contains("4.0s    ████████░░"),
            "{web}"
        );
        assert!(lines[5].starts_with("? help  q quit"), "{lines:?}");
    }

    #[test]
    fn narrow_terminal_keeps_names_and_drops_columns() {
        let rows = || vec![row(LONG, POD, 4.0, 3), row("db", "zoe", -1.0, 7)];
        for (width, shown, dropped) in [
            (140, &["RENEWED", "LEFT", "CHANGES", "█"][..], &[][..]),
            (100, &["RENEWED", "LEFT", "CHANGES"], &["█"]),
            (80, &["STATE", "LEFT"], &["RENEWED", "CHANGES", "█"]),
            (50, &["STATE"], &["LEFT", "AGE"]),
        ] {
            let lines = drawn(&mut screen(rows()), width, 24);
            let all = lines.join("\n");
            let name = lines.iter().find(|line| line.starts_with(LONG));
            assert!(name.is_some(), "{width}\n{all}");
            assert!(all.contains('…'), "the holder is cut\n{all}");
            for text in shown {
                assert!(all.contains(text), "{width}: no {text}\n{all}");
            }
            for text in dropped {
                assert!(!all.contains(text), "{width}: {text}\n{all}");
            }
        }
        let lines = drawn(&mut screen(rows()), 30, 24);
        let name = lines.iter().find(|line| line.starts_with("paym")).unwrap();
        assert!(name.contains("…") && name.contains("held"), "{name}");
    }

    #[test]
    fn question_mark_opens_the_keys_and_any_key_closes_them() {
        let mut screen = screen(vec![row(LONG, POD, 4.0, 3)]);
        screen.mode = Mode::Help;
        let lines = drawn(&mut screen, 80, 24);
        let all = lines.join("\n");
        for text in [
            "Keys and columns",
            "sort by name, holder",
            "any key closes",
            "A narrow",
        ] {
            assert!(all.contains(text), "{all}");
        }
        assert!(!all.contains('…') || all.matches('…').count() == 1, "{all}");
        for (width, height) in [(20, 5), (1, 1), (40, 10)] {
            drawn(&mut screen, width, height);
        }
        screen.press(ratatui::crossterm::event::KeyCode::Char('x').into());
        let all = drawn(&mut screen, 80, 24).join("\n");
        assert!(!all.contains("Keys and columns"), "{all}");
    }

    #[test]
    fn question_and_message_are_wrapped_and_keep_their_end() {
        let mut screen = screen(vec![row(LONG, POD, 4.0, 3)]);
        screen.mode = Mode::Confirm(Box::new(row(LONG, POD, 4.0, 3)));
        for width in [40, 80, 140] {
            let all = drawn(&mut screen, width, 24).join(" ");
            assert!(all.contains("any other key no"), "{width}: {all}");
        }
        screen.mode = Mode::Normal;
        screen.message = Some(format!("cannot patch: {}", "forbidden ".repeat(30)));
        let lines = drawn(&mut screen, 80, 24);
        assert!(lines[21].starts_with("cannot patch") && lines[23].ends_with('…'));
    }

    #[test]
    fn control_characters_of_a_holder_are_escaped() {
        let mut screen = screen(vec![row("web", "a\u{1b}[2J\u{202e}b", 4.0, 3)]);
        let all = drawn(&mut screen, 100, 6).join("\n");
        assert!(all.contains("a\\u{1b}[2J\\u{202e}b"), "{all}");
        assert!(all.starts_with("tenure  1 election, 1 held  live"), "{all}");
    }

    #[test]
    fn view_on_a_tiny_terminal_does_not_panic() {
        let mut screen = Screen::new("here".into());
        let trouble = Some("refused".into());
        screen.show(vec![row("web", "alice", 4.0, 3)], false, trouble);
        assert!(drawn(&mut screen, 20, 6)[0].starts_with("tenure"));
        assert!(drawn(&mut screen, 20, 6)[0].ends_with('…'));
        let lines = drawn(&mut screen, 100, 6);
        assert!(lines[0].contains("out of date from here"), "{lines:?}");
        assert!(lines[1].starts_with("refused; retrying"), "{lines:?}");
        let why = "cannot read leases: cannot connect to 127.0.0.1:6443: connection refused";
        screen.trouble = Some(why.repeat(2));
        let all = drawn(&mut screen, 80, 24).join(" ");
        assert!(all.contains("connection refused; retrying"), "{all}");
        for width in 1..12 {
            drawn(&mut screen, width, 2);
        }
    }
}
