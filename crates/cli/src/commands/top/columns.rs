//! Chooses the columns that fit the width of the terminal.
//!
//! Columns are dropped in the order of [`DROPPED`]. Then holders are cut. The names of elections are cut only if they do not
//! fit next to a short holder and the state.

use ratatui::text::Span;

/// Cells between two columns.
const GAP: usize = 1;

/// Width down to which holders are cut before a column is dropped. It shows the name of most pods.
const HOLDER: usize = 24;

/// Width down to which holders are cut before the name of an election is.
const SHORT_HOLDER: usize = 10;

/// Least width of the names.
const SHORT_NAME: usize = 8;

/// Most characters of a text that are measured. No terminal is wider.
const MEASURED: usize = 1000;

/// Width of the validity bar.
pub(super) const BAR: usize = 10;

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Election,
    Holder,
    State,
    Age,
    Renewed,
    /// The remaining validity as a number.
    Left,
    /// The remaining validity as a bar.
    Bar,
    Changes,
    Notes,
}

/// All columns, from left to right.
const ALL: [Column; 9] = [
    Column::Election,
    Column::Holder,
    Column::State,
    Column::Age,
    Column::Renewed,
    Column::Left,
    Column::Bar,
    Column::Changes,
    Column::Notes,
];

/// The columns that may be dropped, the least important first.
const DROPPED: [Column; 6] = [
    Column::Bar,
    Column::Renewed,
    Column::Changes,
    Column::Age,
    Column::Left,
    Column::Notes,
];

/// The widths that the longest texts need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) name: usize,
    pub(super) holder: usize,
    /// Zero if there are no notes.
    pub(super) notes: usize,
}

/// Returns the columns with their widths for a terminal of this width.
pub(super) fn choose(wanted: Wanted, width: usize) -> Vec<(Column, usize)> {
    let name = wanted.name.max("ELECTION ▾".chars().count());
    let holder = wanted.holder.max("HOLDER ▾".chars().count());
    let fixed = |column: Column| match column {
        Column::Election => name,
        Column::Holder => holder.min(HOLDER),
        Column::State => 7,
        Column::Age | Column::Left => 7,
        Column::Renewed => 8,
        Column::Bar => BAR,
        Column::Changes => 9,
        Column::Notes => wanted.notes,
    };
    let mut columns: Vec<(Column, usize)> = ALL.map(|column| (column, fixed(column))).to_vec();
    columns.retain(|(column, width)| *column != Column::Notes || *width > 0);
    for dropped in DROPPED {
        if total(&columns) > width {
            columns.retain(|(column, _)| *column != dropped);
        }
    }
    let excess = total(&columns).saturating_sub(width);
    let kept = shrink(&mut columns, Column::Holder, excess, SHORT_HOLDER);
    let kept = shrink(&mut columns, Column::Election, kept, SHORT_NAME);
    shrink(&mut columns, Column::Holder, kept, 0);
    // The holders get the remaining width.
    let spare = width.saturating_sub(total(&columns));
    for (column, width) in &mut columns {
        if *column == Column::Holder {
            *width = (*width + spare).min(holder.max(*width));
        }
    }
    columns
}

fn total(columns: &[(Column, usize)]) -> usize {
    let cells: usize = columns.iter().map(|(_, width)| width).sum();
    cells + GAP * columns.len().saturating_sub(1)
}

/// Makes a column narrower by up to `excess` cells, and returns the excess that remains.
fn shrink(columns: &mut [(Column, usize)], which: Column, excess: usize, least: usize) -> usize {
    let found = columns.iter_mut().find(|(column, _)| *column == which);
    let Some((_, width)) = found else {
        return excess;
    };
    let saved = excess.min(width.saturating_sub(least));
    *width -= saved;
    excess - saved
}

/// Returns the width of a text in cells.
pub(super) fn width_of(text: &str) -> usize {
    text.chars().take(MEASURED).map(cells).sum()
}

fn cells(character: char) -> usize {
    Span::raw(character.encode_utf8(&mut [0; 4]) as &str).width()
}

/// Cuts the end of a text that is wider than this, with an ellipsis.
pub(super) fn cut_end(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    first(text.chars(), width.saturating_sub(1)) + ellipsis(width)
}

/// Cuts the middle of a text that is wider than this, with an ellipsis. Names of elections often begin alike.
pub(super) fn cut_middle(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let text: String = text.chars().take(MEASURED).collect();
    let kept = width.saturating_sub(1);
    let end: String = first(text.chars().rev(), kept / 2).chars().rev().collect();
    first(text.chars(), kept - width_of(&end)) + ellipsis(width) + &end
}

fn ellipsis(width: usize) -> &'static str {
    if width == 0 { "" } else { "…" }
}

/// Returns the characters that fit into this width.
fn first(characters: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    let fits = |character: &char| {
        used += cells(*character);
        used <= width
    };
    characters.take_while(fits).collect()
}

/// Breaks a text into at most `most` lines of this width, at spaces where possible. The last line ends with an ellipsis if
/// more text follows.
pub(super) fn wrap(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() && width > 0 {
        if lines.len() + 1 == most || width_of(rest) <= width {
            lines.push(cut_end(rest, width));
            break;
        }
        let head = first(rest.chars(), width);
        // A space right behind the line is a place to break, too.
        let follows = rest[head.len()..].starts_with(' ');
        let end = match head.rfind(' ') {
            Some(space) if !follows && space > 0 => space,
            _ => head.len(),
        };
        if end == 0 {
            break;
        }
        lines.push(rest[..end].trim_end().to_owned());
        rest = rest[end..].trim_start();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(columns: &[(Column, usize)]) -> Vec<Column> {
        columns.iter().map(|(column, _)| *column).collect()
    }

    fn width(columns: &[(Column, usize)], which: Column) -> usize {
        let found = columns.iter().find(|(column, _)| *column == which);
        found.map_or(0, |(_, width)| *width)
    }

    #[test]
    fn columns_are_dropped_before_names_are_cut() {
        for name in [10, 20, 40, 60] {
            let wanted = Wanted {
                name,
                holder: 70,
                notes: 8,
            };
            let mut before = usize::MAX;
            for terminal in (30..=250).rev() {
                let columns = choose(wanted, terminal);
                assert!(total(&columns) <= terminal, "{terminal}: {columns:?}");
                assert!(columns.len() <= before, "{terminal}: {columns:?}");
                before = columns.len();
                if width(&columns, Column::Election) < name {
                    let left = [Column::Election, Column::Holder, Column::State];
                    assert_eq!(names(&columns), left, "{terminal}");
                    assert!(width(&columns, Column::Holder) <= SHORT_HOLDER);
                }
            }
        }
    }

    #[test]
    fn everything_fits_a_wide_terminal_and_the_essential_fits_eighty_cells() {
        let wanted = Wanted {
            name: 30,
            holder: 60,
            notes: 0,
        };
        assert_eq!(names(&choose(wanted, 160)), ALL[..8]);
        assert_eq!(width(&choose(wanted, 160), Column::Holder), 60);
        let narrow = choose(wanted, 80);
        for column in [
            Column::Holder,
            Column::State,
            Column::Left,
            Column::Election,
        ] {
            assert!(names(&narrow).contains(&column), "{narrow:?}");
        }
        assert_eq!(width(&narrow, Column::Election), 30);
        assert!(width(&narrow, Column::Holder) >= HOLDER, "{narrow:?}");
    }

    #[test]
    fn cut_texts_have_an_ellipsis_and_the_given_width() {
        assert_eq!(cut_end("alice", 5), "alice");
        assert_eq!(cut_end("alice", 4), "ali…");
        assert_eq!(cut_middle("payments-worker-eu", 9), "paym…r-eu");
        assert_eq!(
            (cut_end("x", 0), cut_middle("xy", 1)),
            (String::new(), "…".into())
        );
        for width in 0..20 {
            for text in ["日本語の名前", "plain-name-of-an-election", "é…ü"] {
                assert!(width_of(&cut_end(text, width)) <= width, "{text} {width}");
                assert!(
                    width_of(&cut_middle(text, width)) <= width,
                    "{text} {width}"
                );
            }
        }
    }

    #[test]
    fn long_texts_are_wrapped_at_spaces() {
        let text = "ask alice to step down from default/web?";
        let lines = ["ask alice to", "step down from", "default/web?"];
        assert_eq!(wrap(text, 14, 3), lines);
        assert_eq!(wrap(text, 14, 2), ["ask alice to", "step down fro…"]);
        assert_eq!(wrap("aaaaaaaa bb", 4, 5), ["aaaa", "aaaa", "bb"]);
        assert_eq!(wrap(text, 0, 3), [""; 0]);
        assert_eq!(wrap("日本語", 1, 3), [""; 0]);
    }
}
