//! Decisions with a real store that contains the bootstrap roles.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::{Access as _, BoundObject, NotGranted, TokenClaims};
use super::{Attributes, Auth, Mode, Options, Target, TokenFile, User, bootstrap};
use crate::store::{Change, Expected, Key, MemoryStore, Store, Write};

const RBAC: &str = "rbac.authorization.k8s.io";

struct World {
    store: Arc<dyn Store>,
    auth: Auth,
}

impl World {
    async fn new() -> Self {
        Self::with(Options::default()).await
    }

    async fn with(options: Options) -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        bootstrap::run(&store).await.unwrap();
        let auth = Auth::new(Arc::clone(&store), options).unwrap();
        Self { store, auth }
    }

    async fn put(&self, resource: &str, namespace: &str, name: &str, mut object: Value) {
        object["metadata"]["name"] = name.into();
        let key = Key {
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        let expected = match self.store.get(&key) {
            Some(object) => Expected::Revision(object.revision),
            None => Expected::Absent,
        };
        let change = Change::Put(object.into());
        self.store
            .write(Write::new(key, expected, change))
            .await
            .unwrap();
    }

    async fn delete(&self, resource: &str, namespace: &str, name: &str) {
        let key = Key {
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        let expected = Expected::Revision(self.store.get(&key).unwrap().revision);
        let change = Change::Delete;
        self.store
            .write(Write::new(key, expected, change))
            .await
            .unwrap();
    }

    async fn role(&self, namespace: &str, name: &str, rules: Value) {
        let kind = if namespace.is_empty() {
            "clusterroles"
        } else {
            "roles"
        };
        self.put(
            &format!("{RBAC}/{kind}"),
            namespace,
            name,
            json!({ "rules": rules }),
        )
        .await;
    }

    async fn bind(&self, namespace: &str, name: &str, role: (&str, &str), subject: Value) {
        let kind = if namespace.is_empty() {
            "clusterrolebindings"
        } else {
            "rolebindings"
        };
        let object = json!({
            "roleRef": { "apiGroup": RBAC, "kind": role.0, "name": role.1 }, "subjects": [subject],
        });
        self.put(&format!("{RBAC}/{kind}"), namespace, name, object)
            .await;
    }

    fn may(&self, user: &User, verb: &str, resource: &str, namespace: &str) -> bool {
        self.auth
            .decide(user, &request(verb, resource, namespace))
            .allowed
    }
}

/// Returns a request for `group/resource` in a namespace.
fn request<'a>(verb: &'a str, resource: &'a str, namespace: &'a str) -> Attributes<'a> {
    let (group, resource) = resource.split_once('/').unwrap();
    let (subresource, name) = ("", "");
    Attributes {
        verb,
        target: Target::Resource {
            group,
            resource,
            subresource,
            namespace,
            name,
        },
    }
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs })
}

fn named(kind: &str, name: &str) -> Value {
    json!({ "kind": kind, "name": name, "apiGroup": RBAC })
}

#[tokio::test]
async fn binding_applies_within_its_scope() {
    let world = World::new().await;
    let alice = User::new("alice", ["devs".to_owned()]);
    world
        .role("a", "r", json!([rule("", "pods", &["get"])]))
        .await;
    world
        .role("", "r", json!([rule("", "secrets", &["get"])]))
        .await;
    assert!(!world.may(&alice, "get", "/pods", "a"));

    // A role is in force as soon as its write is acknowledged.
    world
        .bind("a", "b", ("Role", "r"), named("User", "alice"))
        .await;
    assert!(world.may(&alice, "get", "/pods", "a"));
    assert!(!world.may(&alice, "get", "/pods", "b"));
    assert!(!world.may(&alice, "get", "/pods", ""));

    world
        .bind("a", "c", ("ClusterRole", "r"), named("Group", "devs"))
        .await;
    assert!(world.may(&alice, "get", "/secrets", "a"));
    assert!(!world.may(&alice, "get", "/secrets", "b"));
    world
        .bind("", "c", ("ClusterRole", "r"), named("Group", "devs"))
        .await;
    assert!(world.may(&alice, "get", "/secrets", "b"));
    assert!(world.may(&alice, "get", "/secrets", ""));
    assert!(!world.may(&User::new("devs", []), "get", "/secrets", "b"));

    world
        .delete(&format!("{RBAC}/clusterrolebindings"), "", "c")
        .await;
    assert!(!world.may(&alice, "get", "/secrets", "b"));
    world.role("a", "r", json!([])).await;
    assert!(!world.may(&alice, "get", "/pods", "a"));
}

#[tokio::test]
async fn reasons_name_the_binding_or_the_missing_role() {
    let world = World::new().await;
    let alice = User::new("alice", []);
    world
        .bind("a", "b", ("Role", "r"), named("User", "alice"))
        .await;
    let decision = world.auth.decide(&alice, &request("get", "/pods", "a"));
    assert_eq!(
        decision.reason,
        "RBAC: role.rbac.authorization.k8s.io \"r\" not found"
    );
    let refusal = world
        .auth
        .authorize(&alice, &request("get", "/pods", "a"))
        .unwrap_err();
    assert_eq!(
        refusal.message,
        "pods is forbidden: User \"alice\" cannot get resource \"pods\" in API group \"\" in the \
         namespace \"a\": RBAC: role.rbac.authorization.k8s.io \"r\" not found"
    );
    world
        .role("a", "r", json!([rule("", "pods", &["get"])]))
        .await;
    let decision = world.auth.decide(&alice, &request("get", "/pods", "a"));
    assert_eq!(
        decision.reason,
        "RBAC: allowed by RoleBinding \"b/a\" of Role \"r\" to User \"alice\""
    );
}

#[tokio::test]
async fn policy_is_correct_after_lost_watch_history() {
    let world = World::new().await;
    let alice = User::new("alice", []);
    world
        .role("a", "r", json!([rule("", "pods", &["get"])]))
        .await;
    world
        .bind("a", "b", ("Role", "r"), named("User", "alice"))
        .await;
    assert!(world.may(&alice, "get", "/pods", "a"));
    world.store.jump(1000).await.unwrap();
    assert!(world.may(&alice, "get", "/pods", "a"));
    world
        .delete(&format!("{RBAC}/rolebindings"), "a", "b")
        .await;
    assert!(!world.may(&alice, "get", "/pods", "a"));
}

#[tokio::test]
async fn bootstrap_roles_grant_their_permissions() {
    let world = World::new().await;
    let eve = User::new("eve", []);
    let path = |user: &User, path| {
        let attributes = Attributes {
            verb: "get",
            target: Target::Path(path),
        };
        world.auth.decide(user, &attributes).allowed
    };
    assert!(world.may(
        &eve,
        "create",
        "authorization.k8s.io/selfsubjectaccessreviews",
        ""
    ));
    assert!(!world.may(
        &eve,
        "create",
        "authorization.k8s.io/subjectaccessreviews",
        ""
    ));
    for (known, unknown, url) in [
        (true, true, "/version"),
        (true, true, "/healthz"),
        (true, false, "/api"),
        (true, false, "/apis/apps/v1"),
        (true, false, "/openapi/v3"),
        (false, false, "/metrics"),
    ] {
        assert_eq!(path(&eve, url), known, "{url}");
        assert_eq!(path(&User::anonymous(), url), unknown, "{url}");
    }
    assert!(path(
        &User::new("prometheus", ["system:monitoring".to_owned()]),
        "/metrics"
    ));
    assert!(world.may(&User::admin(), "escalate", "x/y", "z"));

    // admin aggregates edit, which aggregates view, each through labels.
    world
        .bind("a", "b", ("ClusterRole", "admin"), named("User", "eve"))
        .await;
    assert!(world.may(&eve, "create", "rbac.authorization.k8s.io/roles", "a"));
    assert!(world.may(&eve, "create", "coordination.k8s.io/leases", "a"));
    assert!(world.may(&eve, "watch", "/pods", "a"));
    assert!(!world.may(&eve, "create", "stable.example.com/crontabs", "a"));
    let object = json!({
        "metadata": { "labels": { "rbac.authorization.k8s.io/aggregate-to-edit": "true" } },
        "rules": [rule("stable.example.com", "crontabs", &["create"])],
    });
    world
        .put(&format!("{RBAC}/clusterroles"), "", "crontabs", object)
        .await;
    assert!(world.may(&eve, "create", "stable.example.com/crontabs", "a"));
    let writes = world.store.revision();
    bootstrap::run(&world.store).await.unwrap();
    assert_eq!(
        world.store.revision(),
        writes,
        "an existing role must not change"
    );
}

#[tokio::test]
async fn user_cannot_grant_more_than_it_has() {
    let world = World::new().await;
    let alice = User::new("alice", ["devs".to_owned()]);
    let role = |rules: Value| json!({ "metadata": { "name": "more" }, "rules": rules });
    let bind = |kind: &str, name: &str| json!({ "metadata": { "name": "bind" }, "roleRef": { "kind": kind, "name": name } });
    let grant = |resource: &str, namespace: &str, object: &Value| {
        world
            .auth
            .check_grant(&alice, resource, namespace, None, object)
    };
    world
        .role(
            "a",
            "r",
            json!([
                rule("", "pods", &["get", "list"]),
                rule("", "secrets", &["*"])
            ]),
        )
        .await;
    world
        .bind("a", "b", ("Role", "r"), named("User", "alice"))
        .await;

    // Two rules cover it together, and neither covers it alone.
    let both =
        role(json!([{ "apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get"] }]));
    assert_eq!(grant("roles", "a", &both), Ok(()));
    assert!(grant("roles", "b", &both).is_err());
    assert!(grant("clusterroles", "", &both).is_err());
    let why = grant(
        "roles",
        "a",
        &role(json!([rule("", "pods", &["get", "delete"])])),
    )
    .unwrap_err();
    assert_eq!(
        why.to_string(),
        "user \"alice\" (groups=[\"devs\" \"system:authenticated\"]) is attempting to grant RBAC \
         permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"
    );
    assert_eq!(grant("rolebindings", "a", &bind("Role", "r")), Ok(()));
    assert!(grant("rolebindings", "a", &bind("ClusterRole", "cluster-admin")).is_err());
    assert_eq!(
        grant("rolebindings", "a", &bind("Role", "absent")),
        Err(NotGranted::NoRole {
            resource: "roles",
            name: "absent".into()
        })
    );

    // An update that keeps the rules grants nothing.
    world
        .role("a", "big", json!([rule("*", "*", &["*"])]))
        .await;
    let same = json!({
        "metadata": { "name": "big", "labels": { "x": "y" } }, "rules": [rule("*", "*", &["*"])],
    });
    let update = |old: &Value| {
        let auth = &world.auth;
        auth.check_grant(&alice, "roles", "a", Some(old), &same)
    };
    assert_eq!(update(&same), Ok(()));
    // Creating a role with rules that another role has grants these rules. An update that adds rules to a role grants
    // them too.
    assert!(grant("roles", "a", &same).is_err());
    assert!(update(&both).is_err());

    // The verbs that disable the check.
    world
        .role(
            "a",
            "r",
            json!([
                rule(RBAC, "roles", &["escalate"]),
                rule(RBAC, "clusterroles", &["bind"])
            ]),
        )
        .await;
    assert_eq!(
        grant("roles", "a", &role(json!([rule("*", "*", &["*"])]))),
        Ok(())
    );
    assert_eq!(
        grant("rolebindings", "a", &bind("ClusterRole", "cluster-admin")),
        Ok(())
    );
    assert!(
        grant(
            "clusterrolebindings",
            "",
            &bind("ClusterRole", "cluster-admin")
        )
        .is_err()
    );
    let admin = User::admin();
    assert_eq!(
        world
            .auth
            .check_grant(&admin, "clusterroles", "", None, &both),
        Ok(())
    );
}

#[tokio::test]
async fn tokens_name_their_user_and_bad_ones_are_401() {
    let tokens = TokenFile::parse("t,alice,7,\"devs\"").unwrap();
    let world = World::with(Options {
        tokens,
        ..Options::default()
    })
    .await;
    let headers = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(value).unwrap());
        headers
    };
    let who = |value: &str| {
        world
            .auth
            .authenticate(None, &headers(value))
            .map(|u| u.into_owned().name)
    };
    assert_eq!(who("Bearer t").unwrap(), "alice");
    assert_eq!(who("bearer  t ").unwrap(), "alice");
    assert_eq!(who("Bearer x").unwrap_err().code, 401);
    assert_eq!(who("Basic dGVzdA==").unwrap(), "system:anonymous");
    let none = world.auth.authenticate(None, &HeaderMap::new()).unwrap();
    assert_eq!(*none, User::anonymous());
    let admin = User::admin();
    let certified = world
        .auth
        .authenticate(Some(&admin), &headers("Bearer x"))
        .unwrap();
    assert_eq!(*certified, admin);

    let strict = World::with(Options {
        deny_anonymous: true,
        ..Options::default()
    })
    .await;
    assert_eq!(
        strict
            .auth
            .authenticate(None, &HeaderMap::new())
            .unwrap_err()
            .code,
        401
    );
}

#[tokio::test]
async fn service_account_token_is_invalid_after_deletion_of_its_account() {
    let world = World::new().await;
    let account = |uid: &str| json!({ "metadata": { "uid": uid } });
    world
        .put("/serviceaccounts", "ns", "sa", account("u1"))
        .await;
    let mut claims = TokenClaims {
        namespace: "ns",
        name: "sa",
        uid: "u1",
        audiences: &["https://kubernetes.default.svc".to_owned()],
        seconds: 600,
        bound: None,
    };
    let token = world.auth.issue_token(&claims).unwrap().token;
    let who = |token: &str, audiences: &[&str]| {
        let audiences: Vec<String> = audiences.iter().map(|a| (*a).to_owned()).collect();
        world.auth.review_token(token, &audiences)
    };
    let (user, audiences) = who(&token, &[]).unwrap();
    assert_eq!(user.name, "system:serviceaccount:ns:sa");
    assert_eq!(user.uid, "u1");
    assert_eq!(
        user.groups,
        [
            "system:serviceaccounts",
            "system:serviceaccounts:ns",
            "system:authenticated"
        ]
    );
    assert_eq!(audiences, ["https://kubernetes.default.svc"]);
    assert!(who(&token, &["vault"]).is_err());

    let vault = ["vault".to_owned()];
    claims.audiences = &vault;
    let other = world.auth.issue_token(&claims).unwrap().token;
    assert!(who(&other, &[]).is_err());
    assert_eq!(who(&other, &["x", "vault"]).unwrap().1, ["vault"]);

    let old = TokenClaims {
        audiences: &vault,
        seconds: -1,
        ..claims
    };
    let old = world.auth.issue_token(&old).unwrap().token;
    assert!(who(&old, &["vault"]).is_err());

    // A bound token becomes invalid when the object that it is bound to is deleted.
    let named = [
        ("Pod", "/pods", "ns"),
        ("Secret", "/secrets", "ns"),
        ("Node", "/nodes", ""),
    ];
    for (kind, resource, namespace) in named {
        world.put(resource, namespace, "x", account("b1")).await;
        let bound = TokenClaims {
            bound: Some(BoundObject {
                kind,
                name: "x",
                uid: "b1",
            }),
            audiences: &["https://kubernetes.default.svc".to_owned()],
            ..claims.clone()
        };
        let bound = world.auth.issue_token(&bound).unwrap().token;
        let (user, _) = who(&bound, &[]).unwrap();
        let pod = user.extra.get("authentication.kubernetes.io/pod-uid");
        assert_eq!(pod.is_some(), kind == "Pod", "{:?}", user.extra);
        world.put(resource, namespace, "x", account("b2")).await;
        assert!(who(&bound, &[]).is_err(), "{kind} with another uid");
        world.delete(resource, namespace, "x").await;
        assert!(who(&bound, &[]).is_err(), "no {kind}");
    }

    world
        .put("/serviceaccounts", "ns", "sa", account("u2"))
        .await;
    assert!(who(&token, &[]).is_err());
    world.delete("/serviceaccounts", "ns", "sa").await;
    assert!(who(&token, &[]).is_err());
}

#[tokio::test]
async fn impersonation_needs_the_permission() {
    let world = World::new().await;
    let mut headers = HeaderMap::new();
    headers.insert("impersonate-user", HeaderValue::from_static("jane"));
    let alice: Cow<'_, User> = Cow::Owned(User::new("alice", []));
    let refused = world.auth.impersonate(alice.clone(), &headers).unwrap_err();
    assert_eq!(
        refused.message,
        "users \"jane\" is forbidden: User \"alice\" cannot impersonate resource \"users\" in API \
         group \"\" at the cluster scope"
    );
    world
        .role("", "imp", json!([rule("", "users", &["impersonate"])]))
        .await;
    world
        .bind("", "imp", ("ClusterRole", "imp"), named("User", "alice"))
        .await;
    assert_eq!(
        world
            .auth
            .impersonate(alice.clone(), &headers)
            .unwrap()
            .name,
        "jane"
    );
    headers.insert(
        "impersonate-group",
        HeaderValue::from_static("system:masters"),
    );
    assert_eq!(
        world.auth.impersonate(alice, &headers).unwrap_err().code,
        403
    );
}

#[tokio::test]
async fn always_allow_permits_every_request() {
    let world = World::with(Options {
        mode: Mode::AlwaysAllow,
        ..Options::default()
    })
    .await;
    assert!(world.may(&User::anonymous(), "delete", "/nodes", ""));
    assert_eq!(
        world
            .auth
            .check_grant(&User::anonymous(), "roles", "a", None, &json!({})),
        Ok(())
    );
    assert_eq!(
        world
            .auth
            .rules(&User::anonymous(), "a")
            .resource_rules
            .len(),
        1
    );
}
