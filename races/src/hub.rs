//! The reports of a term.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    WorkEnded,
    WorkEnding,
}
