//! The limited resources, and the names of the limits.

/// A resource of which every user has a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Bytes of request bodies.
    Bodies,
    /// Request bodies that the server waits for.
    ArrivingBodies,
    /// Bytes of answers that clients have not read.
    Answers,
    /// Open watches.
    Watches,
}

impl Resource {
    pub(super) const ALL: [Self; 4] = [
        Self::Bodies,
        Self::ArrivingBodies,
        Self::Answers,
        Self::Watches,
    ];
}

/// The limit that a rejected request exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Too many requests wait in a lane.
    QueueFull,
    /// A request waited too long.
    TimeOut,
    /// A share is used up.
    Share(Resource),
    /// A connection was closed, because its address has too many.
    Connections,
}

impl Rejection {
    pub(crate) const ALL: [Self; 7] = [
        Self::QueueFull,
        Self::TimeOut,
        Self::Share(Resource::Bodies),
        Self::Share(Resource::ArrivingBodies),
        Self::Share(Resource::Answers),
        Self::Share(Resource::Watches),
        Self::Connections,
    ];

    /// Returns the name for metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::TimeOut => "time-out",
            Self::Share(Resource::Bodies) => "body-bytes",
            Self::Share(Resource::ArrivingBodies) => "arriving-bodies",
            Self::Share(Resource::Answers) => "answer-bytes",
            Self::Share(Resource::Watches) => "watches",
            Self::Connections => "connections",
        }
    }
}
