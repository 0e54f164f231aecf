//! The two objects on the API server. Each is a compare-and-set register, and they share one revision counter.

use std::sync::Arc;

use tenure_core::pair::{PairRequest, Side};
use tenure_core::{Mark, Observation, Orders, Record, ResourceVersion, Version};

/// A request to the server.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Get(Side),
    Create(Side, Record),
    Replace(Side, Version, Record),
}

impl Call {
    /// Creates the request that a write to both objects asks for.
    pub(super) fn of(ask: PairRequest, record: &Record) -> Self {
        match ask {
            PairRequest::Look => Self::Get(Side::Secondary),
            PairRequest::Create(side) => Self::Create(side, record.clone()),
            PairRequest::Replace(side, version) => Self::Replace(side, version, record.clone()),
        }
    }
}

/// A response of the server.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Got(Option<Observation>),
    Stored(Side, Observation),
    Refused,
    /// 5xx: the request may or may not have been executed.
    Error,
}

/// Both objects.
#[derive(Debug, Default)]
pub(super) struct Server {
    objects: [Option<Observation>; 2],
    revision: u64,
}

impl Server {
    pub(super) fn get(&self, side: Side) -> Option<&Observation> {
        self.objects[side as usize].as_ref()
    }

    /// Executes a request.
    pub(super) fn serve(&mut self, call: &Call) -> Reply {
        match call {
            Call::Get(side) => Reply::Got(self.get(*side).cloned()),
            Call::Create(side, record) if self.get(*side).is_none() => {
                let uid = format!("{side:?}").into();
                Reply::Stored(*side, self.put(*side, uid, record))
            }
            Call::Replace(side, version, record)
                if self.get(*side).map(|o| &o.version) == Some(version) =>
            {
                Reply::Stored(*side, self.put(*side, version.uid.clone(), record))
            }
            Call::Create(..) | Call::Replace(..) => Reply::Refused,
        }
    }

    fn put(&mut self, side: Side, uid: Arc<str>, record: &Record) -> Observation {
        self.revision += 1;
        let object = Observation {
            version: Version {
                uid,
                revision: ResourceVersion::new(self.revision.to_string()),
            },
            record: record.clone(),
            fingerprint: self.revision,
            unreadable: false,
            mark: Some(Mark::of(record)),
            described: None,
            orders: Orders::default(),
        };
        self.objects[side as usize] = Some(object.clone());
        object
    }
}
