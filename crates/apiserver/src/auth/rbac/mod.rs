//! Role based access control over the Role, ClusterRole, RoleBinding and ClusterRoleBinding objects
//! in the store.
//!
//! | file | is about |
//! |---|---|
//! | `rule` | when a rule matches a request, when a rule covers another |
//! | `comparison` | whether some rules grant everything that others do |
//! | `policy` | roles and bindings, indexed by subject |
//! | `authorizer` | the policy kept in step with the store |
//! | `escalation` | nobody grants more than they have |

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
