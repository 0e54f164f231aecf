//! Members: the objects by which candidates of an election announce themselves.
//!
//! A lock object names only its holder. A candidate that wants to be known keeps a second Lease, `ELECTION.member.HASH`,
//! with the label `tenure.dev/election`. The spec has the fields of a lock: `holderIdentity` is the candidate,
//! `acquireTime` the time since when it is a member, and `renewTime` and `leaseDurationSeconds` its last renewal and the
//! time after which it counts as dead. The annotation `tenure.dev/member` contains the other properties as JSON.
//!
//! No write of a lock is permitted because of a member. A leader may release its own lock for a better candidate, if its
//! program ranks candidates.
//!
//! An object counts as a member only if its name follows from its election and its identity ([`member_name`]). Other
//! objects with the label are ignored.

use std::time::Duration;

use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure_core::{ResourceVersion, Version, WallTime, hash};

use crate::error::{Doubt, Error, Obstacle, Refusal, Verb};
use crate::object::{self, ObjectName, Resource};
use crate::request::Wire;
use crate::{request, time};

/// Label of a member: the name of its election, shortened by [`election_label`].
pub const ELECTION_LABEL: &str = "tenure.dev/election";

/// Annotation of a member with its properties.
pub const MEMBER_ANNOTATION: &str = "tenure.dev/member";

/// Limit of members that are read at a time.
pub const MOST_MEMBERS: usize = 500;

/// Limit of the annotation in bytes. A longer one is not read; a written one is always shorter.
const LIMIT: usize = 8192;

/// Limit of each property in bytes. Longer text is cut, also when it is read.
const LONGEST_TEXT: usize = 253;

/// Limit of an identity in bytes. An object with a longer one is not a member.
const LONGEST_IDENTITY: usize = 1024;

/// Longest name of a Kubernetes object, and longest value of a label.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// Bounds of the time after which a member without a renewal counts as dead. A written duration outside the bounds is
/// replaced by the nearest one, so that nobody can create a member that is never deleted.
const DURATIONS: (u64, u64) = (1, 300);

/// Properties that a candidate announces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// Priority that the program assigns to the candidate; a greater one is preferred. Only elections that rank their
    /// candidates act on it.
    pub priority: i32,
    /// Failure zone, for example `eu-central-1a`.
    pub zone: Option<String>,
    /// Version of the program.
    pub version: Option<String>,
    /// Address at which the candidate can be reached, for example `http://10.0.0.7:4040/`.
    pub address: Option<String>,
}

/// A candidate that announces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Identity of the candidate.
    pub identity: String,
    /// Time since when it is a member, by its own clock.
    pub since: Option<WallTime>,
    /// Reason why it does not campaign now; `None` if it is ready to lead.
    pub not_ready: Option<String>,
    /// Its other properties.
    pub about: Announcement,
}

impl Member {
    /// Returns whether the candidate is ready to lead.
    pub fn is_ready(&self) -> bool {
        self.not_ready.is_none()
    }
}

/// A member at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSnapshot {
    /// Name of the object.
    pub name: String,
    /// Name of the election.
    pub election: String,
    /// The candidate.
    pub member: Member,
    /// Time without a renewal after which it counts as dead.
    pub duration: Duration,
    /// Time of its last renewal, by its own clock.
    pub renew_time: Option<WallTime>,
    /// Version of the object.
    pub version: Version,
}

impl MemberSnapshot {
    /// Parses an object; `None` if it is not a member of any election.
    pub fn read(object: &Value) -> Option<Self> {
        // Most objects are not members.
        object::annotation(object, MEMBER_ANNOTATION)?;
        WireLease::deserialize(object).ok()?.snapshot()
    }
}

/// Returns the name of the object of a candidate. It is a valid name for every valid election and every identity.
pub fn member_name(election: &str, identity: &str) -> String {
    let hash = hash::stable(&[election.as_bytes(), &[0], identity.as_bytes()]);
    let end = format!(".member.{hash:016x}");
    let start = cut(election, LONGEST_NAME - end.len());
    format!("{}{end}", start.trim_end_matches(['.', '-']))
}

/// Returns the value of the label for an election: its name, or the start of it and a hash if it is too long.
pub fn election_label(election: &str) -> String {
    if election.len() <= LONGEST_LABEL {
        return election.to_owned();
    }
    let end = format!("-{:016x}", hash::stable(&[election.as_bytes()]));
    let start = cut(election, LONGEST_LABEL - end.len());
    format!("{}{end}", start.trim_end_matches(['.', '-']))
}

/// Returns the longest start of a text that has at most this many bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The members of one election, in the API server.
#[derive(Debug)]
pub struct Members {
    wire: Wire,
    election: String,
    /// The namespace of the members, with the name of the election.
    place: ObjectName,
}

impl Members {
    /// Opens the members of an election.
    ///
    /// # Errors
    ///
    /// Fails if Kubernetes does not accept the namespace or name.
    pub fn open(client: Client, namespace: &str, election: &str) -> Result<Self, Error> {
        let place = ObjectName::new(Resource::LEASE, namespace, &format!("{election}.member.*"));
        let name = ObjectName::new(Resource::LEASE, namespace, election);
        if let Some(problem) = name.problem() {
            return Err(Error::unusable(Verb::Get, &name, Obstacle::Name(problem)));
        }
        let wire = Wire::new(client);
        let election = election.to_owned();
        Ok(Self {
            wire,
            election,
            place,
        })
    }

    /// Lists the members, dead ones included, at most [`MOST_MEMBERS`]. Other objects are ignored.
    ///
    /// # Errors
    ///
    /// Fails with an error of any class.
    pub async fn list(&self) -> Result<Vec<MemberSnapshot>, Error> {
        let label = election_label(&self.election);
        let query = format!("labelSelector=tenure.dev%2Felection%3D{label}&limit={MOST_MEMBERS}");
        self.select(&query).await
    }

    /// Reads the object of one candidate; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails with an error of any class.
    pub async fn read(&self, identity: &str) -> Result<Option<MemberSnapshot>, Error> {
        // A list needs no other permission than the list of all members.
        let name = member_name(&self.election, identity);
        let found = self
            .select(&format!("fieldSelector=metadata.name%3D{name}&limit=1"))
            .await?;
        Ok(found.into_iter().find(|found| found.name == name))
    }

    async fn select(&self, query: &str) -> Result<Vec<MemberSnapshot>, Error> {
        let body = request::list(&self.wire, &self.place, query).await?;
        let list: WireList = serde_json::from_str(&body.text()).map_err(|error| {
            let why = Doubt::Undecodable(error.to_string());
            Error::unknown(Verb::List, &self.place, why)
        })?;
        let members = list.items.into_iter().take(MOST_MEMBERS);
        let members = members.filter_map(WireLease::snapshot);
        Ok(members
            .filter(|found| found.election == self.election)
            .collect())
    }

    /// Creates the object of a candidate, or replaces this version of it.
    ///
    /// # Errors
    ///
    /// Fails with an error of any class. The object may have been written unless the class says otherwise.
    pub async fn write(
        &self,
        member: &Member,
        duration: Duration,
        now: WallTime,
        version: Option<&Version>,
    ) -> Result<MemberSnapshot, Error> {
        let name = self.object(&member.identity);
        let body = self.body(&name, member, duration, now, version).to_string();
        let (verb, object) = match version {
            None => (
                Verb::Create,
                request::create(&self.wire, &name, body).await?,
            ),
            Some(_) => (
                Verb::Update,
                request::update(&self.wire, &name, body).await?,
            ),
        };
        MemberSnapshot::read(&object).ok_or_else(|| {
            let why = Doubt::Undecodable("it is not the member that was written".to_owned());
            Error::unknown(verb, &name, why)
        })
    }

    /// Deletes this version of a member. Returns false if the object has another version, and true if it does not exist
    /// afterwards.
    ///
    /// # Errors
    ///
    /// Fails with an error of any class except [`Class::Refused`](crate::Class::Refused).
    pub async fn delete(&self, name: &str, version: &Version) -> Result<bool, Error> {
        let object = ObjectName::new(Resource::LEASE, self.place.namespace(), name);
        match request::delete(&self.wire, &object, version).await {
            Ok(()) => Ok(true),
            Err(Error::Refused { why, .. }) => Ok(why == Refusal::Gone),
            Err(error) => Err(error),
        }
    }

    fn object(&self, identity: &str) -> ObjectName {
        let name = member_name(&self.election, identity);
        ObjectName::new(Resource::LEASE, self.place.namespace(), &name)
    }

    fn body(
        &self,
        name: &ObjectName,
        member: &Member,
        duration: Duration,
        now: WallTime,
        version: Option<&Version>,
    ) -> Value {
        let mut object = name.blank();
        let metadata = &mut object["metadata"];
        metadata["labels"] = json!({ ELECTION_LABEL: election_label(&self.election) });
        metadata["annotations"] = json!({ MEMBER_ANNOTATION: annotation(&self.election, member) });
        if let Some(version) = version {
            metadata["uid"] = json!(*version.uid);
            metadata["resourceVersion"] = version.revision.to_string().into();
        }
        object["spec"] = json!({
            "holderIdentity": member.identity,
            "leaseDurationSeconds": duration.as_secs().clamp(DURATIONS.0, DURATIONS.1),
            "acquireTime": time::micro(member.since),
            "renewTime": time::micro(Some(now)),
        });
        object
    }
}

fn annotation(election: &str, member: &Member) -> String {
    let short = |text: &Option<String>| {
        text.as_deref()
            .map(|text| cut(text, LONGEST_TEXT).to_owned())
    };
    let about = &member.about;
    let wire = WireMember {
        election: election.to_owned(),
        ready: member.is_ready(),
        reason: short(&member.not_ready),
        priority: about.priority,
        zone: short(&about.zone),
        version: short(&about.version),
        address: short(&about.address),
    };
    serde_json::to_string(&wire).expect("strings and numbers are always JSON")
}

#[derive(Deserialize)]
struct WireList {
    #[serde(default)]
    items: Vec<WireLease>,
}

/// The parts of a Lease that describe a member. The API server checks their types.
#[derive(Deserialize)]
struct WireLease {
    metadata: WireMetadata,
    #[serde(default)]
    spec: WireSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMetadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: WireAnnotations,
}

#[derive(Default, Deserialize)]
struct WireAnnotations {
    #[serde(rename = "tenure.dev/member")]
    member: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireMember {
    election: String,
    ready: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default)]
    priority: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

impl WireLease {
    fn snapshot(self) -> Option<MemberSnapshot> {
        let Self { metadata, spec } = self;
        let text = metadata.annotations.member?;
        if text.len() > LIMIT || metadata.uid.is_empty() || metadata.resource_version.is_empty() {
            return None;
        }
        let wire: WireMember = serde_json::from_str(&text).ok()?;
        let identity = spec.holder_identity?;
        if identity.is_empty() || identity.len() > LONGEST_IDENTITY {
            return None;
        }
        if metadata.name != member_name(&wire.election, &identity) {
            return None;
        }
        let short = |text: Option<String>| text.map(|text| cut(&text, LONGEST_TEXT).to_owned());
        let instant = |text: Option<String>| time::parse_text(&text?);
        let seconds = spec
            .lease_duration_seconds
            .and_then(|s| u64::try_from(s).ok());
        let not_ready = (!wire.ready).then(|| short(wire.reason).unwrap_or_default());
        Some(MemberSnapshot {
            name: metadata.name,
            election: wire.election,
            member: Member {
                identity,
                since: instant(spec.acquire_time),
                not_ready,
                about: Announcement {
                    priority: wire.priority,
                    zone: short(wire.zone),
                    version: short(wire.version),
                    address: short(wire.address),
                },
            },
            duration: Duration::from_secs(
                seconds.unwrap_or_default().clamp(DURATIONS.0, DURATIONS.1),
            ),
            renew_time: instant(spec.renew_time),
            version: Version {
                uid: metadata.uid.as_str().into(),
                revision: ResourceVersion::new(metadata.resource_version),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::object::label_problem;

    fn object(election: &str, identity: &str) -> Value {
        json!({
            "metadata": {
                "name": member_name(election, identity), "namespace": "shop", "uid": "u",
                "resourceVersion": "7", "labels": { ELECTION_LABEL: election_label(election) },
                "annotations": { MEMBER_ANNOTATION: annotation(election, &Member::default()) },
            },
            "spec": { "holderIdentity": identity, "leaseDurationSeconds": 30 },
        })
    }

    fn client() -> Client {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
        });
        Client::new(service, "shop")
    }

    proptest! {
        #[test]
        fn name_and_label_are_valid_for_every_election_and_identity(
            election in "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", identity in any::<String>(),
        ) {
            prop_assume!(ObjectName::new(Resource::LEASE, "shop", &election).problem().is_none());
            let name = ObjectName::new(Resource::LEASE, "shop", &member_name(&election, &identity));
            prop_assert_eq!(name.problem(), None);
            prop_assert_eq!(label_problem(ELECTION_LABEL, &election_label(&election)), None);
        }

        #[test]
        fn any_object_is_read_without_a_panic(object in crate::testing::json()) {
            let _ = MemberSnapshot::read(&object);
        }
    }

    #[test]
    fn names_are_stable_and_differ_by_election_and_identity() {
        assert_eq!(member_name("web", "web-0"), "web.member.829e069b7e61b529");
        let long = "x".repeat(253);
        let names = [
            member_name("web", "web-0"),
            member_name("web", "web-1"),
            member_name("we", "bweb-0"),
            member_name(&long, "web-0"),
            member_name(&long[1..], "web-0"),
        ];
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert_eq!(election_label("web"), "web");
        assert_ne!(election_label(&long), election_label(&long[1..]));
    }

    #[tokio::test]
    async fn member_is_read_as_it_was_written() {
        let members = Members::open(client(), "shop", "web").unwrap();
        let member = Member {
            identity: "web-0_\"ä".to_owned(),
            since: Some(WallTime::from_micros(1_767_323_045_000_006)),
            not_ready: Some("unhealthy: \u{7}".to_owned()),
            about: Announcement {
                priority: -3,
                zone: Some("a".to_owned()),
                version: Some("1.2".to_owned()),
                address: Some("http://10.0.0.7:4040/".to_owned()),
            },
        };
        let version = Version {
            uid: "u".into(),
            revision: ResourceVersion::new("7"),
        };
        let now = WallTime::from_micros(1_767_323_046_000_000);
        let duration = Duration::from_secs(30);
        let name = members.object(&member.identity);
        let written = members.body(&name, &member, duration, now, Some(&version));
        let read = MemberSnapshot::read(&written).unwrap();
        assert_eq!((read.member, read.version), (member, version));
        assert_eq!((read.duration, read.renew_time), (duration, Some(now)));
        assert_eq!(
            (read.election, read.name),
            ("web".to_owned(), name.name().to_owned())
        );
    }

    #[test]
    fn longest_name_and_label_use_all_bytes_and_shorter_elections_are_not_cut() {
        let long = "x".repeat(253);
        assert_eq!(member_name(&long, "web-0").len(), 253);
        assert_eq!(election_label(&long).len(), 63);
        assert_eq!(election_label(&long[..63]), long[..63]);
        assert_eq!(
            member_name(&long[..229], "a")[..237],
            format!("{}.member.", &long[..229])
        );
    }

    #[test]
    fn member_without_a_reason_is_read_as_ready() {
        let mut object = object("web", "a");
        assert!(MemberSnapshot::read(&object).unwrap().member.is_ready());
        let waiting = Member {
            not_ready: Some(String::new()),
            ..Member::default()
        };
        object["metadata"]["annotations"][MEMBER_ANNOTATION] = annotation("web", &waiting).into();
        assert!(!MemberSnapshot::read(&object).unwrap().member.is_ready());
    }

    #[test]
    fn annotation_of_the_greatest_length_is_read() {
        let mut object = object("web", "a");
        let entry = &mut object["metadata"]["annotations"][MEMBER_ANNOTATION];
        let short = entry.as_str().unwrap().to_owned();
        *entry = format!("{short:LIMIT$}").into();
        assert!(MemberSnapshot::read(&object).is_some());
        object["metadata"]["annotations"][MEMBER_ANNOTATION] =
            format!("{short:0$}", LIMIT + 1).into();
        assert!(MemberSnapshot::read(&object).is_none());
    }

    #[tokio::test]
    async fn longest_properties_still_fit_the_annotation() {
        let text = || Some("\u{1}".repeat(5_000));
        let member = Member {
            identity: "a".to_owned(),
            not_ready: text(),
            about: Announcement {
                zone: text(),
                version: text(),
                address: text(),
                ..Announcement::default()
            },
            ..Member::default()
        };
        let written = annotation(&"x".repeat(253), &member);
        assert!(written.len() <= LIMIT, "{}", written.len());
    }

    #[test]
    fn objects_of_other_writers_are_ignored() {
        let good = object("web", "a");
        assert!(MemberSnapshot::read(&good).is_some());
        for (pointer, value) in [
            ("/metadata/name", json!("web.member.0000000000000000")),
            ("/metadata/name", json!("web")),
            ("/metadata/uid", json!("")),
            ("/metadata/resourceVersion", json!("")),
            ("/metadata/annotations", json!({})),
            ("/metadata/annotations/tenure.dev~1member", json!("{")),
            ("/metadata/annotations/tenure.dev~1member", json!("[1]")),
            (
                "/metadata/annotations/tenure.dev~1member",
                json!(format!(
                    "{{\"election\":\"web\",\"ready\":true{}}}",
                    " ".repeat(LIMIT)
                )),
            ),
            ("/spec/holderIdentity", json!("b")),
            ("/spec/holderIdentity", Value::Null),
            ("/spec", json!("x")),
        ] {
            let mut other = good.clone();
            *other.pointer_mut(pointer).unwrap() = value.clone();
            assert_eq!(MemberSnapshot::read(&other), None, "{pointer}: {value}");
        }
    }

    #[test]
    fn identities_have_a_limit_and_long_properties_are_cut() {
        let long = "x".repeat(LONGEST_IDENTITY);
        assert!(MemberSnapshot::read(&object("web", &long)).is_some());
        for identity in ["", &format!("{long}x")] {
            assert_eq!(MemberSnapshot::read(&object("web", identity)), None);
        }
        let mut object = object("web", "a");
        let text = "ä".repeat(1_000);
        let about = json!({
            "election": "web", "ready": false, "reason": text, "zone": text, "version": text, "address": text,
        });
        object["metadata"]["annotations"][MEMBER_ANNOTATION] = about.to_string().into();
        let member = MemberSnapshot::read(&object).unwrap().member;
        let about = member.about;
        for text in [member.not_ready, about.zone, about.version, about.address] {
            assert_eq!(
                text.unwrap().len(),
                LONGEST_TEXT - 1,
                "cut between characters"
            );
        }
    }

    #[test]
    fn duration_outside_the_bounds_is_replaced_by_the_nearest() {
        for (written, read) in [(0, 1), (-5, 1), (30, 30), (i64::from(i32::MAX), 300)] {
            let mut object = object("web", "a");
            object["spec"]["leaseDurationSeconds"] = written.into();
            let member = MemberSnapshot::read(&object).unwrap();
            assert_eq!(member.duration, Duration::from_secs(read), "{written}");
        }
    }
}
