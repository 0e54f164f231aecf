//! Role-based access control by the Role, ClusterRole, RoleBinding and ClusterRoleBinding objects in the store.
//!
//! | file | contents |
//! |---|---|
//! | `rule` | whether a rule matches a request, and whether a rule covers another |
//! | `comparison` | whether a set of rules grants everything that another set grants |
//! | `policy` | roles and bindings, indexed by subject |
//! | `authorizer` | keeps the policy in sync with the store |
//! | `escalation` | privilege escalation checks |

mod authorizer;
mod comparison;
mod escalation;
mod policy;
#[cfg(test)]
mod property;
mod rule;

pub(crate) use authorizer::Authorizer;
use comparison::Comparison;
pub(crate) use escalation::Grant;
pub use rule::Rule;

/// API group of the four kinds.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Returns whether `had` grants everything that `wanted` grants. False if the comparison would take too long.
pub(crate) fn covers(had: &[Rule], wanted: &[Rule]) -> bool {
    let mut comparison = Comparison::new(had);
    wanted.iter().all(|rule| comparison.compare(rule)) && comparison.missing.is_empty()
}
