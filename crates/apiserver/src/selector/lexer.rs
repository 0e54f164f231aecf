//! Lexer of label selectors.

/// One token, with the text that errors quote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    End,
    Identifier,
    In,
    NotIn,
    Open,
    Close,
    Comma,
    Not,
    Equals,
    DoubleEquals,
    NotEquals,
    Greater,
    Less,
}

/// Removes the next token from the front of `rest`.
///
/// A NUL byte ends the text, as in the upstream lexer. No valid key or value contains one.
pub(super) fn next<'a>(rest: &mut &'a str) -> Token<'a> {
    let text = rest.trim_start_matches([' ', '\t', '\r', '\n']);
    let (kind, length) = match text.as_bytes() {
        [] | [0, ..] => (Kind::End, 0),
        [b'(', ..] => (Kind::Open, 1),
        [b')', ..] => (Kind::Close, 1),
        [b',', ..] => (Kind::Comma, 1),
        [b'>', ..] => (Kind::Greater, 1),
        [b'<', ..] => (Kind::Less, 1),
        [b'!', b'=', ..] => (Kind::NotEquals, 2),
        [b'!', ..] => (Kind::Not, 1),
        [b'=', b'=', ..] => (Kind::DoubleEquals, 2),
        [b'=', ..] => (Kind::Equals, 1),
        _ => {
            let stop = |c: char| " \t\r\n=!(),><\0".contains(c);
            let length = text.find(stop).unwrap_or(text.len());
            let kind = match &text[..length] {
                "in" => Kind::In,
                "notin" => Kind::NotIn,
                _ => Kind::Identifier,
            };
            (kind, length)
        }
    };
    *rest = if kind == Kind::End {
        ""
    } else {
        &text[length..]
    };
    Token {
        kind,
        text: &text[..length],
    }
}
