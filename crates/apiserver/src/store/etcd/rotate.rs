//! Rewrites the values in etcd that are not encrypted as configured, while servers run.
//!
//! Every rewrite compares the revision of the value, so that a concurrent write of a server is never lost. A pass that
//! finds nothing to rewrite is the last one. An interrupted rotation can be repeated: a pass reads every value but
//! rewrites only those that are not encrypted as configured.

use std::time::Duration;

use bytes::Bytes;

use super::EtcdStore;
use super::client::{CallError, Client};
use super::config::{self, EtcdConfig, EtcdError};
use super::format::{Layout, Names, Version, decode_other, encode, encode_other, open};
use super::mirror::unsigned;
use super::wire::{Compare, KeyValue, Operation, PutRequest, RangeRequest, RequestOp, TxnRequest};
use crate::store::encryption::{Encryption, Rotation};

/// Page size. Values have at most a few megabytes.
const PAGE: i64 = 20;
/// Number of passes after which the rotation fails, because a server still writes with another key.
const PASSES: usize = 10;
/// Number of consecutive failed attempts after which the rotation fails.
const ATTEMPTS: u32 = 6;
/// First pause after a failure or an incomplete pass.
const PAUSE: Duration = Duration::from_millis(200);
/// The value that all servers share; see [`EtcdStore::agree`].
const SHARED: &str = "agreed/keys";

/// Reason why a step of the rotation ended.
enum Failure {
    /// The connection failed; another attempt may succeed.
    Call(CallError),
    /// Another attempt does not help.
    Final(EtcdError),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(_) | CallError::Full(_) => {
                Self::Final(EtcdError::Unusable(error.reason()))
            }
            CallError::NotSent(_) | CallError::Unknown(_) => Self::Call(error),
        }
    }
}

impl<E: Into<EtcdError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

impl EtcdStore {
    /// Rewrites every value that is not encrypted as configured. Servers can run. A rewritten object has a new
    /// resourceVersion and the same content; fencing tokens stay valid. Reports its progress after every page.
    ///
    /// # Errors
    /// Returns an error if etcd cannot be used, a value cannot be read, or a server still writes with another key. The
    /// values that were already rewritten keep their new encryption, and another call continues.
    pub async fn rotate_keys(
        config: EtcdConfig,
        mut progress: impl FnMut(Rotation),
    ) -> Result<Rotation, EtcdError> {
        let (endpoints, tls) = config::members(&config)?;
        let layout = Layout::new(&config.prefix);
        let client = Client::new(endpoints, tls, layout.nudge());
        let mut rotator = Rotator {
            client,
            layout,
            encryption: config.encryption,
            names: Names::default(),
            next_member: 0,
        };
        let mut rewritten = 0;
        for number in 1..=PASSES {
            let pass = rotator.pass(rewritten, &mut progress).await?;
            let changed = pass.rewritten - rewritten;
            rewritten = pass.rewritten;
            if changed == 0 {
                return Ok(pass);
            }
            if number > 1 {
                let backoff = u32::try_from(number).unwrap_or(u32::MAX);
                tokio::time::sleep(PAUSE.saturating_mul(backoff)).await;
            }
        }
        let why = "a server still writes values with another key; give all servers the same key \
                   file, restart them, and rotate again";
        Err(EtcdError::Unusable(why.to_owned()))
    }
}

struct Rotator {
    client: Client,
    layout: Layout,
    encryption: Encryption,
    names: Names,
    next_member: usize,
}

impl Rotator {
    /// Reads all values once and rewrites those that are not as configured. Connects again after failures.
    async fn pass(
        &mut self,
        rewritten: u64,
        progress: &mut impl FnMut(Rotation),
    ) -> Result<Rotation, EtcdError> {
        let mut rotation = Rotation {
            rewritten,
            ..Rotation::default()
        };
        let (mut cursor, end) = self.layout.objects();
        let mut failures = 0;
        loop {
            let step = self.step(&mut cursor, &end, &mut rotation).await;
            match step {
                Ok(true) => {
                    failures = 0;
                    progress(rotation);
                }
                Ok(false) => return Ok(rotation),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Call(error)) => {
                    failures += 1;
                    if failures == ATTEMPTS {
                        return Err(EtcdError::Unusable(error.reason()));
                    }
                    self.client.down(error.reason());
                    tokio::time::sleep(PAUSE * 2_u32.pow(failures)).await;
                }
            }
        }
    }

    /// Handles one page and moves the cursor behind it. Returns whether there is another page.
    async fn step(
        &mut self,
        cursor: &mut Bytes,
        end: &Bytes,
        rotation: &mut Rotation,
    ) -> Result<bool, Failure> {
        if self.client.trouble().is_some() {
            let connected = self.client.connect(self.next_member).await;
            let (number, link, _) = connected.map_err(CallError::NotSent)?;
            self.next_member = number + 1;
            self.client.up(link);
        }
        if rotation.read == 0 {
            self.shared(rotation).await?;
        }
        let page = self.client.range(RangeRequest {
            key: cursor.clone(),
            range_end: end.clone(),
            limit: PAGE,
            ..RangeRequest::default()
        });
        let page = page.await?;
        for found in &page.kvs {
            let counted = self.rewrite(found, *rotation).await?;
            *rotation = counted;
            *cursor = [found.key.as_ref(), b"\0"].concat().into();
        }
        Ok(page.more)
    }

    /// Rewrites one value if it is not as configured. Returns the new counts.
    async fn rewrite(
        &mut self,
        found: &KeyValue,
        mut rotation: Rotation,
    ) -> Result<Rotation, Failure> {
        let Some(key) = self.layout.key(&found.key, &mut self.names) else {
            return Ok(rotation);
        };
        let key = key.map_err(EtcdError::Unusable)?;
        let revision = unsigned(found.mod_revision);
        let version = open(&key, revision, &found.value, &self.encryption)?;
        let Version { term, json, id } = version;
        let wanted = self.encryption.key_for(&key.resource);
        rotation.count(id, wanted);
        if id != wanted {
            // The term is a number now, because the revision of the value changes.
            let value = encode(&key, Some(term), &json, &self.encryption);
            let value = value.map_err(|error| EtcdError::Unusable(error.to_string()))?;
            self.swap(found, value).await?;
        }
        Ok(rotation)
    }

    /// Rewrites the value that all servers share, if there is one.
    async fn shared(&self, rotation: &mut Rotation) -> Result<(), Failure> {
        let key = self.layout.other(SHARED);
        let request = RangeRequest {
            key,
            ..RangeRequest::default()
        };
        let found = self.client.range(request).await?;
        let Some(found) = found.kvs.first() else {
            return Ok(());
        };
        let (id, value) = decode_other(SHARED, &found.value, &self.encryption)?;
        if id != self.encryption.shared_key() {
            let value = encode_other(SHARED, &value, &self.encryption);
            let value = value.map_err(|error| EtcdError::Unusable(error.to_string()))?;
            self.swap(found, value).await?;
            rotation.rewritten += 1;
        }
        Ok(())
    }

    /// Replaces a value, unless it has changed since it was read. The next pass then finds it again.
    async fn swap(&self, found: &KeyValue, value: Bytes) -> Result<(), CallError> {
        let key = found.key.clone();
        let put = PutRequest {
            key: key.clone(),
            value,
        };
        let request = TxnRequest {
            compare: vec![Compare::last_changed(key, found.mod_revision)],
            success: vec![RequestOp {
                request: Some(Operation::Put(put)),
            }],
        };
        self.client.txn(request).await.map(|_| ())
    }
}
