//! The API server of a shard group: the leases of shards and the agreement, each a compare-and-set register.

use std::collections::BTreeMap;

use tenure_core::shards::{Agreement, Listed};
use tenure_core::{Observation, Orders, Record, ResourceVersion, Version};

/// A shard: its index, and the number of shards.
pub(super) type Shard = (u32, u32);

/// Semaphores: the lease of the election without slots. The leases of slots are those of a group of zero shards.
pub(super) const WHOLE: Shard = (0, 1);

/// A request to the server.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Get(Shard),
    Create(Shard, Record),
    Replace(Shard, Version, Record),
    ReadAgreement,
    List,
    /// The number of shards, the number that the group is open for, and the replaced version.
    Agree(u32, Option<u32>, Option<Version>),
}

/// A response of the server.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Got(Option<Observation>),
    Stored(Version),
    Agreement(Option<Agreement>),
    Listed(Vec<Listed>),
    Refused,
    /// 5xx: the request may or may not have been executed.
    Error,
}

#[derive(Debug, Default)]
pub(super) struct Server {
    leases: BTreeMap<Shard, Observation>,
    agreement: Option<Agreement>,
    revision: u64,
}

impl Server {
    /// Executes a request.
    pub(super) fn serve(&mut self, call: &Call) -> Reply {
        match call {
            Call::Get(shard) => Reply::Got(self.leases.get(shard).cloned()),
            Call::Create(shard, record) if !self.leases.contains_key(shard) => {
                let version = self.fresh();
                self.put(*shard, version, record)
            }
            Call::Replace(shard, base, record)
                if self.leases.get(shard).map(|lease| &lease.version) == Some(base) =>
            {
                let version = self.next(base);
                self.put(*shard, version, record)
            }
            Call::ReadAgreement => Reply::Agreement(self.agreement.clone()),
            Call::List => Reply::Listed(self.leases.iter().map(listed).collect()),
            Call::Agree(shards, open, base)
                if self.agreement.as_ref().map(|agreed| &agreed.version) == base.as_ref() =>
            {
                let version = match base {
                    Some(base) => self.next(base),
                    None => self.fresh(),
                };
                self.agreement = Some(Agreement {
                    shards: Some(*shards),
                    open: *open,
                    version: version.clone(),
                });
                Reply::Stored(version)
            }
            Call::Create(..) | Call::Replace(..) | Call::Agree(..) => Reply::Refused,
        }
    }

    /// Deletes the agreement, as a person would.
    pub(super) fn delete_agreement(&mut self) -> bool {
        self.revision += 1;
        self.agreement.take().is_some()
    }

    /// Deletes the leases without a holder, as a person would.
    pub(super) fn delete_free(&mut self) {
        self.revision += 1;
        self.leases.retain(|_, lease| !lease.record.is_free());
    }

    /// Writes another number into the agreement, as a person would.
    pub(super) fn edit_agreement(&mut self, shards: Option<u32>) -> bool {
        let Some(mut agreement) = self.agreement.take() else {
            return false;
        };
        agreement.shards = shards;
        agreement.version = self.next(&agreement.version.clone());
        self.agreement = Some(agreement);
        true
    }

    fn put(&mut self, shard: Shard, version: Version, record: &Record) -> Reply {
        let lease = Observation {
            version: version.clone(),
            record: record.clone(),
            fingerprint: self.revision,
            unreadable: false,
            mark: Some(tenure_core::Mark::of(record)),
            described: None,
            orders: Orders::default(),
        };
        self.leases.insert(shard, lease);
        Reply::Stored(version)
    }

    /// Returns the version of a new object.
    fn fresh(&mut self) -> Version {
        self.revision += 1;
        Version {
            uid: format!("u{}", self.revision).into(),
            revision: ResourceVersion::new(self.revision.to_string()),
        }
    }

    fn next(&mut self, base: &Version) -> Version {
        self.revision += 1;
        Version {
            uid: base.uid.clone(),
            revision: ResourceVersion::new(self.revision.to_string()),
        }
    }
}

fn listed((shard, lease): (&Shard, &Observation)) -> Listed {
    Listed {
        name: format!("{}-of-{}", shard.0, shard.1),
        of: Some(shard.1),
        held: !lease.record.is_free(),
        version: lease.version.clone(),
        duration: lease.record.lease_duration(),
    }
}
