//! Candidates of a coordinated election.
//!
//! In a coordinated election a controller in the API server selects the holder. A process announces itself with a
//! LeaseCandidate named after its identity and renews it periodically. When the controller sets `pingTime`, the process
//! answers by moving `renewTime` past it. The caller decides when to do so: every [`RENEW_EVERY`], and immediately when
//! [`CandidateSnapshot::wants_ack`].

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use tenure_core::{Version, WallTime};

use crate::error::{Class, Doubt, Error, Verb};
use crate::lock::WatchTarget;
use crate::object::{self, ObjectName, Resource};
use crate::request::Wire;
use crate::{request, time};

/// Interval at which a candidate renews its LeaseCandidate. The controller ignores it after half an hour without a
/// renewal.
pub const RENEW_EVERY: Duration = Duration::from_secs(300);

/// The strategy that Kubernetes implements itself.
pub const OLDEST_EMULATION_VERSION: &str = "OldestEmulationVersion";

/// Properties that a candidate announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateSpec {
    /// The Lease that it campaigns for, in the candidate's namespace.
    pub lease_name: String,
    /// Version of the program, for example `1.37.0`.
    pub binary_version: String,
    /// Version whose behaviour the program emulates. May be empty unless the strategy needs it.
    pub emulation_version: String,
    /// Strategy by which the controller selects a candidate: [`OLDEST_EMULATION_VERSION`], or a strategy of another
    /// controller, for example `example.com/newest`.
    pub strategy: String,
}

/// Publishes one LeaseCandidate.
#[derive(Debug)]
pub struct LeaseCandidate {
    wire: Wire,
    name: ObjectName,
    spec: CandidateSpec,
}

/// The LeaseCandidate at one version. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CandidateSnapshot {
    /// Version of the object.
    pub version: Version,
    /// Time at which the controller requested a renewal.
    pub ping_time: Option<WallTime>,
    /// Time of the candidate's last renewal.
    pub renew_time: Option<WallTime>,
    object: Arc<Value>,
}

impl CandidateSnapshot {
    /// Returns whether the controller waits for a renewal.
    pub fn wants_ack(&self) -> bool {
        ping_pending(self.ping_time, self.renew_time)
    }

    /// Returns the object as it was read.
    pub fn object(&self) -> &Value {
        &self.object
    }
}

/// The candidate has invalid properties.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is invalid: {problems}", problems = problems.join("; "))]
pub struct InvalidCandidate {
    name: ObjectName,
    /// All problems that were found.
    pub problems: Vec<String>,
}

impl LeaseCandidate {
    /// Creates a candidate with the identity of the elector.
    ///
    /// # Errors
    ///
    /// Lists everything that the API server would reject.
    pub fn new(
        client: Client,
        namespace: &str,
        identity: &str,
        spec: CandidateSpec,
    ) -> Result<Self, InvalidCandidate> {
        let name = ObjectName::new(Resource::LEASE_CANDIDATE, namespace, identity);
        let problems = problems(&name, &spec);
        if !problems.is_empty() {
            return Err(InvalidCandidate { name, problems });
        }
        let wire = Wire::new(client);
        Ok(Self { wire, name, spec })
    }

    /// Returns the object to watch for pings.
    pub fn watched(&self) -> WatchTarget {
        let object = self.name.clone();
        WatchTarget { object }
    }

    /// Converts an object from the watch; `None` if it is not this candidate.
    pub fn apply_watch_event(&self, object: Value) -> Option<CandidateSnapshot> {
        let metadata = &object["metadata"];
        let ours = metadata["name"] == self.name.name();
        let version = object::version(&object).filter(|_| ours)?;
        Some(CandidateSnapshot {
            version,
            ping_time: time::parse(&object["spec"]["pingTime"]),
            renew_time: time::parse(&object["spec"]["renewTime"]),
            object: Arc::new(object),
        })
    }

    /// Reads the LeaseCandidate; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails with an error of any class.
    pub async fn read(&self) -> Result<Option<CandidateSnapshot>, Error> {
        let object = request::get(&self.wire, &self.name).await?;
        object
            .map(|object| self.seen(Verb::Get, object))
            .transpose()
    }

    /// Creates the LeaseCandidate, or renews it, which also answers a ping. `last` is the last known version; without
    /// it the object is read first. If another writer, usually the pinging controller, changed the object in the
    /// meantime, it is read and renewed once more.
    ///
    /// # Errors
    ///
    /// Fails with an error of any class. Try again later.
    pub async fn ensure(
        &self,
        now: WallTime,
        last: Option<&CandidateSnapshot>,
    ) -> Result<CandidateSnapshot, Error> {
        let last = match last {
            Some(last) => Some(last.clone()),
            None => self.read().await?,
        };
        match self.write(now, last.as_ref()).await {
            Err(error) if error.class() == Class::Refused => {
                let last = self.read().await?;
                self.write(now, last.as_ref()).await
            }
            done => done,
        }
    }

    async fn write(
        &self,
        now: WallTime,
        last: Option<&CandidateSnapshot>,
    ) -> Result<CandidateSnapshot, Error> {
        let ping = last.and_then(|last| last.ping_time);
        let renew_time = time::micro(Some(renewal(now, ping)));
        let (wire, name) = (&self.wire, &self.name);
        match last {
            None => {
                let body = self.body(name.blank(), renew_time);
                self.seen(Verb::Create, request::create(wire, name, body).await?)
            }
            Some(last) => {
                let body = self.body(last.object().clone(), renew_time);
                self.seen(Verb::Update, request::update(wire, name, body).await?)
            }
        }
    }

    /// Returns the object to send. It also updates the versions, so that a program that restarts with another version
    /// under the same identity does not campaign with the old version.
    fn body(&self, mut object: Value, renew_time: Value) -> String {
        let resource = self.name.resource();
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        let spec = object::entries(&mut object, "spec");
        let mut set = |key: &str, value: Value| spec.insert(key.to_owned(), value);
        set("leaseName", self.spec.lease_name.as_str().into());
        set("binaryVersion", self.spec.binary_version.as_str().into());
        set("strategy", self.spec.strategy.as_str().into());
        set("renewTime", renew_time);
        if !self.spec.emulation_version.is_empty() {
            set(
                "emulationVersion",
                self.spec.emulation_version.as_str().into(),
            );
        }
        object.to_string()
    }

    fn seen(&self, verb: Verb, object: Value) -> Result<CandidateSnapshot, Error> {
        let why = || Doubt::Undecodable("another name".to_owned());
        self.apply_watch_event(object)
            .ok_or_else(|| Error::unknown(verb, &self.name, why()))
    }
}

/// Returns whether a ping is still unanswered.
pub fn ping_pending(ping_time: Option<WallTime>, renew_time: Option<WallTime>) -> bool {
    match (ping_time, renew_time) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(ping), Some(renew)) => ping > renew,
    }
}

/// Returns the time to write: now, or just after the ping if this clock is behind the controller's clock. Otherwise the
/// controller would wait forever.
pub fn renewal(now: WallTime, ping_time: Option<WallTime>) -> WallTime {
    let past = |ping: WallTime| WallTime::from_micros(ping.as_micros().saturating_add(1));
    ping_time.map_or(now, |ping| now.max(past(ping)))
}

fn problems(name: &ObjectName, spec: &CandidateSpec) -> Vec<String> {
    let mut problems = Vec::new();
    let identity = name.name();
    let key = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if identity.is_empty()
        || identity.len() > 253
        || !identity.chars().all(key)
        || identity.starts_with("..")
        || identity == "."
    {
        problems.push(format!(
            "identity {identity:?} must be letters, digits, '-', '_' and '.', at most 253, because it \
             names the object"
        ));
    }
    let lease = ObjectName::new(Resource::LEASE, name.namespace(), &spec.lease_name);
    problems.extend(lease.problem().map(|problem| format!("lease: {problem}")));
    let binary = semver(&spec.binary_version);
    if binary.is_none() {
        problems.push(format!(
            "binary version {:?} must be like \"1.37.0\"",
            spec.binary_version
        ));
    }
    let emulation = semver(&spec.emulation_version);
    let oldest = spec.strategy == OLDEST_EMULATION_VERSION;
    if emulation.is_none() && (oldest || !spec.emulation_version.is_empty()) {
        let found = &spec.emulation_version;
        problems.push(format!(
            "emulation version {found:?} must be like \"1.37.0\""
        ));
    }
    if let (Some(binary), Some(emulation)) = (binary, emulation)
        && binary < emulation
    {
        problems.push(format!(
            "binary version {} must not be below emulation version {}",
            spec.binary_version, spec.emulation_version
        ));
    }
    if !oldest && !spec.strategy.contains('/') {
        problems.push(format!(
            "strategy {:?} must be {OLDEST_EMULATION_VERSION} or of the form \"example.com/name\"",
            spec.strategy
        ));
    }
    problems
}

/// Returns the three numbers of a version without a leading `v`. The part after `-` or `+` is not compared.
fn semver(text: &str) -> Option<[u64; 3]> {
    let core = text.split(['-', '+']).next()?;
    let mut numbers = core.split('.').map(|number| {
        let plain = number.bytes().all(|b| b.is_ascii_digit());
        let leading = number.len() > 1 && number.starts_with('0');
        (plain && !leading).then(|| number.parse().ok()).flatten()
    });
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> WallTime {
        WallTime::from_micros(micros)
    }

    #[test]
    fn a_ping_is_pending_until_the_renewal_is_not_before_it() {
        assert!(!ping_pending(None, None));
        assert!(!ping_pending(None, Some(at(1))));
        assert!(ping_pending(Some(at(1)), None));
        assert!(ping_pending(Some(at(2)), Some(at(1))));
        assert!(!ping_pending(Some(at(2)), Some(at(2))));
    }

    #[test]
    fn a_slow_clock_still_answers() {
        assert_eq!(renewal(at(10), None), at(10));
        assert_eq!(renewal(at(10), Some(at(5))), at(10));
        assert_eq!(renewal(at(10), Some(at(50))), at(51));
        assert_eq!(renewal(at(0), Some(at(i64::MAX))), at(i64::MAX));
    }

    #[test]
    fn all_problems_are_listed_together() {
        let name = |identity: &str| ObjectName::new(Resource::LEASE_CANDIDATE, "ns", identity);
        let good = CandidateSpec {
            lease_name: "x".into(),
            binary_version: "1.37.0".into(),
            emulation_version: "1.36.0".into(),
            strategy: OLDEST_EMULATION_VERSION.into(),
        };
        assert_eq!(problems(&name("Host_1.a"), &good), Vec::<String>::new());
        let bad = CandidateSpec {
            lease_name: String::new(),
            binary_version: "v1".into(),
            emulation_version: String::new(),
            strategy: "x".into(),
        };
        assert_eq!(problems(&name("a/b"), &bad).len(), 4);
        let newer = CandidateSpec {
            emulation_version: "1.38.0".into(),
            ..good
        };
        assert_eq!(problems(&name("a"), &newer).len(), 1);
    }

    #[test]
    fn identity_that_cannot_name_an_object_and_missing_emulation_version_are_problems() {
        let spec = |emulation: &str, strategy: &str| CandidateSpec {
            lease_name: "x".into(),
            binary_version: "1.37.0".into(),
            emulation_version: emulation.into(),
            strategy: strategy.into(),
        };
        let own = "example.com/newest";
        let good = spec("1.36.0", OLDEST_EMULATION_VERSION);
        let longest = "x".repeat(253);
        for (identity, spec, expected) in [
            (longest.as_str(), good.clone(), 0),
            (&format!("{longest}x"), good.clone(), 1),
            ("", good.clone(), 1),
            (".", good.clone(), 1),
            ("..a", good.clone(), 1),
            (".a", good, 0),
            ("a", spec("", OLDEST_EMULATION_VERSION), 1),
            ("a", spec("", own), 0),
            ("a", spec("x", own), 1),
        ] {
            let name = ObjectName::new(Resource::LEASE_CANDIDATE, "ns", identity);
            let found = problems(&name, &spec);
            assert_eq!(found.len(), expected, "{identity}: {found:?}");
        }
    }

    #[test]
    fn malformed_versions_are_rejected() {
        assert_eq!(semver("1.37.0-alpha.1+x"), Some([1, 37, 0]));
        assert!(semver("1.2.0") < semver("1.10.0"));
        for text in [
            "", "1", "1.2", "v1.2.3", "1.02.3", "1.2.3.4", "1.a.3", "1..3",
        ] {
            assert_eq!(semver(text), None, "{text:?}");
        }
    }
}
