//! Leader migration: moves controllers between two programs without a gap and without overlap. Both programs use a
//! second lock for that. kube-controller-manager and cloud-controller-manager do the same
//! (`LeaderMigrationConfiguration`).
//!
//! A controller that is not listed runs under the group for which it was registered. A listed controller runs under the
//! migration lock, in the program to which it is assigned. A program campaigns for the migration lock only after the work
//! under the main lock has started.

use serde::Deserialize;

/// The controllers that move, and their programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderMigration {
    /// The name of the second lock.
    pub leader_name: String,
    /// The controllers that run under it.
    pub controller_leaders: Vec<ControllerLeader>,
}

/// The program of one controller.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerLeader {
    /// The controller.
    #[serde(default)]
    pub name: String,
    /// The program, or `*` for any.
    #[serde(default)]
    pub component: String,
}

/// Placement of a controller in this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The controller runs under the main lock.
    NonMigrated,
    /// The controller runs under the migration lock.
    Migrated,
    /// Another program runs the controller.
    Unowned,
}

/// All problems of a migration configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid leader migration configuration: {}", problems.join("; "))]
pub struct InvalidMigration {
    /// At least one.
    pub problems: Vec<String>,
}

impl LeaderMigration {
    /// Parses a `LeaderMigrationConfiguration` of `controllermanager.config.k8s.io`, as YAML or JSON. Unknown fields are
    /// errors.
    ///
    /// # Errors
    /// Returns every problem.
    pub fn parse(text: &str) -> Result<Self, InvalidMigration> {
        let wire: Wire = serde_saphyr::from_str(text).map_err(|error| InvalidMigration {
            problems: vec![error.to_string()],
        })?;
        wire.check()
    }

    /// Returns Kubernetes' default list for moving a cloud provider out of kube-controller-manager.
    pub fn cloud_provider_extraction() -> Self {
        let names = [
            "route-controller",
            "service-controller",
            "cloud-node-lifecycle-controller",
        ];
        Self {
            leader_name: "cloud-provider-extraction-migration".to_owned(),
            controller_leaders: names
                .map(|name| ControllerLeader {
                    name: name.to_owned(),
                    component: "*".to_owned(),
                })
                .to_vec(),
        }
    }

    /// Returns the placement of a controller in the program `component`.
    pub fn place(&self, controller: &str, component: &str) -> Placement {
        let listed = self
            .controller_leaders
            .iter()
            .find(|leader| leader.name == controller);
        match listed {
            None => Placement::NonMigrated,
            Some(leader) if leader.component == component || leader.component == "*" => {
                Placement::Migrated
            }
            Some(_) => Placement::Unowned,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    leader_name: String,
    resource_lock: Option<String>,
    #[serde(default)]
    controller_leaders: Vec<ControllerLeader>,
}

impl Wire {
    fn check(self) -> Result<LeaderMigration, InvalidMigration> {
        const GROUP: &str = "controllermanager.config.k8s.io";
        let mut problems = Vec::new();
        if self.kind != "LeaderMigrationConfiguration" {
            problems.push(format!(
                "kind is {:?}, expected \"LeaderMigrationConfiguration\"",
                self.kind
            ));
        }
        let version = self.api_version.strip_prefix(GROUP).unwrap_or_default();
        match (version, self.resource_lock.as_deref()) {
            ("/v1", None) | ("/v1beta1" | "/v1alpha1", None | Some("" | "leases")) => {}
            // The field was allowed, and names a lock kind that current Kubernetes programs do not use.
            ("/v1beta1" | "/v1alpha1", Some(lock)) => {
                problems.push(format!("resourceLock is {lock:?}, expected \"leases\""));
            }
            // The file is decoded strictly, so any value is an error.
            ("/v1", Some(_)) => problems.push("v1 has no field resourceLock".to_owned()),
            _ => problems.push(format!(
                "apiVersion is {:?}, expected {GROUP}/v1, /v1beta1 or /v1alpha1",
                self.api_version
            )),
        }
        if self.leader_name.is_empty() {
            problems.push("leaderName is required".to_owned());
        }
        for (i, leader) in self.controller_leaders.iter().enumerate() {
            for (field, value) in [("name", &leader.name), ("component", &leader.component)] {
                if value.is_empty() {
                    problems.push(format!("controllerLeaders[{i}].{field} is required"));
                }
            }
        }
        if !problems.is_empty() {
            return Err(InvalidMigration { problems });
        }
        Ok(LeaderMigration {
            leader_name: self.leader_name,
            controller_leaders: self.controller_leaders,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
kind: LeaderMigrationConfiguration
apiVersion: controllermanager.config.k8s.io/v1
leaderName: migration
controllerLeaders:
  - name: route
    component: cloud-controller-manager
  - name: service
    component: '*'
";

    #[test]
    fn cases_62_to_67_controller_runs_under_the_expected_lock() {
        let migration = LeaderMigration::parse(FILE).unwrap();
        let place = |name, component| migration.place(name, component);
        assert_eq!(
            place("route", "kube-controller-manager"),
            Placement::Unowned
        );
        assert_eq!(
            place("route", "cloud-controller-manager"),
            Placement::Migrated
        );
        for component in ["kube-controller-manager", "cloud-controller-manager"] {
            assert_eq!(place("service", component), Placement::Migrated);
            assert_eq!(place("node", component), Placement::NonMigrated);
        }
        let default = LeaderMigration::cloud_provider_extraction();
        assert_eq!(default.place("route-controller", "x"), Placement::Migrated);
    }

    #[test]
    fn every_problem_is_reported() {
        let text = "{kind: x, apiVersion: y, controllerLeaders: [{name: a}, {component: b}]}";
        let error = LeaderMigration::parse(text).unwrap_err();
        assert_eq!(error.problems.len(), 5, "{error}");
        assert!(
            error
                .to_string()
                .contains("controllerLeaders[0].component is required"),
            "{error}"
        );
    }

    #[test]
    fn unknown_fields_and_old_locks_are_refused() {
        let unknown = format!("{FILE}\nleaderNames: x\n");
        let error = LeaderMigration::parse(&unknown).unwrap_err();
        assert!(error.to_string().contains("leaderNames"), "{error}");
        let beta = FILE.replace("/v1", "/v1beta1");
        assert!(LeaderMigration::parse(&format!("{beta}\nresourceLock: leases\n")).is_ok());
        let error = LeaderMigration::parse(&format!("{beta}\nresourceLock: endpoints\n"));
        assert_eq!(
            error.unwrap_err().to_string(),
            "invalid leader migration configuration: resourceLock is \"endpoints\", expected \"leases\""
        );
    }

    #[test]
    fn resource_lock_is_an_unknown_field_in_v1() {
        for lock in ["leases", "endpoints", "\"\""] {
            let error = LeaderMigration::parse(&format!("{FILE}\nresourceLock: {lock}\n"));
            assert_eq!(
                error.unwrap_err().to_string(),
                "invalid leader migration configuration: v1 has no field resourceLock"
            );
        }
    }
}
